"""What the yard would be asked to run: processes, and which of them after which.

A program of a folder is a process. Steps of one script are so only if they meet in files: a value can not go from one process to
another. So steps that hand values to each other are put together. If that leaves more than one part, each part is the script
without the statements of the others (`part.py` runs it); options and everything else that is quick is in all of them. A part that
is a loop whose rounds need nothing of each other becomes an array, one process a round.

A script that trains is never divided: what its steps share (random numbers, the state of libraries, files it looks for) is not
seen well enough yet, and a training that goes wrong quietly costs more than the parts save.
"""

import ast
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gpuyard.learn.analysis.graph import Graph, Kind, Task
from gpuyard.learn.analysis.script import Script
from gpuyard.learn.analysis.steps import Loop

MOST_ROUNDS = 1_000
"""Of a loop that becomes an array."""


class Request(Struct, frozen=True, kw_only=True):
    """A task for the yard."""

    name: str
    tasks: tuple[str, ...]
    """What of the analysis it does."""
    command: tuple[str, ...] | str
    work_dir: str
    after: tuple[str, ...] = ()
    """Names of other requests that must have succeeded."""
    kind: Kind = field(default="other", name="class")
    gpus: int = 0
    nodes: int = 1
    seconds: float | None = None
    array: int | None = None
    """So many copies, one for each round of a loop."""


def of_programs(graph: Graph, folder: Path) -> list[Request]:
    """One for each program. A shell script of which a command can not stand alone is one as a whole."""
    whole = {task.file for task in graph.tasks if task.command is None}
    member: dict[str, str] = {}
    for task in graph.tasks:
        member[task.id] = task.file if task.file in whole else task.id
    groups: dict[str, list[Task]] = {}
    for task in graph.tasks:
        groups.setdefault(member[task.id], []).append(task)
    made = []
    for name, tasks in groups.items():
        command = tasks[0].command if name not in whole else ("bash", name)
        assert command is not None
        made.append(_request(name, tasks, command, folder, _after(name, tasks, member)))
    return _in_order(made)


def of_script(script: Script, path: Path, words: Sequence[str], python: str) -> list[Request]:
    """The parts of a script that can be processes of their own."""
    if script.is_library:
        return []
    folder = path.parent.resolve()
    tasks = script.tasks()
    parts = _parts(script)
    trains = any(task.kind == "training" for task in tasks)
    if trains or not parts or (len(parts) == 1 and _loop_of(script, parts[0]) is None):
        return [_request(path.stem, tasks, (python, path.name, *words), folder, ())]
    names = script.names()
    member = {names[number]: names[part[0]] for part in parts for number in part}
    lines = _lines(script, parts)
    made = []
    for place, part in enumerate(parts):
        without = sorted(set().union(*(own for other, own in enumerate(lines) if other != place)) - lines[place])
        loop = _loop_of(script, part)
        command = (
            python, "-m", "gpuyard.learn.analysis.part", path.name,
            *(("--without", ",".join(map(str, without))) if without else ()),
            *(("--round-of", str(script.flow.steps[part[0]].top.lineno)) if loop else ()),
            *(("--", *words) if words else ()),
        )  # fmt: skip
        mine = [task for task in tasks if member[task.id] == names[part[0]]]
        request = _request(names[part[0]], mine, command, folder, _after(names[part[0]], mine, member))
        made.append(replace(request, array=loop.rounds) if loop else request)
    return _in_order(made)


def _loop_of(script: Script, part: Sequence[int]) -> Loop | None:
    """The loop that a part is, if its rounds can be processes of their own and nobody uses a value it leaves."""
    steps = [script.flow.steps[number] for number in part]
    top = steps[0].top
    if not isinstance(top, ast.For) or top.orelse or any(step.top is not top for step in steps):
        return None
    inside = {id(node) for node in ast.walk(top)}
    if any(used & set(part) and id(node) not in inside for node, used in _glue(script)):
        return None
    loop = steps[0].loops[0] if steps[0].loops else None
    known = loop is not None and loop.rounds is not None and 2 <= loop.rounds <= MOST_ROUNDS
    return loop if known and loop is not None and not loop.carried else None


