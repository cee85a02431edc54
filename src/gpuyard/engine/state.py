"""State: the fold of the facts. It never decides; it only books what is so.

Live and replay go through the same `apply`. Besides the books themselves it keeps what follows from them (the queue,
the index, the timers, the nodes that gained room), so that the next pass knows where to look. Nothing here depends on
anything but facts and the instants they were recorded at.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappush
from typing import Any, cast

from gpuyard.domain import events as fact
from gpuyard.domain.causes import Cause, Why
from gpuyard.domain.errors import UnknownFact
from gpuyard.domain.placement import Placement, Slice
from gpuyard.domain.settings import Backfill, Settings
from gpuyard.domain.task import Resources
from gpuyard.domain.tenant import QuotaMode, Split, Tenant
from gpuyard.domain.values import MILLI, NodeId, Outcome, Preemption, TaskId, TaskStatus, TenantId
from gpuyard.engine.phases import (
    ACTIVE,
    HOLDING,
    TRANSITIONS,
    Ended,
    Phase,
    Placed,
    Resuming,
    Running,
    Settling,
    Stopping,
    Suspended,
    Suspending,
    Waiting,
)
from gpuyard.engine.policies import POLICIES
from gpuyard.engine.policies.policy import Policy
from gpuyard.engine.queue import Line, Queue
from gpuyard.engine.quota import BATCH, CLASSES, ONLINE, ClassBook, TenantBook, set_parts
from gpuyard.engine.task import Task
from gpuyard.placement.bayset import BaySet
from gpuyard.placement.index import Index
from gpuyard.placement.scores import SCORES
from gpuyard.placement.shape import Shape

DEFAULT_TENANT = TenantId("default")
"""Its limits are those of every tenant nobody has set."""

PREEMPTING = (Why.PREEMPTED, Why.RECLAIMED)
OWN_FAILURES = (Why.EXIT_CODE, Why.NOT_LAUNCHED, Why.MEMBER_FAILED)
"""What a task's retries are counted by."""


