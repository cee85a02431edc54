"""`exact` finds the same as brute force, and proves it."""

from dataclasses import replace
from itertools import permutations, product
from time import perf_counter

import numpy as np
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.plan.planner.checker import check
from gpuyard.plan.planner.compiled.timing import timed
from gpuyard.plan.planner.generate import FAMILIES
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import problem_of
from gpuyard.plan.planner.strategies import MOST_CALLS, SearchBudget, within
from gpuyard.plan.planner.strategies.dynamic import dynamic
from gpuyard.plan.planner.strategies.exact import exact, improved
from tests.unit.plan.planner.small_problems import Node, drawn, instance, problem

ENOUGH = SearchBudget(rounds=500)


def best_of_all(asked: Problem) -> float:
    """Every order and every assignment."""
    calls = asked.calls
    edges = [(int(j), i) for i in range(len(calls)) for j in calls.before[calls.before_at[i] : calls.before_at[i + 1]]]
    groups = [np.flatnonzero(asked.may_begin[m]).tolist() for m in calls.model]
    return min(
        timed(asked, np.array(gpu, dtype=np.int32), np.array(order, dtype=np.int32)).makespan_s
        for order in permutations(range(len(calls)))
        if all(order.index(i) < order.index(j) for i, j in edges)
        for gpu in product(*groups)
    )


@pytest.mark.parametrize(
    "asked",
    [
        problem(("a", "A", 5.0, ""), ("b", "B", 2.0, "a"), requests=2),
        problem(("a", "A", 5.0, ""), ("b", "B", 2.0, ""), ("c", "A", 1.0, "b"), ("d", "C", 1.0, "")),
        problem(("a", "A", 5.0, ""), ("b", "B2", 2.5, "a"), ("c", "A", 1.0, ""), gpus=3),
        problem(("a", "A", 0.1, ""), ("b", "B", 1 / 3, ""), ("c", "C", 2 / 7, ""), ("d", "A", 0.7, "b"), gpus=2),
        problem(("a", "A", 1, ""), ("b", "B", 2, "a"), ("c", "B", 3, "a"), ("d", "B", 1.5, "a"), ("e", "A", 1, "b c d")),
    ],
)  # fmt: skip
def test_exact_matches_brute_force_and_proves_it(asked: Problem) -> None:
    plan = exact(asked, ENOUGH)
    assert check(asked, plan) == []
    assert plan.makespan_s == pytest.approx(best_of_all(asked), rel=1e-6)
    assert plan.proven_s == pytest.approx(plan.makespan_s, rel=1e-6)


def test_exact_handles_slow_gpus_arrivals_and_initially_loaded_models() -> None:
    said = instance(("a", "A", 5.0, ""), ("b", "B", 2.0, "a"), gpus=2, requests=2)
    said.requests[1].arrival_s = 4.0
    said.gpus[1].speed = 0.5
    asked = replace(problem_of(said), holding=np.array([1, 0], dtype=np.int32), busy_until_s=np.array([0.0, 1.5]))
    plan = exact(asked, ENOUGH)
    assert check(asked, plan) == []
    assert plan.makespan_s == pytest.approx(best_of_all(asked))
    assert plan.proven_s == pytest.approx(plan.makespan_s)


@pytest.mark.parametrize("gb", [60.0, 40.0])
@pytest.mark.parametrize(
    "nodes",
    [
        [("a", "A", 5.0, ""), ("b", "B", 2.0, ""), ("c", "A", 1.0, "b"), ("d", "C", 1.0, "")],
        [("a", "A", 5.0, ""), ("b", "B2", 2.5, "a"), ("c", "A", 1.0, ""), ("d", "C", 4.0, "")],
        [("a", "A", 1, ""), ("b", "B", 2, "a"), ("c", "C", 6, "a"), ("d", "B", 1.5, "a"), ("e", "A", 1, "b c")],
    ],
)
def test_with_preload_exact_matches_brute_force_and_proves_it(nodes: list[Node], gb: float) -> None:
    """Two models of 25 GB fit on 60 GB side by side, and on 40 GB they do not."""
    said = instance(*nodes, gpus=2, preload=True)
    said.gpus[0].memory_gb, said.gpus[1].memory_gb = 60.0, gb
    asked = problem_of(said)
    plan = exact(asked, ENOUGH)
    assert check(asked, plan) == []
    assert plan.makespan_s == pytest.approx(best_of_all(asked), rel=1e-6)
    assert plan.proven_s == pytest.approx(plan.makespan_s, rel=1e-6)


def test_exact_does_not_wait_for_a_busy_gpu_it_does_not_need() -> None:
    asked = replace(problem(("a", "A", 0.5, ""), ("b", "B", 0.5, "")), busy_until_s=np.array([0.0, 100.0]))
    plan = exact(asked, ENOUGH)
    assert plan.makespan_s == pytest.approx(best_of_all(asked))
    assert plan.proven_s == pytest.approx(plan.makespan_s)


@pytest.mark.parametrize("family", FAMILIES)
def test_exact_is_never_longer_than_its_start_nor_shorter_than_its_bound(family: str) -> None:
    asked = drawn(family, 12, 4, seed=3)
    first = dynamic(asked, SearchBudget())
    plan = improved(asked, first, SearchBudget(rounds=5))
    assert check(asked, plan) == []
    assert plan.proven_s <= plan.makespan_s + 1e-9
    assert plan.makespan_s <= first.makespan_s


def test_with_multi_model_exact_gives_a_valid_plan_and_proves_nothing() -> None:
    asked = replace(drawn("chain", 8, 2, seed=1), multi_model=True)
    plan = exact(asked, SearchBudget(rounds=20))
    assert check(asked, plan) == []
    assert plan.proven_s == 0.0


@pytest.mark.slow
def test_the_same_rounds_give_the_same_plan() -> None:
    asked = drawn("agentic", 12, 3, seed=5)
    plans = [exact(asked, SearchBudget(rounds=10)) for _ in range(2)]
    assert np.array_equal(plans[0].start, plans[1].start)
    assert plans[0].proven_s == plans[1].proven_s


def test_exact_reports_each_better_plan_and_stops_on_request() -> None:
    told: list[Plan] = []
    asked = drawn("agentic", 15, 3, seed=5)
    began = perf_counter()
    plan = exact(asked, within(1.0, lambda: perf_counter() - began, better=told.append))
    assert told[-1].makespan_s == plan.makespan_s


def test_more_work_never_gives_a_longer_plan() -> None:
    asked = drawn("agentic", 24, 3, seed=5)
    spans = [exact(asked, SearchBudget(work_s=work_s)).makespan_s for work_s in (0.0, 0.05, 0.15, 0.5)]
    assert spans == sorted(spans, reverse=True)
    assert spans[-1] < spans[0]


def test_problems_too_large_for_exact_are_refused_in_one_sentence() -> None:
    with pytest.raises(WrongInput, match=f"exact plans at most {MOST_CALLS['exact']} calls, and this problem has 1,"):
        exact(drawn("chain", 1000, 4), SearchBudget())


def test_an_empty_problem_is_planned_at_once() -> None:
    assert exact(problem(("a", "A", 1.0, ""), requests=0), SearchBudget()).makespan_s == 0.0
