"""Small tasks and gangs on a few nodes: what `defragment` gains and what it costs.

    .venv/bin/python benchmarks/defragment.py [--seeds 200:220] [--preemptible 0.25,1] [--policies default]
    .venv/bin/python benchmarks/defragment.py --trace JOBS.csv --cluster 24x8 [--preemptible 0.25,1]

Each seed draws four to eight nodes of eight GPUs, an offered load from 0.6 to 0.95, and fifteen days of tasks at any time: most of
them on 1 or 2 GPUs, some on the 8 GPUs of one node, and some gangs of two such nodes. Run times are log-normal. Tasks draw whether
they may be preempted (`checkpoint`) and how they save; both settings run the same tasks. Gangs are the tasks on 8 GPUs and more.
Each row compares a policy with `defragment` off and on; `fifo+backfill:preemption=true` preempts no task, but may move it. The same
seed gives the same figures. With a trace there is one row.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import chain
from math import exp
from pathlib import Path
from random import Random
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gpuyard.simulator.comparison import JobSet, PolicyRun, simulate, trace_jobs  # noqa: E402

DAYS, DAY = 15, 86_400
GPUS_EACH, LARGE = 8, 8
LOADS = (0.6, 0.95)
SIZES = {1: 0.35, 2: 0.25, 8: 0.25, 16: 0.15}
"""Part of the work by the number of GPUs of a task."""
MEDIAN_SECONDS = {1: 2400, 2: 2400, 8: 3600, 16: 3600}
SPREAD, MOST_SECONDS = 1.2, 1.5 * DAY


def write_jobs(path: Path, seed: int) -> tuple[Path, str]:
    """Write the jobs of one seed as a trace; return it and the cluster."""
    draw = Random(f"defragment {seed}")
    nodes, load = draw.randint(4, 8), draw.uniform(*LOADS)
    rows: list[tuple[float, float, int, str]] = []
    for gpus, part in SIZES.items():
        left = load * part * nodes * GPUS_EACH * DAYS * DAY
        while left > 0:
            seconds = min(max(30.0, MEDIAN_SECONDS[gpus] * exp(draw.gauss(0, SPREAD))), MOST_SECONDS)
            left -= gpus * seconds
            rows.append((draw.uniform(0, DAYS * DAY), seconds, gpus, f"user{draw.randrange(6)}"))
    lines = [f"{at:.0f},{seconds:.0f},{gpus},{user}" for at, seconds, gpus, user in sorted(rows)]
    path.write_text("\n".join(["submit_s,duration_s,gpu_num,user", *lines]) + "\n", encoding="utf-8")
    return path, f"{nodes}x{GPUS_EACH}"


def large_waits(jobs: JobSet, run: PolicyRun) -> list[float]:
    """Return how long each task on many GPUs waited in all."""
    batches = (given for _, given in jobs.workload.arrivals(run.result.policy_variant) if isinstance(given, tuple))
    arrivals, lives = list(chain.from_iterable(batches)), list(run.result.recorder.lives.values())
    return [
        life.queued
        for arrival, life in zip(arrivals, lives, strict=True)
        if arrival.spec.resources.gpus * arrival.spec.resources.nodes >= LARGE and life.ended is not None
    ]


def figures_of(jobs: JobSet, run: PolicyRun) -> dict[str, float]:
    """Return the figures of one run that are compared."""
    waits, all_of_them = large_waits(jobs, run), run.figures
    return {
        "avg_jct_s": all_of_them["avg_jct_s"],
        "p999_queue_s": all_of_them["p999_queue_s"],
        "gang_wait_s": round(fmean(waits), 1) if waits else 0.0,
        "fragmentation": all_of_them["fragmentation"],
        "preemptions": all_of_them["preemptions"] - all_of_them["moves"],
        "moves": all_of_them["moves"],
        "lost_gpu_hours": all_of_them.get("preemption_loss_gpu_hours", 0.0),
        "wall_s": all_of_them["wall_s"],
    }


def one(trace: Path, cluster: str, seed: int, preemptible: float, policies: Sequence[str]) -> list[dict[str, Any]]:
    """Return the figures of each policy on one workload, without and with moves that make room."""
    rows = []
    for policy in policies:
        jobs = trace_jobs(trace, cluster, preemptible=preemptible, seed=seed)
        off, on = simulate(jobs, (f"{policy}:defragment=false", f"{policy}:defragment=true"))
        row = {"seed": seed, "cluster": cluster, "preemptible": preemptible, "policy": policy}
        rows.append({**row, "off": figures_of(jobs, off), "on": figures_of(jobs, on)})
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return the means of the rows of one policy and share, and in how many runs the mean completion time is longer."""
    ratios = [row["on"]["avg_jct_s"] / row["off"]["avg_jct_s"] for row in rows]
    tails = [row["on"]["p999_queue_s"] / row["off"]["p999_queue_s"] for row in rows if row["off"]["p999_queue_s"]]
    waits = [row["on"]["gang_wait_s"] / row["off"]["gang_wait_s"] for row in rows if row["off"]["gang_wait_s"]]

    def mean(key: str, side: str) -> float:
        return fmean(row[side][key] for row in rows)

    return (
        f"{rows[0]['preemptible']:.0%} preemptible, {rows[0]['policy']}: jct {fmean(ratios) - 1:+.2%} "
        f"(from {min(ratios) - 1:+.1%} to {max(ratios) - 1:+.1%}, longer in {sum(ratio > 1 for ratio in ratios)} of {len(ratios)}), "
        f"p99.9 queueing {fmean(tails or [1.0]) - 1:+.1%}, wait of gangs {fmean(waits or [1.0]) - 1:+.1%}, "
        f"fragmentation {mean('fragmentation', 'off'):.4f} to {mean('fragmentation', 'on'):.4f}, moves {mean('moves', 'on'):.1f}, "
        f"lost {mean('lost_gpu_hours', 'off'):.1f} to {mean('lost_gpu_hours', 'on'):.1f} GPU-hours"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="200:220", help="FIRST:LAST, the last one excluded")
    parser.add_argument("--preemptible", default="0.25,1")
    parser.add_argument("--policies", default="default,fifo+backfill:preemption=true")
    parser.add_argument("--trace", type=Path, help="a file of jobs instead of drawn ones")
    parser.add_argument("--cluster", default="24x8", help="the nodes for --trace")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    policies = args.policies.split(",")
    rows = []
    with TemporaryDirectory() as folder:
        for share in map(float, args.preemptible.split(",")):
            if args.trace is not None:
                rows += one(args.trace, args.cluster, 0, share, policies)
                continue
            for seed in range(*map(int, args.seeds.split(":"))):
                path, cluster = write_jobs(Path(folder) / f"{seed}.csv", seed)
                rows += one(path, cluster, seed, share, policies)
    if args.json:
        json.dump(rows, sys.stdout, indent=1)
        return
    for share in map(float, args.preemptible.split(",")):
        for policy in policies:
            print(summary([row for row in rows if row["preemptible"] == share and row["policy"] == policy]))


if __name__ == "__main__":
    main()
