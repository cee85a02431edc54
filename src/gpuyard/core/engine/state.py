"""State: everything that is so, as books. It never decides, and only facts change it: `folds` says how each one does.

Besides the books themselves it keeps what follows from them (the queue, the index, the timers, the nodes that gained
room), so that the next pass knows where to look. Nothing here depends on anything but facts and the instants they were
recorded at.
"""

from bisect import bisect_left
from collections import deque
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from gpuyard.core.domain import events as fact
from gpuyard.core.domain.causes import Cause, Why
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.settings import Backfill, Settings
from gpuyard.core.domain.task import Prerequisite, Resources
from gpuyard.core.domain.tenant import QuotaMode, Split, Tenant
from gpuyard.core.domain.values import AttemptRef, NodeId, Preemption, TaskId, TaskStatus, TenantId
from gpuyard.core.engine.barriers import Barrier
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
from gpuyard.core.engine.queue import LIMITS_CHANGED, Line, Queue
from gpuyard.core.engine.quota import BATCH, CLASSES, ONLINE, ClassUsage, TenantUsage, set_parts
from gpuyard.core.engine.task import Task
from gpuyard.core.engine.timers import Timers
from gpuyard.core.placement.demand import Demand
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.index import Index
from gpuyard.core.placement.scores import SCORES, NodeOrder
from gpuyard.core.placement.scores.fragmentation import FragmentationCosts
from gpuyard.core.placement.shape import Shape

DEFAULT_TENANT = TenantId("default")
"""Its limits are those of every tenant nobody has set."""

PREEMPTING = (Why.PREEMPTED, Why.RECLAIMED, Why.EXCHANGED)
MOVING = (Why.MOVED, Why.EXCHANGED)
LOOK_FOR_FASTER_SECONDS = 60.0
"""After so long it is seen whether a task that has started would be faster elsewhere; then whenever it has run twice as long."""

ANY = -1


class Left(NamedTuple):
    """What a node may still have of an attempt that is over for us."""

    part: Slice
    ran: bool = False
    """All of the attempt ran there when its node was lost: it can be taken back."""
    wanted: Slice | None = None
    """All that it holds, as its node says, where some of that counts as taken by others: it gets it when they end."""
    found: bool = False
    """Its node has told of it, and the journal does not know it."""


class Reservation:
    """A reservation in force: nodes that are promised to a waiting task."""

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

    def __init__(self, task: Task, shape: Shape, event: fact.ReservationMade, at: float) -> None:
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
        """What it will count for in quotas."""
        self.victims: set[TaskId] = set()
        """Tasks being stopped for a claim."""

    @property
    def sort_key(self) -> tuple[int, float, float, TaskId]:
        """Whom it goes before: as it was when the promise was made, whatever has been used since."""
        return (int(self.borrowed), self.tenant_key, self.task.key, self.task.id)


