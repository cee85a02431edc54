"""The plan that the search works on: linked lists in which a call is removed and inserted elsewhere cheaply.

A plan is an order of all calls and a GPU for each. The order is kept sorted by start, so the same position in the order
on another GPU means the same time there. On each GPU (on each *lane* of a call: a call of a model of four GPUs has
four) calls are linked to the previous and the next one:

    GPU 0   ── a ── a ──╌╌── b ── b ── b ──        ╌╌ a switch
    GPU 1   ── c ──────── c ──╌╌── a ──

Nothing here computes times; the calls whose start may have changed are returned in `touched`.
"""

from typing import Any, Final, NamedTuple

import numpy as np

from gpuyard.plan.planner.compiled.jit import compiled, njit_noref
from gpuyard.plan.planner.compiled.timing import least_switch, seconds_on, starts, switching
from gpuyard.plan.planner.problem import Flags, Floats, Ints, Problem

# Columns of `whole`: one row per call, and one more for the ends of lists.
MODEL, WIDTH, BEFORE, AFTER, LANE, GPU, POS = range(7)
# Columns of `real`: one row per call.
SECONDS, EARLIEST, HERE, START, END, TAIL = range(6)
# Columns of `links`: one row per lane of a call; and of `ends`: one row per GPU.
PREV, NEXT = range(2)
FIRST, LAST = range(2)

NONE: Final = -1


class PlanBuffer(NamedTuple):
    """All arrays that the compiled search uses."""

    whole: Any
    real: Any
    before: Ints
    after: Ints
    order: Ints
    links: Any
    ends: Any
    held_first: Ints
    free_first: Floats
    switch: Floats
    """The switch times; with `preload` the least part of them that delays calls."""
    may_begin: Flags
    group_speed: Floats
    late_at: Ints
    """`late_calls[late_at[i]:late_at[i + 1]]` must end by `deadline[i]`, or `late_weight[i]` is counted."""
    late_calls: Ints
    deadline: Floats
    late_weight: Floats
    rules: Any
    """The switch rules of `timing`. Problems whose GPUs hold many models are always timed as a whole."""
    copied: Floats
    """For each lane, from when on its GPU can load its next model beside the calls (`preloading`)."""
    log_copied: Floats
    dirty: Any
    touched: Ints
    log: Ints
    log_real: Any
    todo: Any
    undo: Any
    run: Ints
    counts: Any
    figures: Floats
    source: Any
    best_gpu: Ints
    best_order: Ints


