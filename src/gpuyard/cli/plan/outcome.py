"""The output of `plan run`: progress, results as they arrive, and figures and errors at the end."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from gpuyard.plan.planner.plan import Plan
    from gpuyard.plan.planner.problem import Problem
    from gpuyard.plan.workers.follow import FollowResult

SHOWN = 10
"""The maximum number of reasons for failed calls that are printed."""
NAMED = 3
"""The maximum number of calls that are named with each reason."""
EVERY_S = 10.0
"""Seconds between two progress lines if standard error is not a terminal."""


def figures_for_people(figures: dict[str, Any]) -> list[tuple[str, object]]:
    """Return the figures to print, without failures and losses; `done` is text, so that a zero is printed too."""
    return [
        (name, str(value) if name == "done" else value)
        for name, value in figures.items()
        if name not in {"failed", "losses"}
    ]


def complain(figures: dict[str, Any], written: Path | None, troubles: Sequence[str]) -> None:
    """Print to standard error what failed and what the user interrupted; `written` is the file with the executed plan."""
    calls_of: dict[str, list[str]] = {}
    """Failed calls by reason; many calls have the same one."""
    for one in figures["failed"]:
        calls_of.setdefault(one["why"], []).append(one["call"])
    said = [f"{why}{f', {times:,} times' if times > 1 else ''}." for why, times in Counter(figures["losses"]).items()]
    said = [*said[:SHOWN], *(f"{_these(calls)} not done: {why}." for why, calls in list(calls_of.items())[:SHOWN])]
    if len(calls_of) > SHOWN:
        said.append(f"And {sum(map(len, list(calls_of.values())[SHOWN:])):,} more, for other reasons.")
    said += troubles
    if figures["ended_by_hand"]:
        where = f"; see {written} for places and times" if written is not None else ""
        said.append(f"Interrupted: {figures['done']:,} of {figures['calls']:,} calls were done{where}.")
    for sentence in said:
        print(f"gpuyard: {sentence}", file=sys.stderr)


def _these(calls: list[str]) -> str:
    """Return a list of calls with its verb: `r0/a was`, `r0/a and r1/a were`, `r0/a, r1/a, r2/a and 6 more were`."""
    names = [*calls[:NAMED], f"{len(calls) - NAMED:,} more"] if len(calls) > NAMED + 1 else calls
    return f"{', '.join(names[:-1])} and {names[-1]} were" if len(names) > 1 else f"{names[0]} was"


class Results:
    """Writes final results as JSON lines as they arrive. A file without results is removed."""

    def __init__(self, path: Path | None, problem: "Problem") -> None:
        self._problem = problem
        self._path = path
        self._file: IO[bytes] | None = None
        self._kept = 0

    def __enter__(self) -> Self:
        self._file = None if self._path is None else self._path.open("wb", buffering=0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._path is not None and self._file is not None:
            self._file.close()
            if not self._kept and self._path.is_file():  # not standard output and not a pipe
                self._path.unlink()

    def keep(self, call: int, result: object) -> None:
        """Write one result."""
        if self._file is None:
            return
        import msgspec

        request, _, node = self._problem.name_of(call).rpartition("/")
        line = {"request": request, "node": node, "result": result}
        self._file.write(msgspec.json.encode(line, enc_hook=str) + b"\n")
        self._kept += 1


class RunProgress:
    """Prints progress and delay to standard error: one updated line on a terminal, otherwise a line every few seconds.

    The delay is the time since the first plan expected as many calls to be done.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._ends: list[float] = []
        self._quiet = quiet
        self._is_terminal = sys.stderr.isatty()
        self._told = monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._is_terminal and not self._quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def follows(self, planned: "Plan") -> None:
        """Set the first plan, from which the delay is computed."""
        self._ends = sorted(planned.end.tolist())

    def tell(self, followed: "FollowResult") -> None:
        """Print the progress if the last output is old enough."""
        pause = 0.2 if self._is_terminal else EVERY_S
        if self._quiet or monotonic() - self._told < pause:
            return
        self._told = monotonic()
        executor = followed.executor
        due_s = self._ends[executor.done] if executor.done < len(self._ends) else self._ends[-1]
        late_s = max(0.0, followed.now_s - due_s)
        total = self._ends[-1]
        words = (
            f"{executor.done:,} of {len(self._ends):,} calls, {followed.now_s:,.0f} s of {total:,.0f} s, "
            f"{late_s:,.1f} s late ({late_s / total:.1%}), {executor.counts.stolen:,} stolen"
        )
        if self._is_terminal:
            print(f"\r\x1b[K{words}", end="", file=sys.stderr, flush=True)
        else:
            print(f"gpuyard: {words}", file=sys.stderr, flush=True)
