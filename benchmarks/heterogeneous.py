"""Jobs that are faster on some GPUs than on others, on 8 V100, 16 P100 and 24 K80, beside the published numbers of Gavel.

    .venv/bin/python benchmarks/heterogeneous.py [--traces ../shared/traces] [--seeds 9]

It writes benchmarks/results/gpu_models.json, from which `make tables` makes the table of docs/manual/simulation.md.

The trace is the one of Gavel (OSDI 2020) with 96 jobs; it is public and not in this repository. Its simulator counts the GPUs of a
kind and knows no nodes, so here each kind is one node. Two sets of generated traces show what is specific to the trace:

    alike    36 jobs at once and 60 that come over 13 hours at random, as in the trace; types, sizes and lengths on a V100 are
             drawn from its jobs, each by itself
    tailed   300 jobs, two in three hours on average, with the sizes and lengths of Gavel's own generator: on a V100 half an
             hour to a week, four of five below 17 hours
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import msgspec

from gpuyard.core.domain.settings import Moves
from gpuyard.core.domain.task import TaskSpec
from gpuyard.simulator.clusters import parse_cluster
from gpuyard.simulator.measures import SimulationMeasures
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import simulate_policy
from gpuyard.simulator.workloads.gavel import ThroughputTable, read_gavel, read_throughputs
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.results import about, write_result  # noqa: E402

CLUSTER = "1x8:v100+1x16:p100+1x24:k80"
SERVERS = "2x4:v100+4x4:p100+6x4:k80"
REFERENCE = "v100"
FIRST_SEED = 100
HOUR = 3600.0

PUBLISHED = {
    "FIFO, type-blind": (9.97, 54.6),
    "LAS max-min fairness, type-blind": (5.55, 21.4),
    "FIFO, type-aware": (5.42, 20.1),
    "Gandiva": (4.83, 18.7),
    "max sum of throughputs": (4.74, 17.8),
    "finish-time fairness, type-aware": (4.17, 18.1),
    "LAS max-min fairness, type-aware (Gavel)": (4.06, 17.8),
}
"""Hours: average time from submission to end, and when the last job ends."""

ROWS = [
    (policy, say_speeds, moves)
    for policy in ("fifo+backfill", "default", "small_first")
    for say_speeds, moves in ((False, Moves.NONE), (True, Moves.NONE), (True, Moves.FREE), (True, Moves.EXCHANGE))
]
WORDS = {Moves.NONE: "no moves", Moves.FREE: "moves to free GPUs", Moves.EXCHANGE: "moves and exchanges"}


class StopsAreFree(JobsOnCluster):
    """As in Gavel's simulator."""

    def restart_seconds(self, spec: TaskSpec) -> float:  # noqa: ARG002
        return 0.0


def played(workload: JobsOnCluster, policy: str, moves: Moves) -> SimulationMeasures:
    """Under a policy as `gpuyard simulate` knows it, with so many moves; all jobs are preemptible."""
    known = policy_variant(policy)
    settings = msgspec.structs.replace(known.settings, moves=moves, preemption=True)
    return simulate_policy(workload, replace(known, settings=settings)).measures


def alike(jobs: Sequence[Job], table: ThroughputTable, seed: int) -> list[Job]:
    """A trace of the same kind as the one given."""
    draw = Random(seed)
    together = sum(job.submit == 0 for job in jobs)
    every = jobs[-1].submit / (len(jobs) - together)
    found: list[Job] = []
    at = 0.0
    while len(found) < len(jobs):
        name, gpus, length = draw.choice(jobs).name, draw.choice(jobs).gpus, draw.choice(jobs)
        if (job := _job(table, name, gpus, _seconds_on_reference(length))) is not None:
            at += draw.expovariate(1 / every) if len(found) >= together else 0.0
            found.append(job._replace(submit=at))
    return found


def tailed(table: ThroughputTable, seed: int, count: int = 300, every: float = 1.5 * HOUR) -> list[Job]:
    """Sizes and lengths as Gavel's generator draws them."""
    draw = Random(seed)
    names = sorted({name for name, _ in table})
    found: list[Job] = []
    at = 0.0
    while len(found) < count:
        gpus = draw.choices((1, 2, 4, 8), (0.7, 0.1, 0.15, 0.05))[0]
        minutes = 10 ** (draw.uniform(1.5, 3) if draw.random() < 0.8 else draw.uniform(3, 4))
        if (job := _job(table, draw.choice(names), gpus, minutes * 60)) is not None:
            at += draw.expovariate(1 / every)
            found.append(job._replace(submit=at))
    return found


