"""Plans from Python: everything `gpuyard plan solve`, `compare` and `check` do, as functions. The commands call these.

    from gpuyard import plan

    found = plan.solve("lab.yaml", seconds=5)
    print(found.makespan_s, found.gap)
    found.write("plan.json")

This module opens files and reads the clock; the rest of the planner does neither.
"""

import gzip
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import inf, isfinite
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias

import numpy as np
from msgspec import Meta

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.arguments import Function, Seed, argument, names
from gpuyard.input.files import AnyPath, path_of, read_file, shown_path
from gpuyard.plan.planner.bounds import lower_bound
from gpuyard.plan.planner.checker import check as faults_of
from gpuyard.plan.planner.default_strategy import DEFAULT_STRATEGY
from gpuyard.plan.planner.generate import generate
from gpuyard.plan.planner.instance import PlannerGpuCount
from gpuyard.plan.planner.plan import Measures, Plan, late_requests, measure
from gpuyard.plan.planner.plan_file import PlanFile, write_plan
from gpuyard.plan.planner.plan_file import read_plan as plan_from_text
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import problem_of, read_problem
from gpuyard.plan.planner.strategies import STRATEGIES, SearchBudget, can_plan, check_name, within
from gpuyard.plan.planner.strategies import strategy as strategy_named
from gpuyard.plan.planner.validate import PRELOAD_NEEDS_MEMORY
from gpuyard.plan.planner.workflow_format import Predict

if TYPE_CHECKING:
    from gpuyard.plan.planner.energy import Power

SearchSeconds = Annotated[float, Meta(ge=0, le=31_536_000)]
"""How long a search may take: at most a year."""
SearchRounds = Annotated[int, Meta(ge=1, le=1_000_000_000)] | None
IdleRate = Annotated[float, Meta(ge=0, le=1)] | None
MaxSlowdown = Annotated[float, Meta(ge=0, le=10)] | None
WEIGHTED: Final = "pareto"
"""The strategy that weighs several objectives."""
MADE_WITH_PRELOAD: Final = "The plan was made with preload, and the problem is without it: add --preload, or preload: true to the problem file."
BEGIN_WITH_SEARCH: Final = frozenset({"exact", "pareto"})
"""Strategies that begin with some rounds of `search`."""
EPISODES_OF_ALL: Final = 400
"""Rounds after which each of the three searches of `search` has run: the first episodes take 320."""
AtMost = Annotated[int, Meta(ge=1, le=1_000_000_000)]


@dataclass(frozen=True, slots=True)
class Watch:
    """Callbacks of a caller that follows a search or ends it early."""

    better: Callable[[Plan], None] = lambda _plan: None
    """Called with each plan that is better than all before."""
    stopped: Callable[[], bool] = lambda: False
    """Called every few milliseconds; once it returns True, the search ends with the best plan so far."""


Watching: TypeAlias = Callable[[str, float], AbstractContextManager[Watch]]
"""Maps the name of a strategy and the lower bound to a `Watch`, which is entered while that strategy searches."""


def unwatched(_strategy: str, _lower_bound_s: float) -> AbstractContextManager[Watch]:
    """Follow nothing."""
    return nullcontext(Watch())


