"""Which step of a script needs which other, and why."""

from pathlib import Path

import pytest

from tests.unit.learn.analysis.reading import script

FUNCTIONS = """
def load(): return [1]
def clean(x): return [y for y in x]
def report(x): return len(x)
def train(x, model=None):
    if model is not None:
        model.append(x)
    return x
def grow(x): x.append(1)
"""


def test_a_step_needs_those_whose_result_it_uses(tmp_path: Path) -> None:
    read = script(tmp_path, FUNCTIONS + "a = load()\nb = clean(a)\nc = report(a)\nd = train(b)\n")
    assert read.graph.levels == (("load",), ("clean", "report"), ("train",))
    assert read.why("clean", "load") == "value a"
    assert read.graph.critical_path == ("load", "clean", "train")
    assert (read.graph.critical_length, read.graph.total_length, read.graph.width) == (3, 4, 2)


def test_calls_inside_of_calls_are_steps_too(tmp_path: Path) -> None:
    read = script(tmp_path, FUNCTIONS + "print(train(clean(load())))\n")
    assert read.graph.levels == (("load",), ("clean",), ("train",))


def test_what_is_quick_is_no_task_and_passes_on_what_it_is_made_of(tmp_path: Path) -> None:
    read = script(tmp_path, FUNCTIONS + "a = load()\nhalf = len(a) // 2\npart = a[:half]\nb = report(part)\n")
    assert read.names == ["load", "report"]
    assert read.needs("report") == {"load"}


def test_who_changes_a_thing_waits_for_those_who_look_at_it_before(tmp_path: Path) -> None:
    read = script(tmp_path, FUNCTIONS + "a = load()\nn = report(a)\ngrow(a)\nm = report(a)\n")
    assert read.needs("grow") == {"load", "report"}
    assert read.why("grow", "report") == "before it changes"
    assert read.needs("report-2") == {"load", "grow"} or read.needs("report-2") == {"grow"}


def test_a_step_of_the_optimizer_changes_the_model_it_was_made_for(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        """
        import torch
        def make_model(): return torch.nn.Linear(2, 2)
        def train(optimizer, data):
            for x in data:
                x.backward()
                optimizer.step()
        def evaluate(model): return model(1)
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        before = evaluate(model)
        train(optimizer, [])
        after = evaluate(model)
        """,
    )
    assert read.names == ["evaluate", "train", "evaluate-2"]
    assert read.needs("train") == {"evaluate"}
    assert read.needs("evaluate-2") == {"train"}


def test_rounds_of_a_loop_that_need_nothing_of_each_other_could_all_run_at_once(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        FUNCTIONS
        + "a = load()\nfound = []\nfor rate in [0.1, 0.2, 0.3]:\n    found.append(train(rate, None))\nb = report(found)\n",
    )
    task = read["train"]
    assert (task.repeats, task.rounds, task.independent) == ("for rate in [0.1, 0.2, 0.3]", 3, True)
    assert read.needs("report") == {"train"}
    assert read.graph.width == 4  # the loading, and three rounds


def test_rounds_that_hand_something_on_follow_each_other(tmp_path: Path) -> None:
    read = script(tmp_path, FUNCTIONS + "x = 0\nmodel = []\nfor i in range(5):\n    x = train(x)\n    grow(model)\n")
    assert not read["train"].independent
    assert not read["grow"].independent
    assert read.graph.critical_length == 5


def test_a_loop_inside_of_a_loop_hands_on_only_where_it_does(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        FUNCTIONS + "for seed in range(3):\n    model = []\n    for epoch in range(4):\n        train(seed, model)\n",
    )
    assert read["train"].rounds == 12
    assert not read["train"].independent
    assert read["train"].repeats == "for seed in range(3); for epoch in range(4)"


@pytest.mark.parametrize("default", ["", ", default=7"])
def test_rounds_can_come_from_the_command_line(tmp_path: Path, default: str) -> None:
    source = (
        "import argparse\n" + FUNCTIONS + "parser = argparse.ArgumentParser()\n"
        f"parser.add_argument('--epochs', type=int{default})\nargs = parser.parse_args()\n"
        "for epoch in range(args.epochs):\n    train(epoch)\n"
    )
    assert script(tmp_path, source)["train"].rounds == (7 if default else None)
    assert script(tmp_path, source, "--epochs", "3")["train"].rounds == 3


