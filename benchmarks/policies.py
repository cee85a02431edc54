"""Policies on the public traces, compared with the published numbers.

    .venv/bin/python benchmarks/policies.py [--traces ../shared/traces] [--only venus,philly] [--processes 4] [--json FILE] [--report FOLDER]

Helios Venus, September 2020: 23,859 jobs on 135 nodes of 8 GPUs in 15 pools. Philly, 9 to 22 October 2017: 26,936 jobs on
one pool of 72 nodes of 8. The traces are public and not in this repository; the page docs/manual/simulation.md says what
the files must look like. Published numbers are those of the simulator of Lucid (ASPLOS 2023).
"""

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuyard.simulator.clusters import parse_cluster, read_nodes
from gpuyard.simulator.measures import as_json
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import Result, simulate_policy
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster
from gpuyard.simulator.workloads.trace import read_trace

ROOT = Path(__file__).parents[1]

PUBLISHED: dict[str, dict[str, float]] = {
    "venus": {
        "fifo": 65_720.5, "sjf, known": 21_095.0, "fifo+backfill": 15_982.8, "sjf+backfill, known": 13_965.7,
        "qssf": 18_797.5, "tiresias": 14_700.0, "srtf, known": 12_609.9,
    },
    "philly": {"fifo": 21_493.1, "sjf, known": 10_815.1, "tiresias": 9_658.8, "srtf, known": 9_482.2},
}  # fmt: skip
"""Average seconds from submission to end; "known": run times are known in advance."""

CHOSEN = (
    "fifo", "sjf, known", "qssf", "fifo+backfill", "sjf+backfill, known", "sjf+backfill", "qssf+backfill", "tiresias",
    "srtf, known", "srtf", "levels", "default",
)  # fmt: skip
WITHOUT = (
    "default", "levels", "default:preemption=false", "default:backfill=none", "default:backfill=greedy",
    "default:preemption_limit=5", "default:preemption_limit=1000000", "default:preemption_min_run_seconds=0",
    "default:preemption_min_run_seconds=600", "default:score=fragmentation",
    "default:level_seconds=1000000000", "default:level_seconds=345600", "default:level_seconds=86400",
    "default:level_seconds=21600", "default:level_seconds=3600",
)  # fmt: skip
"""The contribution of each part of `default`, and the trade-offs of its settings."""


WINDOWS: dict[str, tuple[float, float]] = {
    "venus": (0, 30), "venus-1": (0, 15), "venus-2": (15, 30),
    "philly": (0, 14), "philly-1": (0, 14), "philly-2": (15, 29),
}  # fmt: skip
"""Days of each: those that published numbers are of, and others. philly-1 and philly-2 are the first two weeks of October and
the second half of it, on the same 72 nodes."""


def workload(name: str, traces: Path) -> JobsOnCluster:
    """Jobs and nodes of one trace, or of a part of it."""
    first, last = (day * 86400.0 for day in WINDOWS[name])
    if name.startswith("venus"):
        folder = traces / "helios-venus"
        jobs = read_trace(folder / "venus_sept_jobs.csv.gz", "vc").jobs
        cluster = read_nodes(folder / "venus_vc_nodes.csv", "vc")
    else:
        part = "oct09_23" if name == "philly" else "oct2017"
        jobs, cluster = read_trace(traces / "philly" / f"philly_{part}_jobs.csv.gz").jobs, parse_cluster("72x8")
    return JobsOnCluster(
        [job._replace(submit=job.submit - first) for job in jobs if first <= job.submit < last], cluster
    )


def one(name: str, traces: Path, label: str) -> tuple[Result, dict[str, Any]]:
    """One policy on one trace, and how much processor time it took."""
    policy, _, known = label.partition(", ")
    jobs = workload(name, traces)
    began = time.process_time()
    result = simulate_policy(jobs, replace(policy_variant(policy), name=label), oracle=bool(known))
    cpu_s = time.process_time() - began
    published = PUBLISHED.get(name, {}).get(label)
    print(f"{name}: {label}: {result.measures.avg_jct_s:,.1f} s, {cpu_s:.1f} s", file=sys.stderr, flush=True)
    return result, {**as_json(result.measures), "published_avg_jct_s": published, "cpu_s": round(cpu_s, 1)}


def table(name: str, rows: dict[str, Any]) -> str:
    """A table for the manual."""
    lines = [
        f"| {name} | published | average jct (s) | average queueing | p99.9 queueing | preemptions | worst slowdown | average slowdown | processor |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for label, row in rows.items():
        published = row["published_avg_jct_s"]
        lines.append(
            f"| `{label}` | {f'{published:,.1f}' if published else ''} | {row['avg_jct_s']:,.1f} | {row['avg_queue_s']:,.1f} "
            f"| {row['p999_queue_s']:,.0f} | {row['preemptions']:,} | {row['worst_slowdown']:,.1f} | {row['avg_slowdown']:,.2f} | {row['cpu_s']} s |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    parser.add_argument("--only", default="venus,philly", help=f"of {', '.join(WINDOWS)}")
    parser.add_argument(
        "--without", action="store_true", help="what each part of `default` is worth, instead of all policies"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--report", type=Path, help="a folder for a page with pictures of each trace")
    asked = parser.parse_args()
    if not asked.traces.is_dir():
        print(f"There are no traces in {asked.traces}; name their folder with --traces.", file=sys.stderr)
        return 2
    found: dict[str, dict[str, Any]] = {}
    chosen = WITHOUT if asked.without else CHOSEN
    names = asked.only.split(",")
    with ProcessPoolExecutor(asked.processes) as pool:
        played = {(name, label): pool.submit(one, name, asked.traces, label) for name in names for label in chosen}
    for name in names:
        results = [played[name, label].result()[0] for label in chosen]
        found[name] = {label: played[name, label].result()[1] for label in chosen}
        print(table(name, found[name]) + "\n", flush=True)
        if asked.report:
            from gpuyard.simulator.charts import charts_of
            from gpuyard.simulator.report import page

            asked.report.mkdir(parents=True, exist_ok=True)
            text = page(f"Policies on {name}", __doc__ or "", results, charts_of(results))
            (asked.report / f"{name}.html").write_text(text, encoding="utf-8")
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
