"""Hostile scripts: files, databases, processes and modules of the standard library."""

SCRIPTS = {
    "a home folder that changes": """
import os
from pathlib import Path
def go(folder): os.environ["HOME"] = folder
def look(name): save(name, os.path.expanduser("~/x"))
def look_too(name): save(name, str(Path.home()))
def look_again(name): save(name, str(Path("~/x").expanduser()))
go("/nowhere")
look("a.json")
look_too("b.json")
look_again("c.json")
go("/elsewhere")
look("d.json")
""",
    "a folder for temporary files that changes": """
import os, tempfile
def go(folder):
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None
def look(name): save(name, [tempfile.gettempdir(), os.path.expandvars("$TMPDIR/x")])
go("/tmp")
look("a.json")
go("/var/tmp")
look("b.json")
""",
    "a database in a file": """
import sqlite3
base = sqlite3.connect("b.db")
base.execute("create table t (n integer)")
def put(n):
    base.execute("insert into t values (?)", (n,))
    base.commit()
def look(name):
    save(name, sqlite3.connect("b.db").execute("select count(*) from t").fetchall())
put(1)
look("a.json")
put(2)
look("b.json")
base.close()
import os
os.remove("b.db")
""",
    "a database in memory": """
import sqlite3
base = sqlite3.connect(":memory:")
cursor = base.cursor()
cursor.execute("create table t (n integer)")
def put(n): cursor.execute(f"insert into t values ({n})")
def look(name): save(name, base.execute("select sum(n) from t").fetchone())
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "a shelf": """
import shelve
def put(n):
    with shelve.open("kept") as shelf:
        shelf["n"] = n
def look(name):
    with shelve.open("kept") as shelf:
        save(name, shelf["n"])
put(1)
look("a.json")
put(2)
look("b.json")
import glob, os
for name in glob.glob("kept*"):
    os.remove(name)
""",
    "a pickle": """
import pickle
def put(n):
    with open("x.pkl", "wb") as file:
        pickle.dump([n], file)
def look(name):
    with open("x.pkl", "rb") as file:
        save(name, pickle.load(file))
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "a pickle that runs code": """
import pickle
class Trap:
    def __reduce__(self): return (save, ("trap.json", 1))
packed = pickle.dumps(Trap())
save("trap.json", 0)
pickle.loads(packed)
save("copy.json", load("trap.json"))
""",
    "a logger with a handler": """
import logging
log = logging.getLogger("x")
log.setLevel(logging.INFO)
handler = logging.StreamHandler(open("run.log", "w"))
log.addHandler(handler)
def one(): log.info("one")
def two(): log.info("two")
one()
two()
handler.flush()
""",
    "a logger that is switched off": """
import logging
import io
text = io.StringIO()
logging.basicConfig(stream=text, level=logging.INFO, format="%(message)s")
log = logging.getLogger("x")
def note(x): log.info(x)
note("a")
log.disabled = True
note("b")
save("a.json", text.getvalue())
""",
    "warnings that are counted": """
import warnings
seen = []
warnings.showwarning = lambda *a, **k: seen.append(str(a[0]))
warnings.simplefilter("always")
def work(x): warnings.warn(x)
def look(name): save(name, seen)
work("a")
look("a.json")
work("b")
look("b.json")
""",
    "names of files that are computed": """
def name(i): return "part_" + str(i % 2) + ".json"
for i in range(4):
    save(name(i), i)
save("copy.json", [load(name(0)), load(name(1))])
def put(i): save("".join(["pa", "rt_", str(i), ".json"]), -i)
put(1)
save("more.json", load("part_1.json"))
""",
    "names of files in a table": """
NAMES = {"in": "x.json", "out": "x.json"}
def put(n): save(NAMES["in"], n)
def look(name): save(name, load(NAMES["out"]))
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "a name that is changed before it is used": """
OUT = "x.json"
def put(n): save(OUT, n)
put(1)
OUT = "y.json"
put(2)
save("copy.json", [load("x.json"), load("y.json")])
""",
    "a name that a function changes": """
OUT = "x.json"
def other():
    global OUT
    OUT = "y.json"
def put(n): save(OUT, n)
put(1)
other()
put(2)
save("copy.json", [load("x.json"), load("y.json")])
""",
    "a name of an attribute": """
class Config:
    out = "x.json"
config = Config()
def put(n): save(config.out, n)
put(1)
config.out = "y.json"
put(2)
save("copy.json", [load("x.json"), load("y.json")])
""",
    "names that differ by case of a suffix": """
from pathlib import Path
base = Path("x.tar.gz")
def put(n): Path("x.tar").write_text(n)
def look(name): save(name, base.with_suffix("").read_text())
put("1")
look("a.json")
put("2")
look("b.json")
""",
    "a folder above": """
import os
os.makedirs("d/e", exist_ok=True)
def put(n): save("d/e/../x.json", n)
def look(name): save(name, load("d/x.json"))
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "an absolute name": """
import os
HERE = os.getcwd()
def put(n): save(os.path.join(HERE, "x.json"), n)
def look(name): save(name, load("x.json"))
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "a folder that is another name": """
import os
from pathlib import Path
os.makedirs("d", exist_ok=True)
def put(n): Path("d", "x.json").write_text(n)
def look(name):
    os.chdir("d")
    text = Path("x.json").read_text()
    os.chdir("..")
    save(name, text)
put("1")
look("a.json")
put("2")
look("b.json")
""",
    "the folder in a with block": """
import contextlib, os
os.makedirs("d", exist_ok=True)
def put(n): save("x.json", n)
with contextlib.chdir("d"):
    put(1)
put(2)
with contextlib.chdir("d"):
    save("copy.json", load("x.json"))
""",
    "the environment of a child": """
import os, subprocess, sys
def run(name):
    out = subprocess.run([sys.executable, "-c", "import os; print(os.environ.get('K'))"], capture_output=True, text=True)
    save(name, out.stdout)
os.environ["K"] = "1"
run("a.json")
os.environ["K"] = "2"
run("b.json")
os.environ.pop("K")
run("c.json")
""",
    "the environment by another name": """
import os
env = os.environ
def look(name): save(name, os.environ.get("K"))
env["K"] = "1"
look("a.json")
env.update(K="2")
look("b.json")
del env["K"]
look("c.json")
""",
    "processes": """
import multiprocessing as mp
def put(n): save("x.json", n)
def start(n):
    p = mp.get_context("fork").Process(target=put, args=(n,))
    p.start()
    p.join()
start(1)
save("a.json", load("x.json"))
start(2)
save("b.json", load("x.json"))
""",
    "a fork": """
import os
def put(n):
    child = os.fork()
    if child == 0:
        save("x.json", n)
        os._exit(0)
    os.waitpid(child, 0)
put(1)
save("a.json", load("x.json"))
put(2)
save("b.json", load("x.json"))
""",
    "a shell": """
import os
def put(n): os.system(f"echo {n} > x.txt")
def look(name):
    with open("x.txt") as file:
        save(name, file.read())
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "a signal": """
import os, signal
seen = []
signal.signal(signal.SIGUSR1, lambda *a: seen.append(1))
def poke(): os.kill(os.getpid(), signal.SIGUSR1)
def look(name): save(name, seen)
poke()
look("a.json")
poke()
look("b.json")
""",
    "importlib": """
import importlib, sys
sys.path.insert(0, ".")
sys.dont_write_bytecode = True
def write(n):
    with open("made.py", "w") as file:
        file.write(f"N = {n}")
write(1)
made = importlib.import_module("made")
save("a.json", made.N)
""",
    "a module that is written and imported": """
import sys
sys.dont_write_bytecode = True
def write(n):
    with open("made_here.py", "w") as file:
        file.write(f"N = {n}")
write(1)
import made_here
save("a.json", made_here.N)
""",
    "operator functions": """
import operator
d = {"n": 1}
def put(n): operator.setitem(d, "n", n)
def look(name): save(name, operator.getitem(d, "n"))
look("a.json")
put(2)
look("b.json")
xs = [1]
operator.iadd(xs, [2])
save("c.json", xs)
operator.delitem(xs, 0)
save("d.json", xs)
""",
    "method callers": """
import operator
xs = [3, 1]
sort = operator.methodcaller("sort")
def look(name): save(name, xs)
look("a.json")
sort(xs)
look("b.json")
list(map(operator.methodcaller("append", 5), [xs]))
look("c.json")
""",
    "reduce that changes": """
import functools
box = []
def put(acc, x):
    acc.append(x)
    return acc
def look(name): save(name, box)
look("a.json")
functools.reduce(put, [1, 2], box)
look("b.json")
functools.reduce(lambda a, x: a.append(x) or a, [3], box)
look("c.json")
""",
    "a heap": """
import heapq, bisect
heap = [5, 1, 3]
def look(name): save(name, heap)
heapq.heapify(heap)
look("a.json")
heapq.heappush(heap, 0)
look("b.json")
top = heapq.heappop(heap)
look("c.json")
heap.sort()
bisect.insort(heap, 2)
look("d.json")
""",
    "printing to a file handle": """
out = open("log.txt", "w")
def note(x): print(x, file=out)
def keep(): out.flush()
def look(name):
    with open("log.txt") as file:
        save(name, file.read())
note("a")
keep()
look("a.json")
note("b")
keep()
look("b.json")
""",
    "a csv writer": """
import csv
file = open("t.csv", "w", newline="")
rows = csv.writer(file)
def put(x): rows.writerow([x])
def keep(): file.flush()
def look(name):
    with open("t.csv") as other:
        save(name, list(csv.reader(other)))
put(1)
keep()
look("a.json")
put(2)
keep()
look("b.json")
""",
    "a zip file": """
import zipfile
def put(n):
    with zipfile.ZipFile("x.zip", "w") as z:
        z.writestr("n", str(n))
def look(name):
    with zipfile.ZipFile("x.zip") as z:
        save(name, z.read("n").decode())
put(1)
look("a.json")
put(2)
look("b.json")
import os
os.remove("x.zip")
""",
    "a temporary file": """
import tempfile, os
handle = tempfile.NamedTemporaryFile("w", delete=False, dir=".")
def put(x):
    handle.write(x)
    handle.flush()
def look(name):
    with open(handle.name) as file:
        save(name, file.read())
put("a")
look("a.json")
put("b")
look("b.json")
os.unlink(handle.name)
""",
    "a descriptor of a file": """
import os
fd = os.open("x.txt", os.O_CREAT | os.O_RDWR)
def put(x): os.write(fd, x)
def look(name):
    with open("x.txt") as file:
        save(name, file.read())
put(b"a")
look("a.json")
put(b"b")
look("b.json")
""",
    "a move of files": """
import shutil, os
save("x.json", 1)
def move(a, b): shutil.move(a, b)
def look(name): save(name, sorted(n for n in os.listdir(".") if n in ("x.json", "y.json")))
look("a.txt")
move("x.json", "y.json")
look("b.txt")
""",
    "the time of a file": """
import os
save("x.json", 1)
def touch(): os.utime("x.json", (5, 5))
def look(name): save(name, os.path.getmtime("x.json") < 100)
look("a.json")
touch()
look("b.json")
""",
    "the size of a file": """
import os
from pathlib import Path
Path("x.txt").write_text("a")
def grow():
    with open("x.txt", "a") as file:
        file.write("b")
def look(name): save(name, [os.path.getsize("x.txt"), Path("x.txt").stat().st_size])
look("a.json")
grow()
look("b.json")
""",
    "permissions": """
import os, stat
save("x.json", 1)
def close(): os.chmod("x.json", 0o400)
def look(name): save(name, stat.filemode(os.stat("x.json").st_mode))
look("a.json")
close()
look("b.json")
""",
    "a recursion limit": """
import sys
def set_it(n): sys.setrecursionlimit(n)
def look(name): save(name, sys.getrecursionlimit())
set_it(2000)
look("a.json")
set_it(3000)
look("b.json")
""",
    "a locale of decimals": """
import decimal
def set_it(n): decimal.getcontext().prec = n
def look(name): save(name, str(decimal.Decimal(1) / decimal.Decimal(3)))
look("a.json")
set_it(5)
look("b.json")
""",
    "an array of the library": """
import array
a = array.array("i", [1, 2])
def put(x): a.append(x)
def look(name): save(name, list(a))
put(3)
look("a.json")
a.fromlist([9])
look("b.json")
""",
    "counters": """
import collections
words = collections.Counter()
def count(x): words.update(x)
def look(name): save(name, dict(words))
count("ab")
look("a.json")
words.subtract("a")
look("b.json")
words["z"] += 1
look("c.json")
""",
    "a chain of maps": """
import collections
base = {"a": 1}
both = collections.ChainMap({}, base)
def put(x): base["a"] = x
def look(name): save(name, both["a"])
look("a.json")
put(2)
look("b.json")
""",
    "a numpy generator that is spawned": """
import numpy as np
root = np.random.SeedSequence(1)
def draw(name): save(name, float(np.random.default_rng(root.spawn(1)[0]).random()))
draw("a.json")
draw("b.json")
""",
    "print options": """
import numpy as np
a = np.array([1.23456789])
def set_it(n): np.set_printoptions(precision=n)
def look(name): save(name, str(a))
look("a.json")
set_it(2)
look("b.json")
""",
    "a lock file": """
import os
def take():
    if not os.path.exists("lock"):
        with open("lock", "w") as file:
            file.write("x")
        return True
    return False
save("a.json", take())
save("b.json", take())
os.remove("lock")
save("c.json", take())
""",
    "a counter in a file": """
import os
def bump():
    n = load("n.json") if os.path.exists("n.json") else 0
    save("n.json", n + 1)
    return n
save("a.json", bump())
save("b.json", bump())
for i in range(2):
    save(f"c_{i}.json", bump())
""",
    "rounds that append to one file": """
for i in range(3):
    with open("all.txt", "a") as file:
        file.write(str(i))
for i in range(2):
    with open(f"p_{i}.txt", "a") as file:
        file.write(open("all.txt").read() + str(i))
""",
    "rounds that read the round before": """
save("s_0.json", 1)
for i in range(3):
    save(f"s_{i + 1}.json", load(f"s_{i}.json") * 2)
save("t.json", load("s_3.json"))
""",
    "a suffix that the library adds": """
import numpy as np
def put(n): np.save("x", np.full(2, n))
def look(name): save(name, np.load("x.npy").tolist())
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "an archive gets its suffix": """
import os, shutil
os.makedirs("d", exist_ok=True)
save("d/x.json", 1)
def pack(): shutil.make_archive("all", "tar", "d")
def look(name): save(name, os.path.exists("all.tar"))
look("a.json")
pack()
look("b.json")
os.remove("all.tar")
""",
    "a mode in a table": """
how = {"mode": "w"}
def put(n):
    with open("x.txt", **how) as file:
        file.write(n)
def look(name):
    with open("x.txt") as file:
        save(name, file.read())
put("1")
look("a.json")
put("2")
look("b.json")
""",
    "starred arguments of open": """
given = ["x.txt", "w"]
def put(n):
    with open(*given) as file:
        file.write(n)
def look(name):
    with open("x.txt") as file:
        save(name, file.read())
put("1")
look("a.json")
put("2")
look("b.json")
""",
    "a parameter with the name of a constant": """
OUT = "x.json"
def put(OUT, n): save(OUT, n)
names = ["y.json"]
def look(name): save(name, load("y.json"))
put(names[0], 1)
look("a.json")
put(names[0], 2)
look("b.json")
""",
    "a variable with the name of a constant": """
OUT = "x.json"
names = ["y.json"]
def put(n):
    for OUT in names:
        save(OUT, n)
def look(name): save(name, load("y.json"))
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "an object that looks like options": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--out", default="x.json")
args = parser.parse_args([])
class Config:
    out = "y.json"
config = Config()
def put(n): save(config.out, n)
def look(name): save(name, load("y.json"))
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "options of another call": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--out", default="x.json")
args = parser.parse_args(["--out", "y.json"])
def put(n): save(args.out, n)
def look(name): save(name, load("y.json"))
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "a text in quotes": """
name = "x"
def put(n): save(f"{name!r}.json", n)
def look(out): save(out, load("'x'.json"))
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "a constant in a condition": """
import os
OUT = "x.json"
if os.sep == "/":
    OUT = "y.json"
def put(n): save(OUT, n)
def look(name): save(name, load("y.json"))
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "a local name that is assigned later": """
def put(n):
    name = "x.json"
    for k in range(2):
        save(name, n)
        name = "y.json"
def look(out): save(out, load("y.json"))
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "an object that keeps a handle": """
class Log:
    def __init__(self, name): self.file = open(name, "w")
    def note(self, x):
        self.file.write(x)
        self.file.flush()
log = Log("log.txt")
def look(name):
    with open("log.txt") as file:
        save(name, file.read())
log.note("a")
look("a.json")
log.note("b")
look("b.json")
""",
    "a handle that a function returns": """
def start(name): return open(name, "w")
out = start("log.txt")
def note(x):
    out.write(x)
    out.flush()
def look(name):
    with open("log.txt") as file:
        save(name, file.read())
note("a")
look("a.json")
note("b")
look("b.json")
""",
    "a folder that is renamed": """
import os
os.makedirs("d", exist_ok=True)
save("d/x.json", 1)
def move(): os.rename("d", "e")
def look(name): save(name, [os.path.exists("d/x.json"), os.path.exists("e/x.json")])
look("a.json")
move()
look("b.json")
""",
    "files with a pattern": """
from pathlib import Path
def put(n): Path(f"part{n}.txt").write_text(str(n))
def look(name): save(name, sorted(p.name for p in Path(".").glob("part*")))
put(1)
look("a.json")
put(2)
look("b.json")
def clean():
    for p in Path(".").glob("part*"):
        p.unlink()
clean()
look("c.json")
""",
    "names that are swapped": """
a, b = "x.json", "y.json"
def put(name, n): save(name, n)
put(a, 1)
a, b = b, a
put(a, 2)
save("copy.json", [load("x.json"), load("y.json")])
""",
    "a constant hidden by an outer function": """
OUT = "x.json"
def outer(OUT, n):
    def inner(): save(OUT, n)
    inner()
names = ["y.json"]
def look(name): save(name, load("y.json"))
outer(names[0], 1)
look("a.json")
outer(names[0], 2)
look("b.json")
""",
    "a folder of the script": """
from pathlib import Path
HERE = Path(__file__).parent
def put(n): (HERE / "x.json").write_text(str(n))
def look(name): save(name, load("x.json"))
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "a name from the environment": """
import os
OUT = os.environ.get("OUT_FILE", "x.json")
def put(n): save(OUT, n)
def look(name): save(name, load("x.json"))
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "a listing that is read late": """
from pathlib import Path
found = Path(".").glob("part*")
def make(n): Path(f"part{n}.txt").write_text("x")
make(1)
save("a.json", sorted(p.name for p in found))
make(2)
save("b.json", sorted(p.name for p in found))
""",
    "a table that is read in pieces": """
import pandas as pd
pd.DataFrame({"a": [1, 2, 3, 4]}).to_csv("t.csv", index=False)
parts = pd.read_csv("t.csv", chunksize=2)
def take(name): save(name, [len(part) for part in parts])
take("a.json")
take("b.json")
""",
    "an array that maps a file": """
import numpy as np
np.save("x.npy", np.zeros(2))
a = np.load("x.npy", mmap_mode="r+")
def put(v):
    a[0] = v
    a.flush()
def look(name): save(name, np.load("x.npy").tolist())
look("a.json")
put(1)
look("b.json")
""",
    "a listing that is used up": """
from pathlib import Path
Path("part1.txt").write_text("x")
found = Path(".").glob("part*")
a = len(list(found))
b = len(list(found))
save("a.json", [a, b])
""",
    "a table that is written through one file by two writers": """
import csv
file = open("t.csv", "w", newline="")
writer = csv.DictWriter(file, ["a"])
other = csv.writer(file)
def head(w): w.writeheader()
def put(w, v): w.writerow([v])
def look(name):
    file.flush()
    save(name, open("t.csv").read())
head(writer)
put(other, 1)
look("a.json")
head(writer)
look("b.json")
""",
    "a writer of tables that writes to an object of the project": """
import csv
LOG = []
class Sink:
    def write(self, words): LOG.append(words)
def put(w, v): w.writerow([v])
def head(w): w.writeheader()
def look(name): save(name, LOG)
writer = csv.DictWriter(Sink(), ["a"])
head(writer)
look("a.json")
rows = csv.writer(Sink())
rows.writerow([1])
save("b.json", LOG)
put(rows, 1)
look("c.json")
rows.writerow([2])
save("d.json", LOG)
""",
    "a reader of tables that goes through an object of the project": """
import csv
LEFT = ["a,b", "1,2", "3,4", "5,6"]
class Lines:
    def __iter__(self): return self
    def __next__(self):
        if not LEFT:
            raise StopIteration
        return LEFT.pop(0)
reader = csv.DictReader(Lines())
row = next(reader)
save("a.json", row)
save("b.json", LEFT)
rest = [one for one in reader]
save("c.json", LEFT)
""",
    "a reader of tables that goes through a generator": """
import csv
import random
random.seed(0)
DONE = []
def lines():
    for n in range(4):
        DONE.append(n)
        yield f"{n},{random.random()}"
reader = csv.reader(lines())
def take(r, name): save(name, next(r))
take(reader, "a.json")
save("b.json", DONE)
save("c.json", random.random())
first = next(reader)
save("d.json", DONE)
save("e.json", random.random())
save("f.json", first)
""",
    "two readers of one open file": """
import csv
with open("t.csv", "w") as file:
    file.write("a\\n1\\n2\\n3\\n")
file = open("t.csv", newline="")
one = csv.DictReader(file)
two = csv.reader(file)
x = next(one)
y = next(two)
z = [row for row in one]
save("a.json", x)
save("b.json", y)
save("c.json", z)
""",
    "printing to an object of the project": """
LOG = []
class Sink:
    def write(self, words): LOG.append(words)
s = Sink()
def say(w): print(w, file=s)
def look(name): save(name, LOG)
say(1)
look("a.json")
say(2)
look("b.json")
print(3, file=s)
save("c.json", LOG)
""",
}
