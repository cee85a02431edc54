"""Times a plan in the buffer again after a change, only as far as the change has effects, and computes its cost.

Only those calls are timed again whose lane or dependencies changed and, going up the order, those whose predecessors
now end at another time: a bit for each position in the order marks the calls to visit. A bad change is noticed early:
timing stops at a call that ends so late that its tail (`TAIL`, the longest path from its end to the end of the plan,
from a table that is updated occasionally) would exceed the limit.

The cost of a plan is the mean over GPUs of (end / scale)^32: roughly the fraction of GPUs that end last, where a GPU
counts less the sooner it ends. It has a slope where the makespan alone is flat.
"""

from typing import Any

import numpy as np

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
    START,
    TAIL,
    WIDTH,
    PlanBuffer,
)
from gpuyard.plan.planner.compiled.preloading import switched
from gpuyard.plan.planner.compiled.timing import starts
from gpuyard.plan.planner.problem import Floats, Ints


@njit_noref
def _mark(dirty: Any, place: int) -> None:
    dirty[place >> 6] |= np.uint64(1) << np.uint64(place & 63)


@njit_noref
def _lowest_bit(bits: Any) -> int:
    """Return the number of the lowest bit that is set."""
    place = 0
    for half in (32, 16, 8, 4, 2, 1):
        if bits & ((np.uint64(1) << np.uint64(half)) - np.uint64(1)) == 0:
            bits >>= np.uint64(half)
            place += half
    return place


@njit_noref
def _mark_touched(whole: Any, dirty: Any, touched: Ints, many: int) -> Any:
    """Mark the touched calls; return the lowest and the highest of their positions."""
    lowest, highest = len(dirty) << 6, 0
    for i in range(many):
        place = whole[touched[i], POS]
        lowest, highest = min(lowest, place), max(highest, place)
        _mark(dirty, place)
    return lowest, highest


@njit_noref
def _take_marked(dirty: Any, word: int, highest: int) -> int:
    """Return the lowest marked position from this word on and remove its mark; -1 if none up to `highest` is marked."""
    while word <= highest >> 6:
        bits = dirty[word]
        if bits != 0:
            dirty[word] = bits & (bits - np.uint64(1))
            return (word << 6) + _lowest_bit(bits)
        word += 1
    return -1


@njit_noref
def _mark_next(whole: Any, links: Any, dirty: Any, call: int, highest: int) -> int:
    """Mark the calls that follow on the GPUs of a call; return the highest position."""
    for lane in range(whole[call, WIDTH]):
        follows = links[whole[call, LANE] + lane, NEXT]
        if follows != NONE:
            place = whole[follows, POS]
            highest = max(highest, place)
            _mark(dirty, place)
    return highest


@njit_noref
def _log(real: Any, log: Ints, log_real: Any, changed: int, call: int) -> None:
    """Note the times of a call before they are changed."""
    log[changed] = call
    log_real[changed, 0] = real[call, START]
    log_real[changed, 1] = real[call, END]


@compiled
def retime(
    whole: Any, real: Any, before: Ints, after: Ints, order: Ints, links: Any, held_first: Ints, free_first: Floats,
    switch: Floats, dirty: Any, touched: Ints, many: int, log: Ints, log_real: Any, limit: float,
) -> tuple[int, bool]:  # fmt: skip
    """Time the touched calls and all that move as a result; return how many moved, and whether it completed."""
    lowest, highest = _mark_touched(whole, dirty, touched, many)
    changed = 0
    at = lowest
    while True:
        at = _take_marked(dirty, at >> 6, highest)
        if at < 0:
            return changed, True
        call = order[at]
        model, lane_at = whole[call, MODEL], whole[call, LANE]
        start = real[call, EARLIEST]
        for edge in range(whole[call, BEFORE], whole[call + 1, BEFORE]):
            start = max(start, real[before[edge], END])
        for lane in range(whole[call, WIDTH]):
            prev = links[lane_at + lane, PREV]
            if prev == NONE:
                gpu = whole[call, GPU] + lane
                start = max(start, free_first[gpu] + switch[held_first[gpu], model])
            else:
                start = max(start, real[prev, END] + switch[whole[prev, MODEL], model])
        end = start + real[call, HERE]
        if end == real[call, END] and start == real[call, START]:
            continue
        _log(real, log, log_real, changed, call)
        changed += 1
        # Only a call that became later can make the plan too long; the marks left over are cleared.
        if end > real[call, END] and end + real[call, TAIL] > limit:
            real[call, START] = start
            real[call, END] = end
            for i in range(at >> 6, (highest >> 6) + 1):
                dirty[i] = 0
            return changed, False
        real[call, START] = start
        real[call, END] = end
        for edge in range(whole[call, AFTER], whole[call + 1, AFTER]):
            place = whole[after[edge], POS]
            highest = max(highest, place)
            _mark(dirty, place)
        highest = _mark_next(whole, links, dirty, call, highest)


