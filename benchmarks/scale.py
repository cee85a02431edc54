"""The cost of a simulated event after ten thousand jobs and after a million.

    .venv/bin/python benchmarks/scale.py [--policies fifo,srtf] [--jobs 1000000] [--json FILE]

Jobs are generated (`gpuyard simulate --generate`) for one cluster at one load, so a longer run is more of the same. For each
policy there is one run, in a process of its own: the processor time of each stretch of it, over the events of that stretch,
and how much memory there was at its end. What grows with the number of jobs that came shows from column to column; in
the first sections the cluster still fills up, and preemptive policies have few jobs to preempt.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from resource import RUSAGE_SELF, getrusage
from time import process_time
from typing import Any

from gpuyard.core.domain.events import Event
from gpuyard.simulator.clusters import parse_cluster
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.recorder import Recorder
from gpuyard.simulator.run import simulate_policy
from gpuyard.simulator.workloads.generated import GeneratedJobs
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster

POLICIES = ("fifo", "fifo+backfill", "sjf+backfill", "srtf", "tiresias", "levels", "default")
MARKS = (10_000, 30_000, 100_000, 300_000, 1_000_000)
CLUSTER, LOAD, SEED = "64x8", 0.7, 0


def one(policy: str, jobs: int) -> list[dict[str, Any]]:
    """One run, in this process: its stretches."""
    cluster = parse_cluster(CLUSTER)
    drawn = GeneratedJobs(jobs, cluster, lambda: Random(SEED).random, LOAD)
    next(iter(drawn))  # the load is met by drawing all jobs once beforehand, which is no part of a simulation
    events, began = 0, process_time()
    seen = [(0, 0, 0.0)]
    rows: list[dict[str, Any]] = []
    hear = Recorder.hear

    def count(self: Recorder, at: float, heard: Sequence[Event]) -> None:
        nonlocal events
        events += len(heard)
        hear(self, at, heard)

    def progress(come: int) -> None:
        if come not in MARKS or come == seen[-1][0]:
            return
        seen.append((come, events, process_time() - began))
        (_, events_before, s_before), (_, events_now, s_now) = seen[-2:]
        mib = getrusage(RUSAGE_SELF).ru_maxrss / 1024
        us = (s_now - s_before) / (events_now - events_before) * 1e6
        rows.append({"jobs": come, "events": events_now, "us_per_event": round(us, 1), "peak_mib": round(mib)})

    Recorder.hear = count  # type: ignore[method-assign]
    found = simulate_policy(JobsOnCluster(drawn, cluster), policy_variant(policy), progress=progress)
    mib = getrusage(RUSAGE_SELF).ru_maxrss / 1024
    return [*rows, {"jobs": jobs, "preemptions": found.measures.preemptions, "events": events, "cpu_s": round(process_time() - began), "peak_mib": round(mib)}]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--jobs", type=int, default=MARKS[-1])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", metavar="POLICY", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one(asked.one, asked.jobs)))
        return 0
    marks = [mark for mark in MARKS if mark <= asked.jobs]
    heads = [f"to {mark:,}" for mark in marks]
    print(f"µs per event, and peak MiB in brackets\n\n| policy | {' | '.join(heads)} | preemptions | took | peak |")
    print("|---" * (len(marks) + 4) + "|", flush=True)
    found = {}
    for policy in asked.policies.split(","):
        words = ("--one", policy, "--jobs", str(asked.jobs))
        done = subprocess.run([sys.executable, __file__, *words], check=True, capture_output=True, text=True)
        *rows, end = found[policy] = json.loads(done.stdout)
        cells = " | ".join(f"{row['us_per_event']} ({row['peak_mib']})" for row in rows)
        print(
            f"| `{policy}` | {cells} | {end['preemptions']:,} | {end['cpu_s']} s | {end['peak_mib']} MiB |", flush=True
        )
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
