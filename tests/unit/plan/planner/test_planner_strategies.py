"""Every strategy makes valid plans; `batch` and `dynamic` make those of the design document."""

from dataclasses import replace

import numpy as np
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.plan.planner.checker import check
from gpuyard.plan.planner.generate import FAMILIES
from gpuyard.plan.planner.instance import WrittenNode, WrittenRequest, WrittenWorkflow
from gpuyard.plan.planner.levels import levels
from gpuyard.plan.planner.plan import measure
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import problem_of
from gpuyard.plan.planner.strategies import STRATEGIES, SearchBudget, strategy
from gpuyard.plan.planner.strategies.batch import near_levels
from tests.unit.plan.planner.small_problems import drawn, instance, problem

SEED = ("batch", "dynamic", "heft_affinity")


@pytest.mark.parametrize("name", SEED)
@pytest.mark.parametrize("family", FAMILIES)
def test_plans_of_every_family_keep_every_rule(name: str, family: str) -> None:
    for asked in (drawn(family, 150, 8, seed=1), drawn(family, 150, 5, seed=2, mixed=True, pcie_gb_s=1.0)):
        assert check(asked, strategy(name)(asked, SearchBudget())) == []


@pytest.mark.parametrize("name", SEED)
def test_arrivals_and_speeds_are_respected(name: str) -> None:
    said = instance(("a", "A", 5.0, ""), ("b", "B2", 2.0, "a"), gpus=3, requests=3)
    said.requests[1].arrival_s = 20.0
    said.gpus[2].speed = 0.5
    assert check(problem_of(said), strategy(name)(problem_of(said), SearchBudget())) == []


@pytest.mark.parametrize("name", SEED)
def test_gpus_with_several_models_are_planned_by_that_rule(name: str) -> None:
    asked = replace(drawn("agentic", 100, 3), multi_model=True)
    plan = strategy(name)(asked, SearchBudget())
    assert check(asked, plan) == []
    assert measure(asked, plan).switch_time_s < measure(replace(asked, multi_model=False), plan).switch_time_s


@pytest.mark.parametrize("name", SEED)
def test_gpus_may_hold_models_and_be_busy_at_first(name: str) -> None:
    asked = problem(("a", "A", 5.0, ""), ("b", "B2", 2.0, "a"), gpus=3, requests=3)
    later = replace(asked, holding=np.array([0, 1, -1], dtype=np.int32), busy_until_s=np.array([4.0, 0.0, 9.0]))
    assert check(later, strategy(name)(later, SearchBudget())) == []


def test_dynamic_takes_the_group_where_the_call_ends_soonest() -> None:
    """The second call of A waits 2 s for GPU 0 instead of 3 s for loading A on GPU 1."""
    asked = problem(("a", "A", 2.0, ""), ("b", "A", 2.0, "a"))
    plan = strategy("dynamic")(asked, SearchBudget())
    assert (plan.gpu.tolist(), plan.start.tolist()) == ([0, 0], [3.0, 5.0])


def test_dynamic_adds_a_tenth_of_the_past_work_of_a_gpu_to_its_score() -> None:
    """After 40 s of work, GPU 0 has 4.3 s on its score: more than loading A on the empty GPU 1 takes."""
    asked = problem(("a", "A", 40.0, ""), ("b", "A", 1.0, "a"))
    plan = strategy("dynamic")(asked, SearchBudget())
    assert (plan.gpu.tolist(), plan.start.tolist()) == ([0, 1], [3.0, 46.0])


def test_dynamic_orders_a_level_by_the_seed() -> None:
    asked = drawn("agentic", 200, 4)
    plans = [strategy("dynamic")(asked, SearchBudget(seed)) for seed in (1, 1, 2)]
    assert np.array_equal(plans[0].start, plans[1].start)
    assert not np.array_equal(plans[0].start, plans[2].start)


def test_batch_divides_a_group_among_idle_gpus_and_preloads() -> None:
    asked = problem(("a", "A", 5.0, ""), ("b", "B", 2.0, "a"), requests=2, gpus=3)
    plan = strategy("batch")(asked, SearchBudget())
    assert sorted(plan.gpu[[0, 2]].tolist()) == [0, 1]
    assert plan.start[[0, 2]].tolist() == [3.0, 3.0]
    assert plan.makespan_s == 12.0  # the third GPU has loaded B by then and runs both calls


def test_batch_does_not_divide_what_loads_longer_than_it_runs() -> None:
    asked = problem(("a", "A", 0.1, ""), requests=6, gpus=2)
    assert set(strategy("batch")(asked, SearchBudget()).gpu.tolist()) == {0}


@pytest.mark.parametrize("near", [0, 1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_near_levels_stay_above_those_a_call_waits_for(family: str, near: int) -> None:
    asked = drawn(family, 200, 4, seed=near)
    lowest, level = levels(asked), near_levels(asked, near)
    calls = asked.calls
    later = np.repeat(np.arange(len(calls)), np.diff(calls.before_at))
    assert (level[later] > level[calls.before]).all()
    assert (level >= lowest).all()
    assert (level <= lowest + near).all()


def test_a_call_joins_its_model_on_a_near_level() -> None:
    """Both start with the same model if the short workflow waits for a level."""
    said = instance(("a", "B", 1.0, ""), ("b", "A", 1.0, "a"), ("c", "B", 1.0, "b"))
    said.workflows["short"] = WrittenWorkflow((WrittenNode("x", "A", 1.0),))
    said.requests.append(WrittenRequest("r9", "short"))
    assert near_levels(problem_of(said), 0).tolist() == [0, 1, 2, 0]
    assert near_levels(problem_of(said), 1).tolist() == [0, 1, 2, 1]


def test_the_weight_of_balance_follows_the_spread_of_the_load() -> None:
    """GPU 1 has half the load of GPU 0, so the weight is 0.05: c ends at 101 + 5 there, at 105 + 2.5 here."""
    asked = problem(("a", "A", 97.0, ""), ("b", "B", 47.0, ""), ("c", "A", 1.0, "a"))
    plan = strategy("dynamic")(asked, SearchBudget())
    assert plan.gpu[2] == plan.gpu[0] != plan.gpu[1]  # with a constant weight of 0.1: 111 and 110


def test_batch_begins_a_level_with_the_largest_batch() -> None:
    asked = problem(("a", "A", 1.0, ""), ("b", "B", 9.0, ""), gpus=1)
    assert strategy("batch")(asked, SearchBudget()).start.tolist() == [16.0, 3.0]


@pytest.mark.parametrize("name", SEED)
def test_no_requests_are_no_calls(name: str) -> None:
    none: Problem = problem(("a", "A", 1.0, ""), requests=0)
    assert strategy(name)(none, SearchBudget()).makespan_s == 0.0


def test_an_unknown_strategy_is_refused_with_the_existing_ones() -> None:
    with pytest.raises(WrongInput, match="Unknown strategy 'magic'; available strategies: batch"):
        strategy("magic")
    assert all(callable(strategy(name)) for name in STRATEGIES)
