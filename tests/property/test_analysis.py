"""Random programs: dependencies between their tasks have no cycle, and any order that respects them gives the result of
the program does.
"""

import contextlib
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.learn.analysis import TaskGraph, analyze
from tests.unit.learn.analysis.orders import reordered

FUNCTIONS = """
SEEN = []

def fresh(a):
    return [len(repr(a))]

def same(a):
    return a

def wrap(a, b):
    box = [a]
    box.append(b)
    return box

def grow(a):
    a.append(1)
    return None

def put(a, b):
    inner = a
    inner.append(len(repr(b)))
    return inner

def reach(a):
    for part in a:
        if isinstance(part, list):
            part.append(2)
    return len(a)

def remember(a):
    SEEN.append(len(repr(a)))
    return len(SEEN)

def twice(a, b):
    grow(a)
    return same(b)

def inner(a):
    found = [part for part in a if isinstance(part, list)]
    return found[-1] if found else a

def replace(a, b):
    a[0] = b
    return len(repr(a))

def swap(a, b):
    a, b = b, a
    a.append(3)
    return [len(b)]

def deepen(a):
    for part in a:
        if isinstance(part, list):
            part += [4]
    return a

def shorten(a):
    del a[2:]
    return None

class Box:
    def __init__(self, content):
        self.content = content

    def fill(self, more):
        self.content.append(len(repr(more)))

def through(a, b):
    box = Box(a)
    box.fill(b)
    return box.content

def later(a):
    def change():
        a.append(5)
    change()
    return [6]
"""
TAKES = {"fresh": 1, "same": 1, "wrap": 2, "grow": 1, "put": 2, "reach": 1, "remember": 1, "twice": 2,
         "inner": 1, "replace": 2, "swap": 2, "deepen": 1, "shorten": 1, "through": 2, "later": 1}  # fmt: skip
LISTS = {"fresh", "same", "wrap", "put", "twice", "inner", "swap", "deepen", "through", "later"}
"""Functions that return a list, which others accept."""


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """One call a line, each with a name of its own for what it gives back."""
    made, usable = ["v0 = fresh(0)", "v1 = fresh(1)"], [0, 1]
    for number in range(2, draw(st.integers(3, 14))):
        name = draw(st.sampled_from(sorted(TAKES)))
        arguments = [f"v{draw(st.sampled_from(usable))}" for _ in range(TAKES[name])]
        made.append(f"v{number} = {name}({', '.join(arguments)})")
        if name in LISTS:
            usable.append(number)
    return made


def analyzed(folder: Path, program: str) -> TaskGraph:
    path = folder / "program.py"
    path.write_text(program)
    return analyze(path)


def outcome(ordered: list[str]) -> dict[str, str]:
    world: dict[str, Any] = {}
    exec(FUNCTIONS, world)
    for line in ordered:
        exec(line, world)
    return {name: repr(value) for name, value in world.items() if name.startswith("v") or name == "SEEN"}


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(lines(), st.integers(0, 1000))
def test_any_order_that_respects_the_dependencies_gives_the_result_of_the_program(
    tmp_path: Path, program: list[str], seed: int
) -> None:
    graph = analyzed(tmp_path, FUNCTIONS + "\n".join(program))
    first = len(FUNCTIONS.splitlines()) + 1
    assert [task.line - first for task in graph.tasks] == list(range(len(program)))
    chance = random.Random(seed)
    waiting = {task.id: {need.task for need in task.needs} for task in graph.tasks}
    line_of = {task.id: program[task.line - first] for task in graph.tasks}
    ordered: list[str] = []
    while waiting:
        ready = sorted(name for name, needs in waiting.items() if not needs & waiting.keys())
        chosen = chance.choice(ready[-2:])  # late ones first: far from the order of the program
        ordered.append(line_of[chosen])
        del waiting[chosen]
    told = "\n".join([*program, "", "in the order", *ordered])
    assert outcome(ordered) == outcome(program), told


