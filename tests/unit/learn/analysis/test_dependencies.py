"""Which step of a script depends on which other, and why."""

from pathlib import Path

import pytest

from gpuyard.learn.analysis.dataflow import dependencies
from gpuyard.learn.analysis.steps import read_script
from tests.unit.learn.analysis.scripts import script

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
LIBRARIES = """
import json
import os
import numpy as np
import pandas as pd
import scipy.ndimage
import scipy.special
import torch
import torch.nn.functional as F
def load(): return [1]
def keep(value): return [value]
x, y = np.zeros(3), np.ones(3)
table = pd.DataFrame({"k": [1], "v": [2]})
given = {"inplace": True}
"""


def test_a_step_depends_on_those_whose_result_it_uses(tmp_path: Path) -> None:
    read = script(tmp_path, FUNCTIONS + "a = load()\nb = clean(a)\nc = report(a)\nd = clean(b)\n")
    assert read.graph.levels == (("load",), ("clean", "report"), ("clean-2",))
    assert read.why("clean", "load") == "value a"
    assert read.graph.critical_path == ("load", "clean", "clean-2")
    assert (read.graph.critical_length, read.graph.total_length, read.graph.width) == (3, 4, 2)


def test_setup_is_not_a_task_and_passes_dependencies_on(tmp_path: Path) -> None:
    read = script(tmp_path, FUNCTIONS + "a = load()\nhalf = len(a) // 2\npart = a[:half]\nb = report(part)\n")
    assert read.names == ["load", "report"]
    assert read.needs("report") == {"load"}


def test_a_step_that_changes_an_object_stays_ordered_with_those_that_use_it(tmp_path: Path) -> None:
    read = script(tmp_path, FUNCTIONS + "a = load()\nn = report(a)\ngrow(a)\nm = report(a)\n")
    assert read.why("grow", "report") == "a changes"
    assert read.needs("report-2") == {"load", "report", "grow"}


def test_a_reused_name_keeps_the_order(tmp_path: Path) -> None:
    read = script(tmp_path, FUNCTIONS + "a = load()\nreport(a)\na = load()\nreport(a)\n")
    assert read.needs("load-2") == {"load", "report"}


def test_loop_variables_of_the_same_name_create_no_dependency(tmp_path: Path) -> None:
    body = "for i in range(3):\n    report([i])\nfor i in range(3):\n    report([i])\n"
    assert script(tmp_path, FUNCTIONS + body).needs("report-2") == set()


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
    assert read.needs("evaluate-2") == {"evaluate", "train"}


def test_a_loop_is_one_step(tmp_path: Path) -> None:
    read = script(tmp_path, FUNCTIONS + "x = 0\nfor i in range(5):\n    x = train(x)\n    y = clean([x])\nreport(y)\n")
    assert read.names == ["train", "report"]
    assert (read["train"].rounds, read["train"].independent) == (5, False)
    assert read.needs("report") == {"train"}


@pytest.mark.parametrize("default", ["", ", default=7"])
def test_iterations_can_come_from_the_command_line(tmp_path: Path, default: str) -> None:
    source = (
        "import argparse\n" + FUNCTIONS + "parser = argparse.ArgumentParser()\n"
        f"parser.add_argument('--epochs', type=int{default})\nargs = parser.parse_args()\n"
        "for epoch in range(args.epochs):\n    train(epoch)\n"
    )
    assert script(tmp_path, source)["train"].rounds == (7 if default else None)
    assert script(tmp_path, source, "--epochs", "3")["train"].rounds == 3


def test_a_step_that_may_end_the_script_comes_before_everything_after_it(tmp_path: Path) -> None:
    for way_out in ("return", "raise ValueError", "sys.exit(1)"):
        body = f"def main():\n    a = load()\n    if not a:\n        {way_out}\n    train(1)\n\nmain()\n"
        assert script(tmp_path, "import sys\n" + FUNCTIONS + body).needs("train") == {"load"}


@pytest.mark.parametrize("call", ["main()", "sys.exit(main())", "raise SystemExit(main())", "asyncio.run(main())"])
def test_a_main_function_that_does_all_the_work_is_split(tmp_path: Path, call: str) -> None:
    source = f"{FUNCTIONS}\ndef main(path='x'):\n    a = load()\n    return clean(a)\n\nif __name__ == '__main__':\n    {call}\n"
    assert script(tmp_path, "import sys, asyncio\n" + source).names == ["load", "clean"]


def test_arguments_of_main_are_known_inside(tmp_path: Path) -> None:
    body = "def main(data):\n    grow(data)\n    report(data)\na = []\nmain(a)\n"
    assert script(tmp_path, FUNCTIONS + body).needs("report") == {"grow"}