@compiled
def retime_preloading(buffer: PlanBuffer, many: int, limit: float) -> tuple[int, bool]:
    """As `retime`, for GPUs that load beside calls: what a call hands on is also when its GPUs can load again."""
    whole, real, order, links, dirty, log = (
        buffer.whole, buffer.real, buffer.order, buffer.links, buffer.dirty, buffer.log,
    )  # fmt: skip
    copied, log_real, log_copied = buffer.copied, buffer.log_real, buffer.log_copied
    _, load, unload, size, room, _ = buffer.rules
    lowest, highest = _mark_touched(whole, dirty, buffer.touched, many)
    changed = lanes = 0
    at = lowest
    while True:
        at = _take_marked(dirty, at >> 6, highest)
        if at < 0:
            return changed, True
        call = order[at]
        model, lane_at, width = whole[call, MODEL], whole[call, LANE], whole[call, WIDTH]
        start = real[call, EARLIEST]
        for edge in range(whole[call, BEFORE], whole[call + 1, BEFORE]):
            start = max(start, real[buffer.before[edge], END])
        differs = False
        for lane in range(width):
            gpu = whole[call, GPU] + lane
            prev = links[lane_at + lane, PREV]
            holds, free, can_copy = buffer.held_first[gpu], buffer.free_first[gpu], buffer.free_first[gpu]
            if prev != NONE:
                holds, free = whole[prev, MODEL], real[prev, END]
                can_copy = copied[whole[prev, LANE] + gpu - whole[prev, GPU]]
            ready, then = switched(holds, model, free, can_copy, load, unload, size, room[gpu])
            start = max(start, ready)
            differs = differs or then != copied[lane_at + lane]
            log_copied[lanes + lane] = copied[lane_at + lane]
            copied[lane_at + lane] = then
        end = start + real[call, HERE]
        if not differs and end == real[call, END] and start == real[call, START]:
            continue
        _log(real, log, log_real, changed, call)
        changed += 1
        lanes += width
        later = end > real[call, END]
        moved = end != real[call, END]
        real[call, START] = start
        real[call, END] = end
        if later and end + real[call, TAIL] > limit:
            for i in range(at >> 6, (highest >> 6) + 1):
                dirty[i] = 0
            return changed, False
        for edge in range(whole[call, AFTER], whole[call + 1, AFTER] if moved else whole[call, AFTER]):
            place = whole[buffer.after[edge], POS]
            highest = max(highest, place)
            _mark(dirty, place)
        highest = _mark_next(whole, links, dirty, call, highest)


@compiled
def time_preloading(buffer: PlanBuffer) -> None:
    """Time all calls, for GPUs that load beside calls."""
    for call in range(len(buffer.order)):
        buffer.touched[call] = call
    retime_preloading(buffer, len(buffer.order), np.inf)


