"""What a standby has to learn of ended tasks, later: estimates are made by the scheduler that leads.

A standby learns a few tasks a second, so in a cluster that is not very busy its estimates are those of the leader. Of a busy
cluster it keeps the newest ends. When it leads it learns them in slices beside its other work, and which tasks run.
"""

import asyncio
from collections import deque

from gpuyard.live.control_plane.prediction.runtime_estimator import RuntimeEstimator
from gpuyard.live.control_plane.time_slices import TimeSlicer
from gpuyard.live.control_plane.views import TaskView, Views

MOST_KEPT = 5_000
"""Ended tasks that wait to be learned; the oldest are dropped. A task in memory takes about 2 KB."""
LEARN_SECONDS = 0.25
LEARNED_AT_ONCE = 25
"""A standby learns so many ended tasks each `LEARN_SECONDS`."""


class LaterLearning:
    """The ended tasks that an estimator has not learned yet."""

    def __init__(self, estimator: RuntimeEstimator) -> None:
        self._estimator = estimator
        self._ended: deque[tuple[TaskView, float]] = deque(maxlen=MOST_KEPT)

    def ended(self, view: TaskView, at: float) -> None:
        """Keep a task that has ended."""
        self._ended.append((view, at))

    async def run(self) -> None:
        """Learn a few at a time, until cancelled."""
        while True:
            await asyncio.sleep(LEARN_SECONDS)
            for _ in range(min(LEARNED_AT_ONCE, len(self._ended))):
                self._estimator.ended(*self._ended.popleft())

    async def finish(self, views: Views) -> None:
        """Learn everything that is left, and which tasks run."""
        turns = TimeSlicer()
        for view in list(views.tasks.values()):
            self._estimator.remember_running([view])
            if turns.due():
                await turns.give()
        while self._ended:
            self._estimator.ended(*self._ended.popleft())
            if turns.due():
                await turns.give()
