"""Counters and histograms of a running scheduler, for Prometheus.

Counters follow committed events; they start at zero with the process, as Prometheus expects. Times of decisions and
commits are measured by the loop. Values that can be read at any instant (open tasks, GPUs, quotas) are not kept here:
`rest/metrics.py` reads them when it is asked.
"""

from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from gpuyard.core.domain import events
from gpuyard.core.domain.values import TaskClass, TaskId, TaskStatus
from gpuyard.core.engine.state import PREEMPTING
from gpuyard.core.journal.records import Record
from gpuyard.live.control_plane.views import Views

disable_created_metrics()  # type: ignore[no-untyped-call]  # Prometheus derives the start of a counter by itself
PRIORITY = {TaskClass.ONLINE: "high", TaskClass.BATCH: "low"}
"""The label `priority` by class: the two words that a request may use for both."""
DECISION_BUCKETS = (0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
COMMIT_BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
DISPATCH_BUCKETS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
WAIT_BUCKETS = (0.1, 1.0, 10.0, 60.0, 300.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0)


class SchedulerMetrics:
    """What has happened since the scheduler started."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self.registry = CollectorRegistry()
        kept = self.registry
        submitted = Counter("gpuyard_task_submitted", "Tasks accepted.", ["priority"], registry=kept)
        finished = Counter("gpuyard_task_finished", "Tasks ended.", ["status"], registry=kept)
        self._submitted = {each: submitted.labels(word) for each, word in PRIORITY.items()}
        self._finished = {
            status: finished.labels(status.value)
            for status in (TaskStatus.SUCCESS, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.TIMEOUT)
        }
        self._scheduled = Counter("gpuyard_task_scheduled", "Placements of tasks on GPUs.", registry=kept)
        self._preempted = Counter(
            "gpuyard_task_preempted", "Attempts that the scheduler stopped or suspended for other tasks.", registry=kept
        )
        self._lost = Counter("gpuyard_agent_lost", "Nodes declared lost.", registry=kept)
        waits = Histogram(
            "gpuyard_task_wait_seconds",
            "Time from the submission of a task to its first placement.",
            ["priority"],
            buckets=WAIT_BUCKETS,
            registry=kept,
        )
        self._waits = {each: waits.labels(word) for each, word in PRIORITY.items()}
        self._dispatch = Histogram(
            "gpuyard_dispatch_seconds",
            "Time from the placement of an attempt to the start that its nodes report.",
            buckets=DISPATCH_BUCKETS,
            registry=kept,
        )
        self.decision = Histogram(
            "gpuyard_decision_seconds",
            "Time the engine takes for a batch of commands and the decision after it.",
            buckets=DECISION_BUCKETS,
            registry=kept,
        )
        self.commit = Histogram(
            "gpuyard_commit_seconds",
            "Time to write a group of events to the journal.",
            buckets=COMMIT_BUCKETS,
            registry=kept,
        )
        self._placed_at: dict[TaskId, float] = {}
        """Attempts whose start has not been reported yet."""

    def hear(self, records: Sequence[Record]) -> None:
        """Count committed events that the views have applied."""
        for record in records:
            count = _COUNTED.get(type(record.event))
            if count is not None:
                count(self, record.event, record.at)

    def _task_submitted(self, event: events.TaskSubmitted, at: float) -> None:  # noqa: ARG002
        self._submitted[event.spec.task_class].inc()

    def _task_placed(self, event: events.TaskPlaced, at: float) -> None:
        self._scheduled.inc()
        self._placed_at[event.task] = at
        view = self._views.tasks.get(event.task)
        if view is not None and event.attempt == 1:
            self._waits[view.spec.task_class].observe(max(0.0, at - view.submitted_at))

    def _attempt_started(self, event: events.AttemptStarted, at: float) -> None:
        placed_at = self._placed_at.pop(event.task, None)
        if placed_at is not None:
            self._dispatch.observe(max(0.0, at - placed_at))

    def _attempt_ended(self, event: events.AttemptEnded, at: float) -> None:  # noqa: ARG002
        self._placed_at.pop(event.task, None)

    def _task_ended(self, event: events.TaskEnded, at: float) -> None:  # noqa: ARG002
        self._finished[event.status].inc()

    def _attempt_stopped(self, event: events.AttemptStopping | events.AttemptSuspending, at: float) -> None:  # noqa: ARG002
        if event.cause.why in PREEMPTING:
            self._preempted.inc()

    def _node_lost(self, event: events.NodeLost, at: float) -> None:  # noqa: ARG002
        self._lost.inc()


_COUNTED: dict[type[events.Event], Callable[[SchedulerMetrics, Any, float], None]] = {
    events.TaskSubmitted: SchedulerMetrics._task_submitted,
    events.TaskPlaced: SchedulerMetrics._task_placed,
    events.AttemptStarted: SchedulerMetrics._attempt_started,
    events.AttemptEnded: SchedulerMetrics._attempt_ended,
    events.TaskEnded: SchedulerMetrics._task_ended,
    events.AttemptStopping: SchedulerMetrics._attempt_stopped,
    events.AttemptSuspending: SchedulerMetrics._attempt_stopped,
    events.NodeLost: SchedulerMetrics._node_lost,
}
