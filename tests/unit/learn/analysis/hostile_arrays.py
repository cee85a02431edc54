"""Hostile scripts: numpy, torch and pandas: views, operations in place, hooks, optimizers, tables."""

SCRIPTS = {
    "an output by its position": """
import numpy as np
a = np.arange(4.0)
def look(name): save(name, a.tolist())
look("a.json")
np.add(a, 1, a)
look("b.json")
np.sqrt(a, a)
look("c.json")
np.clip(a, 0, 1, a)
look("d.json")
np.cumsum(a, 0, None, a)
look("e.json")
""",
    "a copy that is not made": """
import numpy as np
a = np.array([1.0, float("nan")])
def look(name): save(name, [str(x) for x in a])
look("a.json")
np.nan_to_num(a, copy=False)
look("b.json")
""",
    "a method of the array type": """
import numpy as np
a = np.array([3, 1, 2])
def look(name): save(name, a.tolist())
look("a.json")
np.ndarray.sort(a)
look("b.json")
np.ndarray.fill(a, 7)
look("c.json")
""",
    "partition in place": """
import numpy as np
a = np.array([3, 1, 2, 0])
def look(name): save(name, a.tolist())
look("a.json")
a.partition(1)
look("b.json")
""",
    "byte order in place": """
import numpy as np
a = np.array([3, 1, 2, 0], dtype=np.int16)
def look(name): save(name, a.tolist())
look("a.json")
a.byteswap(True)
look("b.json")
a.shape = (2, 2)
look("c.json")
a.dtype = np.int8
look("d.json")
""",
    "an array that is asked not to copy": """
import numpy as np
a = np.zeros(3)
b = np.array(a, copy=False)
c = np.asarray(b)
def fill(x, v): x[:] = v
def look(name): save(name, a.tolist())
fill(c, 1)
look("a.json")
fill(b, 2)
look("b.json")
""",
    "views of views": """
import numpy as np
a = np.zeros((2, 4))
row = a[0]
part = row[1:3]
flat = part.reshape(-1)
view = flat.view()
def bump(x): x += 1
def look(name): save(name, a.tolist())
bump(view)
look("a.json")
bump(flat)
look("b.json")
np.copyto(view, 9)
look("c.json")
""",
    "a buffer that two arrays share": """
import numpy as np
raw = bytearray(8)
a = np.frombuffer(raw, dtype=np.uint8)
def put(v): raw[0] = v
def look(name): save(name, a.tolist())
put(1)
look("a.json")
put(2)
look("b.json")
""",
    "a memory map": """
import numpy as np
a = np.memmap("m.bin", dtype=np.uint8, mode="w+", shape=(4,))
def put(v): a[0] = v
def keep(): a.flush()
def look(name):
    with open("m.bin", "rb") as file:
        save(name, list(file.read()))
put(1)
keep()
look("a.json")
put(2)
keep()
look("b.json")
""",
    "a tensor made from an array": """
import numpy as np
import torch
a = np.zeros(3)
t = torch.from_numpy(a)
def bump(x): x.add_(1)
def look(name): save(name, a.tolist())
bump(t)
look("a.json")
bump(t[1:])
look("b.json")
t.numpy()[0] = 5
look("c.json")
""",
    "tensor operations in place": """
import torch
t = torch.zeros(4)
u = t.view(2, 2)
v = u.t()
def look(name): save(name, t.tolist())
def one(): v.copy_(torch.ones(2, 2))
def two(): u[0].zero_()
def three(): torch.add(t, 1, out=t)
def four(): t.data.fill_(3)
one()
look("a.json")
two()
look("b.json")
three()
look("c.json")
four()
look("d.json")
""",
    "a hook of a tensor": """
import torch
seen = []
w = torch.ones(2, requires_grad=True)
w.register_hook(lambda g: seen.append(float(g.sum())))
def back(k): (w * k).sum().backward()
def look(name): save(name, seen)
back(1)
look("a.json")
back(2)
look("b.json")
""",
    "a hook of a module": """
import torch
seen = []
layer = torch.nn.Identity()
layer.register_forward_pre_hook(lambda m, x: seen.append(len(x)))
def run(): layer(torch.ones(1))
def look(name): save(name, seen)
run()
look("a.json")
run()
look("b.json")
""",
    "running statistics of a model": """
import torch
torch.manual_seed(0)
norm = torch.nn.BatchNorm1d(2)
x = torch.arange(8.0).reshape(4, 2)
def run(): return norm(x)
def look(name): save(name, norm.running_mean.tolist())
look("a.json")
run()
look("b.json")
run()
look("c.json")
""",
    "gradients that add up": """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(2, 1)
x = torch.ones(3, 2)
def back(k): (net(x) * k).sum().backward()
def look(name): save(name, net.weight.grad.tolist())
back(1)
look("a.json")
back(2)
look("b.json")
net.zero_grad(set_to_none=False)
look("c.json")
""",
    "a moving average of the weights": """
import copy
import torch
torch.manual_seed(0)
net = torch.nn.Linear(2, 1)
mean = copy.deepcopy(net)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def update():
    with torch.no_grad():
        for p, q in zip(mean.parameters(), net.parameters()):
            p.mul_(0.9).add_(q, alpha=0.1)
def train():
    opt.zero_grad()
    net(torch.ones(1, 2)).sum().backward()
    opt.step()
def look(name): save(name, [p.tolist() for p in mean.parameters()])
train()
update()
look("a.json")
train()
update()
look("b.json")
""",
    "two optimizers": """
import torch
torch.manual_seed(0)
g = torch.nn.Linear(1, 1)
d = torch.nn.Linear(1, 1)
opt_g = torch.optim.SGD(g.parameters(), lr=0.1)
opt_d = torch.optim.SGD(d.parameters(), lr=0.1)
z = torch.ones(2, 1)
loss_d = d(g(z).detach()).mean()
loss_d.backward()
opt_d.step()
loss_g = -d(g(z)).mean()
loss_g.backward()
opt_g.step()
save("g.json", g.weight.tolist())
save("d.json", d.weight.tolist())
""",
    "accumulated gradients without a loop": """
import torch
w = torch.ones(1, requires_grad=True)
opt = torch.optim.SGD([w], lr=0.1)
(w * 2).sum().backward()
(w * 3).sum().backward()
opt.step()
save("a.json", w.tolist())
opt.zero_grad()
(w * w).sum().backward()
opt.step()
save("b.json", w.tolist())
""",
    "weights that are tied": """
import torch
torch.manual_seed(0)
a = torch.nn.Linear(2, 2, bias=False)
b = torch.nn.Linear(2, 2, bias=False)
b.weight = a.weight
def halve(m):
    with torch.no_grad():
        for p in m.parameters():
            p.mul_(0.5)
def look(name, m): save(name, m.weight.tolist())
halve(a)
look("a.json", b)
halve(b)
look("b.json", a)
""",
    "a state that is loaded": """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(2, 1)
state = net.state_dict()
def zero():
    with torch.no_grad():
        net.weight.zero_()
def look(name): save(name, state["weight"].tolist())
look("a.json")
zero()
look("b.json")
""",
    "a schedule of the learning rate": """
import torch
w = torch.ones(1, requires_grad=True)
opt = torch.optim.SGD([w], lr=1.0)
plan = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
def advance():
    opt.step()
    plan.step()
def look(name): save(name, opt.param_groups[0]["lr"])
look("a.json")
advance()
look("b.json")
opt.param_groups[0]["lr"] = 7
look("c.json")
""",
    "gradients that are switched off": """
import torch
torch.set_grad_enabled(True)
w = torch.ones(1, requires_grad=True)
def look(name): save(name, (w * 2).requires_grad)
look("a.json")
torch.set_grad_enabled(False)
look("b.json")
""",
    "a replay buffer": """
import collections
import random
random.seed(0)
memory = collections.deque(maxlen=3)
def act(n): memory.append(n)
def learn(name): save(name, sorted(random.sample(list(memory), 2)))
for n in range(3):
    act(n)
learn("a.json")
act(7)
learn("b.json")
""",
    "a data loader that is iterated twice": """
import torch
torch.manual_seed(0)
loader = torch.utils.data.DataLoader(list(range(6)), batch_size=2, shuffle=True)
def epoch(name): save(name, [batch.tolist() for batch in loader])
epoch("a.json")
epoch("b.json")
""",
    "a generator of torch": """
import torch
gen = torch.Generator().manual_seed(0)
def draw(name): save(name, torch.rand(2, generator=gen).tolist())
draw("a.json")
draw("b.json")
save("c.json", torch.randperm(4, generator=gen).tolist())
""",
    "a random state that is kept": """
import random
import numpy as np
random.seed(1)
state = random.getstate()
def draw(name): save(name, random.random())
draw("a.json")
random.setstate(state)
draw("b.json")
np.random.seed(1)
kept = np.random.get_state()
save("c.json", float(np.random.rand()))
np.random.set_state(kept)
save("d.json", float(np.random.rand()))
""",
    "a seed in a function of setup": """
import random
def seed_everything(n): random.seed(n)
def draw(name): save(name, random.random())
seed_everything(1)
draw("a.json")
seed_everything(2)
draw("b.json")
""",
    "a table changed in place": """
import pandas as pd
t = pd.DataFrame({"a": [1, 2, 3], "b": [1, None, 3]})
def look(name): save(name, t.astype(str).values.tolist())
look("a.json")
t.fillna(0, inplace=True)
look("b.json")
t.insert(0, "c", 1)
look("c.json")
t.pop("a")
look("d.json")
t.at[0, "c"] = 5
look("e.json")
t.columns = ["x", "y"]
save("f.json", list(t.columns))
t.update(pd.DataFrame({"x": [9, 9, 9]}))
look("g.json")
t.drop(columns=["y"], inplace=True)
look("h.json")
""",
    "a table that is evaluated": """
import pandas as pd
t = pd.DataFrame({"a": [1, 2, 3]})
def look(name): save(name, t.values.tolist())
look("a.json")
t.eval("b = a * 2", inplace=True)
look("b.json")
t.iloc[0] = 0
look("c.json")
t.index = [3, 4, 5]
save("d.json", list(t.index))
t.rename(columns={"a": "z"}, inplace=True)
save("e.json", list(t.columns))
""",
    "a column that is a view": """
import pandas as pd
import numpy as np
t = pd.DataFrame({"a": np.arange(3.0)})
raw = t["a"].array
def look(name): save(name, t["a"].tolist())
look("a.json")
raw[0] = 9
look("b.json")
""",
    "functions given to a table": """
import pandas as pd
seen = []
def note(x):
    seen.append(int(x))
    return x
t = pd.DataFrame({"k": ["a", "b"], "a": [1, 2]})
def look(name): save(name, seen)
t["a"].apply(note)
look("a.json")
t["a"].map(note)
look("b.json")
t.groupby("k")["a"].agg(lambda x: note(x.sum()))
look("c.json")
t.assign(z=lambda q: q["a"].map(note))
look("d.json")
""",
    "functions given by a variable to a table": """
import pandas as pd
seen = []
note = lambda x: seen.append(int(x.sum())) or x.sum()
t = pd.DataFrame({"k": ["a", "b"], "a": [1, 2]})
def look(name): save(name, seen)
u = t.groupby("k")["a"].agg(note)
look("a.json")
w = t.assign(z=lambda q: note(q["a"]))
look("b.json")
""",
    "two names of a generator of random numbers": """
import numpy as np
rng = np.random.default_rng(0)
again = np.random.default_rng(rng)
a = rng.normal()
b = again.normal()
c = rng.normal()
save("a.json", [float(a), float(b), float(c)])
def draw(r, name): save(name, float(r.normal()))
draw(rng, "b.json")
draw(again, "c.json")
""",
    "a generator of random numbers that rounds share": """
import numpy as np
rng = np.random.default_rng(0)
def work(path): save(path, float(rng.normal()))
for i in range(3):
    work(f"r_{i}.json")
box = [np.random.RandomState(0)]
for i in range(3):
    mine = box[0]
    save(f"s_{i}.json", float(mine.normal()))
import random
state = random.Random(0)
for i in range(3):
    mine = state
    save(f"t_{i}.json", mine.random())
""",
    "two generators on one source of bits": """
import numpy as np
bits = np.random.PCG64(0)
one = np.random.Generator(bits)
two = np.random.Generator(bits)
a = one.random()
b = two.random()
save("a.json", a)
save("b.json", b)
for i in range(3):
    mine = np.random.Generator(bits)
    save(f"r_{i}.json", mine.random())
""",
    "a generator of random numbers that a function keeps": """
import random
KEPT = {}
def source():
    if "r" not in KEPT:
        KEPT["r"] = random.Random(0)
    return KEPT["r"]
for i in range(3):
    rng = source()
    save(f"r_{i}.json", rng.random())
def make(): return random.Random(0)
held = make()
for i in range(3):
    save(f"s_{i}.json", held.random())
""",
    "a generator of random numbers that shuffles what others use": """
import random
deck = list(range(9))
for i in range(3):
    rng = random.Random(i)
    rng.shuffle(deck)
    save(f"r_{i}.json", deck)
rng = random.Random(7)
rng.shuffle(deck)
save("a.json", deck)
""",
    "a generator that torch draws from": """
import torch
torch.manual_seed(0)
g = torch.Generator().manual_seed(0)
def draw(name): save(name, torch.rand(2, generator=g).tolist())
draw("a.json")
draw("b.json")
for i in range(3):
    save(f"r_{i}.json", torch.rand(1, generator=g).tolist())
for i in range(3):
    own = torch.Generator()
    own.manual_seed(i)
    save(f"s_{i}.json", torch.rand(1).tolist())
""",
    "rounds that seed the state that all share": """
import numpy as np
np.random.seed(0)
for i in range(3):
    mine = np.random.RandomState(i)
    save(f"r_{i}.json", [float(mine.normal()), float(np.random.normal())])
""",
}
