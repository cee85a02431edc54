"""`pareto`: several objectives at once: NSGA-II (Deb et al. 2002, by pymoo) for makespan, balance, switches and energy.

Choose it to see what a shorter plan costs in switches or energy, or to make the choice depend on how idle the GPUs are
(see `planner.front`). For the makespan alone `search` is better in the same time.

The genes are a group and a *key* for each call; calls are taken by key and timed as early as the rules allow. Any plan
of another strategy can therefore be a parent (key: its start there), and the front holds all of these that are not
dominated. The first generation also has plans of a list scheduler with different reluctance to switch. If GPUs have
power levels, one more gene says how much slower the plan may be to save energy.

    crossover: a child takes some requests, some models or a time interval from one parent, the rest from the other
    mutation: a run of calls moves to another group, or behind the last calls of its model there, or in the order
"""

from dataclasses import replace
from itertools import product
from math import inf
from typing import Any, Final

import numpy as np

from gpuyard.plan.planner.compiled.keys import topological_keys, weighted_assignment
from gpuyard.plan.planner.compiled.timing import ranks, timed
from gpuyard.plan.planner.energy import power_of, with_power_levels
from gpuyard.plan.planner.front import Front, Point, front, point
from gpuyard.plan.planner.levels import levels
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Floats, Ints, Problem
from gpuyard.plan.planner.strategies import STRATEGIES, SearchBudget, can_plan, strategy
from gpuyard.plan.planner.strategies.search import work_of_a_list

PARENTS: Final = ("batch", "dynamic", "heft_affinity", "search")
"""The strategies whose plans are in the first generation, the quick ones first."""
PARENT_ROUNDS: Final = 600
"""The most rounds of the search whose plans are parents."""
POPULATION: Final = 32
GENERATIONS: Final = 200
"""The number of generations if there is neither a time limit nor `rounds`."""
CHILD_WORK: Final = (300e-6, 0.7e-6)
"""Seconds of work of one child, and of each of its calls (`search.WORK`)."""
LEVELS_WORK: Final = 6
"""With power levels the calls of a child cost so many times as much."""
RELUCTANCE: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
BALANCE: Final = (0.0, 0.1)
MOST_STEPS: Final = 50_000_000
"""Calls × GPUs: above this the list scheduler takes too long."""
SLOWEST: Final = 0.3

Genes = Floats
"""The groups, then the keys, then the allowed slowdown of the plan."""


def pareto(problem: Problem, budget: SearchBudget) -> Plan:
    """Return the plan of the front that the weights select."""
    found = pareto_front(problem, budget, budget.idle_rate)
    return found.points[found.chosen].plan


def pareto_front(problem: Problem, budget: SearchBudget, idle_rate: float | None = None) -> Front:
    """Return all non-dominated plans, and the choice among them at an idle rate (None: that of the shortest plan)."""
    can_plan("pareto", problem)
    population = _Population(problem, budget)
    parents = _parents(problem, budget, population)
    if len(problem.calls):
        _breed(
            population,
            budget,
            [*(population.genes_of(plan) for plan in parents), *_first_generation(population, budget)],
        )
    return front(problem, population.points, idle_rate)