class Hold:
    """A reservation in force: nodes that are promised to a waiting task."""

    __slots__ = ("bays", "borrowed", "claim", "made_at", "nodes", "shape", "starts_at", "task", "tenant_key", "victims")

    def __init__(self, task: Task, shape: Shape, event: fact.ReservationMade, at: float) -> None:
        self.task = task
        self.shape = shape
        self.made_at = at
        self.nodes = event.nodes
        self.starts_at = event.starts_at
        self.claim = event.claim
        self.borrowed = event.borrowed
        self.tenant_key = event.tenant_key
        self.bays: BaySet = 0
        self.victims: set[TaskId] = set()
        """Tasks being stopped for a claim."""

    @property
    def standing(self) -> tuple[int, float, float, TaskId]:
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
        self.patient_until = 0.0
        """No node counts as lost before this instant: the last scheduler said it would be back."""
        self.settings = Settings()
        self.policy: Policy = POLICIES[self.settings.policy]
        self.split = Split()
        self.index = Index()
        self.tasks: dict[TaskId, Task] = {}
        self.last_task = TaskId(0)
        self.awaited: dict[TaskId, list[TaskId]] = {}
        """Tasks of a batch that wait for later ones of the same batch."""
        self.ended: dict[TaskId, TaskStatus] = {}
        self.ended_order: deque[TaskId] = deque()
        self.tenants: dict[TenantId, TenantBook] = {}
        self.default_tenant = Tenant(DEFAULT_TENANT)
        self.classes = (ClassBook(CLASSES[ONLINE]), ClassBook(CLASSES[BATCH]))
        self.holds: dict[TaskId, Hold] = {}
        self.demand: list[int] = [0]
        """How many submitted tasks asked for n GPUs on a node: what the fragmentation score expects."""
        # what follows from the above, kept up to date
        self.queue = Queue()
        self.on_node: dict[NodeId, dict[TaskId, Task]] = {}
        """Tasks with an attempt on a node."""
        self.held_bays: BaySet = 0
        self.prey: dict[NodeId, int] = {}
        """How many tasks on a node allow to be stopped for others; nodes with none are not in it."""
        self.freed: dict[int, None] = {}
        """Bays that gained room since the last pass."""
        self.timers: list[tuple[float, TaskId]] = []
        """Instants at which a task has to be looked at; task 0 stands for the yard."""
        self.reclaims = False
        """Somebody has a guarantee to claim."""
        self.vacancy = False
        """A reservation ended: the next in line may get one."""
        self.orders: dict[int, tuple[int, ...]] = {}
        """The score's order of free counts, by GPUs wanted."""

    # --- the fold ------------------------------------------------------------------------------------------------

    def apply(self, event: fact.Event, at: float) -> None:
        """Fold a fact of the journal, at the instant it was recorded."""
        self.now = max(self.now, at)
        self.fold(event)

    def fold(self, event: fact.Event) -> None:
        """Fold a fact at the present instant."""
        try:
            _FOLDS[type(event)](self, event, self.now)
        except KeyError as error:
            raise UnknownFact(f"{type(event).__name__} speaks of {error}, which is not known here.") from error

    def _known(self, task_id: TaskId, event: fact.Event) -> Task:
        task = self.tasks.get(task_id)
        if task is None:
            raise UnknownFact(f"{type(event).__name__} speaks of task {task_id}, which is not open.")
        return task

    def _move(self, task_id: TaskId, event: fact.Event) -> tuple[Task, Phase]:
        """The task a fact speaks of, after a look at the table: does the fact fit its phase?"""
        task = self._known(task_id, event)
        phase = task.phase
        if (type(phase), type(event)) not in TRANSITIONS:
            raise UnknownFact(f"{type(event).__name__} does not fit task {task_id}, which is {type(phase).__name__}.")
        return task, phase

    # tasks

    def _submitted(self, event: fact.TaskSubmitted, at: float) -> None:
        spec = event.spec
        if event.task <= self.last_task:
            raise UnknownFact(f"TaskSubmitted speaks of task {event.task}, a number that was used before.")
        task = self.tasks[event.task] = Task(event.task, spec, self.book(spec.tenant), at)
        self.last_task = event.task
        if self.awaited:
            task.dependents = self.awaited.pop(event.task, None)
        gpus = spec.resources.gpus
        if gpus >= len(self.demand):
            self.demand.extend([0] * (gpus + 1 - len(self.demand)))
        self.demand[gpus] += 1
        if spec.after_success or spec.after_any:
            self._wait_for_others(task)
        if spec.deadline is not None:
            heappush(self.timers, (spec.deadline, task.id))
        self.enqueue(task, at)

    def _wait_for_others(self, task: Task) -> None:
        waits_for = set()
        for dependency in task.spec.after_success + task.spec.after_any:
            if self.ended.get(dependency) is None:
                waits_for.add(dependency)
        for dependency in sorted(waits_for):
            if other := self.tasks.get(dependency):
                other.dependents = [*(other.dependents or ()), task.id]
            else:
                self.awaited.setdefault(dependency, []).append(task.id)
        task.waits_for = waits_for or None

    def _held(self, event: fact.TaskHeld, at: float) -> None:  # noqa: ARG002
        task = self._known(event.task, event)
        task.held = True
        self._leave_queue(task)
        self._release_hold(task.id)

    def _released(self, event: fact.TaskReleased, at: float) -> None:
        task = self._known(event.task, event)
        task.held = False
        if isinstance(task.phase, Suspended):
            task.phase = Suspended(task.phase.attempt, task.phase.placement, task.phase.since, by_user=False)
        self.enqueue(task, at)

    def _priority_changed(self, event: fact.PriorityChanged, at: float) -> None:
        task = self._known(event.task, event)
        task.priority = event.priority
        self._requeue(task, at)

    def _estimate_revised(self, event: fact.EstimateRevised, at: float) -> None:
        task = self._known(event.task, event)
        task.estimate = event.estimate
        self._requeue(task, at)

    def _requeue(self, task: Task, at: float) -> None:
        """A task stands elsewhere now: in the queue, or among those that others may stop."""
        if task.group is not None:
            self._leave_queue(task)
            self.enqueue(task, at)
        elif isinstance(task.phase, Running) and self.may_preempt():
            self.queue.retry_all()

    def _task_requeued(self, event: fact.TaskRequeued, at: float) -> None:
        task, phase = self._move(event.task, event)
        assert isinstance(phase, Settling)
        if event.cause.why in PREEMPTING:
            task.preemptions += 1
        elif event.cause.why in OWN_FAILURES:
            task.failures += 1
        task.phase = Waiting(at, event.not_before)
        if task.spec.deadline is not None:
            heappush(self.timers, (task.spec.deadline, task.id))
        self.enqueue(task, at)

    def _task_ended(self, event: fact.TaskEnded, at: float) -> None:  # noqa: ARG002
        task, _ = self._move(event.task, event)
        self._leave_queue(task)
        self._release_hold(task.id)
        task.phase = Ended(event.status)
        del self.tasks[task.id]
        self.ended[task.id] = event.status
        self.ended_order.append(task.id)
        while len(self.ended_order) > self.settings.remember_ended:
            del self.ended[self.ended_order.popleft()]
        for dependent in task.dependents or ():
            self._dependency_ended(dependent, task.id, event.status)
        if len(self.timers) > 64 + 8 * len(self.tasks):
            self._tidy_timers()

    def _tidy_timers(self) -> None:
        """Throw away the timers of tasks that are over, and doubles."""
        self.timers[:] = sorted({timer for timer in self.timers if timer[1] <= 0 or timer[1] in self.tasks})

    def _dependency_ended(self, dependent: TaskId, task: TaskId, status: TaskStatus) -> None:
        """A task that succeeded, or was only waited for, is out of the way; otherwise the engine ends the dependent."""
        other = self.tasks.get(dependent)
        if other is None or other.waits_for is None:
            return
        if status is TaskStatus.SUCCESS or task not in other.spec.after_success:
            other.waits_for.discard(task)
            if not other.waits_for:
                other.waits_for = None
                self.enqueue(other, self.now)

    # attempts

    def _placed(self, event: fact.TaskPlaced, at: float) -> None:
        task, _ = self._move(event.task, event)
        placement = event.placement
        if task.group is not None:
            self._leave_queue(task)
        if self.holds:
            self._release_hold(task.id)
        task.attempts = event.attempt
        task.attempt_seconds = 0.0
        task.members = None
        task.phase = Placed(event.attempt, placement, at)
        self.index.take(placement)
        self.charge(task, placement, placement.charge_milli, at)
        for part in placement.slices:
            self.on_node[part.node][task.id] = task
        if task.spec.preemption is not Preemption.NEVER:
            self.count_prey(placement, 1)

    def _started(self, event: fact.AttemptStarted, at: float) -> None:
        task, phase = self._move(event.task, event)
        task.phase = Running(event.attempt, cast("Placed", phase).placement, at)
        self.watch(task, at)

    def watch(self, task: Task, at: float) -> None:
        """A run begins: note when it has to be looked at."""
        if task.spec.timeout_seconds is not None:
            heappush(self.timers, (at + task.spec.timeout_seconds - task.attempt_seconds, task.id))
        if self.policy.changes_at is not None:
            changes_at = self.policy.changes_at(task, at, self.settings)
            if changes_at is not None:
                heappush(self.timers, (changes_at, task.id))

    def _suspending(self, event: fact.AttemptSuspending, at: float) -> None:
        task, phase = self._move(event.task, event)
        assert isinstance(phase, Running)
        self._count_service(task, phase, at)
        task.phase = Suspending(event.attempt, phase.placement, at, event.cause)
        self.note_victim(task, event.cause)

    def _suspended(self, event: fact.AttemptSuspended, at: float) -> None:
        task, phase = self._move(event.task, event)
        assert isinstance(phase, Suspending)
        self._unnote_victim(task)
        by_user = phase.cause.why is Why.SUSPENDED_BY_USER
        if phase.cause.why in PREEMPTING:
            task.preemptions += 1
        task.phase = Suspended(event.attempt, phase.placement, at, by_user)
        task.held = by_user
        self._release(task, phase.placement, at, keep_memory=True)
        self.enqueue(task, at)

    def _resuming(self, event: fact.AttemptResuming, at: float) -> None:
        task, _ = self._move(event.task, event)
        self._leave_queue(task)
        self._release_hold(task.id)
        task.phase = Resuming(event.attempt, event.placement, at)
        self._take_again(task, event.placement, at)

    def _take_again(self, task: Task, placement: Placement, at: float) -> None:
        """A suspended attempt has its host memory still."""
        parts = tuple(_without_memory(part) for part in placement.slices)
        self.index.take(Placement(parts))
        self.charge(task, placement, placement.charge_milli, at)

    def _resumed(self, event: fact.AttemptResumed, at: float) -> None:
        task, phase = self._move(event.task, event)
        assert isinstance(phase, Resuming)
        task.phase = Running(event.attempt, phase.placement, at)
        self.watch(task, at)

    def _stopping(self, event: fact.AttemptStopping, at: float) -> None:
        task, phase = self._move(event.task, event)
        if isinstance(phase, Running):
            self._count_service(task, phase, at)
        self._leave_queue(task)
        self._release_hold(task.id)
        placement = phase.placement  # type: ignore[attr-defined]
        task.phase = Stopping(event.attempt, placement, at, event.cause, holds_gpus(phase))
        self.note_victim(task, event.cause)

    def _member_ended(self, event: fact.MemberEnded, at: float) -> None:  # noqa: ARG002
        task = self._known(event.task, event)
        if not isinstance(task.phase, ACTIVE):
            raise UnknownFact(f"MemberEnded does not fit task {task.id}, which is {type(task.phase).__name__}.")
        task.members = {**(task.members or {}), event.node: event.outcome}

    def _attempt_ended(self, event: fact.AttemptEnded, at: float) -> None:
        task, phase = self._move(event.task, event)
        assert isinstance(phase, ACTIVE)
        cause = None
        if isinstance(phase, Running):
            self._count_service(task, phase, at)
        if isinstance(phase, Stopping):
            cause = phase.cause
        self._unnote_victim(task)
        self._leave_queue(task)
        self._release_hold(task.id)
        if isinstance(phase, Suspended) or (isinstance(phase, Stopping) and not phase.holds_gpus):
            self.index.give_memory(phase.placement)
            self._free(phase.placement)
        else:
            self._release(task, phase.placement, at, keep_memory=False)
        for part in phase.placement.slices:
            del self.on_node[part.node][task.id]
        if task.spec.preemption is not Preemption.NEVER:
            self.count_prey(phase.placement, -1)
        saved = task.spec.preemption is Preemption.CHECKPOINT and event.outcome is Outcome.STOPPED
        if not saved:
            task.served_seconds = 0.0
        task.phase = Settling(event.attempt, event.outcome, event.exit_code, cause)

    def count_prey(self, placement: Placement, sign: int) -> None:
        """A task that allows to be stopped for others came to its nodes, or left them."""
        for node in placement.nodes:
            self.prey[node] = self.prey.get(node, 0) + sign
            if not self.prey[node]:
                del self.prey[node]

    def _count_service(self, task: Task, phase: Running, at: float) -> None:
        seconds = at - phase.since
        task.served_seconds += seconds
        task.attempt_seconds += seconds
        task.gpu_seconds += seconds * phase.placement.charge_milli / MILLI

    def note_victim(self, task: Task, cause: Cause) -> None:
        """A task is being stopped; if it is for another's sake, that one waits for it."""
        if cause.why in PREEMPTING and cause.task in self.holds:
            self.holds[cause.task].victims.add(task.id)

    def _unnote_victim(self, task: Task) -> None:
        for hold in self.holds.values():
            hold.victims.discard(task.id)

    # booking

    def charge(self, task: Task, placement: Placement, charge: int, at: float) -> None:
        """Charge a placement to its class and tenant, or give the charge back."""
        self.classes[task.place].used += charge
        book = task.book
        if book.since != at:
            book.settle(at, self.settings.fair_share_half_life_seconds)
        book.used += charge
        if book.model_limits:
            sign = 1 if charge > 0 else -1
            for part in placement.slices:
                if part.gpus:
                    model = self.index.hosts[part.node].bay_of[part.gpus[0]].model
                    book.used_by_model[model] = book.used_by_model.get(model, 0) + sign * len(part.gpus) * part.milli

    def _release(self, task: Task, placement: Placement, at: float, *, keep_memory: bool) -> None:
        self.index.give(placement, keep_memory=keep_memory)
        self.charge(task, placement, -placement.charge_milli, at)
        self._free(placement)
        queue = self.queue
        queue.class_loosened[task.place] = True
        if task.spec.tenant in queue.with_tenant:
            queue.loosened[task.spec.tenant] = task.book

    def _free(self, placement: Placement) -> None:
        for part in placement.slices:
            for bay in self.index.hosts[part.node].bays:
                self.freed[bay.number] = None

    def book(self, tenant: TenantId) -> TenantBook:
        """A tenant's book; a tenant nobody has set gets one with the default limits."""
        book = self.tenants.get(tenant)
        if book is None:
            limits = self.default_tenant
            book = self.tenants[tenant] = TenantBook(
                Tenant(
                    tenant,
                    limits.max_gpus,
                    limits.max_gpus_by_model,
                    limits.guaranteed_gpus,
                    limits.weight,
                    limits.budget,
                ),
                self.now,
            )
        return book

    # the queue

    def enqueue(self, task: Task, at: float) -> None:
        """Put a task into the queue if nothing but GPUs is missing."""
        if task.held or task.waits_for or task.group is not None:
            return
        phase = task.phase
        if isinstance(phase, Waiting):
            if phase.not_before > at:
                heappush(self.timers, (phase.not_before, task.id))
                return
        elif not isinstance(phase, Suspended):
            return
        hold = self.holds.get(task.id)
        if hold is not None and hold.claim:
            return
        task.key = self.policy.key(task, at, self.settings)
        resources, pin = self._asks(task)
        line = self.queue.push(task, resources, pin, task.left_seconds(at))
        if line.awake:
            self.queue.stirred[line.number] = line
        else:
            self._consider(line, task)

    def _consider(self, line: Line, task: Task) -> None:
        """A task joined a sleeping line: it may still stop others, or go before those the line sleeps behind."""
        if self.may_preempt() and (head := line.head(task.place)) is not None and head[1] == task.id:
            line.awake = True
            self.queue.stirred[line.number] = line
        elif self.settings.backfill is Backfill.NONE and line.behind:
            self.queue.wake(line)
        elif self.settings.backfill in (Backfill.EASY, Backfill.CONSERVATIVE) and needs_reservation(line.shape):
            room = self.settings.backfill is Backfill.CONSERVATIVE and len(self.holds) < self.settings.reservations
            first = not self.holds or task.key < max(hold.task.key for hold in self.holds.values())
            self.vacancy = self.vacancy or room or first or self.policy.tenant_key is not None

    def may_preempt(self) -> bool:
        """Whether anything waiting could stop anything running."""
        if not self.prey or not self.settings.preemption:
            return False
        return self.policy.outranks is not None or self.reclaims

    def _asks(self, task: Task) -> tuple[Resources, tuple[NodeId, ...]]:
        """What a waiting task needs; a suspended one the same cards' model, on the nodes where its memory is."""
        ask, phase = task.spec.resources, task.phase
        if not isinstance(phase, Suspended):
            return ask, ()
        part = phase.placement.slices[0]
        models = (self.index.hosts[part.node].bay_of[part.gpus[0]].model,) if part.gpus else ()
        resources = Resources(ask.gpus, ask.share, ask.nodes, ask.whole_nodes, models, cpus=ask.cpus, link=ask.link)
        return resources, phase.placement.nodes

    def _leave_queue(self, task: Task) -> None:
        if task.group is not None:
            self.queue.remove(task)
            if self.settings.backfill is Backfill.NONE:
                self.vacancy = True

    # reservations

    def reserve(self, event: fact.ReservationMade, at: float) -> None:
        """Enter a reservation."""
        task = self._known(event.task, event)
        shape = task.group.line.shape if task.group else Shape(*self._asks(task))
        hold = self.holds[event.task] = Hold(task, shape, event, at)
        hold.bays = self.index.bays_of(event.nodes)
        self._unite_holds()
        if event.starts_at is not None and not event.claim:
            heappush(self.timers, (event.starts_at, task.id))
        if event.claim:
            self._leave_queue(task)

    def _dropped(self, event: fact.ReservationDropped, at: float) -> None:
        hold = self.holds.get(event.task)
        if hold is None:
            raise UnknownFact(f"ReservationDropped speaks of task {event.task}, which holds no reservation.")
        self._release_hold(event.task)
        if hold.claim:
            self.enqueue(hold.task, at)

    def _release_hold(self, task: TaskId) -> None:
        if self.holds.pop(task, None) is not None:
            self._unite_holds()
            self.vacancy = True
            self.queue.loosen_all()
            for line in self.queue.lines.values():
                if line.behind:
                    self.queue.wake(line)

    def _unite_holds(self) -> None:
        self.held_bays = 0
        for hold in self.holds.values():
            self.held_bays |= hold.bays

    # nodes

    def _joined(self, event: fact.NodeJoined, at: float) -> None:  # noqa: ARG002
        if event.node.id in self.index.hosts:
            raise UnknownFact(f"NodeJoined speaks of node {event.node.id}, which is there already.")
        self.index.join(event.node)
        self.on_node[event.node.id] = {}
        self._nodes_changed(event.node.id)

    def _lost(self, event: fact.NodeLost, at: float) -> None:  # noqa: ARG002
        self.index.set_state(event.node, lost=True)
        self.divide()

    def _returned(self, event: fact.NodeReturned, at: float) -> None:  # noqa: ARG002
        self.index.set_state(event.node, lost=False)
        self._nodes_changed(event.node)

    def _removed(self, event: fact.NodeRemoved, at: float) -> None:  # noqa: ARG002
        self.index.remove(event.node)
        del self.on_node[event.node]
        self.divide()

    def _cordoned(self, event: fact.NodeCordoned, at: float) -> None:  # noqa: ARG002
        self.index.set_state(event.node, cordoned=True, draining=event.draining)
        self.queue.loosen_all()  # nobody waits behind a task that only this node could have held

    def _uncordoned(self, event: fact.NodeUncordoned, at: float) -> None:  # noqa: ARG002
        self.index.set_state(event.node, cordoned=False, draining=False)
        self._nodes_changed(event.node)

    def _health_changed(self, event: fact.GpuHealthChanged, at: float) -> None:  # noqa: ARG002
        self.index.set_health(event.node, event.gpu, event.health)
        self._nodes_changed(event.node)

    def _nodes_changed(self, node: NodeId) -> None:
        for bay in self.index.hosts[node].bays:
            self.freed[bay.number] = None
        self.orders.clear()
        for hold in self.holds.values():
            hold.bays = self.index.bays_of(hold.nodes)
        self._unite_holds()
        self.divide()

    # the yard

    def _founded(self, event: fact.YardFounded, at: float) -> None:  # noqa: ARG002
        if self.yard:
            raise UnknownFact(f"YardFounded speaks of a yard that is founded already, as {self.yard}.")
        self.yard = event.yard

    def _epoch_began(self, event: fact.EpochBegan, at: float) -> None:  # noqa: ARG002
        self.epoch = event.epoch

    def _epoch_ended(self, event: fact.EpochEnded, at: float) -> None:  # noqa: ARG002
        self.patient_until = event.patient_until

    def _tenant_set(self, event: fact.TenantSet, at: float) -> None:
        tenant = event.tenant
        self.vacancy = True
        self.queue.class_loosened = [True, True]
        if tenant.id == DEFAULT_TENANT:
            self.default_tenant = tenant
        book = self.tenants.get(tenant.id)
        if book is None:
            self.tenants[tenant.id] = TenantBook(tenant, at)
            self.note_guarantees()
            return
        book.settle(at, self.settings.fair_share_half_life_seconds)
        if (
            tenant.budget is None
            or book.tenant.budget is None
            or tenant.budget.period_seconds != book.tenant.budget.period_seconds
        ):
            book.period_began, book.spent_gpu_seconds = at, 0.0
        book.set(tenant)
        book.used_by_model = {}
        for task in self.tasks.values():
            if task.spec.tenant == tenant.id and isinstance(task.phase, HOLDING) and book.model_limits:
                for part in task.phase.placement.slices:
                    if part.gpus and holds_gpus(task.phase):
                        model = self.index.hosts[part.node].bay_of[part.gpus[0]].model
                        book.used_by_model[model] = book.used_by_model.get(model, 0) + len(part.gpus) * part.milli
        self.queue.loosened[tenant.id] = book
        self.note_guarantees()

    def note_guarantees(self) -> None:
        """See whether anybody has GPUs to claim back."""
        guaranteed = any(book.tenant.guaranteed_gpus is not None for book in self.tenants.values())
        self.reclaims = guaranteed or self.split.mode is QuotaMode.BORROW

    def _split_set(self, event: fact.SplitSet, at: float) -> None:  # noqa: ARG002
        self.split = event.split
        self.divide()
        self.note_guarantees()

    def divide(self) -> None:
        """Give each class its part of the GPUs there are now."""
        self.vacancy = True
        set_parts(*self.classes, self.split, self.index.gpus_up)
        self.queue.loosen_all()
        self.queue.unpark_all_for_good()

    def _settings_changed(self, event: fact.SettingsChanged, at: float) -> None:
        self.settings = event.settings
        self.policy = POLICIES[event.settings.policy]
        self.orders.clear()
        waiting = [task for task in self.tasks.values() if task.group is not None]
        for task in waiting:
            self._requeue(task, at)
        for task in self.tasks.values():
            if isinstance(task.phase, Running):
                self.watch(task, at)
        self.queue.wake_all()

    # --- looking -------------------------------------------------------------------------------------------------

    def order_for(self, gpus: int) -> tuple[int, ...]:
        """The score's order of free counts for a task that wants so many GPUs on a node."""
        order = self.orders.get(gpus)
        if order is None:
            most = max(len(self.index.by_free) - 1, gpus)
            order = self.orders[gpus] = tuple(SCORES[self.settings.score](gpus, most, self.demand))
        return order


