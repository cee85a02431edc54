"""The tasks that would be submitted, and that the parts of a script do what the script does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard.learn.analysis import SubmitRequest, analyze

PIPELINE = """
import json
import sys

NAME = sys.argv[1] if len(sys.argv) > 1 else "nobody"

def prepare(path):
    with open(path, "w") as file:
        json.dump([1, 2, 3], file)

def greet(path, name):
    with open(path, "w") as file:
        file.write("hello " + name)

def total(source, target):
    with open(source) as file:
        numbers = json.load(file)
    with open(target, "w") as file:
        json.dump(sum(numbers), file)

def main():
    suffix = ".json"
    prepare("numbers" + suffix)
    greet("greeting.txt", NAME)
    total("numbers" + suffix, "total" + suffix)

if __name__ == "__main__":
    main()
"""


def requests_of(path: Path, *words: str) -> dict[str, SubmitRequest]:
    return {request.name: request for request in analyze(path, words, python=sys.executable).requests}


def test_steps_that_pass_values_on_are_one_process(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("def f(): return 1\ndef g(x): return x\ny = f()\ng(y)\n")
    [request] = requests_of(path, "--fast").values()
    assert request.command == (sys.executable, "a.py", "--fast")
    assert request.tasks == ("f", "g")
    assert request.work_dir == str(tmp_path)


def test_a_script_that_trains_is_one_process(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.py"
    path.write_text(PIPELINE.replace("json.dump(sum(numbers), file)", "loss = sum(numbers)\n        loss.backward()"))
    [request] = requests_of(path, "you").values()
    assert request.command == (sys.executable, "pipeline.py", "you")
    assert (request.tasks, request.kind) == (("prepare", "greet", "total"), "training")


def test_steps_that_share_only_files_are_separate_processes_with_the_same_result(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.py"
    path.write_text(PIPELINE)
    made = requests_of(path, "you")
    assert list(made) == ["prepare", "greet", "total"]
    assert made["total"].after == ("prepare",)
    assert made["greet"].after == ()
    left = {"prepare": ["numbers.json"], "greet": ["greeting.txt"], "total": ["total.json"]}
    for name, request in made.items():
        before = {file.name for file in tmp_path.iterdir()}
        subprocess.run(request.command, cwd=request.work_dir, check=True)
        assert sorted({file.name for file in tmp_path.iterdir()} - before) == left[name]
    assert (tmp_path / "total.json").read_text() == "6"
    assert (tmp_path / "greeting.txt").read_text() == "hello you"


def test_a_step_that_uses_names_of_a_part_belongs_to_it(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.py"
    body = """
if __name__ == "__main__":
    for name in ("x", "y"):
        count = len(name)
        greet(f"{name}.txt", name)
    if count > 0:
        print("greeted", name)
    for name in ("numbers.json",):
        prepare(name)
"""
    path.write_text(PIPELINE.partition("def main")[0] + body)
    made = requests_of(path)
    assert list(made) == ["greet", "prepare"]
    assert made["greet"].array is None  # its last name is printed
    said = subprocess.run(made["greet"].command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert said == "greeted y\n"
    assert sorted(file.name for file in tmp_path.glob("*.txt")) == ["x.txt", "y.txt"]
    said = subprocess.run(made["prepare"].command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert said == ""
    assert (tmp_path / "numbers.json").exists()


def test_a_failure_in_a_part_names_the_line_of_the_script(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.py"
    path.write_text(PIPELINE)
    total = requests_of(path)["total"]
    done = subprocess.run(total.command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert 'File "pipeline.py", line 16, in total' in done.stderr


SWEEP = """
import json
import sys
from pathlib import Path

def train(rate, path):
    Path(path).write_text(json.dumps(rate * 2))

def gather():
    found = [json.loads(path.read_text()) for path in sorted(Path(".").glob("run_*.json"))]
    Path("all.json").write_text(json.dumps(found))

for number, rate in enumerate([0.1, 0.2, 0.3]):
    print("round", number)
    train(rate, f"run_{number}.json")
gather()
"""


def test_independent_iterations_are_an_array(tmp_path: Path) -> None:
    path = tmp_path / "sweep.py"
    path.write_text(SWEEP)
    made = requests_of(path)
    assert [(request.name, request.array, request.after) for request in made.values()] == [
        ("train", 3, ()),
        ("gather", None, ("train",)),
    ]
    for number in (2, 0, 1):
        env = {**os.environ, "GPUYARD_ARRAY_INDEX": str(number)}
        done = subprocess.run(made["train"].command, cwd=tmp_path, check=True, env=env, capture_output=True, text=True)
        assert done.stdout == f"round {number}\n"
    subprocess.run(made["gather"].command, cwd=tmp_path, check=True)
    assert (tmp_path / "all.json").read_text() == "[0.2, 0.4, 0.6]"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('f"run_{number}.json"', "'run_x.json'"),  # every round writes the same file
        ("[0.1, 0.2, 0.3]", "sys.argv"),  # the number of iterations is unknown
        ("gather()\n", "print(rate)\ngather()\n"),  # a value of the last round is used
    ],
)
def test_other_loops_are_not_arrays(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "sweep.py"
    before, _, after = SWEEP.rpartition(old)
    path.write_text(before + new + after)
    assert all(request.array is None for request in requests_of(path).values())


DRAWS = """
import random
import numpy as np
import torch
rng = np.random.default_rng(0)
def work(rate, path):
    own = {make}
    np.savetxt(path, np.array([rate * float({draw})]))
