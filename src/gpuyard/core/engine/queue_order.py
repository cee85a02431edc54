"""The order of the whole queue, and when its first tasks are expected to start.

`parts_of_queue` is quick, because it copies heaps and sorts nothing: the caller sorts them where that takes no time from
decisions. `first_starts` gives the first tasks of the queue their nodes one after the other, as `explain` does for one of
them; here one pass serves all.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from gpuyard.core.domain.values import TaskId, Value
from gpuyard.core.engine.explain import (
    AHEAD,
    Revise,
    ages_of_running,
    estimated_now,
    found_room_at,
    pretended_reservation,
    quota_frees_at,
)
from gpuyard.core.engine.phases import Waiting
from gpuyard.core.engine.state import Reservation, State
from gpuyard.core.engine.task import UNKNOWN, OpenTask
from gpuyard.core.engine.waiting.queue import Entry, Group
from gpuyard.core.engine.waiting.sort_key import sort_key


class QueuePart(Value, frozen=True):
    """The waiting tasks of one group, in no order. Within a group they are ordered by key and number."""

    group: Group
    before: tuple[float, float]
    """What orders groups: smaller goes first."""
    entries: list[Entry]


def parts_of_queue(state: State, now: float) -> list[QueuePart]:
    """Return all groups of the queue that have tasks."""
    at, parts = max(state.now, now), []
    for line in state.queue.lines.values():
        for group in line.groups.values():
            top = group.top()
            if top is not None:
                borrowing, tenant_key, _, _ = sort_key(state, top[2], at)
                parts.append(QueuePart(group, (borrowing, tenant_key), group.heap.copy()))
    return parts


def entries_in_order(
    parts: Iterable[QueuePart], sort: Callable[[list[TaskId], Callable[[TaskId], Any]], list[TaskId]]
) -> Iterator[TaskId]:
    """Yield the tasks of these parts in queue order; those that have left the queue meanwhile are left out."""
    by_prefix: dict[tuple[float, float], list[QueuePart]] = {}
    for part in parts:
        by_prefix.setdefault(part.before, []).append(part)
    for prefix in sorted(by_prefix):
        found = {
            number: key
            for part in by_prefix[prefix]
            for key, number, task in part.entries
            if task.group is part.group and task.key == key
        }
        numbers = sorted(found)
        yield from sort(numbers, found.__getitem__)  # stable: equal keys stay ordered by number


def first_starts(
    state: State,
    tasks: Sequence[TaskId],
    now: float,
    revise: Revise | None = None,
    keep_going: Callable[[], bool] = lambda: True,
) -> dict[TaskId, float]:
    """Return when the first tasks of the queue are likely to start; tasks whose start is unknown are left out.

    `tasks` is the beginning of the queue in its order; at most `AHEAD` are considered, and no more once `keep_going`
    returns False.
    """
    at = max(state.now, now)
    ages = ages_of_running(state, at)
    starts: dict[TaskId, float] = {}
    ahead: list[OpenTask] = []
    reservations: list[Reservation] = []
    for number in tasks[:AHEAD]:
        known = state.tasks.get(number)
        if known is None or known.group is None or not isinstance(known.phase, Waiting) or not keep_going():
            continue
        task, shape = estimated_now(known, revise, ages), known.group.line.shape
        shape.refresh(state.index)
        if not shape.eligible:
            continue
        promised = state.reservations.get(number)
        if promised is not None and promised.claim:
            starts[number] = at
        else:
            when = quota_frees_at(state, task, ahead, at, "likely")
            found = found_room_at(state, task, shape, at, reservations, "likely") if when != UNKNOWN else None
            if found is not None:
                starts[number] = max(found, when, known.phase.not_before)
        reservations += pretended_reservation(state, task, shape, reservations, at, "likely")
        ahead.append(task)
    return starts
