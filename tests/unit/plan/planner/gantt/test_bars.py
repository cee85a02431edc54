from dataclasses import replace
from itertools import pairwise

import numpy as np

from gpuyard.plan.planner.gantt.bars import Step, bars, chart, path
from gpuyard.plan.planner.plan import Loads
from tests.unit.plan.planner.gantt.plans import back_to_back, plan, two_step_problem


def test_every_call_is_a_bar_and_its_model_is_loaded_as_soon_as_the_gpu_is_free() -> None:
    problem = two_step_problem(1)
    seen = bars(problem, plan((0, 1, 5), (0, 9, 15)))
    assert list(zip(seen.begin, seen.end, seen.model, seen.switch, strict=True)) == [
        (0, 1, 0, True), (1, 5, 0, False), (5, 8, 1, True), (9, 15, 1, False),
    ]  # fmt: skip


def test_a_load_beside_calls_is_a_bar_from_the_earliest_time_or_as_it_was_measured() -> None:
    problem = replace(two_step_problem(1), preload=True)
    made = plan((0, 1, 5), (0, 5, 11))
    seen = bars(problem, made)
    assert sorted(zip(seen.begin, seen.end, seen.model, seen.switch, strict=True)) == [
        (0, 1, 0, True), (1, 3, 1, True), (1, 5, 0, False), (5, 11, 1, False),
    ]  # fmt: skip
    measured = Loads(np.array([0, 1]), np.array([0, 0]), np.array([0.0, 2.0]), np.array([1.0, 4.5]))
    seen = bars(problem, replace(made, loads=measured))
    assert sorted(zip(seen.begin, seen.end, seen.model, seen.switch, strict=True)) == [
        (0, 1, 0, True), (1, 5, 0, False), (2, 4.5, 1, True), (5, 11, 1, False),
    ]  # fmt: skip


def test_the_critical_path_goes_through_a_load_that_took_longer_than_the_calls_beside_it() -> None:
    problem = replace(two_step_problem(1), preload=True)
    problem = replace(problem, models=(problem.models[0], replace(problem.models[1], load_s=20.0)))
    assert path(problem, plan((0, 1, 5), (0, 21, 27))) == (Step(0, 0.0, 27.0),)


def test_a_wide_call_is_shown_on_each_of_its_gpus() -> None:
    problem = two_step_problem(1, gpus=3, wide=True)
    seen = bars(problem, plan((0, 1, 5), (1, 5, 11)))
    assert sorted(seen.gpu[~seen.switch].tolist()) == [0, 1, 2]
    assert sorted(seen.gpu[seen.switch].tolist()) == [0, 1, 2]


def test_many_calls_are_drawn_as_sessions_of_the_same_total_length() -> None:
    problem = two_step_problem(500, gpus=2)
    sorted_by_model = plan(
        *(call for i in range(500) for call in ((0, 1 + 4 * i, 5 + 4 * i), (1, 5 + 6 * i, 11 + 6 * i)))
    )
    every, few = bars(problem, sorted_by_model), bars(problem, sorted_by_model, most=50)
    assert len(every) == 1002
    assert few.calls.tolist() == [0, 500, 0, 500]
    assert (few.end - few.begin).sum() == (every.end - every.begin).sum()


def test_if_even_sessions_are_too_many_those_of_one_interval_are_one_bar() -> None:
    problem = two_step_problem(2000, gpus=2)
    few = bars(problem, back_to_back(problem), most=300)
    assert len(few) <= 300
    assert few.calls.sum() == 4000
    assert (few.gpu[1:] >= few.gpu[:-1]).all()


def test_the_critical_path_runs_from_the_beginning_to_the_last_end_without_gaps() -> None:
    problem = two_step_problem(6)
    whole = back_to_back(problem)
    steps = path(problem, whole)
    assert (steps[0].begin, steps[-1].end) == (0.0, whole.makespan_s)
    assert all(earlier.end == later.begin for earlier, later in pairwise(steps))


def test_the_critical_path_changes_to_the_gpu_that_was_waited_for() -> None:
    problem = two_step_problem(1)
    assert path(problem, plan((0, 1, 5), (1, 5, 11))) == (Step(0, 0.0, 5.0), Step(1, 5.0, 11.0))


def test_the_critical_path_begins_with_the_arrival_of_a_request_if_that_was_waited_for() -> None:
    problem = two_step_problem(1)
    problem.calls.earliest_s[:] = 30.0
    assert path(problem, plan((0, 30, 34), (1, 34, 40))) == (Step(0, 30.0, 34.0), Step(1, 34.0, 40.0))


def test_a_title_states_the_quality_of_the_plan() -> None:
    problem = two_step_problem(1)
    seen = chart(problem, [("by hand", plan((0, 1, 5), (0, 8, 14)))], lower_bound_s=10.0)
    assert seen.title(seen.panels[0]) == (
        "by hand: 14.0 s (40.0% above the bound), 1 switches, GPUs at work 36% (spread 71%)"
    )


def test_power_levels_are_distinguished() -> None:
    problem = two_step_problem(2)
    slow = plan((0, 1, 5), (1, 9, 15), (0, 5, 9), (1, 15, 21))
    with_levels = type(slow)(slow.gpu, slow.start, slow.end, np.array([0, 0, 1, 0], dtype=np.int32))
    seen = bars(problem, with_levels, most=5)
    assert seen.level[~seen.switch].tolist() == [0, 1, 0]


def test_the_critical_path_waits_on_the_gpu_of_the_call_if_a_model_was_loaded_late() -> None:
    """Who only loads when the call could begin: write could begin at 5 s and begins at 7 s."""
    problem = two_step_problem(1)
    assert path(problem, plan((0, 1, 5), (1, 7, 13))) == (Step(0, 0.0, 5.0), Step(1, 5.0, 13.0))