def test_steps_depend_on_each_other_through_files(tmp_path: Path) -> None:
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


def test_an_unknown_path_may_be_any_file(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        "import numpy as np\ndef write(): np.save('a.npy', 1)\ndef read(path): return np.load(path)\n"
        "write()\nread(input())\n",
    )
    assert "write" in read.needs("read")


def test_a_reassigned_parameter_is_unknown(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        "import numpy as np\ndef write(path, flag):\n    if flag:\n        path = 'b.npy'\n    np.save(path, 1)\n"
        "def read(): return np.load('a.npy')\nwrite('a.npy', 0)\nread()\n",
    )
    assert read.needs("read") == {"write"}


def test_a_file_belongs_to_the_value_that_was_created_with_it(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        """
        import numpy as np
        def fill(file): file.write("x")
        def use(path): return open(path).read()
        handle = open("a.txt", "w")
        fill(handle)
        use("a.txt")
        """,
    )
    assert read.needs("use") >= {"fill"}


def test_random_numbers_are_drawn_in_the_order_of_the_code(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        "import random\ndef one(): return random.random()\ndef two(): return random.random()\none()\ntwo()\n",
    )
    assert read.why("two", "one") == "random numbers"


def test_an_unknown_call_is_ordered_with_everything(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        FUNCTIONS
        + "import numpy as np\nimport strange\ndef write(): np.save('a.npy', 1)\nwrite()\nstrange.work()\nreport([1])\n",
    )
    assert read.why("work", "write") == "unknown effects (script.py:14 strange.work())"
    assert read.why("report", "work") == "unknown effects (script.py:14 strange.work())"


def test_evidence_names_an_unknown_call_in_a_function_with_its_line(tmp_path: Path) -> None:
    body = "import json\ndef work(x):\n    y = json.loads(x)\n    y.polish()\nwork('[1]')\nwork('[2]')\n"
    task = script(tmp_path, body).graph.tasks[1]
    assert task.needs[0].why.startswith("unknown effects (script.py:4 y.polish())")
    seen = [one for one in task.evidence if "unknown" in one.says]
    assert [(one.file, one.line, one.seen) for one in seen] == [("script.py", 4, "y.polish()")]


CLEANERS = """
import csv
def clean(source, target):
    with open(source, newline="") as src, open(target, "w", newline="") as dst:
        writer = csv.DictWriter(dst, fieldnames=["id", "value"])
        writer.writeheader()
        for row in csv.DictReader(src):
            if row["value"].strip():
                writer.writerow({"id": row["id"], "value": row["value"].strip()})
def join(left, right, target):
    with open(left, newline="") as file:
        known = {row["id"]: row for row in csv.DictReader(file)}
    with open(right, newline="") as src, open(target, "w", newline="") as dst:
        writer = csv.writer(dst)
        for row in csv.DictReader(src):
            writer.writerow([row["id"], known[row["id"]]["value"], row["value"]])
clean("a.csv", "a_clean.csv")
clean("b.csv", "b_clean.csv")
join("a_clean.csv", "b_clean.csv", "joined.csv")
"""


def test_two_cleaners_of_tables_are_independent_and_the_join_needs_both(tmp_path: Path) -> None:
    read = script(tmp_path, CLEANERS)
    assert (read.needs("clean"), read.needs("clean-2"), read.needs("join")) == (set(), set(), {"clean", "clean-2"})
    assert script(tmp_path, CLEANERS.replace('"b_clean.csv")\njoin', '"a_clean.csv")\njoin')).needs("clean-2") == {
        "clean"
    }


def test_code_made_at_run_time_is_ordered_with_everything(tmp_path: Path) -> None:
    read = script(tmp_path, FUNCTIONS + "a = load()\nexec(open('more.py').read())\nb = report([3])\n")
    assert read.needs("report") == {"load", "open"}
    assert (
        read.why("report", "open")
        == "script.py:11 uses exec; unknown effects (script.py:11 exec(open('more.py').read()))"
    )
    assert read.graph.notes == ("All steps keep their order: script.py:11 uses exec.",)


def test_a_global_variable_set_by_one_function_is_a_dependency_of_another(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        "STATE = {}\ndef first(): STATE['a'] = 1\ndef second(): return STATE['a']\ndef third(): return 3\nfirst()\nsecond()\nthird()\n",
    )
    assert read.needs("second") == {"first"}
    assert read.needs("third") == set()


def test_a_result_may_be_a_global_variable(tmp_path: Path) -> None:
    body = "STATE = []\ndef get(): return STATE\ndef put(x): STATE.append(x)\na = get()\ngrow(a)\nput(1)\nreport(a)\n"
    read = script(tmp_path, FUNCTIONS + body)
    assert read.needs("report") == {"get", "grow", "put"}


