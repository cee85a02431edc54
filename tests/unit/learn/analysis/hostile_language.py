"""Hostile scripts: names, functions, classes, iterators, exceptions and loops of the language."""

SCRIPTS = {
    "a name that a later loop takes": """
i = 5
def use(x): save("a.json", x)
use(i)
for i in range(3):
    save(f"b_{i}.json", i)
""",
    "a name that an earlier loop took": """
for i in range(3):
    save(f"b_{i}.json", i)
i = 5
def use(x): save("a.json", x)
use(i)
""",
    "a method of the type": """
xs = [1]
def look(name): save(name, xs)
look("a.json")
list.append(xs, 2)
look("b.json")
list.sort(xs, reverse=True)
look("c.json")
""",
    "a method of the type of a dictionary": """
d = {"a": 1}
def put(n): dict.update(d, b=n)
def look(name): save(name, d)
look("a.json")
put(1)
look("b.json")
put(2)
look("c.json")
""",
    "a method given to map": """
seen = []
def work(n):
    n = list(map(seen.append, range(n)))
    return len(n)
def look(name): save(name, seen)
work(2)
look("a.json")
work(1)
look("b.json")
""",
    "a method as a key": """
seen = []
def order(xs): return sorted(xs, key=seen.append) if False else max(xs, key=lambda x: seen.append(x) or x)
def look(name): save(name, seen)
a = order([1, 2])
look("a.json")
b = order([3])
look("b.json")
""",
    "a lambda in a variable given to map": """
seen = []
note = lambda x: seen.append(x)
def look(name): save(name, seen)
a = list(map(note, [1, 2]))
look("a.json")
b = list(map(note, [3]))
look("b.json")
""",
    "a parameter that is called by map": """
seen = []
def each(function, xs): return list(map(function, xs))
note = lambda x: seen.append(x)
def look(name): save(name, seen)
each(note, [1, 2])
look("a.json")
each(note, [3])
look("b.json")
""",
    "a partial given to filter": """
import functools
seen = []
def put(a, b):
    seen.append(a + b)
    return True
both = functools.partial(put, 1)
def look(name): save(name, seen)
x = list(filter(both, [1, 2]))
look("a.json")
y = sorted([5, 4], key=both)
look("b.json")
""",
    "a class that is called by map": """
class Note:
    seen = []
    def __init__(self, x): Note.seen.append(x)
def look(name): save(name, Note.seen)
a = list(map(Note, [1, 2]))
look("a.json")
b = list(map(Note, [3]))
look("b.json")
""",
    "default arguments that are evaluated once": """
count = [0]
def stamp(x=count): return x[0]
def bump(): count[0] += 1
def look(name): save(name, stamp())
look("a.json")
bump()
look("b.json")
""",
    "a default that changes": """
def put(x, store={}):
    store[x] = len(store)
    return dict(store)
save("a.json", put("a"))
save("b.json", put("b"))
put.__defaults__[0].clear()
save("c.json", put("c"))
""",
    "an attribute of a function": """
def work(): return work.calls
work.calls = 0
def bump(): work.calls += 1
save("a.json", work())
bump()
save("b.json", work())
""",
    "a decorator that keeps results": """
def kept(function):
    table = {}
    def inner(x):
        if x not in table: table[x] = function(x)
        return table[x]
    return inner
state = [0]
@kept
def ask(x): return state[0]
def bump(): state[0] += 1
save("a.json", ask(1))
bump()
save("b.json", [ask(1), ask(2)])
""",
    "a class as a decorator": """
class Count:
    def __init__(self, function): self.function, self.n = function, 0
    def __call__(self, *a):
        self.n += 1
        return self.n
@Count
def work(x): return x
def look(name): save(name, work.n)
work(1)
look("a.json")
work(2)
look("b.json")
""",
    "a cached property": """
from functools import cached_property
class Box:
    def __init__(self): self.n = 0
    @cached_property
    def first(self): return self.n
box = Box()
def bump(): box.n += 1
def look(name): save(name, box.first)
bump()
look("a.json")
bump()
look("b.json")
""",
    "a descriptor": """
class Field:
    def __get__(self, owner, kind): return owner.log
    def __set__(self, owner, value): owner.log.append(value)
class Box:
    x = Field()
    def __init__(self): self.log = []
box = Box()
def look(name): save(name, box.x)
box.x = 1
look("a.json")
box.x = 2
look("b.json")
""",
    "getattr of a class": """
class Lazy:
    made = []
    def __getattr__(self, name):
        Lazy.made.append(name)
        return len(Lazy.made)
lazy = Lazy()
def look(name): save(name, Lazy.made)
a = lazy.one
look("a.json")
b = lazy.two
look("b.json")
""",
    "a container class": """
class Table:
    def __init__(self): self.d = {}
    def __setitem__(self, k, v): self.d[k] = v
    def __getitem__(self, k): return self.d.setdefault(k, 0)
    def __contains__(self, k):
        self.d[k] = 1
        return True
    def __iter__(self):
        self.d["iter"] = 1
        return iter(self.d)
table = Table()
def look(name): save(name, table.d)
look("a.json")
x = table["a"]
look("b.json")
y = "b" in table
look("c.json")
z = list(table)
look("d.json")
table["e"] = 2
look("e.json")
""",
    "an object that compares": """
class Word:
    seen = []
    def __init__(self, w): self.w = w
    def __lt__(self, other):
        Word.seen.append(self.w)
        return self.w < other.w
    def __eq__(self, other):
        Word.seen.append("eq")
        return self.w == other.w
    def __hash__(self):
        Word.seen.append("hash")
        return 1
words = [Word("b"), Word("a")]
def look(name): save(name, Word.seen)
look("a.json")
words.sort()
look("b.json")
n = len(set(words))
look("c.json")
f = words[0] == words[1]
look("d.json")
""",
    "an object that is printed": """
class Loud:
    said = []
    def __repr__(self):
        Loud.said.append(1)
        return "loud"
    def __format__(self, how):
        Loud.said.append(2)
        return "loud"
    def __bool__(self):
        Loud.said.append(3)
        return True
loud = Loud()
def look(name): save(name, Loud.said)
print(loud)
look("a.json")
x = f"{loud}"
look("b.json")
y = 1 if loud else 2
look("c.json")
z = not loud
look("d.json")
""",
    "a generator that is shared": """
def numbers():
    n = 0
    while True:
        n += 1
        yield n
source = numbers()
def take(name): save(name, next(source))
take("a.json")
take("b.json")
for i, n in zip(range(2), source):
    save(f"c_{i}.json", n)
""",
    "a generator that is sent values": """
def keeper():
    kept = []
    while True:
        got = yield list(kept)
        kept.append(got)
keep = keeper()
next(keep)
def put(x): return keep.send(x)
save("a.json", put(1))
save("b.json", put(2))
keep.close()
""",
    "a generator expression that runs late": """
seen = []
def note(x):
    seen.append(x)
    return x
late = (note(x) for x in [1, 2, 3])
def look(name): save(name, seen)
look("a.json")
first = next(late)
look("b.json")
rest = sum(late)
look("c.json")
""",
    "a zip that runs late": """
seen = []
def rows():
    for n in range(3):
        seen.append(n)
        yield n
pairs = zip(rows(), range(9))
def look(name): save(name, seen)
look("a.json")
x = dict(pairs)
look("b.json")
""",
    "islice of a shared iterator": """
import itertools
rows = iter(range(10))
def take(name): save(name, list(itertools.islice(rows, 3)))
take("a.json")
take("b.json")
left, right = itertools.tee(rows)
save("c.json", next(left))
save("d.json", list(right))
""",
    "a walrus at the top": """
seen = []
def put(x):
    seen.append(x)
    return len(seen)
if (n := put(1)) > 0:
    save("a.json", n)
while (n := put(n)) < 4:
    save("b.json", n)
save("c.json", [seen, n])
""",
    "match": """
state = {"kind": "a", "items": [1]}
def look(name): save(name, state)
match state:
    case {"kind": "a", "items": items}:
        items.append(2)
look("a.json")
match state["items"]:
    case [first, *rest]:
        state["rest"] = rest
look("b.json")
rest.append(9)
look("c.json")
""",
    "match of a class": """
class Point:
    __match_args__ = ("x", "y")
    def __init__(self, x, y): self.x, self.y = x, y
p = Point([1], [2])
def grow(v): v.append(0)
def look(name): save(name, [p.x, p.y])
match p:
    case Point(a, b):
        grow(a)
look("a.json")
grow(b)
look("b.json")
""",
    "an exception that carries a list": """
seen = []
class Stop(Exception): pass
def fail(): raise Stop(seen)
try:
    fail()
except Stop as error:
    error.args[0].append(1)
save("a.json", seen)
def deep():
    try:
        fail()
    except Stop as error:
        error.args[0].append(2)
deep()
save("b.json", seen)
""",
    "finally that writes": """
def work(n):
    try:
        return n
    finally:
        save("last.json", n)
a = work(1)
save("a.json", load("last.json"))
b = work(2)
save("b.json", load("last.json"))
""",
    "an exit stack": """
import contextlib
seen = []
stack = contextlib.ExitStack()
stack.callback(seen.append, 1)
def look(name): save(name, seen)
look("a.json")
stack.close()
look("b.json")
""",
    "suppressed errors": """
import contextlib
seen = []
def work(n):
    with contextlib.suppress(ZeroDivisionError):
        seen.append(n)
        seen.append(1 / n)
        seen.append("end")
def look(name): save(name, seen)
work(0)
look("a.json")
work(1)
look("b.json")
""",
    "a context manager that restores": """
from contextlib import contextmanager
rate = {"n": 1}
@contextmanager
def with_rate(n):
    old = rate["n"]
    rate["n"] = n
    try:
        yield rate
    finally:
        rate["n"] = old
def look(name): save(name, rate["n"])
with with_rate(5):
    look("a.json")
look("b.json")
with with_rate(6) as r:
    r["extra"] = 1
save("c.json", rate)
""",
    "nonlocal": """
def counter():
    n = 0
    def bump():
        nonlocal n
        n += 1
        return n
    def look(): return n
    return bump, look
bump, look = counter()
bump()
save("a.json", look())
bump()
save("b.json", look())
""",
    "closures over a loop variable": """
makers = []
for k in range(3):
    makers.append(lambda: k)
save("a.json", [m() for m in makers])
k = 7
save("b.json", [m() for m in makers])
""",
    "a closure over a global": """
rate = 1
scale = lambda x: x * rate
save("a.json", scale(2))
rate = 3
save("b.json", scale(2))
def late(x): return x * rate
save("c.json", late(2))
rate = 4
save("d.json", late(2))
""",
    "a function by another name": """
def put(n): save("x.json", n)
write = put
write(1)
save("a.json", load("x.json"))
write(2)
save("b.json", load("x.json"))
""",
    "a function that another replaces": """
def work(): return 1
def other(): return 2
save("a.json", work())
work = other
save("b.json", work())
""",
    "a class whose method is assigned later": """
class Box:
    def get(self): return 1
def two(self): return 2
box = Box()
save("a.json", box.get())
Box.get = two
save("b.json", box.get())
""",
    "a class attribute through an object": """
class Box:
    shared = {"n": 0}
    def bump(self): self.shared["n"] += 1
a, b = Box(), Box()
def look(name, box): save(name, box.shared)
a.bump()
look("a.json", b)
b.bump()
look("b.json", a)
type(a).shared["n"] = 9
look("c.json", b)
""",
    "a class that counts its objects": """
class Item:
    made = 0
    def __init__(self):
        Item.made += 1
        self.number = Item.made
a = Item()
save("a.json", a.number)
b = Item()
save("b.json", b.number)
for i in range(2):
    save(f"c_{i}.json", Item().number)
""",
    "a singleton": """
class Store:
    _one = None
    @staticmethod
    def get():
        if Store._one is None: Store._one = []
        return Store._one
def put(x): Store.get().append(x)
def look(name): save(name, Store.get())
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "a mixin": """
class Notes:
    def note(self, x): self.log.append(x)
class Work(Notes):
    def __init__(self, log): self.log = log
log = []
one, two = Work(log), Work(log)
def look(name): save(name, log)
one.note(1)
look("a.json")
two.note(2)
look("b.json")
""",
    "a list subclass": """
class Log(list):
    def append(self, x):
        super().append(x)
        save("log.json", list(self))
log = Log()
def put(x): log.append(x)
put(1)
save("a.json", load("log.json"))
put(2)
save("b.json", load("log.json"))
""",
    "a dictionary subclass": """
class Cache(dict):
    def __missing__(self, key):
        self[key] = len(self)
        return self[key]
cache = Cache()
def ask(key): return cache[key]
def look(name): save(name, cache)
ask("a")
look("a.json")
ask("b")
look("b.json")
""",
    "a named tuple with a list": """
from collections import namedtuple
Pair = namedtuple("Pair", "x y")
pair = Pair([1], [2])
def grow(p): p.x.append(3)
def look(name): save(name, pair.x)
look("a.json")
grow(pair)
look("b.json")
grow(pair._replace(y=0))
look("c.json")
""",
    "a tuple of lists": """
parts = ([1], [2])
first, second = parts
def grow(x): x.append(0)
def look(name): save(name, parts)
grow(first)
look("a.json")
grow(parts[1])
look("b.json")
""",
    "a shallow copy": """
import copy
a = {"x": [1]}
b = copy.copy(a)
c = dict(a)
d = a | {"y": 1}
def grow(t): t["x"].append(2)
def look(name, t): save(name, t["x"])
grow(b)
look("a.json", a)
grow(c)
look("b.json", a)
grow(d)
look("c.json", b)
""",
    "sorted lists of lists": """
rows = [[2], [1]]
ordered = sorted(rows)
def grow(r): r[0].append(0)
def look(name): save(name, rows)
grow(ordered)
look("a.json")
grow(list(reversed(rows)))
look("b.json")
grow(rows[:1])
look("c.json")
grow([*rows])
look("d.json")
""",
    "the same list many times": """
grid = [[0] * 2] * 2
def put(x): grid[0][0] = x
def look(name): save(name, grid[1])
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "setdefault": """
table = {}
def put(k): table.setdefault(k, []).append(len(table))
def look(name): save(name, table)
put("a")
look("a.json")
put("b")
look("b.json")
""",
    "get returns what is kept": """
table = {"a": [1]}
part = table.get("a")
def grow(x): x.append(2)
def look(name): save(name, table)
grow(part)
look("a.json")
for value in table.values():
    value.append(3)
look("b.json")
""",
    "keys of a dictionary that grows": """
table = {"a": 1}
keys = table.keys()
def put(k): table[k] = 1
def look(name): save(name, sorted(keys))
put("b")
look("a.json")
put("c")
look("b.json")
""",
    "attributes that are linked": """
class Node:
    def __init__(self, n): self.n, self.next = n, None
a, b = Node(1), Node(2)
def link(x, y): x.next = y
def bump(x): x.next.n += 10
def look(name, x): save(name, x.n)
link(a, b)
bump(a)
look("a.json", b)
link(b, a)
bump(b)
look("b.json", a)
""",
    "an observer": """
class Subject:
    def __init__(self): self.watchers = []
    def watch(self, f): self.watchers.append(f)
    def tell(self, x):
        for f in self.watchers:
            f(x)
seen = []
subject = Subject()
subject.watch(seen.append)
def look(name): save(name, seen)
subject.tell(1)
look("a.json")
subject.tell(2)
look("b.json")
""",
    "callbacks in a list": """
seen = []
callbacks = [lambda x: seen.append(x), lambda x: seen.append(-x)]
def fire(x):
    for call in callbacks:
        call(x)
def look(name): save(name, seen)
fire(1)
look("a.json")
fire(2)
look("b.json")
""",
    "a registry of classes": """
REGISTRY = {}
def register(kind):
    REGISTRY[kind.__name__] = kind
    return kind
@register
class A:
    def run(self): save("x.json", "A")
@register
class B:
    def run(self): save("x.json", "B")
def run(name): REGISTRY[name]().run()
run("A")
save("a.json", load("x.json"))
run("B")
save("b.json", load("x.json"))
""",
    "subclasses that register themselves": """
class Base:
    known = []
    def __init_subclass__(cls): Base.known.append(cls.__name__)
def look(name): save(name, Base.known)
look("a.json")
class One(Base): pass
look("b.json")
class Two(Base): pass
look("c.json")
""",
    "async": """
import asyncio
seen = []
async def put(x):
    await asyncio.sleep(0)
    seen.append(x)
async def both(): await asyncio.gather(put(1), put(2))
asyncio.run(both())
save("a.json", seen)
asyncio.run(put(3))
save("b.json", seen)
""",
    "coroutines by hand": """
seen = []
async def put(x): seen.append(x)
def drive(c):
    try:
        c.send(None)
    except StopIteration:
        pass
one, two = put(1), put(2)
drive(two)
save("a.json", seen)
drive(one)
save("b.json", seen)
""",
    "at the end": """
import atexit
seen = []
atexit.register(lambda: save("end.json", seen))
def put(x): seen.append(x)
put(1)
save("a.json", seen)
put(2)
""",
    "arguments that are changed": """
import sys
def look(name): save(name, len(sys.argv))
look("a.json")
sys.argv.append("x")
look("b.json")
def more(): sys.argv += ["y"]
more()
look("c.json")
""",
    "options that are changed": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=int, default=1)