def test_what_a_condition_was_made_of_decides_what_is_under_it(tmp_path: Path) -> None:
    read = script(tmp_path, FUNCTIONS + "a = load()\nif report(a) > 2:\n    train(1)\nelse:\n    clean([])\n")
    assert read.needs("train") == {"report"}
    assert read.why("train", "report").startswith("decides: if report(a) > 2")
    assert read["clean"].when == "not report(a) > 2"
    assert "train" not in read.needs("clean")


def test_what_follows_a_way_out_is_decided_by_it(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        FUNCTIONS + "def main():\n    a = load()\n    if not a:\n        return\n    train(1)\n\nmain()\n",
    )
    assert read.needs("train") == {"load"}


def test_the_function_that_does_all_the_work_is_walked_into(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        FUNCTIONS
        + """
def work(path):
    a = load()
    return clean(a)

def main(path="x"):
    work(path)

if __name__ == "__main__":
    main()
""",
    )
    assert read.names == ["load", "clean"]


def test_a_worker_that_is_spawned_is_the_one_that_does_the_work(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        FUNCTIONS
        + """
import torch.multiprocessing as mp

def worker(rank, size):
    a = load()
    train(a)

def main():
    if True:
        mp.spawn(worker, args=(4,), nprocs=4)
    else:
        worker(0, 1)

main()
""",
    )
    assert read.names == ["load", "train"]


def test_steps_meet_in_files_as_well(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        """
        import os
        import numpy as np
        OUT = "runs"
        def prepare(folder): np.save(os.path.join(folder, "x.npy"), [1])
        def other(): np.save("runs/y.npy", [1])
        def train(): return np.load(f"{OUT}/x.npy")
        prepare(OUT)
        other()
        train()
        """,
    )
    assert read["prepare"].writes == ("runs/x.npy",)
    assert read.needs("train") == {"prepare"}
    assert read.why("train", "prepare") == "file runs/x.npy"


def test_files_that_are_looked_for_are_read(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        """
        from pathlib import Path
        import torch
        def train(seed): torch.save(seed, f"work/model_{seed}.pt")
        def judge(): return [torch.load(path) for path in Path("work").glob("model_*.pt")]
        for seed in range(3):
            train(seed)
        judge()
        """,
    )
    assert read.why("judge", "train") == "file work/model_*.pt"
    assert read["train"].independent


def test_rounds_that_write_the_same_file_follow_each_other(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        "import torch\ndef one(x): torch.save(x, 'a.pt')\ndef each(x): torch.save(x, f'{x}.pt')\n"
        "for x in range(3):\n    one(x)\nfor x in range(3):\n    each(x)\n",
    )
    assert not read["one"].independent
    assert read["each"].independent
    assert read["each"].writes == ("*.pt",)


@pytest.mark.parametrize(
    ("path", "apart"),
    [
        ("f'{seed}.pt'", True),
        ("'%d.pt' % seed", True),
        ("'{}/m.pt'.format(seed)", True),
        ("os.path.join(OUT, str(seed), 'm.pt')", True),
        ("Path(OUT) / seed.name", True),
        ("f'{unknown}/m.pt'", False),
        ("os.path.join(OUT, 'm.pt')", False),
    ],
)
def test_rounds_are_apart_only_if_their_files_are(tmp_path: Path, path: str, apart: bool) -> None:
    body = "import os, torch\nfrom pathlib import Path\nOUT = 'runs'\ndef train(seed, path): torch.save(seed, path)\n"
    read = script(tmp_path, body + f"for seed in range(3):\n    train(seed, {path})\n")
    assert read["train"].independent is apart


def test_a_file_of_the_inner_loop_is_written_again_by_the_outer(tmp_path: Path) -> None:
    body = "import torch\ndef train(path): torch.save(1, path)\nfor a in range(2):\n    for b in range(2):\n        train({})\n"
    assert not script(tmp_path, body.format("f'{b}.pt'"))["train"].independent
    assert script(tmp_path, body.format("f'{a}_{b}.pt'"))["train"].independent


def test_code_that_runs_text_as_code_is_named(tmp_path: Path) -> None:
    graph = script(tmp_path, "def f(): return 1\nexec('x = 1')\nf()\neval('2')\n").graph
    assert graph.notes == ("script.py:2 and 4: text is run as code there; what that does is not seen.",)


