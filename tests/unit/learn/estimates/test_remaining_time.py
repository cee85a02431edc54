"""Remaining time: from the run times of similar tasks, which tasks will end soon."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.core.domain.remaining_time import AGES, UNKNOWN_LEVELS, age_begins_at, age_of, level_of
from gpuyard.learn.estimates.history import TaskFeatures
from gpuyard.learn.estimates.remaining_time import (
    KINDS,
    LEAST_ENDS_OF_ALL,
    LEAST_ENDS_OF_USER,
    RemainingTimeModel,
    indices,
)

ANN, BOB = TaskFeatures("ann", "", "train", 8.0), TaskFeatures("bob", "", "train", 8.0)


def others_end(model: RemainingTimeModel, count: int) -> None:
    """Tasks of unrelated users, so that no kind dominates."""
    for number in range(count):
        model.observe(TaskFeatures(f"user-{number % 3}", "", "", 1.0), 300.0)


def level(model: RemainingTimeModel, asked: TaskFeatures, ran_seconds: float) -> int:
    found = model.predict(asked)
    return found[min(age_of(ran_seconds), len(found) - 1)]


def test_without_history_all_tasks_have_one_level_however_long_they_run() -> None:
    model = RemainingTimeModel()
    for _ in range(LEAST_ENDS_OF_ALL):
        assert model.predict(ANN) == UNKNOWN_LEVELS
        model.observe(ANN, 20.0)
    assert model.predict(ANN) != UNKNOWN_LEVELS
    for _ in range(LEAST_ENDS_OF_USER):
        assert model.predict(BOB) == UNKNOWN_LEVELS, "nothing is known about this user"
        model.observe(BOB, 20.0)
    assert model.predict(BOB) != UNKNOWN_LEVELS


def test_beyond_what_was_seen_the_task_that_has_run_least_ranks_first() -> None:
    model = RemainingTimeModel()
    others_end(model, 30)
    for _ in range(3):
        model.observe(ANN, 20.0)
    found = model.predict(ANN)
    assert found[0] == 0
    assert found[-1] == level_of(1e9)


def test_users_of_long_tasks_are_not_expected_to_end_soon() -> None:
    model = RemainingTimeModel()
    for _ in range(30):
        model.observe(ANN, 50_000.0)
        model.observe(BOB, 30.0)
    assert level(model, ANN, 0.0) > level(model, BOB, 0.0) == 0


def test_tasks_that_mostly_fail_at_once_are_tried_and_then_expected_to_be_long() -> None:
    model = RemainingTimeModel()
    for _ in range(30):
        model.observe(ANN, 10.0)
        model.observe(ANN, 100_000.0)
    others_end(model, 60)
    assert level(model, ANN, 0.0) == 0
    assert level(model, ANN, 60.0) >= 3


def test_a_long_task_that_has_nearly_ended_ranks_first_again() -> None:
    model = RemainingTimeModel()
    for _ in range(200):
        model.observe(ANN, 17_000.0)
    others_end(model, 200)
    assert level(model, ANN, 16_384.0) < level(model, ANN, 100.0)


def test_a_new_user_is_predicted_from_all_and_then_from_their_own_tasks() -> None:
    model = RemainingTimeModel()
    for number in range(50):
        model.observe(TaskFeatures(f"user-{number % 5}", "", "", 8.0), 50_000.0)
        model.observe(BOB, 50_000.0)
    assert model.predict(ANN) == model.predict(TaskFeatures("carl", "", "", 1.0))
    assert level(model, ANN, 0.0) > 0
    for _ in range(20):
        model.observe(ANN, 20.0)
    assert level(model, ANN, 0.0) == 0
    assert level(model, BOB, 0.0) > 0


def test_predictions_follow_changed_habits() -> None:
    model = RemainingTimeModel()
    for _ in range(3000):
        model.observe(ANN, 20.0)
    for _ in range(6000):
        model.observe(ANN, 90_000.0)
    others_end(model, 600)
    assert level(model, ANN, 0.0) >= 3


def test_if_most_tasks_are_of_one_kind_nothing_is_predicted_for_it() -> None:
    model = RemainingTimeModel()
    for _ in range(40):
        model.observe(ANN, 20.0)
    for _ in range(3):
        model.observe(BOB, 20.0)
    assert model.predict(ANN) == ()
    assert model.predict(BOB) != ()


def test_equal_tasks_are_predicted_also_if_most_tasks_are_of_their_kind() -> None:
    """The one that has run longest ends first; the time it has run alone would put it last."""
    model = RemainingTimeModel()
    for _ in range(200):
        model.observe(ANN, 3_600.0)
    assert level(model, ANN, 3_000.0) < level(model, ANN, 0.0)


def trial(number: int, user: str = "ann") -> TaskFeatures:
    return TaskFeatures(user, "", f"trial-{number}", 8.0, kind="trial")


def test_a_task_with_a_new_name_has_the_levels_of_its_kind() -> None:
    model, same = RemainingTimeModel(), RemainingTimeModel()
    for number in range(50):
        model.observe(trial(number), 3_600.0)
        model.observe(TaskFeatures("ann", "", "other", 8.0, kind="other"), 20.0)
        same.observe(TaskFeatures("ann", "", "trial", 8.0, kind="trial"), 3_600.0)
        same.observe(TaskFeatures("ann", "", "other", 8.0, kind="other"), 20.0)
    assert model.predict(trial(99)) == same.predict(TaskFeatures("ann", "", "trial", 8.0, kind="trial"))
    assert level(model, trial(99), 0.0) > level(model, TaskFeatures("ann", "", "other-3", 8.0, kind="other"), 0.0)


def test_a_kind_varies_once_ten_have_ended_and_some_ran_much_longer_than_most() -> None:
    model = RemainingTimeModel()
    for number in range(9):
        model.observe(trial(number), 40_000.0 if number % 5 == 0 else 60.0)
    assert not model.varies(trial(99)), "too few have ended"
    model.observe(trial(9), 60.0)
    assert model.varies(trial(99))
    assert not model.varies(trial(99, user="bob"))
    assert not model.varies(TaskFeatures("ann", gpus=8.0)), "it has no kind"


@pytest.mark.parametrize("longest", [3_600.0, 14_400.0])
def test_a_kind_of_similar_tasks_does_not_vary(longest: float) -> None:
    model = RemainingTimeModel()
    for number in range(200):
        model.observe(trial(number), 1_800.0 + (longest - 1_800.0) * number / 200)
    assert not model.varies(trial(999))


def test_a_name_that_has_often_ended_is_judged_by_itself() -> None:
    model = RemainingTimeModel()
    for number in range(20):
        model.observe(trial(number), 40_000.0 if number % 5 == 0 else 60.0)
        model.observe(trial(77), 3_600.0)
    assert model.varies(trial(99))
    assert not model.varies(trial(77))


def test_nothing_is_predicted_for_a_task_without_a_user() -> None:
    model = RemainingTimeModel()
    for _ in range(10):
        model.observe(TaskFeatures(gpus=1.0), 20.0)
    assert model.predict(TaskFeatures(gpus=1.0)) == ()


def test_names_that_never_recur_are_forgotten() -> None:
    model = RemainingTimeModel()
    model.observe(BOB, 90_000.0)
    for number in range(KINDS + 10):
        model.observe(TaskFeatures("ann", "", f"run-{number}", 1.0), 20.0)
    assert len(model) == KINDS
    assert len(model.predict(BOB)) <= AGES


@given(st.lists(st.floats(1e-4, 0.6), min_size=AGES, max_size=AGES))
def test_the_index_is_the_best_rate_of_ending_over_all_stopping_ages(parts: list[float]) -> None:
    for age, found in enumerate(indices(parts)):
        best, spent, alive = inf, 0.0, 1.0
        for later in range(age, AGES):
            width = age_begins_at(later + 1) - age_begins_at(later)
            spent += alive * width * (1 - parts[later] / 2)
            alive *= 1 - parts[later]
            best = min(best, spent / (1 - alive))
        assert found == pytest.approx(best, rel=1e-4)