def _parts(script: Script) -> list[list[int]]:
    """Steps that must be in one process: those that hand values on, and those of one statement."""
    flow = script.flow
    leader = list(range(len(flow.steps)))

    def find(number: int) -> int:
        while leader[number] != number:
            number = leader[number]
        return number

    def join(one: int, other: int) -> None:
        low, high = sorted((find(one), find(other)))
        leader[high] = low

    for (earlier, later), whys in flow.edges.items():
        if any(not why.startswith("file ") for why in whys):
            join(earlier, later)
    first_of: dict[int, int] = {}
    for step in flow.steps:
        join(first_of.setdefault(id(step.top), step.number), step.number)
    for number, other in _named_before(script):
        join(number, other)
    for _, used in _glue(script):
        for number in used:
            join(min(used), number)
    parts: dict[int, list[int]] = {}
    for step in flow.steps:
        parts.setdefault(find(step.number), []).append(step.number)
    return list(parts.values())


def _glue(script: Script) -> list[tuple[ast.stmt, frozenset[int]]]:
    """Statements that are no steps, with the steps they can not do without: for a value, or for a name given beside one."""
    made = []
    for node, by_name, is_step in _by_names(script):
        if not is_step:
            inside = set(map(id, ast.walk(node)))
            by_value = (used for inner, used in script.flow.glue if id(inner) in inside)
            made.append((node, by_name.union(*by_value)))
    return made


def _named_before(script: Script) -> list[tuple[int, int]]:
    """Steps whose statements use names that statements of other steps give, be it only to a number."""
    steps = _steps_of(script)
    return [
        (min(used), number)
        for node, used, is_step in _by_names(script)
        if is_step and used
        for number in steps[id(node)]
    ]


def _steps_of(script: Script) -> dict[int, list[int]]:
    """The steps of each statement that has some."""
    found: dict[int, list[int]] = {}
    for step in script.flow.steps:
        found.setdefault(id(step.top), []).append(step.number)
    return found


def _by_names(script: Script) -> Iterator[tuple[ast.stmt, frozenset[int], bool]]:
    """For each statement: the steps whose statements gave the names it uses, and whether it is a step's itself."""
    given: dict[str, frozenset[int]] = {}
    steps = _steps_of(script)
    for node in script.flow.body:
        own = frozenset(steps.get(id(node), ()))
        names = [name for name in ast.walk(node) if isinstance(name, ast.Name)]
        stored = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        used = frozenset().union(*(given.get(name.id, frozenset()) for name in names if name.id not in stored))
        yield node, used, bool(own)
        given |= dict.fromkeys(stored, own or used)


def _lines(script: Script, parts: list[list[int]]) -> list[set[int]]:
    """Of each part, where the statements begin that only it needs."""
    found = []
    for part in parts:
        own = {script.flow.steps[number].top.lineno for number in part}
        own |= {node.lineno for node, used in _glue(script) if used and used <= set(part)}
        found.append(own)
    return found


def _after(name: str, tasks: Sequence[Task], member: dict[str, str]) -> tuple[str, ...]:
    needed = dict.fromkeys(member[need.task] for task in tasks for need in task.needs)
    return tuple(other for other in needed if other != name)


def timed(requests: Sequence[Request], graph: Graph) -> list[Request]:
    """The same with how long they take, where that is known of all they do."""
    seconds = {task.id: task.seconds for task in graph.tasks}
    return [replace(request, seconds=_sum(seconds[name] for name in request.tasks)) for request in requests]


def _sum(seconds: Iterable[float | None]) -> float | None:
    known = list(seconds)
    whole = [one for one in known if one is not None]
    return sum(whole) if known and len(whole) == len(known) else None


def _request(
    name: str, tasks: Sequence[Task], command: tuple[str, ...] | str, folder: Path, after: tuple[str, ...]
) -> Request:
    heaviest = max(tasks, key=lambda task: (task.gpus * task.nodes, task.kind == "training"), default=None)
    return Request(
        name=name,
        tasks=tuple(task.id for task in tasks),
        command=command,
        work_dir=str(folder.resolve()),
        after=after,
        kind=heaviest.kind if heaviest else "other",
        gpus=heaviest.gpus if heaviest else 0,
        nodes=heaviest.nodes if heaviest else 1,
    )


def _in_order(requests: list[Request]) -> list[Request]:
    """Those needed before those that need them."""
    waiting = {request.name: request for request in requests}
    made: list[Request] = []
    done: set[str] = set()
    while waiting:
        ready = [request for request in waiting.values() if done.issuperset(request.after)]
        assert ready, f"these need each other: {sorted(waiting)}"
        for request in ready:
            made.append(waiting.pop(request.name))
            done.add(request.name)
    return made


def spoken(command: tuple[str, ...] | str) -> str:
    """As one would type it."""
    return command if isinstance(command, str) else shlex.join(command)
