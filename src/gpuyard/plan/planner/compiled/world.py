"""Everything there is while a list schedule is made: calls, GPUs, the lines before the models, the clock, and who rests.

GPUs that rest are kept in lists by what they hold, calls that wait in a heap for each model, and what comes in a heap by
time; so each step costs the logarithm of how many there are, or nothing.
"""

from typing import Any, Final, NamedTuple

import numpy as np

from gpuyard.plan.planner.compiled import heaps
from gpuyard.plan.planner.compiled.jit import njit_noref

NOBODY: Final = -1

_i, _f, _s = np.int64, np.float64, np.int32

JOB: Final = np.dtype([
    ("key", _f), ("seconds", _f), ("rank", _f), ("earliest", _f),
    ("model", _s), ("unstarted", _s), ("unended", _s), ("unused", _s),
])  # fmt: skip
"""A call; how many of those before it have not begun, and have not ended."""

CARD: Final = np.dtype([
    ("hold", _i), ("kind", _i), ("free_at", _f), ("running", _i), ("idle", _i), ("next", _i), ("prev", _i),
    ("fresh", _i), ("session", _i), ("claim", _i), ("formed", _i), ("waiting", _i), ("loaded_at", _f),
])  # fmt: skip
"""A GPU. `fresh`: what it holds or loads has not been called yet. `session`: the first GPU of the wide group it is in;
`claim`: of the one it will be in. A first GPU speaks for its group: what it is `formed` for, how many members do not load
yet, and when the last will have loaded."""

LINE: Final = np.dtype([
    ("width", _i), ("groups", _i), ("many", _i), ("at", _i), ("ready", _f), ("soon", _f), ("later", _f),
])  # fmt: skip
"""A model: the calls that wait for it are a heap of `many` from `at` on."""

CELL: Final = np.dtype([("first", _i), ("many", _i)])
"""GPUs that rest. First come the single ones, by what they hold (nothing: the last) and by kind; then, a cell for each
model, the wide groups, by their first GPU."""

TALLY: Final = np.dtype(
    [("events", _i), ("idle", _i), ("models", _i), ("kinds", _i), ("must", _i), ("left", _f), ("a_gpu", _f)]
)
"""`must`: nothing happens unless a GPU changes. `left`: GPU-seconds of calls that have not begun; `a_gpu`: so much for each GPU."""


class PlanWorld(NamedTuple):
    """Everything there is while a plan is made."""

    after_at: Any
    after: Any
    switch: Any
    may_begin: Any
    group_speed: Any
    jobs: Any
    cards: Any
    lines: Any
    cells: Any
    heap: Any
    events: Any
    tally: Any
    gpu: Any
    start: Any


# Numbers of calls, GPUs and models are made int64 wherever they come from (`np.int64(…)`): every other type that a function
# is called with, and a constant is one, would be compiled once more.


# --- events by time ---------------------------------------------------------------------------------------------------


@njit_noref
def push_event(w: Any, at: float, who: Any) -> None:
    """Something happens at an instant: to a GPU, or to −1 − a call whose request comes."""
    many = w.tally[0].events
    w.tally[0].events = many + 1
    heaps.push_event(w.events, many, at, who)


@njit_noref
def pop_event(w: Any) -> tuple[float, Any]:
    """What happens next, and when."""
    many = w.tally[0].events
    w.tally[0].events = many - 1
    return heaps.pop_event(w.events, many)


# --- waiting calls ----------------------------------------------------------------------------------------------------


@njit_noref
def push_ready(w: Any, m: Any, call: Any) -> None:
    """A call waits in the line of its model."""
    line = w.lines[m]
    heaps.push_call(w.heap, line.at, line.many, w.jobs.key, call, True)
    line.many += 1
    line.ready += w.jobs[call].seconds


@njit_noref
def pop_ready(w: Any, m: Any) -> Any:
    """The most urgent call of a line, which waits no longer."""
    line = w.lines[m]
    first = np.int64(heaps.pop_call(w.heap, line.at, line.many, w.jobs.key, True))
    line.many -= 1
    line.ready -= w.jobs[first].seconds
    return first


# --- idle GPUs --------------------------------------------------------------------------------------------------------


@njit_noref
def _cell(w: Any, g: Any) -> Any:
    hold = w.cards[g].hold
    models, kinds = w.tally[0].models, w.tally[0].kinds
    if w.cards[g].session != NOBODY:
        return w.cells[(models + 1) * kinds + hold]
    if hold == NOBODY:
        hold = models
    return w.cells[hold * kinds + w.cards[g].kind]


@njit_noref
def mark_idle(w: Any, g: Any) -> None:
    """A GPU, or the wide group it is the first of, has nothing to do."""
    cards, cell = w.cards, _cell(w, g)
    cards[g].idle = 1
    cards[g].next = cell.first
    cards[g].prev = NOBODY
    if cell.first != NOBODY:
        cards[cell.first].prev = g
    cell.first = g
    cell.many += 1
    w.tally[0].idle += 1


@njit_noref
def mark_busy(w: Any, g: Any) -> None:
    """It has something to do again."""
    cards, cell = w.cards, _cell(w, g)
    after, before = cards[g].next, cards[g].prev
    if before == NOBODY:
        cell.first = after
    else:
        cards[before].next = after
    if after != NOBODY:
        cards[after].prev = before
    cards[g].idle = 0
    cell.many -= 1
    w.tally[0].idle -= 1
