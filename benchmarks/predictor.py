"""The accuracy of predicted run times on the public traces.

    .venv/bin/python benchmarks/predictor.py [--traces ../shared/traces] [--only venus,philly] [--picture FILE.png]
    .venv/bin/python benchmarks/predictor.py --learning FILE.png    how the error falls from the first tasks on

Each job is predicted when it arrives, from what had ended by then, and scored when it has ended. The jobs are simulated first come,
first served with backfill, whatever is predicted, so that all predictors see the same ends. The traces are those of
benchmarks/policies.py.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from gpuyard.core.domain.task import Estimate
from gpuyard.learn.estimates.history import HistoryPredictor, RuntimePredictor, TaskFeatures
from gpuyard.learn.estimates.learned import LearnedPredictor
from gpuyard.simulator.accuracy import accuracy, by_day, typical_factor
from gpuyard.simulator.charts import charts_of
from gpuyard.simulator.clusters import parse_cluster, read_nodes
from gpuyard.simulator.policy_variants import EstimateSource, policy_variant
from gpuyard.simulator.run import Result, simulate_policy
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster
from gpuyard.simulator.workloads.trace import read_trace

ROOT = Path(__file__).parents[1]
RUNS = (0, 1, 2, 4, 8, 16, 32)
"""Runs of a kind that had ended, in doublings."""
LONG_LIVED = 64
"""Kinds with so many runs show how one kind is learned; of all kinds, those with many runs may be the simple ones."""
FIRSTS = (3, 30, 100, 300, 1000, 3000, 10_000, 30_000)
"""Tasks that had ended in the whole cluster."""
PREDICTORS: dict[str, Callable[[], RuntimePredictor]] = {"history": HistoryPredictor, "lightgbm": LearnedPredictor}


def workload(name: str, traces: Path) -> JobsOnCluster:
    if name == "venus":
        folder = traces / "helios-venus"
        jobs = read_trace(folder / "venus_sept_jobs.csv.gz", "vc").jobs
        return JobsOnCluster(jobs, read_nodes(folder / "venus_vc_nodes.csv", "vc"))
    return JobsOnCluster(read_trace(traces / "philly" / "philly_oct09_23_jobs.csv.gz").jobs, parse_cluster("72x8"))


class Watched(HistoryPredictor):
    """A history that records how much it knew at each prediction, and its error."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: Counter[object] = Counter()
        self.judged: list[tuple[object, int, int, float]] = []
        """Kind; runs of it, and tasks of the cluster, that had ended at the prediction; error, as a logarithm."""
        self._asked: dict[tuple[object, Estimate], list[tuple[int, int]]] = {}

    def estimate(self, asked: TaskFeatures, now: float) -> Estimate | None:
        """As History, and recorded."""
        told = super().estimate(asked, now)
        kind = asked.similarity_keys()[-1]
        if told is not None:
            self._asked.setdefault((kind, told), []).append((self._ends[kind], self._ends[()]))
        return told

    def ended(self, asked: TaskFeatures, seconds: float, now: float, told: Estimate | None = None) -> None:
        """As History, and judged."""
        kind = asked.similarity_keys()[-1]
        if told is not None and (noted := self._asked.get((kind, told))):
            self.judged.append((kind, *noted.pop(0), abs(log(max(told.seconds, 1.0) / max(seconds, 1.0)))))
        self._ends.update((kind, ()))
        super().ended(asked, seconds, now, told)

    def runs(self, kind: object) -> int:
        """How many of a kind have ended in all."""
        return self._ends[kind]


