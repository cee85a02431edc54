"""Planning in the terminal: options of a search, its progress, and Ctrl-C."""

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
from gpuyard.cli.plan.first_use import marker

if TYPE_CHECKING:
    from gpuyard.plan.planner.api import Watch
    from gpuyard.plan.planner.plan import Plan
    from gpuyard.plan.planner.problem import Problem

SOON_S = 2.0
"""Seconds after which a message explains the delay."""
GETTING_READY = "gpuyard: compiling the planner; on the first run on a machine this takes up to a minute …"
LOADING = "gpuyard: loading the planner …"

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
    """Print the quality of the best plan to standard error while a strategy searches; Ctrl-C ends the search."""
    from gpuyard.plan.planner.api import Watch

    with _Told(name, lower_bound_s) as told, stoppable() as stopped:
        yield Watch(told.better, stopped)


def ready(strategy: str, problem: "Problem") -> None:
    """Load and compile what the strategy needs for such a problem; print a message if that takes long."""
    from gpuyard.plan.planner.api import prepare_for
    from gpuyard.plan.planner.strategies import can_plan

    can_plan(strategy, problem)
    word = Timer(SOON_S, lambda: print(LOADING if marker().exists() else GETTING_READY, file=sys.stderr))
    word.daemon = True
    word.start()
    try:
        prepare_for(strategy, problem)
    finally:
        word.cancel()


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C end a search with the best plan found so far; a second Ctrl-C ends the command."""
    before = signal.getsignal(signal.SIGINT) or signal.default_int_handler  # None: installed outside Python
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
    """Prints the quality of the best plan to standard error: one line that is removed on a terminal, else a line a second."""

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
        """Print the quality of a plan that is better than those before."""
        now = perf_counter()
        if now - self._told < (0.1 if self._is_terminal else 1.0):
            return
        self._told = now
        gap = f", gap {plan.makespan_s / self._bound_s - 1:.2%}" if self._bound_s else ""
        words = f"{self._name}: {plan.makespan_s:,.2f} s{gap} after {now - self._began:.1f} s"
        print(f"\r\x1b[K{words}" if self._is_terminal else words, end="" if self._is_terminal else "\n", file=sys.stderr, flush=True)  # fmt: skip
