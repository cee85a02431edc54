"""The pass: place what can be placed, in order, and leave the rest asleep.

Only lines that something happened to are looked at: a task joined, a node they could use gained room, their class or
tenant gave something up, a reservation in their way ended. Their best tasks are tried from the highest standing down;
each is placed, or its line falls asleep, or its group is set aside until its tenant has room. So a pass costs what
changes, not what waits.
"""

from heapq import heappop, heappush
from typing import Any

from gpuyard.core.domain.events import Event, ReservationMade, TaskPlaced
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.settings import Backfill
from gpuyard.core.domain.values import TaskId
from gpuyard.core.engine.advice import PATIENCE, Advisor, Candidate, better_than, candidates, is_advised, speed_at
from gpuyard.core.engine.backfill import holds_before, in_the_way
from gpuyard.core.engine.deeds import CLASS_INDEXES, Deeds, Emit, quota_left, short_of
from gpuyard.core.engine.figures import Moment, rows_of
from gpuyard.core.engine.preemption import prey_of
from gpuyard.core.engine.queue import SOME, TOTAL, Group, Head, Line
from gpuyard.core.engine.quota import BATCH, ONLINE
from gpuyard.core.engine.standing import Standing, is_borrowing, is_plain, key_of_tenant, standing
from gpuyard.core.engine.state import Hold, State
from gpuyard.core.engine.task import Task
from gpuyard.core.placement.choose import choose
from gpuyard.core.placement.device_group_mask import BaySet, without
from gpuyard.core.placement.index import Bay
from gpuyard.core.placement.shape import Shape

Ready = tuple[Any, TaskId, Line, Group]
"""The best task of a line and class: its standing without the number, its number, line and group."""


