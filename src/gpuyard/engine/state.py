"""State: the fold of the facts. It never decides; it only books what is so.

Live and replay go through the same `apply`. Besides the books themselves it keeps what follows from them (the queue,
the index, the timers, the nodes that gained room), so that the next pass knows where to look. Nothing here depends on
anything but facts and the instants they were recorded at.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Container
from heapq import heappush
from itertools import islice
from typing import Any, cast

from msgspec.structs import replace

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
from gpuyard.placement.demand import Demand
from gpuyard.placement.index import Index
from gpuyard.placement.scores import SCORES, Order
from gpuyard.placement.scores.fragmentation import Fragmentation
from gpuyard.placement.shape import Shape
from gpuyard.placement.speeds import speed_of

DEFAULT_TENANT = TenantId("default")
"""Its limits are those of every tenant nobody has set."""

PREEMPTING = (Why.PREEMPTED, Why.RECLAIMED, Why.EXCHANGED)
MOVING = (Why.MOVED, Why.EXCHANGED)
OWN_FAILURES = (Why.EXIT_CODE, Why.OUT_OF_MEMORY, Why.NOT_LAUNCHED, Why.MEMBER_FAILED)
"""What a task's retries are counted by."""


LOOK_FOR_FASTER_SECONDS = 60.0
"""After so long it is seen whether a task that has started would be faster elsewhere; then whenever it has run twice as long."""

AttemptOf = tuple[TaskId, int]
"""A task's number, and which attempt."""


ANY = -1


