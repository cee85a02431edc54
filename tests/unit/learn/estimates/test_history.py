"""Run times from history: similar and recent runs count more, and nine of ten end within the range."""

from random import Random

import pytest

from gpuyard.core.domain.task import Estimate
from gpuyard.learn.estimates.history import (
    LEAST_KIND_RUNS,
    LEAST_RUNS,
    MOST_KINDS,
    HistoryPredictor,
    TaskFeatures,
    features_from,
)

ANN = TaskFeatures("ann", "", "train", 8.0)


def told(history: HistoryPredictor, asked: TaskFeatures = ANN) -> Estimate:
    found = history.estimate(asked, 0.0)
    assert found is not None
    assert found.low_seconds <= found.seconds <= found.high_seconds
    return found


def test_without_history_there_is_no_prediction() -> None:
    history = HistoryPredictor()
    assert history.estimate(ANN, 0.0) is None
    for _ in range(LEAST_RUNS):
        history.ended(ANN, 10.0, 0.0)
    assert told(history).seconds == pytest.approx(10.0)


def test_a_repeated_task_is_predicted_from_its_own_history() -> None:
    history = HistoryPredictor()
    for _ in range(10):
        history.ended(ANN, 100.0, 0.0)
        history.ended(TaskFeatures("ann", "", "test", 1.0), 5.0, 0.0)
        history.ended(TaskFeatures("bob", "", "train", 8.0), 50_000.0, 0.0)
    found = told(history)
    assert found.seconds == pytest.approx(100.0, rel=0.1)
    assert found.runs == 10


def test_a_new_user_is_predicted_from_tasks_of_the_same_size() -> None:
    history = HistoryPredictor()
    for seconds in (10.0, 20.0, 30.0) * 5:
        history.ended(TaskFeatures("bob", "", "x", 8.0), seconds, 0.0)
        history.ended(TaskFeatures("bob", "", "x", 1.0), 9_999.0, 0.0)
    of_eight, of_one = told(history), told(history, ANN._replace(gpus=1.0))
    assert of_eight.seconds < 60.0
    assert of_one.seconds > 1_000.0
    assert of_eight.runs == of_one.runs == 15


def test_recent_runs_count_more_than_early_ones() -> None:
    rising, falling = HistoryPredictor(), HistoryPredictor()
    for seconds in (1.0, 10.0, 100.0):
        rising.ended(ANN, seconds, 0.0)
        falling.ended(ANN, 101.0 - seconds, 0.0)
    assert told(rising).seconds > 10.0
    assert told(falling).seconds < 91.0


def test_very_old_runs_are_forgotten() -> None:
    history = HistoryPredictor()
    for _ in range(60):
        history.ended(ANN, 1.0, 0.0)
    for _ in range(60):
        history.ended(ANN, 50.0, 0.0)
    assert told(history).seconds == pytest.approx(50.0, rel=0.05)


def test_similar_runs_give_a_narrow_range_and_different_ones_a_wide_range() -> None:
    alike, unlike = HistoryPredictor(), HistoryPredictor()
    for place in range(20):
        alike.ended(ANN, 100.0, 0.0)
        unlike.ended(ANN, 10.0 ** (place % 5), 0.0)
    narrow, wide = told(alike), told(unlike)
    assert narrow.high_seconds / narrow.low_seconds < 2.0
    assert wide.high_seconds / wide.low_seconds > 1_000.0


def test_a_new_kind_of_task_may_differ_from_everything_seen() -> None:
    history = HistoryPredictor()
    for _ in range(20):
        history.ended(ANN, 100.0, 0.0)
    found = told(history, ANN._replace(name="another"))
    assert found.seconds == pytest.approx(100.0)
    assert found.low_seconds < 20.0
    assert found.high_seconds > 500.0


def test_nine_of_ten_end_within_their_range_although_users_change_their_habits() -> None:
    luck, history = Random(4), HistoryPredictor()
    inside = high = 0
    for place in range(4_000):
        asked = TaskFeatures(f"user{luck.randrange(20)}", "", "", float(2 ** luck.randrange(4)))
        seconds = luck.lognormvariate(5.0 + 3.0 * (place // 200 % 2), 1.5)
        found = history.estimate(asked, 0.0)
        history.ended(asked, seconds, 0.0, found)
        if found is not None and place >= 500:
            inside += found.low_seconds <= seconds <= found.high_seconds
            high += seconds <= found.high_seconds
    assert inside / 3_500 == pytest.approx(0.9, abs=0.01)
    assert high / 3_500 == pytest.approx(0.95, abs=0.01)


def test_estimates_of_users_do_not_widen_the_range() -> None:
    history = HistoryPredictor()
    for _ in range(100):
        history.ended(ANN, 100.0, 0.0, Estimate(1.0, 1.0, 1.0))
    assert told(history).high_seconds < 200.0


def test_a_task_with_a_new_name_is_estimated_from_its_kind() -> None:
    history = HistoryPredictor()
    for number in range(20):
        history.ended(TaskFeatures("ann", "", f"trial-{number}", 8.0, kind="trial"), 3_600.0, 0.0)
        history.ended(TaskFeatures("ann", "", f"eval-{number}", 8.0, kind="eval"), 60.0, 0.0)
    assert told(history, TaskFeatures("ann", "", "trial-99", 8.0, kind="trial")).seconds > 2_400.0
    assert told(history, TaskFeatures("ann", "", "eval-99", 8.0, kind="eval")).seconds < 120.0


def test_tasks_without_a_name_are_known_by_command_and_kind() -> None:
    one, other = (features_from("team", "ann", "", "", f"python a.py --seed {seed}", 1.0) for seed in (1, 2))
    assert one != other
    assert one.kind == other.kind == "python a.py"
    assert features_from("team", "ann", "", "lease-1", None, 1.0).kind == ""


def test_names_that_never_recur_do_not_fill_the_memory() -> None:
    history = HistoryPredictor()
    for place in range(MOST_KINDS + 100):
        history.ended(TaskFeatures("ann", "", f"run-{place}", 1.0), 10.0, 0.0)
    assert len(history._kinds) == MOST_KINDS
    assert told(history, TaskFeatures("ann", "", "run-0", 1.0)).runs == 50


def test_an_estimate_is_from_other_work_until_enough_tasks_of_the_user_and_kind_have_ended() -> None:
    history = HistoryPredictor()
    for _ in range(100):
        history.ended(features_from("t", "ann", "", "", "true", 1.0), 1.0, 0.0)
    trial, other = (features_from("t", user, "", "", "python train.py --lr 0.1", 1.0) for user in ("ann", "bob"))
    for number in range(LEAST_KIND_RUNS):
        assert told(history, trial).from_other_work
        history.ended(features_from("t", "ann", "", "", f"python train.py --lr 0.{number}", 1.0), 600.0, 0.0)
    assert not told(history, trial).from_other_work
    assert told(history, other).from_other_work
    assert told(history, trial._replace(gpus=8.0)).from_other_work


def test_leases_of_a_user_and_size_are_one_kind() -> None:
    history, lease = HistoryPredictor(), features_from("t", "ann", "", "", None, 1.0)
    for _ in range(LEAST_KIND_RUNS):
        history.ended(lease, 600.0, 0.0)
    assert not told(history, lease).from_other_work
    assert told(history, features_from("t", "bob", "", "", None, 1.0)).from_other_work