class _Population:
    """The non-dominated plans so far, and the conversion between plans and genes."""

    def __init__(self, problem: Problem, budget: SearchBudget) -> None:
        calls = problem.calls
        self.problem = problem
        self.points: list[Point] = []
        self._better = budget.better
        self._shortest = inf
        self._power = power_of(problem)
        self.has_levels = self._power is not None and self._power.watts.shape[1] > 1
        self._rank = ranks(calls.before_at, calls.after_at, calls.after)

    def look_at(self, plan: Plan) -> None:
        """Keep the plan unless a known plan dominates it."""
        self._keep(point(self.problem, plan, self._power))

    def _keep(self, new: Point) -> None:
        if new.measures.makespan_s < self._shortest:
            self._shortest = new.measures.makespan_s
            self._better(new.plan)
        if not any(old.beats(new) for old in self.points):
            self.points = [old for old in self.points if not new.beats(old)]
            self.points.append(new)

    def genes_of(self, plan: Plan) -> Genes:
        """Return genes that decode to this plan."""
        return np.concatenate((plan.gpu, plan.start, [0.0]))

    def grow(self, genes: Genes) -> tuple[float, ...]:
        """Decode the genes and return the objectives of the plan."""
        gpu, key = np.split(genes[:-1], 2)
        plan = timed(self.problem, gpu.astype(np.int32), self._order(key))
        if self.has_levels and self._power is not None:
            plan = with_power_levels(self.problem, plan, self._power, float(genes[-1]))
        grown = point(self.problem, plan, self._power)
        self._keep(grown)
        return grown.objectives

    def _order(self, key: Floats) -> Ints:
        calls = self.problem.calls
        return np.lexsort((self._rank, topological_keys(self._rank, calls.before_at, calls.before, key))).astype(
            np.int32
        )


def _parents(problem: Problem, budget: SearchBudget, population: _Population) -> list[Plan]:
    """Return the plans of the other strategies, shortest first; their intermediate plans are considered, too."""
    share = replace(budget, rounds=_parent_rounds(problem, budget), better=population.look_at)
    plans: list[Plan] = []
    for name in PARENTS:
        if name in STRATEGIES and (not plans or budget.keep_going()):
            plans.append(strategy(name)(problem, share))
            population.look_at(plans[-1])
    return sorted(plans, key=lambda plan: plan.makespan_s)


def _parent_rounds(problem: Problem, budget: SearchBudget) -> int:
    """Return the rounds of the search whose plans are parents: a fixed number, unless the budget is smaller."""
    limits = [PARENT_ROUNDS if budget.rounds is None else budget.rounds]
    if budget.work_s is not None:
        limits.append(int(budget.work_s / work_of_a_list(problem)))
    return max(1, min(limits))


def _first_generation(population: _Population, budget: SearchBudget) -> list[Genes]:
    """Return plans by level, by model or as listed, from list schedulers of different reluctance, as genes."""
    problem, calls = population.problem, population.problem.calls
    if len(calls) * len(problem.gpus) > MOST_STEPS:
        return []
    of_level, found = levels(problem).astype(np.float64), []
    for by_model, reluctance, balance in product((True, False), RELUCTANCE, BALANCE):
        if not budget.keep_going():
            break
        key = of_level + (calls.model / len(problem.models) if by_model else 0.0)
        order = np.argsort(key, kind="stable").astype(np.int32)
        gpu = weighted_assignment(
            order, calls.seconds, calls.model, calls.earliest_s, calls.before_at, calls.before,
            problem.width, problem.may_begin, problem.group_speed, problem.switch, problem.held_first, problem.free_first,
            reluctance, balance,
        )  # fmt: skip
        found.append(population.genes_of(timed(problem, gpu, order)))
    return found


def _breed(population: _Population, budget: SearchBudget, first: list[Genes]) -> None:
    """Run one generation after another until the budget is spent."""
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.core.evaluator import Evaluator
    from pymoo.core.problem import Problem as Search
    from pymoo.core.termination import NoTermination
    from pymoo.problems.static import StaticProblem

    objectives = len(population.points[0].objectives)
    search = Search(n_var=len(first[0]), n_obj=objectives)
    algorithm = NSGA2(
        pop_size=POPULATION,
        sampling=_filled(first),
        eliminate_duplicates=True,
        **_operators(population.problem, budget.seed),
    )
    algorithm.setup(search, termination=NoTermination(), seed=budget.seed % 2**32)
    for _ in range(_generations(population, budget)):
        if not budget.keep_going():
            return
        children = algorithm.ask()
        values: list[tuple[float, ...]] = []
        for genes in children.get("X"):
            if values and not budget.keep_going():
                return
            values.append(population.grow(genes))
        Evaluator().eval(StaticProblem(search, F=np.array(values)), children)
        algorithm.tell(infills=children)