args = parser.parse_args([])
def look(name): save(name, args.rate)
def change(a): a.rate += 1
look("a.json")
change(args)
look("b.json")
vars(args)["rate"] = 9
look("c.json")
""",
    "parsed text that is shared": """
doc = json.loads('{"a": [1]}')
part = doc["a"]
def grow(x): x.append(2)
def look(name): save(name, doc)
grow(part)
look("a.json")
grow(doc["a"])
look("b.json")
""",
    "bytes that change": """
raw = bytearray(b"abc")
view = memoryview(raw)
def put(i, c): view[i] = c
def look(name): save(name, raw.decode())
look("a.json")
put(0, 120)
look("b.json")
raw[1:] = b"zz"
look("c.json")
""",
    "a simple name space": """
import types
state = types.SimpleNamespace(n=0, xs=[])
def step(s):
    s.n += 1
    s.xs.append(s.n)
def look(name): save(name, [state.n, state.xs])
step(state)
look("a.json")
step(state)
look("b.json")
""",
    "an enumeration with state": """
import enum
class Mode(enum.Enum):
    A = "a"
    B = "b"
Mode.A.count = 0
def bump(): Mode.A.count += 1
def look(name): save(name, Mode.A.count)
bump()
look("a.json")
bump()
look("b.json")
""",
    "sets that are combined in place": """
