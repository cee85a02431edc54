"""The Pareto front: its members, the choice, and the evolutionary search."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.plan.planner.checker import check
from gpuyard.plan.planner.front import MOST_POINTS, Front, Point, front, front_figure, point, weights_at, write_front
from gpuyard.plan.planner.generate import generate
from gpuyard.plan.planner.plan import Measures, Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import problem_of
from gpuyard.plan.planner.strategies import MOST_CALLS, STRATEGIES, SearchBudget, strategy
from gpuyard.plan.planner.strategies.pareto import PARENTS, pareto, pareto_front
from tests.unit.plan.planner.small_problems import drawn, plan, problem

FEW = SearchBudget(seed=3, rounds=4)


def worth(makespan: float, spread: float, switches: int, energy: float | None = None) -> Point:
    """A point whose plan does not matter; a switch takes 4 s."""
    return Point(plan((0, 0, makespan)), Measures(makespan, switches, 4.0 * switches, 0.5, spread), energy)


def objectives(found: Front) -> list[tuple[float, ...]]:
    return [one.objectives for one in found.points]


def test_dominated_plans_are_not_on_the_front() -> None:
    asked = problem(("a", "A", 1.0, ""))
    found = front(asked, [worth(10, 0.1, 9), worth(11, 0.1, 9), worth(12, 0.2, 3), worth(10, 0.1, 9)])
    assert objectives(found) == [(10, 0.1, 9), (12, 0.2, 3)]


def test_a_large_front_is_thinned_to_distant_plans_and_the_best_of_each_objective() -> None:
    many = [worth(100 + i, 0.5 - i / 1000, 500 - i) for i in range(200)]
    found = front(problem(("a", "A", 1.0, "")), many)
    assert len(found.points) == MOST_POINTS
    assert found.points[0].measures.makespan_s == 100
    assert found.points[-1].measures.switches == 301


def test_weights_follow_the_idle_rate() -> None:
    busy, idle = weights_at(0.0, energy_known=True), weights_at(1.0, energy_known=True)
    assert (busy.makespan, busy.switches, busy.balance, busy.energy) == (1.0, 0.0, 0.0, 0.0)
    assert (idle.makespan, idle.switches, idle.balance, idle.energy) == (0.25, 0.25, 0.25, 0.25)
    unknown = weights_at(0.5, energy_known=False)
    assert unknown.makespan + unknown.switches + unknown.balance == 1.0


def test_with_busy_gpus_the_shortest_plan_is_chosen_and_with_idle_ones_the_most_economical() -> None:
    asked = problem(("a", "A", 1.0, ""), gpus=2)
    points = [worth(100, 0.3, 20), worth(101, 0.2, 12), worth(104, 0.1, 2)]
    chosen = [front(asked, list(points), idle_rate=rate).chosen for rate in (0.0, 0.5, 1.0)]
    assert chosen == [0, 1, 2]


def test_an_objective_in_which_all_plans_are_equal_does_not_count() -> None:
    asked = problem(("a", "A", 1.0, ""), gpus=2)
    points = [worth(100, 0.1, 20, 5.0), worth(102, 0.1, 2, 5.0)]
    assert front(asked, list(points), idle_rate=1.0).chosen in {0, 1}
    assert front(asked, list(points), idle_rate=0.9).chosen == 0


def test_the_idle_rate_is_that_of_the_shortest_plan() -> None:
    """Two GPUs for 10 s: 5 s of calls and 3 s of loading of 20 s."""
    asked = problem(("a", "A", 5.0, ""), gpus=2)
    found = front(asked, [point(asked, plan((0, 5, 10)), None)])
    assert found.idle_rate == pytest.approx(1 - 5 / 20 - 3 / 20)


@pytest.mark.parametrize("family", ["agentic", "multi_gpu", "switch_heavy"])
def test_every_plan_of_a_front_is_valid_and_no_initial_strategy_is_shorter(family: str) -> None:
    asked = drawn(family, 120, 8, seed=2, mixed=True)
    found = pareto_front(asked, FEW)
    assert all(check(asked, one.plan) == [] for one in found.points)
    others = [strategy(name)(asked, FEW) for name in PARENTS if name in STRATEGIES]
    assert found.points[0].measures.makespan_s <= min(other.makespan_s for other in others)
    assert all(not a.beats(b) for a in found.points for b in found.points if a is not b)


@pytest.mark.parametrize("multi_model", [False, True])
def test_power_levels_residents_arrivals_and_slow_gpus_are_kept(multi_model: bool) -> None:
    said = generate("chain", 60, 4, seed=1, levels=True)
    said.requests[3].arrival_s = 50.0
    said.gpus[1].speed = 0.5
    asked = replace(problem_of(said), multi_model=multi_model)
    found = pareto_front(asked, FEW)
    assert all(check(asked, one.plan) == [] for one in found.points)
    assert len(found.points[0].objectives) == 4
    assert any(one.plan.level is not None and one.plan.level.any() for one in found.points)


def test_the_same_seed_and_rounds_give_the_same_front() -> None:
    asked = drawn("agentic", 80, 4, seed=9)
    fronts = [objectives(pareto_front(asked, SearchBudget(seed=seed, rounds=5))) for seed in (1, 1, 2)]
    assert fronts[0] == fronts[1]
    assert fronts[0] != fronts[2]


@pytest.mark.slow
def test_evolution_finds_plans_that_no_strategy_began_with() -> None:
    asked = drawn("switch_heavy", 80, 4, seed=9)
    little, more = (pareto_front(asked, SearchBudget(rounds=rounds)) for rounds in (1, 40))
    assert more.points[0].measures.makespan_s < little.points[0].measures.makespan_s


def test_pareto_is_a_strategy_that_reports_better_plans_and_returns_the_chosen_one() -> None:
    asked = drawn("chain", 60, 3, seed=4)
    told: list[Plan] = []
    chosen = pareto(asked, replace(FEW, better=told.append))
    found = pareto_front(asked, FEW)
    assert np.array_equal(chosen.start, found.points[found.chosen].plan.start)
    assert [one.makespan_s for one in told] == sorted((one.makespan_s for one in told), reverse=True)


def test_even_without_time_there_is_a_front() -> None:
    asked = drawn("chain", 60, 3, seed=4)
    assert pareto_front(asked, SearchBudget(keep_going=lambda: False)).points


def test_an_empty_problem_has_one_empty_plan() -> None:
    none: Problem = problem(("a", "A", 1.0, ""), requests=0)
    assert pareto(none, FEW).makespan_s == 0.0


def test_a_front_is_written_with_its_weights_and_drawn_with_the_choice() -> None:
    asked = problem(("a", "A", 1.0, ""))
    found = front(asked, [worth(10, 0.1, 9, 2.0), worth(12, 0.2, 3, 1.0)], idle_rate=0.5)
    said = msgspec.json.decode(write_front(asked, found, "pareto"))
    assert said["format"] == "planner-front/1"
    assert said["points"][said["chosen"]]["switches"] == 9
    assert sum(said["weights"].values()) == 1.0
    drawing = front_figure(asked, found, lower_bound_s=9.0)
    assert [axes.get_ylabel() for axes in drawing.axes] == ["GPUs: busiest - idlest (%)", "switches", "energy (kWh)"]


@pytest.mark.slow
def test_problems_too_large_for_the_pareto_search_are_refused_in_one_sentence() -> None:
    with pytest.raises(WrongInput, match="pareto plans at most 100,000 calls"):
        pareto(drawn("chain", MOST_CALLS["pareto"] + 1, 8), FEW)
