"""Takes a sample of the cluster at every interval and writes it in a thread.

One sample is under way at a time: if the disk is slow, samples are left out. Nothing here can end the scheduler; what
fails is logged once and tried again with the next sample.
"""

import asyncio
from collections.abc import Callable

import structlog

from gpuyard.live.control_plane.history.sample import Sampler
from gpuyard.live.control_plane.history.store import HistoryStore
from gpuyard.live.control_plane.readings import Readings
from gpuyard.live.control_plane.stores.database import StoreDamaged, StoreError
from gpuyard.live.control_plane.time_slices import TimeSlicer
from gpuyard.live.control_plane.views import Views
from gpuyard.live.control_plane.worker_threads import WorkerPool

log = structlog.get_logger()


class HistoryRecorder:
    """Keeps the history up to date."""

    def __init__(
        self,
        store: HistoryStore,
        views: Views,
        readings: Readings,
        clock: Callable[[], float],
        thread: WorkerPool,
        interval_seconds: float,
    ) -> None:
        self._store = store
        self._readings = readings
        self._sampler = Sampler(views, readings)
        self._clock = clock
        self._thread = thread
        self._interval_seconds = interval_seconds
        self._complaint = ""

    async def run(self) -> None:
        """Take samples until cancelled, at whole multiples of the interval."""
        number = 0
        while True:
            number = max(number + 1, int(self._clock() / self._interval_seconds) + 1)
            due = number * self._interval_seconds
            if due - self._clock() > 2 * self._interval_seconds:  # the clock was set back
                number = 0
                continue
            await asyncio.sleep(max(0.0, due - self._clock()))
            await self.record(int(due))

    async def record(self, at: int) -> None:
        """Take a sample and write it."""
        try:
            await self._pack()
            sample = self._sampler.take(at, self._clock(), self._interval_seconds)
            await self._thread.run(self._store.append, sample)
            self._complaint = ""
        except StoreDamaged:
            return  # the store has said so and has started over
        except StoreError as error:
            self._complain(str(error))
        except Exception as error:
            if self._complaint != repr(error):
                log.exception("history_write_failed")
            self._complaint = repr(error)

    async def _pack(self) -> None:
        """Pack new heartbeats in slices, so that a large cluster does not hold up the event loop."""
        turns = TimeSlicer()
        for node in self._readings.refresh():
            self._readings.packed(node)
            if turns.due():
                await turns.give()

    def _complain(self, message: str) -> None:
        if message != self._complaint:
            log.warning("history_write_failed", message=message)
            self._complaint = message
