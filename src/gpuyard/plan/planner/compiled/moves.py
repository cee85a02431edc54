"""Small changes to a plan, each timed only as far as it has effects: the inner loop of the search.

A change (`proposals`) removes calls and inserts them elsewhere, never before a call they wait for (`plan_buffer`). The
affected calls are timed again (`retiming`), and the change is undone if the plan becomes too much worse. If requests
have deadlines, the late ones count first, by priority.

A change that makes the plan worse is accepted if the loss is below a threshold, which is drawn each time and shrinks as
the search cools down (threshold accepting; Dueck and Scheuer 1990).
"""

from typing import Any, Final

from gpuyard.plan.planner.compiled.draws import threshold_draw
from gpuyard.plan.planner.compiled.jit import compiled
from gpuyard.plan.planner.compiled.plan_buffer import GPU, POS, PlanBuffer, relocate, swap_tails
from gpuyard.plan.planner.compiled.proposals import (
    AT,
    BEHIND,
    CALL,
    HOW,
    MARK,
    STAY,
    SWAP_TAILS,
    TO,
    cannot_improve,
    propose,
)
from gpuyard.plan.planner.compiled.retiming import (
    cost_of,
    lateness,
    note_tails,
    restore,
    retime,
    retime_all,
    retime_preloading,
    sort,
    span_of,
    time_preloading,
    touch_swapped,
)
from gpuyard.plan.planner.compiled.timing import MANY, PRELOAD

# Counters.
TRIED, TIMED, TAKEN, CUT = range(4)
# The figures of a search.
SCALE, CURRENT, BEST, BEST_LATE, TEMPERATURE, SPAN = range(6)

LATE_COSTS: Final = 1000.0


@compiled
def begin(buffer: PlanBuffer) -> None:
    """Set the plan in the buffer as the best so far, and its makespan as the scale."""
    if buffer.rules[-1] == PRELOAD:
        time_preloading(buffer)
    figures = buffer.figures
    span = span_of(buffer.real, buffer.ends)
    figures[SCALE] = span
    figures[SPAN] = span
    figures[BEST] = span
    figures[CURRENT] = cost_of(buffer.real, buffer.ends, span)
    if len(buffer.deadline) > 0:
        figures[BEST_LATE], lateness_now = lateness(
            buffer.real, buffer.late_at, buffer.late_calls, buffer.deadline, buffer.late_weight, span
        )
        figures[CURRENT] += LATE_COSTS * lateness_now


@compiled
def improve(buffer: PlanBuffer, rounds: int, weights: Any) -> bool:
    """Propose and try `rounds` changes, and keep the good ones. Return whether there is a new best plan.

    It is one function because it is the inner loop: divided, it takes two to five percent longer.
    """
    whole, real, before, after, order = buffer.whole, buffer.real, buffer.before, buffer.after, buffer.order
    links, ends, group_speed, touched, todo, undo = (
        buffer.links, buffer.ends, buffer.group_speed, buffer.touched, buffer.todo, buffer.undo,
    )  # fmt: skip
    log, log_real, counts, figures, source = buffer.log, buffer.log_real, buffer.counts, buffer.figures, buffer.source
    switch, dirty, run = buffer.switch, buffer.dirty, buffer.run
    deadline = buffer.deadline
    multi_model, preload = (buffer.rules[-1] & MANY) != 0, buffer.rules[-1] == PRELOAD
    scale = figures[SCALE]
    new = False
    since_tails = 1 << 30
    for _ in range(rounds):
        if since_tails >= 30:
            note_tails(whole, real, after, order, links, switch)
            since_tails = 0
        allowed = figures[TEMPERATURE] * threshold_draw(source)
        # A plan beyond this makespan is hardly ever accepted: timing and cheap checks stop there.
        limit = figures[SPAN] * (1.0 + 2.0 * allowed)
        moves = propose(
            whole, real, before, order, links, ends, switch, buffer.may_begin, todo, run, weights, limit, source
        )  # fmt: skip
        if moves == 0 or (
            moves == 1
            and not multi_model
            and cannot_improve(whole, real, before, after, order, links, ends, switch, group_speed, todo, limit)
        ):
            continue
        many = 0
        if moves == SWAP_TAILS:
            many = swap_tails(whole, real, order, links, ends, group_speed, run, touched, todo[0])
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
            many = relocate(
                whole, real, before, after, order, links, ends, group_speed, touched, many, call, todo[i, TO], place
            )
        counts[TRIED] += 1
        if multi_model:
            changed, done = retime_all(buffer), True
        elif preload:
            many = touch_swapped(buffer, many, todo[0]) if moves == SWAP_TAILS else many
            changed, done = retime_preloading(buffer, many, limit)
        else:
            changed, done = retime(
                whole, real, before, after, order, links, buffer.held_first, buffer.free_first, switch, dirty, touched,
                many, log, log_real, limit,
            )  # fmt: skip
        counts[TIMED] += changed
        cost = late = 0.0
        if done:
            cost = cost_of(real, ends, scale)
            if len(deadline) > 0:
                late, lateness_now = lateness(
                    real, buffer.late_at, buffer.late_calls, deadline, buffer.late_weight, scale
                )
                cost += LATE_COSTS * lateness_now
        else:
            counts[CUT] += 1
        # If the last GPU becomes longer by the fraction `allowed`, the mean of 32nd powers rises by about this much.
        if done and cost <= figures[CURRENT] + allowed * 32.0 / len(ends):
            counts[TAKEN] += 1
            since_tails += 1
            figures[CURRENT] = cost
            span = span_of(real, ends)
            figures[SPAN] = span
            if late < figures[BEST_LATE] or (late == figures[BEST_LATE] and span < figures[BEST]):
                new = True
                figures[BEST_LATE] = late
                figures[BEST] = span
                for i in range(len(order)):
                    buffer.best_order[i] = order[i]
                    buffer.best_gpu[i] = whole[i, GPU]
            continue
        if moves == SWAP_TAILS:
            swap_tails(whole, real, order, links, ends, group_speed, run, touched, todo[0])
        # Undo in reverse order, and restore the times from the log instead of computing them.
        for i in range(moves - 1, -1, -1):
            relocate(
                whole, real, before, after, order, links, ends, group_speed, touched, 0,
                undo[i, CALL], undo[i, TO], undo[i, MARK],
            )  # fmt: skip
        restore(buffer, changed, preload)
    # Accepted moves leave the order only nearly sorted by start.
    sort(whole, real, order)
    return new
