"""Answer questions about tasks: one task, a list, why a task waits, when it is expected to start.

Open tasks are answered from the views, ended tasks from the archive, reasons from the engine.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import TypeVar

import msgspec

from gpuyard.core.domain.errors import StorageUnavailable
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import TaskSpec
from gpuyard.core.domain.values import ENDED, TaskId, TaskStatus, TenantId
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.explain import Explanation, Revise, explain, middle_of_queue, why_all_wait, why_waits
from gpuyard.core.engine.preview import Preview, preview
from gpuyard.core.engine.queue_order import first_starts
from gpuyard.core.engine.state import State
from gpuyard.live.control_plane.loop import HEAVY, EngineLoop
from gpuyard.live.control_plane.prediction.runtime_estimator import RuntimeEstimator
from gpuyard.live.control_plane.stores.archive import NEWEST_FIRST, Archive, Filters, Order
from gpuyard.live.control_plane.stories import answered, unpacked
from gpuyard.live.control_plane.task_places import OpenTasks, Places, find_places
from gpuyard.live.control_plane.views import LOOKED_AT_ONCE, TaskView, Views
from gpuyard.live.control_plane.worker_threads import WorkerPools
from gpuyard.live.wire.clock import SYSTEM_CLOCK, Clock

T = TypeVar("T")
COUNT_SECONDS, MOST_COUNTS = 1.0, 64
"""How long a count of open tasks is reused in a large cluster, and how many such counts are kept."""
MOST_ENCODED = 10_000
"""Number of cached answers for lists: about 10 MB."""
REASONS_AT_MOST = 200
"""Maximum number of waiting tasks in one list for which the engine is asked for the reason."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Part of a list: answers as JSON, newest first."""

    answers: list[msgspec.Raw]
    total: int
    next_cursor: TaskId | None


