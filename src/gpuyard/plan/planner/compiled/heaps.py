"""Two binary heaps, for events by time and for waiting calls by key, used by the simulations of lists and of sessions.

A heap is the first `many` entries of an array; if an array has several heaps, those from `base` on. The caller keeps
the count.
"""

from typing import Any, Final

import numpy as np

from gpuyard.plan.planner.compiled.jit import njit_noref

EVENT: Final = np.dtype([("at", np.float64), ("who", np.int64)])
"""An event at an instant; the caller defines the meaning of `who`. At equal instants the smaller `who` comes first."""


@njit_noref
def push_event(events: Any, many: int, at: float, who: int) -> None:
    """Add an event to a heap of `many` events."""
    i = many
    while i > 0:
        up = (i - 1) >> 1
        if events[up].at < at or (events[up].at == at and events[up].who <= who):
            break
        events[i].at = events[up].at
        events[i].who = events[up].who
        i = up
    events[i].at = at
    events[i].who = who


@njit_noref
def pop_event(events: Any, many: int) -> tuple[float, Any]:
    """Remove the next event from a heap of `many` events; return its time and `who`."""
    first_at, first_who = events[0].at, events[0].who
    n = many - 1
    at, who = events[n].at, events[n].who
    i = 0
    while True:
        c = 2 * i + 1
        if c >= n:
            break
        if c + 1 < n and (
            events[c + 1].at < events[c].at or (events[c + 1].at == events[c].at and events[c + 1].who < events[c].who)
        ):
            c += 1
        if at < events[c].at or (at == events[c].at and who <= events[c].who):
            break
        events[i].at = events[c].at
        events[i].who = events[c].who
        i = c
    events[i].at = at
    events[i].who = who
    return first_at, first_who


@njit_noref
def _goes_before(key: Any, one: int, other: int, by_number: bool) -> Any:
    """Whether one call comes before the other: by key; at equal keys by number if `by_number`, else neither."""
    return key[one] < key[other] or (by_number and key[one] == key[other] and one < other)


@njit_noref
def push_call(heap: Any, base: int, many: int, key: Any, call: int, by_number: bool) -> None:
    """Add a call to a heap of `many` calls."""
    i = many
    while i > 0:
        up = (i - 1) >> 1
        other = heap[base + up]
        if not _goes_before(key, call, other, by_number):
            break
        heap[base + i] = other
        i = up
    heap[base + i] = call


@njit_noref
def pop_call(heap: Any, base: int, many: int, key: Any, by_number: bool) -> Any:
    """Remove the call with the smallest key from a heap of `many` calls and return it."""
    first = heap[base]
    n = many - 1
    call = heap[base + n]
    i = 0
    while True:
        c = 2 * i + 1
        if c >= n:
            break
        a = heap[base + c]
        if c + 1 < n:
            b = heap[base + c + 1]
            if _goes_before(key, b, a, by_number):
                c += 1
                a = b
        if not _goes_before(key, a, call, by_number):
            break
        heap[base + i] = a
        i = c
    heap[base + i] = call
    return first
