"""The state of a list schedule in the making: calls, GPUs, the queues of the models, events, and idle GPUs.

Idle GPUs are kept in lists by the model they hold, waiting calls in a heap for each model, and events in a heap by
time; so each step takes logarithmic or constant time.
"""

from typing import Any, Final, NamedTuple

import numpy as np

from gpuyard.plan.planner.compiled import heaps
from gpuyard.plan.planner.compiled.jit import njit_noref

NONE: Final = -1

_i, _f, _s = np.int64, np.float64, np.int32

JOB: Final = np.dtype([
    ("key", _f), ("seconds", _f), ("rank", _f), ("earliest", _f),
    ("model", _s), ("unstarted", _s), ("unended", _s), ("unused", _s),
])  # fmt: skip
"""A call, with the number of its predecessors that have not started, and of those that have not ended."""

GPU_STATE: Final = np.dtype([
    ("hold", _i), ("kind", _i), ("free_at", _f), ("running", _i), ("idle", _i), ("next", _i), ("prev", _i),
    ("fresh", _i), ("session", _i), ("claim", _i), ("formed", _i), ("waiting", _i), ("loaded_at", _f), ("copied_at", _f),
])  # fmt: skip
"""A GPU. `fresh`: the model it holds or loads has not been called yet. `session`: the first GPU of the wide group it is
in; `claim`: of the one it will be in. The first GPU keeps the data of its group: the model it is `formed` for, the
number of members that do not load yet (`waiting`), and when the last will have loaded. `copied_at`: from when on it can
load its next model beside its calls, if it may (`preload`)."""

LINE: Final = np.dtype([
    ("width", _i), ("groups", _i), ("many", _i), ("at", _i), ("ready", _f), ("soon", _f), ("later", _f),
])  # fmt: skip
"""A model: the calls that wait for it are a heap of `many` entries from `at` on."""

CELL: Final = np.dtype([("first", _i), ("many", _i)])
"""A list of idle GPUs. The first cells are single GPUs, by the model they hold (none: the last) and by kind; then
follows a cell for each model with its wide groups, by their first GPU."""

COUNTERS: Final = np.dtype(
    [("events", _i), ("idle", _i), ("models", _i), ("kinds", _i), ("must", _i), ("left", _f), ("a_gpu", _f)]
)
"""`must`: nothing happens unless a GPU switches. `left`: GPU-seconds of calls not started; `a_gpu`: that per GPU."""


class DecodingState(NamedTuple):
    """All arrays of a list schedule in the making."""

    after_at: Any
    after: Any
    switch: Any
    may_begin: Any
    group_speed: Any
    copying: Any
    """For `preload`: seconds to copy before and after a switch to or from each model, sizes of models, memory of GPUs;
    empty if GPUs do not preload."""
    jobs: Any
    gpu_states: Any
    lines: Any
    cells: Any
    heap: Any
    events: Any
    counters: Any
    gpu: Any
    start: Any


# Numbers of calls, GPUs and models are converted to int64 everywhere (`np.int64(…)`): a function is compiled again for
# every other type it is called with, and a constant has another type.


# --- events by time ---------------------------------------------------------------------------------------------------


@njit_noref
def push_event(w: Any, at: float, who: Any) -> None:
    """Add an event: for a GPU, or for a call whose request arrives (−1 − call)."""
    many = w.counters[0].events
    w.counters[0].events = many + 1
    heaps.push_event(w.events, many, at, who)


@njit_noref
def pop_event(w: Any) -> tuple[float, Any]:
    """Remove the next event; return its time and subject."""
    many = w.counters[0].events
    w.counters[0].events = many - 1
    return heaps.pop_event(w.events, many)


# --- waiting calls ----------------------------------------------------------------------------------------------------


@njit_noref
def push_ready(w: Any, m: Any, call: Any) -> None:
    """Add a call to the queue of its model."""
    line = w.lines[m]
    heaps.push_call(w.heap, line.at, line.many, w.jobs.key, call, True)
    line.many += 1
    line.ready += w.jobs[call].seconds


@njit_noref
def pop_ready(w: Any, m: Any) -> Any:
    """Remove the most urgent call of a queue and return it."""
    line = w.lines[m]
    first = np.int64(heaps.pop_call(w.heap, line.at, line.many, w.jobs.key, True))
    line.many -= 1
    line.ready -= w.jobs[first].seconds
    return first


# --- idle GPUs --------------------------------------------------------------------------------------------------------


@njit_noref
def _cell(w: Any, g: Any) -> Any:
    hold = w.gpu_states[g].hold
    models, kinds = w.counters[0].models, w.counters[0].kinds
    if w.gpu_states[g].session != NONE:
        return w.cells[(models + 1) * kinds + hold]
    if hold == NONE:
        hold = models
    return w.cells[hold * kinds + w.gpu_states[g].kind]


@njit_noref
def mark_idle(w: Any, g: Any) -> None:
    """Mark a GPU, or the wide group that starts at it, as idle."""
    gpu_states, cell = w.gpu_states, _cell(w, g)
    gpu_states[g].idle = 1
    gpu_states[g].next = cell.first
    gpu_states[g].prev = NONE
    if cell.first != NONE:
        gpu_states[cell.first].prev = g
    cell.first = g
    cell.many += 1
    w.counters[0].idle += 1


@njit_noref
def mark_busy(w: Any, g: Any) -> None:
    """Mark a GPU, or the wide group that starts at it, as busy."""
    gpu_states, cell = w.gpu_states, _cell(w, g)
    after, before = gpu_states[g].next, gpu_states[g].prev
    if before == NONE:
        cell.first = after
    else:
        gpu_states[before].next = after
    if after != NONE:
        gpu_states[after].prev = before
    gpu_states[g].idle = 0
    cell.many -= 1
    w.counters[0].idle -= 1
