"""How right predicted run times are, on the public traces.

    .venv/bin/python benchmarks/predictor.py [--traces ../shared/traces] [--only venus,philly] [--picture FILE.png]

Each job is predicted when it comes, from what had ended by then, and judged when it has ended. The jobs are played first come,
first served with backfill, whatever is predicted, so that all predictors see the same ends. The traces are those of
benchmarks/policies.py.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpuyard.predictor.history import History, Predictor
from gpuyard.predictor.learned import Learned
from gpuyard.simulator.accuracy import accuracy, by_day, typical_factor
from gpuyard.simulator.clusters import equal_nodes, read_nodes
from gpuyard.simulator.contenders import Foresight, contender
from gpuyard.simulator.pictures import pictures
from gpuyard.simulator.play import Result, play
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster
from gpuyard.simulator.workloads.trace import read_trace

ROOT = Path(__file__).parents[1]
PREDICTORS: dict[str, Callable[[], Predictor]] = {"history": History, "lightgbm": Learned}


def workload(name: str, traces: Path) -> JobsOnCluster:
    if name == "venus":
        folder = traces / "helios-venus"
        jobs = read_trace(folder / "venus_sept_jobs.csv.gz", "vc").jobs
        return JobsOnCluster(jobs, read_nodes(folder / "venus_vc_nodes.csv", "vc"))
    return JobsOnCluster(read_trace(traces / "philly" / "philly_oct09_23_jobs.csv.gz").jobs, equal_nodes("72x8"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    parser.add_argument("--only", default="venus,philly")
    parser.add_argument("--picture", type=Path, help="by how much predictions are wrong, day by day")
    asked = parser.parse_args()
    if not asked.traces.is_dir():
        print(f"There are no traces in {asked.traces}; name their folder with --traces.", file=sys.stderr)
        return 2
    print("| trace | predictor | predicted | typical factor | by week | median error | rank correlation | within band | below high | CPU |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    results: list[Result] = []
    for name in asked.only.split(","):
        jobs = workload(name, asked.traces)
        for label, predictor in PREDICTORS.items():
            blind = replace(contender("fifo+backfill"), name=f"{name}, {label}", foresight=Foresight.HISTORY)
            began = time.process_time()
            result = play(jobs, blind, predictor=predictor)
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
        asked.picture.write_bytes(pictures(results)["accuracy"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
