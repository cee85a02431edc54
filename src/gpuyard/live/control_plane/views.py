"""Views: the state that the API shows, built from committed events only.

Open tasks are kept here; an ended task is kept until the archive holds it. A node is kept with its last heartbeat.
Telemetry is not an event: it is lost at a restart and arrives again with the next heartbeat.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from gpuyard.core.domain import events
from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.task import RunLimit, TaskSpec
from gpuyard.core.domain.values import ENDED, GpuHealth, NodeId, Outcome, Preemption, TaskId, TaskStatus, TenantId
from gpuyard.core.journal.records import Record
from gpuyard.core.placement.index import NodeEntry
from gpuyard.live.control_plane.stories import Stories
from gpuyard.live.control_plane.time_slices import TimeSlicer
from gpuyard.live.control_plane.usage.spans import UNFINISHED, Holding, UsageSpan, held, judged, outcome_of, waited
from gpuyard.live.wire.task_answers import TaskAnswer, answer_of

LOOKED_AT_ONCE = 2_000
"""Number of tasks that a search examines before it yields to other work."""
LONGEST_TEXT = 2000
"""Number of characters of a command that a search looks at."""
_OF_LEASES = {CauseKind.CANCELLED: "The lease was released.", CauseKind.TIMEOUT: "The lease reached its timeout."}
"""Texts for the end of a lease."""
BY_ITSELF = (
    CauseKind.SUCCEEDED,
    CauseKind.EXIT_CODE,
    CauseKind.OUT_OF_MEMORY,
    CauseKind.OUT_OF_MEMORY_ON_LARGEST,
    CauseKind.TIMEOUT,
    CauseKind.CANCELLED,
)
"""A task that ends for one of these reasons ended when its process did."""


STARTING = "Starting"
"""The reason code of a pending task that already has its GPUs."""


def searched_text(task: TaskId, name: str, user: str, command: str | tuple[str, ...] | None) -> str:
    """Return the text of a task in which a search looks, without the difference of upper and lower case."""
    words = command if isinstance(command, str) else " ".join(command or ())
    return f"{name}\ntask-{task}\n{user}\n{words[:LONGEST_TEXT]}".casefold()


class TaskView(msgspec.Struct, omit_defaults=True, gc=False):
    """One task, from committed events."""

    id: TaskId
    spec: TaskSpec
    submitted_at: float
    by: str = ""
    status: TaskStatus = TaskStatus.PENDING
    priority: int = 0
    started_at: float | None = None
    finished_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    attempts: int = 0
    origins: tuple[tuple[int, int], ...] = ()
    """Pairs (first attempt, origin of the scheduler that placed it and the attempts after it)."""
    placement: Placement | None = None
    cause: Cause | None = None
    message: str = ""
    held: bool = False
    stopping: bool = False
    key: str = ""
    digest: str = ""
    run_seconds: float = 0.0
    """Run time before the current run. Counts from the last attempt, or from earlier ones whose progress was saved."""
    runs_since: float | None = None
    """Start of the current run; None while the task does not run."""
    actual: Actual | None = None
    """Measured GPU use of the last attempt."""
    ran_on: str | None = None
    """GPU model of the current or last attempt."""
    saved: bool = False
    """Whether the last attempt was stopped and kept its progress."""
    ended_at: float | None = None
    """End of the last attempt, by its node's clock."""
    lost_since: float | None = None
    """When the last attempt was lost; None if it was not."""
    request_id: str = ""
    """The id of the request that submitted it."""
    spans: tuple[UsageSpan, ...] = ()
    """The times in which it waited or held GPUs, as far as they are over."""
    holding: Holding = ()
    """What it holds now, if `holds_since` is set."""
    holds_since: float | None = None
    waits_since: float | None = None
    """Since when it waits again; None: it does not, or it waits since its submission."""
    restart_reason: str = ""
    """Why its last attempt ended and it was queued again, as one word; empty if that has not happened."""
    result: str = ""
    """The blob with the result of the last attempt."""
    max_running: int = 0
    """How many tasks of its array or sweep may run at the same time; 0: any number."""

    @property
    def waits(self) -> bool:
        """Whether the task is in the queue: before its first attempt, or after one that is over."""
        return self.status is TaskStatus.PENDING and (not self.attempts or self.cause is not None) and not self.stopping

    @property
    def origin(self) -> int:
        """Return the origin of the scheduler that placed the last attempt."""
        return self.origins[-1][1] if self.origins else 0

    @property
    def is_starting(self) -> bool:
        """Whether the task is placed and its node has not reported the start yet."""
        return (
            self.status is TaskStatus.PENDING
            and self.attempts > 0
            and self.cause is None
            and self.placement is not None
            and not self.stopping
        )

    @property
    def has_stopped(self) -> bool:
        """Whether the last attempt has run and does not run now: the task is suspended, or waits for another attempt."""
        return self.started_at is not None and self.runs_since is None

    def halt(self, at: float) -> None:
        """Stop counting run time, for now or for good."""
        if self.runs_since is not None:
            self.run_seconds += max(0.0, at - self.runs_since)
            self.runs_since = None

    def stop_waiting(self, at: float) -> None:
        """Note that a wait is over."""
        if self.holds_since is None and (self.waits_since is not None or not self.attempts):
            since = self.submitted_at if self.waits_since is None else self.waits_since
            self.spans += waited(since, at)
        self.waits_since = None

    def hold(self, holding: Holding, at: float) -> None:
        """Note that it holds GPUs from now on."""
        self.let_go(at)
        self.holding, self.holds_since = holding, at

    def let_go(self, at: float) -> None:
        """Note that it no longer holds GPUs."""
        if self.holds_since is not None:
            self.spans += held(self.holding, self.holds_since, at, self.attempts)
        self.holding, self.holds_since = (), None

    def usage(self, now: float) -> tuple[UsageSpan, ...]:
        """Return all spans, the present one until now."""
        if self.status in ENDED:
            return self.spans
        if self.holds_since is not None:
            return self.spans + held(self.holding, self.holds_since, now, self.attempts)
        if self.waits_since is not None or not self.attempts:
            return self.spans + waited(self.submitted_at if self.waits_since is None else self.waits_since, now)
        return self.spans

    def answer(self, reason: str | None = None, reason_code: str | None = None) -> TaskAnswer:
        """Return the answer of the API. `reason` says why the task waits, if the engine was asked."""
        before, code_before = self.reason()
        if reason is None:
            reason, reason_code = before, STARTING if self.is_starting else code_before
        elif before is not None:
            reason = f"{before} {reason}"
        return answer_of(
            self.id,
            self.spec,
            status=self.status,
            priority=self.priority,
            submitted_at=self.submitted_at,
            started_at=self.started_at,
            finished_at=self.finished_at,
            exit_code=self.exit_code,
            signal=self.signal,
            attempts=self.attempts,
            origins=self.origins,
            placement=self.placement,
            reason=reason,
            reason_code=reason_code,
            created_by=self.by,
            run_seconds=self.run_seconds if self.finished_at is not None or self.has_stopped else None,
            running_since=self.runs_since,
            ran_before_seconds=self.run_seconds,
            actual=self.actual,
            ran_on=self.ran_on,
            request_id=self.request_id,
            result=self.result,
            max_running=self.max_running,
        )

    def reason(self) -> tuple[str | None, str | None]:
        """Return the reason for the status, as far as the events tell, and its stable code."""
        if self.cause is None:
            return None, None
        if self.cause.why is CauseKind.SUCCEEDED:
            return None, self.cause.why
        sentence = self.cause.sentence()
        if self.spec.command is None:
            sentence = _OF_LEASES.get(self.cause.why, sentence)
        elif self.cause.why is CauseKind.TIMEOUT and self.spec.timeout_seconds is not None:
            sentence = f"It ran longer than its timeout of {self.spec.timeout_seconds:g} s."
        if self.cause.why is CauseKind.EXIT_CODE and self.signal is not None:
            sentence = f"It was ended by signal {self.signal}."
        elif self.cause.why is CauseKind.EXIT_CODE and self.exit_code is not None:
            sentence = f"It ended with exit code {self.exit_code}."
        elif self.cause.why is CauseKind.OUT_OF_MEMORY and self.status is TaskStatus.PENDING:
            sentence = (
                f"{sentence} The next attempt requests {self.spec.resources.gpu_memory_asked_mib} MiB on each GPU."
            )
        return f"{sentence} {self.message}".strip(), self.cause.why


