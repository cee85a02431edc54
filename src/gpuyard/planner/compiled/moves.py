"""Small changes to a plan, each timed only as far as it reaches: the inner loop of the search.

A plan is an order of all calls and a GPU for each. The order is kept sorted by start, so "the same place in the order
on another GPU" means the same time there. On each GPU (on each *lane* of a call: a call of a model of four GPUs has
four) calls are linked to the one before and the one after:

    GPU 0   ── a ── a ──╌╌── b ── b ── b ──        ╌╌ a switch
    GPU 1   ── c ──────── c ──╌╌── a ──

A change takes calls out and puts them in elsewhere, never before what they wait for. Then only those calls are timed
again whose lane or dependencies changed, and, going up the order, those whose reasons ended at another time: a bit for
each place in the order says who is to be looked at. What is too bad is noticed on the way: a call that ends so late that
what follows it (`TAIL`, the longest way from its end to the end of the plan, looked up in a table that is renewed now
and then) would go far past the limit stops the timing, and the change is taken back.

How good a plan is: the mean over GPUs of (end / scale)^32, about how many GPUs end at the very last, each counting the
less the sooner it ends. That has a slope where the makespan alone has none. Where requests have deadlines, those that
are late come first, by priority.

A change that makes it worse is taken all the same as long as it is not worse than a threshold that is drawn each time
and shrinks as the search cools down (threshold accepting; Dueck and Scheuer 1990).
"""

from typing import Any, Final, NamedTuple

import numpy as np

from gpuyard.planner.compiled.draws import below, patience
from gpuyard.planner.compiled.jit import borrowing, compiled
from gpuyard.planner.compiled.timing import seconds_on, starts, switching
from gpuyard.planner.problem import Flags, Floats, Ints, Problem

# Columns of `whole`, a row a call and one more for the ends of lists.
MODEL, WIDTH, BEFORE, AFTER, LANE, GPU, POS = range(7)
# Columns of `real`, a row a call.
SECONDS, EARLIEST, HERE, START, END, TAIL = range(6)
# Columns of `links`, a row a lane of a call; and of `ends`, a row a GPU.
PREV, NEXT = range(2)
FIRST, LAST = range(2)
# Where `todo` puts a call: where it is in the order, before or after another, at a place.
STAY, AHEAD, BEHIND, AT = range(4)
# Columns of `todo`: which call, to which GPU, how, and beside whom or where.
CALL, TO, HOW, MARK = range(4)
# What is counted.
TRIED, TIMED, TAKEN, CUT = range(4)
# The figures of a search.
SCALE, CURRENT, BEST, BEST_LATE, WARM, SPAN = range(6)

NOBODY: Final = -1
LATE_COSTS: Final = 1000.0
LONGEST_RUN: Final = 500


class Desk(NamedTuple):
    """All that the compiled search works on."""

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
    may_begin: Flags
    group_speed: Floats
    of_model_at: Ints
    of_model: Ints
    late_at: Ints
    """`late_calls[late_at[i]:late_at[i + 1]]` have to end until `deadline[i]`, or `late_weight[i]` is counted."""
    late_calls: Ints
    deadline: Floats
    late_weight: Floats
    rules: Any
    """What timing knows of switches, for problems whose GPUs hold many models: there is no short way then."""
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


