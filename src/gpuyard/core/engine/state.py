"""State: tasks, nodes, usage and reservations. It makes no decisions; only events change it (see `apply`).

Besides the primary data it keeps derived structures (the queue, the placement index, the timers, the device groups that
gained room), so that the next scheduling pass knows where to look. The state depends only on events and the instants at
which they were recorded.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from gpuyard.core.domain import events
from gpuyard.core.domain.booking import Booking
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.notice import ArrayProgress, Moment, PendingNotice, Sender
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.refusals import Booked
from gpuyard.core.domain.settings import Backfill, Settings
from gpuyard.core.domain.task import Prerequisite, Resources
from gpuyard.core.domain.tenant import QuotaMode, Split, Tenant
from gpuyard.core.domain.values import AttemptRef, NodeId, Preemption, TaskId, TaskStatus, TenantId
from gpuyard.core.engine.lifecycle.barriers import Barrier
from gpuyard.core.engine.lifecycle.run_limits import LimitedTasks, note_place, shelve, take_off
from gpuyard.core.engine.phases import (
    HOLDING,
    Phase,
    Running,
    Stopping,
    Suspended,
    Waiting,
)
from gpuyard.core.engine.policies import POLICIES
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.quota import BATCH, CLASSES, ONLINE, ClassUsage, TenantUsage, set_parts
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.engine.timers import Timers
from gpuyard.core.engine.waiting.queue import LIMITS_CHANGED, Line, Queue
from gpuyard.core.placement.demand import Demand
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, members
from gpuyard.core.placement.index import Index
from gpuyard.core.placement.scores import SCORES, NodeOrder
from gpuyard.core.placement.scores.fragmentation import FragmentationCosts
from gpuyard.core.placement.scores.weighted import WeightedCosts
from gpuyard.core.placement.shape import Shape

DEFAULT_TENANT = TenantId("default")
"""The tenant whose limits apply to every tenant without limits of its own."""

PREEMPTING = (CauseKind.PREEMPTED, CauseKind.RECLAIMED, CauseKind.EXCHANGED, CauseKind.MADE_ROOM)
MOVING = (CauseKind.MOVED, CauseKind.EXCHANGED, CauseKind.MADE_ROOM)
LOOK_FOR_FASTER_SECONDS = 60.0
"""Seconds after its start at which a task is checked for a move to faster GPUs; then each time its run time doubles."""

ANY = -1


class OrphanedAttempt(NamedTuple):
    """Resources that an attempt may still use on a node although the scheduler counts the attempt as ended."""

    part: Slice
    ran: bool = False
    """The whole attempt ran on this node when the node was lost, so the attempt can be recovered."""
    wanted: Slice | None = None
    """Everything the attempt holds according to its node, if part of it is booked for other tasks; None: nothing is
    missing. The attempt is given the rest when those tasks end."""
    found: bool = False
    """The node reported the attempt, and the journal does not contain it."""


class Reservation:
    """Nodes that are reserved for a waiting task."""

    __slots__ = (
        "borrowed",
        "claim",
        "device_groups",
        "made_at",
        "need_milli",
        "nodes",
        "shape",
        "starts_at",
        "task",
        "tenant_key",
        "victims",
    )  # fmt: skip

    def __init__(self, task: OpenTask, shape: Shape, event: events.ReservationMade, at: float) -> None:
        self.task = task
        self.shape = shape
        self.made_at = at
        self.nodes = event.nodes
        self.starts_at = event.starts_at
        self.claim = event.claim
        self.borrowed = event.borrowed
        self.tenant_key = event.tenant_key
        self.device_groups: DeviceGroupMask = 0
        self.need_milli = shape.need_milli
        """Quota that the task will be charged on the reserved nodes, in thousandths of a GPU."""
        self.victims: set[TaskId] = set()
        """Tasks that are being stopped for this reservation, if it is a claim."""

    @property
    def sort_key(self) -> tuple[int, float, float, TaskId]:
        """Place in the queue order, as of when the reservation was made; later usage does not change it."""
        return (int(self.borrowed), self.tenant_key, self.task.key, self.task.id)


class BookingRecord:
    """A booking that has not ended, with where it is now."""

    __slots__ = ("begun", "booking", "cordoned", "device_groups", "late")

    def __init__(self, booking: Booking, *, begun: bool = False, cordoned: tuple[NodeId, ...] = ()) -> None:
        self.booking = booking
        self.begun = begun
        self.cordoned = cordoned
        """Nodes to uncordon when it ends."""
        self.late: tuple[TaskId, ...] = ()
        """Tasks that were in its way at its begin."""
        self.device_groups: dict[int, int] = {}
        """Its GPUs by number of the device group; nodes that are gone are absent."""

    def is_active_at(self, instant: float) -> bool:
        """Whether its GPUs are held for it at an instant; one that is due has begun."""
        return (self.begun or self.booking.begins_at <= instant) and instant < self.booking.ends_at

    def overlaps(self, begins_at: float, ends_at: float) -> bool:
        """Whether it lasts at any time between two instants."""
        return self.booking.begins_at < ends_at and begins_at < self.booking.ends_at


class State:
    """The complete state of the scheduler."""

    def __init__(self, policies: Mapping[str, Policy] = POLICIES) -> None:
        self.policies = policies
        """Policies that the settings can name; a simulation may add some."""
        self.cluster_id = ""
        self.now = 0.0
        """Instant of the last event; it never decreases."""
        self.epoch = 0
        """Number of the scheduler that is in charge; agents reject orders of earlier epochs."""
        self.origin = 0
        """Random number drawn by that scheduler; attempts that it places carry it."""
        self.origins: dict[int, None] = {}
        """Origins of all schedulers of this journal, newest last. An attempt with another origin was not placed by this
        cluster."""
        self.offline_after_seconds = 0.0
        """Seconds without contact after which a node counts as lost, as the scheduler has told the nodes."""
        self.scheduler_back_by = 0.0
        """No node counts as lost before this instant: the last scheduler announced that it would be back by then."""
        self.split = Split()
        self.index = Index()
        self.tasks: dict[TaskId, OpenTask] = {}
        self.active = 0
        """Number of tasks with an attempt; all other open tasks wait."""
        self.last_task = TaskId(0)
        self.gaps: list[tuple[TaskId, TaskId]] = []
        """Ranges (first, last) of task numbers that nodes have reported and this journal does not contain."""
        self.barriers: dict[Prerequisite, Barrier] = {}
        """Ranges of tasks that other tasks wait for; removed once all tasks of the range have ended."""
        self.awaited: dict[TaskId, list[Barrier]] = {}
        """Barriers by tasks of the same batch that are submitted later."""
        self.run_limits: dict[TaskId, LimitedTasks] = {}
        """Limits on the running tasks of arrays and sweeps, by the first task; removed once all their tasks have ended."""
        self.ended: dict[TaskId, TaskStatus] = {}
        self.ended_order: deque[TaskId] = deque()
        self.tenants: dict[TenantId, TenantUsage] = {}
        self.default_tenant = Tenant(DEFAULT_TENANT)
        self.classes = (ClassUsage(CLASSES[ONLINE]), ClassUsage(CLASSES[BATCH]))
        self.reservations: dict[TaskId, Reservation] = {}
        self.bookings: dict[int, BookingRecord] = {}
        """Bookings that have not ended."""
        self.last_booking = 0
        self.notices: dict[tuple[TaskId, int, Moment], PendingNotice] = {}
        """Messages about tasks that have not been delivered yet."""
        self.arrays: dict[TaskId, ArrayProgress] = {}
        """Arrays with notices of which tasks are open, by their first task."""
        # derived from the above, kept up to date
        self.waiting_notices: dict[Sender, int] = {}
        """Number of messages of each user that wait."""
        self.dropped_notices: dict[Sender, int] = {}
        """Number of messages that were dropped since this state was made or loaded."""
        self.booked: DeviceGroupMask = 0
        """Device groups of all bookings."""
        self.queue = Queue()
        self.coming_limits: list[LimitedTasks] = []
        """Limits that were set for tasks which are submitted next."""
        self.unsettled: dict[TaskId, LimitedTasks] = {}
        """Limits of which places were taken or returned by the event that is being applied."""
        self.on_node: dict[NodeId, dict[TaskId, OpenTask]] = {}
        """Tasks with an attempt on a node."""
        self.orphaned_attempts: dict[NodeId, dict[AttemptRef, OrphanedAttempt]] = {}
        """Attempts counted as ended that may still run on a node: their resources stay taken, charged to no tenant."""
        self.found_orphans: dict[TaskId, int] = {}
        """Number of attempts unknown to the journal, by task, that run on nodes which are not lost."""
        self.agents: dict[NodeId, tuple[str, str]] = {}
        """Agent instance and boot ID of a node, where the node has reported them."""
        self.back_by: dict[NodeId, float] = {}
        """Nodes whose agents were stopped on purpose, and the instant by which each is expected back."""
        self.reserved_bays: DeviceGroupMask = 0
        self.preemptible: dict[NodeId, int] = {}
        """Number of preemptible tasks on each node; nodes without any are absent."""
        self.weak: list[tuple[float, TaskId, OpenTask]] = []
        """Preemptible tasks as (-rank, number, task), weakest first; only for policies whose ranks change in steps.
        Some entries are stale: the task has ended or has another rank now."""
        self.movable: dict[TaskId, Shape] = {}
        """Running tasks that declare their speed per GPU model and can be checkpointed and moved."""
        self.restless = False
        """A movable task has started, or is due for another check for faster GPUs."""
        self.timers = Timers()
        """Instants at which something has to be checked."""
        self.reclaims = False
        """Tenants or classes have guarantees that they can reclaim from others."""
        self.guarantees = False
        """At least one tenant has a guarantee."""
        self.use_settings(Settings())
        self.demand = Demand()
        """Total demand of the open tasks."""
        self.orders: dict[int, NodeOrder] = {}
        """Order in which the score tries nodes, by number of GPUs requested; under ANY, one valid for all numbers."""

    # settings

    def use_settings(self, settings: Settings) -> None:
        """Set the settings, and what a scheduling pass needs to know of them."""
        self.settings = settings
        self.policy: Policy = self.policies[settings.policy]
        self.backfills = settings.backfill is not Backfill.NONE
        """Tasks may start before tasks ahead of them that find no room."""
        self.reservation_depth = {Backfill.EASY: 1, Backfill.CONSERVATIVE: settings.reservations}.get(
            settings.backfill, 0
        )
        """Number of tasks competing for the same nodes that may have a reservation."""
        self._note_order()

    def _note_order(self) -> None:
        self.keys_suffice = (
            self.policy.tenant_key is None and self.split.mode is not QuotaMode.BORROW and not self.guarantees
        )
        """A task's key alone determines the order: no tenant keys, no borrowing, no guarantees."""

    # tasks

    def count_demand(self, ask: Resources, by: int) -> None:
        """Add the demand of a task (`by` -1: remove it); if demand changed much, discard the node orders."""
        if self.demand.count(ask, by):
            self.orders.clear()

    def requeue(self, task: OpenTask, at: float) -> None:
        """Update the position of a task whose key or rank has changed: in the queue, or among the running tasks."""
        if task.group is not None or task.shelf is not None:
            self.leave_queue(task)
            self.enqueue(task, at)
            if task.is_parked:
                self.end_reservation(task.id)
            elif task.id in self.reservations:
                self.queue.reservation_ended(Cause(CauseKind.QUEUE_CHANGED, task=task.id))
        elif isinstance(task.phase, Running):
            if self.policy.changes_at is not None:
                self.watch_rank(task, at)
            if self.may_preempt():
                self.queue.retry(self.queue.lines.values(), Cause(CauseKind.QUEUE_CHANGED, task=task.id))

    # attempts

    def watch(self, task: OpenTask, at: float) -> None:
        """Set the timers for a run that begins: timeout, rank change, check for faster GPUs."""
        if task.spec.timeout_seconds is not None:
            self.timers.add_task(at + task.spec.timeout_seconds - task.attempt_seconds, task.id)
        if self.policy.changes_at is not None:
            self.watch_rank(task, at)
        if task.spec.resources.speeds:
            self._watch_speed(task, at)

    def _watch_speed(self, task: OpenTask, at: float) -> None:
        """Mark a task as movable if it declares speeds, can checkpoint, and its size does not depend on the node."""
        ask = task.spec.resources
        if task.preemption is Preemption.CHECKPOINT and ask.gpus and not ask.whole_nodes:
            self.movable[task.id] = Shape(ask)
            self.restless = True
            self.timers.add_task(at + LOOK_FOR_FASTER_SECONDS, task.id)

    def watch_rank(self, task: OpenTask, at: float) -> None:
        """Update the rank of a running task and set a timer for its next change, unless it is never preempted."""
        policy = self.policy
        if task.preemption is Preemption.NEVER:
            return  # only the ranks of possible victims are read
        assert policy.rank is not None
        assert policy.changes_at is not None
        task.rank = policy.rank(task, at, self.settings)
        if self.is_preemptible(task):
            self._list_weak(task)
        changes_at = policy.changes_at(task, at, self.settings)
        if changes_at is not None:
            self.timers.add_task(changes_at, task.id)

    def presumed_on(self, node: NodeId) -> list[AttemptRef]:
        """Return the attempts that a node may still run although the scheduler counts them as ended."""
        parts = [
            AttemptRef(task.id, task.attempts, task.origin)
            for task in self.on_node[node].values()
            if task.presumed is not None and node in task.presumed
        ]
        return [*self.orphaned_attempts.get(node, ()), *parts]

    def count_preemptible(self, placement: Placement, sign: int) -> None:
        """Count a preemptible task on its nodes (`sign` 1) or remove it from them (-1)."""
        for node in placement.nodes:
            self.preemptible[node] = self.preemptible.get(node, 0) + sign
            if not self.preemptible[node]:
                del self.preemptible[node]

    def is_preemptible(self, task: OpenTask) -> bool:
        """Whether a task runs, allows preemption, and has not reached the preemption limit."""
        return (
            isinstance(task.phase, Running)
            and task.preemption is not Preemption.NEVER
            and task.preemptions < self.settings.preemption_limit
        )

    def _list_weak(self, task: OpenTask) -> None:
        """Insert a running task into `weak`. Stale entries are removed when the list has grown too long."""
        entry = (-task.rank, task.id, task)
        place = bisect_left(self.weak, entry)
        if place == len(self.weak) or self.weak[place] != entry:
            self.weak.insert(place, entry)
            if len(self.weak) > 64 + 2 * len(self.tasks):
                self.weak = sorted(
                    (-task.rank, task.id, task) for task in self.tasks.values() if self.is_preemptible(task)
                )

    def note_victim(self, task: OpenTask, cause: Cause) -> None:
        """If a task is being preempted for a task with a reservation, record it as a victim of the reservation."""
        if cause.why in PREEMPTING and cause.task in self.reservations:
            self.reservations[cause.task].victims.add(task.id)

    def unnote_victim(self, task: OpenTask) -> None:
        """Remove a task from the victims of all reservations: it has ended, or is no longer being stopped."""
        for reservation in self.reservations.values():
            reservation.victims.discard(task.id)

    # usage and charges

    def charge(self, task: OpenTask, placement: Placement, charge: int, at: float) -> None:
        """Charge a placement to its class and tenant; a negative charge is a refund."""
        in_class, usage = self.classes[task.class_index], task.tenant_usage
        in_class.used += charge
        if usage.since != at:
            usage.settle(at, self.settings.fair_share_half_life_seconds)
        usage.used += charge
        if usage.tenant.budget is not None:
            self.watch_budget(usage, at)
        if self.reclaims:
            for used, guarantee in ((usage.used, usage.guarantee), (in_class.used, in_class.guarantee)):
                if used <= guarantee if charge < 0 else used > guarantee:
                    self.queue.guarantee_crossed(all_lines=(used <= guarantee) != (used - charge <= guarantee))
        if usage.model_limits:
            sign = 1 if charge > 0 else -1
            for part in placement.slices:
                if part.gpus:
                    model = self.index.hosts[part.node].device_group_of[part.gpus[0]].model
                    usage.used_by_model[model] = usage.used_by_model.get(model, 0) + sign * len(part.gpus) * part.milli

    def watch_budget(self, usage: TenantUsage, at: float) -> None:
        """Set a timer for the instant at which a tenant has spent its budget, unless one is set for an earlier instant."""
        spent_at = usage.spent_at(at)
        if spent_at is not None and spent_at < usage.checked_at:
            usage.checked_at = spent_at
            self.timers.add_budgets(spent_at)

    def release(self, task: OpenTask, placement: Placement, at: float, *, keep_memory: bool = False) -> None:
        """Free the resources of an attempt and refund its charge."""
        cause = Cause(CauseKind.GPUS_FREED, task=task.id)
        self.index.give(placement, keep_memory=keep_memory)
        self.free(placement, cause)
        self.uncharge(task, placement, at, cause)

    def uncharge(self, task: OpenTask, placement: Placement, at: float, cause: Cause) -> None:
        """Refund the charge of a placement and publish that quotas of its class and tenant were freed."""
        self.charge(task, placement, -placement.charge_milli, at)
        self.quotas_freed(task, cause)

    def quotas_freed(self, task: OpenTask, cause: Cause) -> None:
        """Publish that the quotas of a task's class and tenant may admit other tasks."""
        queue = self.queue
        queue.class_quota_freed(task.class_index, cause)
        if task.spec.tenant in queue.for_tenant:
            queue.tenant_quota_freed(task.spec.tenant, cause)

    def free(self, placement: Placement, cause: Cause) -> None:
        """Publish that the nodes of a placement gained room."""
        for part in placement.slices:
            if part.node in self.orphaned_attempts:
                self._take_wanted(part.node)
            for device_group in self.index.hosts[part.node].device_groups:
                self.queue.room_gained(device_group.number, cause)

    def _take_wanted(self, node: NodeId) -> None:
        """Assign freed resources of a node to the unknown attempts that use them; these precede all waiting tasks."""
        for what, left in self.orphaned_attempts[node].items():
            if left.wanted is not None:
                self.index.give(Placement((left.part,)))
                part = self.index.free_of(left.wanted) or Slice(node)
                self.index.take(Placement((part,)))
                self.orphaned_attempts[node][what] = left._replace(
                    part=part, wanted=None if part == left.wanted else left.wanted
                )
        self.place_reservations()

    def usage_of(self, tenant: TenantId) -> TenantUsage:
        """Return the usage record of a tenant; a tenant without one gets one with the default limits."""
        usage = self.tenants.get(tenant)
        if usage is None:
            self._forget_tenants()
            usage = self.tenants[tenant] = TenantUsage(replace(self.default_tenant, id=tenant), self.now)
        return usage

    def _forget_tenants(self) -> None:
        """Check two tenants, in turn, for each new one, so that tenants no longer needed are removed eventually."""
        for name in list(islice(self.tenants, 2)):
            usage = self.tenants.pop(name)
            if not usage.is_forgettable(self.now, self.settings.fair_share_half_life_seconds):
                self.tenants[name] = usage
                continue
            self.queue.forget_tenant(name)
            if usage.guarantee:
                self.note_guarantees()

    # the queue

    def enqueue(self, task: OpenTask, at: float) -> None:
        """Put a task into the queue if it lacks nothing but GPUs; otherwise do nothing.

        A task whose array or sweep has a limit on running tasks is put there when it has its turn.
        """
        if task.held or task.waits_for or task.group is not None or task.shelf is not None:
            return
        phase = task.phase
        if isinstance(phase, Waiting):
            if task.id in self.found_orphans:
                return
            if phase.not_before > at:
                self.timers.add_task(phase.not_before, task.id)
                return
        elif not isinstance(phase, Suspended):
            return
        reservation = self.reservations.get(task.id)
        if reservation is not None and reservation.claim:
            return
        task.key = self.policy.key(task, at, self.settings)
        if task.run_limit is not None and not task.has_place:
            shelve(self, task.run_limit, task)
        else:
            self.push(task, at)

    def push(self, task: OpenTask, at: float) -> None:
        """Put a task into the queue under its current key."""
        resources, pin = self._asks(task)
        line = self.queue.push(task, resources, pin, task.left_seconds(at))
        cause = Cause(CauseKind.QUEUED, task=task.id)
        if self._joins_at_quota(line, task):
            self.queue.retry((line,), cause)
        elif line.blocked is None:
            self.queue.mark(line, cause)
        else:
            self._consider(line, task, cause)

    def _joins_at_quota(self, line: Line, task: OpenTask) -> bool:
        """Whether a task is the best of a group that waits for a quota, and may be able to preempt others for it."""
        group = task.group
        assert group is not None
        if group.blocked is None and line.class_blocked[task.class_index] is None:
            return False
        top = group.top()
        return top is not None and top[1] == task.id and self.may_preempt()

    def _consider(self, line: Line, task: OpenTask, cause: Cause) -> None:
        """Handle a task that joins a blocked line: it may preempt others, or precede the tasks the line waits for."""
        head = line.head(task.class_index)
        first = head is not None and head[1] == task.id
        may_stop = self.may_preempt() and (
            first or (self.guarantees and task.tenant_usage.claims(line.shape.need_milli))
        )
        goes_before = line.number in self.queue.for_reservation and (
            not self.backfills
            or not self.keys_suffice
            or any(task.key < reservation.task.key for reservation in self.reservations.values())
        )
        may_end_before = line.blocked is not None and line.blocked.refusal is Booked
        if may_stop or goes_before or may_end_before:
            self.queue.wake(line, cause)
        elif self.reservation_depth and needs_reservation(line.shape):
            # the task may qualify for a reservation, possibly in place of a task behind it
            room = (
                self.settings.backfill is Backfill.CONSERVATIVE and len(self.reservations) < self.settings.reservations
            )
            first = not self.reservations or task.key < max(
                reservation.task.key for reservation in self.reservations.values()
            )
            if room or first or self.policy.tenant_key is not None:
                self.queue.order_changed(cause)

    def may_preempt(self) -> bool:
        """Whether any waiting task could preempt a running one."""
        if not self.preemptible or not self.settings.preemption:
            return False
        return self.policy.rank is not None or self.reclaims

    def stops_soon(self, placement: Placement, cause: Cause) -> None:
        """Publish that a task leaves its nodes earlier than expected: there may be time before a reserved start."""
        promised = self.reserved_bays | self.booked
        if promised and promised & (here := self.index.device_groups_of(placement.nodes)):
            self.queue.reservation_moved(cause)
            if self.booked & here and self.may_preempt():
                for number in members(self.booked & here):
                    self.queue.preemptible_started(number, cause)

    def _asks(self, task: OpenTask) -> tuple[Resources, DeviceGroupMask]:
        """Return what a waiting task needs, and the device groups it is pinned to (0: none).

        A suspended task needs the same number of GPUs of the same kind, on the nodes that hold its memory.
        """
        ask, phase = task.spec.resources, task.phase
        if not isinstance(phase, Suspended):
            return ask, 0
        pin: DeviceGroupMask = 0
        for part in phase.placement.slices:
            host = self.index.hosts[part.node]
            pin |= (host.device_group_of[part.gpus[0]] if part.gpus else host.device_groups[0]).bit
        counts = {len(part.gpus) for part in phase.placement.slices}
        whole_nodes = len(counts) > 1  # only then do parts have different sizes
        gpus = 0 if ask.share else min(counts)
        return Resources(
            gpus, ask.share, ask.nodes, whole_nodes, cpus=ask.cpus, link=ask.link, booking=ask.booking
        ), pin

    def add_found_orphan(self, number: TaskId) -> None:
        """Count an unknown attempt of a task on a node; the task itself does not start while that attempt runs."""
        self.found_orphans[number] = self.found_orphans.get(number, 0) + 1
        task = self.tasks.get(number)
        if task is not None and isinstance(task.phase, Waiting):
            self.leave_queue(task)
            self.end_reservation(number)

    def remove_found_orphan(self, number: TaskId) -> None:
        """Remove an unknown attempt of a task: it has ended, or its node is lost."""
        self.found_orphans[number] -= 1
        if not self.found_orphans[number]:
            del self.found_orphans[number]
            task = self.tasks.get(number)
            if task is not None and task.group is None and isinstance(task.phase, Waiting):
                self.enqueue(task, self.now)

    def leave_queue(self, task: OpenTask) -> None:
        """Remove a task from the queue, if it is in it, and from the tasks that wait for their turn."""
        if task.shelf is not None:
            take_off(self, task)
        if task.group is not None:
            line = task.group.line
            if line.blocked is not None and self.policy.spares is not None and self.may_preempt():
                # the next task of the line may preempt tasks that the policy spared from this one
                self.queue.wake(line, Cause(CauseKind.QUEUE_CHANGED, task=task.id))
            self.queue.remove(task)
            if not self.backfills:
                self.queue.order_changed(Cause(CauseKind.QUEUE_CHANGED, task=task.id))

    # reservations

    def reserve(self, task: OpenTask, event: events.ReservationMade, at: float) -> None:
        """Record a reservation."""
        shape = task.group.line.shape if task.group else Shape(*self._asks(task))
        before = self.reservations.get(event.task)
        reservation = self.reservations[event.task] = Reservation(task, shape, event, at)
        if before is not None and before.claim and event.claim:
            reservation.victims = before.victims  # same reservation, only its sort key has changed
        elif isinstance(task.phase, Stopping):  # it is being moved; in an exchange, another task must leave first
            reservation.victims = {task.id}
            if task.phase.cause.why is CauseKind.EXCHANGED and task.phase.cause.task is not None:
                reservation.victims.add(task.phase.cause.task)
        self._place_reservation(reservation)
        self._unite_reservations()
        if before is not None and not event.claim:
            self.queue.reservation_moved(Cause(CauseKind.RESERVATION_MOVED, task=task.id))
        if event.starts_at is not None and not event.claim:
            self.timers.add_task(event.starts_at, task.id)
        if event.claim:
            self.leave_queue(task)
        if task.run_limit is not None:
            note_place(self, task)

    def end_reservation(self, task: TaskId) -> None:
        """Remove the reservation of a task, if it has one."""
        ended = self.reservations.pop(task, None)
        if ended is not None:
            if ended.task.run_limit is not None:
                note_place(self, ended.task)
            cause = Cause(CauseKind.RESERVATION_ENDED, task=task)
            self._unite_reservations()
            self.queue.reservation_ended(cause)
            if self.may_preempt():
                self.queue.retry_at_quota_behind(task, cause)
                if ended.claim:  # while it lasted, no other task could preempt on its nodes
                    for number in members(ended.device_groups):
                        self.queue.preemptible_started(number, cause)

    def place_reservations(self) -> None:
        """Recompute the device groups of all reservations after nodes changed."""
        if self.bookings:
            self.place_bookings()
        for reservation in self.reservations.values():
            self._place_reservation(reservation)
        self._unite_reservations()

    def _place_reservation(self, reservation: Reservation) -> None:
        """Compute the device groups of a reservation, and what its task is charged there."""
        reservation.shape.refresh(self.index)
        reservation.device_groups = self.index.device_groups_of(reservation.nodes)
        reservation.need_milli = reservation.shape.need_on(reservation.nodes, self.index)

    def _unite_reservations(self) -> None:
        self.reserved_bays = 0
        for reservation in self.reservations.values():
            self.reserved_bays |= reservation.device_groups

    # bookings

    def add_booking(self, record: BookingRecord) -> None:
        """Add a booking, with timers for its begin and its end."""
        booking = record.booking
        self.bookings[booking.id] = record
        self.timers.add_booking(booking.begins_at, booking.id)
        self.timers.add_booking(booking.ends_at, booking.id)
        self.place_bookings()

    def place_bookings(self) -> None:
        """Recompute the device groups of all bookings after one of them, or nodes, changed."""
        self.booked = 0
        by_booking: dict[int, DeviceGroupMask] = {}
        for record in self.bookings.values():
            record.device_groups = {}
            for part in record.booking.parts:
                host = self.index.hosts.get(part.node)
                if host is None:
                    continue
                if record.booking.maintenance:
                    record.device_groups.update(
                        (device_group.number, device_group.all.bit_count()) for device_group in host.device_groups
                    )
                elif (device_group := host.device_group_of.get(part.gpu)) is not None:
                    record.device_groups[device_group.number] = part.gpus
            mask = 0
            for number in record.device_groups:
                mask |= 1 << number
            by_booking[record.booking.id] = mask
            self.booked |= mask
        self.index.set_booked(by_booking)

    # the whole cluster

    def note_guarantees(self) -> None:
        """Determine whether any tenant or class has GPUs to reclaim."""
        self.guarantees = any(usage.guarantee for usage in self.tenants.values())
        self.reclaims = self.guarantees or self.split.mode is QuotaMode.BORROW
        self._note_order()

    def divide(self) -> None:
        """Divide the GPUs that are up between the classes."""
        set_parts(*self.classes, self.split, self.index.gpus_up)
        self.queue.order_changed(LIMITS_CHANGED)
        self.queue.quotas_changed(LIMITS_CHANGED)
        self.queue.class_limits_changed(LIMITS_CHANGED)
        if self.reclaims:
            self.doubt_claims()

    def doubt_claims(self) -> None:
        """Retry all lines after guarantees changed: a waiting task may have the right to preempt others now."""
        if self.may_preempt():
            self.queue.retry(self.queue.lines.values(), LIMITS_CHANGED)

    def was_ours(self, task: TaskId) -> bool:
        """Whether this journal contains, or contained, a task with this number."""
        return task <= self.last_task and not any(first <= task <= last for first, last in self.gaps)

    def order_for(self, gpus: int) -> NodeOrder:
        """Return the order in which the score tries nodes for a task that requests `gpus` GPUs on a node."""
        order = self.orders.get(gpus)
        if order is None:
            order = self.orders.get(ANY) or SCORES[self.settings.score](gpus, self.index, self.demand, self.settings)
            self.orders[gpus] = order
            if isinstance(order, FragmentationCosts | WeightedCosts):
                self.orders[ANY] = order
        return order


def needs_reservation(shape: Shape) -> bool:
    """Whether other tasks could starve a task of this shape by taking freed GPUs one at a time."""
    return not (shape.plain and shape.gpus == 1)


def holds_gpus(phase: Phase) -> bool:
    """Whether a task in this phase is charged for GPUs."""
    return isinstance(phase, HOLDING) and not (isinstance(phase, Stopping) and not phase.holds_gpus)
