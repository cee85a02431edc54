"""Watch the file of the performance model and load a new one, judged by ended tasks of the archive."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog

from gpuyard.live.control_plane.prediction.performance_predictor import PerformancePredictor
from gpuyard.live.control_plane.stores.archive import Archive
from gpuyard.live.control_plane.stores.database import StoreError

if TYPE_CHECKING:
    from gpuyard.learn.performance.ended_tasks import EndedRun

MODEL_SECONDS = 5.0
"""Interval of the check for a new performance model."""
MOST_JUDGED = 10_000
"""Number of recent ended tasks searched for those that can judge a model."""

log = structlog.get_logger()


async def watch_model(predictor: PerformancePredictor | None, archive: Archive) -> None:
    """Load a new performance model when there is one, until cancelled; return at once if no file is configured."""
    if predictor is None or predictor.models.path is None:
        return
    while True:
        await asyncio.to_thread(predictor.models.renew, partial(_ended_after, archive))
        await asyncio.sleep(MODEL_SECONDS)


def _ended_after(archive: Archive, instant: float) -> "list[EndedRun]":
    """Return tasks that ended after an instant and can judge the accuracy of a model."""
    from gpuyard.learn.performance.ended_tasks import ended_runs

    try:
        return [one for one in ended_runs(archive.newest(MOST_JUDGED)) if one.ended_at > instant]
    except StoreError as error:
        log.warning("model_evaluation_failed", message=str(error))
        return []
