"""Ended tasks as rows of the queue, the latest end first: an array, a sweep or a group on one row, with counts.

Most ended tasks are in the archive, those of the last second still in memory. Both are walked by their end until there are
enough rows; then the tasks of each fold are counted by an index.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import NamedTuple

import msgspec

from gpuyard.core.domain.values import TaskId, TaskStatus
from gpuyard.live.control_plane.folding import fold_of
from gpuyard.live.control_plane.stores.archive import EndedFolds
from gpuyard.live.control_plane.views import TaskView
from gpuyard.live.wire.queue_answers import QueueRow
from gpuyard.live.wire.task_answers import TaskAnswer
from gpuyard.live.wire.tasks import format_task_id

MOST_WALKED = 100_000
"""Tasks that are looked at for one list, because those of a large map may all have ended last."""
LONGEST_COMMAND = 60

_decode = msgspec.json.Decoder(TaskAnswer).decode


class EndedLine(NamedTuple):
    """A row: the task that ended last, and how many there are of each status."""

    task: TaskId
    counts: dict[TaskStatus, int]
    first: TaskId
    last: TaskId


class EndedLines(NamedTuple):
    """The first rows, and whether there are more."""

    lines: list[EndedLine]
    has_more: bool


def find_lines(here: Sequence[TaskView], ended: EndedFolds, limit: int) -> EndedLines:
    """Return the rows of ended tasks. `here`: those that match and are not in the archive yet."""
    mine = sorted(
        ((view.finished_at or 0.0, view.id, fold_of(view.id, view.spec, view.submitted_at)) for view in here),
        reverse=True,
    )
    found: dict[str | TaskId, TaskId] = {}
    walked, has_more = 0, False
    for _, task, fold in merge(mine, islice(ended.rows(), MOST_WALKED), key=lambda row: row[:2], reverse=True):
        walked += 1
        key = fold or task
        if key in found:
            continue
        if len(found) == limit:
            has_more = True
            break
        found[key] = task
    return EndedLines(list(_lines(found, here, ended)), has_more or walked - len(mine) >= MOST_WALKED)


def _lines(found: dict[str | TaskId, TaskId], here: Sequence[TaskView], ended: EndedFolds) -> Iterator[EndedLine]:
    members: dict[str, list[TaskView]] = {}
    for view in here:
        if (fold := fold_of(view.id, view.spec, view.submitted_at)) in found:
            members.setdefault(fold, []).append(view)
    for key, task in found.items():
        if not isinstance(key, str):
            yield EndedLine(task, {}, task, task)
            continue
        archived = ended.counts(key)
        counts: Counter[TaskStatus] = Counter(view.status for view in members.get(key, ()))
        counts.update({one.status: one.tasks for one in archived})
        numbers = [view.id for view in members.get(key, ())]
        numbers += [number for one in archived for number in (one.first, one.last)]
        yield EndedLine(task, dict(counts), min(numbers), max(numbers))


def rows_of(lines: Iterable[EndedLine], answers: dict[TaskId, TaskAnswer | bytes]) -> list[QueueRow]:
    """Return the rows of lines, from the answers about the tasks that ended last."""
    rows = []
    for line in lines:
        told = answers.get(line.task)
        if told is not None:
            rows.append(_row(_decode(told) if isinstance(told, bytes) else told, line))
    return rows


def _row(task: TaskAnswer, line: EndedLine) -> QueueRow:
    words = task.command if isinstance(task.command, str) else " ".join(task.command or ())
    count = sum(line.counts.values()) or 1
    return QueueRow(
        id=task.id,
        name=task.name,
        command=None if task.command is None else words[:LONGEST_COMMAND],
        status=task.status,
        tenant_id=task.tenant_id,
        user=task.user,
        project=task.project,
        task_class=task.task_class,
        priority=task.priority,
        gpu_count=task.gpu_count,
        nodes=task.nodes,
        gpu_fraction=task.gpu_fraction,
        gpu_model=task.gpu_model,
        node_ids=task.node_ids,
        array_index=task.array_index,
        attempts=task.attempts,
        created_at=task.created_at,
        started_at=task.started_at,
        running_since=None,
        ran_before_seconds=None,
        place=None,
        expected_start=None,
        reason=task.reason,
        reason_code=task.reason_code,
        count=count,
        first_id=format_task_id(line.first) if count > 1 else None,
        last_id=format_task_id(line.last) if count > 1 else None,
        group=task.group,
        finished_at=task.finished_at,
        run_seconds=task.run_seconds,
        exit_code=task.exit_code,
        counts=line.counts if count > 1 else {},
    )