class Hold:
    """A reservation in force: nodes that are promised to a waiting task."""

    __slots__ = (
        "bays", "borrowed", "claim", "made_at", "need_milli", "nodes", "shape", "starts_at", "task", "tenant_key", "victims",
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
        self.bays: BaySet = 0
        self.need_milli = shape.need_milli
        """What it will count for in quotas."""
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
        self.gaps: list[tuple[TaskId, TaskId]] = []
        """Numbers, first and last, of tasks that nodes have heard of and this journal has not."""
        self.awaited: dict[TaskId, list[TaskId]] = {}
        """Tasks of a batch that wait for later ones of the same batch."""
        self.ended: dict[TaskId, TaskStatus] = {}
        self.ended_order: deque[TaskId] = deque()
        self.tenants: dict[TenantId, TenantBook] = {}
        self.default_tenant = Tenant(DEFAULT_TENANT)
        self.classes = (ClassBook(CLASSES[ONLINE]), ClassBook(CLASSES[BATCH]))
        self.holds: dict[TaskId, Hold] = {}
        # what follows from the above, kept up to date
        self.queue = Queue()
        self.on_node: dict[NodeId, dict[TaskId, Task]] = {}
        """Tasks with an attempt on a node."""
        self.remains: dict[NodeId, dict[AttemptOf, Slice]] = {}
        """What nodes that were lost may still run, though it is over for us: taken there, and charged to nobody."""
        self.held_bays: BaySet = 0
        self.prey: dict[NodeId, int] = {}
        """How many tasks on a node allow to be stopped for others; nodes with none are not in it."""
        self.weak: list[tuple[float, TaskId, Task]] = []
        """Under a policy whose ranks change in steps: who may be stopped, the weakest first, by rank with a minus. Some of
        the entries are of tasks that run no longer, or have another rank now."""
        self.movable: dict[TaskId, Shape] = {}
        """Running tasks that say how fast they are where, and may be stopped to go on elsewhere."""
        self.restless = False
        """One of them has started, or has run for long enough to be looked at again."""
        self.freed: dict[int, None] = {}
        """Bays that gained room since the last pass."""
        self.begun: dict[int, None] = {}
        """Bays in which somebody who may be stopped began to run since the last pass."""
        self.timers: list[tuple[float, TaskId]] = []
        """Instants at which a task has to be looked at; task 0 stands for the yard."""
        self.reclaims = False
        """Somebody has a guarantee to claim."""
        self.vacancy = False
        """A reservation ended: the next in line may get one."""
        self.demand = Demand()
        """What the open tasks ask for."""
        self.orders: dict[int, Order] = {}
        """In which order the score tries room, by GPUs wanted; under ANY, what is the same for all."""

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
        task.book.open_tasks += 1
        self.last_task = event.task
        if self.awaited:
            task.dependents = self.awaited.pop(event.task, None)
        self.count_demand(spec.resources, 1)
        if spec.after_success or spec.after_any:
            self._wait_for_others(task)
        if spec.deadline is not None:
            heappush(self.timers, (spec.deadline, task.id))
        self.enqueue(task, at)

    def count_demand(self, ask: Resources, by: int) -> None:
        """A task came or went; when many did, the score has to think again."""
        if self.demand.count(ask, by):
            self.orders.clear()

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

    def _extended(self, event: fact.TaskExtended, at: float) -> None:
        task = self._known(event.task, event)
        task.spec = replace(task.spec, timeout_seconds=event.timeout_seconds, deadline=event.deadline)
        if event.deadline is not None:
            heappush(self.timers, (event.deadline, task.id))
        if isinstance(task.phase, Running):
            self.watch(task, task.phase.since)
        self._requeue(task, at)

    def _requeue(self, task: Task, at: float) -> None:
        """A task stands elsewhere now: in the queue, or among those that others may stop."""
        if task.group is not None:
            self._leave_queue(task)
            self.enqueue(task, at)
            if task.id in self.holds:
                self._doubt_promises()
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
        if event.gpu_memory_mib:
            self.count_demand(task.spec.resources, -1)
            resources = task.spec.resources.with_gpu_memory(event.gpu_memory_mib)
            task.spec = replace(task.spec, resources=resources)
            self.count_demand(resources, 1)
        if task.spec.deadline is not None:
            heappush(self.timers, (task.spec.deadline, task.id))
        self.enqueue(task, at)

    def _task_ended(self, event: fact.TaskEnded, at: float) -> None:  # noqa: ARG002
        task, _ = self._move(event.task, event)
        self._leave_queue(task)
        self._release_hold(task.id)
        task.phase = Ended(event.status)
        del self.tasks[task.id]
        self.count_demand(task.spec.resources, -1)
        task.book.open_tasks -= 1
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
        task.round = 0
        task.members = task.ready = task.presumed = None
        task.phase = Placed(event.attempt, placement, at)
        task.placed_at = at
        if task.spec.resources.speeds:
            task.speed = speed_of(task.spec.resources.speeds, placement, self.index)
        self.index.take(placement)
        if task.model is not None or self.index.warmth.by_model:
            self._note_model(task, placement)
        self.charge(task, placement, placement.charge_milli, at)
        for part in placement.slices:
            self.on_node[part.node][task.id] = task
        if task.preemption is not Preemption.NEVER:
            self.count_prey(placement, 1)

    def _note_model(self, task: Task, placement: Placement) -> None:
        """What ran on its cards before is not there any more; the model it is about will be."""
        if self.settings.model_affinity:
            self.index.note_model(placement, task.model)

    def _started(self, event: fact.AttemptStarted, at: float) -> None:
        task, phase = self._move(event.task, event)
        phase = cast("Placed", phase)
        task.ready = task.avoid = None
        task.phase = Running(event.attempt, phase.placement, at)
        self.watch(task, at)
        self._begins(task, phase, at)

    def watch(self, task: Task, at: float) -> None:
        """A run begins: note when it has to be looked at."""
        if task.spec.timeout_seconds is not None:
            heappush(self.timers, (at + task.spec.timeout_seconds - task.attempt_seconds, task.id))
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
            heappush(self.timers, (at + LOOK_FOR_FASTER_SECONDS, task.id))

    def watch_rank(self, task: Task, at: float) -> None:
        """Note how weakly a running task holds on to its GPUs, and when that changes."""
        policy = self.policy
        assert policy.rank is not None
        assert policy.changes_at is not None
        task.rank = policy.rank(task, at, self.settings)
        if self.is_prey(task):
            self._list_weak(task)
        changes_at = policy.changes_at(task, at, self.settings)
        if changes_at is not None:
            heappush(self.timers, (changes_at, task.id))

    def _suspending(self, event: fact.AttemptSuspending, at: float) -> None:
        task, phase = self._move(event.task, event)
        assert isinstance(phase, Running)
        self._count_service(task, phase, at)
        task.round = event.round
        task.phase = Suspending(event.attempt, phase.placement, at, event.cause)
        self.note_victim(task, event.cause)

    def _suspension_failed(self, event: fact.SuspensionFailed, at: float) -> None:  # noqa: ARG002
        task, phase = self._move(event.task, event)
        assert isinstance(phase, Suspending)
        self._unnote_victim(task)
        task.ready = None
        task.stuck = event.message
        if task.preemption is not Preemption.NEVER:
            task.preemption = Preemption.NEVER
            self.count_prey(phase.placement, -1)
        task.phase = Running(event.attempt, phase.placement, phase.since)  # it never stopped running
        self.watch(task, phase.since)

    def _suspended(self, event: fact.AttemptSuspended, at: float) -> None:
        task, phase = self._move(event.task, event)
        assert isinstance(phase, Suspending)
        task.ready = None
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
        task.placed_at = at
        self._take_again(task, event.placement, at)

    def _take_again(self, task: Task, placement: Placement, at: float) -> None:
        """A suspended attempt has its host memory still."""
        parts = tuple(_without_memory(part) for part in placement.slices)
        self.index.take(Placement(parts))
        self._note_model(task, placement)
        self.charge(task, placement, placement.charge_milli, at)

    def _resumed(self, event: fact.AttemptResumed, at: float) -> None:
        task, phase = self._move(event.task, event)
        assert isinstance(phase, Resuming)
        task.ready = None
        task.phase = Running(event.attempt, phase.placement, at)
        self.watch(task, at)
        self._begins(task, phase, at)

    def _begins(self, task: Task, phase: Placed | Resuming, at: float) -> None:
        """Nobody could stop it while it was being started: who came meanwhile and may is asked again."""
        queue = self.queue
        if phase.since < at and queue.lines and self.is_prey(task) and self.may_preempt():
            for part in phase.placement.slices:
                for bay in self.index.hosts[part.node].bays:
                    self.begun[bay.number] = None
            if queue.first_with_class(task.class_index) is not None:
                queue.class_loosened[task.class_index] = True
            if task.spec.tenant in queue.with_tenant:
                queue.loosened[task.spec.tenant] = task.book

    def _stopping(self, event: fact.AttemptStopping, at: float) -> None:
        task, phase = self._move(event.task, event)
        if isinstance(phase, Running):
            self._count_service(task, phase, at)
            self.movable.pop(task.id, None)
        self._leave_queue(task)
        self._release_hold(task.id)
        placement = phase.placement  # type: ignore[attr-defined]
        task.ready = None
        task.phase = Stopping(event.attempt, placement, at, event.cause, holds_gpus(phase))
        self.note_victim(task, event.cause)

    def _member_ready(self, event: fact.MemberReady, at: float) -> None:  # noqa: ARG002
        task = self._active(event.task, event)
        task.ready = {*(task.ready or ()), event.node}

    def _member_ended(self, event: fact.MemberEnded, at: float) -> None:  # noqa: ARG002
        task = self._active(event.task, event)
        task.members = {**(task.members or {}), event.node: event}
        if event.outcome is Outcome.LOST and self.index.hosts[event.node].lost:
            task.presumed = {*(task.presumed or ()), event.node}

    def _active(self, task_id: TaskId, event: fact.Event) -> Task:
        task = self._known(task_id, event)
        if not isinstance(task.phase, ACTIVE):
            name = type(event).__name__
            raise UnknownFact(f"{name} does not fit task {task.id}, which is {type(task.phase).__name__}.")
        return task

    def _attempt_ended(self, event: fact.AttemptEnded, at: float) -> None:
        task, phase = self._move(event.task, event)
        assert isinstance(phase, ACTIVE)
        cause = None
        if isinstance(phase, Running):
            self._count_service(task, phase, at)
            self.movable.pop(task.id, None)
        if isinstance(phase, Stopping):
            cause = phase.cause
        self._unnote_victim(task)
        self._leave_queue(task)
        if cause is None or cause.why not in MOVING or event.outcome is not Outcome.STOPPED:
            self._release_hold(task.id)  # who is being moved goes on where it was promised a place
        if event.remains:
            self._leave_behind(task, phase, event, at)
        elif isinstance(phase, Suspended) or (isinstance(phase, Stopping) and not phase.holds_gpus):
            self.index.give_memory(phase.placement)
            self._free(phase.placement)
        else:
            self._release(task, phase.placement, at)
        for part in phase.placement.slices:
            del self.on_node[part.node][task.id]
        if task.preemption is not Preemption.NEVER:
            self.count_prey(phase.placement, -1)
        task.losses = task.losses + 1 if event.outcome is Outcome.LOST else 0
        if event.outcome is Outcome.NOT_LAUNCHED:
            task.avoid = self._not_launched_on(task, phase.placement)
        task.members = task.ready = task.presumed = None
        saved = task.spec.preemption is Preemption.CHECKPOINT and event.outcome is Outcome.STOPPED
        if not saved:
            task.served_seconds = 0.0
        task.speed = 1.0
        task.phase = Settling(event.attempt, event.outcome, event.exit_code, cause)

    def _not_launched_on(self, task: Task, placement: Placement) -> NodeId:
        members = task.members or {}
        said = (node for node, end in members.items() if end.outcome is Outcome.NOT_LAUNCHED)
        return next(said, placement.nodes[0])

    def _leave_behind(self, task: Task, phase: Phase, event: fact.AttemptEnded, at: float) -> None:
        """An attempt is over, and some of its nodes may run it still: what it has there stays taken, for nobody."""
        placement: Placement = phase.placement  # type: ignore[attr-defined]
        frees_gpus = holds_gpus(phase)
        for part in placement.slices:
            left = part if frees_gpus else Slice(part.node, memory_mib=part.memory_mib)
            if part.node in event.remains:
                self.remains.setdefault(part.node, {})[task.id, event.attempt] = left
            else:
                self.index.give(Placement((left,)))
                self._free(Placement((part,)))
        if frees_gpus:
            self._uncharge(task, placement, at)

    def _remains_gone(self, node: NodeId, what: AttemptOf) -> None:
        """What a node may still have run of an attempt is known to be gone."""
        task = self.tasks.get(what[0])
        if task is not None and task.attempts == what[1] and task.presumed:
            task.presumed.discard(node)
        if (part := self.remains.get(node, {}).pop(what, None)) is not None:
            self.index.give(Placement((part,)))
            self._free(Placement((part,)))
            if not self.remains[node]:
                del self.remains[node]

    def presumed_on(self, node: NodeId) -> list[AttemptOf]:
        """Everything a node may still run, though it is over for us."""
        parts = [
            (task.id, task.attempts)
            for task in self.on_node[node].values()
            if task.presumed is not None and node in task.presumed
        ]
        return [*self.remains.get(node, ()), *parts]

    def count_prey(self, placement: Placement, sign: int) -> None:
        """A task that allows to be stopped for others came to its nodes, or left them."""
        for node in placement.nodes:
            self.prey[node] = self.prey.get(node, 0) + sign
            if not self.prey[node]:
                del self.prey[node]

    def is_prey(self, task: Task) -> bool:
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
                self.weak = sorted((-task.rank, task.id, task) for task in self.tasks.values() if self.is_prey(task))

    def _count_service(self, task: Task, phase: Running, at: float) -> None:
        seconds = at - phase.since
        task.served_seconds += seconds * task.speed
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
        self.classes[task.class_index].used += charge
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

    def _release(self, task: Task, placement: Placement, at: float, *, keep_memory: bool = False) -> None:
        self.index.give(placement, keep_memory=keep_memory)
        self._free(placement)
        self._uncharge(task, placement, at)

    def _uncharge(self, task: Task, placement: Placement, at: float) -> None:
        self.charge(task, placement, -placement.charge_milli, at)
        queue = self.queue
        queue.class_loosened[task.class_index] = True
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
            self._forget_tenants()
            book = self.tenants[tenant] = TenantBook(replace(self.default_tenant, id=tenant), self.now)
        return book

    def _forget_tenants(self) -> None:
        """For every tenant that comes two are looked at, in turn, so that those nobody needs any more leave in the end."""
        for name in list(islice(self.tenants, 2)):
            book = self.tenants.pop(name)
            if not book.is_forgettable(self.now, self.settings.fair_share_half_life_seconds):
                self.tenants[name] = book
                continue
            self.queue.forget_tenant(name)
            if book.tenant.guaranteed_gpus is not None:
                self.note_guarantees()

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
        if self.may_preempt() and (head := line.head(task.class_index)) is not None and head[1] == task.id:
            line.awake = True
            self.queue.stirred[line.number] = line
        elif line.behind and (
            self.settings.backfill is Backfill.NONE or any(task.key < hold.task.key for hold in self.holds.values())
        ):
            self.queue.wake(line)
        elif self.settings.backfill in (Backfill.EASY, Backfill.CONSERVATIVE) and needs_reservation(line.shape):
            room = self.settings.backfill is Backfill.CONSERVATIVE and len(self.holds) < self.settings.reservations
            first = not self.holds or task.key < max(hold.task.key for hold in self.holds.values())
            self.vacancy = self.vacancy or room or first or self.policy.tenant_key is not None

    def may_preempt(self) -> bool:
        """Whether anything waiting could stop anything running."""
        if not self.prey or not self.settings.preemption:
            return False
        return self.policy.rank is not None or self.reclaims

    def _asks(self, task: Task) -> tuple[Resources, BaySet]:
        """What a waiting task needs; a suspended one as many cards of the same kind, on the nodes where its memory is."""
        ask, phase = task.spec.resources, task.phase
        if not isinstance(phase, Suspended):
            return ask, 0
        pin: BaySet = 0
        for part in phase.placement.slices:
            host = self.index.hosts[part.node]
            pin |= (host.bay_of[part.gpus[0]] if part.gpus else host.bays[0]).bit
        counts = {len(part.gpus) for part in phase.placement.slices}
        whole_nodes = len(counts) > 1  # only then do parts have different sizes
        gpus = 0 if ask.share else min(counts)
        return Resources(gpus, ask.share, ask.nodes, whole_nodes, cpus=ask.cpus, link=ask.link), pin

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
        before = self.holds.get(event.task)
        hold = self.holds[event.task] = Hold(task, shape, event, at)
        if before is not None and before.claim and event.claim:
            hold.victims = before.victims  # the same promise, only its standing changed
        elif isinstance(task.phase, Stopping):  # it is being moved, and in an exchange another has to go first
            hold.victims = {task.id}
            if task.phase.cause.task is not None:
                hold.victims.add(task.phase.cause.task)
        self._place_hold(hold)
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
            self._doubt_promises()

    def _doubt_promises(self) -> None:
        """A promise ended or counts for less: whoever stood behind it is asked again."""
        self.vacancy = True
        self.queue.loosen_all()
        for line in self.queue.lines.values():
            if line.behind:
                self.queue.wake(line)

    def _place_holds(self) -> None:
        """Nodes changed: look up anew where the promised ones are."""
        for hold in self.holds.values():
            self._place_hold(hold)
        self._unite_holds()

    def _place_hold(self, hold: Hold) -> None:
        """Look up where promised nodes are, and what the task will count for there."""
        hold.shape.refresh(self.index)
        hold.bays = self.index.bays_of(hold.nodes)
        hold.need_milli = hold.shape.need_on(hold.nodes, self.index)

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
        for what in self.presumed_on(event.node):
            if what not in event.remains:
                self._remains_gone(event.node, what)
        self._nodes_changed(event.node)

    def _remains_ended(self, event: fact.RemainsEnded, at: float) -> None:  # noqa: ARG002
        what = (event.task, event.attempt)
        if event.node not in self.index.hosts or what not in self.presumed_on(event.node):
            raise UnknownFact(f"RemainsEnded speaks of task {event.task}, of which node {event.node} has nothing.")
        self._remains_gone(event.node, what)

    def _changed(self, event: fact.NodeChanged, at: float) -> None:  # noqa: ARG002
        self.index.change(event.node)
        self._nodes_changed(event.node.id)

    def _removed(self, event: fact.NodeRemoved, at: float) -> None:  # noqa: ARG002
        self.index.remove(event.node)
        del self.on_node[event.node]
        self.remains.pop(event.node, None)
        self._place_holds()
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
        self._place_holds()
        self.divide()
        if self.may_preempt():
            self._retry_on(node)

    def _retry_on(self, node: NodeId) -> None:
        """A node is open, or has cards, that was not or had not: whoever could use it may stop others there."""
        here = self.index.bays_of((node,))
        for line in self.queue.lines.values():
            line.shape.refresh(self.index)
            if line.shape.eligible & here:
                self.queue.retry(line)

    # the yard

    def _founded(self, event: fact.YardFounded, at: float) -> None:  # noqa: ARG002
        if self.yard:
            raise UnknownFact(f"YardFounded speaks of a yard that is founded already, as {self.yard}.")
        self.yard = event.yard

    def _epoch_began(self, event: fact.EpochBegan, at: float) -> None:  # noqa: ARG002
        self.epoch = event.epoch
        if event.last_task > self.last_task:
            self.gaps.append((TaskId(self.last_task + 1), event.last_task))
            self.last_task = event.last_task

    def _epoch_ended(self, event: fact.EpochEnded, at: float) -> None:  # noqa: ARG002
        self.patient_until = event.patient_until

    def _access_changed(self, event: fact.AccessChanged, at: float) -> None:
        """Nothing that is decided here depends on it."""

    def _tenant_set(self, event: fact.TenantSet, at: float) -> None:
        tenant = event.tenant
        self.vacancy = True
        self.queue.class_loosened = [True, True]
        book = self.tenants.get(tenant.id)
        if book is None:
            book = self.tenants[tenant.id] = TenantBook(tenant, at)
        book.given = True
        changed = {tenant.id: tenant}
        if tenant.id == DEFAULT_TENANT:
            self.default_tenant = tenant
            changed.update((name, replace(tenant, id=name)) for name, other in self.tenants.items() if not other.given)
        for name, limits in changed.items():
            self._limit(self.tenants[name], limits, at)
        self._count_models(changed.keys())
        self.note_guarantees()

    def _limit(self, book: TenantBook, tenant: Tenant, at: float) -> None:
        """A tenant has these limits from now on; a budget begins anew only if its period is another one."""
        book.settle(at, self.settings.fair_share_half_life_seconds)
        if (
            tenant.budget is None
            or book.tenant.budget is None
            or tenant.budget.period_seconds != book.tenant.budget.period_seconds
        ):
            book.period_began, book.spent_gpu_seconds = at, 0.0
        book.set(tenant)
        book.used_by_model = {}
        self.queue.loosened[book.id] = book

    def _count_models(self, tenants: Container[TenantId]) -> None:
        """Count anew what tenants use of the models they have limits on."""
        for task in self.tasks.values():
            book = task.book
            if book.model_limits and book.id in tenants and isinstance(task.phase, HOLDING) and holds_gpus(task.phase):
                for part in task.phase.placement.slices:
                    if part.gpus:
                        model = self.index.hosts[part.node].bay_of[part.gpus[0]].model
                        book.used_by_model[model] = book.used_by_model.get(model, 0) + len(part.gpus) * part.milli

    def note_guarantees(self) -> None:
        """See whether anybody has GPUs to claim back."""
        guaranteed = any(book.tenant.guaranteed_gpus is not None for book in self.tenants.values())
        self.reclaims = guaranteed or self.split.mode is QuotaMode.BORROW

    def _split_set(self, event: fact.SplitSet, at: float) -> None:  # noqa: ARG002
        self.split = event.split
        if event.split.mode is QuotaMode.STRICT:
            for hold in self.holds.values():
                hold.borrowed = False  # nobody borrows any more, so no promise stands back for that
        self._doubt_promises()
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
        self.weak.clear()
        self.orders.clear()
        if not event.settings.model_affinity:
            for bay in self.index.all_bays():
                self.index.warmth.forget(bay)
        waiting = [task for task in self.tasks.values() if task.group is not None]
        for task in waiting:
            self._requeue(task, at)
        for task in self.tasks.values():
            if isinstance(task.phase, Running):
                self.watch(task, at)
        self.queue.wake_all()

    def was_ours(self, task: TaskId) -> bool:
        """Whether this journal has, or had, a task of this number."""
        return task <= self.last_task and not any(first <= task <= last for first, last in self.gaps)

    # --- looking -------------------------------------------------------------------------------------------------

    def order_for(self, gpus: int) -> Order:
        """In which order the score tries room for a task that wants so many GPUs on a node."""
        order = self.orders.get(gpus)
        if order is None:
            order = self.orders.get(ANY) or SCORES[self.settings.score](gpus, self.index, self.demand)
            self.orders[gpus] = order
            if isinstance(order, Fragmentation):
                self.orders[ANY] = order
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
    fact.TaskExtended: State._extended,
    fact.TaskRequeued: State._task_requeued,
    fact.TaskEnded: State._task_ended,
    fact.TaskPlaced: State._placed,
    fact.AttemptStarted: State._started,
    fact.AttemptSuspending: State._suspending,
    fact.AttemptSuspended: State._suspended,
    fact.SuspensionFailed: State._suspension_failed,
    fact.AttemptResuming: State._resuming,
    fact.AttemptResumed: State._resumed,
    fact.AttemptStopping: State._stopping,
    fact.MemberReady: State._member_ready,
    fact.MemberEnded: State._member_ended,
    fact.AttemptEnded: State._attempt_ended,
    fact.ReservationMade: State.reserve,
    fact.ReservationDropped: State._dropped,
    fact.NodeJoined: State._joined,
    fact.NodeLost: State._lost,
    fact.NodeReturned: State._returned,
    fact.RemainsEnded: State._remains_ended,
    fact.NodeChanged: State._changed,
    fact.NodeRemoved: State._removed,
    fact.NodeCordoned: State._cordoned,
    fact.NodeUncordoned: State._uncordoned,
    fact.GpuHealthChanged: State._health_changed,
    fact.EpochBegan: State._epoch_began,
    fact.EpochEnded: State._epoch_ended,
    fact.AccessChanged: State._access_changed,
    fact.TenantSet: State._tenant_set,
    fact.SplitSet: State._split_set,
    fact.SettingsChanged: State._settings_changed,
}
