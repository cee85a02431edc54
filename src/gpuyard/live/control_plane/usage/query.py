"""Usage of a window, from the archive and from the tasks in memory. Each task is counted in one of the two only.

Sums, order and encoding grow with the number of rows, so a thread does all of it.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from gpuyard.core.domain.values import TaskId, TenantId
from gpuyard.live.control_plane.stores.archive import Archive
from gpuyard.live.control_plane.time_slices import TimeSlicer
from gpuyard.live.control_plane.usage.accounting import OwnedSpan, WindowSums
from gpuyard.live.control_plane.views import Views
from gpuyard.live.control_plane.worker_threads import WorkerPool

T = TypeVar("T")


class UsageQueries:
    """Answers questions about usage."""

    def __init__(self, views: Views, archive: Archive, pool: WorkerPool, clock: Callable[[], float]) -> None:
        self._views = views
        self._archive = archive
        self._pool = pool
        self._clock = clock

    async def answer(
        self, since: float, until: float, by: Sequence[str], tenant: TenantId | None, make: Callable[[WindowSums], T]
    ) -> T:
        """Return what `make` makes in a thread of the sums of a window, of one tenant (None: of all)."""
        sums, now = WindowSums(since, until, by), self._clock()
        # Memory first: a task that is archived meanwhile is left out of the archive's part.
        counted, turns = set[TaskId](), TimeSlicer()
        taken: list[OwnedSpan] = []
        for task in list(self._views.tasks):
            view = self._views.tasks.get(task)
            if view is not None and (tenant is None or view.spec.tenant == tenant):
                counted.add(task)
                spec = view.spec
                taken += [
                    OwnedSpan(task, spec.tenant, spec.user, spec.project, span)
                    for span in view.usage(now)
                    if span.start < until and span.end > since
                ]
            if turns.due():
                await turns.give()

        def work() -> T:
            sums.add(taken)
            self._archive.usage(sums, since, until, tenant, counted)
            return make(sums)

        return await self._pool.run(work)
