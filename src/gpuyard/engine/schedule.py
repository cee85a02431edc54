"""The pass: place what can be placed, in order, and leave the rest asleep.

Only lines that something happened to are looked at: a task joined, a node they could use gained room, their class or
tenant gave something up, a reservation in their way ended. Their best tasks are tried from the highest standing down;
each is placed, or its line falls asleep, or its group is set aside until its tenant has room. So a pass costs what
changes, not what waits.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from gpuyard.domain.causes import Cause, Why
from gpuyard.domain.events import (
    AttemptResuming,
    AttemptStopping,
    AttemptSuspending,
    Event,
    ReservationDropped,
    ReservationMade,
    TaskPlaced,
)
from gpuyard.domain.placement import Placement, Slice
from gpuyard.domain.settings import Backfill
from gpuyard.domain.tenant import QuotaMode
from gpuyard.domain.values import Preemption, TaskId
from gpuyard.engine.backfill import holds_before, in_the_way, promise
from gpuyard.engine.phases import Running, Suspended
from gpuyard.engine.preemption import Raid, find_raid
from gpuyard.engine.queue import BATCH, ONLINE, Group, Line
from gpuyard.engine.quota import TenantBook
from gpuyard.engine.standing import Standing, is_borrowing, standing
from gpuyard.engine.state import Hold, State, needs_reservation
from gpuyard.engine.task import Task
from gpuyard.placement.bayset import BaySet, without
from gpuyard.placement.choose import choose
from gpuyard.placement.shape import Shape

Emit = Callable[[Event], None]
Ready = tuple[int, float, float, TaskId, Line, int, Group]
"""A standing, and where it was found."""

PLACES = (ONLINE, BATCH)


class Pass:
    """One pass over what may have changed."""

    def __init__(self, state: State, at: float, emit: Emit) -> None:
        self.state = state
        self.at = at
        self.emit = emit
        self.ready: list[Ready] = []
        self._simple = state.policy.tenant_key is None and state.split.mode is not QuotaMode.BORROW

    def run(self) -> None:
        """Place everything that can be placed."""
        state = self.state
        if state.freed:
            self._wake_for_freed()
        if state.holds:
            self._try_claims()
        if state.vacancy:
            self._fill_vacancy()
        ready = self.ready
        for line in state.queue.stir(state.classes).values():
            if line.awake:
                self._push(line, ONLINE)
                self._push(line, BATCH)
        while ready:
            entry = heappop(ready)
            line, place = entry[4], entry[5]
            if not line.awake:
                continue
            if not self._simple:
                now = self._best(line, place)
                if (
                    now is None or now[:4] != entry[:4]
                ):  # standings only get worse within a pass: put it where it belongs
                    if now is not None:
                        heappush(ready, now)
                    continue
            self._try(entry[3], line, place, entry[6])

    def _wake_for_freed(self) -> None:
        """Wake the lines that could use a node that gained room."""
        state = self.state
        queue, index = state.queue, state.index
        freed, state.freed = state.freed, {}
        for number in freed:
            bay = index.bays[number]
            if bay is None or not bay.host.open:
                continue
            bit, free = bay.bit, bay.free
            for gpus, lines in queue.by_gpus.items():
                if gpus <= free:
                    for line in lines.values():
                        if not line.awake:
                            line.shape.refresh(index)
                            if line.shape.eligible & bit:
                                queue.wake(line)

    def _push(self, line: Line, place: int) -> None:
        """Let the best task of a line and class take part in the pass."""
        if self._simple:
            head = line.head(place)
            if head is not None:
                heappush(self.ready, (0, 0.0, head[0], head[1], line, place, head[2]))
        elif (entry := self._best(line, place)) is not None:
            heappush(self.ready, entry)

    def _best(self, line: Line, place: int) -> Ready | None:
        """The best task of a line and class where standings change with every placement: all groups are compared."""
        state = self.state
        line.shape.refresh(state.index)
        borrowing = is_borrowing(state, place, line.shape.need_milli)
        tenant_key = state.policy.tenant_key
        entries: list[Ready] = []
        for key, task, group in line.tops(place):
            by_tenant = tenant_key(group.tenant, self.at, state.settings) if tenant_key else 0.0
            entries.append((borrowing, by_tenant, key, task, line, place, group))
        return min(entries, key=lambda entry: entry[:4], default=None)

    # --- one task ------------------------------------------------------------------------------------------------

    def _try(self, task_id: TaskId, line: Line, place: int, group: Group) -> None:
        """Place the best task of a line, or see to it that it is not tried again in vain."""
        state = self.state
        task = state.tasks.get(task_id)
        if task is None or task.group is not group or group.aside:
            self._push(line, place)
            return
        shape = line.shape
        shape.refresh(state.index)
        need = shape.need_milli
        book = state.classes[place]
        if book.used + need > book.limit:
            state.queue.over[place][line.number] = line
            self._give_up_promise(task)
            return
        tenant = group.tenant
        closed: BaySet = 0
        if tenant.used + need > tenant.limit or (tenant.tenant.budget is not None and not self._can_pay(tenant)):
            self._set_aside(task, group)
            return
        if tenant.model_limits:
            closed = self._closed_models(tenant, shape)
            if closed & shape.eligible and not without(shape.eligible, closed):
                self._set_aside(task, group)
                return
        placement, behind = self._find(task, shape, closed)
        if placement is not None:
            self._place(task, placement)
            self._push(line, place)
            if state.vacancy:
                self._fill_vacancy()
        elif self._raid(task, shape, line):
            self._push(line, place)
        elif closed & shape.eligible:
            self._set_aside(task, group)
        else:
            state.queue.sleep(line, behind=behind)
            self._reserve(task, shape)

    def _set_aside(self, task: Task, group: Group) -> None:
        """Its tenant is at a limit: the line goes on without the group."""
        self.state.queue.set_aside(group)
        self._give_up_promise(task)
        self._push(group.line, group.place)

    def _give_up_promise(self, task: Task) -> None:
        if task.id in self.state.holds:
            self.emit(ReservationDropped(task.id, Cause(Why.AT_LIMIT)))

    def _find(self, task: Task, shape: Shape, closed: BaySet) -> tuple[Placement | None, bool]:
        """Room for a task that is promised to nobody before it; else whether it is only such promises that stand in the way."""
        state = self.state
        order = state.order_for(shape.gpus)
        if state.settings.backfill is Backfill.NONE and self._somebody_first(task, shape):
            return None, True
        if not state.held_bays & shape.eligible:
            return choose(shape, state.index, order, closed), False
        holds = holds_before(state, standing(state, task, shape.need_milli, self.at), self.at)
        holds = [hold for hold in holds if hold.task is not task]
        held: BaySet = 0
        for hold in holds:
            held |= hold.bays
        placement = choose(shape, state.index, order, closed | held)
        if placement is None and held & shape.eligible:
            away = in_the_way(state, task, shape, self.at, holds)
            placement = choose(shape, state.index, order, closed | away)
            if placement is None and away:
                return None, choose(shape, state.index, order, closed) is not None
        return placement, False

    def _somebody_first(self, task: Task, shape: Shape) -> bool:
        """Without backfill: whether a task that goes before wants any of the same nodes."""
        state = self.state
        mine = standing(state, task, shape.need_milli, self.at)
        return any(
            line.shape.eligible & shape.eligible and self._first_of(line, place, mine) is not None
            for line in state.queue.lines.values()
            if not line.awake
            for place in PLACES
        )

    def _first_of(self, line: Line, place: int, before: Standing) -> Task | None:
        """The best task of a sleeping line and class that only lacks room, if it goes before."""
        state, need = self.state, line.shape.need_milli
        if state.classes[place].used + need > state.classes[place].limit:
            return None
        tops = [
            (standing(state, state.tasks[task], need, self.at), state.tasks[task])
            for _, task, group in line.tops(place)
            if group.tenant.used + need <= group.tenant.limit and self._can_pay(group.tenant)
        ]
        first = min(tops, key=lambda top: top[0], default=None)
        return first[1] if first is not None and first[0] < before else None

    def _can_pay(self, tenant: TenantBook) -> bool:
        if tenant.tenant.budget is None or tenant.budget_left(self.at) > 0:
            return True
        heappush(self.state.timers, (tenant.renews_at(self.at), TaskId(0)))
        return False

    def _closed_models(self, tenant: TenantBook, shape: Shape) -> BaySet:
        """Bays of the models of which the tenant may not have so many more."""
        closed: BaySet = 0
        for model, limit in tenant.model_limits.items():
            if tenant.used_by_model.get(model, 0) + shape.need_milli > limit:
                closed |= self.state.index.by_model.get(model, 0)
        return closed

    def _place(self, task: Task, placement: Placement) -> None:
        phase = task.phase
        if isinstance(phase, Suspended):
            self.emit(AttemptResuming(task.id, phase.attempt, _with_memory(placement, phase.placement)))
        else:
            self.emit(TaskPlaced(task.id, task.attempts + 1, placement))
        if self.state.holds:
            self._drop_overtaken(task, placement)

    def _drop_overtaken(self, task: Task, placement: Placement) -> None:
        """A task that goes before took a promised node: the promise may not hold any more, so it is made anew."""
        taken = self.state.index.bays_of(placement.nodes)
        for hold in list(self.state.holds.values()):
            if hold.bays & taken and not hold.claim:
                mine = standing(self.state, task, hold.shape.need_milli, self.at)
                if mine < standing(self.state, hold.task, hold.shape.need_milli, self.at):
                    self.emit(ReservationDropped(hold.task.id, Cause(Why.OVERTAKEN, task=task.id)))

    # --- reservations --------------------------------------------------------------------------------------------

    def _depth(self) -> int:
        settings = self.state.settings
        return {Backfill.EASY: 1, Backfill.CONSERVATIVE: settings.reservations}.get(settings.backfill, 0)

    def _reserve(self, task: Task, shape: Shape) -> None:
        """Promise nodes to a task that found no room, if it is among the first in line for them."""
        depth = self._depth()
        state = self.state
        if not depth or task.id in state.holds or not needs_reservation(shape):
            return
        mine = standing(state, task, shape.need_milli, self.at)
        before = [hold for hold in holds_before(state, mine, self.at) if hold.shape.eligible & shape.eligible]
        if len([hold for hold in before if not hold.claim]) >= depth:
            return
        found = promise(state, task, shape, self.at, before)
        if found is None:
            return
        self.emit(ReservationMade(task.id, found.nodes, found.starts_at))
        for hold in self._behind(mine, shape)[max(0, depth - len(before) - 1) :]:
            self.emit(ReservationDropped(hold.task.id, Cause(Why.OVERTAKEN, task=task.id)))

    def _behind(self, mine: Standing, shape: Shape) -> list[Hold]:
        """Reservations of tasks further back in the same line, first of them first."""
        state = self.state
        standings = [
            (standing(state, hold.task, hold.shape.need_milli, self.at), hold) for hold in state.holds.values()
        ]
        behind = [
            pair
            for pair in standings
            if pair[0] > mine and pair[1].shape.eligible & shape.eligible and not pair[1].claim
        ]
        return [hold for _, hold in sorted(behind, key=lambda pair: pair[0])]

    def _fill_vacancy(self) -> None:
        """A reservation ended, or somebody joined who goes before: give the first in line theirs before others are tried."""
        state = self.state
        state.vacancy = False
        if state.settings.backfill is Backfill.NONE:
            for line in list(state.queue.lines.values()):
                if line.behind:
                    state.queue.wake(line)
        elif self._depth():
            firsts = []
            for line in state.queue.lines.values():
                if not line.awake and needs_reservation(line.shape):
                    line.shape.refresh(state.index)
                    for place in PLACES:
                        task = self._first_of(line, place, (2, 0.0, 0.0, TaskId(0)))
                        if task is not None:
                            firsts.append((standing(state, task, line.shape.need_milli, self.at), task, line.shape))
            for _, task, shape in sorted(firsts, key=lambda first: first[0]):
                self._reserve(task, shape)
        for line in state.queue.stir(state.classes).values():
            if line.awake:
                self._push(line, ONLINE)
                self._push(line, BATCH)
        state.vacancy = False

    # --- preemption ----------------------------------------------------------------------------------------------

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
        self.emit(ReservationMade(task.id, raid.nodes, self.at, claim=True))
        for victim in raid.victims:
            assert isinstance(victim.phase, Running)
            cause = Cause(raid.why, task=task.id)
            if victim.spec.preemption is Preemption.SUSPEND:
                self.emit(AttemptSuspending(victim.id, victim.phase.attempt, cause))
            else:
                self.emit(AttemptStopping(victim.id, victim.phase.attempt, cause))

    def _try_claims(self) -> None:
        """Those whose victims are gone get the place that was cleared for them, first come first."""
        state = self.state
        claims = [hold for hold in state.holds.values() if hold.claim and not hold.victims]
        for hold in sorted(claims, key=lambda hold: standing(state, hold.task, hold.shape.need_milli, self.at)):
            task, shape = hold.task, hold.shape
            shape.refresh(state.index)
            book, tenant = state.classes[PLACES[_place(task)]], state.book(task.spec.tenant)
            allowed = book.used + shape.need_milli <= book.limit and tenant.used + shape.need_milli <= tenant.limit
            closed = self._closed_models(tenant, shape) | without(state.index.everywhere, hold.bays)
            placement = (
                choose(shape, state.index, state.order_for(shape.gpus), closed)
                if allowed and self._can_pay(tenant)
                else None
            )
            if placement is not None:
                self._place(task, placement)
            else:
                self.emit(ReservationDropped(task.id, Cause(Why.OVERTAKEN)))


def _place(task: Task) -> int:
    return ONLINE if task.spec.task_class == "online" else BATCH


def _with_memory(placement: Placement, before: Placement) -> Placement:
    """A suspended attempt goes on with the host memory it never gave up."""
    had = {part.node: part.memory_mib for part in before.slices}
    parts = (
        Slice(part.node, part.gpus, part.milli, part.gpu_memory_mib, part.cpus, had[part.node])
        for part in placement.slices
    )
    return Placement(tuple(parts))
