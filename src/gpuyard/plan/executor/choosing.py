"""What a GPU that is free does next.

1. The first call of its queue, when that is ready.
2. When it is not: another one of its queue that is, needs no other model, and is over before the first can begin. The
   plan's order was best for the plan's durations; with others, something is often ready that was to come later.
3. When there is none: a call of somebody else (*steal*), from the queue that is furthest behind: the one that would end
   so much earlier here, loading included, and is over, with the own model back, before the first of the own queue can begin.
4. Otherwise it prepares for the first of its queue: unloads, loads, waits.
"""

from dataclasses import dataclass
from math import inf

from gpuyard.plan.executor.execution_state import ExecutionState

LOOKED_AT = 64
"""So many calls of a queue are looked at, from its head for gaps, from its tail for steals."""
VICTIMS = 16
"""So many queues are looked into for steals, those that are furthest behind."""
PATIENCE = 0.25
"""A call that fills a gap may make the first one wait for this part of its own length."""


def own(execution: ExecutionState, gpu: int) -> int | None:
    """Which call of its own queue a free GPU takes up; it may not be ready yet."""
    queue = execution.gpus[gpu].queue
    if not queue:
        return None
    head = queue[0]
    group = execution.work.group(execution.work.model[head], execution.home[head])
    if execution.is_ready(head) and all(execution.gpus[other].idle for other in group):
        return head
    room = execution.can_begin_at(head) - execution.now
    for call in queue[1:LOOKED_AT]:
        if execution.is_ready(call) and _fills(execution, call, room):
            return call
    return head


def _fills(execution: ExecutionState, call: int, room_s: float) -> bool:
    model, first = execution.work.model[call], execution.home[call]
    seconds = execution.seconds(call, first)
    return (
        seconds * (1 - PATIENCE) <= room_s
        and execution.has_loaded(model, first)
        and all(execution.gpus[gpu].idle for gpu in execution.work.group(model, first))
    )


def steal(execution: ExecutionState, gpu: int, *, at_any_price: bool) -> tuple[int, int] | None:
    """A call that is better off with an idle GPU than where it is queued, and the first GPU of its group here.

    `at_any_price`: nothing is under way anywhere, so an unassigned call is taken whatever it delays.
    """
    for call in execution.unassigned:
        if execution.is_ready(call):
            offer = _offer(execution, execution.work.model[call], gpu, at_any_price=at_any_price)
            if offer is not None and offer.ready_s + execution.seconds(call, offer.first) <= offer.until_s:
                return call, offer.first
    offers: dict[int, Offer | None] = {}
    ends = [
        (execution.queued_until(other), other)
        for other, state in enumerate(execution.gpus)
        if other != gpu and state.queue
    ]
    for end, victim in sorted(ends, key=lambda item: (-item[0], item[1]))[:VICTIMS]:
        best: tuple[float, int, int] | None = None
        at = end
        for call in reversed(execution.gpus[victim].queue[-LOOKED_AT:]):
            if at <= execution.now or (best is not None and at - execution.now <= best[0]):
                break
            if execution.is_ready(call):
                model = execution.work.model[call]
                if model not in offers:
                    offers[model] = _offer(execution, model, gpu, at_any_price=False)
                offer = offers[model]
                if offer is not None and offer.first != execution.home[call]:
                    here = offer.ready_s + execution.seconds(call, offer.first)
                    if here < at and here <= offer.until_s and (best is None or at - here > best[0]):
                        best = (at - here, call, offer.first)
            at -= execution.seconds(call, execution.home[call])
        if best is not None:
            return best[1], best[2]
    return None


@dataclass(frozen=True, slots=True)
class Offer:
    """What an idle GPU can do for calls of a model: which group, when it would have loaded, and by when it must be done."""

    first: int
    ready_s: float
    until_s: float


def _offer(execution: ExecutionState, model: int, gpu: int, *, at_any_price: bool) -> Offer | None:
    """The group with this GPU in it, all idle, that would have a model soonest."""
    work = execution.work
    best: Offer | None = None
    for first in range(max(0, gpu - work.width[model] + 1), gpu + 1):
        group = work.group(model, first)
        if not execution.allowed(model, first) or not all(execution.gpus[other].idle for other in group):
            continue
        ready_s = execution.now + execution.switch_s(model, first)
        if best is None or ready_s < best.ready_s:
            until_s = inf if at_any_price else min(_next(execution, x) - _way_back(execution, x, model) for x in group)
            best = Offer(first, ready_s, until_s)
    return best


def _next(execution: ExecutionState, gpu: int) -> float:
    queue = execution.gpus[gpu].queue
    return execution.can_begin_at(queue[0]) if queue else inf


def _way_back(execution: ExecutionState, gpu: int, model: int) -> float:
    """What it takes to have the model of the own next call again, once another one was loaded."""
    queue = execution.gpus[gpu].queue
    if not queue:
        return 0.0
    next_model = execution.work.model[queue[0]]
    if next_model == model or execution.work.many_residents:
        return 0.0
    return execution.work.unload_s[model] + execution.work.load_s[next_model]
