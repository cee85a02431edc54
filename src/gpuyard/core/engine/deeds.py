"""What a pass does for a task once it is clear whose turn it is: place it, promise it nodes, or stop others for it.

The rules behind it are in `backfill` (promises) and `preemption` (raids); here they become facts. A promise is taken
back from a task that a quota stops, and made anew when somebody who goes before takes the node.
"""

from collections.abc import Callable
from heapq import heappush

from gpuyard.core.domain.causes import Cause, Why
from gpuyard.core.domain.events import (
    AttemptResuming,
    AttemptStopping,
    AttemptSuspending,
    Event,
    ReservationDropped,
    ReservationMade,
    TaskPlaced,
)
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.settings import Backfill
from gpuyard.core.domain.values import Preemption, TaskId
from gpuyard.core.engine.backfill import holds_before, promise
from gpuyard.core.engine.phases import Running, Suspended
from gpuyard.core.engine.preemption import Raid, find_raid
from gpuyard.core.engine.queue import SOME, Line
from gpuyard.core.engine.quota import BATCH, ONLINE, ClassBook, TenantBook
from gpuyard.core.engine.standing import Standing, standing
from gpuyard.core.engine.state import Hold, State, needs_reservation
from gpuyard.core.engine.task import Task
from gpuyard.core.placement.choose import choose
from gpuyard.core.placement.device_group_mask import BaySet, without
from gpuyard.core.placement.shape import Shape

Emit = Callable[[Event], None]

CLASS_INDEXES = (ONLINE, BATCH)
LAST = (float("inf"), TaskId(1 << 62))
LAST_OF_ALL = (2, *LAST[:1], *LAST)
"""Behind everybody, by key and by standing."""


