"""The list scheduler: which GPU keeps its model, switches or waits. Loading takes 3 s here, unloading 1 s."""

import numpy as np
import pytest

from gpuyard.plan.planner.bounds import lower_bound
from gpuyard.plan.planner.checker import check
from gpuyard.plan.planner.compiled.decoding import ListSettings
from gpuyard.plan.planner.compiled.list_scheduler import ListScheduler
from gpuyard.plan.planner.generate import FAMILIES
from gpuyard.plan.planner.plan import Plan, measure
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import problem_of
from gpuyard.plan.planner.strategies import SearchBudget, strategy
from gpuyard.plan.planner.strategies.heft_affinity import PORTFOLIO
from tests.unit.plan.planner.small_problems import drawn, instance, problem


def planned(asked: Problem, settings: ListSettings = PORTFOLIO[0]) -> Plan:
    plan = ListScheduler(asked).plan(settings)
    assert check(asked, plan) == []
    return plan


def test_a_gpu_keeps_its_model_while_calls_wait_for_it() -> None:
    asked = problem(("a", "A", 2.0, ""), ("b", "B", 2.0, "a"), gpus=1, requests=5)
    assert measure(asked, planned(asked)).switches == 1


def test_a_model_is_loaded_while_its_call_waits_for_another() -> None:
    """GPU 1 has B by the time a has ended, at 3 + 5 s."""
    asked = problem(("a", "A", 5.0, ""), ("b", "B", 2.0, "a"), gpus=2)
    plan = planned(asked, ListSettings(soon=1.0, urgent=0.0))
    assert plan.gpu[0] != plan.gpu[1]
    assert plan.start.tolist() == [3.0, 8.0]


def test_the_call_with_the_longest_remaining_path_is_first() -> None:
    asked = problem(("short", "A", 1.0, ""), ("long", "A", 1.0, ""), ("rest", "A", 9.0, "long"), gpus=1)
    start = planned(asked).start
    assert start[1] < start[0]


def test_requests_with_a_deadline_or_priority_go_before_others() -> None:
    said = instance(("a", "A", 10.0, ""), gpus=1, requests=4)
    said.requests[2].deadline_s = 14.0
    said.requests[3].priority = 90
    assert np.argsort(planned(problem_of(said)).start).tolist() == [2, 3, 0, 1]


def test_no_gpu_joins_a_group_that_will_end_before_the_load_does() -> None:
    """Two calls of 1 s: the second GPU would be loaded when both are over."""
    asked = problem(("a", "A", 1.0, ""), gpus=2, requests=2)
    assert len(set(planned(asked, ListSettings(least=1.0)).gpu.tolist())) == 1


def test_members_of_a_wide_group_wait_for_each_other_and_take_no_other_call() -> None:
    """Both GPUs hold A when the wide call comes; the one that is free first loads, and takes no more calls of A."""
    asked = problem(("a", "A", 6.0, ""), ("b", "A", 4.0, ""), ("w", "B2", 5.0, "b"), ("c", "A", 1.0, "w"), gpus=2)
    plan = planned(asked)
    assert plan.gpu[2] == 0
    assert plan.start[2] == 3.0 + 6.0 + 4.0


def test_wide_groups_begin_at_multiples_of_their_width() -> None:
    asked = drawn("multi_gpu", 300, 16, seed=3)
    plan = planned(asked)
    width = asked.width[asked.calls.model]
    assert (plan.gpu % width == 0).all()


def test_calls_may_be_listed_in_any_order() -> None:
    asked = problem(("late", "A", 1.0, "early"), ("early", "B", 2.0, ""), gpus=1)
    assert planned(asked).start.tolist() == [9.0, 3.0]


@pytest.mark.parametrize("family", FAMILIES)
def test_heft_affinity_is_far_shorter_than_dynamic_with_a_third_of_its_switches(family: str) -> None:
    asked = drawn(family, 1000, 8, seed=77)
    ours, dynamic = (measure(asked, strategy(name)(asked, SearchBudget())) for name in ("heft_affinity", "dynamic"))
    assert ours.makespan_s < dynamic.makespan_s
    assert ours.switches <= dynamic.switches / 3


def test_heft_affinity_is_near_the_bound() -> None:
    """The geometric mean over the families; each alone could be harder for chance reasons."""
    gaps = []
    for family in FAMILIES:
        asked = drawn(family, 1000, 8, seed=78)
        gaps.append(strategy("heft_affinity")(asked, SearchBudget()).makespan_s / lower_bound(asked).seconds)
    assert np.exp(np.log(gaps).mean()) < 1.06


def test_heft_affinity_tries_one_setting_per_round_and_reports_better_plans() -> None:
    asked = drawn("agentic", 400, 4, seed=5)
    told: list[float] = []
    one = strategy("heft_affinity")(asked, SearchBudget(rounds=1)).makespan_s
    all_of_them = strategy("heft_affinity")(asked, SearchBudget(better=lambda plan: told.append(plan.makespan_s)))
    assert told == sorted(told, reverse=True)
    assert all_of_them.makespan_s <= min(told) < one + 1e-9


def test_heft_affinity_makes_a_plan_even_without_time() -> None:
    asked = drawn("chain", 50, 2)
    assert check(asked, strategy("heft_affinity")(asked, SearchBudget(keep_going=lambda: False))) == []
