"""Small scripts that do in a roundabout way what an analysis may overlook. Each leaves files that depend on the order."""

HEAD = """
import json
def save(name, value):
    with open(name, "w") as file:
        json.dump(value, file)
def load(name):
    with open(name) as file:
        return json.load(file)
"""

HOSTILE = {
    "aliases": """
a = [1]
b = a
def grow(x): x.append(2)
def look(x): save("out.json", x)
grow(b)
look(a)
grow(a)
""",
    "changed through a list": """
inner = [1]
outer = [inner]
def grow(x): x[0].append(2)
def look(x): save("out.json", x)
grow(outer)
look(inner)
grow(outer)
""",
    "changed through a dictionary": """
inner = {"n": 1}
table = {"inner": inner}
def change(): table["inner"]["n"] += 1
def look(): save("out.json", inner)
change()
look()
change()
""",
    "closures that share a list": """
def make():
    kept = []
    def put(x): kept.append(x)
    def get(): return list(kept)
    return put, get
put, get = make()
put(1)
save("first.json", get())
put(2)
save("second.json", get())
""",
    "global variables": """
count = 0
def step():
    global count
    count += 1
def look(name): save(name, count)
step()
look("a.json")
step()
look("b.json")
""",
    "a default that is kept": """
def keep(x, kept=[]):
    kept.append(x)
    return kept
a = keep(1)
save("a.json", a)
b = keep(2)
save("b.json", a)
""",
    "a default that is returned": """
def start(x=[]): return x
def grow(x): x.append(1)
a = start()
b = start()
grow(a)
save("b.json", b)
grow(a)
save("c.json", b)
""",
    "a list of the class": """
class Box:
    items = []
    def put(self, x): self.items.append(x)
    def total(self): return sum(self.items)
a = Box()
b = Box()
a.put(1)
save("a.json", b.total())
a.put(2)
save("b.json", b.total())
""",
    "an attribute of the class": """
class Box:
    total = 0
def put(x): Box.total += x
def get(): return Box.total
put(1)
save("a.json", get())
put(2)
save("b.json", get())
""",
    "a class method": """
class Store:
    seen = {}
    @classmethod
    def put(cls, key): cls.seen[key] = len(cls.seen)
    @classmethod
    def dump(cls, name): save(name, cls.seen)
Store.put("x")
Store.dump("a.json")
Store.put("y")
Store.dump("b.json")
""",
    "a decorator that counts": """
calls = []
def counted(function):
    def inner(*given):
        calls.append(function.__name__)
        return function(*given)
    return inner
@counted
def work(x): return x * 2
work(1)
save("a.json", calls)
work(2)
save("b.json", calls)
""",
    "a decorator that registers": """
table = {}
def register(function):
    table[function.__name__] = len(table)
    return function
def look(name): save(name, sorted(table))
look("none.json")
@register
def one(): return 1
look("one.json")
""",
    "a cached function": """
import functools
@functools.lru_cache
def data(): return []
def grow(x): x.append(1)
a = data()
b = data()
grow(a)
save("b.json", b)
grow(a)
save("c.json", b)
""",
    "generators that run late": """
def lines():
    yield 1
    save("made.json", [1])
    yield 2
rows = lines()
save("made.json", [0])
total = sum(rows)
save("copy.json", load("made.json"))
""",
    "a map that runs late": """
def note(x):
    save("noted.json", x)
    return x
save("noted.json", 0)
results = map(note, [1, 2, 3])
save("before.json", load("noted.json"))
found = list(results)
save("after.json", load("noted.json"))
""",
    "a shared iterator": """
rows = iter([1, 2, 3, 4])
def take(name): save(name, next(rows))
take("a.json")
take("b.json")
save("rest.json", list(rows))
""",
    "a with block": """
log = []
class Section:
    def __init__(self, name): self.name = name
    def __enter__(self): log.append("in " + self.name)
    def __exit__(self, *_): log.append("out " + self.name)
with Section("a"):
    save("a.json", log)
with Section("b"):
    save("b.json", log)
save("c.json", log)
""",
    "a context manager that is made before": """
from contextlib import contextmanager
log = []
@contextmanager
def section(name):
    log.append(name)
    yield
    save(name + ".json", log)
one = section("one")
two = section("two")
with two:
    log.append(1)
with one:
    log.append(2)
save("all.json", log)
""",
    "try and finally": """
state = {"open": 0}
def work(fail):
    try:
        state["open"] += 1
        if fail: raise ValueError
    except ValueError:
        state["failed"] = True
    finally:
        save("state.json", state)
work(False)
save("copy.json", load("state.json"))
work(True)
save("last.json", load("state.json"))
""",
    "appending to one file": """
def note(text):
    with open("log.txt", "a") as file:
        file.write(text)
note("a")
note("b")
for i in range(3):
    note(str(i))
""",
    "another current directory": """
import os
os.makedirs("sub", exist_ok=True)
save("x.json", 1)
os.chdir("sub")
save("x.json", 2)
save("seen.json", load("x.json"))
os.chdir("..")
save("seen.json", load("x.json"))
""",
    "random numbers": """
import random
import numpy as np
random.seed(1)
np.random.seed(1)
def draw(): return [random.random(), float(np.random.rand())]
save("a.json", draw())
save("b.json", draw())
for i in range(3):
    save(f"r_{i}.json", random.random())
""",
    "a generator of random numbers": """
import numpy as np
rng = np.random.default_rng(0)
def draw(x): return float(x.normal())
save("a.json", draw(rng))
save("b.json", draw(rng))
for i in range(3):
    save(f"r_{i}.json", float(rng.normal()))
""",
    "a replaced function": """
import math
def area(r): return math.sqrt(r)
save("a.json", area(4))
math.sqrt = lambda x: -1
save("b.json", area(4))
""",
    "a replaced method": """
class Tool:
    def run(self): return 1
tool = Tool()
def other(): return 2
save("a.json", tool.run())
tool.run = other
save("b.json", tool.run())
""",
    "setattr": """
class Options: pass
options = Options()
setattr(options, "rate", 1)
def look(name): save(name, getattr(options, "rate"))
look("a.json")
setattr(options, "rate", 2)
look("b.json")
""",
    "getattr that writes": """
from pathlib import Path
path = Path("x.json")
getattr(path, "write_text")("1")
save("a.json", load("x.json"))
getattr(path, "write_text")("2")
save("b.json", load("x.json"))
""",
    "exec": """
x = [1]
exec("x.append(2)")
save("a.json", x)
exec("x.append(3)")
save("b.json", x)
""",
    "eval": """
x = [1]
eval("x.append(2)")
save("a.json", x)
save("b.json", eval("len(x)"))
""",
    "globals": """
def put(n): globals()["state"] = n
put(1)
save("a.json", state)
put(2)
save("b.json", state)
""",
    "another program": """
import subprocess, sys
def write(n): subprocess.run([sys.executable, "-c", f"open('x.json', 'w').write('{n}')"], check=True)
write(1)
save("a.json", load("x.json"))
write(2)
save("b.json", load("x.json"))
""",
    "views of an array": """
import numpy as np
a = np.zeros(4)
b = a[1:3]
def fill(x): x += 1
def look(name, x): save(name, x.tolist())
fill(b)
look("a.json", a)
fill(b)
look("b.json", a)
c = a.reshape(2, 2).T
fill(c)
look("c.json", a)
""",
    "in place functions of numpy": """
import numpy as np
a = np.zeros(4)
def count(x): np.add.at(x, [0, 0, 1], 1)
def look(name): save(name, a.tolist())
count(a)
look("a.json")
np.multiply(a, 2, out=a)
look("b.json")
np.copyto(a, 7)
look("c.json")
""",
    "views of a table": """
import pandas as pd
table = pd.DataFrame({"a": [3, 1, 2]})
def look(name): save(name, table.values.tolist())
look("a.json")
table.sort_values("a", inplace=True)
look("b.json")
table.loc[0, "a"] = 9
look("c.json")
table["b"] = 1
look("d.json")
""",
    "fields of a dataclass": """
from dataclasses import dataclass, field
@dataclass
class State:
    items: list = field(default_factory=list)
    count: int = 0
state = State()
def step(s):
    s.items.append(s.count)
    s.count += 1
step(state)
save("a.json", [state.items, state.count])
step(state)
save("b.json", [state.items, state.count])
""",
    "threads": """
import threading
seen = []
def work(n):
    seen.append(n)
    save("last.json", n)
one = threading.Thread(target=work, args=(1,))
one.start()
one.join()
save("a.json", seen)
two = threading.Thread(target=work, args=(2,))
two.start()
two.join()
save("b.json", load("last.json"))
""",
    "a pool of threads": """
from concurrent.futures import ThreadPoolExecutor
def work(n):
    save(f"w_{n}.json", n)
    return n
with ThreadPoolExecutor(2) as pool:
    waiting = [pool.submit(work, n) for n in range(3)]
save("all.json", [load(f"w_{n}.json") for n in range(3)])
""",
    "sorted in place": """
xs = [3, 1, 2]
def look(name): save(name, xs)
look("a.json")
xs.sort()
look("b.json")
xs.reverse()
look("c.json")
""",
    "a digest": """
import hashlib
digest = hashlib.sha256()
def feed(x): digest.update(x)
def look(name): save(name, digest.hexdigest())
feed(b"a")
look("a.json")
feed(b"b")
look("b.json")
""",
    "a file that is renamed": """
from pathlib import Path
save("x.json", 1)
Path("x.json").rename("y.json")
save("copy.json", load("y.json"))
save("x.json", 2)
Path("x.json").replace("y.json")
save("copy2.json", load("y.json"))
""",
    "printed into a text": """
import io
text = io.StringIO()
def note(x): print(x, file=text)
note("a")
save("a.json", text.getvalue())
note("b")
save("b.json", text.getvalue())
""",
    "a dictionary with defaults": """
from collections import defaultdict
table = defaultdict(list)
def ask(key): return len(table[key])
def look(name): save(name, sorted(table))
look("a.json")
ask("x")
look("b.json")
ask("y")
look("c.json")
""",
    "functions in a table": """
def write(n): save("x.json", n)
def read(name): save(name, load("x.json"))
work = {"write": write, "read": read}
work["write"](1)
read("a.json")
work["write"](2)
work["read"]("b.json")
""",
    "a bound method": """
class Box:
    def __init__(self): self.items = []
    def put(self, x): self.items.append(x)
box = Box()
put = box.put
put(1)
save("a.json", box.items)
put(2)
save("b.json", box.items)
""",
    "a property": """
class Meter:
    def __init__(self): self.reads = 0
    @property
    def value(self):
        self.reads += 1
        return self.reads
meter = Meter()
def look(name): save(name, meter.value)
look("a.json")
look("b.json")
x = meter.value
save("c.json", meter.value)
""",
    "operators": """
class Log:
    lines = []
    def __lshift__(self, text):
        self.lines.append(text)
        save("log.json", self.lines)
        return self
    def __len__(self): return len(self.lines)
log = Log()
log << "a"
save("a.json", load("log.json"))
log << "b"
save("b.json", len(log))
""",
    "a name of its own for each run": """
import time
from pathlib import Path
run = f"run_{time.time_ns()}"
def first(): save("first.json", run == run)
def write(): Path("where.json").write_text(json.dumps(run[:4]))
first()
write()
""",
    "the environment": """
import os
os.environ["RATE"] = "1"
def look(name): save(name, os.getenv("RATE"))
def change(): os.environ["RATE"] = "2"
look("a.json")
change()
look("b.json")
""",
    "a file that is read at the start": """
import os
before = load("count.json") if os.path.exists("count.json") else 0
def count(): save("count.json", 5)
def report(n): save("report.json", n)
count()
report(before)
""",
    "two statements on a line": """
save("x.json", 1); save("y.json", load("x.json"))
save("x.json", 2); save("z.json", load("x.json"))
""",
    "a loop variable that is assigned": """
def note(name, n): save(name, n)
for i in range(4):
    i = i // 2
    note(f"x_{i}.json", i)
for n in ["a", "./a"]:
    note(f"{n}.json", n)
""",
    "a loop over one object twice": """
xs = []
for i, part in enumerate([xs, xs]):
    part.append(i)
    save(f"x_{i}.json", part)
""",
    "lists that look plain": """
import numpy as np
words = "c a b".split()
rows = np.arange(3).tolist()
def order(x): x.sort(reverse=True)
def look(name, x): save(name, x)
order(words)
look("a.json", words)
order(rows)
look("b.json", rows)
""",
    "globals that are linked": """
A = []
B = [1]
def link(): A.append(B)
def grow(): A[0].append(2)
def look(name): save(name, B)
link()
grow()
look("a.json")
grow()
look("b.json")
""",
    "a method that returns a global": """
STATE = [1]
class Store:
    def get(self): return STATE
def grow(x): x.append(1)
def look(name): save(name, STATE)
mine = Store().get()
grow(mine)
look("a.json")
grow(mine)
look("b.json")
""",
    "another name for a module": """
import os
system = os
save("x.json", 1)
system.rename("x.json", "y.json")
save("a.json", load("y.json"))
""",
    "a partial function": """
import functools
seen = []
def put(x, y): seen.append([x, y])
put_one = functools.partial(put, 1)
put_one(2)
save("a.json", seen)
put_one(3)
save("b.json", seen)
""",
    "a lambda": """
seen = []
put = lambda x: seen.append(x)
look = lambda name: save(name, seen)
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "walrus and comprehensions": """
seen = []
def put(x):
    seen.append(x)
    return len(seen)
sizes = [n for x in range(3) if (n := put(x)) > 1]
save("a.json", seen)
more = {put(x) for x in range(2)}
save("b.json", seen)
""",
    "a recursive function": """
tree = {"n": 0, "inner": {"n": 0}}
def bump(node):
    node["n"] += 1
    if "inner" in node: bump(node["inner"])
def look(name): save(name, tree)
bump(tree)
look("a.json")
bump(tree["inner"])
look("b.json")
""",
    "inheritance": """
class Base:
    def run(self): return self.step()
    def step(self): return 0
class Writer(Base):
    def step(self): save("x.json", [1])
class Reader(Base):
    def step(self): save("copy.json", load("x.json"))
for one in [Writer(), Reader()]:
    one.run()
Writer().run()
Reader().run()
""",
    "a file handle": """
out = open("log.txt", "w")
def note(x): out.write(x)
note("a")
note("b")
out.close()
save("a.json", open("log.txt").read())
""",
    "a handle that is read twice": """
from pathlib import Path
Path("in.txt").write_text("a\\nb\\nc\\n")
file = open("in.txt")
def first(): save("first.json", file.readline())
def rest(): save("rest.json", [line for line in file])
first()
rest()
""",
    "a temporary folder": """
import os, shutil
os.makedirs("work/deep", exist_ok=True)
def fill(): save("work/deep/x.json", 1)
def keep(): shutil.copytree("work", "kept")
def clean(): shutil.rmtree("work")
fill()
keep()
clean()
""",
    "listing a folder": """
import glob, os
def make(n): save(f"part_{n}.json", n)
def look(name): save(name, sorted(glob.glob("part_*.json")))
make(1)
look("a.txt")
make(2)
look("b.txt")
save("dir.txt", sorted(n for n in os.listdir(".") if n.startswith("part_")))
""",
    "deleted variables": """
x = [1]
y = x
del x
x = [2]
def grow(z): z.append(3)
grow(y)
save("x.json", x)
save("y.json", y)
grow(x)
save("z.json", x)
""",
    "unpacked and swapped": """
a, b = [1], [2]
a, b = b, a
first, *rest = [a, b]
def grow(z): z.append(3)
grow(a)
save("x.json", [first, rest])
grow(rest[0])
save("y.json", [a, b])
""",
    "nested functions that write": """
def outer():
    state = []
    def put(x): state.append(x)
    put(1)
    def write(): save("state.json", state)
    write()
    return write
again = outer()
save("copy.json", load("state.json"))
again()
""",
    "an exit in a function": """
import sys
def check(n):
    if n > 1: sys.exit(0)
def write(n): save(f"w_{n}.json", n)
check(1)
write(1)
check(2)
write(2)
""",
    "a weight that two names share": """
import torch
torch.manual_seed(0)
layer = torch.nn.Linear(2, 2)
weight = layer.weight.data
def halve(x): x.mul_(0.5)
def look(name): save(name, [round(v, 5) for row in layer.weight.tolist() for v in row])
look("a.json")
halve(weight)
look("b.json")
weight[0, 0] = 3
look("c.json")
""",
    "switches of torch": """
import torch
def double(): torch.set_default_dtype(torch.float64)
def look(name): save(name, str(torch.zeros(1).dtype))
look("a.json")
double()
look("b.json")
""",
    "an options object": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--names", nargs="*", default=["b", "a"])
args = parser.parse_args([])
def order(x): x.sort()
def look(name): save(name, args.names)
look("a.json")
order(args.names)
look("b.json")
args.rate = 3
def rate(name): save(name, args.rate)
rate("c.json")
""",
    "arrays that are equal": """
import numpy as np
a = np.arange(3)
mask = a == 1
def flip(m): np.logical_not(m, out=m)
def look(name): save(name, mask.tolist())
look("a.json")
flip(mask)
look("b.json")
""",
    "a counter object": """
import itertools
numbers = itertools.count()
def name(): return f"n{next(numbers)}"
save("a.json", name())
save("b.json", name())
for i in range(2):
    save(f"c_{i}.json", name())
""",
    "an object that is called": """
class Model:
    def __init__(self): self.calls = 0
    def __call__(self, x):
        self.calls += 1
        return x + self.calls
model = Model()
def use(name): save(name, model(1))
use("a.json")
use("b.json")
for i in range(3):
    save(f"m_{i}.json", model(i))
""",
    "a queue": """
import queue
waiting = queue.Queue()
for n in range(4): waiting.put(n)
def take(name): save(name, waiting.get())
take("a.json")
take("b.json")
for i in range(2):
    save(f"q_{i}.json", waiting.get())
""",
    "a logger with a file": """
import logging
logging.basicConfig(filename="run.log", level=logging.INFO, format="%(message)s")
def one(): logging.info("one")
def two(): logging.info("two")
one()
two()
""",
    "output that goes to a file": """
import sys
sys.stdout = open("out.txt", "w")
def one(): print("one")
def two(): print("two")
one()
two()
sys.stdout.close()
sys.stdout = sys.__stdout__
""",
    "a symbolic link": """
import os
os.symlink("x.json", "link.json")
def write(n): save("x.json", n)
def read(name): save(name, load("link.json"))
write(1)
read("a.json")
write(2)
read("b.json")
""",
}
