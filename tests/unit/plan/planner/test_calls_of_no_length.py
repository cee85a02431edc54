"""Calls of no length: several start at the same instant on one GPU, and plan, check and measures agree on their order."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gpuyard.plan.planner.checker import check
from gpuyard.plan.planner.compiled.timing import order_of, timed
from gpuyard.plan.planner.instance import (
    FORMAT,
    Instance,
    WrittenGpu,
    WrittenModel,
    WrittenNode,
    WrittenRequest,
    WrittenWorkflow,
)
from gpuyard.plan.planner.plan import in_order, measure
from gpuyard.plan.planner.plan_file import read_plan, write_plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import problem_of
from gpuyard.plan.planner.strategies import SearchBudget, strategy
from tests.unit.plan.planner.small_problems import Node, instance, plan


def workflow(*nodes: Node) -> WrittenWorkflow:
    return WrittenWorkflow(tuple(WrittenNode(n, m, s, tuple(b.split())) for n, m, s, b in nodes))


def two_at_the_end() -> Problem:
    """The last calls of A and B take no time, so both can run when the last long call ends: A's first."""
    return problem_of(
        Instance(
            FORMAT,
            {
                "A": WrittenModel(5.0),
                "B": WrittenModel(5.0, load_time_s=3.0),
                "C": WrittenModel(0.5),
            },
            [WrittenGpu("g0", memory_gb=40.0)],
            {
                "v": workflow(("a", "B", 0.1, ""), ("b", "B", 1.0, "a"), ("c", "A", 0.0, "a b")),
                "w": workflow(("a", "C", 2.0, ""), ("b", "B", 0.0, "a"), ("c", "C", 5.0, "a")),
            },
            [WrittenRequest("r0", "v"), WrittenRequest("r1", "w", priority=90)],
            "two_at_the_end",
            switch_overhead_s=0.5,
            preload=True,
        )
    )


def beside_a_slow_gpu() -> Problem:
    return problem_of(
        Instance(
            FORMAT,
            {
                "A": WrittenModel(0.5, load_time_s=0.5),
                "B": WrittenModel(20.0, load_time_s=3.0),
                "C": WrittenModel(5.0),
            },
            [WrittenGpu("g0", memory_gb=20.0, speed=1.0), WrittenGpu("g1", memory_gb=20.0, speed=0.5)],
            {
                "v": workflow(("a", "A", 5.0, ""), ("b", "C", 5.0, ""), ("c", "C", 1.0, "")),
                "w": workflow(("a", "B", 0.0, ""), ("b", "C", 0.0, "")),
            },
            [WrittenRequest("r0", "v", arrival_s=1.0), WrittenRequest("r1", "w", arrival_s=1.0)],
            "beside_a_slow_gpu",
            pcie_gb_s=5.0,
            preload=True,
        )
    )


def slow_copies() -> Problem:
    return problem_of(
        Instance(
            FORMAT,
            {
                "B": WrittenModel(20.0, load_time_s=3.0),
                "C": WrittenModel(10.0, load_time_s=0.5),
                "D": WrittenModel(40.0),
            },
            [WrittenGpu("g0", memory_gb=40.0)],
            {
                "u": workflow(("a", "B", 1.0, ""), ("b", "C", 0.0, ""), ("c", "B", 1.0, "a")),
                "v": workflow(("a", "D", 2.0, "")),
                "w": workflow(("a", "D", 0.0, "")),
            },
            [
                WrittenRequest("r0", "u", arrival_s=9.0, priority=90),
                WrittenRequest("r1", "v", priority=1),
                WrittenRequest("r2", "w"),
            ],
            "slow_copies",
            pcie_gb_s=1.0,
            switch_overhead_s=0.0,
            preload=True,
        )
    )


PROBLEMS = [two_at_the_end, beside_a_slow_gpu, slow_copies]


