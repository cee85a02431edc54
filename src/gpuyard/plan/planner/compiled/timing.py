"""Times a plan: an assignment and an order become a plan in which every call starts as early as the rules allow.

Calls are taken in a given order in which no call comes before one it waits for; on each GPU they run in that order. A
call starts when three conditions hold:

    its request          earliest_s
    its dependencies     the last of their ends
    its GPUs             each: the end of the previous call there, then the switch if the model is not loaded;
                         at the start of the plan a GPU may be busy for a while, and hold a model

so a switch overlaps with the wait of the call for its dependencies (preloading). No call could start earlier without a
change of the order or the assignment. Cost: one step per call, edge and GPU of a group.

The state of a GPU is a stamp per model: when it was last used there, 0 if it is not on the GPU. With one resident model
there is one stamp. With many (`Problem.multi_model`) models stay as long as the memory suffices, and the one with
the oldest stamp is evicted first: each eviction costs its `unload_s`, then the new model its `load_s`.

With `Problem.preload` a GPU may load its next model while it runs calls of the current one (`preloading`).

Of two calls of no length that a GPU runs at the same instant with different models, the second starts at the next
floating-point number. So the starts of a plan state the order of the calls on each GPU, which its loads depend on.
"""

from typing import Any, Final

import numpy as np

from gpuyard.plan.planner.compiled.jit import compiled
from gpuyard.plan.planner.compiled.preloading import TOLERANCE_GB, switched, switched_with_many
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Floats, Ints, Problem

# How GPUs hold and load models: a sum of these.
MANY: Final = 1
PRELOAD: Final = 2


def timed(problem: Problem, gpu: Ints, order: Ints, seconds: Floats | None = None) -> Plan:
    """Return the plan in which call i runs on the group that starts at `gpu[i]`, in the given order.

    `seconds`: the duration of each call on its group; None: that at full speed.
    """
    calls = problem.calls
    took = seconds_on(problem, gpu) if seconds is None else seconds
    start = starts(
        np.ascontiguousarray(order, dtype=np.int32),
        np.ascontiguousarray(gpu, dtype=np.int32),
        took,
        calls.model,
        calls.earliest_s,
        calls.before_at,
        calls.before,
        problem.held_first,
        problem.free_first,
        *switching(problem),
    )
    return Plan(np.array(gpu, dtype=np.int32), start, start + took)


def seconds_on(problem: Problem, gpu: Ints) -> Floats:
    """Return the duration of each call on its group at full speed."""
    seconds: Floats = problem.calls.seconds / problem.group_speed[problem.calls.model, gpu]
    return seconds


def order_of(problem: Problem, plan: Plan) -> Ints:
    """Return the calls of a plan by start; of calls that start together, those of no length and predecessors come first."""
    calls = problem.calls
    rank = ranks(calls.before_at, calls.after_at, calls.after)
    lasts = plan.end > plan.start
    if not lasts.all():
        order = np.lexsort((rank, lasts, plan.start)).astype(np.int32)
        place = np.empty(len(order), dtype=np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        if (np.repeat(place, np.diff(calls.before_at)) > place[calls.before]).all():
            return order
    return np.lexsort((rank, plan.start)).astype(np.int32)


@compiled
def ranks(before_at: Ints, after_at: Ints, after: Ints) -> Ints:
    """Number the calls so that each is above its predecessors."""
    waits_for = before_at[1:] - before_at[:-1]
    rank = np.zeros(len(waits_for), dtype=np.int32)
    ready = np.empty(len(waits_for), dtype=np.int32)
    known = 0
    for call in range(len(waits_for)):
        if waits_for[call] == 0:
            ready[known] = call
            known += 1
    turn = 0
    while turn < known:
        call = ready[turn]
        rank[call] = turn
        turn += 1
        for edge in range(after_at[call], after_at[call + 1]):
            waits_for[after[edge]] -= 1
            if waits_for[after[edge]] == 0:
                ready[known] = after[edge]
                known += 1
    return rank


def switching(problem: Problem) -> tuple[Any, ...]:
    """Return the switch parameters of the compiled loops: widths, loads, unloads, sizes, memory, how."""
    return (
        problem.width,
        problem.load,
        np.array([m.unload_s for m in problem.models], dtype=np.float64),
        np.array([m.memory_gb for m in problem.models], dtype=np.float64),
        np.array([g.memory_gb for g in problem.gpus], dtype=np.float64),
        MANY * problem.multi_model + PRELOAD * problem.preload,
    )


def least_switch(problem: Problem) -> Floats:
    """Return the least part of each switch time that delays calls if GPUs preload: none if both models fit somewhere."""
    size = np.array([m.memory_gb for m in problem.models], dtype=np.float64)
    most = max((g.memory_gb for g in problem.gpus), default=0.0)
    table = problem.switch.copy()
    table[:-1][size[:, None] + size[None, :] <= most + TOLERANCE_GB] = 0.0
    return table


@compiled
def starts(
    order: Ints,
    gpu: Ints,
    seconds: Floats,
    model: Ints,
    earliest: Floats,
    before_at: Ints,
    before: Ints,
    held: Ints,
    free_first: Floats,
    width: Ints,
    load: Floats,
    unload: Floats,
    size: Floats,
    room: Floats,
    how: int,
) -> Floats:
    """Return when each call starts."""
    start = np.zeros(len(order))
    end = np.zeros(len(order))
    free = free_first.copy()
    copied = free_first.copy()
    current = held.copy()
    started = np.full(len(room), -np.inf)
    many = (how & MANY) != 0
    stamp = np.zeros((len(room), len(width)), dtype=np.int64)
    for g in range(len(room)):
        if held[g] >= 0:
            stamp[g, held[g]] = 1
    for turn in range(len(order)):
        call = order[turn]
        m = model[call]
        first, beyond = gpu[call], gpu[call] + width[m]
        at = earliest[call]
        for edge in range(before_at[call], before_at[call + 1]):
            at = max(at, end[before[edge]])
        for g in range(first, beyond):
            if how & PRELOAD == 0:
                at = max(at, free[g] + _make_ready(stamp[g], m, load, unload, size, room[g], many))
                stamp[g, m] = turn + 2
                continue
            if many:
                ready, copied[g] = switched_with_many(
                    stamp[g], turn + 2, current[g], m, free[g], copied[g], load, unload, size, room[g]
                )
            else:
                ready, copied[g] = switched(current[g], m, free[g], copied[g], load, unload, size, room[g])
            at = max(at, ready)
        if at + seconds[call] == at:
            for g in range(first, beyond):
                if current[g] != m and started[g] >= at:
                    at = np.nextafter(started[g], np.inf)
        start[call] = at
        end[call] = at + seconds[call]
        for g in range(first, beyond):
            free[g] = end[call]
            started[g] = at
            current[g] = m
    return start


@compiled
def _make_ready(stamp: Any, model: int, load: Floats, unload: Floats, size: Floats, room: float, many: bool) -> float:
    """Evict models as needed; return the seconds until the model is on the GPU."""
    if stamp[model] > 0:
        return 0.0
    taken = size[model]
    for other in range(len(stamp)):
        if stamp[other] > 0:
            taken += size[other]
    seconds: float = load[model]
    while True:
        oldest = -1
        for other in range(len(stamp)):
            if stamp[other] > 0 and (oldest < 0 or stamp[other] < stamp[oldest]):
                oldest = other
        if oldest < 0 or (many and taken <= room + 1e-9):
            return seconds
        seconds += unload[oldest]
        taken -= size[oldest]
        stamp[oldest] = 0
