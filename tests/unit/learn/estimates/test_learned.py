"""What the learned model adds to history: daily habits."""

from math import log
from random import Random

from gpuyard.learn.estimates.history import HistoryPredictor, RuntimePredictor, TaskFeatures
from gpuyard.learn.estimates.learned import EVERY, HOUR, LearnedPredictor


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
    assert wrong_by(LearnedPredictor(), EVERY // 2, 10) == wrong_by(HistoryPredictor(), EVERY // 2, 10)


def test_daily_habits_are_learned() -> None:
    assert (
        wrong_by(LearnedPredictor(), 2 * EVERY, EVERY + 10) < wrong_by(HistoryPredictor(), 2 * EVERY, EVERY + 10) * 0.7
    )


def test_the_same_past_gives_the_same_predictions() -> None:
    assert wrong_by(LearnedPredictor(), EVERY + 200, EVERY) == wrong_by(LearnedPredictor(), EVERY + 200, EVERY)