@dataclass(frozen=True, slots=True)
class Solution:
    """A plan, its measures, and its largest possible distance from the optimum."""

    problem: Problem
    plan: Plan
    strategy: str
    lower_bound_s: float
    """No plan has a shorter makespan."""
    measures: Measures
    planning_s: float
    compiling_s: float
    """Seconds spent compiling on first use, with a small problem, before the search."""
    faults: tuple[str, ...]
    """The rules that the plan breaks. Not empty only if the strategy has a bug."""
    late_requests: int | None
    """None if no request has a deadline."""
    energy_kwh: float | None
    """None if the power draw of the GPUs is unknown."""
    watts_from: str | None
    idle_rate: float | None = None
    """The idle rate that was given for the weights of `pareto`."""

    @property
    def makespan_s(self) -> float:
        """When the last call ends."""
        return self.measures.makespan_s

    @property
    def gap(self) -> float:
        """How far the makespan is above the lower bound, as a fraction: 0.02 is 2 %."""
        return self.makespan_s / self.lower_bound_s - 1 if self.lower_bound_s else 0.0

    @property
    def valid(self) -> bool:
        """Whether the plan keeps every rule."""
        return not self.faults

    def figures(self) -> dict[str, Any]:
        """The figures as `gpuyard plan solve --json` prints them; unknown ones are left out."""
        measures = asdict(self.measures)
        figures = {
            "makespan_s": measures.pop("makespan_s"),
            "lower_bound_s": self.lower_bound_s,
            "gap": self.gap,
            **measures,
            "late_requests": self.late_requests,
            "energy_kwh": self.energy_kwh,
            "watts_from": self.watts_from,
            "idle_rate": self.idle_rate,
            "strategy": self.strategy,
            "planning_s": self.planning_s,
            "compiling_s": self.compiling_s,
            "valid": self.valid,
        }
        return {name: value for name, value in figures.items() if value is not None}

    def write(self, path: AnyPath) -> None:
        """Write the plan to a file (`planner-plan/1`), compressed if the name ends in .gz."""
        write(path, write_plan(self.problem, self.plan, self.strategy))


class SearchArguments(NamedTuple):
    """The arguments of a search, checked."""

    seconds: float
    rounds: int | None
    seed: int
    max_slowdown: float | None


# --- planning ---------------------------------------------------------------------------------------------------------


def solve(
    problem: Problem | AnyPath,
    *,
    strategy: str = DEFAULT_STRATEGY,
    seconds: float = 10.0,
    rounds: int | None = None,
    seed: int = 0,
    max_slowdown: float | None = None,
    idle_rate: float | None = None,
    watching: Watching = unwatched,
) -> Solution:
    """Plan a problem, or the problem in a file, for the shortest makespan.

    `seconds` limits the time of a search. It does a fixed amount of work in that time, so the same `seed` and `seconds`
    give the same plan, and more seconds never a longer one, unless the machine is too slow or busy for the work. With
    `rounds` the search runs that number of rounds instead, however long they take. `max_slowdown` lets the plan use power levels
    and become longer by that fraction to save energy (0.05: 5 %). `idle_rate` is how idle the GPUs are, which determines the
    weights of `pareto`; other strategies do not accept it. Raises `WrongInput` if an argument cannot be meant.
    """
    from gpuyard.plan.planner.energy import energy_kwh, power_of, with_power_levels
    from gpuyard.plan.planner.priorities import urgent_first

    seconds, rounds, seed, max_slowdown = check_search(
        seconds=seconds, rounds=rounds, seed=seed, max_slowdown=max_slowdown
    )
    argument("watching", watching, Function)
    check_name(argument("strategy", strategy, str))
    idle_rate = check_idle_rate(strategy, idle_rate)
    problem = problem if isinstance(problem, Problem) else read(problem)
    can_plan(strategy, problem)
    solver = strategy_named(strategy)
    power = _power_with_levels(problem) if max_slowdown is not None else None
    bound_s = lower_bound(problem).seconds
    compiling_s = prepare_for(strategy, problem)
    began = perf_counter()
    with watching(strategy, bound_s) as watch:
        budget = budget_of(seconds, rounds, seed, lambda: perf_counter() - began, watch)
        plan = solver(problem, replace(budget, idle_rate=idle_rate))
        plan = urgent_first(problem, plan, reorder=strategy != WEIGHTED)
        if power is not None and max_slowdown is not None:
            plan = with_power_levels(problem, plan, power, max_slowdown)
    planning_s = perf_counter() - began
    power = power_of(problem)
    has_deadlines = isfinite(problem.requests.deadline_s.min(initial=inf))
    return Solution(
        problem,
        plan,
        strategy,
        max(bound_s, plan.proven_s),
        measure(problem, plan),
        planning_s,
        compiling_s,
        tuple(faults_of(problem, plan)),
        late_requests(problem, plan) if has_deadlines else None,
        energy_kwh(problem, plan, power) if power else None,
        power.source.value if power else None,
        idle_rate,
    )