def _job(table: ThroughputTable, name: str, gpus: int, reference_seconds: float) -> Job | None:
    """A job that takes so long on the reference; none if its speed there is unknown."""
    by_kind = table.get((name, gpus), {})
    if REFERENCE not in by_kind:
        return None
    seconds = reference_seconds * by_kind[REFERENCE] / max(by_kind.values())
    return Job(0.0, seconds, gpus, name=name, models=tuple(sorted(by_kind)), speeds=tuple(sorted(by_kind.items())))


def _seconds_on_reference(job: Job) -> float:
    speeds = dict(job.speeds)
    return job.seconds * max(speeds.values()) / speeds[REFERENCE]


def compare(jobs: list[Job], table: ThroughputTable, seeds: int) -> Iterator[tuple[str, dict[str, float]]]:
    """All rows: on the trace with and without costs, and on the average of the generated ones."""
    cluster = parse_cluster(CLUSTER)
    sets = {
        "alike_h": [alike(jobs, table, FIRST_SEED + place) for place in range(seeds)],
        "tailed_h": [tailed(table, FIRST_SEED + place) for place in range(max(1, seeds // 3))],
    }
    for policy, say_speeds, moves in ROWS:
        workload = JobsOnCluster(jobs, cluster, say_speeds=say_speeds)
        costly, free = played(workload, policy, moves), played(_free(workload), policy, moves)
        row = {
            "avg_jct_h": costly.avg_jct_s / HOUR,
            "last_end_h": costly.makespan_s / HOUR,
            "p99_jct_h": costly.p99_jct_s / HOUR,
            "stops": costly.preemptions,
            "moves": costly.moves,
            "avg_jct_h_stops_free": free.avg_jct_s / HOUR,
            "avg_jct_h_servers": played(replace(workload, cluster=parse_cluster(SERVERS)), policy, moves).avg_jct_s
            / HOUR,
        }
        for name, traces in sets.items():
            measured = [played(replace(workload, jobs=trace), policy, moves).avg_jct_s / HOUR for trace in traces]
            row[name] = mean(measured)
        label = f"{policy}, {WORDS[moves] if say_speeds else 'blind'}"
        print(f"{label}: {row['avg_jct_h']:.2f} h", file=sys.stderr, flush=True)
        yield label, row


def _free(workload: JobsOnCluster) -> JobsOnCluster:
    return StopsAreFree(workload.jobs, workload.cluster, say_speeds=workload.say_speeds)


def render(result: dict[str, Any]) -> str:
    """Return the table of the manual."""
    lines = [
        "| hours | average jct | stops cost nothing | last end | p99 jct | stops | of these, moves | servers of 4 | alike | tailed |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [f"| published: {name} | | {jct:.2f} | {end} | | | | | | |" for name, (jct, end) in PUBLISHED.items()]
    lines += [
        f"| {_code(label)} | {row['avg_jct_h']:.2f} | {row['avg_jct_h_stops_free']:.2f} | {row['last_end_h']:.1f} "
        f"| {row['p99_jct_h']:.1f} | {row['stops']:.0f} | {row['moves']:.0f} | {row['avg_jct_h_servers']:.2f} | {row['alike_h']:.2f} "
        f"| {row['tailed_h']:.1f} |"
        for label, row in result["rows"].items()
    ]
    return "\n".join(lines)


def _code(label: str) -> str:
    policy, _, rest = label.partition(", ")
    return f"`{policy}`, {'speeds not declared' if rest == 'blind' else rest}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    parser.add_argument("--seeds", type=int, default=9)
    asked = parser.parse_args()
    folder = asked.traces / "gavel"
    if not folder.is_dir():
        print(
            f"There is no folder gavel in {asked.traces}; name the folder of the traces with --traces.", file=sys.stderr
        )
        return 2
    throughputs = folder / "isolated_throughputs.csv"
    jobs = read_gavel(folder / "max_min_fairness_jobs.csv", throughputs).jobs
    rows = dict(compare(jobs, read_throughputs(throughputs), asked.seeds))
    seeds = [FIRST_SEED + place for place in range(asked.seeds)]
    made = about(f"benchmarks/heterogeneous.py --seeds {asked.seeds}", seeds, preemptible=1.0, checkpoints="published")
    path = write_result("gpu_models", made, rows)
    print(render({"rows": rows}))
    print(f"Written: {path.name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