def needs_reservation(shape: Shape) -> bool:
    """Whether others could keep such a task waiting by taking what is freed piece by piece."""
    return not (shape.plain and shape.gpus == 1)


def holds_gpus(phase: Phase) -> bool:
    """Whether GPUs are booked for a task in this phase."""
    return isinstance(phase, HOLDING) and not (isinstance(phase, Stopping) and not phase.holds_gpus)


def _without_memory(part: Slice) -> Slice:
    return Slice(part.node, part.gpus, part.milli, part.gpu_memory_mib, part.cpus)


_FOLDS: dict[type[fact.Event], Callable[[State, Any, float], None]] = {
    fact.YardFounded: State._founded,
    fact.TaskSubmitted: State._submitted,
    fact.TaskHeld: State._held,
    fact.TaskReleased: State._released,
    fact.PriorityChanged: State._priority_changed,
    fact.EstimateRevised: State._estimate_revised,
    fact.TaskRequeued: State._task_requeued,
    fact.TaskEnded: State._task_ended,
    fact.TaskPlaced: State._placed,
    fact.AttemptStarted: State._started,
    fact.AttemptSuspending: State._suspending,
    fact.AttemptSuspended: State._suspended,
    fact.AttemptResuming: State._resuming,
    fact.AttemptResumed: State._resumed,
    fact.AttemptStopping: State._stopping,
    fact.MemberEnded: State._member_ended,
    fact.AttemptEnded: State._attempt_ended,
    fact.ReservationMade: State.reserve,
    fact.ReservationDropped: State._dropped,
    fact.NodeJoined: State._joined,
    fact.NodeLost: State._lost,
    fact.NodeReturned: State._returned,
    fact.NodeRemoved: State._removed,
    fact.NodeCordoned: State._cordoned,
    fact.NodeUncordoned: State._uncordoned,
    fact.GpuHealthChanged: State._health_changed,
    fact.EpochBegan: State._epoch_began,
    fact.EpochEnded: State._epoch_ended,
    fact.TenantSet: State._tenant_set,
    fact.SplitSet: State._split_set,
    fact.SettingsChanged: State._settings_changed,
}
