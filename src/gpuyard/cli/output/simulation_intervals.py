"""Output of `gpuyard simulate` for one workload: 95 % intervals from its days."""

from collections.abc import Mapping
from typing import Any

from gpuyard.cli.output.printing import print_table
from gpuyard.simulator.bootstrap import FIGURES, Interval, IntervalsOfRun

TITLES = {"avg_jct_s": "AVG JCT", "avg_queue_s": "AVG QUEUE", "p999_queue_s": "P99.9 QUEUE"}


def as_figures(it: IntervalsOfRun) -> dict[str, Any]:
    """Return the intervals as a JSON object, each as a pair, rounded to three decimals."""
    found: dict[str, Any] = {"days": it.days, "block_days": it.block_days, **_rounded(it.figures)}
    for name, intervals in (("difference", it.difference), ("ratio", it.ratio)):
        if intervals is not None:
            found[name] = _rounded(intervals)
    return found


def print_intervals(found: Mapping[str, IntervalsOfRun]) -> None:
    """Print the intervals as a table; nothing if the workload was too short for them."""
    if not found:
        return
    base, first = next(iter(found.items()))
    titles = (
        "POLICY",
        *(f"{TITLES[name]} 95 %" for name in FIGURES),
        *(f"{TITLES[name]} − {base}" for name in FIGURES),
    )
    rows = [
        (policy, *(_spoken(it.figures[name]) for name in FIGURES), *(_spoken((it.difference or {}).get(name)) for name in FIGURES))
        for policy, it in found.items()
    ]  # fmt: skip
    print()
    print_table(titles, rows, right=titles[1:])
    print(
        f"95 % intervals from blocks of {first.block_days} of the {first.days} days, drawn with replacement; differences "
        "are paired by draw, and may be chance if their interval contains 0."
    )


def _rounded(intervals: Mapping[str, Interval]) -> dict[str, list[float]]:
    return {name: [round(pair.low, 3), round(pair.high, 3)] for name, pair in intervals.items()}


def _spoken(pair: Interval | None) -> str:
    return "" if pair is None else f"{pair.low:,.0f} to {pair.high:,.0f}"