@st.composite
def bodies(draw: st.DrawFn, depth: int = 0) -> list[str]:
    """Statements of every shape, loops and conditions in each other."""
    names = ["a", "b", "c", "d"]
    made: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        one, two, three = (draw(st.sampled_from(names)) for _ in range(3))
        shape = draw(
            st.sampled_from(["call", "call", "glue", "grow", "for", "while", "if", "try", "with", "comprehension"])
        )
        inner = [f"    {line}" for line in draw(bodies(depth + 1))] if depth < 3 else ["    pass"]
        made += {
            "call": [f"{one} = wrap({two}, same({three}))"],
            "glue": [f"{one} = [{two}, {three}]"],
            "grow": [f"grow({one})"],
            "for": [f"for {one} in {two}:", *inner],
            "while": [f"while len({one}) < 3:", *inner, f"    {one} = wrap({one}, 1)"],
            "if": [f"if {one}:", *inner, "else:", f"    {two} = fresh({three})"],
            "try": [
                "try:",
                *inner,
                "except ValueError:",
                f"    {one} = fresh({two})",
                "finally:",
                f"    grow({three})",
            ],
            "with": [f"with open({one}[0]) as {two}:", *inner],
            "comprehension": [f"{one} = [same(x) for x in {two} if grow({three})]"],
        }[shape]
    return made


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(bodies())
def test_tasks_of_any_program_have_levels_above_their_dependencies(tmp_path: Path, body: list[str]) -> None:
    graph = analyzed(tmp_path, FUNCTIONS + "a = b = c = d = fresh(0)\n" + "\n".join(body))
    level = {name: number for number, names in enumerate(graph.levels) for name in names}
    assert sorted(level) == sorted(task.id for task in graph.tasks)
    for task in graph.tasks:
        assert level[task.id] == max((level[need.task] + 1 for need in task.needs), default=0)
    assert 1 <= graph.width <= max(len(graph.tasks), 1) or any(task.independent for task in graph.tasks)
    needed = {(need.task, task.id) for task in graph.tasks for need in task.needs}
    assert set(zip(graph.critical_path, graph.critical_path[1:], strict=False)) <= needed


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sets(st.integers(0, 6)), min_size=1, max_size=7))
def test_the_width_is_the_largest_set_of_independent_tasks(drawn: list[set[int]]) -> None:
    from itertools import combinations

    from gpuyard.learn.analysis.graph import width

    before = {str(n): sorted(str(m) for m in needs if m < n) for n, needs in enumerate(drawn)}
    reach: dict[str, set[str]] = {}
    for name, needs in before.items():
        reach[name] = set(needs).union(*(reach[other] for other in needs))
    apart = [
        group
        for size in range(1, len(before) + 1)
        for group in combinations(before, size)
        if not any(one in reach[other] or other in reach[one] for one, other in combinations(group, 2))
    ]
    assert width(dict.fromkeys(before, 1), before) == max(map(len, apart))


# --- objects, aliases, methods, closures and files ----------------------------------------------------------------------

OBJECTS = """
import json
from pathlib import Path

class Base:
    shared = []

    def __init__(self, content=None):
        self.content = [] if content is None else content

    def put(self, value):
        self.content.append(value)
        return self

    def share(self, value):
        self.shared.append(value)

    def __len__(self):
        return len(self.content)

class Child(Base):
    def put(self, value):
        super().put(value)
        self.content.append(-1)
        return self

    def write(self, name):
        Path(name).write_text(json.dumps([len(repr(part)) for part in self.content]))

def closure(box):
    def put():
        box.put(7)
    return put

def read(name):
    return len(Path(name).read_text()) if Path(name).exists() else 0

def write(name, box):
    Path(name).write_text(repr(len(box)) + repr(len(box.content)))

def note(box, path="log.txt"):
    with open(path, "a") as file:
        file.write(str(len(box)))

def pair(one, other):
    return Child([one.content, other.content])
"""
SHAPES = [
    "{new} = Child()",
    "{new} = Base({one}.content)",
    "{new} = pair({one}, {two})",
    "{new} = {one}",
    "{one}.put({number})",
    "{one}.share({number})",
    "{one}.content.append({number})",
    "{one}.content = {two}.content",
    "write('{file}', {one})",
    "n{number} = read('{file}')",
    "f{number} = closure({one}); f{number}()",
    "note({one})",
    "Child().write('{file}')",
    "{one}.content.sort(key=repr)",
    "for i in range(2):\n    write(f'{file}_{{i}}', {one})",
    "for i in range(2):\n    {one}.put(i)\n    write(f'{file}_{{i}}', {two})",
    "for box in [{one}, {two}]:\n    box.put({number})",
    "g{number} = (part for part in {one}.content)\nh{number} = len(list(g{number}))",
    "m{number} = {one}.put\nm{number}({number})",
    "d{number} = dict(box={one})\nd{number}['box'].put({number})",
]


@st.composite
def object_programs(draw: st.DrawFn) -> str:
    made, usable = ["b0 = Child()", "b1 = Base()"], ["b0", "b1"]
    for number in range(2, draw(st.integers(4, 12))):
        one, two = draw(st.sampled_from(usable)), draw(st.sampled_from(usable))
        shape = draw(st.sampled_from(SHAPES))
        file = draw(st.sampled_from(["x", "y"]))
        made.append(shape.format(new=f"b{number}", one=one, two=two, number=number, file=file))
        usable += [f"b{number}"] if "{new}" in shape else []
    contents = ", ".join(f"[len(repr(part)) for part in {name}.content]" for name in usable)
    made.append(f"Path('end.json').write_text(json.dumps([{contents}, len(Base.shared)]))")
    return OBJECTS + "\n".join(made) + "\n"


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(object_programs(), st.integers(0, 1000))
def test_programs_with_objects_leave_the_same_files_in_every_order_that_is_allowed(program: str, seed: int) -> None:
    with TemporaryDirectory() as scratch:
        path = Path(scratch, "program.py")
        path.write_text(program)
        (other,) = reordered(path, [seed])
        left = []
        for number, source in enumerate((program, other)):
            folder = Path(scratch, str(number))
            folder.mkdir()
            with contextlib.chdir(folder):
                exec(compile(source, "program.py", "exec"), {"__name__": "__main__"})
            left.append({file.name: file.read_text() for file in folder.iterdir()})
        assert left[0] == left[1], other
