"""Least squares on paired runs: what a changed answer was worth, and the weights that explain it."""

import numpy as np
import pytest

from gpuyard.core.engine.scheduling.advice import FEATURES
from gpuyard.learn.training import regression
from gpuyard.learn.training.evolution import Scaling
from gpuyard.learn.training.regimes import Regime
from gpuyard.learn.training.regression import ChangedAnswers, changes, fitted, resampled

DESK = Regime("desk", "1x2:new+1x2:old", 0.7, {"new": (1.0, 1.0), "old": (0.2, 0.6)}, jobs=60)
WIDTH = len(FEATURES)
PLAIN = Scaling(
    np.zeros(WIDTH, np.float32), np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32), np.ones(WIDTH, np.float32), 0
)


def made_up(weights: np.ndarray, seed: int, *, noise: float, outliers: int = 0, answers: int = 400) -> ChangedAnswers:
    """ChangedAnswers whose worth is known: that of the rule and a weighted sum, plus noise."""
    draw = np.random.default_rng(seed)
    waiting = draw.normal(size=(answers, WIDTH)).astype(np.float32)
    turned = draw.choice([-1.0, 0.0, 1.0], answers)
    at_stake = np.exp(draw.normal(size=answers))
    behind = draw.normal(size=answers)
    effect = turned * at_stake * (waiting[:, regression.RULE] + waiting @ weights[:-1] + weights[-1])
    worth = effect + 0.3 * behind + noise * draw.normal(size=answers)
    worth[:outliers] += 1_000.0
    return ChangedAnswers(waiting, turned, at_stake, behind, worth, np.full(answers, max(noise, 1e-3)), answers)


def test_a_run_that_changes_no_answer_differs_in_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regression, "EXPLORES", 0.0)
    found = changes(DESK, 7, {})
    assert found is not None
    assert not found.turned.any()
    assert found.worth == pytest.approx(np.zeros(len(found.worth)), abs=1e-9)


def test_changed_answers_are_the_opposite_of_the_rule_and_only_about_waiting() -> None:
    turned: set[float] = set()
    for seed in range(7, 11):
        found = changes(DESK, seed, {})
        assert found is not None
        turned |= set(found.turned)
        assert (found.waiting[:, regression.WAITS] == 1).all()
        assert (found.waiting[found.turned > 0, regression.RULE] <= 0).all()
        assert (found.waiting[found.turned < 0, regression.RULE] > 0).all()
        assert found.worth.any()
        assert (found.noise > 0).all()
    assert turned == {-1.0, 0.0, 1.0}


def test_the_same_workload_gives_the_same_changes() -> None:
    one, two = changes(DESK, 8, {}), changes(DESK, 8, {})
    assert one is not None
    assert two is not None
    assert np.array_equal(one.waiting, two.waiting)
    assert np.array_equal(one.turned, two.turned)
    assert np.array_equal(one.worth, two.worth)


def test_without_questions_there_is_nothing_to_learn_from() -> None:
    assert changes(Regime("all alike", "2x4", 0.5, jobs=10), 1, {}) is None


def test_known_weights_are_found_in_spite_of_noise_and_outliers() -> None:
    weights = np.random.default_rng(2).normal(0.0, 0.1, WIDTH + 1)
    found, error = fitted([made_up(weights, seed, noise=0.5, outliers=4) for seed in range(10)], PLAIN)
    assert found == pytest.approx(weights, abs=0.06)
    assert error > 0


def test_without_evidence_weights_stay_near_zero() -> None:
    nothing = np.zeros(WIDTH + 1)
    found, _ = fitted([made_up(nothing, 3, noise=50.0, answers=40)], PLAIN)
    assert np.abs(found).max() < 0.1


def test_a_resample_has_as_many_workloads_and_depends_on_its_seed() -> None:
    found = [made_up(np.zeros(WIDTH + 1), seed, noise=1.0, answers=3) for seed in range(20)]

    def drawn(seed: int) -> list[int]:
        return [next(place for place, each in enumerate(found) if each is one) for one in resampled(found, seed)]

    assert len(drawn(1)) == 20
    assert drawn(1) == drawn(1) != drawn(2)