class Deeds:
    """What can be done for a task, at one instant."""

    def __init__(self, state: State, emit: Emit) -> None:
        self.state = state
        self.at = 0.0
        self.emit = emit
        self.placed = 0
        """How many tasks this pass has placed."""
        self._plain = True
        """A task's key is its standing: no tenant keys, no borrowing."""

    def _place(self, task: Task, placement: Placement) -> None:
        self.placed += 1
        phase = task.phase
        if isinstance(phase, Suspended):
            placement = _with_memory(placement, phase.placement)
            self.emit(AttemptResuming(task.id, phase.attempt, placement, task.round))
        else:
            self.emit(TaskPlaced(task.id, task.attempts + 1, placement))
        if self.state.holds:
            self._drop_overtaken(task, placement)

    def _first_with_class(self, class_index: int) -> tuple[float, TaskId, Line] | None:
        """The first line parked with a class whose best task could ever have what it wants; others stand in nobody's way."""
        queue, limit = self.state.queue, self.state.classes[class_index].limit
        while (first := queue.first_with_class(class_index)) is not None:
            line = first[2]
            line.shape.refresh(self.state.index)
            head = line.head(class_index)
            if line.shape.need_milli > limit:
                queue.park_for_good(queue.unpark_from_class(class_index), class_index)
            elif not line.shape.can_start(self.state.index):
                queue.sleep(queue.unpark_from_class(class_index), behind=False)
            elif head is not None and line.shape.need_milli > head[2].tenant.limit:
                queue.unpark_from_class(class_index)
                queue.park_with_tenant(head[2], SOME)
                if line.head(class_index) is not None:
                    queue.park_with_class(line, class_index)
            else:
                return first
        return None

    def _drop_overtaken(self, task: Task, placement: Placement) -> None:
        """A task that goes before took a promised node: the promise may not hold any more, so it is made anew."""
        taken = self.state.index.bays_of(placement.nodes)
        for hold in list(self.state.holds.values()):
            if hold.bays & taken and not hold.claim:
                mine = standing(self.state, task, self.at)
                if mine < hold.standing:
                    self.emit(ReservationDropped(hold.task.id, Cause(Why.OVERTAKEN, task=task.id)))

    # --- promises ----------------------------------------------------------------------------------------------------

    def _depth(self) -> int:
        settings = self.state.settings
        return {Backfill.EASY: 1, Backfill.CONSERVATIVE: settings.reservations}.get(settings.backfill, 0)

    def _reserve(self, task: Task, shape: Shape) -> None:
        """Promise nodes to a task that found no room, if it is among the first in line for them."""
        depth = self._depth()
        state = self.state
        if not depth or task.id in state.holds or not needs_reservation(shape):
            return
        mine = standing(state, task, self.at)
        before = holds_before(state, task, self.at)
        before = [hold for hold in before if hold.shape.eligible & shape.eligible]
        if len([hold for hold in before if not hold.claim]) >= depth or self._is_at_limit(task, shape):
            return
        need, left = shape.need_milli, quota_left(task, state.classes[task.class_index], task.book, before)
        if need and need > min(left):
            return
        found = promise(state, task, shape, self.at, before, closed=shape.too_dear(min(left)))
        if found is None:
            return
        self.emit(ReservationMade(task.id, found.nodes, found.starts_at, borrowed=bool(mine[0]), tenant_key=mine[1]))
        for hold in self._behind(mine, shape)[max(0, depth - len(before) - 1) :]:
            self.emit(ReservationDropped(hold.task.id, Cause(Why.OVERTAKEN, task=task.id)))

    def _behind(self, mine: Standing, shape: Shape) -> list[Hold]:
        """Reservations of tasks further back in the same line, first of them first."""
        state = self.state
        standings = [(hold.standing, hold) for hold in state.holds.values()]
        behind = [
            pair
            for pair in standings
            if pair[0] > mine and pair[1].shape.eligible & shape.eligible and not pair[1].claim
        ]
        return [hold for _, hold in sorted(behind, key=lambda pair: pair[0])]

    def _promise_more(self) -> bool:
        """Give a reservation to everyone in the sleeping lines who is due one; whether any line was woken by it."""
        state = self.state
        if not self._depth():
            return False
        firsts = []
        for line in state.queue.lines.values():
            if not line.awake and needs_reservation(line.shape):
                line.shape.refresh(state.index)
                for class_index in CLASS_INDEXES:
                    task = self._first_of(line, class_index, LAST_OF_ALL)
                    if task is not None and task.id not in state.holds:
                        firsts.append((standing(state, task, self.at), task, line.shape))
        for _, task, shape in sorted(firsts, key=lambda first: first[0]):
            self._reserve(task, shape)
        state.vacancy = False
        return bool(state.queue.stirred)

    def _first_of(self, line: Line, class_index: int, before: Standing) -> Task | None:
        """The best task of a sleeping line and class that only lacks room, if it goes before."""
        state, need = self.state, line.shape.need_milli
        if need and state.classes[class_index].used + need > state.classes[class_index].limit:
            return None
        if self._plain:
            head = line.head(class_index)
            if head is None or (need and not self._has_room(head[2].tenant, need)):
                return None
            return state.tasks[head[1]] if (0, 0.0, head[0], head[1]) < before else None
        tops = [
            (standing(state, state.tasks[task], self.at), state.tasks[task])
            for _, task, group in line.tops(class_index)
            if not need or self._has_room(group.tenant, need)
        ]
        first = min(tops, key=lambda top: top[0], default=None)
        return first[1] if first is not None and first[0] < before else None

    def _recall_promises(self) -> bool:
        """Take reservations back from tasks that a quota stops now; their lines are tried again, without."""
        state = self.state
        stopped = [
            hold
            for hold in state.holds.values()
            if not hold.claim and self._is_at_limit(hold.task, hold.shape, hold.need_milli)
        ]
        for hold in stopped:
            self._give_up_promise(hold.task)
            if hold.task.group is not None:
                state.queue.wake(hold.task.group.line)
        return bool(stopped)

    def _give_up_promise(self, task: Task) -> None:
        if task.id in self.state.holds:
            self.emit(ReservationDropped(task.id, Cause(Why.AT_LIMIT)))

    # --- raids -------------------------------------------------------------------------------------------------------

    def _raid(self, task: Task, shape: Shape, line: Line) -> bool:
        """Stop others for a task that found no room, if it has the right to; it gets their place when they are gone."""
        state = self.state
        if not state.may_preempt():
            return False
        raid, retry_at = find_raid(state, task, shape, self.at)
        if raid is None:
            if retry_at is not None:
                heappush(state.timers, (retry_at, TaskId(-line.number)))
            return False
        self._claim(task, raid)
        return True

    def _claim(self, task: Task, raid: Raid) -> None:
        borrowed, tenant_key, _, _ = standing(self.state, task, self.at)
        self.emit(ReservationMade(task.id, raid.nodes, self.at, True, bool(borrowed), tenant_key))
        for victim in raid.victims:
            assert isinstance(victim.phase, Running)
            cause = Cause(raid.why, task=task.id)
            if victim.preemption is Preemption.SUSPEND:
                self.emit(AttemptSuspending(victim.id, victim.phase.attempt, cause, victim.round + 1))
            else:
                self.emit(AttemptStopping(victim.id, victim.phase.attempt, cause))

    def _try_claims(self) -> None:
        """Those whose victims are gone get the place that was cleared for them, first come first."""
        state = self.state
        claims = [hold for hold in state.holds.values() if hold.claim and not hold.victims]
        for hold in sorted(claims, key=lambda hold: hold.standing):
            task, shape = hold.task, hold.shape
            shape.refresh(state.index)
            book, tenant = state.classes[task.class_index], task.book
            left = min(book.limit - book.used, tenant.limit - tenant.used)
            allowed = shape.need_milli <= left or not shape.need_milli
            closed = self._closed_models(tenant, shape) | shape.too_dear(left)
            closed |= without(state.index.everywhere, hold.bays)
            placement = (
                choose(shape, state.index, state.order_for(shape.gpus), closed, model=task.model)
                if allowed and self._can_pay(tenant)
                else None
            )
            if placement is not None:
                self._place(task, placement)
            else:
                self.emit(ReservationDropped(task.id, Cause(Why.ROOM_LOST)))

    # --- quotas ------------------------------------------------------------------------------------------------------

    def _is_at_limit(self, task: Task, shape: Shape, need: int | None = None) -> bool:
        book, tenant = self.state.classes[task.class_index], task.book
        need = shape.need_milli if need is None else need
        if not need:
            return False
        if book.used + need > book.limit or not self._has_room(tenant, need):
            return True
        return bool(tenant.model_limits and self._closed_models(tenant, shape) & shape.eligible)

    def _has_room(self, tenant: TenantBook, need: int) -> bool:
        return tenant.used + need <= tenant.limit and self._can_pay(tenant)

    def _can_pay(self, tenant: TenantBook) -> bool:
        if tenant.tenant.budget is None or tenant.budget_left(self.at) > 0:
            return True
        renews_at = tenant.renews_at(self.at)
        if tenant.awaited != renews_at:
            tenant.awaited = renews_at
            heappush(self.state.timers, (renews_at, TaskId(0)))
        return False

    def _closed_models(self, tenant: TenantBook, shape: Shape) -> BaySet:
        return closed_models(self.state, tenant, shape)


