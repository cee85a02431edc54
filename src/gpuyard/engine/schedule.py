"""The pass: place what can be placed, in order, and leave the rest asleep.

Only lines that something happened to are looked at: a task joined, a node they could use gained room, their class or
tenant gave something up, a reservation in their way ended. Their best tasks are tried from the highest standing down;
each is placed, or its line falls asleep, or its group is set aside until its tenant has room. So a pass costs what
changes, not what waits.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

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
from gpuyard.domain.values import Link, Preemption, TaskId
from gpuyard.engine.backfill import holds_before, in_the_way, need_of, promise
from gpuyard.engine.phases import Running, Suspended
from gpuyard.engine.preemption import Raid, find_raid
from gpuyard.engine.queue import SOME, TOTAL, Group, Head, Line
from gpuyard.engine.quota import BATCH, ONLINE, ClassBook, TenantBook
from gpuyard.engine.standing import Standing, is_borrowing, standing
from gpuyard.engine.state import Hold, State, needs_reservation
from gpuyard.engine.task import Task
from gpuyard.placement.bayset import BaySet, without
from gpuyard.placement.choose import choose
from gpuyard.placement.index import Bay
from gpuyard.placement.shape import Shape

Emit = Callable[[Event], None]
Rank = float | tuple[int, float, float]
"""A standing without the number. Policies that look at nothing but the task make do with its key."""
Ready = tuple[Any, TaskId, Line, Group]
"""The best task of a line and class: rank, number, line, group."""

PLACES = (ONLINE, BATCH)
NO_LINES: dict[int, Line] = {}
NO_ANSWER: Any = object()
LAST = (float("inf"), TaskId(1 << 62))
LAST_OF_ALL = (2, *LAST[:1], *LAST)
"""Behind everybody, by key and by standing."""


class Pass:
    """A pass over what may have changed since the last one."""

    def __init__(self, state: State, emit: Emit) -> None:
        self.state = state
        self.at = 0.0
        self.emit = emit
        self.ready: list[Ready] = []
        self._plain = True
        """A task's key is its standing: no tenant keys, no borrowing."""

    def run(self, at: float) -> None:
        """Place everything that can be placed."""
        state = self.state
        queue = state.queue
        if not (state.freed or queue.stirred or state.vacancy or queue.loosened or True in queue.class_loosened):
            return
        self.at = at
        self._plain = state.policy.tenant_key is None and state.split.mode is not QuotaMode.BORROW
        alone = not (state.vacancy or queue.loosened) and len(state.freed) + len(queue.stirred) == 1
        if alone and self._plain and (self._refill() if state.freed else self._admit()):
            return
        if state.freed:
            self._wake_for_freed()
        if not self._plain:
            self._doubt_all()
        if queue.loosened:
            self._unpark_tenants()
        if state.holds:
            self._try_claims()
        if state.vacancy:
            self._fill_vacancy()
        self._drain()
        while (state.holds and self._recall_promises()) or state.vacancy:
            if state.vacancy:
                self._fill_vacancy()
            self._drain()

    def _drain(self) -> None:
        """Try everything that takes part, in order of standing, until nothing is left to try."""
        self._push_stirred()
        ready, loosened = self.ready, self.state.queue.class_loosened
        while True:
            if loosened[ONLINE] or loosened[BATCH]:
                line = self._first_of_a_class()
                if line is not None:
                    continue
            if not ready:
                return
            rank, task, line, group = heappop(ready)
            if not line.awake:
                continue
            if not self._plain and (best := self._best(line, group.place)) != (rank, task, line, group):
                if best is not None:
                    heappush(ready, best)  # others were placed meanwhile: it stands further back now
                continue
            self._try(task, line, group)

    def _first_of_a_class(self) -> Line | None:
        """Try the first task parked with a class that has room for it, if it goes before everybody who takes part."""
        queue, books, ready = self.state.queue, self.state.classes, self.ready
        for place in PLACES:
            if not queue.class_loosened[place]:
                continue
            if not self._plain:
                self._unpark_all(place)
                continue
            first = queue.first_with_class(place)
            if first is not None:
                first[2].shape.refresh(self.state.index)
            if (
                first is None
                or books[place].used + first[2].shape.need_milli > books[place].limit >= first[2].shape.need_milli
            ):
                queue.class_loosened[place] = False
            elif not ready or first[:2] < ready[0][:2]:
                line = queue.unpark_from_class(place)
                if line.awake and (head := line.head(place)) is not None:
                    self._try(head[1], line, head[2])
                return line
        return None

    def _unpark_all(self, place: int) -> None:
        """Where standings change with every placement, all lines parked with a class take part again."""
        queue = self.state.queue
        queue.class_loosened[place] = False
        while queue.first_with_class(place) is not None:
            line = queue.unpark_from_class(place)
            if line.awake:
                self._push(line, place)

    # --- the short way -------------------------------------------------------------------------------------------

    def _refill(self) -> bool:
        """The short way for the commonest case: one node gained room, and what waits sleeps for want of just that.

        Sleeping lines fit nowhere else, so the best task among those that fit this node is the one, and nothing has
        to be woken. Whatever is not plain (shares, gangs, CPUs, a class that has room for somebody elsewhere) is
        answered with no, and the long way begins: it finds everything as it would have been, only later.
        """
        state = self.state
        queue = state.queue
        bay = state.index.bays[next(iter(state.freed))]
        if bay is None or not bay.host.open or state.settings.backfill is Backfill.NONE:
            return False
        if any(not line.awake for line in queue.by_gpus.get(0, NO_LINES).values()):
            return False  # shares and tasks without GPUs do not ask for whole free ones
        stopped: list[tuple[Line, int]] = []
        while True:
            parked = self._first_with_quota() if True in queue.class_loosened else None
            best = self._best_for(bay, stopped) if bay.free else None
            if best is NO_ANSWER:
                return False
            if parked is not None and (best is None or parked < best):
                line = queue.unpark_from_class(parked[2].place)
                self._try(parked[1], line, parked[2])
                if self.ready or queue.stirred or state.vacancy:
                    return False
            elif best is None:
                break
            elif not self._refill_with(best, bay):
                return False
        for line, place in stopped:
            if line.shape.gpus <= bay.free:  # there is room, and only the quota is missing
                line.awake = True
                if not line.parked[place] and (head := line.head(place)) is not None:
                    self._park_with_class(line, place, head)
        state.freed = {}
        queue.class_loosened[ONLINE] = queue.class_loosened[BATCH] = False
        return not (queue.stirred or state.vacancy or (state.holds and self._recall_promises()))

    def _admit(self) -> bool:
        """The short way for the next commonest case: a task joined a line that may have room, and nothing else happened."""
        state = self.state
        queue, index = state.queue, state.index
        line = next(iter(queue.stirred.values()))
        shape = line.shape
        if not line.awake or not shape.plain or shape.version != index.version or shape.link is not Link.ANY:
            return False
        if state.held_bays & shape.eligible or state.settings.backfill is Backfill.NONE or True in line.parked:
            return False
        order = state.order_for(shape.gpus)
        while (head := line.head(ONLINE) or line.head(BATCH)) is not None:
            group = head[2]
            if group.place == ONLINE and (other := line.head(BATCH)) is not None and other < head:
                head, group = other, other[2]
            if queue.with_class[group.place] or not self._quotas_allow(state.tasks[head[1]], group, shape.need_milli):
                return False
            placement = choose(shape, index, order)
            if placement is None:
                return False
            self._place(state.tasks[head[1]], placement)
        queue.stirred = {}
        return not (state.vacancy or (state.holds and self._recall_promises()))

    def _quotas_allow(self, task: Task, group: Group, need: int) -> bool:
        """Whether nothing but room is missing; no where it takes a closer look."""
        state = self.state
        book, tenant = state.classes[group.place], group.tenant
        if book.used + need > book.limit or tenant.used + need > tenant.limit:
            return False
        if tenant.model_limits or tenant.tenant.budget is not None:
            return False
        if state.queue.with_tenant and self._first_at_tenant(task, TOTAL):
            return False
        return not (state.holds and _short_of(task, need, book, tenant, holds_before(state, task, self.at)))

    def _first_with_quota(self) -> Head | None:
        """The best of those parked with a class whom the quota lets through now, if there is room for them somewhere."""
        queue = self.state.queue
        best: Head | None = None
        for place in PLACES:
            book = self.state.classes[place]
            while queue.class_loosened[place]:
                first = queue.first_with_class(place)
                if first is not None:
                    first[2].shape.refresh(self.state.index)
                if first is None or book.used + first[2].shape.need_milli > book.limit >= first[2].shape.need_milli:
                    queue.class_loosened[place] = False
                elif not first[2].awake:
                    queue.unpark_from_class(place)  # it has quota and no room: it sleeps like the others
                else:
                    head = first[2].head(place)
                    best = head if best is None or (head is not None and head < best) else best
                    break
        return best

    def _best_for(self, bay: Bay, stopped: list[tuple[Line, int]]) -> Any:
        """The best task of the sleeping lines that fit a node; those whose class is at its limit are noted."""
        state = self.state
        queue, books = state.queue, state.classes
        bit, free, version = bay.bit, bay.free, state.index.version
        held = [hold for hold in state.holds.values() if hold.bays & bit] if state.held_bays & bit else None
        room = [book.limit - book.used for book in books]
        parked = queue.with_class
        best: Head | None = None
        for gpus, lines in queue.by_gpus.items():
            if gpus > free:
                continue
            for line in lines.values():
                if line.awake:
                    continue
                shape = line.shape
                if shape.version != version or not shape.plain or shape.link is not Link.ANY:
                    return NO_ANSWER
                if not shape.eligible & bit:
                    continue
                need = shape.need_milli
                for place in PLACES:
                    if not line.heads[place]:
                        continue
                    if need > room[place]:
                        stopped.append((line, place))
                        continue
                    head = line.head(place)
                    if head is None or (best is not None and best < head):
                        continue
                    if parked[place] and parked[place][0][:2] < head[:2]:
                        stopped.append((line, place))
                    elif held is None or (answer := self._may_use(head, shape, line, bay, held)) is True:
                        best = head
                    elif answer is None:
                        return NO_ANSWER
        return best

    def _may_use(self, head: Head, shape: Shape, line: Line, bay: Bay, held: list[Hold]) -> bool | None:
        """Whether a task may use a node that is promised to others: yes, no, or it takes a closer look."""
        for hold in held:
            if hold.task.id == head[1] or (not hold.claim and (head[0], head[1]) < (hold.task.key, hold.task.id)):
                continue
            spare = bay.usable.bit_count() - need_of(hold.shape, bay).gpus
            if spare >= shape.gpus or (hold.starts_at is not None and line.length >= 0) or hold.claim:
                return None
            line.behind = True
            return False
        return True

    def _refill_with(self, head: Head, bay: Bay) -> bool:
        """Place a task on a node that has room for it; or park its group, if its tenant has no room."""
        state = self.state
        _, task_id, group = head
        task, tenant, shape = state.tasks[task_id], group.tenant, group.line.shape
        need = shape.need_milli
        if tenant.used + need > tenant.limit >= need and not (tenant.model_limits or tenant.tenant.budget):
            state.queue.park_with_tenant(group, TOTAL)
            self._give_up_promise(task)
            return True
        if not self._quotas_allow(task, group, need):
            return False
        placement = Placement((Slice(bay.host.spec.id, bay.topology.pick(bay.free_mask, shape.gpus, Link.ANY)),))
        self._place(task, placement)
        return True

    # --- who takes part ------------------------------------------------------------------------------------------

    def _wake_for_freed(self) -> None:
        """Wake the lines that could use a node that gained room."""
        state = self.state
        queue, index = state.queue, state.index
        freed, state.freed = state.freed, {}
        if queue.with_tenant:
            queue.loosen_all(only_by_model=True)
        for number in freed:
            bay = index.bays[number]
            if bay is None or not bay.host.open:
                continue
            bit, free = bay.bit, bay.free
            for gpus, lines in queue.by_gpus.items():
                if gpus <= free:
                    for line in lines.values():
                        if not line.awake:
                            shape = line.shape
                            if shape.version != index.version:
                                shape.refresh(index)
                            if shape.eligible & bit:
                                queue.wake(line)

    def _doubt_all(self) -> None:
        """Where standings change with use, so may who goes before whom: all who are kept back are asked again.

        A promise is renewed when its task stands better than when it was made, and never when it stands worse.
        """
        queue = self.state.queue
        queue.loosen_all()
        for line in list(queue.lines.values()):
            if line.behind:
                queue.wake(line)
        for hold in list(self.state.holds.values()):
            borrowed, tenant_key, _, _ = standing(self.state, hold.task, self.at)
            if (borrowed, tenant_key) < hold.standing[:2]:
                self.emit(
                    ReservationMade(hold.task.id, hold.nodes, hold.starts_at, hold.claim, bool(borrowed), tenant_key)
                )

    def _unpark_tenants(self) -> None:
        """Let groups take part again whose tenants have room for them, the first of each tenant first."""
        queue = self.state.queue
        loosened, queue.loosened = queue.loosened, {}
        for tenant_id, tenant in loosened.items():
            for limit in tuple(queue.with_tenant.get(tenant_id, ())):
                while (first := queue.first_with_tenant(tenant_id, limit)) is not None:
                    shape = first[2].line.shape
                    shape.refresh(self.state.index)
                    lined_up = limit == TOTAL and shape.need_milli <= tenant.limit
                    if self._plain and lined_up and not self._has_room(tenant, shape.need_milli):
                        break
                    self._take_back(queue.unpark_from_tenant(first))

    def _has_room(self, tenant: TenantBook, need: int) -> bool:
        return tenant.used + need <= tenant.limit and self._can_pay(tenant)

    def _take_back(self, line: Line) -> None:
        if line.awake:
            self.state.queue.stirred[line.number] = line

    def _push_stirred(self) -> None:
        queue = self.state.queue
        while queue.stirred:
            stirred, queue.stirred = queue.stirred, {}
            for line in stirred.values():
                if line.awake:
                    self._push(line, ONLINE)
                    self._push(line, BATCH)

    def _push(self, line: Line, place: int) -> None:
        """Let the best task of a line and class take part in the pass."""
        if line.parked[place]:
            return
        if self._plain:
            head = line.head(place)
            if head is None:
                return
            book, shape = self.state.classes[place], line.shape
            if shape.version != self.state.index.version:
                shape.refresh(self.state.index)
            at_limit = book.used + shape.need_milli > book.limit >= shape.need_milli > 0
            if at_limit and shape.eligible & self.state.index.open and not self.state.may_preempt():
                self.state.queue.park_with_class(line, place)  # it would be, as soon as it is tried
                if self.state.holds:
                    self._give_up_promise(self.state.tasks[head[1]])
            else:
                heappush(self.ready, (head[0], head[1], line, head[2]))
        elif (entry := self._best(line, place)) is not None:
            heappush(self.ready, entry)

    def _best(self, line: Line, place: int) -> Ready | None:
        """The best task of a line and class where standings change with every placement: all groups are compared."""
        state = self.state
        line.shape.refresh(state.index)
        borrowing = is_borrowing(state, place)
        tenant_key = state.policy.tenant_key
        entries: list[Ready] = []
        for key, task, group in line.tops(place):
            by_tenant = tenant_key(group.tenant, self.at, state.settings) if tenant_key else 0.0
            entries.append(((borrowing, by_tenant, key), task, line, group))
        return min(entries, key=lambda entry: entry[:2], default=None)

    # --- one task ------------------------------------------------------------------------------------------------

    def _try(self, task_id: TaskId, line: Line, group: Group) -> None:
        """Place the best task of a line, or see to it that it is not tried again in vain."""
        state = self.state
        task = state.tasks.get(task_id)
        place = group.place
        if task is None or task.group is not group or group.parked is not None or line.parked[place]:
            self._push(line, place)
            return
        shape, index, queue = line.shape, state.index, state.queue
        if shape.version != index.version:
            shape.refresh(index)
        need = shape.need_milli
        book, tenant = state.classes[place], group.tenant
        if not shape.eligible & index.open:
            queue.sleep(line, behind=False)
            self._give_up_promise(task)
            return
        if need > book.limit:
            queue.park_for_good(line, place)
            self._give_up_promise(task)
            return
        if need and (book.used + need > book.limit or (queue.with_class[place] and self._first_at_class(task, place))):
            if self._raid(task, shape, line):
                self._push(line, place)
            else:
                self._park_with_class(line, place, (task.key, task_id, group))
            return
        if need > tenant.limit:
            self._park_with_tenant(task, group, SOME)
            return
        if need and (
            tenant.used + need > tenant.limit
            or (queue.with_tenant and self._first_at_tenant(task, TOTAL))
            or (tenant.tenant.budget is not None and not self._can_pay(tenant))
        ):
            if self._can_pay(tenant) and self._raid(task, shape, line):
                self._push(line, place)
            else:
                self._park_with_tenant(task, group, TOTAL)
            return
        closed = self._closed_models(tenant, shape) if need and tenant.model_limits else 0
        limit = shape.resources.models[0] if len(shape.resources.models) == 1 else SOME
        stopped = closed & shape.eligible or (tenant.model_limits and self._first_at_tenant(task, limit))
        if stopped and (limit != SOME or not without(shape.eligible, closed)):
            self._park_with_tenant(task, group, limit)
            return
        before = holds_before(state, task, self.at) if state.holds else []
        if before and need and (short := _short_of(task, need, book, tenant, before)):
            if short == "class":
                self._park_with_class(line, place, (task.key, task_id, group))
            else:
                self._park_with_tenant(task, group, TOTAL)
            return
        if before or state.settings.backfill is Backfill.NONE:
            placement, behind = self._find(task, shape, closed, before)
        else:
            placement, behind = choose(shape, index, state.order_for(shape.gpus), closed), False
        if placement is not None:
            self._place(task, placement)
            self._push(line, place)
            if state.vacancy:
                self._fill_vacancy()
        elif self._raid(task, shape, line):
            self._push(line, place)
        elif closed & shape.eligible:
            self._park_with_tenant(task, group, limit)
        else:
            queue.sleep(line, behind=behind)
            self._reserve(task, shape)

    def _first_at_class(self, task: Task, place: int) -> bool:
        """Whether somebody who goes before waits for room in the class."""
        if self._plain:
            first = self.state.queue.first_with_class(place)
            return first is not None and first[:2] < (task.key, task.id)
        lines = {entry[2].number: entry[2] for entry in self.state.queue.with_class[place] if entry[2].parked[place]}
        bests = (self._best(line, place) for line in lines.values())
        mine = self._standing(task)
        return any((*best[0], best[1]) < mine for best in bests if best is not None)

    def _first_at_tenant(self, task: Task, limit: str) -> bool:
        """Whether another task of the tenant, which goes before, is stopped by this limit; none stands first at SOME."""
        queue, tenant = self.state.queue, task.spec.tenant
        if limit == SOME or tenant not in queue.with_tenant:
            return False
        if self._plain:
            first = queue.first_with_tenant(tenant, limit)
            return first is not None and first[:2] < (task.key, task.id)
        mine = self._standing(task)
        parked = queue.with_tenant[tenant].get(limit, ())
        tops = (group.top() for _, _, group in parked if group.parked == limit)
        return any(self._standing(top[2]) < mine for top in tops if top is not None)

    def _standing(self, task: Task) -> Standing:
        assert task.group is not None
        return standing(self.state, task, self.at)

    def _park_with_class(self, line: Line, place: int, head: Head) -> None:
        """Its class is at the limit, and everybody of the class who stands behind it waits with it."""
        queue = self.state.queue
        queue.park_with_class(line, place)
        queue.class_loosened[place] = False
        if self.state.holds:
            self._give_up_promise(self.state.tasks[head[1]])

    def _park_with_tenant(self, task: Task, group: Group, limit: str) -> None:
        """Its tenant is at a limit: the line goes on without the group."""
        self.state.queue.park_with_tenant(group, limit)
        self._give_up_promise(task)
        self._push(group.line, group.place)

    def _give_up_promise(self, task: Task) -> None:
        if task.id in self.state.holds:
            self.emit(ReservationDropped(task.id, Cause(Why.AT_LIMIT)))

    def _find(self, task: Task, shape: Shape, closed: BaySet, before: list[Hold]) -> tuple[Placement | None, bool]:
        """Room that is promised to nobody who goes before; else whether only such promises stand in the way."""
        state = self.state
        order = state.order_for(shape.gpus)
        if state.settings.backfill is Backfill.NONE and self._somebody_first(task, shape):
            return None, True
        held: BaySet = 0
        for hold in before:
            held |= hold.bays
        placement = choose(shape, state.index, order, closed | held)
        if placement is None and held & shape.eligible and choose(shape, state.index, order, closed) is not None:
            away = in_the_way(state, task, shape, self.at, before)
            placement = choose(shape, state.index, order, closed | away)
            return placement, True
        return placement, False

    def _somebody_first(self, task: Task, shape: Shape) -> bool:
        """Without backfill: whether a task that goes before wants any of the same nodes."""
        state = self.state
        mine = standing(state, task, self.at)
        return any(
            line.shape.eligible & shape.eligible and self._first_of(line, place, mine) is not None
            for line in state.queue.lines.values()
            if not line.awake
            for place in PLACES
        )

    def _first_of(self, line: Line, place: int, before: Standing) -> Task | None:
        """The best task of a sleeping line and class that only lacks room, if it goes before."""
        state, need = self.state, line.shape.need_milli
        if need and state.classes[place].used + need > state.classes[place].limit:
            return None
        if self._plain:
            head = line.head(place)
            if head is None or (need and not self._has_room(head[2].tenant, need)):
                return None
            return state.tasks[head[1]] if (0, 0.0, head[0], head[1]) < before else None
        tops = [
            (standing(state, state.tasks[task], self.at), state.tasks[task])
            for _, task, group in line.tops(place)
            if not need or self._has_room(group.tenant, need)
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
                mine = standing(self.state, task, self.at)
                if mine < hold.standing:
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
        mine = standing(state, task, self.at)
        before = holds_before(state, task, self.at)
        before = [hold for hold in before if hold.shape.eligible & shape.eligible]
        if len([hold for hold in before if not hold.claim]) >= depth or self._is_at_limit(task, shape):
            return
        need = shape.need_milli
        if need and _short_of(task, need, state.classes[task.place], task.book, before):
            return
        found = promise(state, task, shape, self.at, before)
        if found is None:
            return
        self.emit(ReservationMade(task.id, found.nodes, found.starts_at, borrowed=bool(mine[0]), tenant_key=mine[1]))
        for hold in self._behind(mine, shape)[max(0, depth - len(before) - 1) :]:
            self.emit(ReservationDropped(hold.task.id, Cause(Why.OVERTAKEN, task=task.id)))

    def _recall_promises(self) -> bool:
        """Take reservations back from tasks that a quota stops now; their lines are tried again, without."""
        state = self.state
        stopped = [hold for hold in state.holds.values() if not hold.claim and self._is_at_limit(hold.task, hold.shape)]
        for hold in stopped:
            self._give_up_promise(hold.task)
            if hold.task.group is not None:
                state.queue.wake(hold.task.group.line)
        return bool(stopped)

    def _is_at_limit(self, task: Task, shape: Shape) -> bool:
        book, tenant = self.state.classes[task.place], task.book
        if not shape.need_milli:
            return False
        if book.used + shape.need_milli > book.limit or not self._has_room(tenant, shape.need_milli):
            return True
        return bool(tenant.model_limits and self._closed_models(tenant, shape) & shape.eligible)

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

    def _fill_vacancy(self) -> None:
        """A reservation ended, or somebody joined who goes before: give the first in line theirs before others are tried."""
        state = self.state
        state.vacancy = False
        if state.settings.backfill is Backfill.NONE:
            for line in list(state.queue.lines.values()):
                if line.behind:
                    state.queue.wake(line)
        else:
            self._promise_more()
        self._push_stirred()

    def _promise_more(self) -> bool:
        """Give a reservation to everyone in the sleeping lines who is due one; whether any line was woken by it."""
        state = self.state
        if not self._depth():
            return False
        firsts = []
        for line in state.queue.lines.values():
            if not line.awake and needs_reservation(line.shape):
                line.shape.refresh(state.index)
                for place in PLACES:
                    task = self._first_of(line, place, LAST_OF_ALL)
                    if task is not None and task.id not in state.holds:
                        firsts.append((standing(state, task, self.at), task, line.shape))
        for _, task, shape in sorted(firsts, key=lambda first: first[0]):
            self._reserve(task, shape)
        state.vacancy = False
        return bool(state.queue.stirred)

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
        borrowed, tenant_key, _, _ = standing(self.state, task, self.at)
        self.emit(ReservationMade(task.id, raid.nodes, self.at, True, bool(borrowed), tenant_key))
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
        for hold in sorted(claims, key=lambda hold: hold.standing):
            task, shape = hold.task, hold.shape
            shape.refresh(state.index)
            book, tenant = state.classes[task.place], task.book
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
                self.emit(ReservationDropped(task.id, Cause(Why.ROOM_LOST)))


def _short_of(task: Task, need: int, book: ClassBook, tenant: TenantBook, before: list[Hold]) -> str:
    """Which quota has not enough left for those who were promised nodes and go before: "class", "tenant" or none."""
    in_class, in_tenant = book.used + need, tenant.used + need
    for hold in before:
        if hold.task.place == task.place:
            in_class += hold.shape.need_milli
        if hold.task.book is tenant:
            in_tenant += hold.shape.need_milli
    return "class" if in_class > book.limit else "tenant" if in_tenant > tenant.limit else ""


def _with_memory(placement: Placement, before: Placement) -> Placement:
    """A suspended attempt goes on with the host memory it never gave up."""
    had = {part.node: part.memory_mib for part in before.slices}
    parts = (
        Slice(part.node, part.gpus, part.milli, part.gpu_memory_mib, part.cpus, had[part.node])
        for part in placement.slices
    )
    return Placement(tuple(parts))