a = {1}
b = a
def more():
    global b
    b |= {2}
def look(name): save(name, sorted(a))
look("a.json")
more()
look("b.json")
a ^= {1, 3}
look("c.json")
""",
    "slices that are assigned": """
xs = [1, 2, 3]
ys = xs
def cut(): del xs[0]
def put(): xs[1:1] = [8, 9]
def look(name): save(name, ys)
look("a.json")
cut()
look("b.json")
put()
look("c.json")
""",
    "starred arguments": """
box = [[1], [2]]
kw = {"x": box[0]}
def grow(*xs, **ks):
    for x in xs: x.append(0)
    for x in ks.values(): x.append(-1)
def look(name): save(name, box)
grow(*box)
look("a.json")
grow(**kw)
look("b.json")
""",
    "a conditional alias": """
import os
a, b = [1], [2]
c = a if os.sep == "/" else b
def grow(x): x.append(0)
def look(name, x): save(name, x)
grow(c)
look("a.json", a)
d = b or a
grow(d)
look("b.json", b)
""",
    "a chained assignment": """
a = b = [1]
c, d = e = [b, [2]]
def grow(x): x.append(0)
def look(name, x): save(name, x)
grow(c)
look("a.json", a)
grow(e[1])
look("b.json", d)
""",
    "an alias made in a loop": """
