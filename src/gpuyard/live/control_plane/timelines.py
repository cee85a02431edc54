"""Timelines: which task held which GPU when, from the archive and from the open tasks, no finer than a pixel.

The archive merges short runs itself, so that a timeline of 100,000 tasks is as small as its picture.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from gpuyard.core.domain.values import NodeId, TaskId, TaskStatus, TenantId
from gpuyard.live.control_plane.stores.archive import Archive, RunFilter
from gpuyard.live.control_plane.stories import HeldSpan
from gpuyard.live.control_plane.time_slices import TimeSlicer
from gpuyard.live.control_plane.views import Views
from gpuyard.live.control_plane.worker_threads import WorkerPools
from gpuyard.live.wire.tasks import format_task_id
from gpuyard.live.wire.timeline_answers import TimelineAnswer, TimelineBar, TimelineLane

MOST_BARS = 10_000
"""About this many bars at most, of each kind: where there are more runs than that, more of them are merged."""


@dataclass(frozen=True, slots=True)
class _OpenRun:
    """A run of a task that is not archived, and what its bar says."""

    run: HeldSpan
    task: TaskId
    name: str
    tenant: TenantId
    status: TaskStatus


class Timelines:
    """Answers which task held which GPU when."""

    def __init__(self, views: Views, archive: Archive, worker_pools: WorkerPools) -> None:
        self._views = views
        self._archive = archive
        self._worker_pools = worker_pools

    async def between(
        self, start: float, end: float, width: int, *, node: NodeId | None = None, tenant: TenantId | None = None
    ) -> TimelineAnswer:
        """Return the timeline of a cluster, or of one node or tenant, for a picture of this width."""
        views = self._views
        lanes: dict[str, list[TimelineBar]] = {
            f"{name}/{gpu}": []
            for name, view in list(views.nodes.items())
            if node is None or name == node
            for gpu in range(len(view.spec.gpus))
        }
        mine, turns = list[_OpenRun](), TimeSlicer()
        for task in list(views.tasks):
            view = views.tasks.get(task)  # None: it was archived since, and the archive has its runs
            if view is not None and (tenant is None or view.spec.tenant == tenant):
                mine += [
                    _OpenRun(HeldSpan(*_fields(run)), task, view.spec.name, view.spec.tenant, view.status)
                    for run in views.stories.runs_of(task)
                    if run.started_at < end and (run.ended_at is None or run.ended_at > start)
                ]
            if turns.due():
                await turns.give()
        # Each of these tasks may be archived before the archive is asked.
        known = tuple({one.task for one in mine})
        return await self._worker_pools.archive.run(
            self._drawn, lanes, mine, RunFilter(start, end, (end - start) / width, tenant, node, known)
        )

    def _drawn(self, lanes: dict[str, list[TimelineBar]], mine: list[_OpenRun], wanted: RunFilter) -> TimelineAnswer:
        found = self._archive.runs(wanted, len(lanes), MOST_BARS)
        for gpu, started_at, ended_at, task, name, tenant, status, share in found.wide:
            bar = TimelineBar(started_at, ended_at, format_task_id(task), name, tenant, TaskStatus(status), share)
            lanes.setdefault(gpu, []).append(bar)
        merged = 0
        for gpu, started_at, ended_at, count in found.narrow:
            lanes.setdefault(gpu, []).append(TimelineBar(started_at, ended_at, None, count=count))
            merged += count
        merged += _add_open(lanes, mine, wanted, found.pixel)
        for bars in lanes.values():
            bars.sort(key=attrgetter("start"))
        ordered = sorted(lanes.items(), key=lambda lane: _place(lane[0]))
        return TimelineAnswer(
            wanted.start,
            wanted.end,
            [TimelineLane(gpu, *_place(gpu), bars) for gpu, bars in ordered],
            merged,
        )


def _add_open(lanes: dict[str, list[TimelineBar]], mine: Iterable[_OpenRun], wanted: RunFilter, pixel: float) -> int:
    """Add the runs of tasks that are not archived; return how many were merged."""
    short: dict[tuple[str, int], TimelineBar] = {}
    merged = 0
    for one in mine:
        run = one.run
        for gpu in run.gpus:
            if wanted.node is not None and _place(gpu)[0] != wanted.node:
                continue
            if run.ended_at is None or run.ended_at - run.started_at >= pixel:
                bar = TimelineBar(
                    run.started_at,
                    run.ended_at,
                    format_task_id(one.task),
                    one.name,
                    one.tenant,
                    one.status,
                    run.share,
                )
                lanes.setdefault(gpu, []).append(bar)
                continue
            slot = (gpu, int((run.started_at - wanted.start) // pixel))
            before = short.get(slot)
            merged += 1
            short[slot] = TimelineBar(
                min(run.started_at, before.start) if before else run.started_at,
                max(run.ended_at, before.end or 0.0) if before else run.ended_at,
                None,
                count=before.count + 1 if before else 1,
            )
    for (gpu, _), bar in short.items():
        lanes.setdefault(gpu, []).append(bar)
    return merged


def _fields(run: HeldSpan) -> tuple[int, list[str], float, float, float | None]:
    """Copy a run: the original may get its end while the copy is read in a thread."""
    return run.attempt, run.gpus, run.share, run.started_at, run.ended_at


def _place(gpu: str) -> tuple[str, int]:
    node, _, index = gpu.rpartition("/")
    return node, int(index)
