"""GPUs that load their next model while they run calls, if their memory holds both."""

from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.plan.planner import solve
from gpuyard.plan.planner.bounds import bounds, lower_bound
from gpuyard.plan.planner.checker import check
from gpuyard.plan.planner.compiled.timing import order_of, timed
from gpuyard.plan.planner.generate import FAMILIES
from gpuyard.plan.planner.plan import copies, in_order, measure
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import problem_of, read_problem
from gpuyard.plan.planner.strategies import MOST_CALLS, STRATEGIES, SearchBudget, strategy
from tests.unit.plan.planner.small_problems import Node, drawn, instance, plan

THREE: list[Node] = [("a", "A", 10.0, ""), ("b", "B", 10.0, "a"), ("c", "C", 10.0, "b")]
"""Models of 25 GB, which take 3 s to load and 1 s to unload."""


def asked(*nodes: Node, gb: float = 60.0, gpus: int = 1, **more: bool) -> Problem:
    said = instance(*nodes, gpus=gpus, preload=True, **more)
    for gpu in said.gpus:
        gpu.memory_gb = gb
    return problem_of(said)


# --- the rule ---------------------------------------------------------------------------------------------------------


def test_a_load_beside_calls_costs_nothing_and_the_first_one_is_paid() -> None:
    problem = asked(*THREE)
    made = timed(problem, np.zeros(3, dtype=np.int32), np.arange(3, dtype=np.int32))
    assert made.start.tolist() == [3.0, 13.0, 23.0]
    assert check(problem, made) == []


def test_a_load_waits_until_the_model_before_the_current_one_is_unloaded() -> None:
    """B is ready after 6 s, and its call ends after 14 s. A goes from 13 s to 14 s, then C comes until 17 s."""
    problem = asked(("a", "A", 10.0, ""), ("b", "B", 1.0, "a"), ("c", "C", 10.0, "b"))
    made = timed(problem, np.zeros(3, dtype=np.int32), np.arange(3, dtype=np.int32))
    assert made.start.tolist() == [3.0, 13.0, 17.0]
    assert check(problem, made) == []
    assert check(problem, plan((0, 3, 13), (0, 13, 14), (0, 16.9, 26.9))) != []


def test_models_that_do_not_fit_side_by_side_are_changed_as_without_preloading() -> None:
    problem = asked(*THREE, gb=49.0)
    made = timed(problem, np.zeros(3, dtype=np.int32), np.arange(3, dtype=np.int32))
    assert made.start.tolist() == [3.0, 17.0, 31.0]
    assert (
        made.start.tolist() == timed(replace(problem, preload=False), made.gpu, order_of(problem, made)).start.tolist()
    )


def test_the_checker_refuses_a_load_beside_calls_without_the_memory_and_without_the_option() -> None:
    overlaps = plan((0, 3, 13), (0, 13, 23), (0, 23, 33))
    assert check(asked(*THREE, gb=50.0), overlaps) == []
    sentence = "r0/b starts at 13.000000 s on GPU 0, before r0/a ends at 13.000000 s"
    for problem in (asked(*THREE, gb=49.9), replace(asked(*THREE), preload=False)):
        faults = check(problem, overlaps)
        assert len(faults) == 2
        assert faults[0] == f"{sentence} and 4.000000 s to change the model."


def test_on_one_of_two_gpus_there_is_no_room_and_a_wide_call_waits_for_it() -> None:
    said = instance(("a", "A", 10.0, ""), ("b", "B", 10.0, ""), ("c", "C2", 5.0, "a b"), gpus=2, preload=True)
    said.gpus[0].memory_gb, said.gpus[1].memory_gb = 60.0, 40.0
    problem = problem_of(said)
    made = timed(problem, np.array([0, 1, 0], dtype=np.int32), np.arange(3, dtype=np.int32))
    assert made.start.tolist() == [3.0, 3.0, 17.0]


def test_with_several_residents_a_load_evicts_others_beside_calls_but_not_the_current_model() -> None:
    """60 GB hold two of the models. C evicts A while B runs; then A evicts B while C runs."""
    problem = asked(
        ("a", "A", 10.0, ""), ("b", "B", 10.0, "a"), ("c", "C", 10.0, "b"), ("d", "A", 5.0, "c"), multi_model=True
    )
    made = timed(problem, np.zeros(4, dtype=np.int32), np.arange(4, dtype=np.int32))
    assert made.start.tolist() == [3.0, 13.0, 23.0, 33.0]
    assert check(problem, made) == []


# --- figures ----------------------------------------------------------------------------------------------------------


def test_hidden_and_exposed_switch_time_are_reported() -> None:
    problem = asked(*THREE)
    it = measure(problem, plan((0, 3, 13), (0, 13, 23), (0, 23, 33)))
    assert (it.switches, it.switch_time_s, it.hidden_switch_s, it.exposed_switch_s) == (2, 11.0, 8.0, 3.0)
    assert measure(replace(problem, preload=False), plan((0, 3, 13), (0, 17, 27), (0, 31, 41))).hidden_switch_s is None


def test_a_load_that_takes_longer_than_the_call_beside_it_is_hidden_in_part() -> None:
    problem = asked(("a", "A", 2.0, ""), ("b", "B", 10.0, "a"))
    it = measure(problem, plan((0, 3, 5), (0, 6, 16)))
    assert (it.switch_time_s, it.hidden_switch_s) == (3 + 3 + 1, 2 + 1)


