"""What the learned model adds to history: daily habits."""

from math import log
from random import Random

from gpuyard.core.domain.task import Estimate
from gpuyard.learn.estimates.history import HistoryPredictor, RuntimePredictor, TaskFeatures
from gpuyard.learn.estimates.learned import HOUR, REFIT_EVERY, LearnedPredictor


def wrong_by(predictor: RuntimePredictor, tasks: int, judged_from: int) -> float:
    """The mean error, in logarithms, on a user who runs long things at night and short ones by day."""
    luck, errors = Random(7), []
    asked = TaskFeatures("ann", "", "", 1.0)
    for place in range(tasks):
        now = place * HOUR / 4
        seconds = luck.lognormvariate(8.0 if now / HOUR % 24 < 8 else 4.0, 0.5)
        told = predictor.estimate(asked, now)
        predictor.ended(asked, seconds, now, told)
        if told is not None and place >= judged_from:
            assert told.low_seconds <= told.seconds <= told.high_seconds
            errors.append(abs(log(told.seconds / seconds)))
    return sum(errors) / len(errors)


def test_with_too_little_data_history_alone_predicts() -> None:
    assert wrong_by(LearnedPredictor(), REFIT_EVERY // 2, 10) == wrong_by(HistoryPredictor(), REFIT_EVERY // 2, 10)


def test_daily_habits_are_learned() -> None:
    assert (
        wrong_by(LearnedPredictor(), 2 * REFIT_EVERY, REFIT_EVERY + 10)
        < wrong_by(HistoryPredictor(), 2 * REFIT_EVERY, REFIT_EVERY + 10) * 0.7
    )


def test_the_same_past_gives_the_same_predictions() -> None:
    assert wrong_by(LearnedPredictor(), REFIT_EVERY + 200, REFIT_EVERY) == wrong_by(
        LearnedPredictor(), REFIT_EVERY + 200, REFIT_EVERY
    )


def test_the_number_of_open_tasks_counts_only_tasks_that_were_estimated() -> None:
    """Tasks with an estimate of their user, and those of before a restart, end without having been counted."""
    predictor, asked = LearnedPredictor(), TaskFeatures("ann", "", "", 1.0)
    for seconds in (10.0, 20.0, 30.0):
        predictor.ended(asked, seconds, 0.0, Estimate(10.0, 5.0, 20.0))
        predictor.ended(asked, seconds, 0.0)
    assert set(predictor.open_tasks(asked)) == {0}
    told = predictor.estimate(asked, 0.0)
    predictor.ended(asked, 10.0, 0.0, Estimate(10.0, 5.0, 20.0))
    assert set(predictor.open_tasks(asked)) == {1}
    predictor.ended(asked, 10.0, 0.0, told)
    assert set(predictor.open_tasks(asked)) == {0}