def make_buffer(problem: Problem, gpu: Ints, order: Ints, source: Any) -> PlanBuffer:
    """Load a plan into a buffer."""
    calls = problem.calls
    count, lanes = len(calls), int(problem.width[calls.model].sum())
    whole = np.zeros((count + 1, 8), dtype=np.int32)
    whole[:count, MODEL] = calls.model
    whole[:count, WIDTH] = problem.width[calls.model]
    whole[:, BEFORE] = calls.before_at
    whole[:, AFTER] = calls.after_at
    whole[1:, LANE] = np.cumsum(problem.width[calls.model])
    whole[:count, GPU] = gpu
    real = np.zeros((count, 6))
    real[:, SECONDS] = calls.seconds
    real[:, EARLIEST] = calls.earliest_s
    real[:, HERE] = seconds_on(problem, gpu)
    made = PlanBuffer(
        whole,
        real,
        calls.before,
        calls.after,
        np.array(order, dtype=np.int32),
        np.full((lanes, 2), NONE, dtype=np.int32),
        np.full((len(problem.gpus), 2), NONE, dtype=np.int32),
        problem.held_first,
        problem.free_first,
        least_switch(problem) if problem.preload else problem.switch,
        problem.may_begin,
        problem.group_speed,
        *_deadlines(problem),
        switching(problem),
        np.zeros(lanes),
        np.zeros(lanes),
        np.zeros(count // 64 + 1, dtype=np.uint64),
        np.zeros(4 * lanes + count, dtype=np.int32),
        np.zeros(count, dtype=np.int32),
        np.zeros((count, 2)),
        np.zeros((count + 1, 4), dtype=np.int32),
        np.zeros((count + 1, 4), dtype=np.int32),
        np.zeros(count, dtype=np.int32),
        np.zeros(4, dtype=np.int64),
        np.zeros(6),
        source,
        np.array(gpu, dtype=np.int32),
        np.array(order, dtype=np.int32),
    )
    link_lanes(made)
    return made


def _deadlines(problem: Problem) -> tuple[Ints, Ints, Floats, Floats]:
    """Return the last calls of the requests with deadlines; a request of priority 100 counts as two of priority 0."""
    requests, calls = problem.requests, problem.calls
    some = np.flatnonzero(np.isfinite(requests.deadline_s))
    last = np.flatnonzero((calls.after_at[1:] == calls.after_at[:-1]) & np.isfinite(requests.deadline_s)[calls.request])
    at = np.searchsorted(calls.request[last], np.append(some, len(requests.ids)))
    weight = 1.0 + requests.priority[some] / 100.0
    return at.astype(np.int32), last.astype(np.int32), requests.deadline_s[some], weight


@compiled
def link_lanes(buffer: PlanBuffer) -> None:
    """Link the lanes and time all calls, by order and GPUs."""
    whole, real, ends, links = buffer.whole, buffer.real, buffer.ends, buffer.links
    ends[:] = NONE
    for place in range(len(buffer.order)):
        call = buffer.order[place]
        whole[call, POS] = place
        for lane in range(whole[call, WIDTH]):
            gpu = whole[call, GPU] + lane
            prev = ends[gpu, LAST]
            links[whole[call, LANE] + lane, PREV] = prev
            links[whole[call, LANE] + lane, NEXT] = NONE
            if prev == NONE:
                ends[gpu, FIRST] = call
            else:
                links[whole[prev, LANE] + gpu - whole[prev, GPU], NEXT] = call
            ends[gpu, LAST] = call
    full = starts(
        buffer.order,
        whole[: len(real), GPU],
        real[:, HERE],
        whole[: len(real), MODEL],
        real[:, EARLIEST],
        whole[:, BEFORE],
        buffer.before,
        buffer.held_first,
        buffer.free_first,
        *buffer.rules,
    )
    real[:, START] = full
    real[:, END] = full + real[:, HERE]


# --- changing the plan ------------------------------------------------------------------------------------------------


@njit_noref
def _join(whole: Any, links: Any, ends: Any, gpu: int, prev: int, after: int) -> None:
    """Link two calls on a GPU; NONE is the start or the end of the list."""
    if prev == NONE:
        ends[gpu, FIRST] = after
    else:
        links[whole[prev, LANE] + gpu - whole[prev, GPU], NEXT] = after
    if after == NONE:
        ends[gpu, LAST] = prev
    else:
        links[whole[after, LANE] + gpu - whole[after, GPU], PREV] = prev


@njit_noref
def last_before(whole: Any, order: Ints, ends: Any, gpu: int, place: int) -> Any:
    """Return the last call on a GPU before a position of the order."""
    call = ends[gpu, LAST]
    if call == NONE or whole[call, POS] < place:
        return call
    if whole[ends[gpu, FIRST], POS] >= place:
        return NONE
    i = place - 1
    call = order[i]
    while not (whole[call, GPU] <= gpu < whole[call, GPU] + whole[call, WIDTH]):
        i -= 1
        call = order[i]
    return call


@njit_noref
def after_on(whole: Any, links: Any, ends: Any, gpu: int, call: int) -> Any:
    """Return the call after this one on a GPU."""
    return ends[gpu, FIRST] if call == NONE else links[whole[call, LANE] + gpu - whole[call, GPU], NEXT]


@njit_noref
def relocate(
    whole: Any, real: Any, before: Ints, after: Ints, order: Ints, links: Any, ends: Any, group_speed: Floats,
    touched: Ints, many: int, call: int, to: int, place: int,
) -> int:  # fmt: skip
    """Remove a call and insert it on the group `to`, at a position of the order or as near as dependencies allow.

    The calls whose start may have changed are appended to `touched`; returns their number.
    """
    old, at, width = whole[call, POS], whole[call, LANE], whole[call, WIDTH]
    # Clamp the position between the predecessors and the successors; positions after `old` shift by one.
    for edge in range(whole[call, BEFORE], whole[call + 1, BEFORE]):
        place = max(place, whole[before[edge], POS] + (whole[before[edge], POS] < old))
    for edge in range(whole[call, AFTER], whole[call + 1, AFTER]):
        place = min(place, whole[after[edge], POS] - 1)
    for lane in range(width):
        follows = links[at + lane, NEXT]
        _join(whole, links, ends, whole[call, GPU] + lane, links[at + lane, PREV], follows)
        if follows != NONE:
            touched[many] = follows
            many += 1
    if place > old:
        for i in range(old, place):
            order[i] = order[i + 1]
            whole[order[i], POS] = i
    else:
        for i in range(old, place, -1):
            order[i] = order[i - 1]
            whole[order[i], POS] = i
    order[place] = call
    whole[call, POS] = place
    if to != whole[call, GPU]:
        whole[call, GPU] = to
        real[call, HERE] = real[call, SECONDS] / group_speed[whole[call, MODEL], to]
    for lane in range(width):
        prev = last_before(whole, order, ends, to + lane, place)
        follows = after_on(whole, links, ends, to + lane, prev)
        _join(whole, links, ends, to + lane, prev, call)
        _join(whole, links, ends, to + lane, call, follows)
        if follows != NONE:
            touched[many] = follows
            many += 1
    touched[many] = call
    return many + 1


@compiled
def swap_tails(
    whole: Any, real: Any, order: Ints, links: Any, ends: Any, group_speed: Floats, run: Ints, touched: Ints, swap: Any
) -> int:
    """Exchange all calls of two blocks of GPUs from a position of the order on. Doing it twice restores the plan.

    `swap`: the first GPU of each block, the position, the number of GPUs. No call may cross the edge of a block.
    """
    one, two, place, width = swap[0], swap[1], swap[2], swap[3]
    moved, many = 0, 0
    for lane in range(width):
        a, b = one + lane, two + lane
        prev_a, prev_b = last_before(whole, order, ends, a, place), last_before(whole, order, ends, b, place)
        next_a, next_b = after_on(whole, links, ends, a, prev_a), after_on(whole, links, ends, b, prev_b)
        for gpu, first in ((a, next_a), (b, next_b)):
            call = first
            if call != NONE:
                touched[many] = call
                many += 1
            while call != NONE:
                if whole[call, GPU] == gpu:
                    run[moved] = call
                    moved += 1
                call = after_on(whole, links, ends, gpu, call)
        last_a, last_b = ends[a, LAST], ends[b, LAST]
        if prev_a == NONE:
            ends[a, FIRST] = next_b
        else:
            links[whole[prev_a, LANE] + a - whole[prev_a, GPU], NEXT] = next_b
        if prev_b == NONE:
            ends[b, FIRST] = next_a
        else:
            links[whole[prev_b, LANE] + b - whole[prev_b, GPU], NEXT] = next_a
        if next_b != NONE:
            links[whole[next_b, LANE] + b - whole[next_b, GPU], PREV] = prev_a
        if next_a != NONE:
            links[whole[next_a, LANE] + a - whole[next_a, GPU], PREV] = prev_b
        ends[a, LAST] = prev_a if next_b == NONE else last_b
        ends[b, LAST] = prev_b if next_a == NONE else last_a
    for i in range(moved):
        call = run[i]
        to = whole[call, GPU] + (two - one if whole[call, GPU] < one + width and whole[call, GPU] >= one else one - two)
        whole[call, GPU] = to
        here = real[call, SECONDS] / group_speed[whole[call, MODEL], to]
        if here != real[call, HERE]:
            real[call, HERE] = here
            touched[many] = call
            many += 1
    return many