lists = [[1], [2]]
last = None
for last in lists:
    pass
def grow(x): x.append(0)
def look(name): save(name, lists)
grow(last)
look("a.json")
for i, last in enumerate(lists):
    last.append(i)
look("b.json")
""",
    "an alias in a comprehension": """
lists = [[1], [2]]
some = [x for x in lists if len(x) > 0]
table = {i: x for i, x in enumerate(lists)}
def grow(x): x[0].append(0)
def look(name): save(name, lists)
grow(some)
look("a.json")
grow(table)
look("b.json")
""",
    "an alias through a return in a condition": """
store = {"x": [1]}
def pick(flag):
    if flag: return store["x"]
    return []
def grow(x): x.append(0)
def look(name): save(name, store)
x = pick(True)
grow(x)
look("a.json")
grow(pick(True))
look("b.json")
""",
    "a global through a nested function": """
log = []
def outer():
    def inner(x): log.append(x)
    return inner
note = outer()
def look(name): save(name, log)
note(1)
look("a.json")
outer()(2)
look("b.json")
""",
    "rounds with two names of one file": """
for i in range(4):
    save(f"{i % 2}.json", i)
for a, b in [(1, 1), (1, 2), (2, 1)]:
    save(f"m{a}.json", b)
for x in ["1", "01"]:
    save(f"k{int(x)}.json", x)
