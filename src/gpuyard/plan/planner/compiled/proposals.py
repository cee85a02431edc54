"""Proposes the next change of a plan: move a call or a session elsewhere, earlier or later, or exchange two.

Half of the time the change starts from a critical call, found by going back from the end of a GPU that ends late.
"""

from typing import Any, Final

from gpuyard.plan.planner.compiled.draws import below
from gpuyard.plan.planner.compiled.jit import compiled, njit_noref
from gpuyard.plan.planner.compiled.plan_buffer import (
    AFTER,
    BEFORE,
    EARLIEST,
    END,
    GPU,
    HERE,
    LANE,
    LAST,
    MODEL,
    NEXT,
    NONE,
    POS,
    PREV,
    SECONDS,
    START,
    TAIL,
    WIDTH,
    after_on,
    last_before,
)
from gpuyard.plan.planner.problem import Flags, Floats, Ints

# Columns of `todo`: which call, to which GPU, how, and next to which call or at which position.
CALL, TO, HOW, MARK = range(4)
# Where `todo` puts a call: at its position in the order, before or after another call, at a given position.
STAY, AHEAD, BEHIND, AT = range(4)

SWAP_TAILS: Final = -1
"""Returned instead of a number of calls: two blocks of GPUs exchange all later calls."""
LONGEST_RUN: Final = 500


