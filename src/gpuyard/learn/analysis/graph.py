"""Tasks that need each other, and what follows from that: levels, the critical path, how many could run at once.

The width is exact: the largest set of tasks of which none needs another. By Dilworth it is the number of tasks less the size
of a largest matching in "needs, directly or through others".
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

Kind = Literal["training", "inference", "data", "hpc", "other"]
Bound = Literal["compute", "memory", "io", "communication", "unknown"]

EXACT_WIDTH = 2_000
"""With more tasks than these the width is that of the widest level."""


class Evidence(Struct, frozen=True, order=True):
    """Something seen in the code, and what it tells."""

    file: str
    line: int
    seen: str
    says: str


class Need(Struct, frozen=True, order=True):
    """What a task needs of another one."""

    task: str
    why: str


class Task(Struct, frozen=True, kw_only=True):
    """A part of the work that has a beginning and an end."""

    id: str
    does: str
    """The code it begins with, on one line."""
    file: str
    line: int
    end_line: int
    kind: Kind = field(default="other", name="class")
    """Its class, which is a word of Python's own."""
    bound: Bound = "unknown"
    needs: tuple[Need, ...] = ()
    repeats: str | None = None
    """The loop it is in; it stands for all rounds."""
    rounds: int | None = None
    """How many, where that is written in the code."""
    independent: bool = False
    """No round needs another: they could all run at once."""
    when: str | None = None
    """The condition it is under."""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    """Files; * stands for what only a run would tell."""
    gpus: int = 0
    """How many it would use, as far as the code tells."""
    nodes: int = 1
    seconds: float | None = None
    command: tuple[str, ...] | str | None = None
    """What runs it as a process of its own, where that is possible."""
    evidence: tuple[Evidence, ...] = ()


class Graph(Struct, frozen=True, kw_only=True):
    """What was found in a source."""

    source: str
    what: Literal["script", "library", "programs"]
    """Of a script the tasks are its steps, of a library its functions, of a folder its programs."""
    tasks: tuple[Task, ...]
    levels: tuple[tuple[str, ...], ...]
    critical_path: tuple[str, ...]
    critical_length: float
    """In seconds if those of every task are known; else every task counts 1, and a loop its rounds."""
    total_length: float
    width: int
    """So many tasks could run at once; rounds of a loop that need nothing of each other count one by one."""
    in_seconds: bool
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        """At the most, with as many GPUs as one likes."""
        return self.total_length / self.critical_length if self.critical_length else 1.0


def graph_of(
    source: str, what: Literal["script", "library", "programs"], tasks: Sequence[Task], notes: Iterable[str] = ()
) -> Graph:
    """Everything that follows from the tasks and their needs. The needs must not go in circles."""
    before = {task.id: [need.task for need in task.needs] for task in tasks}
    level = levels(before)
    rows: list[list[str]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for task in tasks:
        rows[level[task.id]].append(task.id)
    in_seconds = bool(tasks) and all(task.seconds is not None for task in tasks)
    lengths = {task.id: task.seconds if in_seconds and task.seconds is not None else _weight(task) for task in tasks}
    path = critical_path(before, lengths, level)
    return Graph(
        source=source,
        what=what,
        tasks=tuple(tasks),
        levels=tuple(map(tuple, rows)),
        critical_path=tuple(path),
        critical_length=sum(lengths[task] for task in path),
        total_length=sum(task.seconds if in_seconds and task.seconds is not None else task.rounds or 1 for task in tasks),
        width=width({task.id: _copies(task) for task in tasks}, before, level),
        in_seconds=in_seconds,
        notes=tuple(notes),
    )  # fmt: skip


def _copies(task: Task) -> int:
    return (task.rounds or 1) if task.independent else 1


def _weight(task: Task) -> float:
    """Rounds that need each other follow each other."""
    return 1.0 if task.independent else float(task.rounds or 1)


def levels(before: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """0 for who needs nobody, else one more than the highest of those needed. A circle is an assertion that names it."""
    waits = {task: len(set(needed)) for task, needed in before.items()}
    after: dict[str, set[str]] = {task: set() for task in before}
    for task, needed in before.items():
        for earlier in needed:
            after[earlier].add(task)
    level = {task: 0 for task, count in waits.items() if not count}
    ready = deque(level)
    while ready:
        task = ready.popleft()
        for later in after[task]:
            level[later] = max(level.get(later, 0), level[task] + 1)
            waits[later] -= 1
            if not waits[later]:
                ready.append(later)
    circle = sorted(task for task, count in waits.items() if count)
    assert not circle, f"these tasks need each other in a circle: {circle}"
    return level


def critical_path(
    before: Mapping[str, Sequence[str]], lengths: Mapping[str, float], level: Mapping[str, int]
) -> list[str]:
    """The longest way through the needs."""
    ends: dict[str, float] = {}
    chosen: dict[str, str | None] = {}
    for task in sorted(before, key=level.__getitem__):
        last = max(before[task], key=ends.__getitem__, default=None)
        chosen[task] = last
        ends[task] = lengths[task] + (ends[last] if last is not None else 0.0)
    at = max(ends, key=ends.__getitem__, default=None)
    path = []
    while at is not None:
        path.append(at)
        at = chosen[at]
    return path[::-1]


def width(copies: Mapping[str, int], before: Mapping[str, Sequence[str]], level: Mapping[str, int]) -> int:
    """The most that could run at once. A task of n copies is n tasks with the same needs."""
    if sum(copies.values()) > EXACT_WIDTH:
        rows: dict[int, int] = {}
        for task, count in copies.items():
            rows[level[task]] = rows.get(level[task], 0) + count
        return max(rows.values())
    reach: dict[str, int] = {}
    """For each task, whom it needs, directly or through others: a bit for each copy."""
    own: dict[str, int] = {}
    first = 0
    for task in sorted(before, key=level.__getitem__):
        reach[task] = 0
        for earlier in before[task]:
            reach[task] |= reach[earlier] | own[earlier]
        own[task] = ((1 << copies[task]) - 1) << first
        first += copies[task]
    return first - _matching([reach[task] for task in reach for _ in range(copies[task])])


def _matching(choices: Sequence[int]) -> int:
    """The size of a largest matching: each number with one bit of its choices, no bit twice (Kuhn)."""
    owner: dict[int, int] = {}
    return sum(_finds_one(number, choices, owner) for number in range(len(choices)))


def _finds_one(start: int, choices: Sequence[int], owner: dict[int, int]) -> bool:
    """A bit for one more, others moving on to bits of theirs if they must. No recursion: the way can be long."""
    unseen = -1
    way = [(start, -1)]
    """Who looks, and the bit of theirs that the one before would take."""
    while way:
        left, _ = way[-1]
        low = choices[left] & unseen
        low &= -low
        if not low:
            way.pop()
            continue
        unseen &= ~low
        bit = low.bit_length() - 1
        if bit in owner:
            way.append((owner[bit], bit))
            continue
        while way:
            left, given_up = way.pop()
            owner[bit], bit = left, given_up
        return True
    return False