for y in (1.0, 1):
    save(f"v{y:.0f}.json", str(y))
""",
    "rounds that break": """
for i in range(5):
    if i == 2: break
    save(f"a_{i}.json", i)
else:
    save("none.json", 1)
for i in range(3):
    if i == 1: continue
    save(f"b_{i}.json", i)
save("c.json", i)
""",
    "rounds that use the last one": """
best = None
for i in range(3):
    save(f"r_{i}.json", i)
    if best is None: best = i
save("best.json", best)
total = 0
for i in range(3):
    total += i
    save(f"t_{i}.json", total)
""",
    "rounds of a while": """
n = 3
while n:
    n -= 1
    save(f"w_{n}.json", n)
save("end.json", n)
""",
    "rounds with a name of letters": """
for i in range(12):
    save(f"a{i}1.json", i)
for i in range(12):
    save("b" + str(i) + "1" + ".json", i)
for i in range(2):
    for j in range(12):
        save(f"c{i}{j}.json", [i, j])
""",
    "a list that a function returns from its argument": """
def same(x): return x
def first(x): return x[0]
box = [[1]]
def grow(x): x.append(0)
def look(name): save(name, box)
grow(first(same(box)))
look("a.json")
grow(same(first(box)))
look("b.json")
""",
    "a plain function that changes": """