@compiled
def propose(
    whole: Any, real: Any, before: Ints, order: Ints, links: Any, ends: Any, switch: Floats, may_begin: Flags,
    todo: Any, run: Ints, weights: Any, limit: float, source: Any,
) -> int:  # fmt: skip
    """Write a change to `todo`; return the number of calls that move (0: none), or SWAP_TAILS for blocks of GPUs."""
    calls, gpus = len(order), len(ends)
    chosen = below(source, weights[-1])
    kind = 0
    while chosen >= weights[kind]:
        kind += 1
    call = order[below(source, calls)]
    if below(source, 2) == 0:
        late = _critical(whole, real, before, links, ends, switch, below(source, calls // gpus + 2), source)
        call = call if late == NONE else late
    gpu, place = whole[call, GPU], whole[call, POS]
    reach = min(4 << below(source, 12), calls // 4 + 1)
    if kind == 0:  # next to a call of the same model
        other = _like(whole, order, call, reach, source)
        if other == NONE:
            return 0
        return _do(todo, 0, call, whole[other, GPU], AHEAD + below(source, 2), other)
    if kind == 1:  # to another group at the same time
        to = _other_group(may_begin, whole[call, MODEL], gpu, source)
        return 0 if to == NONE else _do(todo, 0, call, to, STAY, 0)
    if kind == 2:  # earlier or later
        to = max(0, min(calls - 1, place + below(source, 2 * reach + 1) - reach))
        return 0 if to == place else _do(todo, 0, call, gpu, AT, to)
    if kind == 3:  # exchange two calls of the same model
        other = _like(whole, order, call, reach, source)
        if other == NONE:
            return 0
        many = _do(todo, 0, call, whole[other, GPU], AT, whole[other, POS])
        return _do(todo, many, other, gpu, AT, place)
    if kind in {4, 5}:
        return _session_elsewhere(
            whole, real, order, links, ends, may_begin, todo, run, call, kind == 4, reach, limit, source
        )
    if kind == 6:
        return _session_earlier(whole, links, todo, run, call)
    return _tails_of_blocks(whole, links, ends, may_begin, todo, call, source)


@njit_noref
def _critical(
    whole: Any, real: Any, before: Ints, links: Any, ends: Any, switch: Floats, steps: int, source: Any
) -> int:
    """Return a critical call: from the end of a GPU that ends late, some steps back along what each call waited for.

    NONE if the sampled GPUs have no calls.
    """
    call = NONE
    for _ in range(3):
        gpu = below(source, len(ends))
        other = ends[gpu, LAST]
        if other != NONE and (call == NONE or real[other, END] > real[call, END]):
            call = other
    while call != NONE and steps > 0:
        steps -= 1
        start, reason = real[call, START], NONE
        for edge in range(whole[call, BEFORE], whole[call + 1, BEFORE]):
            if real[before[edge], END] == start:
                reason = before[edge]
        for lane in range(whole[call, WIDTH]):
            prev = links[whole[call, LANE] + lane, PREV]
            if prev != NONE and real[prev, END] + switch[whole[prev, MODEL], whole[call, MODEL]] == start:
                reason = prev
        if reason == NONE:
            break
        call = reason
    return call


@njit_noref
def _like(whole: Any, order: Ints, call: int, reach: int, source: Any) -> Any:
    """Return another call of the same model, searching from a random position within reach; NONE if none is near."""
    place = whole[call, POS] + below(source, 2 * reach + 1) - reach
    place = max(0, min(len(order) - 1, place))
    for _ in range(200):
        other = order[place]
        if other != call and whole[other, MODEL] == whole[call, MODEL]:
            return other
        place += 1
        if place == len(order):
            place = 0
    return NONE


@njit_noref
def _other_group(may_begin: Flags, model: int, than: int, source: Any) -> int:
    """Return another random group for a model; NONE if a few draws find none."""
    for _ in range(8):
        gpu = below(source, may_begin.shape[1])
        if may_begin[model, gpu] and gpu != than:
            return gpu
    return NONE


@njit_noref
def _seconds(real: Any, run: Ints, many: int) -> float:
    """Return the total duration of the calls of a run."""
    total = 0.0
    for i in range(many):
        total += real[run[i], HERE]
    return total


@njit_noref
def _run_around(whole: Any, links: Any, call: int, back: bool, forth: bool, run: Ints) -> int:
    """Collect the calls of the same model and group around one, in order; only up to it, or only from it on."""
    first = call
    gpu, model = whole[call, GPU], whole[call, MODEL]
    if back:
        prev = links[whole[first, LANE], PREV]
        while prev != NONE and whole[prev, MODEL] == model and whole[prev, GPU] == gpu:
            first = prev
            prev = links[whole[first, LANE], PREV]
    many = 0
    while first != NONE and whole[first, MODEL] == model and whole[first, GPU] == gpu:
        run[many] = first
        many += 1
        if first == call and not forth:
            break
        first = links[whole[first, LANE], NEXT]
    return many


@njit_noref
def _do(todo: Any, many: int, call: int, to: int, how: int, mark: int) -> int:
    todo[many, CALL] = call
    todo[many, TO] = to
    todo[many, HOW] = how
    todo[many, MARK] = mark
    return many + 1


@njit_noref
def _session_elsewhere(
    whole: Any, real: Any, order: Ints, links: Any, ends: Any, may_begin: Flags, todo: Any, run: Ints, call: int,
    beside_like: bool, reach: int, limit: float, source: Any,
) -> int:  # fmt: skip
    """Move a session, or its start or end, to another group: that of a call of the same model, or any."""
    gpu, part = whole[call, GPU], below(source, 4)
    many = _run_around(whole, links, call, part != 1, part != 2, run)
    if many > LONGEST_RUN:
        return 0
    to, other = NONE, NONE
    if beside_like:
        other = _like(whole, order, call, reach, source)
        if other != NONE:
            to = whole[other, GPU]
        if to == gpu and whole[run[0], POS] <= whole[other, POS] and whole[other, POS] <= whole[run[many - 1], POS]:
            return 0
    else:
        to = _other_group(may_begin, whole[call, MODEL], gpu, source)
    if to == NONE or (ends[to, LAST] != NONE and real[ends[to, LAST], END] + 0.5 * _seconds(real, run, many) > limit):
        return 0
    together = beside_like and below(source, 2) == 0
    for i in range(many):
        if together:
            _do(todo, i, run[i], to, BEHIND, other)
            other = run[i]
        else:
            _do(todo, i, run[i], to, STAY, 0)
    return many


@njit_noref
def _session_earlier(whole: Any, links: Any, todo: Any, run: Ints, call: int) -> int:
    """Move the next session on the same group before the session of a call."""
    gpu = whole[call, GPU]
    many = _run_around(whole, links, call, True, True, run)
    first, then = run[0], links[whole[run[many - 1], LANE], NEXT]
    if then == NONE or whole[then, GPU] != gpu:
        return 0
    many = _run_around(whole, links, then, False, True, run)
    if many > LONGEST_RUN:
        return 0
    for i in range(many):
        _do(todo, i, run[i], gpu, AHEAD, first)
    return many


@njit_noref
def _tails_of_blocks(whole: Any, links: Any, ends: Any, may_begin: Flags, todo: Any, call: int, source: Any) -> int:
    """Exchange all later calls between the GPUs of a call and as many others, if no call crosses the edge."""
    gpu, place, width = whole[call, GPU], whole[call, POS], whole[call, WIDTH]
    other = below(source, len(ends) - width + 1)
    if other < gpu + width and gpu < other + width:
        return 0
    for lane in range(2 * width):
        begin = gpu if lane < width else other
        there = other if lane < width else gpu
        on = begin + lane % width
        x = ends[on, LAST]
        while x != NONE and whole[x, POS] >= place:
            if whole[x, GPU] < begin or whole[x, GPU] + whole[x, WIDTH] > begin + width:
                return 0
            if not may_begin[whole[x, MODEL], whole[x, GPU] - begin + there]:
                return 0
            x = links[whole[x, LANE] + on - whole[x, GPU], PREV]
    todo[0, 0] = gpu
    todo[0, 1] = other
    todo[0, 2] = place
    todo[0, 3] = width
    return SWAP_TAILS


@compiled
def cannot_improve(
    whole: Any, real: Any, before: Ints, after: Ints, order: Ints, links: Any, ends: Any, switch: Floats,
    group_speed: Floats, todo: Any, limit: float,
) -> bool:  # fmt: skip
    """Whether one call at its new place would exceed the limit, judged by its new neighbors and their tails."""
    call, to, how, mark = todo[0, CALL], todo[0, TO], todo[0, HOW], todo[0, MARK]
    model = whole[call, MODEL]
    start = real[call, EARLIEST]
    for edge in range(whole[call, BEFORE], whole[call + 1, BEFORE]):
        start = max(start, real[before[edge], END])
    if whole[call, WIDTH] > 1:
        return False
    prev, follows = mark, mark
    if how == AHEAD:
        prev = links[whole[mark, LANE], PREV]
    elif how == BEHIND:
        follows = links[whole[mark, LANE], NEXT]
    else:
        prev = last_before(whole, order, ends, to, whole[call, POS] if how == STAY else mark)
        follows = after_on(whole, links, ends, to, prev)
    if prev == call or follows == call:  # noqa: PLR1714 (numba does not support `in` here)
        return False
    if prev != NONE:
        ready = real[prev, END] + switch[whole[prev, MODEL], model]
        if to == whole[call, GPU]:
            ready -= real[call, HERE]
        start = max(start, ready)
    end = start + real[call, SECONDS] / group_speed[model, to]
    for edge in range(whole[call, AFTER], whole[call + 1, AFTER]):
        if end + real[after[edge], HERE] + real[after[edge], TAIL] > limit:
            return True
    if follows == NONE:
        return bool(end > limit)
    return bool(end + switch[model, whole[follows, MODEL]] + real[follows, HERE] + real[follows, TAIL] > limit)
