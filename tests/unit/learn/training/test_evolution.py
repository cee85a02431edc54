"""Direct policy search: a linear policy for waiting, found by an evolution strategy."""

from itertools import count

import numpy as np
import pytest

from gpuyard.core.engine.scheduling.advice import FEATURES
from gpuyard.learn.policy_network import AdvantageAdvisor, PolicyModel
from gpuyard.learn.training.evolution import Scaling, evolve, linear_net, rows_seen, scaling_of
from gpuyard.learn.training.regimes import Regime
from gpuyard.learn.training.train import RULE

WAITS, SAVED = FEATURES.index("waits"), FEATURES.index("saved")
DRAW = np.random.default_rng(5)
ROWS = DRAW.normal(size=(6, len(FEATURES))).astype(np.float32)
ROWS[:, WAITS] = [0, 0, 0, 0, 0, 1]
SCALING = scaling_of([ROWS], 0.0)
DESK = Regime("desk", "1x2:new+1x2:old", 0.7, {"new": (1.0, 1.0), "old": (0.2, 0.6)}, jobs=30)


def model(weights: list[float]) -> PolicyModel:
    low, high = SCALING.low, SCALING.high
    return PolicyModel(
        FEATURES, low, high, SCALING.mean, SCALING.scale, RULE, (linear_net(weights, SCALING),), 0.0, 0.0, {}
    )


def test_the_network_is_the_weighted_sum_for_waiting_and_nothing_for_other_candidates() -> None:
    weights = DRAW.normal(size=len(FEATURES) + 1)
    found = AdvantageAdvisor(model(list(weights))).advantages(ROWS)[0]
    rule = ROWS @ RULE - ROWS[0] @ RULE
    wanted = float(weights[:-1] @ ((ROWS[5] - SCALING.mean) / SCALING.scale) + weights[-1])
    assert found - rule == pytest.approx([0, 0, 0, 0, 0, wanted], abs=1e-3)


def test_weights_of_zero_are_the_rule() -> None:
    found = AdvantageAdvisor(model([0.0] * (len(FEATURES) + 1))).advantages(ROWS)[0]
    assert found == pytest.approx(ROWS @ RULE - ROWS[0] @ RULE, abs=1e-4)


def test_the_range_leaves_out_as_many_rows_as_it_is_told() -> None:
    rows = np.arange(101, dtype=np.float32)[:, None] * np.ones(len(FEATURES), np.float32)
    assert scaling_of([rows], 0.0).low[0] == 0
    assert scaling_of([rows], 0.1).low[0] == pytest.approx(10)
    assert scaling_of([rows], 0.1).high[0] == pytest.approx(90)


def test_the_search_finds_weights_that_make_a_known_cost_smaller() -> None:
    """The simulation is replaced by a cost that is least where waiting is worth one more than the rule says."""
    numbers = count()

    def cost(tried: PolicyModel | None, *_: object) -> float:
        next(numbers)
        if tried is None:
            return 100.0
        over = AdvantageAdvisor(tried).advantages(ROWS)[0][5] - float((ROWS @ RULE)[5] - (ROWS @ RULE)[0])
        return float(100.0 * (1.0 + (1.0 - over) ** 2) / 2.0)

    generations = list(
        evolve(1, model([0.0] * (len(FEATURES) + 1)), SCALING, [DESK], {}, (12, 8, 2), 0, lambda _, wanted: (cost(*each) for each in wanted))
    )  # fmt: skip
    assert next(numbers) == 12 * 9 * 2  # each generation: the rule and eight policies, on two workloads
    assert [generation.number for generation, _ in generations] == list(range(1, 13))
    assert generations[-1][0].mean < generations[0][0].mean - 0.1
    assert generations[-1][0].best <= generations[-1][0].mean


def test_the_rows_of_a_workload_are_those_that_the_rule_is_asked_about() -> None:
    seen = rows_seen(DESK, 7, {})
    assert seen
    assert all(rows.shape[1] == len(FEATURES) and len(rows) > 1 for rows in seen)
    assert isinstance(scaling_of(seen, 0.0005), Scaling)