box = [1]
def size(x):
    x.append(0)
    return len(x)
def look(name): save(name, box)
n = size(box) + 1
look("a.json")
m = str(size(box))
look("b.json")
if size(box) > 1:
    look("c.json")
""",
    "a change in a condition": """
box = [3]
def look(name): save(name, box)
look("a.json")
x = box.pop() if box else 0
look("b.json")
y = box.append(5) or len(box)
look("c.json")
z = [box.append(k) for k in range(2)]
look("d.json")
w = f"{box.pop()}"
look("e.json")
""",
    "an object in a default of a method": """
class Box:
    def put(self, x, kept=[]):
        kept.append(x)
        return len(kept)
a, b = Box(), Box()
save("a.json", a.put(1))
save("b.json", b.put(2))
""",
    "two objects that share a part": """
class Engine:
    def __init__(self): self.n = 0
class Car:
    def __init__(self, engine): self.engine = engine
    def drive(self): self.engine.n += 1
    def look(self, name): save(name, self.engine.n)
engine = Engine()
one, two = Car(engine), Car(engine)
one.drive()
two.look("a.json")
two.drive()
one.look("b.json")
""",
    "text that is joined from a generator": """
seen = []
def note(x):
    seen.append(x)
    return str(x)
late = (note(x) for x in range(3))
def look(name): save(name, seen)
look("a.json")
line = ",".join(late)
look("b.json")
""",
    "a list that is extended by a generator": """
seen = []
def rows():
    for x in range(3):
        seen.append(x)
        yield x
late = rows()
all_rows = []
def look(name): save(name, [seen, all_rows])
look("a.json")
all_rows.extend(late)
look("b.json")
""",
    "a loop that leaves a list": """
last = []
for i in range(3):
    last = [i]
    save(f"a_{i}.json", last)
last.append(9)
save("b.json", last)
""",
    "loops that use one list": """
