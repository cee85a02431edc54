"""The searches: every plan on the way keeps the rules, the same seed gives the same plan, and auto is never the worse choice."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from gpuyard.plan.planner.checker import check
from gpuyard.plan.planner.compiled import moves, session_search, session_sim
from gpuyard.plan.planner.compiled.decoding import ListSettings
from gpuyard.plan.planner.compiled.draws import below, draw, source_of, threshold_draw
from gpuyard.plan.planner.compiled.list_scheduler import ListScheduler
from gpuyard.plan.planner.compiled.plan_buffer import END, GPU, START, make_buffer
from gpuyard.plan.planner.compiled.timing import order_of, seconds_on, timed
from gpuyard.plan.planner.generate import FAMILIES
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import problem_of
from gpuyard.plan.planner.strategies import SearchBudget, strategy, within
from gpuyard.plan.planner.strategies.dynamic import dynamic
from gpuyard.plan.planner.strategies.search import (
    CHOICES,
    MOVES,
    SESSIONS,
    _Best,
    _Effort,
    _Episodes,
    _take_turns,
    improved,
    objective,
    search,
    work_of_a_list,
)
from tests.unit.plan.planner.problem_stories import ints
from tests.unit.plan.planner.small_problems import drawn, instance, problem

NO_TIME = SearchBudget(keep_going=lambda: False)


def demanding() -> Problem:
    """Two speeds, two sizes, wide models, requests that come later, GPUs that hold models and are busy at first."""
    asked = drawn("agentic", 150, 6, seed=5, mixed=True)
    gpus = tuple(replace(g, speed=0.5 if i % 2 else 1.0) for i, g in enumerate(asked.gpus))
    earliest = (asked.calls.request % 3).astype(np.float64) * 20.0
    return replace(
        asked,
        gpus=gpus,
        calls=replace(asked.calls, earliest_s=earliest),
        holding=np.array([0, 1, -1, -1, -1, 2], dtype=np.int32),
        busy_until_s=np.array([0.0, 9.0, 0.0, 3.0, 0.0, 0.0]),
    )


# --- moves -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        drawn("multi_gpu", 120, 9, seed=3),
        drawn("tiny", 200, 3),
        drawn("switch_heavy", 60, 9),
        demanding(),
        replace(drawn("multi_gpu", 120, 9, seed=3), preload=True),
        replace(drawn("tiny", 200, 3), preload=True),
        replace(demanding(), preload=True),
    ],
)
def test_incremental_timing_equals_full_timing(asked: Problem) -> None:
    plan = dynamic(asked, SearchBudget())
    buffer = make_buffer(asked, plan.gpu, order_of(asked, plan), source_of(7))
    moves.begin(buffer)
    buffer.figures[moves.TEMPERATURE] = 0.01
    for _ in range(30):
        moves.improve(buffer, 50, MOVES)
        gpu = buffer.whole[: len(asked.calls), GPU].copy()
        assert np.array_equal(np.sort(buffer.order), np.arange(len(asked.calls)))
        again = make_buffer(asked, gpu, buffer.order, source_of(7))
        assert np.array_equal(timed(asked, gpu, buffer.order).start, buffer.real[:, START])
        assert np.array_equal(again.real[:, END], buffer.real[:, END])
        assert np.array_equal(again.links, buffer.links)
        assert np.array_equal(again.ends, buffer.ends)
    assert buffer.counts[moves.TAKEN] > 100
    assert buffer.counts[moves.CUT] > 0
    assert buffer.counts[moves.TRIED] > buffer.counts[moves.TAKEN] + buffer.counts[moves.CUT]


def test_the_best_plan_of_the_moves_is_kept() -> None:
    asked = drawn("switch_heavy", 200, 3)
    plan = dynamic(asked, SearchBudget())
    buffer = make_buffer(asked, plan.gpu, order_of(asked, plan), source_of(0))
    moves.begin(buffer)
    moves.improve(buffer, 3000, MOVES)
    best = timed(asked, buffer.best_gpu, buffer.best_order)
    assert best.makespan_s == buffer.figures[moves.BEST] < 0.9 * plan.makespan_s


# --- sessions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        drawn("multi_gpu", 120, 9, seed=3),
        drawn("tight_chain", 150, 3),
        demanding(),
        replace(drawn("tight_chain", 150, 3), preload=True),
        replace(demanding(), preload=True),
    ],
)
def test_any_list_of_sessions_is_a_plan(asked: Problem) -> None:
    plan = dynamic(asked, SearchBudget())
    order = order_of(asked, plan)
    sim = session_sim.allocate_sim(
        asked, ListScheduler(asked).rank(1.0), 2 * session_search.count_of(asked, plan.gpu, order) + 99
    )
    listed = session_sim.allocate_sessions(sim)
    count = session_search.sessions_from_plan(sim, order, plan.gpu, listed)
    tie_break = np.zeros(int(sim.kind.max()) + 2)
    figures = np.array([plan.makespan_s, np.inf, np.inf, 1e9, 0.0])
    source = source_of(1)
    for _ in range(60):  # so warm that everything is accepted
        count = session_search.rearrange(
            sim, listed, session_sim.allocate_sessions(sim), count, len(listed) - 50, tie_break, 10.0, 1, SESSIONS, figures,
            np.zeros(len(asked.calls)), np.zeros(len(asked.calls), dtype=np.int32), source,
        )  # fmt: skip
        played = Plan(sim.gpu.copy(), sim.start.copy(), sim.start + seconds_on(asked, sim.gpu))
        assert check(asked, played) == []


def test_a_list_without_sessions_is_a_plan_too() -> None:
    asked = drawn("agentic", 60, 4)
    sim = session_sim.allocate_sim(asked, np.zeros(len(asked.calls)), 200)
    span = session_sim.simulate_sessions(sim, session_sim.allocate_sessions(sim), 0, np.zeros(int(sim.kind.max()) + 2))
    played = Plan(sim.gpu, sim.start, sim.start + seconds_on(asked, sim.gpu))
    assert (check(asked, played), played.makespan_s) == ([], span)


@pytest.mark.parametrize("asked", [drawn("multi_gpu", 120, 9, seed=3), drawn("tiny", 200, 3), demanding()])
def test_a_simulation_ends_once_its_gpus_have_waited_too_long(asked: Problem) -> None:
    sim = session_sim.allocate_sim(asked, ListScheduler(asked).rank(1.0), 200)
    tie_break = np.zeros(int(sim.kind.max()) + 2)

    def simulated(most_idle: float) -> float:
        return session_sim.simulate_sessions(sim, session_sim.allocate_sessions(sim), 0, tie_break, most_idle)

    span = simulated(np.inf)
    busy = seconds_on(asked, sim.gpu) * asked.width[asked.calls.model]
    idle = float(sim.free.sum() - asked.free_first.sum() - busy.sum())
    assert idle > 0.0
    assert simulated(idle * (1 + 1e-9)) == span
    assert sim.line[:, session_sim.UNSTARTED].sum() == 0
    assert simulated(idle / 2) == np.inf
    assert 0 < sim.line[:, session_sim.UNSTARTED].sum() < len(asked.calls)


def test_lists_that_are_not_simulated_to_the_end_could_not_be_accepted() -> None:
    asked = drawn("tiny", 200, 3)
    plan = search(asked, SearchBudget(rounds=40))
    sim = session_sim.allocate_sim(asked, ListScheduler(asked).rank(1.0), 300)
    listed, trial = session_sim.allocate_sessions(sim), session_sim.allocate_sessions(sim)
    count = session_search.sessions_from_plan(sim, order_of(asked, plan), plan.gpu, listed)
    tie_break = np.zeros(int(sim.kind.max()) + 2)
    figures = session_search.first_figures(sim, listed, count, tie_break, plan.makespan_s)
    best, rounds = (np.zeros(len(asked.calls)), np.zeros(len(asked.calls), dtype=np.int32)), 300
    session_search.rearrange(sim, listed, trial, count, 250, tie_break, 10.0, rounds, SESSIONS, figures, *best, source_of(1))  # fmt: skip
    assert figures[session_search.SIMULATED] < 0.95 * rounds * len(asked.calls)
    source, scale = source_of(2), plan.makespan_s
    for _ in range(100):
        ends = np.array([scale * below(source, 1000) / 800.0 for _ in range(1 + below(source, 9))])
        value = session_search._value(ends, scale)
        assert session_search._mean_end(value, scale) >= ends.mean()


def test_the_choices_are_those_of_the_settings() -> None:
    assert tuple(CHOICES) == ListSettings._fields


# --- search ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_plans_of_every_family_keep_every_rule_and_are_shorter_than_dynamic(family: str) -> None:
    for asked in (drawn(family, 150, 8, seed=1), drawn(family, 150, 5, seed=2, mixed=True, pcie_gb_s=1.0)):
        plan = search(asked, SearchBudget(rounds=60))
        assert check(asked, plan) == []
        assert plan.makespan_s < dynamic(asked, SearchBudget()).makespan_s


@pytest.mark.parametrize(
    "asked",
    [
        demanding(),
        replace(drawn("agentic", 100, 3), multi_model=True),
        replace(demanding(), preload=True),
        replace(drawn("agentic", 100, 3), multi_model=True, preload=True),
    ],
)
def test_all_rules_are_kept_for_more_demanding_problems(asked: Problem) -> None:
    plan = search(asked, SearchBudget(rounds=60))
    assert check(asked, plan) == []
    assert plan.makespan_s < dynamic(asked, SearchBudget()).makespan_s


def test_the_same_seed_and_rounds_give_the_same_plan() -> None:
    asked = drawn("switch_heavy", 300, 4)
    plans = [search(asked, SearchBudget(seed, 300)) for seed in (1, 1, 2)]
    assert np.array_equal(plans[0].start, plans[1].start)
    assert np.array_equal(plans[0].gpu, plans[1].gpu)
    assert not np.array_equal(plans[0].start, plans[2].start)


def test_more_rounds_improve_the_plan() -> None:
    asked = drawn("tiny", 300, 4)
    short, long = (search(asked, SearchBudget(rounds=rounds)).makespan_s for rounds in (5, 400))
    assert long < short


@pytest.mark.parametrize("name", ["search", "auto"])
@pytest.mark.parametrize("family", ["agentic", "multi_gpu", "tight_chain", "tiny"])
def test_more_work_continues_the_same_search_and_never_gives_a_longer_plan(family: str, name: str) -> None:
    asked = drawn(family, 120, 4, seed=3)
    told: list[list[float]] = []
    for work_s in (0.0, 0.002, 0.008, 0.03, 0.06):
        told.append([])
        plan = strategy(name)(
            asked, SearchBudget(5, work_s=work_s, better=lambda plan: told[-1].append(plan.makespan_s))
        )
        assert plan.makespan_s == told[-1][-1]
    for less, more in pairwise(told):
        assert more[: len(less)] == less


def test_the_same_work_gives_the_same_plan_whenever_the_clock_is_asked() -> None:
    asked = drawn("tiny", 200, 3)
    ticks = iter(range(1, 10**9))
    plans = [
        search(asked, budget)
        for budget in (SearchBudget(3, work_s=0.07), within(0.1, lambda: next(ticks) * 1e-7, seed=3))
    ]
    assert np.array_equal(plans[0].start, plans[1].start)
    assert np.array_equal(plans[0].gpu, plans[1].gpu)


def test_a_search_ends_when_the_clock_says_so_with_the_best_plan_until_then() -> None:
    asked = drawn("tiny", 200, 3)
    full = search(asked, SearchBudget(3, work_s=0.1))
    ticks = iter(range(10**9))
    cut = search(asked, within(0.143, lambda: next(ticks) * 0.00286, seed=3))
    assert next(ticks) < 60
    assert check(asked, cut) == []
    assert cut.makespan_s >= full.makespan_s


class Paying:
    """A search of one round per episode, of which every so many find a better plan."""

    def __init__(self, effort: _Effort, every: int) -> None:
        self.episodes, self._effort, self._every, self.count = _Episodes(1, 1), effort, every, 0

    def episode(self, rounds: int) -> bool:
        for _ in self._effort.steps(rounds):
            self._effort.did(self._effort.round_s)
        self.count += 1
        return self._every > 0 and self.count % self._every == 0


def test_a_search_that_finds_better_plans_gets_more_work_and_none_gets_nothing() -> None:
    asked, budget = drawn("chain", 60, 2), SearchBudget(rounds=1000)
    effort = _Effort(asked, budget)
    always, sometimes, never = (Paying(effort, every) for every in (1, 3, 0))
    _take_turns([never, sometimes, always], effort, _Best(asked, budget))
    assert always.count + sometimes.count + never.count == 1000
    assert always.count > 1.5 * sometimes.count
    assert sometimes.count > 1.5 * never.count
    assert never.count > 50


def test_deadlines_come_first_and_the_makespan_after_them() -> None:
    said = instance(("a", "A", 10.0, ""), ("b", "A", 5.0, "a"), gpus=1, requests=4)
    said.requests[3].deadline_s = 20.0
    asked = problem_of(said)
    plan = search(asked, SearchBudget(rounds=40))
    assert check(asked, plan) == []
    assert plan.end[7] <= 20.0
    assert plan.makespan_s == 3.0 + 4 * 15.0


def test_of_two_conflicting_deadlines_the_one_with_higher_priority_is_met() -> None:
    said = instance(("a", "A", 10.0, ""), gpus=1, requests=2)
    for request in said.requests:
        request.deadline_s = 15.0
    said.requests[1].priority = 90
    asked = problem_of(said)
    plan = search(asked, SearchBudget(rounds=40))
    assert plan.start.tolist() == [13.0, 3.0]
    assert objective(asked, plan).late == 1.5


def test_a_change_that_keeps_the_deadline_of_the_higher_priority_makes_a_better_plan() -> None:
    """Both requests weigh between one and two; their weights differ all the same."""
    said = instance(("a", "A", 10.0, ""), gpus=1, requests=2)
    for request, priority in zip(said.requests, (0, 90), strict=True):
        request.deadline_s, request.priority = 15.0, priority
    asked = problem_of(said)
    buffer = make_buffer(asked, ints(0, 0), ints(0, 1), source_of(7))
    moves.begin(buffer)
    buffer.figures[moves.TEMPERATURE] = 0.1
    assert moves.improve(buffer, 200, MOVES)
    assert buffer.best_order.tolist() == [1, 0]


def test_every_better_plan_is_reported() -> None:
    told: list[float] = []
    plan = search(drawn("agentic", 200, 4), SearchBudget(rounds=100, better=lambda plan: told.append(plan.makespan_s)))
    assert told == sorted(set(told), reverse=True)
    assert told[-1] == plan.makespan_s


def test_even_without_time_there_is_a_plan() -> None:
    asked = drawn("chain", 60, 2)
    for name in ("search", "auto"):
        assert check(asked, strategy(name)(asked, NO_TIME)) == []


def test_a_problem_without_calls_has_an_empty_plan() -> None:
    asked = problem(("a", "A", 1.0, ""), requests=0)
    for name in ("search", "auto"):
        assert strategy(name)(asked, SearchBudget(rounds=2)).makespan_s == 0.0


# --- auto ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_auto_is_never_longer_than_the_strategies_it_chooses_from(family: str) -> None:
    asked = drawn(family, 80, 3, seed=4)
    for budget in (NO_TIME, SearchBudget(rounds=20)):
        others = [strategy(name)(asked, budget).makespan_s for name in ("batch", "dynamic", "heft_affinity")]
        plan = strategy("auto")(asked, budget)
        assert check(asked, plan) == []
        assert plan.makespan_s <= min(others)


@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize("calls", [12, 80])
def test_auto_includes_all_schedules_of_heft_affinity_however_little_work_is_allowed(calls: int, preload: bool) -> None:
    """As in plain Python, where the search is allowed a two-thousandth of the work."""
    for family, seed in product(("agentic", "tiny", "switch_heavy"), range(2)):
        asked = replace(drawn(family, calls, 4, seed=seed), preload=preload)
        little = SearchBudget(work_s=3 * work_of_a_list(asked))
        assert strategy("auto")(asked, little).makespan_s <= strategy("heft_affinity")(asked, little).makespan_s


@pytest.mark.parametrize("family", FAMILIES)
def test_auto_has_the_plan_of_search_unless_it_has_a_better_start(family: str) -> None:
    asked = drawn(family, 120, 4, seed=6)
    starts, schedules = (
        min(strategy(name)(asked, SearchBudget(5)).makespan_s for name in names)
        for names in (("batch", "dynamic"), ("heft_affinity",))
    )
    both = [strategy(name)(asked, SearchBudget(5, rounds=150)) for name in ("search", "auto")]
    assert starts < schedules or np.array_equal(both[0].start, both[1].start)


def test_auto_proves_the_best_plan_of_a_small_problem() -> None:
    plan = strategy("auto")(
        problem(("a", "A", 5.0, ""), ("b", "B", 2.0, "a"), requests=2, gpus=2), SearchBudget(rounds=50)
    )
    assert plan.proven_s == pytest.approx(plan.makespan_s)


def test_known_plans_are_not_lost() -> None:
    asked = drawn("chain", 60, 2)
    best = search(asked, SearchBudget(rounds=300))
    assert improved(asked, SearchBudget(rounds=1), [best]).makespan_s <= best.makespan_s


# --- chance ----------------------------------------------------------------------------------------------------------


def test_random_numbers_are_the_same_on_every_machine() -> None:
    source = source_of(42)
    assert [int(draw(source)) for _ in range(2)] == [9897871255849866841, 9498230492756268597]
    assert [below(source, 10) for _ in range(5)] == [4, 6, 6, 7, 8]
    assert [threshold_draw(source) for _ in range(2)] == [2.1976454501489076, 0.34504229137575093]