def desk(problem: Problem, gpu: Ints, order: Ints, source: Any) -> Desk:
    """Lay out a plan to be worked on."""
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
    by_model = np.argsort(calls.model, kind="stable").astype(np.int32)
    made = Desk(
        whole,
        real,
        calls.before,
        calls.after,
        np.array(order, dtype=np.int32),
        np.full((lanes, 2), NOBODY, dtype=np.int32),
        np.full((len(problem.gpus), 2), NOBODY, dtype=np.int32),
        problem.held_first,
        problem.free_first,
        problem.switch,
        problem.may_begin,
        problem.group_speed,
        np.searchsorted(calls.model[by_model], np.arange(len(problem.models) + 1)).astype(np.int32),
        by_model,
        *_deadlines(problem),
        switching(problem),
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
    lay(made)
    return made


def _deadlines(problem: Problem) -> tuple[Ints, Ints, Floats, Floats]:
    """The last calls of the requests that have deadlines; a request of priority 100 counts as two of priority 0."""
    requests, calls = problem.requests, problem.calls
    some = np.flatnonzero(np.isfinite(requests.deadline_s))
    last = np.flatnonzero((calls.after_at[1:] == calls.after_at[:-1]) & np.isfinite(requests.deadline_s)[calls.request])
    at = np.searchsorted(calls.request[last], np.append(some, len(requests.ids)))
    weight = 1.0 + requests.priority[some] / 100.0
    return at.astype(np.int32), last.astype(np.int32), requests.deadline_s[some], weight


@compiled
def lay(desk: Desk) -> None:
    """Link the lanes and time everything, by order and GPUs."""
    whole, real, ends, links = desk.whole, desk.real, desk.ends, desk.links
    ends[:] = NOBODY
    for place in range(len(desk.order)):
        call = desk.order[place]
        whole[call, POS] = place
        for lane in range(whole[call, WIDTH]):
            gpu = whole[call, GPU] + lane
            prev = ends[gpu, LAST]
            links[whole[call, LANE] + lane, PREV] = prev
            links[whole[call, LANE] + lane, NEXT] = NOBODY
            if prev == NOBODY:
                ends[gpu, FIRST] = call
            else:
                links[whole[prev, LANE] + gpu - whole[prev, GPU], NEXT] = call
            ends[gpu, LAST] = call
    full = starts(
        desk.order,
        whole[: len(real), GPU],
        real[:, HERE],
        whole[: len(real), MODEL],
        real[:, EARLIEST],
        whole[:, BEFORE],
        desk.before,
        desk.held_first,
        desk.free_first,
        *desk.rules,
    )
    real[:, START] = full
    real[:, END] = full + real[:, HERE]


# --- changing the plan -----------------------------------------------------------------------------------------------


@borrowing
def _join(whole: Any, links: Any, ends: Any, gpu: int, prev: int, after: int) -> None:
    """On a GPU one call follows another; NOBODY is the beginning and the end."""
    if prev == NOBODY:
        ends[gpu, FIRST] = after
    else:
        links[whole[prev, LANE] + gpu - whole[prev, GPU], NEXT] = after
    if after == NOBODY:
        ends[gpu, LAST] = prev
    else:
        links[whole[after, LANE] + gpu - whole[after, GPU], PREV] = prev


@borrowing
def _last_before(whole: Any, order: Ints, ends: Any, gpu: int, place: int) -> Any:
    """Who is on a GPU right before a place of the order."""
    call = ends[gpu, LAST]
    if call == NOBODY or whole[call, POS] < place:
        return call
    if whole[ends[gpu, FIRST], POS] >= place:
        return NOBODY
    i = place - 1
    call = order[i]
    while not (whole[call, GPU] <= gpu < whole[call, GPU] + whole[call, WIDTH]):
        i -= 1
        call = order[i]
    return call


@borrowing
def _after(whole: Any, links: Any, ends: Any, gpu: int, call: int) -> Any:
    """Who follows a call on a GPU."""
    return ends[gpu, FIRST] if call == NOBODY else links[whole[call, LANE] + gpu - whole[call, GPU], NEXT]


@borrowing
def _relocate(
    whole: Any, real: Any, before: Ints, after: Ints, order: Ints, links: Any, ends: Any, group_speed: Floats,
    touched: Ints, many: int, call: int, to: int, place: int,
) -> int:  # fmt: skip
    """Take a call out, put it in on the group `to` at a place of the order or as near to it as dependencies allow.

    Whose reasons changed is appended to `touched`; returns how many these are.
    """
    old, at, width = whole[call, POS], whole[call, LANE], whole[call, WIDTH]
    for edge in range(whole[call, BEFORE], whole[call + 1, BEFORE]):
        place = max(place, whole[before[edge], POS] + (whole[before[edge], POS] < old))
    for edge in range(whole[call, AFTER], whole[call + 1, AFTER]):
        place = min(place, whole[after[edge], POS] - 1)
    for lane in range(width):
        follows = links[at + lane, NEXT]
        _join(whole, links, ends, whole[call, GPU] + lane, links[at + lane, PREV], follows)
        if follows != NOBODY:
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
        prev = _last_before(whole, order, ends, to + lane, place)
        follows = _after(whole, links, ends, to + lane, prev)
        _join(whole, links, ends, to + lane, prev, call)
        _join(whole, links, ends, to + lane, call, follows)
        if follows != NOBODY:
            touched[many] = follows
            many += 1
    touched[many] = call
    return many + 1


@compiled
def _swap_tails(
    whole: Any, real: Any, order: Ints, links: Any, ends: Any, group_speed: Floats, run: Ints, touched: Ints, swap: Any
) -> int:
    """Two blocks of GPUs exchange all calls from a place of the order on. Done twice, nothing has changed.

    `swap`: the first GPU of each, the place, how many GPUs. No call may stand on the edge of a block.
    """
    one, two, place, width = swap[0], swap[1], swap[2], swap[3]
    moved, many = 0, 0
    for lane in range(width):
        a, b = one + lane, two + lane
        prev_a, prev_b = _last_before(whole, order, ends, a, place), _last_before(whole, order, ends, b, place)
        next_a, next_b = _after(whole, links, ends, a, prev_a), _after(whole, links, ends, b, prev_b)
        for gpu, first in ((a, next_a), (b, next_b)):
            call = first
            if call != NOBODY:
                touched[many] = call
                many += 1
            while call != NOBODY:
                if whole[call, GPU] == gpu:
                    run[moved] = call
                    moved += 1
                call = _after(whole, links, ends, gpu, call)
        last_a, last_b = ends[a, LAST], ends[b, LAST]
        if prev_a == NOBODY:
            ends[a, FIRST] = next_b
        else:
            links[whole[prev_a, LANE] + a - whole[prev_a, GPU], NEXT] = next_b
        if prev_b == NOBODY:
            ends[b, FIRST] = next_a
        else:
            links[whole[prev_b, LANE] + b - whole[prev_b, GPU], NEXT] = next_a
        if next_b != NOBODY:
            links[whole[next_b, LANE] + b - whole[next_b, GPU], PREV] = prev_a
        if next_a != NOBODY:
            links[whole[next_a, LANE] + a - whole[next_a, GPU], PREV] = prev_b
        ends[a, LAST] = prev_a if next_b == NOBODY else last_b
        ends[b, LAST] = prev_b if next_a == NOBODY else last_a
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


# --- timing it again -------------------------------------------------------------------------------------------------


@borrowing
def _mark(dirty: Any, place: int) -> None:
    dirty[place >> 6] |= np.uint64(1) << np.uint64(place & 63)


@borrowing
def _lowest_bit(bits: Any) -> int:
    """The number of the lowest bit that is set."""
    place = 0
    for half in (32, 16, 8, 4, 2, 1):
        if bits & ((np.uint64(1) << np.uint64(half)) - np.uint64(1)) == 0:
            bits >>= np.uint64(half)
            place += half
    return place


@compiled
def _retime(
    whole: Any, real: Any, before: Ints, after: Ints, order: Ints, links: Any, held_first: Ints, free_first: Floats,
    switch: Floats, dirty: Any, touched: Ints, many: int, log: Ints, log_real: Any, limit: float,
) -> tuple[int, bool]:  # fmt: skip
    """Time what was touched and whoever begins otherwise because of it. How many did, and whether it went on to the end."""
    lowest, highest = len(order), 0
    for i in range(many):
        place = whole[touched[i], POS]
        lowest, highest = min(lowest, place), max(highest, place)
        _mark(dirty, place)
    changed = 0
    word = lowest >> 6
    while word <= highest >> 6:
        bits = dirty[word]
        if bits == 0:
            word += 1
            continue
        place = (word << 6) + _lowest_bit(bits)
        dirty[word] = bits & (bits - np.uint64(1))
        call = order[place]
        model, lane_at = whole[call, MODEL], whole[call, LANE]
        start = real[call, EARLIEST]
        for edge in range(whole[call, BEFORE], whole[call + 1, BEFORE]):
            start = max(start, real[before[edge], END])
        for lane in range(whole[call, WIDTH]):
            prev = links[lane_at + lane, PREV]
            if prev == NOBODY:
                gpu = whole[call, GPU] + lane
                start = max(start, free_first[gpu] + switch[held_first[gpu], model])
            else:
                start = max(start, real[prev, END] + switch[whole[prev, MODEL], model])
        end = start + real[call, HERE]
        if end == real[call, END] and start == real[call, START]:
            continue
        log[changed] = call
        log_real[changed, 0] = real[call, START]
        log_real[changed, 1] = real[call, END]
        changed += 1
        if end > real[call, END] and end + real[call, TAIL] > limit:
            real[call, START] = start
            real[call, END] = end
            for i in range(word, (highest >> 6) + 1):
                dirty[i] = 0
            return changed, False
        real[call, START] = start
        real[call, END] = end
        for edge in range(whole[call, AFTER], whole[call + 1, AFTER]):
            place = whole[after[edge], POS]
            highest = max(highest, place)
            _mark(dirty, place)
        for lane in range(whole[call, WIDTH]):
            follows = links[lane_at + lane, NEXT]
            if follows != NOBODY:
                place = whole[follows, POS]
                highest = max(highest, place)
                _mark(dirty, place)
    return changed, True


@compiled
def _retime_all(desk: Desk) -> int:
    """Time everything, where GPUs hold many models: what a GPU holds depends on all that ran there before."""
    whole, real = desk.whole, desk.real
    full = starts(
        desk.order, whole[: len(real), GPU], real[:, HERE], whole[: len(real), MODEL], real[:, EARLIEST],
        whole[:, BEFORE], desk.before, desk.held_first, desk.free_first, *desk.rules,
    )  # fmt: skip
    changed = 0
    for call in range(len(full)):
        end = full[call] + real[call, HERE]
        if full[call] != real[call, START] or end != real[call, END]:
            desk.log[changed] = call
            desk.log_real[changed, 0] = real[call, START]
            desk.log_real[changed, 1] = real[call, END]
            real[call, START] = full[call]
            real[call, END] = end
            changed += 1
    return changed


@compiled
def _tails(whole: Any, real: Any, after: Ints, order: Ints, links: Any, switch: Floats) -> None:
    """For each call the longest way from its end to the end of the plan."""
    for place in range(len(order) - 1, -1, -1):
        call = order[place]
        tail = 0.0
        for edge in range(whole[call, AFTER], whole[call + 1, AFTER]):
            tail = max(tail, real[after[edge], HERE] + real[after[edge], TAIL])
        for lane in range(whole[call, WIDTH]):
            follows = links[whole[call, LANE] + lane, NEXT]
            if follows != NOBODY:
                change = switch[whole[call, MODEL], whole[follows, MODEL]]
                tail = max(tail, change + real[follows, HERE] + real[follows, TAIL])
        real[call, TAIL] = tail


@compiled
def _sort(whole: Any, real: Any, order: Ints) -> None:
    """By start again. It nearly is already, and calls that begin together stay as they are."""
    for place in range(1, len(order)):
        call = order[place]
        start = real[call, START]
        i = place - 1
        while i >= 0 and real[order[i], START] > start:
            order[i + 1] = order[i]
            whole[order[i], POS] = i + 1
            i -= 1
        order[i + 1] = call
        whole[call, POS] = i + 1


# --- how good it is --------------------------------------------------------------------------------------------------


@borrowing
def _span(real: Any, ends: Any) -> float:
    """The makespan."""
    span = 0.0
    for gpu in range(len(ends)):
        if ends[gpu, LAST] != NOBODY:
            span = max(span, real[ends[gpu, LAST], END])
    return span


@borrowing
def _cost(real: Any, ends: Any, scale: float) -> float:
    """The mean over GPUs of (end / scale)^32."""
    total = 0.0
    for gpu in range(len(ends)):
        if ends[gpu, LAST] != NOBODY:
            part = real[ends[gpu, LAST], END] / scale
            part *= part
            part *= part
            part *= part
            part *= part
            total += part * part
    return total / len(ends)


@compiled
def _late(real: Any, late_at: Ints, late_calls: Ints, deadline: Floats, late_weight: Floats, scale: float) -> float:
    """Requests that end after their deadline, by weight; and a little for how late they are, at most as much again."""
    total = 0.0
    for i in range(len(deadline)):
        end = 0.0
        for j in range(late_at[i], late_at[i + 1]):
            end = max(end, real[late_calls[j], END])
        if end > deadline[i]:
            total += late_weight[i] * (1.0 + 0.01 * min(1.0, (end - deadline[i]) / scale))
    return total


# --- what to try -----------------------------------------------------------------------------------------------------


@borrowing
def _critical(
    whole: Any, real: Any, before: Ints, links: Any, ends: Any, switch: Floats, steps: int, source: Any
) -> int:
    """A call that others wait for: from the end of a GPU that ends late, some steps back along what each waited for.

    NOBODY if the GPUs that were looked at have no calls.
    """
    call = NOBODY
    for _ in range(3):
        gpu = below(source, len(ends))
        other = ends[gpu, LAST]
        if other != NOBODY and (call == NOBODY or real[other, END] > real[call, END]):
            call = other
    while call != NOBODY and steps > 0:
        steps -= 1
        start, reason = real[call, START], NOBODY
        for edge in range(whole[call, BEFORE], whole[call + 1, BEFORE]):
            if real[before[edge], END] == start:
                reason = before[edge]
        for lane in range(whole[call, WIDTH]):
            prev = links[whole[call, LANE] + lane, PREV]
            if prev != NOBODY and real[prev, END] + switch[whole[prev, MODEL], whole[call, MODEL]] == start:
                reason = prev
        if reason == NOBODY:
            break
        call = reason
    return call


@borrowing
def _like(whole: Any, order: Ints, call: int, reach: int, source: Any) -> Any:
    """Another call of the same model, from a place by chance on within reach; NOBODY if none is soon met."""
    place = whole[call, POS] + below(source, 2 * reach + 1) - reach
    place = max(0, min(len(order) - 1, place))
    for _ in range(200):
        other = order[place]
        if other != call and whole[other, MODEL] == whole[call, MODEL]:
            return other
        place += 1
        if place == len(order):
            place = 0
    return NOBODY


@borrowing
def _other_group(may_begin: Flags, model: int, than: int, source: Any) -> int:
    """Another group for a model; NOBODY if none is soon met."""
    for _ in range(8):
        gpu = below(source, may_begin.shape[1])
        if may_begin[model, gpu] and gpu != than:
            return gpu
    return NOBODY


@borrowing
def _seconds(real: Any, run: Ints, many: int) -> float:
    """How long the calls of a run take together."""
    total = 0.0
    for i in range(many):
        total += real[run[i], HERE]
    return total


@borrowing
def _run_around(whole: Any, links: Any, call: int, back: bool, forth: bool, run: Ints) -> int:
    """The calls of the same model and group around one, in their order; up to it, or from it on."""
    first = call
    gpu, model = whole[call, GPU], whole[call, MODEL]
    if back:
        prev = links[whole[first, LANE], PREV]
        while prev != NOBODY and whole[prev, MODEL] == model and whole[prev, GPU] == gpu:
            first = prev
            prev = links[whole[first, LANE], PREV]
    many = 0
    while first != NOBODY and whole[first, MODEL] == model and whole[first, GPU] == gpu:
        run[many] = first
        many += 1
        if first == call and not forth:
            break
        first = links[whole[first, LANE], NEXT]
    return many


@compiled
def _hopeless(
    whole: Any, real: Any, before: Ints, after: Ints, order: Ints, links: Any, ends: Any, switch: Floats,
    group_speed: Floats, todo: Any, limit: float,
) -> bool:  # fmt: skip
    """Whether one call at its new place would go past the limit, by when its new neighbours end and what follows them."""
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
        prev = _last_before(whole, order, ends, to, whole[call, POS] if how == STAY else mark)
        follows = _after(whole, links, ends, to, prev)
    if prev == call or follows == call:  # noqa: PLR1714 (numba knows no such in)
        return False
    if prev != NOBODY:
        ready = real[prev, END] + switch[whole[prev, MODEL], model]
        if to == whole[call, GPU]:
            ready -= real[call, HERE]
        start = max(start, ready)
    end = start + real[call, SECONDS] / group_speed[model, to]
    for edge in range(whole[call, AFTER], whole[call + 1, AFTER]):
        if end + real[after[edge], HERE] + real[after[edge], TAIL] > limit:
            return True
    if follows == NOBODY:
        return bool(end > limit)
    return bool(end + switch[model, whole[follows, MODEL]] + real[follows, HERE] + real[follows, TAIL] > limit)


@borrowing
def _do(todo: Any, many: int, call: int, to: int, how: int, mark: int) -> int:
    todo[many, CALL] = call
    todo[many, TO] = to
    todo[many, HOW] = how
    todo[many, MARK] = mark
    return many + 1


SWAP_TAILS: Final = -1


@borrowing
def _session_elsewhere(
    whole: Any, real: Any, order: Ints, links: Any, ends: Any, may_begin: Flags, todo: Any, run: Ints, call: int,
    beside_like: bool, reach: int, limit: float, source: Any,
) -> int:  # fmt: skip
    """A session, or its beginning or end, to another group: to that of a call of the same model, or to any."""
    gpu, part = whole[call, GPU], below(source, 4)
    many = _run_around(whole, links, call, part != 1, part != 2, run)
    if many > LONGEST_RUN:
        return 0
    to, other = NOBODY, NOBODY
    if beside_like:
        other = _like(whole, order, call, reach, source)
        if other != NOBODY:
            to = whole[other, GPU]
        if to == gpu and whole[run[0], POS] <= whole[other, POS] and whole[other, POS] <= whole[run[many - 1], POS]:
            return 0
    else:
        to = _other_group(may_begin, whole[call, MODEL], gpu, source)
    if to == NOBODY or (
        ends[to, LAST] != NOBODY and real[ends[to, LAST], END] + 0.5 * _seconds(real, run, many) > limit
    ):
        return 0
    together = beside_like and below(source, 2) == 0
    for i in range(many):
        if together:
            _do(todo, i, run[i], to, BEHIND, other)
            other = run[i]
        else:
            _do(todo, i, run[i], to, STAY, 0)
    return many


@borrowing
def _session_earlier(whole: Any, links: Any, todo: Any, run: Ints, call: int) -> int:
    """The session after that of a call comes before it."""
    gpu = whole[call, GPU]
    many = _run_around(whole, links, call, True, True, run)
    first, then = run[0], links[whole[run[many - 1], LANE], NEXT]
    if then == NOBODY or whole[then, GPU] != gpu:
        return 0
    many = _run_around(whole, links, then, False, True, run)
    if many > LONGEST_RUN:
        return 0
    for i in range(many):
        _do(todo, i, run[i], gpu, AHEAD, first)
    return many


@borrowing
def _tails_of_blocks(whole: Any, links: Any, ends: Any, may_begin: Flags, todo: Any, call: int, source: Any) -> int:
    """The GPUs of a call exchange all that follows with as many others, if nothing there reaches over the edge."""
    gpu, place, width = whole[call, GPU], whole[call, POS], whole[call, WIDTH]
    other = below(source, len(ends) - width + 1)
    if other < gpu + width and gpu < other + width:
        return 0
    for lane in range(2 * width):
        begin = gpu if lane < width else other
        there = other if lane < width else gpu
        on = begin + lane % width
        x = ends[on, LAST]
        while x != NOBODY and whole[x, POS] >= place:
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
def _propose(
    whole: Any, real: Any, before: Ints, order: Ints, links: Any, ends: Any, switch: Floats, may_begin: Flags,
    todo: Any, run: Ints, weights: Any, limit: float, source: Any,
) -> int:  # fmt: skip
    """Think of a change: how many calls move where is left in `todo`. 0: nothing; SWAP_TAILS: two blocks of GPUs do."""
    calls, gpus = len(order), len(ends)
    chosen = below(source, weights[-1])
    kind = 0
    while chosen >= weights[kind]:
        kind += 1
    call = order[below(source, calls)]
    if below(source, 2) == 0:
        late = _critical(whole, real, before, links, ends, switch, below(source, calls // gpus + 2), source)
        call = call if late == NOBODY else late
    gpu, place = whole[call, GPU], whole[call, POS]
    reach = min(4 << below(source, 12), calls // 4 + 1)
    if kind == 0:  # beside a call of the same model
        other = _like(whole, order, call, reach, source)
        if other == NOBODY:
            return 0
        return _do(todo, 0, call, whole[other, GPU], AHEAD + below(source, 2), other)
    if kind == 1:  # to another group at the same time
        to = _other_group(may_begin, whole[call, MODEL], gpu, source)
        return 0 if to == NOBODY else _do(todo, 0, call, to, STAY, 0)
    if kind == 2:  # earlier or later
        to = max(0, min(calls - 1, place + below(source, 2 * reach + 1) - reach))
        return 0 if to == place else _do(todo, 0, call, gpu, AT, to)
    if kind == 3:  # exchange two calls of the same model
        other = _like(whole, order, call, reach, source)
        if other == NOBODY:
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


@compiled
def improve(desk: Desk, rounds: int, weights: Any) -> bool:
    """Think of so many changes, try them, and keep those that are good enough. Whether the best plan is a new one."""
    whole, real, before, after, order = desk.whole, desk.real, desk.before, desk.after, desk.order
    links, ends, group_speed, touched, todo, undo = (
        desk.links, desk.ends, desk.group_speed, desk.touched, desk.todo, desk.undo,
    )  # fmt: skip
    log, log_real, counts, figures, source = desk.log, desk.log_real, desk.counts, desk.figures, desk.source
    switch, dirty, run = desk.switch, desk.dirty, desk.run
    deadline = desk.deadline
    many_residents = desk.rules[-1]
    scale = figures[SCALE]
    new = False
    since_tails = 1 << 30
    for _ in range(rounds):
        if since_tails >= 30:
            _tails(whole, real, after, order, links, switch)
            since_tails = 0
        allowed = figures[WARM] * patience(source)
        limit = figures[SPAN] * (1.0 + 2.0 * allowed)
        moves = _propose(
            whole, real, before, order, links, ends, switch, desk.may_begin, todo, run, weights, limit, source
        )  # fmt: skip
        if moves == 0 or (
            moves == 1
            and not many_residents
            and _hopeless(whole, real, before, after, order, links, ends, switch, group_speed, todo, limit)
        ):
            continue
        many = 0
        if moves == SWAP_TAILS:
            many = _swap_tails(whole, real, order, links, ends, group_speed, run, touched, todo[0])
        for i in range(moves):
            call, how, mark = todo[i, CALL], todo[i, HOW], todo[i, MARK]
            place = whole[call, POS]
            undo[i, CALL] = call
            undo[i, TO] = whole[call, GPU]
            undo[i, MARK] = place
            if how == AT:
                place = mark
            elif how != STAY:
                place = whole[mark, POS] + (how == BEHIND) - (whole[mark, POS] > place)
            many = _relocate(
                whole, real, before, after, order, links, ends, group_speed, touched, many, call, todo[i, TO], place
            )
        counts[TRIED] += 1
        if many_residents:
            changed, done = _retime_all(desk), True
        else:
            changed, done = _retime(
                whole, real, before, after, order, links, desk.held_first, desk.free_first, switch, dirty, touched,
                many, log, log_real, limit,
            )  # fmt: skip
        counts[TIMED] += changed
        cost = 0.0
        if done:
            cost = _cost(real, ends, scale)
            if len(deadline) > 0:
                cost += LATE_COSTS * _late(real, desk.late_at, desk.late_calls, deadline, desk.late_weight, scale)
        else:
            counts[CUT] += 1
        if done and cost <= figures[CURRENT] + allowed * 32.0 / len(ends):
            counts[TAKEN] += 1
            since_tails += 1
            figures[CURRENT] = cost
            span = _span(real, ends)
            figures[SPAN] = span
            late = cost // LATE_COSTS if len(deadline) > 0 else 0.0
            if late < figures[BEST_LATE] or (late == figures[BEST_LATE] and span < figures[BEST]):
                new = True
                figures[BEST_LATE] = late
                figures[BEST] = span
                for i in range(len(order)):
                    desk.best_order[i] = order[i]
                    desk.best_gpu[i] = whole[i, GPU]
            continue
        if moves == SWAP_TAILS:
            _swap_tails(whole, real, order, links, ends, group_speed, run, touched, todo[0])
        for i in range(moves - 1, -1, -1):
            _relocate(
                whole, real, before, after, order, links, ends, group_speed, touched, 0,
                undo[i, CALL], undo[i, TO], undo[i, MARK],
            )  # fmt: skip
        for i in range(changed - 1, -1, -1):
            real[log[i], START] = log_real[i, 0]
            real[log[i], END] = log_real[i, 1]
    _sort(whole, real, order)
    return new


@compiled
def begin(desk: Desk) -> None:
    """The plan on the desk is the best so far, and its makespan is the scale."""
    figures = desk.figures
    span = _span(desk.real, desk.ends)
    figures[SCALE] = span
    figures[SPAN] = span
    figures[BEST] = span
    figures[CURRENT] = _cost(desk.real, desk.ends, span)
    if len(desk.deadline) > 0:
        figures[CURRENT] += LATE_COSTS * _late(
            desk.real, desk.late_at, desk.late_calls, desk.deadline, desk.late_weight, span
        )
        figures[BEST_LATE] = figures[CURRENT] // LATE_COSTS
