"""Plans from Python: everything `gpuyard plan solve`, `compare` and `check` do, as functions. The commands call these.

    from gpuyard import plan

    found = plan.solve("lab.yaml", seconds=5)
    print(found.makespan_s, found.gap)
    found.write("plan.json")

This file opens files and looks at the clock; the rest of the planner does neither.
"""

import gzip
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import inf, isfinite
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from gpuyard.core.domain.errors import WrongInput
from gpuyard.plan.planner.bounds import lower_bound
from gpuyard.plan.planner.checker import check as faults_of
from gpuyard.plan.planner.generate import generate
from gpuyard.plan.planner.plan import Measures, Plan, late_requests, measure
from gpuyard.plan.planner.plan_file import PlanFile, write_plan
from gpuyard.plan.planner.plan_file import read_plan as plan_from_text
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import problem_of, read_problem
from gpuyard.plan.planner.strategies import STRATEGIES, SearchBudget, can_plan
from gpuyard.plan.planner.strategies import strategy as strategy_named

if TYPE_CHECKING:
    from gpuyard.plan.planner.energy import Power

AnyPath: TypeAlias = str | Path


@dataclass(frozen=True, slots=True)
class Watch:
    """What a caller hears while a strategy searches, and how the caller ends the search early."""

    better: Callable[[Plan], None] = lambda _plan: None
    """Told of each plan that is better than those before."""
    stopped: Callable[[], bool] = lambda: False
    """Asked every few milliseconds; once it says yes, the best plan so far counts."""


Watching: TypeAlias = Callable[[str, float], AbstractContextManager[Watch]]
"""From the name of a strategy and the lower bound to a watch, entered while that strategy searches."""


def _unwatched(_strategy: str, _lower_bound_s: float) -> AbstractContextManager[Watch]:
    return nullcontext(Watch())


@dataclass(frozen=True, slots=True)
class Solution:
    """A plan, what it is worth, and how far it is at most from the best one."""

    problem: Problem
    plan: Plan
    strategy: str
    lower_bound_s: float
    """No plan is shorter."""
    measures: Measures
    planning_s: float
    compiling_s: float
    """What is compiled when it is first used was compiled before, on a small problem."""
    faults: tuple[str, ...]
    """Rules that the plan breaks: none, or the strategy has a bug."""
    late_requests: int | None
    """None where no request has a deadline."""
    energy_kwh: float | None
    """None where the watts of the GPUs are not known."""
    watts_from: str | None

    @property
    def makespan_s(self) -> float:
        """When the last call ends."""
        return self.measures.makespan_s

    @property
    def gap(self) -> float:
        """How far the makespan is above the lower bound: 0.02 is 2 %."""
        return self.makespan_s / self.lower_bound_s - 1 if self.lower_bound_s else 0.0

    @property
    def valid(self) -> bool:
        """Whether the plan keeps every rule."""
        return not self.faults

    def figures(self) -> dict[str, Any]:
        """As `gpuyard plan solve --json` prints them; what is not known is left out."""
        measures = asdict(self.measures)
        figures = {
            "makespan_s": measures.pop("makespan_s"),
            "lower_bound_s": self.lower_bound_s,
            "gap": self.gap,
            **measures,
            "late_requests": self.late_requests,
            "energy_kwh": self.energy_kwh,
            "watts_from": self.watts_from,
            "strategy": self.strategy,
            "planning_s": self.planning_s,
            "compiling_s": self.compiling_s,
            "valid": self.valid,
        }
        return {name: value for name, value in figures.items() if value is not None}

    def write(self, path: AnyPath) -> None:
        """Write the plan to a file (`planner-plan/1`), packed where the name ends in .gz."""
        write(path, write_plan(self.problem, self.plan, self.strategy, self.planning_s))


# --- planning ---------------------------------------------------------------------------------------------------------


def solve(
    problem: Problem | AnyPath,
    *,
    strategy: str = "auto",
    seconds: float = 10.0,
    rounds: int | None = None,
    seed: int = 0,
    max_slowdown: float | None = None,
    watching: Watching = _unwatched,
) -> Solution:
    """Plan a problem, or the one in a file, for the shortest makespan.

    `seconds` is how long a strategy that searches may do so; with `rounds` it searches so many rounds instead, and the
    same `seed` gives the same plan on any machine. `max_slowdown` lets the plan use power levels and take so much longer
    for the least energy (0.05: 5 %).
    """
    from gpuyard.plan.planner.energy import energy_kwh, power_of, with_power_levels

    solver = strategy_named(strategy)
    problem = problem if isinstance(problem, Problem) else read(problem)
    can_plan(strategy, problem)
    power = _power_with_levels(problem) if max_slowdown is not None else None
    bound_s = lower_bound(problem).seconds
    compiling_s = prepare(strategy)
    began = perf_counter()
    limited = rounds is None
    used = (lambda: (perf_counter() - began) / seconds) if limited and seconds else None
    with watching(strategy, bound_s) as watch:

        def keep_going() -> bool:
            return not watch.stopped() and not (limited and perf_counter() - began >= seconds)

        plan = solver(problem, SearchBudget(seed, rounds, keep_going, used, watch.better))
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
    )


