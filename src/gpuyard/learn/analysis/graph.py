"""The graph of tasks and their dependencies: levels, the critical path, the number of tasks that could run at once.

The width is exact: the largest set of tasks of which none needs another. By Dilworth's theorem it is the number of
tasks minus the size of a maximum matching in "needs, directly or through others".
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

StepKind = Literal["training", "inference", "data", "hpc", "other"]
TaskBound = Literal["compute", "memory", "io", "communication", "unknown"]
EXACT_WIDTH = 300
"""With more tasks than this the width is that of the widest level."""


class Evidence(Struct, frozen=True, order=True):
    """A call seen in the code, and what it implies."""

    file: str
    line: int
    seen: str
    says: str


class Need(Struct, frozen=True, order=True):
    """A task that must run before, and why."""

    task: str
    why: str


class ScriptTask(Struct, frozen=True, kw_only=True):
    """A step of the script."""

    id: str
    does: str
    """The code it begins with, on one line."""
    file: str
    line: int
    end_line: int
    kind: StepKind = field(default="other", name="class")
    bound: TaskBound = "unknown"
    level: int = 0
    needs: tuple[Need, ...] = ()
    """Direct dependencies; implied ones are left out."""
    rounds: int | None = None
    """Number of iterations of a loop; None if the code does not say."""
    independent: bool = False
    """Whether the iterations of the loop are proven independent."""
    dependent: str | None = None
    """Why they are not; None if they are, and for a step that is no loop."""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    """Files; * stands for parts that are known only at run time."""
    gpus: int = 0
    seconds: float | None = None
    evidence: tuple[Evidence, ...] = ()


class SubmitRequest(Struct, frozen=True, kw_only=True):
    """A task to submit to the scheduler: the whole script, or a part of it."""

    name: str
    tasks: tuple[str, ...]
    """The steps that it runs."""
    command: tuple[str, ...]
    work_dir: str
    after: tuple[str, ...] = ()
    """Names of other requests that must have succeeded."""
    kind: StepKind = field(default="other", name="class")
    gpus: int = 0
    seconds: float | None = None
    array: int | None = None
    """Number of copies, one for each iteration of a loop."""


class TaskGraph(Struct, frozen=True, kw_only=True):
    """The tasks of a script, their dependencies, and what could be submitted."""

    source: str
    tasks: tuple[ScriptTask, ...]
    levels: tuple[tuple[str, ...], ...]
    critical_path: tuple[str, ...]
    critical_length: float
    """In seconds if those of every task are known; otherwise every task counts 1."""
    total_length: float
    width: int
    """Number of tasks that could run at once; independent iterations of a loop count separately."""
    speedup: float
    """An upper bound, with any number of GPUs."""
    in_seconds: bool
    requests: tuple[SubmitRequest, ...] = ()
    """The script as one process, or the parts that it can be divided into."""
    whole: SubmitRequest | None = None
    """The script as one process; None if it has no tasks."""
    undivided: str | None = None
    """Why it is not divided; None if it is."""
    notes: tuple[str, ...] = ()

    @property
    def is_divided(self) -> bool:
        """Whether the requests are more than the script as one process."""
        return len(self.requests) > 1 or any(request.array for request in self.requests)


def graph_of(
    source: str,
    tasks: Sequence[ScriptTask],
    notes: Iterable[str] = (),
    requests: Iterable[SubmitRequest] = (),
    whole: SubmitRequest | None = None,
    undivided: str | None = None,
) -> TaskGraph:
    """Compute everything that follows from the tasks and their dependencies."""
    before = {task.id: [need.task for need in task.needs] for task in tasks}
    level = levels(before)
    rows: list[list[str]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for task in tasks:
        rows[level[task.id]].append(task.id)
    seconds = [task.seconds for task in tasks if task.seconds is not None]
    in_seconds = bool(tasks) and len(seconds) == len(tasks)
    copies = {task.id: (task.rounds or 1) if task.independent else 1 for task in tasks}
    lengths = {task.id: (task.seconds or 0.0) if in_seconds else 1.0 for task in tasks}
    path = critical_path(before, lengths)
    total, critical = sum(seconds if in_seconds else copies.values()), sum(lengths[task] for task in path)
    return TaskGraph(
        source=source,
        tasks=tuple(replace(task, level=level[task.id]) for task in tasks),
        levels=tuple(map(tuple, rows)),
        critical_path=tuple(path),
        critical_length=critical,
        total_length=total,
        width=width(copies, before),
        speedup=total / critical if critical else 1.0,
        in_seconds=in_seconds,
        requests=tuple(requests),
        whole=whole,
        undivided=undivided,
        notes=tuple(notes),
    )


def levels(before: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the level of each task: 0 without needs, otherwise one above them. Tasks must come after their needs."""
    level: dict[str, int] = {}
    for task, needed in before.items():
        level[task] = max((level[other] + 1 for other in needed), default=0)
    return level


def critical_path(before: Mapping[str, Sequence[str]], lengths: Mapping[str, float]) -> list[str]:
    """Return the longest path through the dependencies."""
    ends: dict[str, float] = {}
    chosen: dict[str, str | None] = {}
    for task, needed in before.items():
        last = max(needed, key=ends.__getitem__, default=None)
        chosen[task] = last
        ends[task] = lengths[task] + (ends[last] if last is not None else 0.0)
    at = max(ends, key=ends.__getitem__, default=None)
    path = []
    while at is not None:
        path.append(at)
        at = chosen[at]
    return path[::-1]


def width(copies: Mapping[str, int], before: Mapping[str, Sequence[str]]) -> int:
    """Return the largest number of tasks that could run at once. A task of n copies is n tasks with the same needs."""
    if sum(copies.values()) > EXACT_WIDTH:
        wide: Counter[int] = Counter()
        for task, row in levels(before).items():
            wide[row] += copies[task]
        return max(wide.values())
    reach: dict[str, set[str]] = {}
    places: dict[str, list[int]] = {}
    nodes = [task for task in before for _ in range(copies[task])]
    for place, task in enumerate(nodes):
        places.setdefault(task, []).append(place)
    for task, needed in before.items():
        reach[task] = set(needed).union(*(reach[other] for other in needed))
    near = {task: sorted((place for other in reach[task] for place in places[other]), reverse=True) for task in before}
    matched: dict[int, int] = {}

    def finds_one(node: int, seen: set[int]) -> bool:
        """Extend the matching by an augmenting path (Kuhn)."""
        for other in near[nodes[node]]:
            if other not in seen:
                seen.add(other)
                if other not in matched or finds_one(matched[other], seen):
                    matched[other] = node
                    return True
        return False

    return len(nodes) - sum(finds_one(node, set()) for node in range(len(nodes)))