@pytest.mark.parametrize(
    ("name", "many"),
    [
        *((name, False) for name in ("batch", "dynamic", "heft_affinity", "search", "auto", "exact")),
        *((name, True) for name in ("batch", "dynamic", "heft_affinity")),
    ],
)
@pytest.mark.parametrize("made", PROBLEMS)
def test_every_strategy_keeps_the_rules(name: str, made: Callable[[], Problem], many: bool) -> None:
    problem = replace(made(), multi_model=many)
    found = strategy(name)(problem, SearchBudget(rounds=10))
    assert check(problem, found) == []
    again = read_plan(write_plan(problem, found, name), problem)
    assert check(problem, again.plan) == []


@pytest.mark.parametrize("name", ["batch", "dynamic", "heft_affinity"])
@pytest.mark.parametrize("made", PROBLEMS)
def test_plans_of_deterministic_strategies_are_never_longer_with_preloading(
    name: str, made: Callable[[], Problem]
) -> None:
    problem = made()
    without, with_it = (
        strategy(name)(one, SearchBudget()).makespan_s for one in (replace(problem, preload=False), problem)
    )
    assert with_it <= without + 1e-9


def test_the_starts_of_a_plan_state_its_order_within_an_instant() -> None:
    """Call 2 uses the model on the GPU, call 1 the one that was loaded beside: 2 runs first, although 1 is numbered so."""
    said = instance(("a", "A", 10.0, ""), ("b", "B", 0.0, "a"), ("c", "A", 0.0, "a"), gpus=1, preload=True)
    said.gpus[0].memory_gb = 60.0
    problem = problem_of(said)
    order = np.array([0, 2, 1], dtype=np.int32)
    made = timed(problem, np.zeros(3, dtype=np.int32), order)
    assert made.start == pytest.approx([3.0, 13.0, 13.0], abs=1e-9)
    assert order_of(problem, made).tolist() == in_order(problem, made)[0].tolist() == order.tolist()
    assert timed(problem, made.gpu, order_of(problem, made)).start.tolist() == made.start.tolist()
    assert check(problem, made) == []
    assert measure(problem, made).switches == 1


def test_a_call_of_no_length_comes_before_a_longer_one_that_starts_with_it() -> None:
    said = instance(("a", "A", 10.0, ""), ("b", "A", 0.0, ""), ("c", "B", 1.0, "b"), gpus=1)
    problem = problem_of(said)
    made = plan((0, 3, 13), (0, 3, 3), (0, 17, 18))
    assert check(problem, made) == []
    assert order_of(problem, made).tolist() == in_order(problem, made)[0].tolist() == [1, 0, 2]


def test_a_model_larger_than_its_gpu_is_a_broken_rule_with_preloading_too() -> None:
    said = instance(("a", "A", 5.0, ""), ("b", "B", 5.0, ""), gpus=1, preload=True)
    said.gpus[0].memory_gb = 60.0
    problem = problem_of(said)
    small = replace(problem, gpus=tuple(replace(gpu, memory_gb=20.0) for gpu in problem.gpus))
    for held in (None, np.zeros(1, dtype=np.int32)):
        faults = check(replace(small, holding=held), plan((0, 3, 8), (0, 12, 17)))
        assert faults == [
            "r0/a needs 25 GB on each GPU; GPU 0 or one next to it has 20 GB.",
            "r0/b needs 25 GB on each GPU; GPU 0 or one next to it has 20 GB.",
        ]


@pytest.mark.parametrize("name", ["search", "auto", "heft_affinity"])
def test_a_problem_in_which_nothing_takes_time_has_a_plan_of_no_length(name: str) -> None:
    made = problem_of(
        Instance(
            FORMAT,
            {"A": WrittenModel(5.0, load_time_s=0.0)},
            [WrittenGpu("g0", memory_gb=40.0), WrittenGpu("g1", memory_gb=40.0)],
            {"v": workflow(("a", "A", 0.0, ""))},
            [WrittenRequest("r0", "v"), WrittenRequest("r1", "v")],
            "nothing_takes_time",
            switch_overhead_s=0.0,
        )
    )
    found = strategy(name)(made, SearchBudget(1, 400))
    assert (found.makespan_s, check(made, found)) == (0.0, [])