class NodeView:
    """One node and the tasks on it."""

    def __init__(self, spec: NodeSpec, at: float) -> None:
        self.spec = spec
        self.lost = False
        self.away = False
        """True until the node registers with this scheduler, and after its agent was stopped on purpose."""
        self.cordoned = False
        self.draining = False
        self.cordon_reason = ""
        self.health: dict[int, GpuHealth] = {}
        self.tasks: dict[TaskId, None] = {}
        """Tasks with an attempt here, in order of arrival."""
        self.on_gpu: list[dict[TaskId, None]] = [{} for _ in spec.gpus]
        self.changed_at = at

    @property
    def is_silent(self) -> bool:
        """Whether nothing is known about its GPUs now: it is lost or away."""
        return self.lost or self.away

    @property
    def status(self) -> str:
        """Return the status of the node as one word."""
        if self.lost:
            return "offline"
        if self.away:
            return "away"
        return "draining" if self.draining else "cordoned" if self.cordoned else "online"

    def gpu_status(self, gpu: int) -> str:
        """Return idle, busy, external or offline."""
        health = self.health.get(gpu)
        if self.lost or health is GpuHealth.OFFLINE:
            return "offline"
        if self.on_gpu[gpu]:
            return "busy"
        return "external" if health is GpuHealth.EXTERNAL else "idle"


