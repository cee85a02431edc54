"""The independent checker reports what is wrong with a plan, and nothing for a valid one."""

from dataclasses import replace

import numpy as np
import pytest

from gpuyard.plan.planner.checker import check
from gpuyard.plan.planner.instance import WrittenGpu, WrittenLevel
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem_file import problem_of
from tests.unit.plan.planner.small_problems import instance, plan, problem

TWO = (("a", "A", 5.0, ""), ("b", "B", 2.0, "a"))


def test_a_valid_plan_has_no_faults() -> None:
    assert check(problem(*TWO), plan((0, 3, 8), (1, 8, 10))) == []


def test_a_model_may_be_switched_while_its_call_still_waits() -> None:
    three = problem(("a", "A", 5.0, ""), ("b", "B", 2.0, ""), ("c", "A", 1.0, "a b"))
    assert check(three, plan((0, 3, 8), (1, 3, 5), (1, 9, 10))) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (plan((0, 2, 7), (1, 8, 10)), "r0/a starts at 2.000000 s on GPU 0, before it is free at 0.000000 s and 3.000000 s to change the model."),
        (plan((0, 3, 8), (1, 7, 9)), "r0/b starts at 7.000000 s, before r0/a has ended at 8.000000 s."),
        (plan((0, 3, 8), (0, 11, 13)), "r0/b starts at 11.000000 s on GPU 0, before r0/a ends at 8.000000 s and 4.000000 s to change the model."),
        (plan((0, 3, 9), (1, 9, 11)), "r0/a takes 5.000000 s there, but is planned for 6.000000 s."),
        (plan((0, 3, 8), (2, 8, 10)), "r0/b is planned on 1 GPUs beginning with number 2; there are 2."),
        (plan((0, 3, 8), (1, 8, float("nan"))), "r0/b runs from 8.0 to nan s."),
        (plan((0, 3, 8)), "The plan has 1 calls, the problem 2."),
    ],
)  # fmt: skip
def test_each_broken_rule_is_reported_in_one_sentence(wrong: Plan, said: str) -> None:
    assert check(problem(*TWO), wrong) == [said]


def test_a_gpu_runs_one_call_at_a_time() -> None:
    both = problem(("a", "A", 5.0, ""), ("b", "A", 2.0, ""))
    assert check(both, plan((0, 3, 8), (0, 4, 6))) == [
        "r0/b starts at 4.000000 s on GPU 0, before r0/a ends at 8.000000 s."
    ]


def test_every_gpu_of_a_group_must_be_free_and_loaded() -> None:
    wide = problem(("a", "A", 5.0, ""), ("b", "B2", 2.0, ""))
    assert check(wide, plan((1, 3, 8), (0, 12, 14))) == []
    assert len(check(wide, plan((1, 3, 8), (0, 11, 13)))) == 1
    assert "beginning with number 1" in check(wide, plan((0, 3, 8), (1, 12, 14)))[0]


def test_memory_counts_on_every_gpu_of_the_group() -> None:
    said = instance(("a", "A2", 5.0, ""))
    said.gpus[1].memory_gb = 24.0
    assert check(problem_of(said), plan((0, 3, 8))) == [
        "r0/a needs 25 GB on each GPU; GPU 0 or one next to it has 24 GB."
    ]


def test_a_group_is_as_fast_as_its_slowest_gpu() -> None:
    said = instance(("a", "A2", 6.0, ""))
    said.gpus[1].speed = 0.5
    assert check(problem_of(said), plan((0, 3, 15))) == []
    assert check(problem_of(said), plan((0, 3, 9))) == ["r0/a takes 12.000000 s there, but is planned for 6.000000 s."]


def test_a_call_takes_longer_at_a_lower_power_level_and_only_at_an_existing_one() -> None:
    said = instance(("a", "A", 6.0, ""), gpus=1)
    said.gpus = [WrittenGpu(0, levels=(WrittenLevel(1.0, 300), WrittenLevel(0.75, 200)))]
    at = [replace(plan((0, 3, end)), level=np.array([level], dtype=np.int32)) for end, level in ((11, 1), (9, 1), (9, 2))]  # fmt: skip
    assert check(problem_of(said), at[0]) == []
    assert check(problem_of(said), at[1]) == ["r0/a takes 8.000000 s there, but is planned for 6.000000 s."]
    assert check(problem_of(said), at[2]) == [
        "r0/a is planned at power level 2, which GPU 0 or one next to it does not have."
    ]


def test_no_call_begins_before_its_request_arrives() -> None:
    said = instance(("a", "A", 5.0, ""))
    said.requests[0].arrival_s = 4.0
    assert check(problem_of(said), plan((0, 4, 9))) == []
    assert check(problem_of(said), plan((0, 3, 8))) == [
        "r0/a starts at 3.000000 s, before its request arrives at 4.000000 s."
    ]


THREE = (("a", "A", 1.0, ""), ("b", "B", 1.0, "a"), ("c", "A", 1.0, "b"), ("d", "C", 1.0, "c"), ("e", "B", 1.0, "d"))


def test_if_memory_allows_it_a_gpu_keeps_its_models_and_evicts_the_least_recently_used() -> None:
    said = instance(*THREE, gpus=1, multi_model=True)
    said.gpus[0].memory_gb = 60.0
    # a loads, b loads beside it, c finds A there, d drops B (unused for longest), e drops A
    right = plan((0, 3, 4), (0, 7, 8), (0, 8, 9), (0, 13, 14), (0, 18, 19))
    assert check(problem_of(said), right) == []
    assert check(problem_of(said), plan((0, 3, 4), (0, 7, 8), (0, 8, 9), (0, 12, 13), (0, 18, 19))) == [
        "r0/d starts at 12.000000 s on GPU 0, before r0/c ends at 9.000000 s and 4.000000 s to change the model."
    ]
    assert len(check(problem_of(instance(*THREE, gpus=1)), right)) == 2


@pytest.mark.parametrize("many", [False, True])
def test_initially_loaded_models_and_busy_times_of_gpus_count(many: bool) -> None:
    said = instance(*TWO, gpus=1, multi_model=many)
    said.gpus[0].memory_gb = 40.0
    later = replace(problem_of(said), holding=np.array([0], dtype=np.int32), busy_until_s=np.array([6.0]))
    assert check(later, plan((0, 6, 11), (0, 15, 17))) == []
    other = replace(later, holding=np.array([1], dtype=np.int32))
    assert check(other, plan((0, 10, 15), (0, 19, 21))) == []
    assert check(other, plan((0, 9, 14), (0, 19, 21))) == [
        "r0/a starts at 9.000000 s on GPU 0, before it is free at 6.000000 s and 4.000000 s to change the model."
    ]


def test_the_first_few_faults_are_listed_and_the_others_counted() -> None:
    many = problem(("a", "A", 5.0, ""), requests=9, gpus=9)
    said = check(many, plan(*[(i, 0, 5) for i in range(9)]), at_most=2)
    assert len(said) == 3
    assert said[-1] == "And 7 more."