cache = {}
def ask(i):
    if i % 2 not in cache: cache[i % 2] = i
    return cache[i % 2]
for i in range(4):
    save(f"c_{i}.json", ask(i))
""",
    "a loop over objects of a class": """
class Item:
    count = 0
    def __init__(self, n): self.n = n
    def run(self):
        Item.count += 1
        save(f"i_{self.n}.json", Item.count)
for n in range(3):
    Item(n).run()
""",
    "a loop over names of one file": """
for name in ["x.json", "sub/../x.json"]:
    save(name, name) if ".." not in name else None
for i in range(3):
    save("w.json" if i else "v.json", i)
for i in range(3):
    save(str(i // 2) + ".json", i)
""",
    "a table of settings": """
settings = dict(rate=1, names=[])
def use(name, rate=None, names=None):
    names.append(rate)
    save(name, names)
use("a.json", **settings)
settings["rate"] = 2
use("b.json", **settings)
""",
    "a function with an attribute of its argument": """
class State: pass
state = State()
state.log = []
def step(s): s.log += [len(s.log)]
def look(name): save(name, state.log)
step(state)
look("a.json")
step(state)
look("b.json")
""",
    "an update of a nested table": """
config = {"a": {"b": [1]}}
inner = config["a"]
def change(c): c["a"]["b"][0] += 1
def look(name): save(name, inner)
look("a.json")
change(config)
look("b.json")
inner["b"] = [7]
save("c.json", config)
""",
    "a loop that fills a list for later": """
made = []
for i in range(3):
    save(f"p_{i}.json", i)
    made.append(f"p_{i}.json")
save("all.json", [load(name) for name in made])
""",
    "a stack of calls": """
import numpy as np
def normalize(x):
    x -= x.mean()
    return x
def scale(x): return x * 2
a = np.arange(4.0)
b = scale(normalize(a))
save("b.json", b.tolist())
save("a.json", a.tolist())
c = scale(normalize(a[1:]))
save("c.json", a.tolist())
""",
    "a zip of lists that is used up": """
pairs = zip([1, 2], [3, 4])
def take(name): save(name, list(pairs))
take("a.json")
take("b.json")
""",
    "an enumeration that is used up": """
rows = enumerate([5, 6])
def take(name):
    for i, x in rows:
        save(name, [i, x])
        break
take("a.json")
take("b.json")
back = reversed([1, 2])
def last(name): save(name, list(back))
last("c.json")
last("d.json")
""",
    "a parameter with the name of a module": """
import time
log = []
def note(time): time.append(len(time))
def look(name): save(name, log)
note(log)
look("a.json")
note(log)
look("b.json")
""",
    "a variable with the name of a module": """
import math
class Store:
    kept = []
    def put(self, x): Store.kept.append(x)
math = Store()
def look(name): save(name, Store.kept)
math.put(1)
look("a.json")
math.put(2)
look("b.json")
""",
    "a variable with the name of a builtin": """
class Note:
    def __init__(self): self.seen = []
    def __call__(self, x): self.seen.append(x)
print = Note()
def look(name): save(name, print.seen)
print(1)
look("a.json")
print(2)
look("b.json")
""",
    "indices that are used up": """
import numpy as np
places = np.ndindex(2, 2)
def take(name): save(name, [list(p) for p in places])
take("a.json")
take("b.json")
""",
    "lines that are used up": """
import io
lines = io.StringIO("a\\nb\\n")
def take(name): save(name, [line for line in lines])
take("a.json")
take("b.json")
""",
    "a filter that is used up": """
odd = filter(None, [1, 0, 3])
def take(name): save(name, list(odd))
take("a.json")
take("b.json")
many = map(str, [1, 2])
def one(name): save(name, next(many))
one("c.json")
one("d.json")
""",
    "iterators that are used up at the top": """
pairs = zip([1, 2], [3, 4])
a = list(pairs)
b = list(pairs)
save("a.json", [a, b])
rows = enumerate([5, 6])
c = [x for x in rows]
d = [x for x in rows]
save("c.json", [c, d])
back = reversed([1, 2])
e = sorted(back)
f = tuple(back)
save("e.json", [e, f])
""",
}
