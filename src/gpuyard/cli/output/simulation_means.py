"""Output of `gpuyard simulate --repeat`: means over all workloads, with confidence intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuyard.cli.output.printing import print_table
from gpuyard.simulator.confidence import Mean, difference, mean_of

RepeatedFigures = Mapping[str, Sequence[Mapping[str, float]]]
"""For each policy, the figures of each workload, in the same order."""


def as_figures(found: RepeatedFigures) -> dict[str, Any]:
    """Return means by the names of the figures; `ci95`: half of each interval; `difference`: to the first policy."""
    base = next(iter(found))
    rows: dict[str, Any] = {}
    for policy, runs in found.items():
        means = {name: mean_of([run[name] for run in runs]) for name in runs[0]}
        rows[policy] = {**_plain(means), "ci95": _halves(means)}
        if policy != base:
            apart = {
                name: difference([run[name] for run in runs], [run[name] for run in found[base]]) for name in means
            }
            rows[policy]["difference"] = {**_plain(apart), "ci95": _halves(apart)}
    return rows


def print_means(found: RepeatedFigures) -> None:
    """Print the means as a table."""
    base = next(iter(found))
    names = ("POLICY", "AVG JCT", f"− {base}", "P99 JCT", "AVG QUEUE", "P99.9 QUEUE", "PREEMPTIONS", "USED", "FAIRNESS")
    rows = []
    for policy, runs in found.items():
        jct = [run["avg_jct_s"] for run in runs]
        apart = "" if policy == base else _spoken(difference(jct, [run["avg_jct_s"] for run in found[base]]))
        figures = {name: mean_of([run[name] for run in runs]) for name in runs[0]}
        rows.append((
            policy, _spoken(figures["avg_jct_s"]), apart, *(_spoken(figures[name]) for name in ("p99_jct_s", "avg_queue_s", "p999_queue_s", "preemptions")),
            _percent(figures["utilization"]), _spoken(figures["user_fairness"], 3),
        ))  # fmt: skip
    print_table(names, rows, right=names[1:])
    count = len(found[base])
    print(
        f"Times in seconds; means over {count} workloads, ± half of the 95 % confidence interval; differences are "
        "paired by workload."
    )  # fmt: skip


def _plain(means: Mapping[str, Mean]) -> dict[str, float]:
    return {name: round(it.mean, 3) for name, it in means.items()}


def _halves(means: Mapping[str, Mean]) -> dict[str, float]:
    return {name: round(it.ci95, 3) for name, it in means.items()}


def _spoken(it: Mean, places: int = 0) -> str:
    return f"{it.mean:,.{places}f} ± {it.ci95:,.{places}f}"


def _percent(it: Mean) -> str:
    return f"{it.mean:.1%} ± {it.ci95:.1%}"