class TaskQueries:
    """Answers questions about tasks and about the engine's state."""

    def __init__(
        self,
        loop: EngineLoop,
        views: Views,
        archive: Archive,
        worker_pools: WorkerPools,
        *,
        rebuild: Callable[[], Engine],
        runtime_estimator: RuntimeEstimator | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._loop = loop
        self._views = views
        self._archive = archive
        self._worker_pools = worker_pools
        self._rebuild = rebuild
        self._runtime_estimator = runtime_estimator
        self._clock = clock
        self._counted: dict[Filters, tuple[asyncio.Future[int], float]] = {}
        """Number of matching open tasks, and until when it is reused."""
        self._copy: tuple[int, asyncio.Task[Engine]] | None = None
        """While the disk is full: an engine rebuilt from the journal, and the last event it was built from."""

    async def look(self, question: Callable[[State, float], T], weight: int = 0) -> T:
        """Query the engine's state. If the disk is full, query the state of the journal: the engine is ahead of it."""
        try:
            answer = await self._loop.look(question, weight)
        except StorageUnavailable:
            return question(await self._committed_state(), self._loop.clock())
        self._copy = None
        return answer

    async def _committed_state(self) -> State:
        """Return the state of the journal; read once until the journal changes."""
        seq = self._loop.committed
        if self._copy is None or self._copy[0] != seq:
            self._copy = (seq, asyncio.create_task(self._worker_pools.snapshots.run(self._rebuild)))
        try:
            engine = await asyncio.shield(self._copy[1])
        except Exception:  # passed on; the next question rebuilds it instead of meeting the same error again
            self._copy = None
            raise
        return engine.state

    async def explain(self, task: TaskId) -> Explanation:
        """Return why a task waits and when it is expected to start."""
        weight = HEAVY  # takes tenths of a second behind 200 tasks with estimates: run it in a thread
        return await self.look(lambda state, now: explain(state, task, now, self._revise(now)), weight)

    async def explain_middle(self, tasks: Sequence[TaskId]) -> Explanation | None:
        """Explain the task in the middle of the queue among these; None: none of them is in it."""

        def ask(state: State, now: float) -> Explanation | None:
            middle = middle_of_queue(state, tasks, now)
            return None if middle is None else explain(state, middle, now, self._revise(now))

        return await self.look(ask, HEAVY)

    async def preview(self, spec: TaskSpec) -> Preview | Refusal:
        """Return what would happen to a task that is submitted now; nothing is changed or recorded."""
        return await self.look(lambda state, now: preview(state, spec, now, self._revise(now)), HEAVY)

    async def first_starts(self, first: Sequence[TaskId], keep_going: Callable[[], bool]) -> dict[TaskId, float]:
        """Return when the first tasks of the queue are likely to start, as far as that is known."""
        return await self.look(lambda state, now: first_starts(state, first, now, self._revise(now), keep_going), HEAVY)

    def _revise(self, now: float) -> Revise | None:
        """Return a function that predicts the run time of a waiting task again, with the tasks that ended meanwhile."""
        runtime_estimator = self._runtime_estimator
        return None if runtime_estimator is None else lambda task: runtime_estimator.current_estimate(task.spec, now)

    async def answer(self, task: TaskId) -> tuple[TenantId, bytes] | None:
        """Return the tenant and the JSON answer of a task; None if the task is unknown."""
        view = self._views.tasks.get(task)
        if view is None:
            kept = await self._worker_pools.archive.run(self._archive.get, task)
            if kept is None:
                return None
            return TenantId(msgspec.json.decode(kept, type=_Tenant).tenant_id), kept
        return view.spec.tenant, await self.encoded(view)

    async def encoded(self, view: TaskView) -> bytes:
        """Return a task's answer as JSON, with the reason it waits."""
        if view.waits:
            reason = await self.look(lambda state, now: why_waits(state, view.id, now))
            if reason is not None:
                return _encode(view.answer(reason.sentence(), reason.code))
        return _encode(view.answer())

    async def page(
        self, filters: Filters, before: TaskId | None, limit: int, order: Order = NEWEST_FIRST, offset: int = 0
    ) -> TaskPage:
        """Return tasks, open and ended: newest first, or in another order from a place in the list on."""
        searches = filters.text is not None and before is None  # looks at every task: not in the event loop
        if offset or order != NEWEST_FIRST or searches:
            return await self._place(filters, order, offset, limit)
        wanted = _wanted(filters, self._views.texts)
        here = await self._views.newest(wanted, before, limit + 1)
        reasons = await self._reasons(here)
        ended = not filters.statuses or any(status in ENDED for status in filters.statuses)
        matching = [view for view in self._views.over.values() if wanted(view)]
        kept, total = [], len(matching) + await self._count_open(filters, wanted)
        if ended:
            kept = await self._worker_pools.archive.run(self._archive.page, filters, before, limit + 1)
            total += await self._worker_pools.archive.run(self._archive.count, filters)
            over = [view.id for view in matching]
            double = await self._worker_pools.archive.run(self._archive.statuses, over) if over else {}
            kept = [(task, answer) for task, answer in kept if task not in double]
            total -= len(double)
        mine = ((view.id, self._row(view, *reasons.get(view.id, (None, None)))) for view in here)
        both = list(islice(merge(mine, kept, key=lambda pair: -pair[0]), limit + 1))
        cursor = both[limit - 1][0] if len(both) > limit else None
        return TaskPage([msgspec.Raw(answer) for _, answer in both[:limit]], total, cursor)

    async def _place(self, filters: Filters, order: Order, offset: int, limit: int) -> TaskPage:
        """Return the tasks from a place in an ordered list on, open and ended."""
        views = self._views
        here = OpenTasks(views.tasks.copy(), views.texts.copy() if filters.text is not None else {}, set(views.over))

        def look() -> Places:
            with self._archive.listed(filters, order) as ended:
                return find_places(here, ended, filters, order, offset, limit)

        found = await self._worker_pools.archive.run(look)
        chosen, total = list(dict.fromkeys(found.tasks)), found.total  # one that was archived meanwhile is there twice
        answers = await self._answers(chosen)
        cursor = chosen[-1] if order == NEWEST_FIRST and chosen and offset + len(chosen) < total else None
        return TaskPage([msgspec.Raw(answers[task]) for task in chosen if task in answers], total, cursor)

    async def _answers(self, tasks: Sequence[TaskId]) -> dict[TaskId, bytes]:
        """Return the answers of tasks for a list, open or ended."""
        here = [view for task in tasks if (view := self._views.tasks.get(task)) is not None]
        reasons = await self._reasons(here)
        answers = {view.id: self._row(view, *reasons.get(view.id, (None, None))) for view in here}
        missing = [task for task in tasks if task not in answers]
        if missing:
            answers |= await self._worker_pools.archive.run(self._archive.answers, missing)
        return answers

    async def story(self, task: TaskId) -> bytes | None:
        """Return the answer with all events of a task; None: only its result is known."""
        view = self._views.tasks.get(task)
        if view is not None:
            return answered(view.submitted_at, view.by, *self._views.stories.events_of(task))
        story = await self._worker_pools.archive.run(self._archive.story, task)
        return None if story is None else unpacked(story)

    async def reason_of_new(self, view: TaskView) -> tuple[str | None, str | None]:
        """Return why a new task waits; not computed where many tasks wait, because the time grows with their number."""
        waiting = sum(counts.get(TaskStatus.PENDING, 0) for counts in self._views.counts.values())
        if not view.waits or waiting > REASONS_AT_MOST:
            return None, None
        return (await self._reasons([view])).get(view.id, (None, None))

    async def reasons_of(self, views: Sequence[TaskView]) -> dict[TaskId, tuple[str, str]]:
        """Return why tasks wait, also of many."""
        found: dict[TaskId, tuple[str, str]] = {}
        for first in range(0, len(views), REASONS_AT_MOST):
            found |= await self._reasons(views[first : first + REASONS_AT_MOST])
        return found

    async def _reasons(self, views: Sequence[TaskView]) -> dict[TaskId, tuple[str, str]]:
        waiting = [view.id for view in views if view.waits]
        if not waiting:
            return {}

        def ask(state: State, now: float) -> dict[TaskId, tuple[str, str]]:
            told: dict[Refusal, tuple[str, str]] = {}
            found = why_all_wait(state, waiting[:REASONS_AT_MOST], now)
            for reason in found.values():
                if reason not in told:
                    told[reason] = (reason.sentence(), reason.code)
            return {task: told[reason] for task, reason in found.items()}

        return await self.look(ask)

    def _row(self, view: TaskView, reason: str | None, code: str | None) -> bytes:
        """Encode a task for a list. The answer of a waiting task is cached until the task or its reason changes."""
        if not view.waits:
            return _encode(view.answer(reason, code))
        encoded = self._views.encoded
        before = encoded.get(view.id)
        if before is not None and before[0] == reason:
            return before[1]
        if len(encoded) >= MOST_ENCODED:
            encoded.clear()
        answer = _encode(view.answer(reason, code))
        encoded[view.id] = (reason, answer)
        return answer

    async def _count_open(self, filters: Filters, wanted: Callable[[TaskView], bool]) -> int:
        """Count matching open tasks: from counters by status and tenant, otherwise by a scan at most once a second."""
        if filters == Filters(statuses=filters.statuses, tenant=filters.tenant):
            return self._views.open_tasks(filters.statuses, filters.tenant)
        before = self._counted.get(filters)
        if before is not None and (before[1] > self._clock.monotonic() or not before[0].done()):
            return await asyncio.shield(before[0])
        if len(self._counted) >= MOST_COUNTS:
            self._counted.clear()
        keep_seconds = COUNT_SECONDS if len(self._views.tasks) > LOOKED_AT_ONCE else 0.0
        count = asyncio.create_task(self._count(wanted))
        self._counted[filters] = (count, self._clock.monotonic() + keep_seconds)
        return await asyncio.shield(count)

    async def _count(self, wanted: Callable[[TaskView], bool]) -> int:
        return len(await self._views.newest(lambda view: view.status not in ENDED and wanted(view)))


class _Tenant(msgspec.Struct):
    tenant_id: str


def _wanted(filters: Filters, texts: Mapping[TaskId, str]) -> Callable[[TaskView], bool]:
    def wanted(view: TaskView) -> bool:
        spec = view.spec
        return (
            (not filters.statuses or view.status in filters.statuses)
            and (filters.tenant is None or spec.tenant == filters.tenant)
            and (filters.priority is None or view.priority == filters.priority)
            and (filters.user is None or spec.user == filters.user)
            and (filters.project is None or spec.project == filters.project)
            and (filters.name is None or spec.name == filters.name)
            and (filters.since is None or view.submitted_at >= filters.since)
            and (filters.text is None or filters.text in texts.get(view.id, ""))
        )

    return wanted