def compare(
    problem: Problem | AnyPath,
    strategies: Sequence[str] | None = None,
    *,
    seconds: float = 10.0,
    rounds: int | None = None,
    seed: int = 0,
    watching: Watching = _unwatched,
    left_out: Callable[[str, WrongInput], None] = lambda _strategy, _why: None,
) -> dict[str, Solution]:
    """Plan a problem with one strategy after another; all solutions have the best lower bound that any of them proved.

    Without `strategies` it is all of them, less those that do not plan a problem of this size: `left_out` is told of each.
    """
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
    """The rules that a plan breaks, a sentence each; empty where it keeps all of them.

    Both may be given as files. The checker shares no code with the strategies.
    """
    problem = problem if isinstance(problem, Problem) else read(problem)
    if isinstance(plan, Plan):
        return faults_of(problem, plan, at_most=at_most)
    written = plan if isinstance(plan, PlanFile) else read_plan(plan, problem)
    faults = list(written.faults[:at_most]) or faults_of(problem, written.plan, at_most=at_most)
    if len(written.faults) > at_most:
        faults.append(f"And {len(written.faults) - at_most:,} more.")
    return faults


@cache
def prepare(strategy: str) -> float:
    """Let a strategy load and compile what it needs, on a problem of a few calls, once a process; the seconds it took."""
    solver = strategy_named(strategy)
    began = perf_counter()
    solver(problem_of(generate("agentic", 24, 2)), SearchBudget(rounds=1))
    return perf_counter() - began


def _power_with_levels(problem: Problem) -> "Power":
    from gpuyard.plan.planner.energy import power_of

    power = power_of(problem)
    if power is None or power.watts.shape[1] == 1:
        raise WrongInput(
            "--max-slowdown chooses among power levels, and the file has no GPU with several (gpus[].levels)."
        )
    return power


# --- files ------------------------------------------------------------------------------------------------------------


def read(path: AnyPath, *, gpus: int | None = None, many_residents: bool | None = None) -> Problem:
    """The problem in a file, plain or packed (.gz).

    `gpus`: so many GPUs instead of those in the file. `many_residents`: whether a GPU may hold several models, whatever
    the file says. A file without a name is called by the name of the file.
    """
    path = Path(path)
    try:
        problem = read_problem(_content(path), gpus=gpus)
    except WrongInput as error:
        raise WrongInput(f"{path}: {error}") from None
    many = problem.many_residents if many_residents is None else many_residents
    return replace(problem, name=problem.name or path.name.partition(".")[0], many_residents=many)


def read_plan(path: AnyPath, problem: Problem, *, or_actual: bool = False) -> PlanFile:
    """A plan for this problem from a file. `or_actual`: what became of a plan, as `plan run` writes it, is as welcome."""
    try:
        found = plan_from_text(_content(Path(path)), problem)
        if found.is_actual and not or_actual:
            raise WrongInput(
                "This is no plan but what became of one, with the times that were measured: "
                "`gpuyard plan draw` shows it."
            )
    except WrongInput as error:
        raise WrongInput(f"{path}: {error}") from None
    return found


def valid_plan(path: AnyPath, problem: Problem) -> Plan:
    """The plan in a file, which must keep every rule."""
    found = read_plan(path, problem)
    if faults := check(found, problem, at_most=1):
        raise WrongInput(f"{path}: {faults[0]}")
    return found.plan


def write(path: AnyPath, content: bytes) -> None:
    """Write a file, packed where the name says so."""
    path = Path(path)
    try:
        path.write_bytes(gzip.compress(content, compresslevel=6, mtime=0) if path.suffix == ".gz" else content)
    except OSError as error:
        raise WrongInput(f"{path} can not be written: {error.strerror}.") from None


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise WrongInput("The packed file is cut off or damaged.") from None
    except OSError as error:
        raise WrongInput(f"{error.strerror}.") from None
