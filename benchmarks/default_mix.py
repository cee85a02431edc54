"""`default` against `fifo+backfill` where no, some or all jobs can be preempted, on workloads it was not tuned on.

    .venv/bin/python benchmarks/default_mix.py [--philly philly.csv] [--json benchmarks/results/default_mix.json]

The generated workloads use seeds that were not used to choose the rules of `default` (decision 0039). `--philly` adds a window of
December 2017: a CSV file with the columns timestamp, duration, num_gpus, cluster, one row for each job of the public Philly trace.
A job may be preempted if a hash of its number says so, so that a larger share contains the smaller one.
"""

import argparse
import csv
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from gpuyard.core.domain.values import Preemption
from gpuyard.simulator.clusters import parse_cluster
from gpuyard.simulator.measures import as_json
from gpuyard.simulator.policy_variants import PolicyVariant, policy_variant
from gpuyard.simulator.run import simulate_policy
from gpuyard.simulator.workloads.arrival import TimedInput
from gpuyard.simulator.workloads.generated import GeneratedJobs
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster, fitting

SHARES = (0.0, 0.25, 0.5, 1.0)
GENERATED = ((3000, "6x8", 0.95, 501), (6000, "16x8", 0.9, 502), (6000, "24x8", 0.9, 503))
"""Number of jobs, cluster, load and seed."""
DECEMBER = ("2017-12-04", 12, "44x8")
"""First day, number of days, and a cluster on which the load is about 0.9."""
FIGURES = ("avg_jct_s", "p50_jct_s", "p999_queue_s", "preemptions")


class PartlyPreemptible(JobsOnCluster):
    """Jobs of which a share may be preempted."""

    __slots__ = ()
    share = 0.0

    def arrivals(self, policy_variant: PolicyVariant) -> Iterator[TimedInput]:
        """Return the jobs in the order of submission."""
        for at, coming in JobsOnCluster.arrivals(self, policy_variant):
            assert isinstance(coming, tuple)
            drawn = []
            for arrival in coming:
                allows = zlib.crc32(b"%d" % arrival.task) % 10_000 < self.share * 10_000
                preemption = Preemption.CHECKPOINT if allows else Preemption.NEVER
                drawn.append(arrival._replace(spec=replace(arrival.spec, preemption=preemption)))
            yield at, tuple(drawn)


def december(path: Path) -> tuple[list[Job], str]:
    """Return the jobs of the window, with their virtual cluster as the user."""
    begins, days, cluster = datetime.fromisoformat(DECEMBER[0]).replace(tzinfo=UTC).timestamp(), *DECEMBER[1:]
    jobs = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            at = datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC).timestamp() - begins
            if 0 <= at < days * 86_400:
                jobs.append(Job(at, float(row["duration"]), int(row["num_gpus"]), row["cluster"]))
    return sorted(fitting(jobs, parse_cluster(cluster)), key=lambda job: job.submit), cluster


def rows(jobs: list[Job], cluster: str) -> dict[str, Any]:
    """Return the figures of all policies on one workload."""
    found: dict[str, Any] = {"jobs": len(jobs), "mean_run_s": round(sum(job.seconds for job in jobs) / len(jobs), 1)}
    for label, policy, share, oracle in (
        ("fifo+backfill", "fifo+backfill", 0.0, False),
        *((f"default, {share:.0%}", "default", share, False) for share in SHARES),
        ("qssf+backfill, known", "qssf+backfill", 0.0, True),
        ("srtf, known, 100%", "srtf", 1.0, True),
    ):
        workload = type("Drawn", (PartlyPreemptible,), {"__slots__": (), "share": share})(jobs, parse_cluster(cluster))
        measures = as_json(simulate_policy(workload, policy_variant(policy), oracle=oracle).measures)
        assert measures["jobs"] == len(jobs)
        found[label] = {name: measures[name] for name in FIGURES}
        print(f"{label}: {measures['avg_jct_s']:,.0f} s", file=sys.stderr, flush=True)
    return found


def render(data: dict[str, Any]) -> str:
    """Return the Markdown table: average completion time, median, p99.9 of queueing, in seconds."""
    labels = [label for label in next(iter(data["windows"].values())) if label not in {"jobs", "mean_run_s"}]
    lines = ["| | " + " | ".join(data["windows"]) + " |", "|---|" + "---|" * len(data["windows"])]
    lines.append(
        "| mean run time | " + " | ".join(f"{one['mean_run_s']:,.0f}" for one in data["windows"].values()) + " |"
    )
    for label in labels:
        cells = [
            f"{one[label]['avg_jct_s']:,.0f} / {one[label]['p50_jct_s']:,.0f} / {one[label]['p999_queue_s']:,.0f}"
            for one in data["windows"].values()
        ]
        lines.append(f"| `{label}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--philly", type=Path, help="jobs of the Philly trace")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    windows: dict[str, Any] = {}
    for count, cluster, load, seed in GENERATED:
        drawn = GeneratedJobs(count, parse_cluster(cluster), lambda seed=seed: Random(seed).random, load)  # type: ignore[misc]
        windows[f"seed {seed}, {cluster}, load {load}"] = rows(list(drawn), cluster)
    if asked.philly:
        windows[f"Philly, {DECEMBER[0]}, {DECEMBER[1]} days, {DECEMBER[2]}"] = rows(*december(asked.philly))
    commit = subprocess.run(("git", "rev-parse", "--short", "HEAD"), capture_output=True, text=True, check=False)
    data = {
        "command": "benchmarks/default_mix.py --philly philly.csv",
        "commit": commit.stdout.strip(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "seeds": [seed for *_, seed in GENERATED],
        "windows": windows,
    }
    if asked.json:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(data, indent=1) + "\n")
    print(render(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
