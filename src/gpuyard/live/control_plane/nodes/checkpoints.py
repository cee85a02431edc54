"""Which checkpoint folders of a node are no longer kept.

A folder is kept while its task can still run and for a while after its end, however the task ended. An empty folder is
removed as soon as the task has ended.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from gpuyard.core.domain.values import AttemptRef, TaskId
from gpuyard.live.control_plane.nodes import launches
from gpuyard.live.control_plane.views import Views
from gpuyard.live.wire import agents_pb2 as pb

MOST_CHECKPOINTS = 2_000
"""Maximum number of folders of one report that are examined."""
LARGEST_ID = (1 << 63) - 1

SpanLookup = Callable[[Iterable[TaskId]], Awaitable[Mapping[TaskId, tuple[float, float]]]]
"""Returns when archived tasks were created and when they ended."""


def submitted_us(submitted_at: float) -> int:
    """Return the time of a submission in microseconds, which distinguishes two tasks with the same number."""
    return round(submitted_at * 1_000_000)


class CheckpointRetention:
    """Decides which checkpoint folders are removed."""

    def __init__(self, views: Views, spans: SpanLookup, keep_seconds: float) -> None:
        self._views = views
        self._spans = spans
        self._keep_seconds = keep_seconds

    async def removals(self, found: "Sequence[pb.Checkpoint]", now: float) -> list[pb.Command]:
        """Return the commands that remove those of these folders that are no longer kept."""
        known = [it for it in found if 0 < it.task <= LARGEST_ID]
        closed = [it for it in known if not self._is_open(it)]
        spans = await self._spans({TaskId(it.task) for it in closed}) if closed else {}
        return [
            launches.attempt_command(
                AttemptRef(TaskId(it.task), 0), remove_checkpoint=pb.RemoveCheckpoint(submitted_us=it.submitted_us)
            )
            for it in closed
            if not self._is_open(it) and (it.empty or now - self._ended_at(it, spans, now) >= self._keep_seconds)
        ]

    def _is_open(self, found: "pb.Checkpoint") -> bool:
        view = self._views.tasks.get(TaskId(found.task))
        return view is not None and view.finished_at is None and submitted_us(view.submitted_at) == found.submitted_us

    def _ended_at(self, found: "pb.Checkpoint", spans: Mapping[TaskId, tuple[float, float]], now: float) -> float:
        """Return when the task ended. Of a task that this scheduler does not know, when its folder was last changed."""
        view = self._views.tasks.get(TaskId(found.task))
        if view is not None and view.finished_at is not None and submitted_us(view.submitted_at) == found.submitted_us:
            return view.finished_at
        created_at, finished_at = spans.get(TaskId(found.task), (0.0, 0.0))
        if submitted_us(created_at) == found.submitted_us:
            return finished_at
        return now - (found.idle_seconds if found.idle_seconds > 0 else 0.0)
