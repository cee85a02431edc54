"""What the score `weighted` changes: run time, energy, balance and fragmentation beside the other scores.

    .venv/bin/python benchmarks/objectives.py [--traces ../shared/traces] [--seeds 5] [--jobs 3000] [--json FILE]

Four workloads, all under `fifo+backfill` without preemption and without moves, so that only the choice of the place differs:

    light, busy, full   generated jobs on 144 GPUs (A100, V100 and T4, nodes of eight): sizes 1, 2, 4 and 8, lengths
                        log-normal, three kinds of programs with the speeds that the data sheets suggest (`PROGRAMS`);
                        the jobs of the three differ in nothing but how fast they arrive
    gavel               the trace of Gavel (OSDI 2020), 96 jobs, on 8 V100, 16 P100 and 24 K80 in nodes of four; public
                        and not in this repository. Left out if it is not there

and the openb traces (pods that never leave; fraction of the GPUs that is allocated), where places differ in fragmentation
and balance only. Nothing was tuned: all weights are 1 unless the row says otherwise. Figures are relative to `best_fit` on
the same jobs, as a geometric mean over the seeds; below 1 is better in all columns.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from math import log, sqrt
from pathlib import Path
from random import Random
from statistics import fmean, geometric_mean
from typing import Any

from gpuyard.core.domain import events
from gpuyard.core.domain.board_power import IDLE_PART, busy_watts
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import Resources
from gpuyard.core.domain.values import NodeId, TaskId
from gpuyard.core.placement.choose import choose
from gpuyard.core.placement.demand import Demand
from gpuyard.core.placement.index import Index
from gpuyard.core.placement.scores import SCORES
from gpuyard.core.placement.shape import Shape
from gpuyard.simulator.clusters import Cluster, parse_cluster
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import simulate_policy
from gpuyard.simulator.scenarios import Scenario
from gpuyard.simulator.workloads.gavel import read_gavel
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster
from gpuyard.simulator.world import World

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.openb import read_openb_nodes, read_openb_pods  # noqa: E402
from benchmarks.common.results import about  # noqa: E402
from benchmarks.packing import drawn, play  # noqa: E402

CLUSTER = "6x8:A100+6x8:V100+6x8:T4"
SERVERS = "2x4:v100+4x4:p100+6x4:k80"
FIRST_SEED = 200
HOUR = 3600.0
LOADS = {"light": 0.3, "busy": 0.6, "full": 0.9}
"""GPU-hours on an A100 that arrive, relative to those that 144 GPUs of mean speed deliver."""
PROGRAMS = {
    "matrix products": (("A100", 1.0), ("T4", 0.21), ("V100", 0.40)),  # fp16 tensor throughput: 312, 65, 125 TFLOP/s
    "memory": (("A100", 1.0), ("T4", 0.21), ("V100", 0.58)),  # memory bandwidth: 1555, 320, 900 GB/s
    "input": (("A100", 1.0), ("T4", 0.7), ("V100", 0.9)),  # bound by the host: an assumption
}
BASE = "fifo+backfill"
VARIANTS = {
    "`best_fit`": "score=best_fit",
    "`fragmentation`": "score=fragmentation",
    "`spread`": "score=spread",
    "`weighted`": "score=weighted",
    "… weights do not follow the idle rate": "score=weighted:weights_follow_idle=false",
    "… energy 3": "score=weighted:weight_energy=3",
    "… energy 10": "score=weighted:weight_energy=10",
    "… balance 3": "score=weighted:weight_balance=3",
    "… fragmentation 3": "score=weighted:weight_fragmentation=3",
    "… time 3": "score=weighted:weight_time=3",
    "… time only": "score=weighted:weight_energy=0:weight_balance=0:weight_fragmentation=0",
}
SHOWN = ("avg_jct_s", "task_kwh", "imbalance", "fragmentation")
"""The figures in the table; the file of results has all."""
OPENB_TRACES = ("default", "multigpu50")
OPENB_SCORES = ("best_fit", "spread", "fragmentation", "weighted")


class PlacementMeter:
    """Listens to a world: energy of the tasks above the idle power of their GPUs, and how evenly nodes are loaded."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        self._gpus = {node.id: node.gpus for node in cluster.nodes}
        self._used: dict[NodeId, int] = dict.fromkeys(self._gpus, 0)
        self._running: dict[TaskId, tuple[float, float, Placement]] = {}
        self._last = 0.0
        self._deviation_seconds = 0.0
        self._seconds = 0.0
        self.watt_seconds = 0.0
        world.listeners.append(self.hear)

    @property
    def imbalance(self) -> float:
        """The standard deviation of the used part of the nodes, as a mean over the time in which a task runs."""
        return self._deviation_seconds / self._seconds if self._seconds else 0.0

    def hear(self, at: float, new_events: Sequence[events.Event]) -> None:
        if self._running:
            loads = [used / len(self._gpus[name]) for name, used in self._used.items()]
            middle = fmean(loads)
            self._deviation_seconds += sqrt(fmean((load - middle) ** 2 for load in loads)) * (at - self._last)
            self._seconds += at - self._last
        self._last = at
        for event in new_events:
            if isinstance(event, events.TaskPlaced):
                watts = sum(
                    busy_watts(self._gpus[part.node][gpu].model) * (1 - IDLE_PART)
                    for part in event.placement.slices
                    for gpu in part.gpus
                )
                self._running[event.task] = (at, watts, event.placement)
                self._take(event.placement, 1)
            elif isinstance(event, events.AttemptEnded) and event.task in self._running:
                since, watts, placement = self._running.pop(event.task)
                self.watt_seconds += watts * (at - since)
                self._take(placement, -1)

    def _take(self, placement: Placement, sign: int) -> None:
        for part in placement.slices:
            self._used[part.node] += sign * len(part.gpus)


