"""What a policy is told about a new task."""

import pytest

from gpuyard.core.domain.events import AttemptEnded, AttemptStarted
from gpuyard.core.domain.remaining_time import LAST_RUN_LEVEL
from gpuyard.core.domain.task import Estimate, Resources, TaskSpec
from gpuyard.core.domain.values import Outcome, Preemption, TaskId, TenantId
from gpuyard.learn.estimates.history import HistoryPredictor, TaskFeatures
from gpuyard.learn.estimates.task_estimator import UNPREDICTABLE_LEVEL, TaskEstimator

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


def judged(runs: int, by: tuple[TaskFeatures, ...], *seconds: float, known: bool = False) -> TaskEstimator:
    """Return an estimator that has estimated and seen the end of this many tasks: of these kinds, in turn, and lengths."""
    estimator = TaskEstimator(HistoryPredictor())
    for run in range(runs):
        kind, ran = by[run % len(by)], seconds[run % len(seconds)]
        told = Estimate(ran, ran, ran) if known else estimator.estimated(spec(), kind, 0.0, None).estimate
        estimator.ended(kind, ran, 0.0, told)
    return estimator


BOB = TaskFeatures("bob", gpus=1.0)
UNKNOWN = TaskFeatures("", gpus=1.0)


def test_where_users_explain_run_times_tasks_are_predictable() -> None:
    told = judged(400, (ANN, BOB), 60.0, 50_000.0).estimated(spec(), ANN, 0.0, None)
    assert not told.unpredictable


def test_where_nothing_tells_tasks_apart_they_are_unpredictable_once_enough_have_ended() -> None:
    few, many = judged(20, (UNKNOWN,), 60.0, 50_000.0), judged(400, (UNKNOWN,), 60.0, 50_000.0)
    assert not few.estimated(spec(), UNKNOWN, 0.0, None).unpredictable
    assert many.estimated(spec(), UNKNOWN, 0.0, None).unpredictable


def test_tasks_become_predictable_again_when_estimates_are_right() -> None:
    estimator = judged(400, (UNKNOWN,), 60.0, 50_000.0)
    for run in range(3000):
        kind, ran = ((ANN, 60.0), (BOB, 50_000.0))[run % 2]
        estimator.ended(kind, ran, 0.0, estimator.estimated(spec(), kind, 0.0, None).estimate)
    assert not estimator.estimated(spec(), ANN, 0.0, None).unpredictable


def test_a_user_whose_many_estimates_are_wrong_does_not_make_the_tasks_of_others_unpredictable() -> None:
    estimator, users = TaskEstimator(HistoryPredictor()), [TaskFeatures(f"user-{each}", gpus=1.0) for each in range(12)]
    noise = TaskFeatures("mallory", gpus=1.0)
    for run in range(1000):
        ran = 60.0 if run % 2 else 5_000.0
        estimator.ended(users[run % 12], ran, 0.0, Estimate(ran, ran, ran, 5))
        for _ in range(2):
            estimator.ended(noise, 100.0, 0.0, Estimate(1.0, 1.0, 1.0, 5))
    assert not estimator.estimated(spec(), users[0], 0.0, None).unpredictable


def test_tasks_that_end_at_once_do_not_make_those_of_the_few_others_unpredictable() -> None:
    estimator, users = TaskEstimator(HistoryPredictor()), [TaskFeatures(f"user-{each}", gpus=1.0) for each in range(5)]
    noise = TaskFeatures("mallory", gpus=1.0)
    for run in range(1000):
        ran = 60.0 if run % 2 else 20_000.0
        estimator.ended(users[run % 5], ran, 0.0, Estimate(ran / 2, ran / 3, ran, 5))
        ended, told = (0.001, 100.0) if run % 2 else (100.0, 0.001)
        estimator.ended(noise, ended, 0.0, Estimate(told, told, told, 5))
    assert not estimator.estimated(spec(), users[0], 0.0, None).unpredictable


def test_estimates_that_are_wrong_for_most_tasks_are_found_out_however_long_tasks_run() -> None:
    estimator = TaskEstimator(HistoryPredictor())
    for run in range(1000):
        ran = (1.0, 1e6)[run % 2]
        estimator.ended(UNKNOWN, ran, 0.0, Estimate(1e6 / ran, 1.0, 1e6, 5))
    assert estimator.estimated(spec(), UNKNOWN, 0.0, None).unpredictable


def test_estimates_of_users_are_not_judged() -> None:
    estimator = judged(400, (UNKNOWN,), 60.0, 50_000.0, known=True)
    assert not estimator.estimated(spec(), UNKNOWN, 0.0, None).unpredictable


@pytest.mark.parametrize("runs", [20, 400])
def test_tasks_that_nothing_tells_apart_have_one_level_and_keep_the_order_of_submission(runs: int) -> None:
    estimator = judged(runs, (UNKNOWN, UNKNOWN._replace(gpus=8.0)), 60.0, 90_000.0, 90_000.0, 60.0)
    kinds = (UNKNOWN, UNKNOWN._replace(gpus=8.0), UNKNOWN._replace(gpus=64.0))
    levels = {estimator.estimated(spec(), kind, 0.0, None).run_level for kind in kinds}
    assert levels == {UNPREDICTABLE_LEVEL}
