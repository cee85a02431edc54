"""A standby learns ended tasks a few at a time, and the rest when it leads."""

import asyncio

import pytest

from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.values import TaskId, TaskStatus
from gpuyard.live.control_plane.prediction import later_learning
from gpuyard.live.control_plane.prediction.later_learning import LaterLearning
from gpuyard.live.control_plane.prediction.runtime_estimator import RuntimeEstimator
from gpuyard.live.control_plane.views import TaskView, Views
from tests.unit.live.control_plane.clusters import spec

TRAIN = spec(user="ann", command="python train.py")


def over(number: int, seconds: float) -> TaskView:
    cause = Cause(CauseKind.SUCCEEDED)
    return TaskView(TaskId(number), TRAIN, 0.0, status=TaskStatus.SUCCESS, cause=cause, run_seconds=seconds)


def estimated_seconds(estimator: RuntimeEstimator) -> float | None:
    found = estimator.current_estimate(TRAIN, 9.0)
    return None if found is None else found.seconds


def test_a_standby_learns_a_few_at_a_time_and_the_rest_when_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later_learning, "LEARN_SECONDS", 0.001)
    monkeypatch.setattr(later_learning, "LEARNED_AT_ONCE", 2)

    async def story() -> None:
        estimator = RuntimeEstimator()
        later = LaterLearning(estimator)
        for number in range(10):
            later.ended(over(number, 100.0), 1.0)
        assert estimated_seconds(estimator) is None
        running = asyncio.create_task(later.run())
        while estimated_seconds(estimator) is None:
            await asyncio.sleep(0)
        running.cancel()
        assert estimated_seconds(estimator) == pytest.approx(100.0)
        later.ended(over(10, 900.0), 1.0)
        await later.finish(Views())
        known = estimated_seconds(estimator)
        assert known is not None
        assert known > 110.0, "it has learned the last one, too"

    asyncio.run(story())


def test_of_too_many_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later_learning, "MOST_KEPT", 5)

    async def story() -> None:
        estimator = RuntimeEstimator()
        later = LaterLearning(estimator)
        for number in range(10):
            later.ended(over(number, 10.0 if number < 5 else 1000.0), 1.0)
        await later.finish(Views())
        assert estimated_seconds(estimator) == pytest.approx(1000.0)

    asyncio.run(story())


def test_a_standby_that_leads_knows_which_tasks_run() -> None:
    async def story() -> None:
        estimator, views = RuntimeEstimator(), Views()
        views.tasks[TaskId(1)] = TaskView(TaskId(1), TRAIN, 0.0, status=TaskStatus.RUNNING, started_at=3.0)
        await LaterLearning(estimator).finish(views)
        assert list(estimator._estimator._remaining_time._runs) == [TaskId(1)]

    asyncio.run(story())