def generated(seed: int, load: float, count: int) -> list[Job]:
    """Jobs that arrive at random, at this load."""
    draw = Random(seed)
    speeds = [fmean(dict(program)[model] for program in PROGRAMS.values()) for model in ("A100", "V100", "T4")]
    capacity = 48 * sum(speeds)
    found: list[Job] = []
    at = 0.0
    for _ in range(count):
        gpus = draw.choices((1, 2, 4, 8), (0.6, 0.2, 0.12, 0.08))[0]
        seconds = min(draw.lognormvariate(log(HOUR), 1.2), 24 * HOUR)
        name = draw.choice(sorted(PROGRAMS))
        found.append(Job(at, seconds, gpus, name=name, speeds=PROGRAMS[name]))
        at += draw.expovariate(1.0) * gpus * HOUR * 2.05 / (capacity * load)
    return found


def measured(workload: JobsOnCluster, change: str) -> dict[str, float]:
    """The figures of one run."""
    meters: list[PlacementMeter] = []
    variant = policy_variant(f"{BASE}:{change}:moves=none")
    result = simulate_policy(
        workload,
        variant,
        scenario=Scenario(metered=True),
        watch=lambda world: meters.append(PlacementMeter(world, workload.cluster)),
    )
    return {
        "avg_jct_s": result.measures.avg_jct_s,
        "p99_jct_s": result.measures.p99_jct_s,
        "task_kwh": meters[0].watt_seconds / 3.6e6,
        "energy_kwh": result.further["energy_kwh"],
        "imbalance": meters[0].imbalance,
        "fragmentation": result.further["fragmentation"],
        "utilization": result.measures.utilization,
    }


def compare(traces: Path, seeds: int, count: int) -> dict[str, dict[str, list[dict[str, float]]]]:
    """All variants on all workloads."""
    cluster = parse_cluster(CLUSTER)
    workloads = {
        name: [
            JobsOnCluster(generated(FIRST_SEED + seed, load, count), cluster, preemptible=False)
            for seed in range(seeds)
        ]
        for name, load in LOADS.items()
    }
    gavel = traces / "gavel"
    if gavel.is_dir():
        jobs = read_gavel(gavel / "max_min_fairness_jobs.csv", gavel / "isolated_throughputs.csv").jobs
        workloads["gavel"] = [JobsOnCluster(jobs, parse_cluster(SERVERS), preemptible=False)]
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for name, sets in workloads.items():
        for label, change in VARIANTS.items():
            found.setdefault(name, {})[label] = [measured(workload, change) for workload in sets]
            print(f"{name}, {label}", file=sys.stderr, flush=True)
    return found


