"""The scheduling pass: place what can be placed, in order, and leave the rest blocked.

A pass considers only lines that a wake-up reached: a task joined, a node they could use gained room, quota of their
class or tenant was freed, a reservation that blocked them ended. Their best tasks are tried from the highest rank down;
each is placed, or preempts others, or blocks its line, its class in the line, or its group until a wake-up that its
refusal names. The cost of a pass therefore depends on what changed, not on the number of waiting tasks.

    published wake-ups ──► lines to try ──► ready heap ──► try_place ──► place │ preempt │ block (and reserve)
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, nsmallest
from typing import Any

from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.events import Event, TaskPlaced
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.refusals import ClassQuotaFull, HeldBack
from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.core.domain.values import TaskId
from gpuyard.core.engine.quota import BATCH, ONLINE, check_quota
from gpuyard.core.engine.scheduling import actions
from gpuyard.core.engine.scheduling.actions import CLASS_INDEXES, USAGE_CHANGED, Context, Emit
from gpuyard.core.engine.scheduling.advice import (
    HOLD_BACK_SECONDS,
    Advisor,
    Candidate,
    better_than,
    candidates,
    could_be_faster,
    is_advised,
    may_wait,
    speed_at,
)
from gpuyard.core.engine.scheduling.advisor_features import FeatureCache, rows_of, waiting_pays
from gpuyard.core.engine.scheduling.backfill import left_before_bookings, reservations_before
from gpuyard.core.engine.scheduling.bookings import closed_by_bookings, waits_for_booking
from gpuyard.core.engine.scheduling.preemption import preemptible_gpus
from gpuyard.core.engine.scheduling.try_place import (
    BOOKED,
    CLASS_FULL,
    NO_ROOM,
    Ready,
    best_of,
    closed_to,
    first_for_class,
    held_back,
    try_place,
    waits_for_better,
)
from gpuyard.core.engine.state import State
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.engine.waiting.queue import Group, Line
from gpuyard.core.engine.waiting.sort_key import sort_key
from gpuyard.core.engine.waiting.wakeups import TOTAL, At, Blocked, ClassQuota, RoomOn, TenantQuota
from gpuyard.core.placement.index import DeviceGroup

MOST_SHORTER = 64
"""Maximum number of tasks of a line that are tried because the first one would run into a booking."""


class SchedulingPass:
    """A scheduling pass over everything that may have changed since the last one."""

    def __init__(self, state: State, emit: Emit, advisor: Advisor | None = None) -> None:
        self.state = state
        self.context = Context(state, emit if advisor is None else self._tell)
        self.ready: list[Ready] = []
        self.advisor = advisor
        self._emit = emit
        self._feature_cache: FeatureCache | None = None
        """Cached features for the advisor's questions in this pass; None: nothing cached, or no longer valid."""

    def decide(self, at: float) -> None:
        """Place everything that can be placed, if a wake-up was published since the last pass."""
        state, context, queue = self.state, self.context, self.state.queue
        if queue.is_quiet():
            return
        published = queue.published
        self._feature_cache = None
        context.begin(at)
        first_round, is_settled = True, False
        while not is_settled:
            context.placed = 0
            if published.room:
                self._wake_for_room()
            if published.preemptible:
                self._wake_for_preemptible()
            if not state.keys_suffice:
                self._wake_for_ranks()
            if published.tenant_quota:
                self._unblock_tenants()
            if first_round and state.reservations:
                actions.place_where_cleared(context)
            if published.reservations:
                self._reserve_for_next()
            self._drain()
            if state.reservations:
                actions.drop_stopped_by_quota(context)
            first_round, is_settled = False, queue.is_quiet() and (state.keys_suffice or not context.placed)

    def _drain(self) -> None:
        """Try the candidates in order; where ranks change with usage, rank a task again before it is tried."""
        keys_suffice = self.state.keys_suffice
        if not keys_suffice:
            self._push_reserved()
        self._push_dirty()
        ready, published = self.ready, self.state.queue.published
        while True:
            if published.class_quota and self._try_first_of_a_class():
                continue
            if not ready:
                return
            rank, task, line, group = heappop(ready)
            if keys_suffice:
                if line.blocked is None:
                    self._try(task, line, group)
                continue
            has_reservation = self._has_reservation(task, rank)
            if line.blocked is not None and not (has_reservation or self._may_claim(line, group)):
                continue  # a task with reserved nodes may have room there although the rest of its line has none
            if not has_reservation:
                best = best_of(self.context, line, group.class_index)
                if best != (rank, task, line, group):
                    if best is not None:
                        heappush(ready, best)  # its rank dropped because others were placed meanwhile
                    continue
            self._try(task, line, group)

    # --- which lines are tried -----------------------------------------------------------------------------------------

    def _wake_for_room(self) -> None:
        """RoomOn: wake the lines that could use a device group that gained room."""
        state = self.state
        queue, index = state.queue, state.index
        room, queue.published.room = queue.published.room, {}
        if queue.for_tenant:
            queue.quotas_changed(next(iter(room.values())), except_total=True)
        woken: set[int] = set()
        dirty, version = queue.dirty, index.version
        self.context.only_room, self.context.woken = None, woken
        for number, cause in room.items():
            device_group = index.device_groups[number]
            if device_group is None or not device_group.host.open:
                continue
            bit, free = device_group.bit, device_group.free
            if len(room) == 1 and state.backfills and not state.preemptible:
                self.context.only_room = device_group
            for gpus, lines in queue.by_gpus.items():
                if gpus > free:
                    continue
                for line in lines.values():
                    if (blocked := line.blocked) is None:
                        continue
                    shape = line.shape
                    if shape.version != version:
                        shape.refresh(index)
                    if not shape.eligible & bit:
                        continue
                    if blocked is NO_ROOM:  # the usual case, without a function call
                        if gpus:
                            woken.add(line.number)
                        line.blocked, line.cause = None, cause
                        dirty[line.number] = line
                    elif blocked.refusal is not HeldBack or waits_for_better(line) & bit:
                        queue.wake(line, cause)
            if state.preemptible and state.may_preempt():
                self._wake_preemptors(device_group, cause)

    def _wake_for_preemptible(self) -> None:
        """Wake the lines that could preempt a task that has just started to run, or may be preempted again."""
        state, queue = self.state, self.state.queue
        preemptible, queue.published.preemptible = queue.published.preemptible, {}
        for number, cause in preemptible.items():
            device_group = state.index.device_groups[number]
            if device_group is not None and device_group.host.open and state.may_preempt():
                self._wake_preemptors(device_group, cause)

    def _wake_preemptors(self, device_group: DeviceGroup, cause: Cause) -> None:
        """Wake lines for which the free GPUs of a device group plus the preemptible ones there may suffice.

        Tasks that wait for a quota may preempt tasks that count against the same quota. Where ranks change with usage,
        they are tried in every pass.
        """
        state = self.state
        queue, node = state.queue, device_group.host.spec.id
        if node not in state.preemptible:
            return
        quotas = self.state.keys_suffice and bool(queue.for_tenant or queue.for_class[ONLINE] or queue.for_class[BATCH])
        bit, free, usable = device_group.bit, device_group.free, device_group.usable.bit_count()
        for gpus, lines in queue.by_gpus.items():
            if gpus <= usable:
                for line in lines.values():
                    if (
                        (line.blocked is not None or quotas)
                        and line.shape.eligible & bit
                        and any(
                            gpus <= free  # it lacks CPUs, memory, a share of a GPU or quota
                            or gpus - free <= preemptible_gpus(state, task, node, self.context.at)
                            for task in self._first_tasks(line, every_group=quotas)
                        )
                    ):
                        if quotas:
                            queue.retry((line,), cause)
                        else:
                            queue.wake(line, cause)

    def _first_tasks(self, line: Line, *, every_group: bool) -> Iterator[OpenTask]:
        """Yield the best task of each class of a line, or of each group, blocked or not."""
        if every_group:
            yield from (top[2] for group in line.groups.values() if (top := group.top()) is not None)
        else:
            tasks = self.state.tasks
            yield from (tasks[head[1]] for index in CLASS_INDEXES if (head := line.head(index)) is not None)

    def _wake_for_ranks(self) -> None:
        """Where ranks change with usage, the order may have changed: wake all lines that wait for their turn."""
        state, queue = self.state, self.state.queue
        queue.quotas_changed(USAGE_CHANGED)
        published, may_preempt = queue.published, state.may_preempt()
        guarantees, all_lines = published.guarantees and may_preempt, published.protection and may_preempt
        published.guarantees = published.protection = False
        for line in list(queue.lines.values()):
            if line.number in queue.for_reservation or (
                guarantees and line.blocked is not None and (all_lines or has_claim(state, line))
            ):
                queue.wake(line, USAGE_CHANGED)
        actions.renew_reservations(self.context)

    def _unblock_tenants(self) -> None:
        """TenantQuota: unblock the groups whose tenants have quota for them, the first of each tenant first."""
        queue, may_preempt = self.state.queue, self.state.may_preempt()
        freed, queue.published.tenant_quota = queue.published.tenant_quota, {}
        for tenant, cause in freed.items():
            for limit in tuple(queue.for_tenant.get(tenant, ())):
                still_waits = False
                while not still_waits and (first := queue.first_for_tenant(tenant, limit)) is not None:
                    still_waits = self.state.keys_suffice and limit == TOTAL and self._still_waits(first[2])
                    if still_waits and not may_preempt:
                        break
                    line = queue.unblock_group(
                        first
                    )  # if it still waits, it may preempt with fewer victims than before
                    if line.blocked is None:
                        queue.mark(line, cause)

    def _still_waits(self, group: Group) -> bool:
        """Whether the first group that waits for its tenant's quota still does not fit, and could start if it did."""
        state, shape, tenant = self.state, group.line.shape, group.tenant
        shape.refresh(state.index)
        may_have = min(tenant.limit, state.classes[group.class_index].limit)
        if shape.need_milli > may_have or not shape.can_start(state.index):
            return False
        if not tenant.can_pay(self.context.at):
            state.timers.add_budgets(tenant.renews_at(self.context.at))
            return True
        return not tenant.fits(shape.need_milli)

    def _reserve_for_next(self) -> None:
        """ReservationEnded: make a reservation for the next task in order before other tasks are tried."""
        state, queue = self.state, self.state.queue
        cause, queue.published.reservations = queue.published.reservations, None
        assert cause is not None
        if not state.backfills:
            queue.wake_for_reservation(cause)
        else:
            actions.reserve_for_next(self.context, cause)
        self._push_dirty()

    def _push_dirty(self) -> None:
        """Add the best tasks of all marked lines to the candidates."""
        queue = self.state.queue
        while queue.dirty:
            dirty, queue.dirty = queue.dirty, {}
            for line in dirty.values():
                if line.blocked is None:
                    online, batch = line.heads
                    if online:
                        self._push(line, ONLINE)
                    if batch:
                        self._push(line, BATCH)

    def _push_reserved(self) -> None:
        """Where ranks change with usage, add tasks with a reservation under the rank of the reservation."""
        for reservation in self.state.reservations.values():
            group = reservation.task.group
            if group is not None and not reservation.claim and group.blocked is None and group.line.blocked is None:
                if group.line.number not in self.state.queue.dirty:
                    group.line.cause = USAGE_CHANGED
                heappush(self.ready, (reservation.sort_key[:3], reservation.task.id, group.line, group))

    def _has_reservation(self, task: TaskId, rank: Any) -> bool:
        """Whether a task is a candidate under the rank of its reservation."""
        reservation = self.state.reservations.get(task)
        return reservation is not None and reservation.sort_key[:3] == rank

    def _may_claim(self, line: Line, group: Group) -> bool:
        """Whether a guarantee may let the tasks of a group preempt others although the rest of the line may not."""
        state = self.state
        return state.guarantees and group.tenant.claims(line.shape.need_milli) and state.may_preempt()

    def _push(self, line: Line, class_index: int) -> None:
        """Add the best task of a line and class to the candidates of the pass."""
        if line.class_blocked[class_index] is not None:
            return
        if not self.state.keys_suffice:
            if (entry := best_of(self.context, line, class_index)) is not None:
                heappush(self.ready, entry)
            return
        head = line.head(class_index)
        if head is None:
            return
        key, task, group = head
        state, shape = self.state, line.shape
        if shape.version != state.index.version:
            shape.refresh(state.index)
        usage = state.classes[class_index]
        if usage.used + shape.need_milli > usage.limit and self._blocks_class_at_once(line, task, group):
            return
        heappush(self.ready, (key, task, line, group))

    def _blocks_class_at_once(self, line: Line, task_id: TaskId, group: Group) -> bool:
        """Block a line whose class is at its limit without trying it; return whether that was done."""
        state, shape, task = self.state, line.shape, self.state.tasks[task_id]
        if state.bookings and waits_for_booking(state, shape) is not None:
            return False
        refusal = check_quota(task, shape.need_milli, state.classes, self.context.at)
        if refusal is not ClassQuotaFull or not shape.can_start(state.index) or state.may_preempt():
            return False
        state.queue.block(line, group, CLASS_FULL[group.class_index])
        if state.reservations:
            actions.drop_reservation(self.context, task)
        return True

    # --- one task ----------------------------------------------------------------------------------------------------

    def _try_first_of_a_class(self) -> bool:
        """ClassQuota: try the first task that waits for a class quota, if it precedes all candidates."""
        state, queue, ready = self.state, self.state.queue, self.ready
        freed = queue.published.class_quota
        for class_index in CLASS_INDEXES:
            if class_index not in freed:
                continue
            cause, waiting = freed[class_index], queue.for_class[class_index]
            if not state.keys_suffice:
                self._unblock_all(class_index, cause)
                continue
            if ready and waiting and waiting[0] > ready[0]:
                continue  # a candidate precedes everything that waits for the quota
            first = first_for_class(self.context, class_index) if waiting else None
            if first is None or not (state.classes[class_index].fits(first[2].shape.need_milli) or state.may_preempt()):
                del freed[class_index]
            elif not ready or first[:2] < ready[0][:2]:
                line = queue.unblock_class(class_index)
                line.cause = cause
                if line.blocked is None and (head := line.head(class_index)) is not None:
                    self._try(head[1], line, head[2])
                return True
        return False

    def _unblock_all(self, class_index: int, cause: Cause) -> None:
        """Where ranks change with every placement, unblock all lines that wait for the quota of a class."""
        queue = self.state.queue
        del queue.published.class_quota[class_index]
        while queue.first_for_class(class_index) is not None:
            line = queue.unblock_class(class_index)
            if line.blocked is None:
                line.cause = cause
                self._push(line, class_index)

    def _try(self, task_id: TaskId, line: Line, group: Group) -> None:
        """Place a task, or preempt others for it, or block it until a wake-up that its refusal names."""
        state, context = self.state, self.context
        task = state.tasks.get(task_id)
        class_index = group.class_index
        if (
            task is None
            or task.group is not group
            or group.blocked is not None
            or line.class_blocked[class_index] is not None
        ):
            self._push(line, class_index)
            return
        found = try_place(context, task, line, group)
        if type(found) is Placement:
            self._place(task, line, group, found)
            return
        assert type(found) is Blocked
        if found is NO_ROOM and not (state.preemptible or state.reservation_depth or state.reservations):
            line.blocked = found  # the usual case: neither preemption nor a reservation is possible
        elif found.preemption_helps and state.preemptible and actions.preempt(context, task, line.shape, line):
            self._push(line, class_index)
        else:
            self._block(task, line, group, found)
            if found is BOOKED:
                self._place_shorter(task, line)

    def _place_shorter(self, first: OpenTask, line: Line) -> None:
        """Place tasks of a line that end before a booking, although the first of the line does not."""
        state, context = self.state, self.context
        least = left_before_bookings(first, context.at)
        shorter = [
            (sort_key(state, task, context.at), task, group)
            for group in line.groups.values()
            if group.blocked is None and line.class_blocked[group.class_index] is None
            for key, _, task in group.heap
            if task.group is group and task.key == key and left_before_bookings(task, context.at) < least
        ]
        for _, task, group in nsmallest(MOST_SHORTER, dict.fromkeys(shorter), key=lambda each: each[0]):
            found = try_place(context, task, line, group)
            if isinstance(found, Placement):
                actions.place(context, task, found, line.cause)

    def _block_used_up(self, room: DeviceGroup, placed: Line) -> None:
        """Block the lines that only `room` could have held and for which it has too little left after a placement."""
        free, woken, ready = room.free, self.context.woken, self.ready
        if free < placed.shape.gpus and placed.number in woken:
            placed.blocked = NO_ROOM
        used_up = False
        for _, _, line, _ in ready:
            if free < line.shape.gpus and line.number in woken:
                line.blocked = NO_ROOM
                used_up = True
        if used_up:
            ready[:] = [entry for entry in ready if entry[2].blocked is None]
            heapify(ready)

    def _place(self, task: OpenTask, line: Line, group: Group, placement: Placement) -> None:
        """Place a task, or let it wait for faster GPUs if the advisor or the rule of the policy says so."""
        state, context, policy = self.state, self.context, self.state.policy
        if self.advisor is not None and policy.advised:
            if is_advised(state, task):
                self._place_as_advised(Candidate(task, line, group, placement, speed_at(state, line.shape, placement)))
                return
        elif policy.waits_for_faster_gpus and line.shape.tiers and is_advised(state, task):
            first = Candidate(task, line, group, placement, speed_at(state, line.shape, placement))
            if could_be_faster(first) and may_wait(state, first) and waiting_pays(state, first, context.at):
                self._hold_back(first)
                return
        actions.place(context, task, placement, line.cause)
        if context.only_room is not None:
            self._block_used_up(context.only_room, line)
        if line.blocked is None:
            self._push(line, group.class_index)
        if state.queue.published.reservations:
            self._reserve_for_next()

    def _block(self, task: OpenTask, line: Line, group: Group, blocked: Blocked) -> None:
        """Record a task that was not placed in the queue's index, with or without a reservation."""
        queue, context = self.state.queue, self.context
        queue.block(line, group, blocked)
        where = blocked.wakeups[0]
        if isinstance(where, ClassQuota):
            queue.published.class_quota.pop(group.class_index, None)  # no task of the class goes before this one
        if blocked.reservation_helps:
            if self.state.reservation_depth:
                actions.reserve(context, task, line.shape, line.cause)
        elif self.state.reservations:
            actions.drop_reservation(context, task)
        if not self.state.backfills and not isinstance(where, RoomOn):
            queue.wake_behind(task.id, Cause(CauseKind.QUEUE_CHANGED, task=task.id))
        if isinstance(where, TenantQuota):
            for wakeup in blocked.wakeups:
                if isinstance(wakeup, At):
                    self.state.timers.add_budgets(wakeup.instant)
            self._push(line, group.class_index)  # the line continues without the group

    # --- advice ------------------------------------------------------------------------------------------------------

    def _place_as_advised(self, first: Candidate) -> None:
        """Place the first task, or follow the advisor's choice."""
        state, context, choice = self.state, self.context, first
        assert self.advisor is not None
        before = reservations_before(state, first.task, context.at) if state.reservations else []
        by_model, above_quota = closed_to(context, first.task, first.group, first.line.shape, before)
        closed = by_model | above_quota
        if state.bookings:
            closed |= closed_by_bookings(state, first.task, first.line.shape, context.at)
        found = candidates(state, first, self.ready, closed)
        if len(found) > 1:
            self._feature_cache = self._feature_cache or FeatureCache(state, context.at)
            choice = found[self.advisor.pick(rows_of(self._feature_cache, found))]
        if choice.placement is None:
            self._hold_back(first)
            return
        actions.place(context, choice.task, choice.placement, choice.line.cause)
        self._push(first.line, first.group.class_index)
        if choice.line is not first.line:
            self._push(choice.line, choice.group.class_index)
        if state.queue.published.reservations:
            self._reserve_for_next()

    def _hold_back(self, first: Candidate) -> None:
        """Let a line wait for better device groups, and set a timer to try it again."""
        line, at = first.line, self.context.at
        if line.again_at <= at:
            line.again_at = at + HOLD_BACK_SECONDS
            self.state.timers.add_line(line.again_at, line.number)
        self.state.queue.block_line(line, held_back(better_than(first), line.again_at))

    def _tell(self, event: Event) -> None:
        """With an advisor: emit an event and update or discard the cached features."""
        self._emit(event)
        if type(event) is TaskPlaced and self._feature_cache is not None:
            self._feature_cache.invalidate(event.placement)
        else:
            self._feature_cache = None


def has_claim(state: State, line: Line) -> bool:
    """Whether the guarantee of its tenant or the part of its class covers a task of a line."""
    need, borrows = line.shape.need_milli, state.split.mode is QuotaMode.BORROW
    return any(
        group.size
        and (
            group.tenant.claims(need)
            or (borrows and state.classes[group.class_index].used + need <= state.classes[group.class_index].guarantee)
        )
        for group in line.groups.values()
    )