def learning(names: list[str], traces: Path, picture: Path) -> None:
    """By how much predictions are wrong, by what was known when they were made."""
    figure = Figure(figsize=(9.6, 3.6), dpi=130, layout="constrained")
    by_cluster, by_kind = figure.subplots(1, 2, sharey=True)
    print("| trace | known | " + " | ".join(str(runs) for runs in RUNS) + " or more |")
    print("|---|---|" + "---|" * len(RUNS))
    for colour, name in zip(("tab:blue", "tab:orange"), names, strict=False):
        watched = Watched()
        blind = replace(policy_variant("fifo+backfill"), estimate_source=EstimateSource.LEARNED)
        simulate_policy(workload(name, traces), blind, predictor=lambda: watched)  # noqa: B023 - played at once
        cluster = _factors([(known, wrong) for _, _, known, wrong in watched.judged], FIRSTS)
        by_cluster.plot(list(cluster), list(cluster.values()), marker="o", color=colour, label=name)
        long_lived = [it for it in watched.judged if watched.runs(it[0]) >= LONG_LIVED]
        for label, judged, line in (
            ("all kinds", watched.judged, "-"),
            (f"kinds with {LONG_LIVED} runs", long_lived, "--"),
        ):
            kinds = _factors([(known, wrong) for _, known, _, wrong in judged], RUNS)
            by_kind.plot(
                range(len(kinds)), list(kinds.values()), line, marker="o", color=colour, label=f"{name}, {label}"
            )
            print(f"| {name} | runs of its kind, {label} | " + " | ".join(f"{it:.2f}" for it in kinds.values()) + " |")
        print(
            f"| {name} | tasks of the cluster: " + ", ".join(f"{key:,}: {it:.2f}" for key, it in cluster.items()) + " |"
        )
    by_cluster.set_xscale("log")
    by_cluster.set_xlabel("tasks that had ended in the cluster")
    by_cluster.set_ylabel("typical factor")
    by_cluster.set_ylim(bottom=1.0)
    by_kind.set_xticks(range(len(RUNS)), [str(runs) for runs in RUNS])
    by_kind.set_xlabel("runs of its kind that had ended, or up to twice as many")
    for axes in (by_cluster, by_kind):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(picture)


def _factors(judged: list[tuple[int, float]], steps: tuple[int, ...]) -> dict[int, float]:
    """The typical factor from each step to the next."""
    found: dict[int, list[float]] = {}
    for known, wrong in judged:
        below = [step for step in steps if step <= known]
        if below:
            found.setdefault(below[-1], []).append(wrong)
    return {step: exp(fmean(found[step])) for step in steps if step in found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    parser.add_argument("--only", default="venus,philly")
    parser.add_argument("--picture", type=Path, help="by how much predictions are wrong, day by day")
    parser.add_argument(
        "--learning", type=Path, help="draw how the error falls from the first tasks on, and nothing else"
    )
    asked = parser.parse_args()
    if not asked.traces.is_dir():
        print(f"There are no traces in {asked.traces}; name their folder with --traces.", file=sys.stderr)
        return 2
    if asked.learning:
        learning(asked.only.split(","), asked.traces, asked.learning)
        return 0
    print("| trace | predictor | predicted | typical factor | by week | median error | rank correlation | within band | below high | CPU |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    results: list[Result] = []
    for name in asked.only.split(","):
        jobs = workload(name, asked.traces)
        for label, predictor in PREDICTORS.items():
            blind = replace(
                policy_variant("fifo+backfill"), name=f"{name}, {label}", estimate_source=EstimateSource.LEARNED
            )
            began = time.process_time()
            result = simulate_policy(jobs, blind, predictor=predictor)
            took = time.process_time() - began
            it = accuracy(result.forecasts)
            assert it is not None
            weeks: dict[int, list[float]] = {}
            for day, forecasts in by_day(result.forecasts):
                weeks.setdefault(day // 7, []).extend(forecasts)
            by_week = " ".join(f"{typical_factor(week):.2f}" for week in weeks.values())
            print(
                f"| {name} | {label} | {it.predicted:,} | {it.typical_factor:.2f} | {by_week} | {it.median_error:.2f} "
                f"| {it.rank_correlation:.3f} | {it.within_band:.3f} | {it.below_high:.3f} | {took:.1f} s |",
                flush=True,
            )
            results.append(result)
    if asked.picture:
        asked.picture.write_bytes(charts_of(results)["accuracy"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
