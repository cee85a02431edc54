"""Policies on the public traces, beside the published numbers.

    .venv/bin/python benchmarks/policies.py [--traces ../shared/traces] [--only venus,philly] [--json FILE] [--report FOLDER]

Helios Venus, September 2020: 23,859 jobs on 135 nodes of 8 GPUs in 15 pools. Philly, 9 to 22 October 2017: 26,936 jobs on
one pool of 72 nodes of 8. The traces are public and not in this repository; the page docs/manual/simulation.md says what
the files must look like. Published numbers are those of the simulator of Lucid (ASPLOS 2023).
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuyard.simulator.clusters import equal_nodes, read_nodes
from gpuyard.simulator.contenders import contender
from gpuyard.simulator.measures import as_json
from gpuyard.simulator.play import Result, play
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster
from gpuyard.simulator.workloads.trace import read_trace

ROOT = Path(__file__).parents[1]

PUBLISHED: dict[str, dict[str, float]] = {
    "venus": {
        "fifo": 65_720.5, "sjf, known": 21_095.0, "fifo+backfill": 15_982.8, "sjf+backfill, known": 13_965.7,
        "tiresias": 14_700.0, "srtf, known": 12_609.9,
    },
    "philly": {"fifo": 21_493.1, "sjf, known": 10_815.1, "tiresias": 9_658.8, "srtf, known": 9_482.2},
}  # fmt: skip
"""Average seconds from submission to end; "known": run times are known beforehand."""

CHOSEN = (
    "fifo", "sjf, known", "fifo+backfill", "sjf+backfill, known", "sjf+backfill", "tiresias", "srtf, known", "srtf", "levels",
)  # fmt: skip


def workload(name: str, traces: Path) -> JobsOnCluster:
    """Jobs and nodes of one trace."""
    if name == "venus":
        folder = traces / "helios-venus"
        jobs = read_trace(folder / "venus_sept_jobs.csv.gz", "vc").jobs
        return JobsOnCluster(jobs, read_nodes(folder / "venus_vc_nodes.csv", "vc"))
    return JobsOnCluster(read_trace(traces / "philly" / "philly_oct09_23_jobs.csv.gz").jobs, equal_nodes("72x8"))


def compare(name: str, traces: Path) -> tuple[list[Result], dict[str, Any]]:
    """All policies on one trace."""
    jobs = workload(name, traces)
    results, rows = [], {}
    for label in CHOSEN:
        policy, _, known = label.partition(", ")
        began = time.perf_counter()
        result = play(jobs, replace(contender(policy), name=label), oracle=bool(known))
        wall_s = time.perf_counter() - began
        published = PUBLISHED[name].get(label)
        rows[label] = {**as_json(result.measures), "published_avg_jct_s": published, "wall_s": round(wall_s, 1)}
        results.append(result)
        print(f"{name}: {label}: {result.measures.avg_jct_s:,.1f} s, {wall_s:.1f} s", file=sys.stderr, flush=True)
    return results, rows


def table(name: str, rows: dict[str, Any]) -> str:
    """For people and for the manual."""
    lines = [
        f"| {name} | published | average jct (s) | average queueing | p99.9 queueing | preemptions | worst slowdown | took |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for label, row in rows.items():
        published = row["published_avg_jct_s"]
        lines.append(
            f"| `{label}` | {f'{published:,.1f}' if published else ''} | {row['avg_jct_s']:,.1f} | {row['avg_queue_s']:,.1f} "
            f"| {row['p999_queue_s']:,.0f} | {row['preemptions']:,} | {row['worst_slowdown']:,.1f} | {row['wall_s']} s |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    parser.add_argument("--only", default="venus,philly")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--report", type=Path, help="a folder for a page with pictures of each trace")
    asked = parser.parse_args()
    if not asked.traces.is_dir():
        print(f"There are no traces in {asked.traces}; name their folder with --traces.", file=sys.stderr)
        return 2
    found = {}
    for name in asked.only.split(","):
        results, found[name] = compare(name, asked.traces)
        print(table(name, found[name]) + "\n", flush=True)
        if asked.report:
            from gpuyard.simulator.pictures import pictures
            from gpuyard.simulator.report import page

            asked.report.mkdir(parents=True, exist_ok=True)
            text = page(f"Policies on {name}", __doc__ or "", results, pictures(results))
            (asked.report / f"{name}.html").write_text(text, encoding="utf-8")
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
