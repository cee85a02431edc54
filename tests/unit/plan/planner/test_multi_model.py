"""Several models on one GPU, where its memory lasts."""

from dataclasses import replace

import pytest

from gpuyard.plan.planner.checker import check
from gpuyard.plan.planner.generate import FAMILIES
from gpuyard.plan.planner.plan import measure
from gpuyard.plan.planner.problem_file import problem_of
from gpuyard.plan.planner.strategies import MOST_CALLS, STRATEGIES, SearchBudget, strategy
from tests.unit.plan.planner.small_problems import drawn, instance, plan, problem


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_strategy_keeps_the_rules_on_gpus_with_several_models(name: str, family: str) -> None:
    calls = 20 if name == "exact" else 100
    asked = replace(drawn(family, calls, 8, seed=6, mixed=True, pcie_gb_s=5.0), multi_model=True)
    if name == "exact" and len(asked.calls) > MOST_CALLS["exact"]:
        pytest.skip("too large for exact")
    assert check(asked, strategy(name)(asked, SearchBudget(rounds=2))) == []


def test_a_resident_model_is_not_loaded_again() -> None:
    said = instance(("a", "A", 5.0, ""), ("b", "B", 2.0, "a"), ("c", "A", 1.0, "b"), gpus=1, multi_model=True)
    asked = problem_of(said)
    three_calls = plan((0, 3, 8), (0, 11, 13), (0, 13, 14))
    assert check(asked, three_calls) == []
    assert (measure(asked, three_calls).switches, measure(asked, three_calls).switch_time_s) == (1, 6.0)


def test_the_least_recently_used_model_is_evicted_when_room_is_needed() -> None:
    """Two models of 25 GB fit on 60 GB: C drops A, which costs 1 s, and A drops B."""
    said = instance(
        ("a", "A", 1.0, ""), ("b", "B", 1.0, "a"), ("c", "C", 1.0, "b"), ("d", "A", 1.0, "c"), gpus=1, multi_model=True
    )  # fmt: skip
    said.gpus[0].memory_gb = 60.0
    asked = problem_of(said)
    four_calls = plan((0, 3, 4), (0, 7, 8), (0, 12, 13), (0, 17, 18))
    assert check(asked, four_calls) == []
    assert measure(asked, four_calls).switch_time_s == 3 + 3 + 4 + 4


def test_multi_model_shorten_plans_with_frequent_switches() -> None:
    one = drawn("tight_chain", 200, 4, seed=3)
    many = replace(one, multi_model=True)
    lengths = [strategy("pareto")(asked, SearchBudget(rounds=5)).makespan_s for asked in (one, many)]
    assert lengths[1] < 0.95 * lengths[0]


def test_with_one_resident_nothing_is_retimed() -> None:
    asked = problem(("a", "A", 40.0, ""), ("b", "A", 1.0, "a"))
    assert strategy("dynamic")(asked, SearchBudget()).start.tolist() == [3.0, 46.0]
