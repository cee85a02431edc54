"""Urgent requests end sooner in a plan, and the plan does not become longer."""

from dataclasses import replace

import numpy as np
import pytest

from gpuyard.plan.planner import solve
from gpuyard.plan.planner.checker import check
from gpuyard.plan.planner.plan import late_requests
from gpuyard.plan.planner.priorities import ends, urgent_first, weighted_end_s
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.strategies import SearchBudget, strategy
from tests.unit.plan.planner.small_problems import drawn, plan, problem


def with_priorities(asked: Problem, *priorities: int) -> Problem:
    """The same problem with these priorities, repeated as often as needed."""
    column = np.resize(np.array(priorities, dtype=np.int32), len(asked.requests.ids))
    return replace(asked, requests=replace(asked.requests, priority=column))


def test_requests_that_are_alike_change_places() -> None:
    asked = with_priorities(problem(("a", "A", 4.0, ""), gpus=1, requests=3), 10, 90, 50)
    made = urgent_first(asked, plan((0, 3, 7), (0, 7, 11), (0, 11, 15)), reorder=False)
    assert made.start.tolist() == [11, 3, 7]
    assert check(asked, made) == []


def test_requests_with_other_durations_or_deadlines_do_not_change_places() -> None:
    asked = with_priorities(problem(("a", "A", 4.0, ""), gpus=1, requests=2), 10, 90)
    other = replace(asked, calls=replace(asked.calls, seconds=np.array([4.0, 5.0])))
    made = plan((0, 3, 7), (0, 7, 12))
    assert urgent_first(other, made, reorder=False).start.tolist() == [3, 7]
    late = replace(asked, requests=replace(asked.requests, deadline_s=np.array([8.0, 99.0])))
    made = plan((0, 3, 7), (0, 7, 11))
    assert urgent_first(late, made, reorder=False).start.tolist() == [3, 7]


def test_calls_of_one_model_are_ordered_by_priority() -> None:
    asked = with_priorities(problem(("a", "A", 4.0, ""), gpus=1, requests=2), 10, 90)
    asked = replace(asked, calls=replace(asked.calls, seconds=np.array([4.0, 5.0])))
    made = urgent_first(asked, plan((0, 3, 7), (0, 7, 12)))
    assert made.start.tolist() == [8, 3]
    assert check(asked, made) == []


def test_an_order_that_makes_the_plan_longer_is_not_taken() -> None:
    """The first call of the long request must run first: its second one takes as long as everything else."""
    nodes = [("a", "A", 4.0, ""), ("b", "B", 20.0, "a")]
    asked = with_priorities(problem(*nodes, gpus=2, requests=2), 10, 90)
    short = np.array([4.0, 20.0, 4.0, 1.0])
    asked = replace(asked, calls=replace(asked.calls, seconds=short))
    made = plan((0, 3, 7), (1, 7, 27), (0, 7, 11), (1, 27, 28))
    assert check(asked, made) == []
    assert urgent_first(asked, made).makespan_s == made.makespan_s


@pytest.mark.parametrize("name", ["batch", "dynamic", "heft_affinity", "search"])
@pytest.mark.parametrize("family", ["chain", "multi_gpu"])
def test_requests_end_sooner_if_they_are_more_urgent_than_others(name: str, family: str) -> None:
    mean_end_s = {}
    for mine, others in ((80, 20), (20, 80)):
        asked = with_priorities(drawn(family, 200, 4, seed=3), others, others, others, mine)
        found = solve(asked, strategy=name, rounds=20)
        assert found.faults == ()
        mean_end_s[mine] = ends(asked, found.plan)[3::4].mean()
    assert mean_end_s[80] < mean_end_s[20]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("multi_model", [False, True])
def test_plans_stay_valid_and_as_short_and_no_more_requests_are_late(seed: int, multi_model: bool) -> None:
    family = ("chain", "tiny", "switch_heavy", "fanout", "multi_gpu", "agentic")[seed]
    asked = with_priorities(replace(drawn(family, 120, 4, seed=seed), multi_model=multi_model), 0, 70, 30)
    made = strategy("batch")(asked, SearchBudget())
    deadlines = np.full(len(asked.requests.ids), made.makespan_s / 2)
    half = replace(asked, requests=replace(asked.requests, deadline_s=deadlines))
    better = urgent_first(half, made)
    assert check(half, better) == []
    assert better.makespan_s <= made.makespan_s * (1 + 1e-9)
    assert weighted_end_s(half, better) <= weighted_end_s(half, made)
    assert late_requests(half, better) <= late_requests(half, made)


def test_a_plan_for_equal_priorities_stays_as_it_is() -> None:
    asked = drawn("chain", 60, 3, seed=1)
    made = strategy("dynamic")(asked, SearchBudget())
    assert urgent_first(asked, made) is made