def openb(traces: Path, seeds: int) -> dict[str, dict[str, float]]:
    """The part of the GPUs that is allocated when as many were requested as there are, in percent."""
    folder = traces / "openb-v2023"
    if not folder.is_dir() or not seeds:
        return {}
    cluster = read_openb_nodes(folder / "openb_node_list_gpu_node.csv.gz")
    found: dict[str, dict[str, float]] = {}
    for trace in OPENB_TRACES:
        pods = read_openb_pods(folder / f"openb_pod_list_{trace}.csv.gz")
        for score in OPENB_SCORES:
            runs = [play(cluster, drawn(pods, cluster, FIRST_SEED + seed), score, seed) for seed in range(seeds)]
            found.setdefault(score, {})[trace] = fmean(run["allocated"][0] for run in runs)
            print(f"openb {trace}, {score}", file=sys.stderr, flush=True)
    return found


def decision_ratios(nodes: int = 1_000, rounds: int = 2_000) -> dict[str, float]:
    """CPU time of a choice among this many half-full nodes of three models, relative to `best_fit`, in one run."""
    index = Index()
    draw = Random(0)
    cluster = parse_cluster(f"{nodes // 3}x8:A100+{nodes // 3}x8:V100+{nodes // 3}x8:T4")
    demand = Demand()
    for node in cluster.nodes:
        index.join(node)
    for size in (1, 2, 4, 8):
        demand.count(Resources(gpus=size), 10)
    orders = {score: SCORES[score](1, index, demand, Settings(score=score)) for score in SCORES}

    def place(score: str, ask: Resources) -> Placement | None:
        shape = shapes.setdefault(ask, Shape(ask))
        shape.refresh(index)
        order = (
            orders[score]
            if score in {"fragmentation", "weighted"}
            else SCORES[score](ask.gpus, index, demand, Settings())
        )
        return choose(shape, index, order)

    shapes: dict[Resources, Shape] = {}
    for _ in range(2 * nodes):
        found = place("spread", Resources(gpus=draw.choice((1, 2, 4))))
        if found is not None:
            index.take(found)
    asks = [
        Resources(gpus=draw.choice((1, 2, 4)), speeds=draw.choice(sorted(PROGRAMS.values()))) for _ in range(rounds)
    ]
    seconds = {}
    for score in SCORES:
        began = time.thread_time()
        for ask in asks:
            place(score, ask)
        seconds[score] = time.thread_time() - began
    return {score: spent / seconds["best_fit"] for score, spent in seconds.items()}


def render(data: dict[str, Any]) -> str:
    """The tables of the manual, from the file of results."""
    workloads = data["workloads"]
    used = {name: fmean(run["utilization"] for run in variants["`best_fit`"]) for name, variants in workloads.items()}
    lines = [
        f"| score | {' | '.join(f'{name} ({part:.0%} in use)' for name, part in used.items())} |",
        f"|---|{'---|' * len(used)}",
    ]
    for label in VARIANTS:
        cells = (
            " / ".join(_ratio(variants["`best_fit`"], variants[label], column) for column in SHOWN)
            for variants in workloads.values()
        )
        lines.append(f"| {label} | {' | '.join(cells)} |")
    if data["openb"]:
        lines += ["", f"| openb, GPUs allocated (%) | {' | '.join(OPENB_TRACES)} |", "|---|---|---|"]
        lines += [
            f"| `{score}` | {' | '.join(f'{row[trace]:.1f}' for trace in OPENB_TRACES)} |"
            for score, row in data["openb"].items()
        ]
    lines += ["", "| score | CPU time of a choice |", "|---|---|"]
    lines += [f"| `{score}` | {ratio:.1f} |" for score, ratio in data["decision_ratios"].items()]
    return "\n".join(lines)


def _ratio(base: Iterable[dict[str, float]], runs: Iterable[dict[str, float]], column: str) -> str:
    pairs = [(one[column], other[column]) for one, other in zip(base, runs, strict=True)]
    if any(one <= 0 or other <= 0 for one, other in pairs):
        return "–"
    return f"{geometric_mean(other / one for one, other in pairs):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--openb-seeds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    data = {
        "about": about(
            f"benchmarks/objectives.py --seeds {asked.seeds} --jobs {asked.jobs} --openb-seeds {asked.openb_seeds}",
            list(range(FIRST_SEED, FIRST_SEED + asked.seeds)),
        ),
        "workloads": compare(asked.traces, asked.seeds, asked.jobs),
        "openb": openb(asked.traces, asked.openb_seeds),
        "decision_ratios": decision_ratios(),
    }
    print(render(data))
    if asked.json:
        asked.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
