"""Pages of the queue: running tasks first, then waiting ones in the order in which they go, arrays on one line.

Tasks that have ended are a list of their own, the latest end first: those of an array on one line, with counts.

The order of the waiting tasks comes from the engine as copies of its heaps, and is sorted in a thread. A list is kept
until an event changes something; with many open tasks also a second longer, because then events never stop.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from gpuyard.core.domain.values import ENDED, MILLI, TaskId, TaskStatus, TenantId
from gpuyard.core.engine.explain import AHEAD
from gpuyard.core.engine.queue_order import entries_in_order, parts_of_queue
from gpuyard.live.control_plane.ended_rows import EndedLines, find_lines, rows_of
from gpuyard.live.control_plane.folding import fold_of
from gpuyard.live.control_plane.queries import TaskQueries
from gpuyard.live.control_plane.stores.archive import Archive, Filters
from gpuyard.live.control_plane.task_places import OpenTasks, matching, sorted_in_pieces
from gpuyard.live.control_plane.views import LOOKED_AT_ONCE, STARTING, TaskView, Views
from gpuyard.live.control_plane.worker_threads import WorkerPools
from gpuyard.live.wire.clock import SYSTEM_CLOCK, Clock
from gpuyard.live.wire.limits import instant_of
from gpuyard.live.wire.queue_answers import EndedAnswer, QueueAnswer, QueueRow
from gpuyard.live.wire.task_answers import TaskAnswer
from gpuyard.live.wire.tasks import format_priority, format_task_id

KEPT_SECONDS = 1.0
"""How long a list is reused although something has changed, where many tasks are open."""
STARTS_SECONDS = 5.0
"""The same for expected starts, which cost more."""
SEARCH_SECONDS = 0.1
"""How long the engine may compute expected starts; nothing is decided meanwhile."""
MOST_LISTS = 16
LONGEST_COMMAND = 60

QueueSortKey: TypeAlias = Literal[
    "queue", "created_at", "started_at", "name", "user", "tenant", "priority", "gpus", "status", "attempts"
]


class QueueSort(NamedTuple):
    """The order of the rows."""

    by: QueueSortKey = "queue"
    descending: bool = False


class _Line(NamedTuple):
    """A row: its tasks in the order of the list."""

    tasks: list[TaskId]


class _Listed(NamedTuple):
    lines: list[_Line]
    tasks: int
    places: dict[TaskId, int]
    first: list[TaskId]
    """The beginning of the queue, whatever the filters are."""


_Asked = tuple[Filters, QueueSort, bool]


class QueuePages:
    """Answers what is in the queue."""

    def __init__(
        self,
        queries: TaskQueries,
        views: Views,
        archive: Archive,
        worker_pools: WorkerPools,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._queries = queries
        self._views = views
        self._archive = archive
        self._worker_pools = worker_pools
        self._clock = clock
        self._lists: dict[_Asked, tuple[int, float, asyncio.Task[_Listed]]] = {}
        """Lists with the last event they include and when they were made."""
        self._starts: tuple[int, float, asyncio.Task[dict[TaskId, float]]] | None = None

    async def page(
        self, filters: Filters, sort: QueueSort, offset: int, limit: int, *, fold: bool, seen: TenantId | None
    ) -> QueueAnswer:
        """Return some rows. `fold`: one row for the tasks of an array, sweep or group; `seen`: the tenant that the caller sees."""
        listed = await self._listed((filters, sort, fold))
        lines = listed.lines[offset : offset + limit]
        views = [view for line in lines if (view := self._views.tasks.get(line.tasks[0])) is not None]
        reasons = await self._queries.reasons_of(views)
        near = any(listed.places.get(view.id, AHEAD) < AHEAD for view in views)
        starts = await self._first_starts(listed.first) if near else {}
        rows = [
            _row(view, line, listed.places, starts, *reasons.get(view.id, (None, None)))
            for line in lines
            if (view := self._views.tasks.get(line.tasks[0])) is not None and view.status not in ENDED
        ]
        statuses = (TaskStatus.RUNNING, TaskStatus.SUSPENDED, TaskStatus.PENDING)
        running, suspended, pending = (self._views.open_tasks((status,), seen) for status in statuses)
        return QueueAnswer(
            rows=rows, total=len(listed.lines), tasks=listed.tasks, running=running, suspended=suspended, pending=pending
        )  # fmt: skip

    async def ended(self, filters: Filters, limit: int) -> EndedAnswer:
        """Return rows of ended tasks, the latest end first, one row for the tasks of an array, sweep or group."""
        filters = replace(filters, statuses=tuple(one for one in ENDED if one in (filters.statuses or ENDED)))
        if not filters.statuses:
            return EndedAnswer(rows=[], tasks=0, has_more=False)
        views = self._views
        here = OpenTasks(views.tasks.copy(), views.texts.copy() if filters.text is not None else {}, set(views.over))

        def look() -> tuple[EndedLines, list[TaskView], dict[TaskId, bytes]]:
            found = [here.tasks[task] for task in matching(here, filters)]
            with self._archive.folded(filters) as ended:
                archived = ended.contained(view.id for view in found)
                found = [view for view in found if view.id not in archived]
                lines = find_lines(found, ended, limit)
                return lines, found, ended.answers(line.task for line in lines.lines)

        lines, found, answers = await self._worker_pools.archive.run(look)
        told: dict[TaskId, TaskAnswer | bytes] = {**answers}
        chosen = {line.task for line in lines.lines}
        told |= {view.id: view.answer() for view in found if view.id in chosen}
        count = await self._worker_pools.archive.run(self._archive.count, filters)
        return EndedAnswer(rows=rows_of(lines.lines, told), tasks=count + len(found), has_more=lines.has_more)

    async def _listed(self, asked: _Asked) -> _Listed:
        """Return the whole list; a list in the making serves everyone who asks for it meanwhile."""
        seq, now = self._views.last_seq, self._clock.monotonic()
        before = self._lists.get(asked)
        if before is not None:
            keep = KEPT_SECONDS if len(self._views.tasks) > LOOKED_AT_ONCE else 0.0
            if (before[0] == seq and now < before[1] + STARTS_SECONDS) or now < before[1] + keep:
                return await asyncio.shield(before[2])
        if len(self._lists) >= MOST_LISTS:
            self._lists.clear()
        making = asyncio.create_task(self._list(asked))
        self._lists[asked] = (seq, now, making)
        try:
            return await asyncio.shield(making)
        except Exception:  # passed on; the next question makes the list again
            self._lists.pop(asked, None)
            raise

    async def _list(self, asked: _Asked) -> _Listed:
        filters, sort, fold = asked
        parts = await self._queries.look(parts_of_queue)
        views = self._views
        here = OpenTasks(views.tasks.copy(), views.texts.copy() if filters.text is not None else {}, set(views.over))

        def make() -> _Listed:
            order = list(entries_in_order(parts, sorted_in_pieces))
            places = {task: place for place, task in enumerate(order, 1)}
            found = [task for task in matching(here, filters) if here.tasks[task].status not in ENDED]
            found = _sorted_rows(here.tasks, found, sort, places)
            lines = _folded(here.tasks, found, places) if fold else [_Line([task]) for task in found]
            return _Listed(lines, len(found), places, order[:AHEAD])

        return await self._worker_pools.archive.run(make)

    def _search_time(self) -> Callable[[], bool]:
        """Return a function that says whether there is time left, counted from its first call."""
        until: list[float] = []

        def keep_going() -> bool:
            now = self._clock.monotonic()
            if not until:
                until.append(now + SEARCH_SECONDS)
            return now < until[0]

        return keep_going

    async def _first_starts(self, first: Sequence[TaskId]) -> dict[TaskId, float]:
        seq, now = self._views.last_seq, self._clock.monotonic()
        if self._starts is not None:
            made_for, at, making = self._starts
            keep = STARTS_SECONDS if len(self._views.tasks) > LOOKED_AT_ONCE else 0.0
            if (made_for == seq and now < at + STARTS_SECONDS) or now < at + keep:
                return await asyncio.shield(making)
        making = asyncio.create_task(self._queries.first_starts(first, self._search_time()))
        self._starts = (seq, now, making)
        try:
            return await asyncio.shield(making)
        except Exception:
            self._starts = None
            raise


def _sorted_rows(
    tasks: Mapping[TaskId, TaskView], found: list[TaskId], sort: QueueSort, places: dict[TaskId, int]
) -> list[TaskId]:
    key: Callable[[TaskView], Any] = (
        (lambda view: _queue_key(view, places.get(view.id))) if sort.by == "queue" else _KEYS[sort.by]
    )
    found.sort()
    keys = {task: key(tasks[task]) for task in found}
    ordered = sorted_in_pieces(found, keys.__getitem__)
    if sort.descending:
        ordered.reverse()
    return ordered


def _queue_key(view: TaskView, place: int | None) -> tuple[int, float]:
    """What has GPUs first, the newest start on top; then what is suspended, the queue, and what is not in the queue."""
    if view.status is TaskStatus.RUNNING:
        return 1, -(view.started_at or 0.0)
    if view.status is TaskStatus.SUSPENDED:
        return 2, view.id
    if place is not None:
        return 3, place
    return (0 if view.is_starting else 4), view.id


_KEYS: dict[str, Callable[[TaskView], Any]] = {
    "created_at": lambda view: view.id,
    "started_at": lambda view: view.started_at or 0.0,
    "name": lambda view: view.spec.name,
    "user": lambda view: view.spec.user,
    "tenant": lambda view: view.spec.tenant,
    "priority": lambda view: view.priority,
    "gpus": lambda view: view.spec.resources.all_gpus,
    "status": lambda view: view.status.value,
    "attempts": lambda view: view.attempts,
}


def _folded(tasks: Mapping[TaskId, TaskView], found: Iterable[TaskId], places: dict[TaskId, int]) -> list[_Line]:
    """Put the tasks of an array, sweep or group that have one status on one row, at the place of the first of them."""
    lines: list[_Line] = []
    by_kind: dict[object, _Line] = {}
    for task in found:
        view = tasks[task]
        fold = fold_of(task, view.spec, view.submitted_at)
        if not fold:
            lines.append(_Line([task]))
            continue
        kind = (fold, view.status, view.is_starting, task in places)
        line = by_kind.get(kind)
        if line is None:
            by_kind[kind] = line = _Line([])
            lines.append(line)
        line.tasks.append(task)
    return lines


def _row(
    view: TaskView,
    line: _Line,
    places: dict[TaskId, int],
    starts: dict[TaskId, float],
    reason: str | None,
    code: str | None,
) -> QueueRow:
    spec, ask = view.spec, view.spec.resources
    before, code_before = view.reason()
    if reason is None:
        reason, code = before, STARTING if view.is_starting else code_before
    words = spec.command if isinstance(spec.command, str) else " ".join(spec.command or ())
    start = starts.get(view.id) if view.waits else None
    several = len(line.tasks) > 1
    return QueueRow(
        id=format_task_id(view.id),
        name=spec.name,
        command=None if spec.command is None else words[:LONGEST_COMMAND],
        status=view.status,
        tenant_id=spec.tenant,
        user=spec.user,
        project=spec.project,
        task_class=spec.task_class,
        priority=format_priority(spec.task_class, view.priority, spec.priority_in_words),
        gpu_count=ask.gpus,
        nodes=ask.nodes,
        gpu_fraction=ask.share.fraction_milli / MILLI if ask.share else None,
        gpu_model=(ask.models[0] if len(ask.models) == 1 else list(ask.models)) if ask.models else None,
        node_ids=[str(part.node) for part in view.placement.slices] if view.placement and not view.waits else [],
        array_index=spec.array_index,
        attempts=view.attempts,
        created_at=instant_of(view.submitted_at),
        started_at=None if view.started_at is None else instant_of(view.started_at),
        running_since=None if view.runs_since is None else instant_of(view.runs_since),
        ran_before_seconds=view.run_seconds if view.started_at is not None else None,
        place=places.get(view.id) if view.waits else None,
        expected_start=None if start is None else instant_of(start),
        reason=reason,
        reason_code=code,
        count=len(line.tasks),
        first_id=format_task_id(min(line.tasks)) if several else None,
        last_id=format_task_id(max(line.tasks)) if several else None,
        group=spec.group or None,
    )