for number, rate in enumerate([0.1, 0.2, 0.3]):
    work(rate, f"run_{{number}}.txt")
"""


@pytest.mark.parametrize(
    ("make", "draw", "why"),
    [
        ("np.random.default_rng(0)", "own.normal()", None),
        ("np.random.default_rng(int(rate * 10))", "own.normal()", None),
        ("np.random.RandomState(0)", "own.normal()", None),
        ("np.random.Generator(np.random.PCG64(0))", "own.normal()", None),
        ("random.Random(0)", "own.random()", None),
        ("torch.Generator().manual_seed(0)", "torch.rand(1, generator=own)", None),
        ("torch.Generator().manual_seed(0)", "torch.rand(1)", "random numbers"),
        ("np.random.default_rng(0)", "np.random.normal()", "random numbers"),
        ("rng", "own.normal()", "random numbers"),
        ("np.random.default_rng(rng)", "own.normal()", "rng changes"),
        ("np.random.default_rng(0)", "own.polish()", "unknown effects (sweep.py:8 own.polish())"),
    ],
)
def test_rounds_with_generators_of_their_own_are_independent(
    tmp_path: Path, make: str, draw: str, why: str | None
) -> None:
    path = tmp_path / "sweep.py"
    path.write_text(DRAWS.format(make=make, draw=draw))
    [task] = analyze(path).tasks
    assert (task.independent, task.dependent) == (why is None, why)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('f"run_{number}.json"', "'run_x.json'", "file run_x.json"),
        ("[0.1, 0.2, 0.3]", "sys.argv", "the code does not say how many there are"),
        ("gather()\n", "print(rate)\ngather()\n", "the last value of rate is used"),
        ('    print("round", number)\n', "    if number: break\n", "one may be the last"),
        ('    print("round", number)\n', "    assert number < 3\n", "one may end the script"),
        ('    print("round", number)\n', "    sys.path.append('x')\n", "sweep.py:14 uses sys.path"),
    ],
)
def test_it_is_said_why_rounds_are_not_independent(tmp_path: Path, old: str, new: str, why: str) -> None:
    path = tmp_path / "sweep.py"
    before, _, after = SWEEP.rpartition(old)
    path.write_text(before + new + after)
    assert analyze(path).tasks[0].dependent == why


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def f(x): x.backward()\nf(1)\n", "contains training"),
        ("import threading\ndef f(): return 1\nf()\nf()\n", "a.py:1 imports threading"),
        ("def f(): return 1\ndef g(x): return x\ny = f()\ng(y)\n", "its steps share more than files"),
        ("def f(): return 1\nf()\n", "it has one step"),
        ("def f(): return 1\nf(); f()\n", "it has several statements in a line"),
        (
            "import random\nx = random.random()\ndef f(x): return x\nf(x)\nf(1)\n",
            "its setup must not be repeated (line 2)",
        ),
        (
            "import random\nx = random.Random(0).random()\nfor i in range(3):\n    open(f'{i}', 'w').write(str(x))\n",
            "its setup must not be repeated (line 2)",
        ),
        ("def f(): return 1\n", "it has no tasks"),
    ],
)
def test_it_is_said_why_a_script_is_one_process(tmp_path: Path, source: str, why: str) -> None:
    path = tmp_path / "a.py"
    path.write_text(source)
    graph = analyze(path)
    assert (graph.is_divided, graph.undivided) == (False, why)


def test_a_library_has_nothing_to_run(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("def f(): return 1\n")
    assert requests_of(path) == {}


@pytest.mark.parametrize("edited", ["pipeline.py", "helper.py"])
def test_a_part_of_a_script_that_was_edited_since_is_refused_in_one_sentence(tmp_path: Path, edited: str) -> None:
    path = tmp_path / "pipeline.py"
    path.write_text(PIPELINE.replace("import sys", "import sys\nimport helper"))
    (tmp_path / "helper.py").write_text("RATE = 1\n")
    made = requests_of(path, "you")
    (tmp_path / edited).write_text("# a new first line\n" + (tmp_path / edited).read_text())
    done = subprocess.run(
        made["prepare"].command, cwd=made["prepare"].work_dir, capture_output=True, text=True, check=False
    )
    refused = f"{edited} was changed after the script was divided; analyze and submit pipeline.py again.\n"
    assert (done.returncode, done.stderr) == (1, refused)
    assert not (tmp_path / "numbers.json").exists()


def test_a_part_is_refused_if_a_file_of_its_project_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.py"
    path.write_text(PIPELINE.replace("import sys", "import sys\nimport helper"))
    (tmp_path / "helper.py").write_text("RATE = 1\n")
    made = requests_of(path, "you")
    (tmp_path / "helper.py").unlink()
    done = subprocess.run(made["greet"].command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.startswith("helper.py was changed after")) == (1, True)
