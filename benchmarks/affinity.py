"""Tasks placed by predicted speeds on 8 RTX 3090, 8 RTX 4090 and 8 RTX PRO 6000 Max-Q.

    .venv/bin/python benchmarks/affinity.py [--profiles ../shared/profiles] [--seeds 10] [--json FILE]

Jobs are image models of timm that were measured on all three; the profiles are public and not in this repository. What a job
really does is what was measured. What the scheduler knows differs from row to row:

    blind       nothing
    one factor  a speed for each GPU, the same for all jobs: the median over the families that are not jobs
    predicted   what `gpuyard predict` says of models of families it has never seen: a fifth of the families are jobs, and the
                predictor learns from the others
    measured    the truth, which is unknown before a job has run

300 jobs of one to four GPUs arrive at random, four of five for half an hour to 17 hours on an RTX 4090, the others up to a week;
about four of five GPUs are busy. Ratios are of average time from submission to end, by seed.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt
from pathlib import Path
from random import Random
from statistics import mean, stdev

import msgspec
import numpy as np

from gpuyard.core.domain.settings import Moves
from gpuyard.core.placement.speeds import Speeds
from gpuyard.learn.performance import dataset, gpu_specs, kind_model
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.simulator.clusters import parse_cluster
from gpuyard.simulator.policy_variants import PolicyVariant, policy_variant
from gpuyard.simulator.run import simulate_policy
from gpuyard.simulator.workloads.arrival import Arrival, TimedInput
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster

ROOT = Path(__file__).parents[1]
CLUSTER = "2x4:RTX3090+2x4:RTX4090+2x4:RTXPRO6000-MaxQ"
REFERENCE = "RTX4090"
JOBS, EVERY_S = 300, 5_400.0
POLICIES = ("fifo+backfill", "default", "small_first")
HELD_BACK = 5
"""One family in so many."""


@dataclass(frozen=True, slots=True)
class Told(JobsOnCluster):
    """Jobs that declare other speeds than they have, by name; none: nothing is declared."""

    said: Mapping[str, Speeds] = field(default_factory=dict)

    def arrivals(self, policy_variant: PolicyVariant) -> Iterator[TimedInput]:
        """The jobs, in order."""
        for at, arrivals in JobsOnCluster.arrivals(self, policy_variant):
            assert isinstance(arrivals, tuple)
            yield at, tuple(self._told(one) for one in arrivals)

    def _told(self, arrival: Arrival) -> Arrival:
        ask = msgspec.structs.replace(arrival.spec.resources, speeds=self.said.get(arrival.spec.name, ()))
        return arrival._replace(spec=msgspec.structs.replace(arrival.spec, resources=ask))


def measured(rows: ProfileRows) -> dict[str, dict[str, int]]:
    """Of each model that was measured on all GPUs in inference: the quickest row on each."""
    rate = rows.shape["batch"] / rows.measured
    plain = (rows.words["mode"] == "infer") & (rows.words["compiled"] == "no")
    found: dict[str, dict[str, int]] = {}
    for at in np.flatnonzero(plain).tolist():
        best = found.setdefault(str(rows.words["model"][at]), {})
        gpu = str(rows.gpu[at])
        if gpu not in best or rate[at] > rate[best[gpu]]:
            best[gpu] = at
    everywhere = len(np.unique(rows.gpu))
    return {model: best for model, best in found.items() if len(best) == everywhere}


def speeds(rate: np.ndarray, best: Mapping[str, int]) -> Speeds:
    """Relative to the fastest."""
    top = max(rate[at] for at in best.values())
    return tuple(sorted((gpu, float(rate[at] / top)) for gpu, at in best.items()))


def knowledge(rows: ProfileRows, seed: int) -> tuple[dict[str, Speeds], dict[str, dict[str, Speeds]]]:
    """The real speeds of models of held-out families, and what each row knows of them."""
    families = np.unique(rows.family)
    back = set(np.random.default_rng(seed).permutation(families)[: len(families) // HELD_BACK].tolist())
    held = np.isin(rows.family, sorted(back))
    trained = kind_model.fit(rows.take(~held), gpu_specs.shipped(), seed)
    real, thought = (rows.shape["batch"] / time for time in (rows.measured, np.full(len(rows), np.nan)))
    thought[held] = rows.shape["batch"][held] / trained.predict(rows.take(held), gpu_specs.shipped()).middle
    every = measured(rows)
    jobs = {model: best for model, best in every.items() if held[next(iter(best.values()))]}
    others = [dict(speeds(real, best)) for model, best in every.items() if model not in jobs]
    factor = tuple((gpu, float(np.median([one[gpu] for one in others]))) for gpu in sorted(others[0]))
    truth = {model: speeds(real, best) for model, best in jobs.items()}
    return truth, {
        "blind": {},
        "one factor": dict.fromkeys(jobs, factor),
        "predicted": {model: speeds(thought, best) for model, best in jobs.items()},
        "measured": truth,
    }


def drawn(truth: Mapping[str, Speeds], seed: int) -> list[Job]:
    """Jobs that take so long on the reference, or so much less on what is faster."""
    draw = Random(seed)
    names, at, found = sorted(truth), 0.0, []
    for _ in range(JOBS):
        name = draw.choice(names)
        minutes = 10 ** (draw.uniform(1.5, 3) if draw.random() < 0.8 else draw.uniform(3, 4))
        at += draw.expovariate(1 / EVERY_S)
        seconds = 60 * minutes * dict(truth[name])[REFERENCE]
        found.append(Job(at, seconds, draw.choices((1, 2, 4), (0.7, 0.2, 0.1))[0], name=name, speeds=truth[name]))
    return found


def hours(workload: Told, policy: str, moves: Moves) -> float:
    """Average from submission to end; all jobs are preemptible."""
    known = policy_variant(policy)
    settings = msgspec.structs.replace(known.settings, moves=moves, preemption=True)
    return simulate_policy(workload, replace(known, settings=settings)).measures.avg_jct_s / 3600


def compare(rows: ProfileRows, seeds: int) -> dict[str, dict[str, list[float]]]:
    """Average hours by policy and by what is known, a figure for each seed."""
    found: dict[str, dict[str, list[float]]] = {}
    cluster = parse_cluster(CLUSTER)
    for seed in range(seeds):
        truth, ways = knowledge(rows, seed)
        jobs = drawn(truth, 1_000 + seed)
        for policy in POLICIES:
            for way, said in ways.items():
                played = hours(Told(jobs, cluster, said=said), policy, Moves.EXCHANGE if said else Moves.NONE)
                found.setdefault(policy, {}).setdefault(way, []).append(played)
        print(f"seed {seed}: " + ", ".join(f"{w} {v[-1]:.2f} h" for w, v in found["default"].items()), file=sys.stderr)
    return found


def against(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """The ratio of geometric means, and its interval of 95 % over the seeds (normal, by pairs)."""
    logs = [log(a / b) for a, b in zip(ours, theirs, strict=True)]
    half = 1.96 * stdev(logs) / sqrt(len(logs)) if len(logs) > 1 else 0.0
    return exp(mean(logs)), exp(mean(logs) - half), exp(mean(logs) + half)


def text(found: Mapping[str, Mapping[str, list[float]]]) -> str:
    """A table for the manual."""
    ways = list(next(iter(found.values())))
    lines = ["| policy | " + " | ".join(ways) + " | predicted over one factor |", "|---" * (len(ways) + 2) + "|"]
    for policy, by_way in found.items():
        ratio, low, high = against(by_way["predicted"], by_way["one factor"])
        shown = " | ".join(f"{mean(by_way[way]):.2f} h" for way in ways)
        lines.append(f"| {policy} | {shown} | {ratio:.3f} ({low:.3f}–{high:.3f}) |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", type=Path, default=ROOT.parent / "shared" / "profiles")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    file = asked.profiles / "timm_models.csv.gz"
    if not file.is_file():
        print(f"There is no file {file}; name the folder of the profiles with --profiles.", file=sys.stderr)
        return 2
    found = compare(dataset.read(file)[0], asked.seeds)
    print(text(found))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
