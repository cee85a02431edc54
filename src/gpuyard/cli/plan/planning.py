"""One strategy on one problem: ready to run, run within its budget, watched, checked and measured."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import inf, isfinite
from threading import Timer
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from gpuyard.cli.options import finite

if TYPE_CHECKING:
    from gpuyard.plan.planner.plan import Plan
    from gpuyard.plan.planner.problem import Problem
    from gpuyard.plan.planner.strategies import Strategy

SOON_S = 2.0
"""Whoever waits longer than this is told what for."""
GETTING_READY = "gpuyard: getting the planner ready; the first time on a machine that takes up to a minute …"

Seconds = Annotated[
    float, typer.Option("--seconds", metavar="S", callback=finite, min=0.0, help="How long a strategy may search.")
]
Rounds = Annotated[
    int | None,
    typer.Option("--rounds", metavar="N", min=1, help="Search so many rounds instead: the same plan on any machine."),
]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to try."""

    seconds: float
    rounds: int | None
    seed: int


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and what is known of it."""

    plan: "Plan"
    compiling_s: float
    """What is compiled when it is first used was compiled before, on a small problem."""
    planning_s: float
    faults: list[str]
    """None, or there is a bug in the strategy."""

    def figures(self, problem: "Problem", bound_s: float, strategy: str) -> dict[str, Any]:
        """As `--json` prints them."""
        from gpuyard.cli.plan.energy import energy
        from gpuyard.plan.planner.plan import late_requests, measure

        measures = asdict(measure(problem, self.plan))
        makespan = measures.pop("makespan_s")
        if isfinite(problem.requests.deadline_s.min(initial=inf)):
            measures["late_requests"] = late_requests(problem, self.plan)
        return {
            "makespan_s": makespan,
            "lower_bound_s": bound_s,
            "gap": makespan / bound_s - 1 if bound_s else 0.0,
            **measures,
            **energy(problem, self.plan),
            "strategy": strategy,
            "planning_s": self.planning_s,
            "compiling_s": self.compiling_s,
            "valid": not self.faults,
        }


def planned(
    problem: "Problem",
    name: str,
    effort: Effort,
    bound_s: float,
    then: "Callable[[Plan], Plan]" = lambda plan: plan,
) -> Planned:
    """Run the strategy. `then` is done to its plan, within the time of planning."""
    from gpuyard.plan.planner.check import check
    from gpuyard.plan.planner.strategies import Budget, strategy

    solver = strategy(name)
    compiling_s = ready(solver)
    began = perf_counter()
    limited = effort.rounds is None
    used = (lambda: (perf_counter() - began) / effort.seconds) if limited and effort.seconds else None
    with _Watched(name, bound_s) as watched, stoppable() as stopped:

        def keep_going() -> bool:
            return not stopped() and not (limited and perf_counter() - began >= effort.seconds)

        plan = then(solver(problem, Budget(effort.seed, effort.rounds, keep_going, used, watched.better)))
    return Planned(plan, compiling_s, perf_counter() - began, check(problem, plan))


def ready(solver: "Strategy") -> float:
    """Let the strategy load and compile what it needs, on a problem of a few calls; the seconds that took."""
    from gpuyard.plan.planner.generate import generate
    from gpuyard.plan.planner.read import problem_of
    from gpuyard.plan.planner.strategies import Budget

    began = perf_counter()
    word = Timer(SOON_S, lambda: print(GETTING_READY, file=sys.stderr))
    word.daemon = True
    word.start()
    try:
        solver(problem_of(generate("agentic", 24, 2)), Budget(rounds=1))
    finally:
        word.cancel()
    return perf_counter() - began


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Ctrl-C ends a search, and what it has found by then counts; a second one ends everything."""
    before = signal.getsignal(signal.SIGINT) or signal.default_int_handler  # none: somebody outside Python has it
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, stop)
    try:
        yield lambda: stopped
    finally:
        signal.signal(signal.SIGINT, before)


class _Watched:
    """How good the best plan is by now, on standard error: on a terminal one line that goes away, else a line a second."""

    def __init__(self, name: str, bound_s: float) -> None:
        self._name, self._bound_s = name, bound_s
        self._began = self._told = perf_counter()
        self._is_terminal = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def better(self, plan: "Plan") -> None:
        """A plan that is better than those before."""
        now = perf_counter()
        if now - self._told < (0.1 if self._is_terminal else 1.0):
            return
        self._told = now
        gap = f", gap {plan.makespan_s / self._bound_s - 1:.2%}" if self._bound_s else ""
        words = f"{self._name}: {plan.makespan_s:,.2f} s{gap} after {now - self._began:.1f} s"
        print(f"\r\x1b[K{words}" if self._is_terminal else words, end="" if self._is_terminal else "\n", file=sys.stderr, flush=True)  # fmt: skip