def test_a_loop_over_batches_is_one_task(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        """
        import torch
        from torch.utils.data import DataLoader
        def step(model, batch): return model(batch)
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for epoch in range(3):
            for batch in DataLoader([]):
                loss = step(model, batch)
                loss.backward()
                optimizer.step()
            torch.save(model, "model.pt")
        """,
    )
    assert [(task.kind, task.rounds) for task in read.graph.tasks] == [("training", 3), ("data", 3)]
    assert read.needs("save") == {"training"}


def test_functions_of_other_files_are_looked_into(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("def grow(x):\n    x.append(1)\n\ndef look(x):\n    return len(x)\n")
    read = script(tmp_path, "import tools\nfrom tools import look\na = [1]\nlook(a)\ntools.grow(a)\nlook(a)\n")
    assert read.names == ["look", "grow", "look-2"]
    assert read.needs("look-2") == {"grow"}


def test_methods_change_the_object_they_belong_to(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        """
        class Trainer:
            def __init__(self, model): self.model = model
            def fit(self):
                for _ in range(3):
                    self.model.backward()
            def evaluate(self):
                for _ in range(3):
                    print(self.model)
        trainer = Trainer([])
        trainer.evaluate()
        trainer.fit()
        trainer.evaluate()
        """,
    )
    assert read.names == ["evaluate", "fit", "evaluate-2"]
    assert read.needs("fit") == {"evaluate"}
    assert read.needs("evaluate-2") == {"fit"}


def test_a_library_shows_who_calls_whom_and_circles_are_one_task(tmp_path: Path) -> None:
    read = script(tmp_path, "def a(): b()\ndef b(): c(); a()\ndef c(): pass\n")
    assert read.graph.what == "library"
    assert read.graph.levels == (("c",), ("a and b",))


@pytest.mark.parametrize(
    "source",
    [
        "",
        "x = 1\n",
        "print('hello')\n",
        "async def main():\n    async with a() as b:\n        async for c in b:\n            await c\nimport asyncio\nasyncio.run(main())\n",
        "match 1:\n    case [x, *rest] if x: f(x)\n    case _: g()\n",
        "a = {k: f(v) for k, v in {}.items() if (n := k)}\n",
        "x: int\nx += 1\ndel x\nassert f(x), g()\nraise SystemExit(h())\n",
        "lambda: (yield)\nf = lambda a, *b, c=1: g(a)\nf(1)\n",
        "def f(n): return f(n - 1) if n else g(n)\ndef g(n): return f(n)\nf(3)\n",
        "class A(B, metaclass=C):\n    x = f()\n    def y(self): return super().y()\nA().y().z[0](*a, **b)\n",
        "global_ = 1\ndef f():\n    global global_\n    global_ += 1\nf(); f()\n",
        "x = " + "+".join(["f(1)"] * 400) + "\n",
        "with open('a') as f, open('b', 'w') as g:\n    g.write(f.read())\n",
        "try:\n    f()\nexcept* ValueError:\n    g()\n",
    ],
)
def test_every_valid_file_gets_an_answer(tmp_path: Path, source: str) -> None:
    graph = script(tmp_path, source).graph
    level = {name: number for number, names in enumerate(graph.levels) for name in names}
    assert all(level[need.task] < level[task.id] for task in graph.tasks for need in task.needs)


def test_what_one_function_leaves_in_the_file_s_own_names_another_needs(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        "STATE = {}\ndef first(): STATE['a'] = 1\ndef second(): return STATE['a']\ndef third(): return 3\nfirst()\nsecond()\nthird()\n",
    )
    assert read.needs("second") == {"first"}
    assert read.needs("third") == set()


def test_a_loop_that_trains_a_new_model_each_round_has_rounds_apart(tmp_path: Path) -> None:
    body = """
        import torch
        for seed in range(4):
            {0}model = torch.nn.Linear(2, 2)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for batch in batches:
                loss = model(batch)
                loss.backward()
                optimizer.step()
            torch.save(model.state_dict(), f"model_{{seed}}.pt")
        """
    fresh = script(tmp_path, body.format(""))
    kept = script(
        tmp_path,
        body.format("")
        .replace("for seed", "model = []\n        for seed")
        .replace("    model = torch.nn", "    other = torch.nn"),
    )
    assert [task.independent for task in fresh.graph.tasks] == [True, True]
    assert not kept["training"].independent


def test_what_is_drawn_is_drawn_before_it_is_saved(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        """
        import matplotlib.pyplot as plt
        def draw(x): plt.plot(x)
        def other(x): return x
        draw(1)
        other(2)
        plt.savefig("a.png")
        draw(3)
        """,
    )
    assert read.needs("savefig") == {"draw"}
    assert read.needs("other") == set()
    assert "savefig" in read.needs("draw-2")


def test_an_optimizer_that_is_given_a_closure_trains(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        """
        import torch
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.LBFGS(model.parameters())
        def closure():
            loss = model(1)
            loss.backward()
            return loss
        def judge(model): return model(2)
        optimizer.step(closure)
        judge(model)
        """,
    )
    assert read["closure"].kind == "training"
    assert read.needs("judge") == {"closure"}


def test_numbers_that_two_things_are_made_with_do_not_tie_them_together(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        FUNCTIONS
        + "class Net:\n    def __init__(self, width): self.width, self.depth = width, DEPTH\n"
        + "DEPTH = 3\nwidth, name = 8, 'x'\none, other = Net(width), Net(width)\ngrow(one)\nreport(other)\n",
    )
    assert read.needs("report") == set()


def test_a_method_whose_result_is_used_is_one_of_values(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        "def judge(x): return x.pow(2).exp()\ndef change(x): x.reset(2)\ndef look(x): return x\n"
        "a = [1]\nb = judge(a)\nc = look(a)\nchange(a)\nd = look(a)\n",
    )
    assert read.needs("look") == set()
    assert read.needs("change") == {"judge", "look"}
    assert read.needs("look-2") == {"change"}


def test_who_goes_through_a_table_needs_whoever_made_it(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        """
        from datasets import load_dataset
        def divide(batch): return batch["text"].split()
        raw = load_dataset("texts")
        words = raw.map(divide)
        """,
    )
    assert read.needs("divide") == {"raw"}


def test_tasks_that_are_only_handed_to_a_pool_do_not_wait_for_each_other(tmp_path: Path) -> None:
    source = """
    from multiprocessing import Pool
    def one(): return open("a").read()
    def other(): return open("b").read()
    pool = Pool(2)
    pool.apply_async(one)
    pool.apply_async(other)
    """
    assert script(tmp_path, source).needs("other") == set()


def test_what_is_done_when_something_goes_wrong_needs_what_was_done_before(tmp_path: Path) -> None:
    for star in ("", "*"):
        source = f"a = load()\ntry:\n    grow(a)\nexcept{star} KeyboardInterrupt:\n    report(a)\nclean(a)\n"
        read = script(tmp_path, FUNCTIONS + source)
        assert read.needs("report") == {"load", "grow"}
        assert read.needs("clean") == {"load", "grow"} or read.needs("clean") == {"grow"}


def test_names_that_a_star_imports_from_a_file_beside_are_looked_into(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(
        "import json\nimport numpy as np\ndef solve(x): return np.linalg.inv(x)\ndef _own(x): return x\n"
    )
    read = script(tmp_path, "import json as np\nfrom beside import *\nx = solve([1])\ny = np.load(x)\nlast(y)\n")
    assert read["solve"].kind == "hpc"
    assert read.names == ["solve", "last"]  # its own np is json, which is quick, and not that of the other file


def test_a_name_of_another_file_carries_what_one_function_does_to_the_next(tmp_path: Path) -> None:
    (tmp_path / "store.py").write_text(
        "KEPT = {}\ndef put(x):\n    KEPT['x'] = open(x).read()\ndef total():\n    return len(open(KEPT['x']).read())\n"
    )
    read = script(tmp_path, "import store\nfrom store import put\nput('a')\nprint(store.total())\n")
    assert read.needs("total") == {"put"}
    read = script(tmp_path, FUNCTIONS + "import store\nstore.put('a')\nreport(store.KEPT)\n")
    assert read.needs("report") == {"put"}


def test_leaving_a_with_is_a_step_where_it_works(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        """
        import numpy as np
        class Store:
            def __init__(self): self.items = []
            def __enter__(self): return self
            def __exit__(self, *_): np.save("all.npy", self.items)
        def heavy(x): return np.linalg.inv(x)
        with Store() as store:
            store.items.append(heavy([[1]]))
        result = np.load("all.npy")
        """,
    )
    assert read.needs("Store") == {"heavy"}
    assert read.needs("result") == {"Store"}


def test_programs_of_which_nothing_is_known_keep_their_order(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        """
        import shlex, subprocess
        import numpy as np
        def run(*words): subprocess.run(words, check=True)
        a = np.load("a.npy")
        run("fetch", "x")
        b = np.load("b.npy")
        c = np.linalg.inv(3)
        np.save("c.npy", c)
        subprocess.check_call(shlex.split("pack c.npy"))
        """,
    )
    assert read.needs("run") == set()  # who only read before does not matter to it
    assert read.needs("b") == {"run"}
    assert read.needs("c") == set()
    assert read.needs("check_call") == {"run", "save"}


def test_text_that_is_run_as_code_may_use_and_change_anything(tmp_path: Path) -> None:
    read = script(tmp_path, FUNCTIONS + "a = load()\nexec(open('more.py').read())\nb = report(3)\n")
    assert read.needs("exec") == {"load"}
    assert read.needs("report") == {"load", "exec"} or read.needs("report") == {"exec"}


def test_a_picture_does_not_change_what_is_drawn(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        FUNCTIONS + "import matplotlib.pyplot as plt\na = load()\nplt.hist(a)\nplt.savefig('a.png')\nreport(a)\n",
    )
    assert read.needs("report") == {"load"}


def test_what_a_package_hands_on_is_looked_into_also_from_inside_of_it(tmp_path: Path) -> None:
    package = tmp_path / "tool"
    package.mkdir()
    (package / "__init__.py").write_text("from .core import load, Store\n")
    (package / "core.py").write_text(
        "import numpy as np\ndef load(path): return np.load(path)\n"
        "class Store:\n    def keep(self, x): np.save('x.npy', x)\n"
    )
    source = "from tool import load, Store\nstore = Store()\nstore.keep(load('a.npy'))\nlast(load('x.npy'))\n"
    for read in (script(tmp_path, source), script(package, source)):
        assert read.needs("keep") == {"load"}
        assert read.needs("load-2") == {"keep"}


def test_files_that_import_each_other_in_a_circle_are_read_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from b import work\n")
    (tmp_path / "b.py").write_text("from a import work\nfrom a import *\n")
    assert script(tmp_path, "from a import work\nfrom b import *\nx = work(1)\nlast(x)\n").needs("last") == {"work"}


def test_what_stands_behind_a_yield_is_done_when_a_with_is_left(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        """
        from contextlib import contextmanager
        import numpy as np
        @contextmanager
        def saving(path):
            kept = []
            yield kept
            np.save(path, kept)
        @contextmanager
        def timed(name):
            yield
            print(name)
        def heavy(x): return np.linalg.inv(x)
        with saving("all.npy") as kept, timed("all"):
            kept.append(heavy([[1]]))
        result = np.load("all.npy")
        """,
    )
    assert read.names == ["saving", "timed", "heavy", "saving-2", "result"]
    assert "heavy" in read.needs("saving-2")
    assert read.needs("result") >= {"saving", "saving-2"}


DATA_SET = """
import glob, os
import numpy as np
class Listed:
    def __init__(self, root): self.files = glob.glob(os.path.join(root, "*.npy"))
class Later:
    def __init__(self, root): self.root = root
    def __getitem__(self, i): return np.load(f"{self.root}/{i}.npy")
def prepare(to): np.save(f"{to}/a.npy", 1)
def train(data): return np.linalg.inv(data[0])
prepare("data")
"""


@pytest.mark.parametrize(
    "made", ["Listed('data')", "Later('data')", "glob.glob('data/*.npy')", "len(os.listdir('data'))"]
)
def test_what_is_quick_passes_on_the_files_it_looks_at(tmp_path: Path, made: str) -> None:
    assert script(tmp_path, f"{DATA_SET}train({made})\n").needs("train") == {"prepare"}
    assert script(tmp_path, f"{DATA_SET}train({made.replace('data', 'other')})\n").needs("train") == set()


def test_a_step_that_asks_whether_a_file_is_there_needs_who_writes_it(tmp_path: Path) -> None:
    read = script(tmp_path, f"{DATA_SET}if os.path.exists('data/a.npy'):\n    train([1])\n")
    assert read.needs("train") == {"prepare"}
