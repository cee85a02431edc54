"""Counts broken promises from the journal, the acknowledged submissions and what the tasks have written about themselves."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.two_schedulers.faults import KINDS, Fault
from gpuyard.core.domain import events
from gpuyard.core.domain.values import TaskStatus
from gpuyard.core.journal.records import Record


class Line(NamedTuple):
    """What a task has written about itself."""

    what: str
    at: float
    task: int
    attempt: int
    node: str
    gpus: str


def lines_of(ledger: Path) -> list[Line]:
    """Read what the tasks have written."""
    found = []
    for line in ledger.read_text().splitlines():
        what, at, task, attempt, node, gpus = line.split()
        found.append(Line(what, float(at), int(task), int(attempt), node, gpus))
    return found


def broken_promises(records: list[Record], acknowledged: dict[str, int], lines: list[Line]) -> dict[str, list[str]]:
    """Return the broken promises by kind, one sentence each."""
    ends, names, over = Counter[int](), defaultdict[str, set[int]](set), Counter[tuple[int, int]]()
    started, failed, twice = Counter[tuple[int, int]](), [], []
    users: dict[tuple[str, int], tuple[int, int]] = {}
    places: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for record in records:
        match record.event:
            case events.TaskSubmitted(task, spec):
                names[spec.name].add(task)
            case events.TaskPlaced(task, attempt, placement):
                places[task, attempt] = [(part.node, gpu) for part in placement.slices for gpu in part.gpus]
                for gpu in places[task, attempt]:
                    if gpu in users:
                        twice.append(f"event {record.seq}: GPU {gpu} is given to {task}.{attempt} and has {users[gpu]}")
                    users[gpu] = (task, attempt)
            case events.AttemptStarted(task, attempt):
                started[task, attempt] += 1
            case events.AttemptEnded(task, attempt):
                over[task, attempt] += 1
                for gpu in places.get((task, attempt), []):
                    if users.get(gpu) == (task, attempt):
                        del users[gpu]
            case events.TaskEnded(task, status):
                ends[task] += 1
                if status is not TaskStatus.SUCCESS:
                    failed.append(f"task {task} ended with {status.value}")
            case _:
                pass
    begun = Counter((line.task, line.attempt) for line in lines if line.what == "begin")
    return {
        "acknowledged and lost": [
            f"{name} is task {task}, which {'never ended' if task in names[name] else 'is not in the journal'}"
            for name, task in acknowledged.items()
            if not ends[task] or task not in names[name]
        ],
        "submitted twice": [f"{name} is tasks {sorted(tasks)}" for name, tasks in names.items() if len(tasks) > 1],
        "never ended": [f"task {task}" for tasks in names.values() for task in tasks if not ends[task]],
        "ended twice": [f"task {task} ended {times} times" for task, times in ends.items() if times > 1],
        "attempt ended twice": [f"attempt {it} ended {times} times" for it, times in over.items() if times > 1],
        "attempt recorded as started twice": [f"attempt {it}: {times}" for it, times in started.items() if times > 1],
        "attempt started twice": [f"attempt {it} began {times} times" for it, times in begun.items() if times > 1],
        "failed": failed,
        "GPU assigned twice": twice,
        "GPU used twice": _used_twice(lines),
    }


def _used_twice(lines: list[Line]) -> list[str]:
    """Compare when the processes of tasks have used each GPU."""
    ended = {(line.task, line.attempt): line.at for line in lines if line.what == "end"}
    uses: dict[tuple[str, str], list[tuple[float, float, int, int]]] = defaultdict(list)
    for line in lines:
        if line.what == "begin":
            end = ended.get((line.task, line.attempt), line.at)
            for gpu in line.gpus.split(","):
                uses[line.node, gpu].append((line.at, end, line.task, line.attempt))
    return [
        f"GPU {gpu}: {one} and {other}"
        for gpu, found in uses.items()
        for one, other in pairwise(sorted(found))
        if one[1] > other[0] + 0.005  # the clock has steps of 0.01 s
    ]


def find_starts(faults: list[Fault], records: list[Record], acknowledged: dict[str, int], lines: list[Line]) -> None:
    """Find for every fault when the next task has started."""
    began = {(line.task, line.attempt): line.at for line in lines if line.what == "begin"}
    all_began = sorted(began.values())
    for fault, following in zip(faults, [*faults[1:], None], strict=True):
        if fault.leads is None:  # the same scheduler goes on
            probe = acknowledged.get(fault.probe)
            found = [at for (task, _), at in began.items() if task == probe]
        else:
            found = [at for key in _placed_after(fault.epoch, records) if (at := began.get(key)) is not None]
        first = min((at for at in found if at > fault.at), default=None)
        fault.starts = None if first is None else first - fault.at
        end = following.at if following else fault.over
        within = [at for at in all_began if fault.at - 1 <= at <= end]
        fault.gap = max((two - one for one, two in pairwise([*within, end]) if two > fault.at), default=None)


def _placed_after(epoch: int, records: list[Record]) -> Iterator[tuple[int, int]]:
    """Task and attempt of each placement in later epochs."""
    is_later = False
    for record in records:
        match record.event:
            case events.EpochBegan(began):
                is_later = is_later or began > epoch
            case events.TaskPlaced(task, attempt) if is_later:
                yield task, attempt
            case _:
                pass


def summary(faults: list[Fault]) -> list[dict[str, Any]]:
    """Return the times of each kind of fault."""
    rows = []
    for kind in KINDS:
        found = [fault for fault in faults if fault.kind == kind]
        if not found:
            continue
        row: dict[str, Any] = {
            "kind": kind,
            "faults": len(found),
            "take_overs": sum(fault.leads is not None for fault in found),
        }
        for name in ("leads", "starts", "gap", "again"):
            values = [value for fault in found if (value := getattr(fault, name)) is not None]
            row[f"{name}_p50"] = round(median(values), 2) if values else None
            row[f"{name}_worst"] = round(max(values), 2) if values else None
        rows.append(row)
    return rows
