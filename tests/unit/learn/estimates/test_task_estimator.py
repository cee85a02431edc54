"""What a policy is told about a new task."""

import pytest

from gpuyard.core.domain.events import AttemptEnded, AttemptStarted
from gpuyard.core.domain.remaining_time import LAST_RUN_LEVEL
from gpuyard.core.domain.task import Estimate, Resources, TaskSpec
from gpuyard.core.domain.values import Outcome, Preemption, TaskId, TenantId
from gpuyard.learn.estimates.history import HistoryPredictor, TaskFeatures
from gpuyard.learn.estimates.task_estimator import TaskEstimator

ANN = TaskFeatures("ann", gpus=1.0)
DAY = 86_400.0


def spec(preemption: Preemption = Preemption.NEVER, command: str | None = "train") -> TaskSpec:
    return TaskSpec(TenantId("team"), Resources(gpus=1), command=command, preemption=preemption)


def learned(*seconds: float) -> TaskEstimator:
    estimator = TaskEstimator(HistoryPredictor())
    for each in seconds:
        estimator.ended(ANN, each, 0.0, None)
        estimator.ended(TaskFeatures(f"user-{each}", gpus=2.0), 300.0, 0.0, None)
    return estimator


def run_level(estimator: TaskEstimator, now: float = 0.0, **task: Preemption) -> int | None:
    return estimator.estimated(spec(**task), ANN, now, None).run_level


@pytest.mark.parametrize("preemption", [Preemption.NEVER, Preemption.REQUEUE])
def test_a_task_that_would_lose_its_progress_has_the_level_of_its_mean_run_time(preemption: Preemption) -> None:
    half_fail_at_once = learned(*[10.0, 100_000.0] * 50)
    told = half_fail_at_once.estimated(spec(preemption), ANN, 0.0, None)
    assert told.run_level == 4  # fifty thousand seconds
    assert told.remaining_time_levels[0] == 0  # a trial of a minute would pay off


@pytest.mark.parametrize("preemption", [Preemption.CHECKPOINT, Preemption.SUSPEND])
def test_a_task_that_keeps_its_progress_has_none(preemption: Preemption) -> None:
    assert run_level(learned(*[100_000.0] * 50), preemption=preemption) is None


def test_a_lease_has_no_levels() -> None:
    told = learned(*[100_000.0] * 50).estimated(spec(command=None), ANN, 0.0, None)
    assert (told.run_level, told.remaining_time_levels) == (None, ())


def test_tasks_that_run_for_long_count_before_they_end() -> None:
    estimator = learned(*[60.0] * 20)
    short = run_level(estimator)
    for number in range(1, 21):
        estimator.hear(AttemptStarted(TaskId(number), 1), ANN, 0.0)
    assert run_level(estimator) == short == 0  # they have just started
    after = run_level(estimator, 20 * DAY)
    assert after == LAST_RUN_LEVEL
    for number in range(1, 21):
        estimator.hear(AttemptEnded(TaskId(number), 1, Outcome.STOPPED), ANN, 20 * DAY)
    assert run_level(estimator, 20 * DAY) == short


def test_an_estimate_and_levels_that_are_given_are_kept() -> None:
    said = Estimate(60.0, 30.0, 90.0)
    before = learned(*[100_000.0] * 20).estimated(spec(), ANN, 0.0, said)
    assert before.estimate is said
    assert learned().estimated(before, ANN, 0.0, before.estimate) == before


def test_where_most_tasks_can_be_preempted_the_level_is_nearer_to_theirs() -> None:
    alone, among_others = learned(*[10.0, 100_000.0] * 50), learned(*[10.0, 100_000.0] * 50)
    for _ in range(9):
        among_others.estimated(spec(Preemption.CHECKPOINT), ANN, 0.0, None)
    assert run_level(alone) == 4
    assert run_level(among_others) == 0