class Views:
    """All tasks and nodes, as the API shows them."""

    def __init__(self) -> None:
        self.tasks: dict[TaskId, TaskView] = {}
        """Open tasks, and ended tasks that the archive does not hold yet."""
        self.just_ended: list[TaskView] = []
        """Ended tasks to write to the archive next."""
        self.over: dict[TaskId, TaskView] = {}
        """Ended tasks that the archive does not hold yet."""
        self.texts: dict[TaskId, str] = {}
        """What a search looks at, for each of the tasks: made once, because a search looks at all of them."""
        self.encoded: dict[TaskId, tuple[str | None, bytes]] = {}
        """Encoded answers for lists with the reason they were made with; dropped when an event changes the task."""
        self.stories = Stories()
        """The events of these tasks."""
        self.nodes: dict[NodeId, NodeView] = {}
        self._gpu_models: frozenset[str] | None = None
        self.counts: dict[TenantId, dict[TaskStatus, int]] = {}
        """Open tasks by tenant and status."""
        self._coming_limits: list[RunLimit] = []
        """Limits on running tasks that were set for tasks which are submitted next."""
        self.last_seq = 0
        self.snapshot_seq = 0
        """The event of the snapshot that these were recovered from; 0: they were made from all events."""
        self.origin = 0
        """Origin of the scheduler that places tasks now."""

    def apply(self, record: Record) -> None:
        """Apply a committed event."""
        self.last_seq = record.seq
        self.stories.hear(record)
        update = _APPLY_BY_TYPE.get(type(record.event))
        if update is not None:
            update(self, record.event, record)
            if self.encoded:
                self.encoded.pop(getattr(record.event, "task", TaskId(0)), None)

    # --- looking -----------------------------------------------------------------------------------------------------

    async def newest(
        self, wanted: Callable[[TaskView], bool], before: TaskId | None = None, most: int | None = None
    ) -> list[TaskView]:
        """Return the wanted tasks with numbers below `before`, newest first. A long search is done in slices."""
        if before is None and most is not None:
            first = [view for view in islice(reversed(self.tasks.values()), LOOKED_AT_ONCE) if wanted(view)]
            if len(first) >= most or len(self.tasks) <= LOOKED_AT_ONCE:
                return first[:most]
        numbers, turns = list(self.tasks), TimeSlicer()  # ascending: tasks are added in that order
        found: list[TaskView] = []
        for place in range(len(numbers) if before is None else bisect_left(numbers, before), 0, -1):
            view = self.tasks.get(numbers[place - 1])
            if view is not None and wanted(view):
                found.append(view)
                if len(found) == most:
                    break
            if turns.due():
                await turns.give()
        return found

    @property
    def gpu_models(self) -> frozenset[str]:
        """Return the models of all GPUs of all nodes."""
        if self._gpu_models is None:
            self._gpu_models = frozenset(gpu.model for node in self.nodes.values() for gpu in node.spec.gpus)
        return self._gpu_models

    def open_tasks(self, statuses: Iterable[TaskStatus], tenant: TenantId | None) -> int:
        """Count tasks with one of these statuses (none given: any status), of one tenant (None: of all)."""
        wanted = set(statuses)
        counts = self.counts.values() if tenant is None else (self.counts.get(tenant, {}),)
        return sum(count for each in counts for status, count in each.items() if not wanted or status in wanted)

    def archived(self, tasks: Collection[TaskId]) -> None:
        """Forget tasks that the archive now holds."""
        for task in tasks:
            self.tasks.pop(task, None)
            self.texts.pop(task, None)
            self.over.pop(task, None)
            self.encoded.pop(task, None)
        self.stories.forget(tasks)

    # --- keeping -----------------------------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        """Return the tasks that are not archived, for a snapshot. Nodes are restored from the engine's part of it."""
        return [msgspec.to_builtins(view) | self.stories.dump(view.id) for view in self.tasks.values()]

    def load(self, rows: list[Any], hosts: Iterable[NodeEntry], origin: int) -> None:
        """Load a snapshot."""
        self.origin = origin
        self._gpu_models = None
        for host in hosts:
            node = self.nodes[host.spec.id] = NodeView(host.spec, 0.0)
            node.lost, node.away, node.cordoned = host.lost, host.away, host.cordoned
            node.draining, node.health = host.draining, dict(host.health)
            node.cordon_reason = host.cordon_reason
        for row in rows:
            view = msgspec.convert(row, TaskView)
            self._add(view)
            self.stories.load(view.id, row)
            if view.status in ENDED:
                self.just_ended.append(view)
                self.over[view.id] = view
            else:
                self._count(view, 1)
                self._settle_in(view)

    def _settle_in(self, view: TaskView) -> None:
        """Put a task of a snapshot on its node. A task that waits again still names its last node but is not on it."""
        if view.placement is None or (
            view.status is TaskStatus.PENDING and view.cause is not None and not view.stopping
        ):
            return
        self._occupy(view, view.placement)
        of_older_version = view.holds_since is None and not view.spans and view.status is TaskStatus.RUNNING
        if of_older_version and view.started_at is not None:
            view.hold(self._holding(view.placement), view.started_at)
        if view.status is TaskStatus.SUSPENDED and view.cause is not None:  # no cause: it is being resumed
            self._vacate(view, leave=False)

    # --- applying ----------------------------------------------------------------------------------------------------

    def _add(self, view: TaskView) -> None:
        spec = view.spec
        self.tasks[view.id] = view
        self.texts[view.id] = searched_text(view.id, spec.name, spec.user, spec.command)

    def _count(self, view: TaskView, by: int) -> None:
        counts = self.counts.setdefault(view.spec.tenant, {})
        counts[view.status] = counts.get(view.status, 0) + by

    def _becomes(self, view: TaskView, status: TaskStatus) -> None:
        self._count(view, -1)
        view.status = status
        if status not in ENDED:
            self._count(view, 1)

    def _occupy(self, view: TaskView, placement: Placement) -> None:
        for part in placement.slices:
            node = self.nodes.get(part.node)
            if node is not None:
                node.tasks[view.id] = None
                for gpu in part.gpus:
                    node.on_gpu[gpu][view.id] = None

    def _gpu_model(self, placement: Placement) -> str | None:
        """Return the model of all its GPUs; None if it has no GPU or GPUs of several models."""
        models = {
            node.spec.gpus[gpu].model
            for part in placement.slices
            if (node := self.nodes.get(part.node)) is not None
            for gpu in part.gpus
        }
        return models.pop() if len(models) == 1 else None

    def _vacate(self, view: TaskView, *, leave: bool) -> None:
        for part in view.placement.slices if view.placement else ():
            node = self.nodes.get(part.node)
            if node is not None:
                if leave:
                    node.tasks.pop(view.id, None)
                for gpu in part.gpus:
                    node.on_gpu[gpu].pop(view.id, None)

    def _submitted(self, event: events.TaskSubmitted, record: Record) -> None:
        spec = event.spec
        view = TaskView(
            event.task,
            spec,
            record.at,
            record.by,
            priority=spec.priority,
            key=event.key,
            digest=event.digest,
            request_id=record.request_id,
        )
        for limit in self._coming_limits:
            if limit.first <= view.id <= limit.last:
                view.max_running = limit.most
        self._coming_limits = [limit for limit in self._coming_limits if limit.last > view.id]
        self._add(view)
        self._count(view, 1)

    def _run_limit(self, event: events.RunLimitSet, record: Record) -> None:  # noqa: ARG002
        limit = event.limit
        for number in range(limit.first, limit.last + 1):
            view = self.tasks.get(TaskId(number))
            if view is not None:
                view.max_running = limit.most
                self.encoded.pop(view.id, None)
        if limit.last > next(reversed(self.tasks), TaskId(0)):
            self._coming_limits.append(limit)

    def _held(self, event: events.TaskHeld | events.TaskReleased, record: Record) -> None:
        view = self.tasks[event.task]
        view.held = isinstance(record.event, events.TaskHeld)
        if view.status is TaskStatus.SUSPENDED and not view.held:  # it does not wait for a user any more, but for GPUs
            view.cause = Cause(CauseKind.RESUMED_BY_USER)

    def _priority(self, event: events.PriorityChanged, record: Record) -> None:  # noqa: ARG002
        self.tasks[event.task].priority = event.priority

    def _extended(self, event: events.TaskExtended, record: Record) -> None:  # noqa: ARG002
        view = self.tasks[event.task]
        view.spec = replace(view.spec, timeout_seconds=event.timeout_seconds, deadline=event.deadline)

    def _suspension_failed(self, event: events.SuspensionFailed, record: Record) -> None:
        view = self.tasks[event.task]
        view.cause, view.message = None, event.message
        view.runs_since = record.at

    def _holding(self, placement: Placement) -> Holding:
        """Return the GPUs of a placement by model; one entry without GPUs if it has none."""
        found: dict[str, int] = {}
        for part in placement.slices:
            node = self.nodes.get(part.node)
            for gpu in part.gpus:
                model = node.spec.gpus[gpu].model if node is not None and gpu < len(node.spec.gpus) else ""
                found[model] = found.get(model, 0) + part.milli
        return tuple(sorted(found.items())) or (("", 0),)

    def _placed(self, event: events.TaskPlaced, record: Record) -> None:
        view = self.tasks[event.task]
        view.stop_waiting(record.at)
        view.attempts, view.placement = event.attempt, event.placement
        if not view.origins or view.origin != self.origin:
            view.origins = (*view.origins, (event.attempt, self.origin))
        view.ran_on = self._gpu_model(event.placement)
        view.started_at = view.exit_code = view.signal = view.cause = None
        view.message = ""
        view.stopping = False
        if not view.saved:
            view.run_seconds = 0.0
        view.hold(self._holding(event.placement), record.at)
        self._occupy(view, event.placement)

    def _started(self, event: events.AttemptStarted, record: Record) -> None:
        view = self.tasks[event.task]
        view.started_at = view.runs_since = record.at if event.started_at is None else event.started_at
        self._becomes(view, TaskStatus.RUNNING)

    def _recovered(self, event: events.AttemptRecovered, record: Record) -> None:
        view = self.tasks[event.task]
        assert view.placement is not None
        view.stop_waiting(record.at)
        view.spans = judged(view.spans, view.attempts, UNFINISHED, None)  # it was not lost after all
        view.hold(self._holding(view.placement), record.at)
        view.cause, view.message = None, ""
        view.runs_since = view.lost_since
        if view.started_at is None:
            view.started_at = view.lost_since
        self._occupy(view, view.placement)
        self._becomes(view, TaskStatus.RUNNING)

    def _stopping(self, event: events.AttemptStopping | events.AttemptSuspending, record: Record) -> None:
        view = self.tasks[event.task]
        view.halt(record.at)
        view.cause, view.stopping = event.cause, isinstance(event, events.AttemptStopping)

    def _suspended(self, event: events.AttemptSuspended, record: Record) -> None:
        view = self.tasks[event.task]
        view.let_go(record.at)
        self._vacate(view, leave=False)
        self._becomes(view, TaskStatus.SUSPENDED)

    def _resuming(self, event: events.AttemptResuming, record: Record) -> None:
        view = self.tasks[event.task]
        view.hold(self._holding(event.placement), record.at)
        view.placement, view.cause, view.held = event.placement, None, False
        self._occupy(view, event.placement)

    def _resumed(self, event: events.AttemptResumed, record: Record) -> None:
        view = self.tasks[event.task]
        view.runs_since = record.at
        self._becomes(view, TaskStatus.RUNNING)

    def _attempt_ended(self, event: events.AttemptEnded, record: Record) -> None:
        view = self.tasks[event.task]
        ended_at = record.at if event.ended_at is None else event.ended_at
        view.halt(ended_at)
        view.ended_at = ended_at
        if event.outcome is Outcome.LOST:
            view.lost_since = ended_at
        view.saved = view.spec.preemption is Preemption.CHECKPOINT and event.outcome is Outcome.STOPPED
        view.exit_code, view.signal, view.message = event.exit_code, event.signal, event.message
        view.actual = event.actual
        view.result = event.result
        view.let_go(record.at)
        view.spans = judged(view.spans, view.attempts, outcome_of(event.outcome, view.cause), event.actual)
        view.stopping = False
        self._vacate(view, leave=True)

    def _requeued(self, event: events.TaskRequeued, record: Record) -> None:
        view = self.tasks[event.task]
        view.waits_since = record.at
        view.cause = event.cause
        view.restart_reason = event.cause.why
        if event.gpu_memory_mib:
            resources = view.spec.resources.with_gpu_memory(event.gpu_memory_mib)
            view.spec = replace(view.spec, resources=resources)
        self._becomes(view, TaskStatus.PENDING)

    def _ended(self, event: events.TaskEnded, record: Record) -> None:
        view = self.tasks[event.task]
        view.stop_waiting(record.at)
        view.cause, view.finished_at = event.cause, record.at
        if view.ended_at is not None and event.cause.why in BY_ITSELF:
            view.finished_at = view.ended_at
        self._becomes(view, event.status)
        self.just_ended.append(view)
        self.over[view.id] = view

    def _epoch(self, event: events.EpochBegan, record: Record) -> None:  # noqa: ARG002
        self.origin = event.origin
        for node in self.nodes.values():
            node.away = True

    def _joined(self, event: events.NodeJoined, record: Record) -> None:
        self._gpu_models = None
        self.nodes[event.node.id] = NodeView(event.node, record.at)

    def _changed(self, event: events.NodeChanged, record: Record) -> None:
        self._gpu_models = None
        node = self.nodes[event.node.id]
        node.spec, node.changed_at = event.node, record.at

    def _removed(self, event: events.NodeRemoved, record: Record) -> None:  # noqa: ARG002
        self._gpu_models = None
        del self.nodes[event.node]

    def _node(self, event: Any, record: Record) -> None:
        node = self.nodes[event.node]
        node.changed_at = record.at
        if isinstance(event, events.NodeLost | events.NodeReturned):
            node.lost = isinstance(event, events.NodeLost)
            node.away = node.away and node.lost
        elif isinstance(event, events.NodeStopped):
            node.away = True
        elif isinstance(event, events.NodeCordoned):
            node.cordoned, node.draining, node.cordon_reason = True, event.draining, event.reason
        elif isinstance(event, events.NodeUncordoned):
            node.cordoned, node.draining, node.cordon_reason = False, False, ""
        elif event.health is GpuHealth.OK:
            node.health.pop(event.gpu, None)
        else:
            node.health[event.gpu] = event.health


