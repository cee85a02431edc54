"""What is said about a task: one sentence for people, and fields for programs."""

from typing import Any

from gpuyard.core.domain.notice import Moment, PendingNotice
from gpuyard.live.control_plane.alerts.receivers.notification import one_line
from gpuyard.live.wire.task_answers import TaskAnswer
from gpuyard.live.wire.tasks import format_task_id


def sentence_of(pending: PendingNotice, task: TaskAnswer | None) -> str:
    """Return the sentence. `text` of the message; Slack and Mattermost show it."""
    name = format_task_id(pending.task)
    if task is not None and task.name:
        name = f"{task.name} ({name})"
    if pending.ended:
        counts = ", ".join(f"{count} {status}" for status, count in pending.ended)
        return one_line(f"All {pending.count} tasks of the array of {name} have ended: {counts}.")
    of_array = f" The array has {pending.count} tasks." if pending.count > 1 else ""
    if task is None:
        return one_line(f"{name}: {pending.moment}.{of_array}")
    if pending.moment is Moment.START:
        return one_line(f"{name} has started on {', '.join(task.node_ids) or 'a node'}.{of_array}")
    why = f" {task.reason}" if task.reason else ""
    return one_line(f"{name} ended as {task.status}.{why}{of_array}")


def variables_of(pending: PendingNotice, task: TaskAnswer) -> dict[str, str]:
    """Return what a command finds in its environment besides the variables of the task."""
    return {
        "GPUYARD_NOTICE": pending.moment.value,
        "GPUYARD_TASK_STATUS": task.status.value,
        "GPUYARD_TASK_NAME": task.name,
        "GPUYARD_TASK_REASON": one_line(task.reason or ""),
        "GPUYARD_EXIT_CODE": "" if task.exit_code is None else str(task.exit_code),
    }


def body_of(pending: PendingNotice, task: TaskAnswer | None, external_url: str) -> dict[str, Any]:
    """Return the body of a message to a web address."""
    name = format_task_id(pending.task)
    body: dict[str, Any] = {
        "text": sentence_of(pending, task),
        "moment": pending.moment.value,
        "task_id": name,
        "url": f"{external_url}/#/tasks/{name}" if external_url else "",
    }
    if task is not None:
        body |= {
            "name": task.name,
            "status": task.status.value,
            "tenant_id": task.tenant_id,
            "user": task.user,
            "exit_code": task.exit_code,
            "reason": task.reason,
            "node_ids": task.node_ids,
            "created_at": task.created_at,
            "started_at": task.started_at,
            "finished_at": task.finished_at,
        }
    if pending.count > 1:
        body["array"] = {"count": pending.count, "ended": dict(pending.ended)}
    return body