def budget_of(
    seconds: float, rounds: int | None, seed: int, elapsed_s: Callable[[], float], watch: Watch
) -> SearchBudget:
    """Return the budget of a search with a number of rounds or, without one, a time limit."""
    if rounds is not None:
        return SearchBudget(seed, rounds, lambda: not watch.stopped(), better=watch.better)
    return within(seconds, elapsed_s, seed=seed, stopped=watch.stopped, better=watch.better)


def check_search(
    *, seconds: float = 0.0, rounds: int | None = None, seed: int = 0, max_slowdown: float | None = None
) -> SearchArguments:
    """Return these arguments of a search as numbers of Python; raise `WrongInput` if one cannot be meant."""
    return SearchArguments(
        argument("seconds", seconds, SearchSeconds),
        argument("rounds", rounds, SearchRounds),
        argument("seed", seed, Seed),
        argument("max_slowdown", max_slowdown, MaxSlowdown),
    )


def check_idle_rate(strategy: str, idle_rate: float | None) -> float | None:
    """Return the idle rate as a number of Python; raise `WrongInput` if it cannot be meant, or the strategy has no weights."""
    if idle_rate is not None and strategy != WEIGHTED:
        raise WrongInput(f"The idle rate determines the weights of {WEIGHTED}; {strategy} has none.")
    checked: float | None = argument("idle_rate", idle_rate, IdleRate)
    return checked


def compare(
    problem: Problem | AnyPath,
    strategies: Sequence[str] | None = None,
    *,
    seconds: float = 10.0,
    rounds: int | None = None,
    seed: int = 0,
    watching: Watching = unwatched,
    left_out: Callable[[str, WrongInput], None] = lambda _strategy, _why: None,
) -> dict[str, Solution]:
    """Plan a problem with several strategies; all solutions have the best lower bound that any of them proved.

    Without `strategies` all are used except those that do not accept a problem of this size: `left_out` is called for
    each.
    """
    seconds, rounds, seed, _ = check_search(seconds=seconds, rounds=rounds, seed=seed)
    argument("watching", watching, Function)
    argument("left_out", left_out, Function)
    strategies = None if strategies is None else names("strategies", strategies)
    problem = problem if isinstance(problem, Problem) else read(problem)
    for name in strategies or ():
        can_plan(name, problem)
    found: dict[str, Solution] = {}
    for name in strategies or STRATEGIES:
        try:
            found[name] = solve(problem, strategy=name, seconds=seconds, rounds=rounds, seed=seed, watching=watching)
        except WrongInput as error:
            if strategies:
                raise
            left_out(name, error)
    best_s = max((one.lower_bound_s for one in found.values()), default=0.0)
    return {name: replace(one, lower_bound_s=best_s) for name, one in found.items()}


def check(plan: Plan | PlanFile | AnyPath, problem: Problem | AnyPath, *, at_most: int = 10) -> list[str]:
    """Return the rules that a plan breaks, one sentence each; empty if the plan is valid.

    Both arguments may be files. The checker shares no code with the strategies.
    """
    at_most = argument("at_most", at_most, AtMost)
    problem = problem if isinstance(problem, Problem) else read(problem)
    if isinstance(plan, Plan):
        return faults_of(problem, plan, at_most=at_most)
    written = plan if isinstance(plan, PlanFile) else read_plan(plan, problem)
    faults = list(written.faults[:at_most]) or faults_of(problem, written.plan, at_most=at_most)
    if len(written.faults) > at_most:
        faults.append(f"And {len(written.faults) - at_most:,} more.")
    if faults and written.preload and not problem.preload:
        faults.insert(0, MADE_WITH_PRELOAD)
    return faults


@cache
def prepare(strategy: str) -> float:
    """Import and compile a strategy on a problem of a few calls, once per process; return the seconds it took."""
    from gpuyard.plan.planner.compiled.jit import INTERPRETED

    solver = strategy_named(strategy)
    if INTERPRETED:
        return 0.0
    before_s = prepare("search") if strategy in BEGIN_WITH_SEARCH else 0.0
    began = perf_counter()
    solver(_few_calls(), SearchBudget(rounds=EPISODES_OF_ALL if strategy in {"search", "auto"} else 1))
    return before_s + perf_counter() - began


