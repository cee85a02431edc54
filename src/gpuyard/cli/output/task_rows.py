"""The columns of `gpuyard ps`, from a row of the queue or from a task of a list."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from gpuyard.cli.output.fitted_table import TableColumn
from gpuyard.cli.output.printing import asked_gpus, format_seconds, one_line, seconds_since
from gpuyard.cli.output.short_reasons import short_reason
from gpuyard.cli.shell.messages import localized
from gpuyard.core.domain.values import TaskStatus

if TYPE_CHECKING:
    from gpuyard.live.sdk import Task
    from gpuyard.live.wire.queue_answers import QueueRow

TaskRow: TypeAlias = "QueueRow | Task"
STATUS_COLORS = {
    "running": "green",
    "pending": "yellow",
    "suspended": "yellow",
    "failed": "red",
    "timeout": "red",
    "cancelled": "dim",
}
LONGEST_COMMAND = 30


def ran_seconds(task: Any) -> float | None:
    """Return how long a task has run. The scheduler says so unless it runs now; archives of old versions may not."""
    if getattr(task, "run_seconds", None) is not None:
        return float(task.run_seconds)
    if task.running_since is not None:
        return (task.ran_before_seconds or 0.0) + (seconds_since(task.running_since) or 0.0)
    if task.status == "pending":
        return None
    if task.ran_before_seconds is not None:
        return float(task.ran_before_seconds)
    return seconds_since(task.started_at, getattr(task, "finished_at", None))


def name_of(task: Any) -> str:
    """Return the name with the index of an array; the beginning of the command for a task without a name."""
    if not task.name and task.command is None:
        return "(lease)"
    words = task.command if isinstance(task.command, str) else " ".join(task.command or ())
    name = task.name or (words if len(words) <= LONGEST_COMMAND else words[: LONGEST_COMMAND - 1] + "…")
    if _count(task) > 1:
        base = name.partition("[")[0] if name.endswith("]") else name
        return f"{base}[…]"
    return name if task.array_index is None else f"{name}[{task.array_index}]"


def _count(task: Any) -> int:
    return int(getattr(task, "count", 1))


def _id(task: Any) -> str:
    """Return the id, or the range of ids; the calls of a map have others between them, which a range would include."""
    if _count(task) == 1:
        return str(task.id)
    return f"{task.first_id}{'…' if _is_loose(task) else '-'}{task.last_id.removeprefix('task-')}"


def _is_loose(task: Any) -> bool:
    """Whether the tasks on a line were submitted one after the other, so that tasks between them may be others."""
    first, last = (int(one.removeprefix("task-")) for one in (task.first_id, task.last_id))
    return getattr(task, "group", None) is not None and last - first + 1 > _count(task)


def _status(task: Any) -> str:
    """Return the status; of several ended tasks how many have which, such as `48 success, 2 failed`."""
    counts = getattr(task, "counts", None) or {task.status: _count(task)}
    if _count(task) == 1:
        return str(task.status)
    known = [status for status in TaskStatus if status in counts]
    return ", ".join(f"{counts[status]} {status}" for status in known)


def _color(task: Any) -> str | None:
    """Return the color of the status: of several ended tasks that of the worst."""
    counts = getattr(task, "counts", None) or {task.status: 1}
    worst = next((one for one in ("failed", "timeout", "cancelled") if one in counts), str(task.status))
    return STATUS_COLORS.get(worst)


def _node(task: Any) -> str:
    nodes = task.node_ids
    if task.status == "pending" and task.reason_code != "Starting":
        return ""
    return f"{nodes[0]} +{len(nodes) - 1}" if len(nodes) > 1 else "".join(nodes)


def _reason(task: Any) -> str:
    return "" if task.status == "running" else short_reason(task.reason_code, task.reason)


def _where(task: Any) -> str:
    """Return the node of a task that has one now, otherwise why it has none."""
    node, reason = _node(task), _reason(task)
    if task.status == "pending" and node:
        return f"{reason}, {node}" if reason else node
    return reason or node


def _start(task: Any) -> str:
    expected = getattr(task, "expected_start", None)
    if expected is None:
        return ""
    seconds = seconds_until(expected)
    return "soon" if seconds < 1 else f"in {format_seconds(seconds)}"


def seconds_until(instant: str) -> float:
    """Return the seconds from now until an instant; below 0 if it has passed."""
    from datetime import UTC, datetime

    return (datetime.fromisoformat(instant) - datetime.now(UTC)).total_seconds()


def _number(value: object) -> str:
    return "" if value is None else str(value)


ColumnText: TypeAlias = Callable[[Any], str]
COLUMNS: dict[str, tuple[TableColumn, ColumnText]] = {
    "id": (TableColumn("ID"), _id),
    "name": (TableColumn("NAME", least=8), name_of),
    "user": (TableColumn("USER", least=6, rank=4), lambda task: task.user),
    "tenant": (TableColumn("TENANT", least=6, rank=9), lambda task: task.tenant_id),
    "project": (TableColumn("PROJECT", least=6, rank=9), lambda task: task.project),
    "status": (TableColumn("STATUS"), _status),
    "class": (TableColumn("CLASS", rank=9), lambda task: str(task.task_class)),
    "priority": (TableColumn("PRIO", right=True, rank=5), lambda task: _number(task.priority)),
    "gpus": (TableColumn("GPUS", right=True, rank=3), asked_gpus),
    "model": (
        TableColumn("MODEL", least=6, rank=8),
        lambda task: task.gpu_model if isinstance(task.gpu_model, str) else " ".join(task.gpu_model or ()),
    ),
    "place": (TableColumn("PLACE", right=True, rank=6), lambda task: _number(getattr(task, "place", None))),
    "start": (TableColumn("START", right=True, rank=4), _start),
    "age": (TableColumn("AGE", right=True, rank=8), lambda task: format_seconds(seconds_since(task.created_at))),
    "ran": (TableColumn("RAN", right=True, rank=2), lambda task: format_seconds(ran_seconds(task), fine=True)),
    "tries": (TableColumn("TRY", right=True, rank=7), lambda task: _number(task.attempts or "")),
    "node": (TableColumn("NODE", least=8, rank=2), _node),
    "reason": (TableColumn("REASON", least=10, rank=2), _reason),
    "where": (TableColumn("NODE/REASON", least=9, rank=1), _where),
    "why": (TableColumn("WHY", least=20, rank=1), lambda task: localized(task.reason or "")),
}
"""What `--columns` can name."""
USUAL = ("id", "name", "user", "status", "priority", "gpus", "place", "start", "age", "ran", "tries", "where")


def usual_columns(tasks: "list[TaskRow]") -> list[str]:
    """Return the columns that say something about these tasks."""
    chosen = list(USUAL)
    if all(task.attempts < 2 for task in tasks):
        chosen.remove("tries")
    for name in ("place", "start"):
        if not any(COLUMNS[name][1](task) for task in tasks):
            chosen.remove(name)
    return chosen


def cells_of(tasks: "list[TaskRow]", columns: list[str]) -> tuple[list[list[str]], list[list[str | None]]]:
    """Return the texts of all rows, and their colors."""
    texts, colors = [], []
    for task in tasks:
        texts.append([one_line(COLUMNS[name][1](task)) or "–" for name in columns])
        colors.append([_color(task) if name == "status" else None for name in columns])
    return texts, colors