def test_state_of_functions_and_classes_keeps_the_order(tmp_path: Path) -> None:
    default = "def count(x, seen=[]):\n    seen.append(x)\n    return len(seen)\ncount(1)\ncount(2)\n"
    assert script(tmp_path, default).why("count-2", "count") == "unknown effects (script.py:1 [])"
    attribute = "class Box:\n    total = 0\ndef put(): Box.total += 1\ndef get(): return Box.total\nput()\nget()\n"
    assert script(tmp_path, attribute).needs("get") == {"put"}


def test_names_of_a_star_import_are_variables(tmp_path: Path) -> None:
    (tmp_path / "store.py").write_text("DATA = []\n")
    read = script(tmp_path, FUNCTIONS + "from store import *\ngrow(DATA)\nreport(DATA)\n")
    assert read.needs("report") == {"grow"}


def test_a_function_may_keep_what_it_is_given(tmp_path: Path) -> None:
    body = "KEPT = None\ndef keep(x):\n    global KEPT\n    KEPT = x\ndef change(): KEPT.append(1)\na = load()\nkeep(a)\nchange()\nreport(a)\n"
    assert script(tmp_path, FUNCTIONS + body).needs("report") == {"load", "keep", "change"}


def test_functions_of_other_files_are_analyzed(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("def grow(x):\n    x.append(1)\n\ndef look(x):\n    return len(x)\n")
    read = script(tmp_path, "import tools\nfrom tools import look\na = [1]\nlook(a)\nlook(a)\ntools.grow(a)\nlook(a)\n")
    assert read.names == ["look", "look-2", "grow", "look-3"]
    assert read.needs("look-2") == set()
    assert read.needs("look-3") == {"look", "look-2", "grow"}


def test_a_package_may_re_export_what_its_files_define(tmp_path: Path) -> None:
    package = tmp_path / "tool"
    package.mkdir()
    (package / "__init__.py").write_text("from .core import load, Store\n")
    (package / "core.py").write_text(
        "import numpy as np\ndef load(path): return np.load(path)\nclass Store:\n    def keep(self, x): np.save('x.npy', x)\n"
    )
    read = script(
        tmp_path, "from tool import load, Store\nstore = Store()\na = load('a.npy')\nstore.keep(a)\nb = load('x.npy')\n"
    )
    assert read.needs("keep") == {"load"}
    assert read.why("load-2", "keep") == "file x.npy"


def test_files_with_circular_imports_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from b import work\n")
    (tmp_path / "b.py").write_text("from a import work\n")
    assert script(tmp_path, "from a import work\nx = work(1)\nlast(x)\n").needs("last") == {"work"}


def test_a_variable_of_another_file_links_functions_that_use_it(tmp_path: Path) -> None:
    (tmp_path / "store.py").write_text(
        "KEPT = {}\ndef put(x):\n    KEPT['x'] = x\ndef total():\n    return len(KEPT)\n"
    )
    assert script(tmp_path, "import store\nfrom store import put\nput('a')\nprint(store.total())\n").needs("total") == {
        "put"
    }
    assert script(tmp_path, FUNCTIONS + "import store\nstore.put('a')\nreport(store.KEPT)\n").needs("report") == {"put"}


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
                return len(self.model)
        trainer = Trainer([])
        trainer.evaluate()
        trainer.fit()
        trainer.evaluate()
        """,
    )
    assert read.names == ["evaluate", "fit", "evaluate-2"]
    assert read.needs("evaluate-2") == {"evaluate", "fit"}


def test_closures_and_callbacks_are_assumed_to_be_called(tmp_path: Path) -> None:
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


def test_steps_that_share_an_iterator_stay_in_order(tmp_path: Path) -> None:
    body = "def total(rows): return sum(rows)\n{}\ntotal(rows)\ntotal(rows)\n"
    assert script(tmp_path, body.format("rows = iter([1, 2])")).needs("total-2") == {"total"}
    assert script(tmp_path, body.format("rows = [1, 2]")).needs("total-2") == set()


def test_leaving_a_with_block_may_run_its_exit(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        """
        import numpy as np
        class Store:
            def __init__(self): self.items = []
            def __enter__(self): return self
            def __exit__(self, *_): np.save("all.npy", self.items)
        with Store() as store:
            store.items.append(1)
        result = np.load("all.npy")
        """,
    )
    assert len(read.names) == 2
    assert read.needs(read.names[1]) == {read.names[0]}


def test_a_figure_is_drawn_before_it_is_saved(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        "import matplotlib.pyplot as plt\ndef draw(x): plt.plot(x)\ndef other(x): return x\n"
        "draw(1)\nother(2)\nplt.savefig('a.png')\ndraw(3)\n",
    )
    assert read.needs("savefig") == {"draw"}
    assert read.needs("other") == set()
    assert "savefig" in read.needs("draw-2")


def test_command_line_options_create_no_dependency_unless_a_function_changes_them(tmp_path: Path) -> None:
    source = (
        "import argparse\ndef load(path, args): return [path, args]\ndef fix(args): args.lr = 1\n{}"
        "args = argparse.ArgumentParser().parse_args()\na = load('a', args)\n{}b = load('b', args)\na.append(1)\nc = load(a, args)\n"
    )
    assert script(tmp_path, source.replace("def fix(args): args.lr = 1\n", "").format("", "")).needs("load-2") == set()
    assert script(tmp_path, source.format("", "fix(args)\n")).needs("load-2") >= {"fix"}


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
        "from . import x\nfrom .. import y\nx.f(y)\n",
    ],
)
def test_every_valid_file_can_be_analyzed(tmp_path: Path, source: str) -> None:
    graph = script(tmp_path, source).graph
    level = {task.id: task.level for task in graph.tasks}
    assert all(level[need.task] < task.level for task in graph.tasks for need in task.needs)


def test_a_file_that_does_nothing_when_it_is_run_has_no_tasks(tmp_path: Path) -> None:
    graph = script(tmp_path, "def f(): return 1\n").graph
    assert (graph.tasks, graph.requests) == ((), ())
    assert graph.notes == ("script.py contains no tasks.",)


@pytest.mark.parametrize(
    "body",
    [
        "a{0} = make('f{0}.npy')\nb{0} = clean(a{0})\n",
        "for i in range(3):\n    make(f'd{0}/p{{i}}.npy')\n",
        "x{0} = strange.work({0})\n",
    ],
)
def test_the_number_of_dependencies_grows_with_the_length_of_the_script(tmp_path: Path, body: str) -> None:
    head = FUNCTIONS + "import numpy as np\nimport strange\ndef make(name):\n    np.save(name, [1])\n    return [1]\n"
    found = []
    for count in (50, 100):
        path = tmp_path / "long.py"
        path.write_text(head + "".join(body.format(number) for number in range(count)))
        read = read_script(path)
        found.append((len(dependencies(read.units, read.hazard)), len(read.units)))
    assert found[1][0] / found[0][0] == pytest.approx(found[1][1] / found[0][1], rel=0.1)


def test_a_module_of_the_project_that_makes_its_names_keeps_all_steps_in_order(tmp_path: Path) -> None:
    (tmp_path / "store.py").write_text("SEEN = []\ndef __getattr__(name):\n    SEEN.append(name)\n    return 1\n")
    read = script(tmp_path, FUNCTIONS + "import store\na = load()\nb = report([store.x])\nc = load()\n")
    assert read.graph.notes == ("All steps keep their order: store.py:2 defines __getattr__.",)
    assert read.graph.width == 1


@pytest.mark.parametrize(
    "call",
    [
        "F.relu(x)", "F.cross_entropy(x, y, reduction='sum')", "np.add(x, y)", "np.median(x, axis=0)", "np.clip(x, 0, 1)", "np.sum(x, 0)",
        "scipy.special.expit(x)", "scipy.ndimage.gaussian_filter(x, 1.0)", "table.groupby('k').agg({'v': 'sum'})", "json.dumps([1], indent=2)",
    ],
)  # fmt: skip
def test_a_library_call_with_harmless_arguments_orders_nothing(tmp_path: Path, call: str) -> None:
    read = script(tmp_path, LIBRARIES + f"a = load()\nb = keep({call})\nc = load()\n")
    assert [need.task for task in read.graph.tasks for need in task.needs if need.task in {"load", "keep"}] == []


@pytest.mark.parametrize(
    "call",
    [
        "F.relu(x, True)", "F.relu(x, inplace=True)", "F.relu(x, **given)", "F.relu(*given)", "np.add(x, y, x)", "np.median(x, overwrite_input=True)",
        "np.not_in_the_tables(x)", "scipy.special.expit(x, y)", "scipy.ndimage.gaussian_filter(x, 1.0, output=y)", "table.groupby('k').agg(given)",
        "table.query('v > @x')", "json.dumps([1], cls=given)", "list(map(os.remove, ['a']))", "strange.VALUE",
    ],
)  # fmt: skip
def test_a_library_call_with_an_argument_that_was_not_thought_of_is_unknown(tmp_path: Path, call: str) -> None:
    head = LIBRARIES + ("import strange\n" if "strange" in call else "")
    read = script(tmp_path, head + f"a = load()\nb = keep({call})\nc = load()\n")
    assert "unknown effects" in read.why("keep", "load")
    assert "unknown effects" in read.why("load-2", "keep")
