"""Each bound on a problem where it is tight."""

from dataclasses import replace

import numpy as np
import pytest

from gpuyard.plan.planner.bounds import bounds, lower_bound
from gpuyard.plan.planner.generate import FAMILIES
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import problem_of
from gpuyard.plan.planner.strategies import SearchBudget, strategy
from tests.unit.plan.planner.small_problems import drawn, instance, problem


def test_the_path_bound_contains_the_first_load_and_every_call_on_it() -> None:
    asked = problem(("a", "A", 5.0, ""), ("b", "B", 2.0, "a"), ("c", "B", 1.0, "a"), gpus=3)
    assert bounds(asked)["path"] == 3 + 5 + 2


def test_between_calls_that_must_share_a_gpu_the_model_is_switched() -> None:
    asked = problem(("a", "A2", 5.0, ""), ("b", "B2", 2.0, "a"), gpus=3)
    assert bounds(asked)["path"] == 3 + 5 + 4 + 2


def test_the_path_begins_when_its_request_arrives() -> None:
    said = instance(("a", "A", 5.0, ""), gpus=3)
    said.requests[0].arrival_s = 10.0
    assert bounds(problem_of(said))["path"] == 15.0


def test_the_area_bound_contains_a_load_for_every_needed_gpu() -> None:
    """40 s of work on two GPUs: one load each makes 23 s."""
    asked = problem(("a", "A", 5.0, ""), requests=8)
    assert bounds(asked)["area"] == pytest.approx(23.0)


def test_the_area_bound_contains_an_unload_for_every_load_but_the_last_of_a_gpu() -> None:
    """Three models on one GPU: three loads, and two unloads between them."""
    asked = problem(("a", "A", 5.0, ""), ("b", "B", 5.0, ""), ("c", "C", 5.0, ""), gpus=1)
    assert bounds(asked)["area"] == pytest.approx(15 + 3 * 3 + 2 * 1)


def test_calls_wider_than_half_of_the_gpus_run_one_after_another() -> None:
    asked = problem(("a", "A2", 5.0, ""), ("b", "B2", 5.0, ""), requests=2, gpus=3)
    assert bounds(asked)["one_gpu"] == 20 + 2 * 3 + 1


def test_gpus_left_over_by_groups_cannot_be_used() -> None:
    """Five GPUs hold two groups of two; the fifth is of no use."""
    asked = problem(("a", "A2", 10.0, ""), requests=4, gpus=5)
    assert bounds(asked)["wide"] == 3 + 40 / 2


def test_models_that_fit_on_few_gpus_have_only_these() -> None:
    said = instance(("a", "A", 10.0, ""), requests=4, gpus=4)
    for gpu in said.gpus[1:]:
        gpu.memory_gb = 10.0
    assert bounds(problem_of(said))["area"] == pytest.approx(43.0)


def test_work_that_can_only_begin_late_has_less_room() -> None:
    said = instance(("a", "A", 10.0, ""), requests=4)
    for request in said.requests:
        request.arrival_s = 100.0
    assert bounds(problem_of(said))["window"] == 120.0


def test_fast_gpus_do_more_work() -> None:
    said = instance(("a", "A", 10.0, ""), requests=4, gpus=1)
    said.gpus[0].speed = 2.0
    assert lower_bound(problem_of(said)).seconds == pytest.approx(23.0)


def test_an_empty_problem_takes_no_time() -> None:
    assert lower_bound(problem(("a", "A", 1.0, ""), requests=0)).seconds == 0.0


def test_a_gpu_busy_for_longer_than_the_plan_needs_no_load() -> None:
    """The call is done on the other GPU before the busy one is free: one load and the call."""
    asked = replace(problem(("a", "A", 0.5, "")), busy_until_s=np.array([0.0, 100.0]))
    assert bounds(asked)["area"] <= 3.5 + 1e-9
    assert lower_bound(asked).seconds == pytest.approx(3.5)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_plan_of_any_family_is_below_the_bound(family: str) -> None:
    asked: Problem
    for asked in (drawn(family, 60, 4, seed=5), drawn(family, 60, 9, seed=6, mixed=True)):
        shortest = min(strategy(name)(asked, SearchBudget()).makespan_s for name in ("batch", "dynamic"))
        assert 0 < lower_bound(asked).seconds <= shortest