def _generations(population: _Population, budget: SearchBudget) -> int:
    """Return how many generations the budget allows, after the work of the parents."""
    if budget.rounds is not None:
        return budget.rounds
    if budget.work_s is None:
        return GENERATIONS
    problem = population.problem
    left_s = budget.work_s - _parent_rounds(problem, budget) * work_of_a_list(problem)
    child_s = CHILD_WORK[0] + CHILD_WORK[1] * len(problem.calls) * (LEVELS_WORK if population.has_levels else 1)
    return max(0, int(left_s / (POPULATION * child_s)))


def _filled(first: list[Genes]) -> Any:
    """Fill a generation: if there are too few genes, the first ones are repeated; mutation makes them differ."""
    return np.array([first[i % len(first)] for i in range(max(POPULATION, len(first)))])


def _operators(problem: Problem, seed: int) -> dict[str, Any]:
    """Return the crossover and mutation operators for pymoo; they use their own random generator, not that of pymoo."""
    from pymoo.core.crossover import Crossover
    from pymoo.core.mutation import Mutation

    chance = np.random.default_rng(seed)

    class Mix(Crossover):  # type: ignore[misc]
        def _do(self, _search: object, parents: Any, *_: object, **__: object) -> Any:
            children = parents.copy()
            for pair in range(parents.shape[1]):
                a, b = parents[:, pair]
                which = _part(problem, a, chance)
                children[0, pair, which], children[1, pair, which] = b[which], a[which]
            return children

    class Change(Mutation):  # type: ignore[misc]
        def _do(self, _search: object, genes: Any, *_: object, **__: object) -> Any:
            return np.array([_changed(problem, one, chance) for one in genes])

    return {"crossover": Mix(2, 2), "mutation": Change()}


def _part(problem: Problem, genes: Genes, chance: np.random.Generator) -> Any:
    """Select some genes: those of some requests, some models or a time interval, and possibly the slowdown."""
    calls = problem.calls
    match chance.integers(3):
        case 0:
            which = (chance.random(len(problem.requests.ids)) < 0.5)[calls.request]
        case 1:
            which = (chance.random(len(problem.models)) < 0.5)[calls.model]
        case _:
            key = genes[len(calls) : -1]
            low, high = np.sort(chance.choice(key, 2))
            which = (key >= low) & (key <= high)
    return np.concatenate((which, which, [chance.random() < 0.5]))


def _changed(problem: Problem, genes: Genes, chance: np.random.Generator) -> Genes:
    """Move a few runs of calls of one model on one group elsewhere."""
    genes = genes.copy()
    gpu, key = genes[: len(problem.calls)], genes[len(problem.calls) : -1]
    model = problem.calls.model
    for _ in range(int(chance.integers(1, 4))):
        call = int(chance.integers(len(model)))
        m, g = int(model[call]), gpu[call]
        run = _run(model, gpu, key, call)
        match chance.integers(4):
            case 0:
                gpu[run] = chance.choice(np.flatnonzero(problem.may_begin[m]))
            case 1:
                gpu[run] = chance.choice(gpu[model == m])
            case 2:
                elsewhere = np.flatnonzero((model == m) & (gpu == g))
                key[run] = key[chance.choice(elsewhere)]
            case _:
                key[run] += (chance.random() - 0.5) * np.ptp(key) * 0.1
    genes[-1] = (
        min(SLOWEST, max(0.0, genes[-1] + 0.05 * float(chance.standard_normal())))
        if chance.random() < 0.3
        else genes[-1]
    )
    return genes


def _run(model: Ints, gpu: Floats, key: Floats, call: int) -> Ints:
    """Return the calls around this one, by key, that share its model and group, up to the first that does not."""
    here = np.flatnonzero(gpu == gpu[call])
    here = here[np.argsort(key[here], kind="stable")]
    at = int(np.flatnonzero(here == call)[0])
    breaks = np.flatnonzero(model[here] != model[call])
    low = int(breaks[breaks < at].max(initial=-1)) + 1
    high = int(breaks[breaks > at].min(initial=len(here)))
    return here[low:high].astype(np.int32)