@njit_noref
def touch_swapped(buffer: PlanBuffer, many: int, swap: Any) -> Any:
    """Add all calls that `swap_tails` moved to those touched: what fits side by side may differ on their new GPUs."""
    for lane in range(2 * swap[3]):
        gpu = swap[lane // swap[3]] + lane % swap[3]
        call = buffer.ends[gpu, LAST]
        while call != NONE and buffer.whole[call, POS] >= swap[2]:
            if buffer.whole[call, GPU] == gpu:
                buffer.touched[many] = call
                many += 1
            call = buffer.links[buffer.whole[call, LANE] + gpu - buffer.whole[call, GPU], PREV]
    return many


@njit_noref
def restore(buffer: PlanBuffer, changed: int, preload: bool) -> None:
    """Restore the times of the last timing from its log."""
    whole, real, log = buffer.whole, buffer.real, buffer.log
    lanes = 0
    for i in range(changed if preload else 0):
        for lane in range(whole[log[i], WIDTH]):
            buffer.copied[whole[log[i], LANE] + lane] = buffer.log_copied[lanes + lane]
        lanes += whole[log[i], WIDTH]
    for i in range(changed - 1, -1, -1):
        real[log[i], START] = buffer.log_real[i, 0]
        real[log[i], END] = buffer.log_real[i, 1]


@compiled
def retime_all(buffer: PlanBuffer) -> int:
    """Time all calls, for GPUs that hold many models: what a GPU holds depends on all earlier calls there."""
    whole, real = buffer.whole, buffer.real
    full = starts(
        buffer.order, whole[: len(real), GPU], real[:, HERE], whole[: len(real), MODEL], real[:, EARLIEST],
        whole[:, BEFORE], buffer.before, buffer.held_first, buffer.free_first, *buffer.rules,
    )  # fmt: skip
    changed = 0
    for call in range(len(full)):
        end = full[call] + real[call, HERE]
        if full[call] != real[call, START] or end != real[call, END]:
            _log(real, buffer.log, buffer.log_real, changed, call)
            real[call, START] = full[call]
            real[call, END] = end
            changed += 1
    return changed


@compiled
def note_tails(whole: Any, real: Any, after: Ints, order: Ints, links: Any, switch: Floats) -> None:
    """Compute for each call the longest path from its end to the end of the plan."""
    for place in range(len(order) - 1, -1, -1):
        call = order[place]
        tail = 0.0
        for edge in range(whole[call, AFTER], whole[call + 1, AFTER]):
            tail = max(tail, real[after[edge], HERE] + real[after[edge], TAIL])
        for lane in range(whole[call, WIDTH]):
            follows = links[whole[call, LANE] + lane, NEXT]
            if follows != NONE:
                change = switch[whole[call, MODEL], whole[follows, MODEL]]
                tail = max(tail, change + real[follows, HERE] + real[follows, TAIL])
        real[call, TAIL] = tail


@compiled
def sort(whole: Any, real: Any, order: Ints) -> None:
    """Sort the order by start again (stable). Insertion sort, because it is nearly sorted."""
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


# --- objective --------------------------------------------------------------------------------------------------------


@njit_noref
def span_of(real: Any, ends: Any) -> float:
    """Return the makespan."""
    span = 0.0
    for gpu in range(len(ends)):
        if ends[gpu, LAST] != NONE:
            span = max(span, real[ends[gpu, LAST], END])
    return span


@njit_noref
def cost_of(real: Any, ends: Any, scale: float) -> float:
    """Return the mean over GPUs of (end / scale)^32."""
    total = 0.0
    for gpu in range(len(ends)):
        if ends[gpu, LAST] != NONE:
            part = real[ends[gpu, LAST], END] / scale
            part *= part
            part *= part
            part *= part
            part *= part
            total += part * part
    return total / len(ends)


@compiled
def lateness(
    real: Any, late_at: Ints, late_calls: Ints, deadline: Floats, late_weight: Floats, scale: float
) -> tuple[float, float]:
    """Return the weight of the requests that miss their deadline, and the same plus up to 1 % for how late they are."""
    weight = total = 0.0
    for i in range(len(deadline)):
        end = 0.0
        for j in range(late_at[i], late_at[i + 1]):
            end = max(end, real[late_calls[j], END])
        if end > deadline[i]:
            weight += late_weight[i]
            total += late_weight[i] * (1.0 + 0.01 * min(1.0, (end - deadline[i]) / scale))
    return weight, total
