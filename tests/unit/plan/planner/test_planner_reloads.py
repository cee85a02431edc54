"""Models that must be reloaded because there are fewer GPUs than models."""

from dataclasses import replace

import pytest

from gpuyard.plan.planner.bounds import lower_bound
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.reloads import reload_seconds
from gpuyard.plan.planner.strategies import SearchBudget, strategy
from tests.unit.plan.planner.small_problems import drawn, problem


def chain(models: str, *, gpus: int) -> Problem:
    """One call after another, of these models."""
    return problem(*((str(i), m, 1.0, str(i - 1) if i else "") for i, m in enumerate(models)), gpus=gpus)


def again(models: str, *, gpus: int) -> float:
    asked = chain(models, gpus=gpus)
    return reload_seconds(asked, [1.0] * len(asked.models))


@pytest.mark.parametrize(
    ("models", "gpus", "loads"),
    [("ABAB", 1, 2), ("AABB", 1, 0), ("ABCABC", 2, 1), ("ABCABC", 3, 0), ("ABCDABCD", 2, 2), ("ABCBA", 2, 1)],
)
def test_a_chain_is_served_by_a_cache_with_one_slot_per_gpu(models: str, gpus: int, loads: int) -> None:
    assert again(models, gpus=gpus) == loads


def test_with_one_gpu_the_bound_is_exact() -> None:
    """Four loads of 3 s, three unloads of 1 s, four calls of 1 s."""
    asked = chain("ABAB", gpus=1)
    assert lower_bound(asked).seconds == pytest.approx(19.0)
    assert min(strategy(name)(asked, SearchBudget()).makespan_s for name in ("batch", "dynamic")) == pytest.approx(19.0)


def test_independent_calls_may_run_in_the_better_order() -> None:
    """B twice and A twice, in any order: each is loaded once."""
    asked = problem(("a", "A", 1.0, ""), ("b", "B", 1.0, ""), ("c", "A", 1.0, ""), ("d", "B", 1.0, ""), gpus=1)
    assert reload_seconds(asked, [1.0, 1.0]) == 0.0


def test_an_interrupted_search_still_gives_a_bound() -> None:
    asked = drawn("tight_chain", 60, 2, seed=4)
    cost = [1.0] * len(asked.models)
    full = reload_seconds(asked, cost)
    found = [reload_seconds(asked, cost, most_states=most) for most in (1, 10, 100)]
    assert 0 <= found[0] <= found[1] <= found[2] <= full
    assert found[2] > 0


def test_remaining_plans_and_gpus_with_several_models_get_no_reload_bound() -> None:
    asked = chain("ABAB", gpus=1)
    assert reload_seconds(replace(asked, multi_model=True), [1.0, 1.0]) == 0.0
    assert reload_seconds(replace(asked, holding=asked.held_first), [1.0, 1.0]) == 0.0