def prepare_for(strategy: str, problem: Problem) -> float:
    """Import and compile what plans this problem, once per process; return the seconds it took."""
    from gpuyard.plan.planner.priorities import has_priorities

    return prepare(strategy) + (_prepare_priorities() if has_priorities(problem) else 0.0)


@cache
def _prepare_priorities() -> float:
    from gpuyard.plan.planner.compiled.jit import INTERPRETED
    from gpuyard.plan.planner.priorities import urgent_first

    if INTERPRETED:
        return 0.0
    began = perf_counter()
    problem = _few_calls()
    plan = strategy_named("dynamic")(problem, SearchBudget())
    urgent = [100 * (request % 2) for request in range(len(problem.requests.ids))]
    urgent_first(replace(problem, requests=replace(problem.requests, priority=np.array(urgent, dtype=np.int32))), plan)
    return perf_counter() - began


def _few_calls() -> Problem:
    return problem_of(generate("agentic", 24, 2))


def _power_with_levels(problem: Problem) -> "Power":
    from gpuyard.plan.planner.energy import power_of

    power = power_of(problem)
    if power is None or power.watts.shape[1] == 1:
        raise WrongInput("--max-slowdown needs GPUs with several power levels (gpus[].levels), and the file has none.")
    return power


# --- files ------------------------------------------------------------------------------------------------------------


def read(
    path: AnyPath,
    *,
    gpus: int | None = None,
    multi_model: bool | None = None,
    preload: bool | None = None,
    predict: Predict | None = None,
) -> Problem:
    """Read the problem in a file, plain or compressed (.gz).

    `gpus` replaces the GPUs in the file by that number of GPUs. `multi_model` overrides the file: whether a GPU may
    hold several models. So does `preload`: whether it may load its next model while it runs calls. `predict` returns the seconds of a work on a type of GPU, for nodes with `exec_time: predicted`.
    A problem without a name gets the name of the file.
    """
    path = path_of("problem", path)
    gpus = argument("gpus", gpus, PlannerGpuCount | None)
    multi_model = argument("multi_model", multi_model, bool | None)
    preload = argument("preload", preload, bool | None)
    try:
        problem = read_problem(_content(path), gpus=gpus, predict=predict)
    except WrongInput as error:
        raise WrongInput(f"{shown_path(path)}: {error}") from None
    if preload:
        unknown = next((gpu for gpu in problem.gpus if gpu.memory_gb == inf), None)
        if unknown is not None:
            raise WrongInput(f"{shown_path(path)}: GPU {unknown.id} has no memory_gb, {PRELOAD_NEEDS_MEMORY}")
    return replace(
        problem,
        name=problem.name or path.name.partition(".")[0],
        multi_model=problem.multi_model if multi_model is None else multi_model,
        preload=problem.preload if preload is None else preload,
    )


def read_plan(path: AnyPath, problem: Problem, *, or_actual: bool = False) -> PlanFile:
    """Read a plan for this problem. `or_actual`: also accept the record of a run, as `plan run` writes it."""
    path = path_of("plan", path)
    try:
        found = plan_from_text(_content(path), problem)
        if found.is_actual and not or_actual:
            raise WrongInput("This file is not a plan but the record of an execution: `gpuyard plan draw` draws it.")
    except WrongInput as error:
        raise WrongInput(f"{shown_path(path)}: {error}") from None
    return found


def valid_plan(path: AnyPath, problem: Problem) -> Plan:
    """Read a plan from a file; raise an error if it breaks a rule."""
    found = read_plan(path, problem)
    if faults := check(found, problem, at_most=1):
        raise WrongInput(f"{shown_path(path)}: {faults[0]}")
    return found.plan


def write(path: AnyPath, content: bytes) -> None:
    """Write a file, compressed if its name ends in .gz."""
    path = path_of("path", path)
    try:
        path.write_bytes(gzip.compress(content, compresslevel=6, mtime=0) if path.suffix == ".gz" else content)
    except OSError as error:
        raise WrongInput(f"Cannot write {shown_path(path)}: {error.strerror}.") from None


def _content(path: Path) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise WrongInput(f"{error.strerror}.") from None