class State:
    """Everything that is so."""

    def __init__(self) -> None:
        self.yard = ""
        self.now = 0.0
        """The instant of the last fact; time never runs backwards."""
        self.epoch = 0
        """Which scheduler's word counts."""
        self.origin = 0
        """Drawn at random by that scheduler: attempts it places carry it."""
        self.origins: dict[int, None] = {}
        """Of all schedulers of this journal, the newest last: what carries another one was never placed by this yard."""
        self.offline_after_seconds = 0.0
        """After how long it counts a node as lost, as it has told the nodes."""
        self.patient_until = 0.0
        """No node counts as lost before this instant: the last scheduler said it would be back."""
        self.settings = Settings()
        self.policy: Policy = POLICIES[self.settings.policy]
        self.split = Split()
        self.index = Index()
        self.tasks: dict[TaskId, Task] = {}
        self.active = 0
        """How many of them have an attempt: all others wait."""
        self.last_task = TaskId(0)
        self.gaps: list[tuple[TaskId, TaskId]] = []
        """Numbers, first and last, of tasks that nodes have heard of and this journal has not."""
        self.barriers: dict[Prerequisite, Barrier] = {}
        """Ranges of tasks that others wait for, until all of them have ended."""
        self.awaited: dict[TaskId, list[Barrier]] = {}
        """Barriers of a batch by tasks of the same batch that come later."""
        self.ended: dict[TaskId, TaskStatus] = {}
        self.ended_order: deque[TaskId] = deque()
        self.tenants: dict[TenantId, TenantUsage] = {}
        self.default_tenant = Tenant(DEFAULT_TENANT)
        self.classes = (ClassUsage(CLASSES[ONLINE]), ClassUsage(CLASSES[BATCH]))
        self.reservations: dict[TaskId, Reservation] = {}
        # what follows from the above, kept up to date
        self.queue = Queue()
        self.on_node: dict[NodeId, dict[TaskId, Task]] = {}
        """Tasks with an attempt on a node."""
        self.remains: dict[NodeId, dict[AttemptRef, Left]] = {}
        """What nodes that were lost may still run, though it is over for us: taken there, and charged to nobody."""
        self.strays: dict[TaskId, int] = {}
        """Of which tasks nodes that are not lost run attempts that the journal does not know, and how many."""
        self.agents: dict[NodeId, tuple[str, str]] = {}
        """Which agent speaks for a node, and since which start of its machine, where the node has said so."""
        self.back_by: dict[NodeId, float] = {}
        """Nodes whose agents were stopped on purpose, and by when they are expected back."""
        self.reserved_bays: DeviceGroupMask = 0
        self.preemptible: dict[NodeId, int] = {}
        """How many tasks on a node allow to be stopped for others; nodes with none are not in it."""
        self.weak: list[tuple[float, TaskId, Task]] = []
        """Under a policy whose ranks change in steps: who may be stopped, the weakest first, by rank with a minus. Some of
        the entries are of tasks that run no longer, or have another rank now."""
        self.movable: dict[TaskId, Shape] = {}
        """Running tasks that say how fast they are where, and may be stopped to go on elsewhere."""
        self.restless = False
        """One of them has started, or has run for long enough to be looked at again."""
        self.timers = Timers()
        """Instants at which something has to be looked at."""
        self.reclaims = False
        """Somebody has a guarantee to claim."""
        self.guarantees = False
        """A tenant has a guarantee."""
        self.demand = Demand()
        """What the open tasks ask for."""
        self.orders: dict[int, NodeOrder] = {}
        """In which order the score tries room, by GPUs wanted; under ANY, what is the same for all."""

    # tasks

    def count_demand(self, ask: Resources, by: int) -> None:
        """A task came or went; when many did, the score has to think again."""
        if self.demand.count(ask, by):
            self.orders.clear()

    def requeue(self, task: Task, at: float) -> None:
        """A task stands elsewhere now: in the queue, or among those that others may stop."""
        if task.group is not None:
            self.leave_queue(task)
            self.enqueue(task, at)
            if task.id in self.reservations:
                self.queue.reservation_ended(Cause(Why.QUEUE_CHANGED, task=task.id))
        elif isinstance(task.phase, Running) and self.may_preempt():
            self.queue.retry(self.queue.lines.values(), Cause(Why.QUEUE_CHANGED, task=task.id))

    # attempts

    def watch(self, task: Task, at: float) -> None:
        """A run begins: note when it has to be looked at."""
        if task.spec.timeout_seconds is not None:
            self.timers.add_task(at + task.spec.timeout_seconds - task.attempt_seconds, task.id)
        if self.policy.changes_at is not None:
            self.watch_rank(task, at)
        if task.spec.resources.speeds:
            self._watch_speed(task, at)

    def _watch_speed(self, task: Task, at: float) -> None:
        """A task that says how fast it is where may be moved, if it saves itself and its size does not depend on the node."""
        ask = task.spec.resources
        if task.preemption is Preemption.CHECKPOINT and ask.gpus and not ask.whole_nodes:
            self.movable[task.id] = Shape(ask)
            self.restless = True
            self.timers.add_task(at + LOOK_FOR_FASTER_SECONDS, task.id)

    def watch_rank(self, task: Task, at: float) -> None:
        """Note how weakly a running task holds on to its GPUs, and when that changes."""
        policy = self.policy
        assert policy.rank is not None
        assert policy.changes_at is not None
        task.rank = policy.rank(task, at, self.settings)
        if self.is_preemptible(task):
            self._list_weak(task)
        changes_at = policy.changes_at(task, at, self.settings)
        if changes_at is not None:
            self.timers.add_task(changes_at, task.id)

    def presumed_on(self, node: NodeId) -> list[AttemptRef]:
        """Everything a node may still run, though it is over for us."""
        parts = [
            AttemptRef(task.id, task.attempts, task.origin)
            for task in self.on_node[node].values()
            if task.presumed is not None and node in task.presumed
        ]
        return [*self.remains.get(node, ()), *parts]

    def count_preemptible(self, placement: Placement, sign: int) -> None:
        """A task that allows to be stopped for others came to its nodes, or left them."""
        for node in placement.nodes:
            self.preemptible[node] = self.preemptible.get(node, 0) + sign
            if not self.preemptible[node]:
                del self.preemptible[node]

    def is_preemptible(self, task: Task) -> bool:
        """Whether a task runs, allows to be stopped for others, and was not stopped too often."""
        return (
            isinstance(task.phase, Running)
            and task.preemption is not Preemption.NEVER
            and task.preemptions < self.settings.preemption_limit
        )

    def _list_weak(self, task: Task) -> None:
        """Note a running task among those that may be stopped. Entries of others that left are thrown away now and then."""
        entry = (-task.rank, task.id, task)
        place = bisect_left(self.weak, entry)
        if place == len(self.weak) or self.weak[place] != entry:
            self.weak.insert(place, entry)
            if len(self.weak) > 64 + 2 * len(self.tasks):
                self.weak = sorted(
                    (-task.rank, task.id, task) for task in self.tasks.values() if self.is_preemptible(task)
                )

    def note_victim(self, task: Task, cause: Cause) -> None:
        """A task is being stopped; if it is for another's sake, that one waits for it."""
        if cause.why in PREEMPTING and cause.task in self.reservations:
            self.reservations[cause.task].victims.add(task.id)

    def unnote_victim(self, task: Task) -> None:
        """It is not being stopped any more, or is gone."""
        for reservation in self.reservations.values():
            reservation.victims.discard(task.id)

    # booking

    def charge(self, task: Task, placement: Placement, charge: int, at: float) -> None:
        """Charge a placement to its class and tenant, or give the charge back."""
        self.classes[task.class_index].used += charge
        usage = task.tenant_usage
        if usage.since != at:
            usage.settle(at, self.settings.fair_share_half_life_seconds)
        usage.used += charge
        if self.guarantees and (
            usage.used <= usage.guarantee if charge < 0 else usage.used - charge <= usage.guarantee
        ):
            self.queue.guarantee_crossed()
        if usage.model_limits:
            sign = 1 if charge > 0 else -1
            for part in placement.slices:
                if part.gpus:
                    model = self.index.hosts[part.node].device_group_of[part.gpus[0]].model
                    usage.used_by_model[model] = usage.used_by_model.get(model, 0) + sign * len(part.gpus) * part.milli

    def release(self, task: Task, placement: Placement, at: float, *, keep_memory: bool = False) -> None:
        """What an attempt held is free, and not charged any more."""
        cause = Cause(Why.GPUS_FREED, task=task.id)
        self.index.give(placement, keep_memory=keep_memory)
        self.free(placement, cause)
        self.uncharge(task, placement, at, cause)

    def uncharge(self, task: Task, placement: Placement, at: float, cause: Cause) -> None:
        """A charge is given back: class and tenant have more of their quotas left."""
        self.charge(task, placement, -placement.charge_milli, at)
        self.quotas_freed(task, cause)

    def quotas_freed(self, task: Task, cause: Cause) -> None:
        """Publish that the quotas of a task's class and tenant may let others through."""
        queue = self.queue
        queue.class_quota_freed(task.class_index, cause)
        if task.spec.tenant in queue.for_tenant:
            queue.tenant_quota_freed(task.spec.tenant, cause)

    def free(self, placement: Placement, cause: Cause) -> None:
        """Publish that the nodes of a placement gained room."""
        for part in placement.slices:
            if part.node in self.remains:
                self._take_wanted(part.node)
            for device_group in self.index.hosts[part.node].device_groups:
                self.queue.room_gained(device_group.number, cause)

    def _take_wanted(self, node: NodeId) -> None:
        """What is free now on a node may be in use by attempts that it had when it came: they come before all others."""
        for what, left in self.remains[node].items():
            if left.wanted is not None:
                self.index.give(Placement((left.part,)))
                part = self.index.free_of(left.wanted) or Slice(node)
                self.index.take(Placement((part,)))
                self.remains[node][what] = left._replace(part=part, wanted=None if part == left.wanted else left.wanted)
        self.place_reservations()

    def usage_of(self, tenant: TenantId) -> TenantUsage:
        """A tenant's book; a tenant nobody has set gets one with the default limits."""
        usage = self.tenants.get(tenant)
        if usage is None:
            self._forget_tenants()
            usage = self.tenants[tenant] = TenantUsage(replace(self.default_tenant, id=tenant), self.now)
        return usage

    def _forget_tenants(self) -> None:
        """For every tenant that comes two are looked at, in turn, so that those nobody needs any more leave in the end."""
        for name in list(islice(self.tenants, 2)):
            usage = self.tenants.pop(name)
            if not usage.is_forgettable(self.now, self.settings.fair_share_half_life_seconds):
                self.tenants[name] = usage
                continue
            self.queue.forget_tenant(name)
            if usage.guarantee:
                self.note_guarantees()

    # the queue

    def enqueue(self, task: Task, at: float) -> None:
        """Put a task into the queue if nothing but GPUs is missing."""
        if task.held or task.waits_for or task.group is not None:
            return
        phase = task.phase
        if isinstance(phase, Waiting):
            if task.id in self.strays:
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
        resources, pin = self._asks(task)
        line = self.queue.push(task, resources, pin, task.left_seconds(at))
        cause = Cause(Why.QUEUED, task=task.id)
        if line.blocked is None:
            self.queue.mark(line, cause)
        else:
            self._consider(line, task, cause)

    def _consider(self, line: Line, task: Task, cause: Cause) -> None:
        """A task joined a blocked line: it may still stop others, or go before those that the line waits for."""
        head = line.head(task.class_index)
        first = head is not None and head[1] == task.id
        may_stop = self.may_preempt() and (
            first or (self.guarantees and task.tenant_usage.claims(line.shape.need_milli))
        )
        goes_before = line.number in self.queue.for_reservation and (
            self.settings.backfill is Backfill.NONE
            or not self.keys_suffice()
            or any(task.key < reservation.task.key for reservation in self.reservations.values())
        )
        if may_stop or goes_before:
            self.queue.wake(line, cause)
        elif self.settings.backfill in (Backfill.EASY, Backfill.CONSERVATIVE) and needs_reservation(line.shape):
            room = (
                self.settings.backfill is Backfill.CONSERVATIVE and len(self.reservations) < self.settings.reservations
            )
            first = not self.reservations or task.key < max(
                reservation.task.key for reservation in self.reservations.values()
            )
            if room or first or self.policy.tenant_key is not None:
                self.queue.order_changed(cause)

    def may_preempt(self) -> bool:
        """Whether anything waiting could stop anything running."""
        if not self.preemptible or not self.settings.preemption:
            return False
        return self.policy.rank is not None or self.reclaims

    def keys_suffice(self) -> bool:
        """Whether a task's key alone says who goes first: no borrowing, no guarantees, and the policy ranks no tenants."""
        return self.policy.tenant_key is None and self.split.mode is not QuotaMode.BORROW and not self.guarantees

    def stops_soon(self, placement: Placement, cause: Cause) -> None:
        """Publish that a task will leave its nodes sooner than expected: there may be time before a reserved start."""
        if self.reserved_bays and self.reserved_bays & self.index.device_groups_of(placement.nodes):
            self.queue.reservation_moved(cause)

    def _asks(self, task: Task) -> tuple[Resources, DeviceGroupMask]:
        """What a waiting task needs; a suspended one as many cards of the same kind, on the nodes where its memory is."""
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
        return Resources(gpus, ask.share, ask.nodes, whole_nodes, cpus=ask.cpus, link=ask.link), pin

    def stray_began(self, number: TaskId) -> None:
        """A node runs an attempt of a task that is not known here: the task does not start beside it."""
        self.strays[number] = self.strays.get(number, 0) + 1
        task = self.tasks.get(number)
        if task is not None and isinstance(task.phase, Waiting):
            self.leave_queue(task)
            self.end_reservation(number)

    def stray_ended(self, number: TaskId) -> None:
        """One of them is over, or its node is lost."""
        self.strays[number] -= 1
        if not self.strays[number]:
            del self.strays[number]
            task = self.tasks.get(number)
            if task is not None and task.group is None and isinstance(task.phase, Waiting):
                self.enqueue(task, self.now)

    def leave_queue(self, task: Task) -> None:
        """A task does not wait in the queue any more, if it did."""
        if task.group is not None:
            self.queue.remove(task)
            if self.settings.backfill is Backfill.NONE:
                self.queue.order_changed(Cause(Why.QUEUE_CHANGED, task=task.id))

    # reservations

    def reserve(self, task: Task, event: fact.ReservationMade, at: float) -> None:
        """Enter a reservation."""
        shape = task.group.line.shape if task.group else Shape(*self._asks(task))
        before = self.reservations.get(event.task)
        reservation = self.reservations[event.task] = Reservation(task, shape, event, at)
        if before is not None and before.claim and event.claim:
            reservation.victims = before.victims  # the same reservation, only its sort key changed
        elif isinstance(task.phase, Stopping):  # it is being moved, and in an exchange another has to go first
            reservation.victims = {task.id}
            if task.phase.cause.task is not None:
                reservation.victims.add(task.phase.cause.task)
        self._place_reservation(reservation)
        self._unite_reservations()
        if before is not None and not event.claim:
            self.queue.reservation_moved(Cause(Why.RESERVATION_MOVED, task=task.id))
        if event.starts_at is not None and not event.claim:
            self.timers.add_task(event.starts_at, task.id)
        if event.claim:
            self.leave_queue(task)

    def end_reservation(self, task: TaskId) -> None:
        """Nothing is promised to a task any more, if anything was."""
        if self.reservations.pop(task, None) is not None:
            self._unite_reservations()
            self.queue.reservation_ended(Cause(Why.RESERVATION_ENDED, task=task))

    def place_reservations(self) -> None:
        """Nodes changed: look up anew where the promised ones are."""
        for reservation in self.reservations.values():
            self._place_reservation(reservation)
        self._unite_reservations()

    def _place_reservation(self, reservation: Reservation) -> None:
        """Look up where promised nodes are, and what the task will count for there."""
        reservation.shape.refresh(self.index)
        reservation.device_groups = self.index.device_groups_of(reservation.nodes)
        reservation.need_milli = reservation.shape.need_on(reservation.nodes, self.index)

    def _unite_reservations(self) -> None:
        self.reserved_bays = 0
        for reservation in self.reservations.values():
            self.reserved_bays |= reservation.device_groups

    # the yard

    def note_guarantees(self) -> None:
        """See whether anybody has GPUs to claim back."""
        self.guarantees = any(usage.guarantee for usage in self.tenants.values())
        self.reclaims = self.guarantees or self.split.mode is QuotaMode.BORROW

    def divide(self) -> None:
        """Give each class its part of the GPUs there are now."""
        set_parts(*self.classes, self.split, self.index.gpus_up)
        self.queue.order_changed(LIMITS_CHANGED)
        self.queue.quotas_changed(LIMITS_CHANGED)
        self.queue.class_limits_changed(LIMITS_CHANGED)
        if self.split.mode is QuotaMode.BORROW:
            self.doubt_claims()

    def doubt_claims(self) -> None:
        """Who is guaranteed how much has changed: a task that waits may have the right to stop others now."""
        if self.may_preempt():
            self.queue.retry(self.queue.lines.values(), LIMITS_CHANGED)

    def was_ours(self, task: TaskId) -> bool:
        """Whether this journal has, or had, a task of this number."""
        return task <= self.last_task and not any(first <= task <= last for first, last in self.gaps)

    def order_for(self, gpus: int) -> NodeOrder:
        """In which order the score tries room for a task that wants so many GPUs on a node."""
        order = self.orders.get(gpus)
        if order is None:
            order = self.orders.get(ANY) or SCORES[self.settings.score](gpus, self.index, self.demand)
            self.orders[gpus] = order
            if isinstance(order, FragmentationCosts):
                self.orders[ANY] = order
        return order


def needs_reservation(shape: Shape) -> bool:
    """Whether others could keep such a task waiting by taking what is freed piece by piece."""
    return not (shape.plain and shape.gpus == 1)


def holds_gpus(phase: Phase) -> bool:
    """Whether GPUs are booked for a task in this phase."""
    return isinstance(phase, HOLDING) and not (isinstance(phase, Stopping) and not phase.holds_gpus)
