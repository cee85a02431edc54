"""What a person sees of planning: options of a search, how far it is, and Ctrl-C."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self

import typer

from gpuyard.cli.input.options import finite

if TYPE_CHECKING:
    from gpuyard.plan.planner.api import Watch
    from gpuyard.plan.planner.plan import Plan
    from gpuyard.plan.planner.problem import Problem

SOON_S = 2.0
"""Whoever waits longer than this is told what for."""
GETTING_READY = "gpuyard: compiling the planner; on the first run on a machine this takes up to a minute …"

SecondsOption = Annotated[
    float, typer.Option("--seconds", metavar="S", callback=finite, help="Time limit of the search.")
]
RoundsOption = Annotated[
    int | None,
    typer.Option(
        "--rounds",
        metavar="N",
        help="Number of search rounds instead of a time limit; gives the same plan on every machine.",
    ),
]


@contextmanager
def watched(name: str, lower_bound_s: float) -> "Iterator[Watch]":
    """While a strategy searches: how good the best plan is by now, on standard error; Ctrl-C ends the search."""
    from gpuyard.plan.planner.api import Watch

    with _Told(name, lower_bound_s) as told, stoppable() as stopped:
        yield Watch(told.better, stopped)


def ready(strategy: str, problem: "Problem") -> None:
    """Let a strategy that plans such problems load and compile what it needs; a person who waits for it is told so."""
    from gpuyard.plan.planner.api import prepare
    from gpuyard.plan.planner.strategies import can_plan

    can_plan(strategy, problem)
    word = Timer(SOON_S, lambda: print(GETTING_READY, file=sys.stderr))
    word.daemon = True
    word.start()
    try:
        prepare(strategy)
    finally:
        word.cancel()


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


class _Told:
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