def test_without_the_option_figures_have_no_hidden_time() -> None:
    problem = drawn("chain", 30, 2)
    assert "hidden_switch_s" not in solve(problem, strategy="dynamic").figures()
    assert "hidden_switch_s" in solve(replace(problem, preload=True), strategy="dynamic").figures()


@pytest.mark.parametrize("many", [False, True])
def test_the_loads_of_a_plan_never_need_more_memory_than_there_is(many: bool) -> None:
    """By the loads and unloads as they are drawn, summed up over time on every GPU."""
    problem = replace(drawn("agentic", 200, 4, seed=2, mixed=True), preload=True, multi_model=many)
    made = strategy("heft_affinity")(problem, SearchBudget(rounds=3))
    for g, lane in enumerate(in_order(problem, made)):
        done = copies(problem, g, lane, made)
        assert all(one.end <= other.begin + 1e-9 for one, other in pairwise(done))
        for one in done:
            if one.loads:
                assert one.end <= made.start[one.call] + 1e-9


# --- strategies -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("many", [False, True])
def test_every_strategy_keeps_the_rules_and_is_not_below_the_bound(name: str, family: str, many: bool) -> None:
    calls, gpus = (6, 3) if name == "exact" else (100, 8)
    problem = replace(drawn(family, calls, gpus, seed=6, mixed=True, pcie_gb_s=5.0), preload=True, multi_model=many)
    if name == "exact" and len(problem.calls) > MOST_CALLS["exact"]:
        pytest.skip("too large for exact")
    made = strategy(name)(problem, SearchBudget(rounds=2))
    assert check(problem, made) == []
    assert made.makespan_s >= lower_bound(problem).seconds - 1e-6


@pytest.mark.parametrize("name", ["batch", "dynamic", "heft_affinity"])
@pytest.mark.parametrize("family", FAMILIES)
def test_plans_of_deterministic_strategies_are_never_longer_with_preloading(name: str, family: str) -> None:
    for seed, mixed, pcie in ((1, False, 25.0), (2, True, 2.0)):
        problem = drawn(family, 80, 5, seed=seed, mixed=mixed, pcie_gb_s=pcie)
        without, with_it = (
            strategy(name)(one, SearchBudget()).makespan_s for one in (problem, replace(problem, preload=True))
        )
        assert with_it <= without + 1e-9


def test_the_list_scheduler_chooses_by_what_a_switch_really_costs() -> None:
    """With free switches GPUs follow the chains, and there are more of them than any plan without would make."""
    problem = drawn("tight_chain", 200, 3, seed=3)
    without, with_it = (
        measure(one, strategy("heft_affinity")(one, SearchBudget()))
        for one in (problem, replace(problem, preload=True))
    )
    assert with_it.makespan_s < 0.95 * without.makespan_s
    assert with_it.exposed_switch_s < 0.5 * without.exposed_switch_s


def test_search_and_auto_are_shorter_than_heft_affinity_timed_with_the_rule() -> None:
    problem = replace(drawn("agentic", 150, 3, seed=4), preload=True)
    first = strategy("heft_affinity")(problem, SearchBudget())
    for name in ("search", "auto"):
        found = strategy(name)(problem, SearchBudget(rounds=150))
        assert check(problem, found) == []
        assert found.makespan_s < first.makespan_s


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_loads_that_can_overlap_are_not_in_the_bounds_but_the_first_is() -> None:
    assert bounds(asked(*THREE))["one_gpu"] == 3 + 30
    assert bounds(asked(*THREE))["path"] == 3 + 30


def test_models_that_fit_beside_none_are_in_the_bounds_as_before() -> None:
    problem = asked(*THREE, gb=40.0)
    assert bounds(problem) == bounds(replace(problem, preload=False))


def test_the_copy_engine_bounds_a_plan_of_many_loads_and_short_calls() -> None:
    """Four loads of 3 s one after another, and a call of 0.1 s after the last."""
    nodes: list[Node] = [(name, name.upper(), 0.1, "") for name in "abcd"]
    assert lower_bound(asked(*nodes)).seconds >= 4 * 3 + 0.1 - 1e-9
    assert strategy("exact")(asked(*nodes), SearchBudget(rounds=50)).makespan_s >= lower_bound(asked(*nodes)).seconds


# --- files ------------------------------------------------------------------------------------------------------------

WORKFLOW = """
preload: true
models: {a: {memory_gb: 10}}
workflows: {w: {nodes: [{id: n, model: a, exec_time: 1}]}}
requests: [{id: r, workflow: w}]
gpus: %s
"""


def test_both_file_formats_state_preload() -> None:
    assert read_problem((WORKFLOW % "{count: 2, memory_gb: 80}").encode()).preload
    said = instance(*THREE, preload=True)
    for gpu in said.gpus:
        gpu.memory_gb = 60.0
    assert read_problem(msgspec.json.encode(said)).preload
    assert not read_problem(msgspec.json.encode(instance(*THREE))).preload


def test_preload_without_the_memory_of_a_gpu_is_refused() -> None:
    with pytest.raises(WrongInput, match=r"gpus\[0\]: this GPU has no memory_gb, and preload needs it"):
        read_problem((WORKFLOW % "2").encode())
    with pytest.raises(WrongInput, match="preload"):
        read_problem((WORKFLOW % "{count: 2, memory_gb: 80}").replace("true", "maybe").encode())