class Pass(Deeds):
    """A pass over what may have changed since the last one."""

    def __init__(self, state: State, emit: Emit, advisor: Advisor | None = None) -> None:
        super().__init__(state, emit if advisor is None else self._tell)
        self.ready: list[Ready] = []
        self.advisor = advisor
        self._emit = emit
        self._moment: Moment | None = None
        """What was seen for questions of this pass, and holds still."""

    def run(self, at: float) -> None:
        """Place everything that can be placed."""
        state = self.state
        queue = state.queue
        self.at = at
        self._moment = None
        self._plain = is_plain(state)
        self.placed = 0
        if state.freed:
            self._wake_for_freed()
        if state.begun:
            self._wake_for_begun()
        if not self._plain:
            self._doubt_all()
        if queue.loosened:
            self._unpark_tenants()
        if state.holds:
            self._try_claims()
        if state.vacancy:
            self._fill_vacancy()
        self._drain()
        while self._is_unsettled():
            if not self._plain:
                self.placed = 0
                self._doubt_all()
            if queue.loosened:
                self._unpark_tenants()
            if state.vacancy:
                self._fill_vacancy()
            self._drain()

    def _is_unsettled(self) -> bool:
        """Whether what the pass did may let somebody through who was stopped before."""
        state = self.state
        recalled = bool(state.holds) and self._recall_promises()
        return recalled or state.vacancy or bool(state.queue.loosened) or (self.placed > 0 and not self._plain)

    def _drain(self) -> None:
        """Try everything that takes part, in order of standing, until nothing is left to try."""
        self._push_stirred()
        if not self._plain:
            self._push_promised()
        ready, loosened = self.ready, self.state.queue.class_loosened
        while True:
            if loosened[ONLINE] or loosened[BATCH]:
                line = self._first_of_a_class()
                if line is not None:
                    continue
            if not ready:
                return
            rank, task, line, group = heappop(ready)
            promised = not self._plain and self._is_promised(task, rank)
            if not line.awake and not promised:
                continue  # whoever was promised nodes may have room there though others of its line have none
            if not self._plain and not promised:
                best = self._best(line, group.class_index)
                if best != (rank, task, line, group):
                    if best is not None:
                        heappush(ready, best)  # others were placed meanwhile: it stands further back now
                    continue
            self._try(task, line, group)

    def _first_of_a_class(self) -> Line | None:
        """Try the first task parked with a class that has room for it, if it goes before everybody who takes part."""
        queue, books, ready = self.state.queue, self.state.classes, self.ready
        for class_index in CLASS_INDEXES:
            if not queue.class_loosened[class_index]:
                continue
            if not self._plain:
                self._unpark_all(class_index)
                continue
            first = self._first_with_class(class_index)
            if first is None or books[class_index].used + first[2].shape.need_milli > books[class_index].limit:
                queue.class_loosened[class_index] = False
            elif not ready or first[:2] < ready[0][:2]:
                line = queue.unpark_from_class(class_index)
                if line.awake and (head := line.head(class_index)) is not None:
                    self._try(head[1], line, head[2])
                return line
        return None

    def _unpark_all(self, class_index: int) -> None:
        """Where standings change with every placement, all lines parked with a class take part again."""
        queue = self.state.queue
        queue.class_loosened[class_index] = False
        while queue.first_with_class(class_index) is not None:
            line = queue.unpark_from_class(class_index)
            if line.awake:
                self._push(line, class_index)

    # --- who takes part ----------------------------------------------------------------------------------------------

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
                            if (line.advised or shape.eligible) & bit:
                                queue.wake(line)
            if state.may_preempt():
                self._wake_raiders(bay)

    def _wake_for_begun(self) -> None:
        """Wake the lines that could take from somebody who runs only now."""
        state = self.state
        begun, state.begun = state.begun, {}
        for number in begun:
            bay = state.index.bays[number]
            if bay is not None and bay.host.open and state.may_preempt():
                self._wake_raiders(bay)

    def _wake_raiders(self, bay: Bay) -> None:
        """A bay has too little free for some: with what they may take from others there it may do."""
        state = self.state
        queue, node = state.queue, bay.host.spec.id
        if node not in state.prey:
            return
        bit, free, usable = bay.bit, bay.free, bay.usable.bit_count()
        for gpus, lines in queue.by_gpus.items():
            if free < gpus <= usable:
                for line in lines.values():
                    if (
                        not line.awake
                        and line.shape.eligible & bit
                        and any(
                            (head := line.head(class_index)) is not None
                            and gpus - free <= prey_of(state, state.tasks[head[1]], node, self.at)
                            for class_index in CLASS_INDEXES
                        )
                    ):
                        queue.wake(line)

    def _doubt_all(self) -> None:
        """Where standings change with use, so may who goes before whom: all who are kept back are asked again.

        A promise is renewed when its task stands better than when it was made, and never when it stands worse.
        """
        queue = self.state.queue
        queue.loosen_all()
        claims, self.state.claims_changed = self.state.claims_changed and self.state.may_preempt(), False
        for line in list(queue.lines.values()):
            if line.behind or (claims and not line.awake and has_claim(line)):
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
                    may_have = min(tenant.limit, self.state.classes[first[2].class_index].limit)
                    can_start = shape.need_milli <= may_have and shape.can_start(self.state.index)
                    lined_up = limit == TOTAL and can_start
                    if self._plain and lined_up and not self._has_room(tenant, shape.need_milli):
                        break
                    self._take_back(queue.unpark_from_tenant(first))

    def _take_back(self, line: Line) -> None:
        if line.awake:
            self.state.queue.stirred[line.number] = line

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

    def _push_stirred(self) -> None:
        queue = self.state.queue
        while queue.stirred:
            stirred, queue.stirred = queue.stirred, {}
            for line in stirred.values():
                if line.awake:
                    self._push(line, ONLINE)
                    self._push(line, BATCH)

    def _push_promised(self) -> None:
        """Where standings change with use, who was promised nodes takes part with the standing of the promise."""
        for hold in self.state.holds.values():
            group = hold.task.group
            if group is not None and not hold.claim and group.parked is None and group.line.awake:
                heappush(self.ready, (hold.standing[:3], hold.task.id, group.line, group))

    def _is_promised(self, task: TaskId, rank: Any) -> bool:
        hold = self.state.holds.get(task)
        return hold is not None and hold.standing[:3] == rank

    def _push(self, line: Line, class_index: int) -> None:
        """Let the best task of a line and class take part in the pass."""
        if line.parked[class_index]:
            return
        if self._plain:
            head = line.head(class_index)
            if head is None:
                return
            book, shape = self.state.classes[class_index], line.shape
            if shape.version != self.state.index.version:
                shape.refresh(self.state.index)
            at_limit = book.used + shape.need_milli > book.limit and 0 < shape.need_milli <= min(
                book.limit, head[2].tenant.limit
            )
            if at_limit and shape.can_start(self.state.index) and not self.state.may_preempt():
                self.state.queue.park_with_class(line, class_index)  # it would be, as soon as it is tried
                if self.state.holds:
                    self._give_up_promise(self.state.tasks[head[1]])
            else:
                heappush(self.ready, (head[0], head[1], line, head[2]))
        elif (entry := self._best(line, class_index)) is not None:
            heappush(self.ready, entry)

    def _best(self, line: Line, class_index: int) -> Ready | None:
        """The best task of a line and class where standings change with every placement: all groups are compared."""
        state = self.state
        line.head(class_index)  # throws stale entries away
        line.shape.refresh(state.index)
        borrowing = is_borrowing(state, class_index)
        need = line.shape.need_milli
        entries: list[Ready] = []
        for key, task, group in line.tops(class_index):
            by_tenant = key_of_tenant(state, group.tenant, need, self.at)
            entries.append(((borrowing, by_tenant, key), task, line, group))
        return min(entries, key=lambda entry: entry[:2], default=None)

    # --- one task ----------------------------------------------------------------------------------------------------

    def _try(self, task_id: TaskId, line: Line, group: Group) -> None:
        """Place the best task of a line, or see to it that it is not tried again in vain."""
        state = self.state
        task = state.tasks.get(task_id)
        class_index = group.class_index
        if task is None or task.group is not group or group.parked is not None or line.parked[class_index]:
            self._push(line, class_index)
            return
        shape, index = line.shape, state.index
        if shape.version != index.version:
            shape.refresh(index)
        if not shape.can_start(index):
            state.queue.sleep(line, behind=False)
            self._give_up_promise(task)
            return
        before = holds_before(state, task, self.at) if state.holds else []
        if shape.need_milli and self._stopped_by_quota(task, line, group, before):
            return
        closed = self._closed_models(group.tenant, shape) if shape.need_milli and group.tenant.model_limits else 0
        dear: BaySet = 0
        if shape.needs is not None:
            dear = shape.too_dear(min(quota_left(task, state.classes[class_index], group.tenant, before)))
            closed |= dear
        placement, behind = None, False
        if task.avoid is not None:
            placement, _ = self._find(task, shape, closed | index.bays_of((task.avoid,)), before)
        if placement is None:
            placement, behind = self._find(task, shape, closed, before)
        if placement is not None and self.advisor is not None and is_advised(state, task):
            self._place_as_advised(Candidate(task, line, group, placement, speed_at(state, shape, placement)), closed)
        elif placement is not None:
            self._place(task, placement)
            self._push(line, class_index)
            if state.vacancy:
                self._fill_vacancy()
        elif self._raid(task, shape, line):
            self._push(line, class_index)
        elif dear & shape.eligible:
            state.queue.park_with_tenant(group, SOME)  # asked again whenever anything is freed, quota or room
            self._reserve(task, shape)
            self._push(line, class_index)
        elif closed & shape.eligible:
            self._park_with_tenant(task, group, _model_limit(shape))
        else:
            state.queue.sleep(line, behind=behind)
            self._reserve(task, shape)

    def _place_as_advised(self, first: Candidate, closed: BaySet) -> None:
        """Place the first task, or do what the adviser finds better."""
        state, choice = self.state, first
        assert self.advisor is not None
        found = candidates(state, first, self.ready, closed)
        if len(found) > 1:
            self._moment = self._moment or Moment(state, self.at)
            choice = found[self.advisor.pick(rows_of(self._moment, found))]
        if choice.placement is None:
            state.queue.sleep(first.line, behind=False, advised=better_than(first))
            if first.line.again_at <= self.at:
                first.line.again_at = self.at + PATIENCE
                heappush(state.timers, (first.line.again_at, TaskId(-first.line.number)))
            return
        self._place(choice.task, choice.placement)
        self._push(first.line, first.group.class_index)
        if choice.line is not first.line:
            self._push(choice.line, choice.group.class_index)
        if state.vacancy:
            self._fill_vacancy()

    def _tell(self, event: Event) -> None:
        """Where somebody is asked: a fact changes what the next question sees."""
        self._emit(event)
        if type(event) is TaskPlaced and self._moment is not None:
            self._moment.hear_of(event.placement)
        else:
            self._moment = None

    def _stopped_by_quota(self, task: Task, line: Line, group: Group, before: list[Hold]) -> bool:
        """Park a task that class or tenant have no room for, unless it may stop others of theirs; whether it was dealt with."""
        state, shape, class_index, tenant = self.state, line.shape, group.class_index, group.tenant
        queue, book, need = state.queue, state.classes[class_index], shape.need_milli
        if need > book.limit:
            queue.park_for_good(line, class_index)
            self._give_up_promise(task)
            return True
        if need > tenant.limit:
            self._park_with_tenant(task, group, SOME)
            return True
        if book.used + need > book.limit or (queue.with_class[class_index] and self._first_at_class(task, class_index)):
            if self._raid(task, shape, line):
                self._push(line, class_index)
            else:
                self._park_with_class(line, class_index, (task.key, task.id, group))
            return True
        can_pay = tenant.tenant.budget is None or self._can_pay(tenant)
        first = bool(queue.with_tenant) and self._first_at_tenant(task, TOTAL)
        if not can_pay or first or tenant.used + need > tenant.limit:
            if can_pay and self._raid(task, shape, line):
                self._push(line, class_index)
            else:
                self._park_with_tenant(task, group, TOTAL)
            return True
        if tenant.model_limits:
            closed, limit = self._closed_models(tenant, shape), _model_limit(shape)
            stopped = closed & shape.eligible or self._first_at_tenant(task, limit)
            if stopped and (limit != SOME or not without(shape.eligible, closed)):
                self._park_with_tenant(task, group, limit)
                return True
        short = short_of(task, need, book, tenant, before) if before else ""
        if short == "class":
            self._park_with_class(line, class_index, (task.key, task.id, group))
        elif short == "tenant":
            self._park_with_tenant(task, group, TOTAL)
        return bool(short)

    def _find(self, task: Task, shape: Shape, closed: BaySet, before: list[Hold]) -> tuple[Placement | None, bool]:
        """Room that is promised to nobody who goes before; else whether only such promises stand in the way."""
        state = self.state
        order = state.order_for(shape.gpus)
        if state.settings.backfill is Backfill.NONE and self._somebody_first(task, shape):
            return None, True
        if not before:
            return choose(shape, state.index, order, closed, model=task.model), False
        held: BaySet = 0
        for hold in before:
            held |= hold.bays
        placement = choose(shape, state.index, order, closed | held, model=task.model)
        if placement is None and held & shape.eligible and choose(shape, state.index, order, closed) is not None:
            away = in_the_way(state, task, shape, self.at, before)
            placement = choose(shape, state.index, order, closed | away, model=task.model)
            return placement, True
        return placement, False

    def _somebody_first(self, task: Task, shape: Shape) -> bool:
        """Without backfill: whether a task that goes before wants any of the same nodes."""
        state = self.state
        mine = standing(state, task, self.at)
        for line in state.queue.lines.values():
            if not line.awake and not line.advised:
                line.shape.refresh(state.index)
                if line.shape.eligible & shape.eligible:
                    for class_index in CLASS_INDEXES:
                        if self._first_of(line, class_index, mine) is not None:
                            return True
        return False

    # --- quotas ------------------------------------------------------------------------------------------------------

    def _first_at_class(self, task: Task, class_index: int) -> bool:
        """Whether somebody who goes before waits for room in the class."""
        if self._plain:
            first = self._first_with_class(class_index)
            return first is not None and first[:2] < (task.key, task.id)
        lines = {
            entry[2].number: entry[2]
            for entry in self.state.queue.with_class[class_index]
            if entry[2].parked[class_index]
        }
        bests = (self._best(line, class_index) for line in lines.values())
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

    def _park_with_class(self, line: Line, class_index: int, head: Head) -> None:
        """Its class is at the limit, and everybody of the class who stands behind it waits with it."""
        queue = self.state.queue
        queue.park_with_class(line, class_index)
        queue.class_loosened[class_index] = False
        if self.state.holds:
            self._give_up_promise(self.state.tasks[head[1]])

    def _park_with_tenant(self, task: Task, group: Group, limit: str) -> None:
        """Its tenant is at a limit: the line goes on without the group."""
        self.state.queue.park_with_tenant(group, limit)
        self._give_up_promise(task)
        self._push(group.line, group.class_index)


def has_claim(line: Line) -> bool:
    """Whether a guarantee covers a task of a line."""
    need = line.shape.need_milli
    return any(group.size and group.tenant.claims(need) for group in line.groups.values())


def _model_limit(shape: Shape) -> str:
    """The limit on models a shape falls under: of its one model, or of several, or only on some nodes."""
    return shape.resources.models[0] if len(shape.resources.models) == 1 and shape.needs is None else SOME