_APPLY_BY_TYPE: dict[type[events.Event], Callable[[Views, Any, Record], None]] = {
    events.TaskSubmitted: Views._submitted,
    events.TaskHeld: Views._held,
    events.TaskReleased: Views._held,
    events.PriorityChanged: Views._priority,
    events.RunLimitSet: Views._run_limit,
    events.TaskExtended: Views._extended,
    events.SuspensionFailed: Views._suspension_failed,
    events.TaskPlaced: Views._placed,
    events.AttemptStarted: Views._started,
    events.AttemptRecovered: Views._recovered,
    events.AttemptStopping: Views._stopping,
    events.AttemptSuspending: Views._stopping,
    events.AttemptSuspended: Views._suspended,
    events.AttemptResuming: Views._resuming,
    events.AttemptResumed: Views._resumed,
    events.AttemptEnded: Views._attempt_ended,
    events.TaskRequeued: Views._requeued,
    events.TaskEnded: Views._ended,
    events.NodeJoined: Views._joined,
    events.NodeChanged: Views._changed,
    events.NodeRemoved: Views._removed,
    events.NodeLost: Views._node,
    events.NodeReturned: Views._node,
    events.NodeStopped: Views._node,
    events.EpochBegan: Views._epoch,
    events.NodeCordoned: Views._node,
    events.NodeUncordoned: Views._node,
    events.GpuHealthChanged: Views._node,
}