def closed_models(state: State, tenant: TenantBook, shape: Shape) -> BaySet:
    """Bays of the models of which the tenant may not have so many more."""
    closed: BaySet = 0
    for model, limit in tenant.model_limits.items():
        left = limit - tenant.used_by_model.get(model, 0)
        if shape.need_milli > left:
            closed |= state.index.by_model.get(model, 0)
        elif shape.needs is not None:
            closed |= state.index.by_model.get(model, 0) & shape.too_dear(left)
    return closed


def quota_left(task: Task, book: ClassBook, tenant: TenantBook, before: list[Hold]) -> tuple[int, int]:
    """What class and tenant have left for a task, besides those who were promised nodes and go before."""
    in_class, in_tenant = book.limit - book.used, tenant.limit - tenant.used
    for hold in before:
        if hold.task.class_index == task.class_index:
            in_class -= hold.need_milli
        if hold.task.book is tenant:
            in_tenant -= hold.need_milli
    return in_class, in_tenant


def short_of(task: Task, need: int, book: ClassBook, tenant: TenantBook, before: list[Hold]) -> str:
    """Which quota has not enough left for those who were promised nodes and go before: "class", "tenant" or none."""
    in_class, in_tenant = quota_left(task, book, tenant, before)
    return "class" if need > in_class else "tenant" if need > in_tenant else ""


def _with_memory(placement: Placement, before: Placement) -> Placement:
    """A suspended attempt goes on with the host memory it never gave up."""
    had = {part.node: part.memory_mib for part in before.slices}
    parts = (
        Slice(part.node, part.gpus, part.milli, part.gpu_memory_mib, part.cpus, had[part.node])
        for part in placement.slices
    )
    return Placement(tuple(parts))
