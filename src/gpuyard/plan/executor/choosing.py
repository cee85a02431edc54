"""Chooses what a free GPU does next.

0. The call of its queue with the highest priority, if that is ready and above the priority of the first.
1. The first call of its queue, if that is ready.
2. Otherwise another call of its queue that is ready, needs no other model and ends before the first can start. The
   plan's order was best for the planned durations; with other durations a later call is often ready first.
3. Otherwise a call of another GPU (*steal*), from the queue that is furthest behind: the call that ends earliest here
   compared with there, loading included, and ends early enough to load the own model again before the first call of
   the own queue can start.
4. Otherwise it prepares for the first call of its queue: unloads, loads, waits.
"""

from dataclasses import dataclass
from math import inf

from gpuyard.plan.executor.execution_state import ExecutionState

LOOKED_AT = 64
"""The number of calls of a queue that are considered, from its head for gaps, from its tail for steals."""
VICTIMS = 16
"""The number of queues that are considered for steals, those that are furthest behind."""
PATIENCE = 0.25
"""A call that fills a gap may delay the first call by this fraction of its own duration."""


def own(execution: ExecutionState, gpu: int) -> int | None:
    """Return the call of its own queue that a free GPU handles next, ready or not. None: the queue is empty."""
    queue = execution.gpus[gpu].queue
    if not queue:
        return None
    urgent = _urgent(execution, queue) if execution.work.has_priorities else None
    if urgent is not None:
        return urgent
    head = queue[0]
    group = execution.work.group(execution.work.model[head], execution.home[head])
    free = all(execution.gpus[other].idle for other in group)
    if execution.is_ready(head) and free and execution.can_begin_at(head) <= execution.now:
        return head
    room = execution.can_begin_at(head) - execution.now
    for call in queue[1:LOOKED_AT]:
        if execution.is_ready(call) and _fills(execution, call, room):
            return call
    return head


def _urgent(execution: ExecutionState, queue: list[int]) -> int | None:
    """Return the first ready call of the highest priority, if that is above the priority of the first call."""
    priority = execution.work.priority
    best = None
    for call in queue[1:]:
        if priority[call] > priority[queue[0] if best is None else best] and execution.is_ready(call):
            group = execution.work.group(execution.work.model[call], execution.home[call])
            if all(execution.gpus[gpu].idle for gpu in group):
                best = call
    return best


def _fills(execution: ExecutionState, call: int, room_s: float) -> bool:
    model, first = execution.work.model[call], execution.home[call]
    seconds = execution.seconds(call, first)
    return (
        seconds * (1 - PATIENCE) <= room_s
        and execution.has_loaded(model, first)
        and all(execution.gpus[gpu].idle for gpu in execution.work.group(model, first))
    )


def steal(execution: ExecutionState, gpu: int, *, at_any_price: bool) -> tuple[int, int] | None:
    """Return a call that ends sooner on this idle GPU than where it is queued, and the first GPU of its group here.

    `at_any_price`: nothing is under way anywhere, so an unassigned call is taken regardless of what it delays.
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
        # From the tail of the queue back: `at` is the expected end of each call where it is queued.
        at = end
        for call in reversed(execution.gpus[victim].queue[-LOOKED_AT:]):
            # No earlier call of this queue can gain more than it has left to wait.
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
    """A group of idle GPUs for a model: when it would have loaded the model, and when it must be free again."""

    first: int
    ready_s: float
    until_s: float


def _offer(execution: ExecutionState, model: int, gpu: int, *, at_any_price: bool) -> Offer | None:
    """Return the group of idle GPUs, including this one, that would have the model loaded soonest."""
    work = execution.work
    best: Offer | None = None
    for first in range(max(0, gpu - work.width[model] + 1), gpu + 1):
        group = work.group(model, first)
        if not execution.allowed(model, first) or not all(execution.gpus[other].idle for other in group):
            continue
        if not execution.has_loaded(model, first) and any(execution.gpus[other].copying for other in group):
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
    """Seconds to load the model of the GPU's own next call again after this model was loaded."""
    queue = execution.gpus[gpu].queue
    if not queue:
        return 0.0
    next_model = execution.work.model[queue[0]]
    if next_model == model or execution.work.multi_model:
        return 0.0
    return execution.work.unload_s[model] + execution.work.load_s[next_model]
