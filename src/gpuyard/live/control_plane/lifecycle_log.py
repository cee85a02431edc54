"""Log lines for the journal events that operators follow, with stable names.

The lines of a tenth of a second are logged in one call, each with its own time, and the log writer makes one line of each
(cli/service/log_output.py). One call per line would raise the cost of accepting a task by half.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog

from gpuyard.core.domain import events
from gpuyard.core.domain.values import MILLI, TaskId, TaskStatus
from gpuyard.core.journal.records import Record
from gpuyard.live.control_plane.views import Views
from gpuyard.live.wire.tasks import format_task_id

GATHER_SECONDS = 0.1
MOST_LINES = 200
"""Lines written at once: after a large batch, other work runs between two such parts."""
FAILURES = frozenset({TaskStatus.FAILED, TaskStatus.TIMEOUT})

LogFields = dict[str, Any]
log = structlog.get_logger()


class LifecycleLog:
    """Writes journal events to the log."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._lines: list[LogFields] = []

    def hear(self, records: Sequence[Record]) -> None:
        """Queue log lines for journal events that were committed together and that the views have applied."""
        if not log.is_enabled_for(logging.INFO):
            return
        before = len(self._lines)
        unplaced: dict[TaskId, LogFields] = {}
        for record in records:
            event = record.event
            line_of = _LINES.get(type(event))
            if line_of is not None:
                self._lines.append(line_of(event, record, self._views))
            if isinstance(event, events.TaskSubmitted):
                unplaced[event.task] = {"event": "task_pending", "task_id": format_task_id(event.task)}
            elif isinstance(event, events.TaskPlaced | events.TaskEnded):
                unplaced.pop(event.task, None)
        self._lines.extend(unplaced.values())
        if len(self._lines) > before:
            at = datetime.fromtimestamp(records[-1].at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            for line in self._lines[before:]:
                line["timestamp"] = at
            if not before:
                asyncio.get_running_loop().call_later(GATHER_SECONDS, self.write)

    def write_all(self) -> None:
        """Write all queued lines at once, at the end of the process."""
        lines, self._lines = self._lines, []
        if lines:
            log.info("events", lines=lines)

    def write(self) -> None:
        """Write the queued lines, one part at a time."""
        lines, self._lines = self._lines[:MOST_LINES], self._lines[MOST_LINES:]
        if lines:
            log.info("events", lines=lines)
        if self._lines:
            asyncio.get_running_loop().call_later(0, self.write)


def _submitted(event: events.TaskSubmitted, record: Record, views: Views) -> LogFields:  # noqa: ARG001
    spec = event.spec
    ask = spec.resources
    return {
        "event": "task_submitted",
        "task_id": format_task_id(event.task),
        "tenant_id": spec.tenant,
        "class": spec.task_class,
        "priority": spec.priority,
        "gpu_count": ask.gpus * ask.nodes if ask.share is None else ask.share.fraction_milli / MILLI,
        "by": record.by,
        "request_id": record.request_id,
    }


def _placed(event: events.TaskPlaced, record: Record, views: Views) -> LogFields:  # noqa: ARG001
    return {
        "event": "task_scheduled",
        "task_id": format_task_id(event.task),
        "attempt": event.attempt,
        "node_ids": event.placement.nodes,
        "gpus": [f"{part.node}/{gpu}" for part in event.placement.slices for gpu in part.gpus],
    }


def _requeued(event: events.TaskRequeued, record: Record, views: Views) -> LogFields:  # noqa: ARG001
    return {"event": "task_pending", "task_id": format_task_id(event.task), "reason": event.cause.why}


def _ended(event: events.TaskEnded, record: Record, views: Views) -> LogFields:  # noqa: ARG001
    view = views.tasks[event.task]
    return {
        "event": "task_failed" if event.status in FAILURES else "task_finished",
        "task_id": format_task_id(event.task),
        "tenant_id": view.spec.tenant,
        "status": event.status,
        "reason": event.cause.why,
        "exit_code": view.exit_code,
        "attempts": view.attempts,
        "run_seconds": None if view.started_at is None else round(view.run_seconds, 3),
    }


def _split(event: events.SplitSet, record: Record, views: Views) -> LogFields:  # noqa: ARG001
    split = event.split
    return {
        "event": "quota_updated",
        "online_percent": split.online_percent,
        "batch_percent": split.batch_percent,
        "mode": split.mode,
        "by": record.by,
    }


def _tenant(event: events.TenantSet, record: Record, views: Views) -> LogFields:  # noqa: ARG001
    tenant = event.tenant
    return {
        "event": "quota_updated",
        "tenant_id": tenant.id,
        "max_gpus": tenant.max_gpus,
        "guaranteed_gpus": tenant.guaranteed_gpus,
        "by": record.by,
    }


_LINES: dict[type[events.Event], Callable[[Any, Record, Views], LogFields]] = {
    events.TaskSubmitted: _submitted,
    events.TaskPlaced: _placed,
    events.TaskRequeued: _requeued,
    events.TaskEnded: _ended,
    events.SplitSet: _split,
    events.TenantSet: _tenant,
}
