"""Hostile scripts: calls of libraries that work in place, draw, write or call back only because of one argument."""

SCRIPTS = {
    "activation in place by name": """
import torch
import torch.nn.functional as F
x = torch.tensor([-2.0, 3.0])
def squash(): F.relu(x, inplace=True)
def look(): save("x.json", x.tolist())
squash()
look()
""",
    "activation in place by position": """
import torch
import torch.nn.functional as F
x = torch.tensor([-2.0, 3.0])
def squash(): F.relu(x, True)
def look(): save("x.json", x.tolist())
squash()
look()
""",
    "running statistics by name": """
import torch
import torch.nn.functional as F
mean, var = torch.zeros(2), torch.ones(2)
rows = torch.arange(6.0).reshape(3, 2)
def norm(): F.batch_norm(rows, mean, var, training=True)
def look(): save("mean.json", mean.tolist())
norm()
look()
""",
    "running statistics by position": """
import torch
import torch.nn.functional as F
mean = torch.zeros(2)
var = torch.ones(2)
rows = torch.arange(6.0).reshape(3, 2)
out = F.batch_norm(rows, mean, var, None, None, True)
torch.save(mean, "mean.pt")
""",
    "a table that is renormalized": """
import torch
import torch.nn.functional as F
table = torch.arange(6.0).reshape(3, 2)
def embed(): F.embedding(torch.tensor([1, 2]), table, max_norm=1.0)
def look(): save("table.json", table.tolist())
embed()
look()
""",
    "a median that sorts": """
import numpy as np
a = np.array([4.0, 1.0, 3.0, 2.0, 0.0])
def middle(): save("middle.json", float(np.median(a, overwrite_input=True)))
def look(): save("a.json", a.tolist())
look()
middle()
""",
    "a percentile that sorts": """
import numpy as np
a = np.array([4.0, 1.0, 3.0, 2.0, 0.0, 9.0, 7.0])
def half(): save("half.json", float(np.percentile(a, 50, overwrite_input=True)))
def look(): save("a.json", a.tolist())
half()
look()
""",
    "a factorization in place by name": """
import numpy as np
import scipy.linalg
a = np.asfortranarray(np.array([[2.0, 1.0], [4.0, 1.0]]))
def factor(): scipy.linalg.lu_factor(a, overwrite_a=True)
def look(): save("a.json", a.tolist())
factor()
look()
""",
    "a factorization in place by position": """
import numpy as np
import scipy.linalg
a = np.asfortranarray(np.array([[2.0, 1.0], [4.0, 1.0]]))
made = scipy.linalg.lu_factor(a, True)
np.savetxt("a.txt", a)
""",
    "a filter with an output by name": """
import numpy as np
import scipy.ndimage
made = np.zeros((3, 3))
def blur(): scipy.ndimage.gaussian_filter(np.arange(9.0).reshape(3, 3), 1.0, output=made)
def look(): save("made.json", made.tolist())
blur()
look()
""",
    "a filter with an output by position": """
import numpy as np
import scipy.ndimage
made = np.zeros((3, 3))
def blur(): scipy.ndimage.gaussian_filter(np.arange(9.0).reshape(3, 3), 1.0, 0, made)
def look(): save("made.json", made.tolist())
blur()
look()
""",
    "a special function with an output": """
import numpy as np
import scipy.special
made = np.zeros(2)
def squash(): scipy.special.expit(np.arange(2.0), made)
def look(): save("made.json", made.tolist())
squash()
look()
""",
    "counts that are drawn": """
import torch
torch.manual_seed(1)
rates = torch.full((4,), 3.0)
def draw(name): save(name, torch.poisson(rates).tolist())
draw("a.json")
draw("b.json")
""",
    "categories that are drawn": """
import torch
import torch.nn.functional as F
torch.manual_seed(1)
def draw(name): save(name, F.gumbel_softmax(torch.ones(4)).tolist())
draw("a.json")
draw("b.json")
""",
    "channels that are dropped": """
import torch
import torch.nn.functional as F
torch.manual_seed(1)
x = torch.ones(1, 8, 2, 2)
def drop(name): save(name, F.dropout2d(x).tolist())
def alpha(name): save(name, F.alpha_dropout(x, training=True).tolist())
drop("a.json")
alpha("b.json")
""",
    "attention that is dropped": """
import torch
import torch.nn.functional as F
torch.manual_seed(1)
x = torch.ones(1, 2, 4, 4)
def attend(name): save(name, F.scaled_dot_product_attention(x, x, x, dropout_p=0.5).tolist())
attend("a.json")
attend("b.json")
""",
    "an optimizer that draws": """
import numpy as np
from scipy.optimize import differential_evolution
np.random.seed(1)
def bowl(x): return float((x ** 2).sum())
def find(name): save(name, differential_evolution(bowl, [(-2, 2)], maxiter=1, polish=False).x.tolist())
find("a.json")
find("b.json")
""",
    "clusters that are drawn": """
import numpy as np
from scipy.cluster.vq import kmeans2
np.random.seed(1)
rows = np.arange(20.0).reshape(10, 2)
a = kmeans2(rows, 3, 1, minit="points")
b = kmeans2(rows, 3, 1, minit="points")
np.savetxt("a.txt", a[0])
np.savetxt("b.txt", b[0])
""",
    "a mapped file that is writable": """
import numpy as np
np.zeros(2, dtype="float32").tofile("x.dat")
def fill():
    mapped = np.memmap("x.dat", dtype="float32")
    mapped[:] = 3
    del mapped
def look(): save("x.json", np.fromfile("x.dat", dtype="float32").tolist())
fill()
look()
""",
    "a path that is replaced by name": """
from pathlib import Path
save("new.json", 1)
save("old.json", 0)
def swap(): Path("new.json").replace(target="old.json")
def look(): save("seen.json", load("old.json"))
swap()
look()
""",
    "an encoder that counts": """
import json
SEEN = []
class Encoder(json.JSONEncoder):
    def default(self, o):
        SEEN.append(1)
        return str(o)
def write(): json.dumps([2j], cls=Encoder)
def look(): save("seen.json", SEEN)
write()
look()
""",
    "aggregations in a dictionary": """
import pandas as pd
SEEN = []
table = pd.DataFrame({"k": [1, 1, 2], "v": [1, 2, 3]})
def first(values):
    SEEN.append(len(values))
    return 0
HOW = {"v": first}
def group(): table.groupby("k").agg(HOW)
def look(): save("seen.json", SEEN)
group()
look()
""",
    "a query of a variable": """
import pandas as pd
table = pd.DataFrame({"v": [3, 1, 2]})
limit = 1
def above(): save("a.json", table.query("v > @limit").v.tolist())
above()
limit = 2
save("b.json", table.query("v > @limit").v.tolist())
""",
    "an object that is integrated": """
from scipy.integrate import quad
SEEN = []
class Line:
    def __call__(self, x):
        SEEN.append(1)
        return x
line = Line()
def area(): quad(line, 0, 1)
def look(): save("seen.json", len(SEEN) > 0)
area()
look()
""",
    "a lambda that is integrated": """
from scipy.integrate import quad
SEEN = []
line = lambda x: SEEN.append(1) or x
area = quad(line, 0, 1)
save("seen.json", len(SEEN) > 0)
again = quad(line, 0, 1)
""",
    "leaky in place by position": """
import torch
import torch.nn.functional as F
x = torch.tensor([-2.0, 3.0])
def f(): F.leaky_relu(x, 0.1, True)
def look(): save("x.json", x.tolist())
f()
look()
""",
    "hard limits in place": """
import torch
import torch.nn.functional as F
x = torch.tensor([-9.0, 9.0])
def f(): F.hardtanh(x, inplace=True)
def look(): save("x.json", x.tolist())
f()
look()
""",
    "a threshold in place": """
import torch
import torch.nn.functional as F
x = torch.tensor([-9.0, 9.0])
def f(): F.threshold(x, 0.0, 5.0, True)
def look(): save("x.json", x.tolist())
f()
look()
""",
    "instance statistics": """
import torch
import torch.nn.functional as F
m, v = torch.zeros(2), torch.ones(2)
x = torch.arange(16.0).reshape(2, 2, 4)
def f(): F.instance_norm(x, m, v, use_input_stats=True)
def look(): save("m.json", m.tolist())
f()
look()
""",
    "a bag that is renormalized": """
import torch
import torch.nn.functional as F
w = torch.arange(8.0).reshape(4, 2)
def f(): F.embedding_bag(torch.tensor([[1, 2]]), w, max_norm=1.0)
def look(): save("w.json", w.tolist())
f()
look()
""",
    "a flag in a variable": """
import torch
import torch.nn.functional as F
x = torch.tensor([-2.0, 3.0])
INPLACE = True
OPTIONS = {"inplace": True}
def f(): F.elu(x, 1.0, INPLACE)
def look(): save("x.json", x.tolist())
f()
look()
""",
    "options that are unpacked": """
import torch
import torch.nn.functional as F
x = torch.tensor([-2.0, 3.0])
OPTIONS = {"inplace": True}
def f(): F.relu(x, **OPTIONS)
def look(): save("x.json", x.tolist())
f()
look()
""",
    "arguments that are unpacked": """
import torch
import torch.nn.functional as F
x = torch.tensor([-2.0, 3.0])
GIVEN = [x, True]
def f(): F.relu(*GIVEN)
def look(): save("x.json", x.tolist())
f()
look()
""",
    "a quantile that sorts by position": """
import numpy as np
a = np.array([4.0, 1.0, 3.0, 2.0, 0.0, 8.0])
def f(): save("q.json", float(np.quantile(a, 0.5, None, None, True)))
def look(): save("a.json", a.tolist())
f()
look()
""",
    "a solver in place": """
import numpy as np
import scipy.linalg
a = np.asfortranarray(np.array([[2.0, 1.0], [4.0, 1.0]]))
b = np.array([1.0, 2.0])
def f(): scipy.linalg.solve(a, b, overwrite_a=True, overwrite_b=True)
def look(): save("a.json", [a.tolist(), b.tolist()])
f()
look()
""",
    "a cholesky in place by position": """
import numpy as np
import scipy.linalg
a = np.asfortranarray(np.array([[4.0, 2.0], [2.0, 3.0]]))
def f(): scipy.linalg.cholesky(a, True, True)
def look(): save("a.json", a.tolist())
f()
look()
""",
    "a transform in place": """
import numpy as np
import scipy.fft
a = np.arange(4.0) + 0j
def f(): scipy.fft.fft(a, overwrite_x=True)
def look(): save("a.json", [str(x) for x in a])
f()
look()
""",
    "a convolution with an output": """
import numpy as np
import scipy.ndimage
o = np.zeros(3)
def f(): scipy.ndimage.convolve(np.arange(3.0), np.ones(2), o)
def look(): save("o.json", o.tolist())
f()
look()
""",
    "products with an output": """
import numpy as np
o = np.zeros((2, 2))
def f(): np.einsum("ij,jk->ik", np.eye(2), np.eye(2), out=o)
def look(): save("o.json", o.tolist())
f()
look()
""",
    "a choice with an output": """
import numpy as np
o = np.zeros(2)
def f(): np.take(np.arange(4.0), [1, 2], None, o)
def look(): save("o.json", o.tolist())
f()
look()
""",
    "a column that is shared": """
import numpy as np
t = {"a": np.zeros(2)}
col = t["a"]
def f(): np.subtract(col, 1, out=col)
def look(): save("t.json", t["a"].tolist())
f()
look()
""",
    "a reduction with an output": """
import torch
o = torch.zeros(2)
i = torch.zeros(2, dtype=torch.long)
def f(): torch.max(torch.eye(2), 0, out=(o, i))
def look(): save("o.json", o.tolist())
f()
look()
""",
    "weights that are averaged in place": """
import torch
a, b = torch.zeros(2), torch.ones(2)
def f(): torch._foreach_add_([a], [b])
def look(): save("a.json", a.tolist())
f()
look()
""",
    "a table that drops in place": """
import pandas as pd
t = pd.DataFrame({"a": [1, None, 3]})
def f(): t.dropna(inplace=True)
def look(): save("t.json", t.a.tolist())
f()
look()
""",
    "gradients by a function": """
import torch
w = torch.ones(2, requires_grad=True)
def f(): torch.autograd.backward([(w * 2).sum()])
def look(): save("g.json", None if w.grad is None else w.grad.tolist())
f()
look()
""",
    "vectors into parameters": """
import torch
from torch.nn.utils import vector_to_parameters
w = torch.zeros(2)
def f(): vector_to_parameters(torch.ones(2), [w])
def look(): save("w.json", w.tolist())
f()
look()
""",
    "json into a handle by name": """
import json
out = open("log.json", "w")
def f(n): json.dump(obj=n, fp=out)
f(1)
f(2)
out.close()
""",
    "noise in place": """
import torch
torch.manual_seed(0)
a, b = torch.zeros(2), torch.zeros(2)
def f(): a.normal_()
def g(): b.uniform_()
def look(): save("x.json", [a.tolist(), b.tolist()])
f()
g()
look()
""",
    "initial weights in turn": """
import torch
torch.manual_seed(0)
a, b = torch.zeros(2, 2), torch.zeros(2, 2)
def f(): torch.nn.init.xavier_uniform_(a)
def g(): torch.nn.init.normal_(b)
def look(): save("x.json", [a.tolist(), b.tolist()])
f()
g()
look()
""",
    "a random activation": """
import torch
import torch.nn.functional as F
torch.manual_seed(0)
x = -torch.ones(4)
def f(n): save(n, F.rrelu(x, training=True).tolist())
f("a.json")
f("b.json")
""",
    "the state of the generator": """
import torch
torch.manual_seed(0)
def f(): save("a.json", torch.rand(2).tolist())
def g(): save("s.json", torch.get_rng_state().sum().item())
f()
g()
""",
    "a distribution that draws": """
import numpy as np
import scipy.stats
np.random.seed(0)
def f(n): save(n, scipy.stats.norm.rvs(size=2).tolist())
f("a.json")
f("b.json")
""",
    "annealing": """
import numpy as np
from scipy.optimize import dual_annealing
np.random.seed(0)
def bowl(x): return float((x ** 2).sum())
def f(n): save(n, dual_annealing(bowl, [(-2, 2)], maxiter=1, no_local_search=True).x.tolist())
f("a.json")
f("b.json")
""",
    "rows that are sampled": """
import numpy as np
import pandas as pd
np.random.seed(0)
t = pd.DataFrame({"a": range(9)})
def f(n): save(n, t.sample(3).a.tolist())
f("a.json")
f("b.json")
""",
    "a low rank that is drawn": """
import torch
torch.manual_seed(0)
x = torch.arange(36.0).reshape(6, 6)
def f(n): save(n, [torch.svd_lowrank(x, 2)[1].tolist(), torch.rand(1).item()])
f("a.json")
f("b.json")
""",
    "a mapped file by position": """
import numpy as np
np.zeros(2).tofile("x.dat")
def f():
    m = np.memmap("x.dat", np.float64, "r+")
    m += 2
    m.flush()
def look(): save("x.json", np.fromfile("x.dat").tolist())
f()
look()
""",
    "an opened mapping": """
import numpy as np
np.save("x.npy", np.zeros(2))
def f():
    m = np.lib.format.open_memmap("x.npy", "r+")
    m[:] = 2
    m.flush()
def look(): save("x.json", np.load("x.npy").tolist())
f()
look()
""",
    "a tensor of a file": """
import torch, numpy as np
np.zeros(2, dtype="float32").tofile("x.dat")
def f(): torch.from_file("x.dat", shared=True, size=2).fill_(4)
def look(): save("x.json", np.fromfile("x.dat", dtype="float32").tolist())
f()
look()
""",
    "a path that is renamed by name": """
from pathlib import Path
save("a.json", 1)
def f(): Path("a.json").rename(target="b.json")
def look(): save("seen.json", Path("b.json").exists())
f()
look()
""",
    "texts that are mapped to removals": """
import os
save("a.json", 1)
def f(): list(map(os.remove, ["a.json"]))
def look(): save("seen.json", os.path.exists("a.json"))
f()
look()
""",
    "a mapping in a variable": """
import pandas as pd
SEEN = []
t = pd.DataFrame({"a": [1, 2]})
how = lambda v: SEEN.append(1) or v
def f(): t.a.map(how)
def look(): save("s.json", len(SEEN))
f()
look()
""",
    "groups by a function": """
import pandas as pd
SEEN = []
t = pd.DataFrame({"a": [1, 2]})
by = lambda i: SEEN.append(1) or i
def f(): t.groupby(by).sum()
def look(): save("s.json", len(SEEN))
f()
look()
""",
    "rows that a function skips": """
import pandas as pd
SEEN = []
open("x.csv", "w").write("a\\n1\\n2\\n")
skip = lambda i: SEEN.append(i) or False
def f(): pd.read_csv("x.csv", skiprows=skip)
def look(): save("s.json", len(SEEN) > 0)
f()
look()
""",
    "names by a function": """
import pandas as pd
SEEN = []
t = pd.DataFrame({"a": [1, 2]})
name = lambda c: SEEN.append(c) or c
def f(): t.rename(columns=name)
def look(): save("s.json", SEEN)
f()
look()
""",
    "a class as a key": """
SEEN = []
class Key:
    def __init__(self, v):
        SEEN.append(v)
        self.v = v
    def __lt__(self, o): return self.v < o.v
def f(): sorted([2, 1], key=Key)
def look(): save("s.json", SEEN)
f()
look()
""",
    "an option with a type": """
import argparse
SEEN = []
def number(t):
    SEEN.append(t)
    return int(t)
p = argparse.ArgumentParser()
p.add_argument("--n", type=number)
o = p.parse_args(["--n", "3"])
save("s.json", SEEN)
""",
    "padding by a function": """
import numpy as np
SEEN = []
pad = lambda v, w, i, k: SEEN.append(1)
def f(): np.pad(np.ones(2), 1, pad)
def look(): save("s.json", len(SEEN))
f()
look()
""",
    "constraints with functions": """
from scipy.optimize import minimize
SEEN = []
def bowl(x): return float(x[0] ** 2)
edge = lambda x: SEEN.append(1) or x[0] - 1
CONS = [{"type": "ineq", "fun": edge}]
def f(): minimize(bowl, [2.0], constraints=CONS)
def look(): save("s.json", len(SEEN) > 0)
f()
look()
""",
    "distances by a function": """
import numpy as np
from scipy.spatial.distance import pdist
SEEN = []
far = lambda a, b: SEEN.append(1) or 1.0
def f(): pdist(np.eye(3), far)
def look(): save("s.json", len(SEEN))
f()
look()
""",
    "a rate by a function": """
import torch
SEEN = []
w = torch.ones(1, requires_grad=True)
opt = torch.optim.SGD([w], 0.1)
def rate(e):
    SEEN.append(e)
    return 1.0
sched = torch.optim.lr_scheduler.LambdaLR(opt, rate)
def f(): sched.step()
def look(): save("s.json", SEEN)
f()
look()
""",
    "text replaced by a function": """
import pandas as pd
SEEN = []
t = pd.Series(["ab"])
how = lambda m: SEEN.append(1) or "x"
def f(): t.str.replace("a", how, regex=True)
def look(): save("s.json", len(SEEN))
f()
look()
""",
    "cumsum method out": """
import numpy as np
a=np.arange(3.0)
o=np.zeros(3)
def f(): a.cumsum(0, None, o)
def g(): save("o.json", o.tolist())
f()
g()
""",
    "np.ma set": """
import numpy as np
m=np.ma.array([1,2,3])
def f(): np.ma.put(m, [0], [9])
def g(): save("o.json", m.tolist())
f()
g()
""",
    "np.random via legacy generator": """
import numpy as np
r=np.random.RandomState(0)
def f(n): save(n, r.rand(2).tolist())
f("a.json")
f("b.json")
""",
    "torch sparse dropout module fn": """
import torch
torch.manual_seed(0)
def f(n): save(n, torch.nn.functional.feature_alpha_dropout(torch.ones(1,4,2), training=True).tolist())
f("a.json")
f("b.json")
""",
    "torch seed via Generator default": """
import torch
torch.manual_seed(0)
g=torch.default_generator
def a(): g.manual_seed(5)
def b(): save("b.json", torch.rand(1).item())
a()
b()
""",
    "tensor from numpy shared out": """
import numpy as np, torch
n=np.zeros(2)
t=torch.as_tensor(n)
def f(): torch.ones(2, out=t, dtype=torch.float64)
def g(): save("n.json", n.tolist())
f()
g()
""",
    "heapq merge key": """
import heapq
L=[]
k=lambda v: L.append(v) or v
def f(): list(heapq.merge([1,3],[2],key=k))
def g(): save("l.json", L)
f()
g()
""",
    "itertools groupby key var": """
import itertools
L=[]
k=lambda v: L.append(v) or v
def f(): [list(g) for _,g in itertools.groupby([1,2], k)]
def g(): save("l.json", L)
f()
g()
""",
    "functools cached": """
import functools
L=[]
def h(x):
    L.append(x)
    return x
c=functools.lru_cache(h)
def f(): c(1)
def g(): save("l.json", L)
f()
g()
""",
    "str.translate mapping": """
L=[]
class M(dict):
    def __missing__(self, k):
        L.append(k)
        return k
m=M()
def f(): "ab".translate(m)
def g(): save("l.json", L)
f()
g()
""",
    "csv writer keyword handle": """
import csv
h=open("x.csv","w",newline="")
w=csv.writer(h)
def f(n): w.writerow([n])
f(1)
f(2)
h.close()
""",
    "pathlib touch via open flags": """
from pathlib import Path
p=Path("x.txt")
def f():
    with p.open(mode="a") as h: h.write("1")
def g(): save("s.json", p.read_text())
p.write_text("")
f()
g()
""",
    "np.save to handle twice": """
import numpy as np
h=open("x.bin","wb")
def f(n): np.save(h, np.full(1,n))
f(1)
f(2)
h.close()
""",
    "np.savez file kw": """
import numpy as np
def f(n): np.savez(file="x.npz", a=np.full(1,n))
def g(): save("s.json", np.load(file="x.npz")["a"].tolist())
f(1)
g()
f(2)
""",
    "pandas to_csv path kw": """
import pandas as pd
t=pd.DataFrame({"a":[1]})
def f(): t.to_csv(path_or_buf="x.csv")
def g(): save("s.json", pd.read_csv(filepath_or_buffer="x.csv").a.tolist())
f()
g()
""",
    "pandas where callable": """
import pandas as pd
L=[]
t=pd.Series([1,2])
c=lambda s: L.append(1) or s > 1
def f(): t.where(c)
def g(): save("s.json", L)
f()
g()
""",
    "pandas loc callable": """
import pandas as pd
L=[]
t=pd.Series([1,2])
c=lambda s: L.append(1) or s > 1
def f(): t.loc[c]
def g(): save("s.json", L)
f()
g()
""",
    "re sub dict of functions": """
import re
L=[]
T={"f": lambda m: L.append(1) or "x"}
def f(): re.sub("a", T["f"], "aa")
def g(): save("s.json", L)
f()
g()
""",
    "sum of objects": """
L=[]
class A:
    def __radd__(self, o):
        L.append(1)
        return o
xs=[A()]
def f(): sum(xs)
def g(): save("s.json", L)
f()
g()
""",
    "print to object": """
L=[]
class W:
    def write(self, t): L.append(t)
w=W()
def f(): print("x", file=w)
def g(): save("s.json", L)
f()
g()
""",
    "np.array of array object": """
import numpy as np
L=[]
class A:
    def __array__(self, dtype=None, copy=None):
        L.append(1)
        return np.ones(1)
a=A()
def f(): np.add(a, 1)
def g(): save("s.json", L)
f()
g()
""",
    "ufunc with where out": """
import numpy as np
o=np.zeros(2)
def f(): np.sqrt(np.ones(2), where=[True, False], out=o)
def g(): save("o.json", o.tolist())
f()
g()
""",
    "torch.utils dlpack": """
import torch
a=torch.zeros(2)
b=torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(a))
def f(): b.fill_(3)
def g(): save("a.json", a.tolist())
f()
g()
""",
    "scipy interpolate stored callable": """
import numpy as np
from scipy.interpolate import interp1d
x=np.arange(3.0)
f1=interp1d(x, x, copy=False)
def f(): x.__imul__(2)
def g(): save("s.json", float(f1(1.5)) if x[1] != 2 else 0.0)
f()
g()
""",
    "scipy sparse in place": """
import numpy as np, scipy.sparse as sp
m=sp.csr_matrix(np.eye(2))
def f(): m.setdiag(5)
def g(): save("s.json", m.toarray().tolist())
f()
g()
""",
    "sort_indices": """
import scipy.sparse as sp
m=sp.csr_matrix(([1.0,2.0],[1,0],[0,2]))
def f(): m.sort_indices()
def g(): save("s.json", m.indices.tolist())
g()
f()
""",
    "np.resize method refcheck": """
import numpy as np
a=np.arange(4)
def f(): a.resize((2,), refcheck=False)
def g(): save("s.json", a.tolist())
f()
g()
""",
    "random.choices weights state": """
import random
random.seed(1)
def f(n): save(n, random.choices([1,2,3], k=2))
f("a.json")
f("b.json")
""",
    "shuffle via rng kw": """
import numpy as np
r=np.random.default_rng(0)
x=[1,2,3,4,5]
def f(): r.shuffle(x)
def g(): save("x.json", x)
f()
g()
""",
    "torch load into module": """
import torch
torch.manual_seed(0)
m=torch.nn.Linear(1,1)
def f(): m.load_state_dict({"weight": torch.ones(1,1), "bias": torch.zeros(1)})
def g(): save("w.json", m.weight.tolist())
f()
g()
""",
    "module half apply": """
import torch
m=torch.nn.Linear(1,1)
w=m.weight
def f(): m.apply(lambda k: torch.nn.init.constant_(k.weight, 3.0))
def g(): save("w.json", w.tolist())
f()
g()
""",
    "swap of bytes by memoryview cast": """
import numpy as np
a=np.zeros(2)
v=memoryview(a).cast("B")
def f(): v.__setitem__(7, 63)
def g(): save("a.json", a.tolist())
f()
g()
""",
    "zip with shared iterator": """
it=iter([1,2,3,4])
def f(n): save(n, list(zip(it,[0])))
f("a.json")
f("b.json")
""",
    "json load object_pairs var": """
import json
L=[]
h=lambda p: L.append(1) or dict(p)
def f(): json.loads("{}", object_pairs_hook=h)
def g(): save("s.json", L)
f()
g()
""",
    "os.scandir rename chain": """
import os
save("a.json",1)
def f():
    for e in os.scandir("."):
        if e.name == "a.json": os.rename(e.path, "b.json")
def g(): save("s.json", os.path.exists("b.json"))
f()
g()
""",
    "np.lib stride view": """
import numpy as np
a=np.zeros(3)
v=np.lib.stride_tricks.as_strided(a, (3,))
def f(): np.copyto(v, 4)
def g(): save("a.json", a.tolist())
f()
g()
""",
    "np.nditer writes": """
import numpy as np
a=np.zeros(3)
def f():
    with np.nditer(a, op_flags=["readwrite"]) as it:
        for x in it: x[...] = 5
def g(): save("a.json", a.tolist())
f()
g()
""",
    "diag view": """
import torch
a=torch.zeros(2,2)
d=torch.diagonal(a)
def f(): d.add_(1)
def g(): save("a.json", a.tolist())
f()
g()
""",
    "split views": """
import torch
a=torch.zeros(4)
p=torch.split(a, 2)
def f(): p[0].fill_(1)
def g(): save("a.json", a.tolist())
f()
g()
""",
    "default dtype": """
import torch
def f(): torch.set_default_dtype(torch.float64)
def g(): save("a.json", str(torch.zeros(1).dtype))
f()
g()
""",
    "print options": """
import numpy as np
def f(): np.set_printoptions(precision=2)
def g(): save("a.json", str(np.array([1/3])))
f()
g()
""",
    "random get state": """
import random
random.seed(0)
def f(): save("a.json", random.random())
def g(): save("s.json", hash(random.getstate()))
f()
g()
""",
    "a module that is made by the script": """
from pathlib import Path
Path("made.py").write_text("SEEN = []\\ndef __getattr__(name):\\n    SEEN.append(name)\\n    return 1\\n")
import made
one = made.anything
save("seen.json", made.SEEN)
other = made.more
""",
}
