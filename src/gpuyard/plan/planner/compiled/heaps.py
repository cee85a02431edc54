"""Two binary heaps: what happens, by time, and calls that wait, by key. Both simulations, of lists and of sessions, use them.

A heap is the first `many` entries of an array, of several heaps in one array those from `base` on. Who calls counts.
"""

from typing import Any, Final

import numpy as np

from gpuyard.plan.planner.compiled.jit import njit_noref

EVENT: Final = np.dtype([("at", np.float64), ("who", np.int64)])
"""Something that happens at an instant; what `who` means is up to the caller. Of two at one instant the smaller comes first."""


@njit_noref
def push_event(events: Any, many: int, at: float, who: int) -> None:
    """One more, into a heap of so many."""
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
    """What happens next, and when, out of a heap of so many."""
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
    """The smaller key does; of equal keys the smaller number, where that is asked for, or neither."""
    return key[one] < key[other] or (by_number and key[one] == key[other] and one < other)


@njit_noref
def push_call(heap: Any, base: int, many: int, key: Any, call: int, by_number: bool) -> None:
    """One more, into a heap of so many."""
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
    """The call with the smallest key, out of a heap of so many."""
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
