"""The fraction of GPUs that each score allocates on the openb traces, through the real engine.

    .venv/bin/python benchmarks/packing.py [--seeds 5] [--traces FOLDER] [--only TRACE,...] [--scores NAME,...] [--json FILE]

Pods of a trace are drawn with a seed, in random order, until they request 130 % of the GPUs of the 1,213 nodes, and arrive one
by one; none leaves. The figure is the part of the GPUs that is allocated when 100 % and 130 % were requested, as a mean
over the seeds. `random` takes any node with room (and its fullest GPU): the benchmark draws it, the engine places.
The rows in brackets are published ones: Weng et al., "Beware of Fragmentation", USENIX ATC 2023.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.settings import Backfill, Settings
from gpuyard.core.domain.task import NewTask, Resources, TaskSpec
from gpuyard.core.domain.tenant import Split
from gpuyard.core.domain.values import MILLI, TaskId, TenantId
from gpuyard.core.engine.engine import Engine
from gpuyard.core.placement.choose import groups_with_room
from gpuyard.core.placement.shape import Shape
from gpuyard.simulator.clusters import Cluster

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.openb import gpu_milli, read_openb_nodes, read_openb_pods  # noqa: E402

FOLDER = ROOT.parent / "shared/traces/openb-v2023"
TRACES = ("default", "gpuspec33", "gpushare100", "multigpu50")
SCORES = ("random", "spread", "best_fit", "fragmentation")
PUBLISHED = {
    "Random": ((86.3, 87.5), (83.9, 86.5), (78.9, 79.4), (81.3, 90.3)),
    "BestFit": ((92.9, 93.1), (80.4, 93.1), (84.6, 85.0), (95.6, 95.7)),
    "FGD": ((95.2, 95.4), (87.8, 94.6), (86.6, 86.9), (97.1, 97.2)),
}
MARKS = (1.0, 1.3)
NODE = "node"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--traces", type=Path, default=FOLDER)
    parser.add_argument("--only", default=",".join(TRACES))
    parser.add_argument("--scores", default=",".join(SCORES))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if not asked.traces.is_dir():
        sys.exit(f"There is no folder {asked.traces}; name the one with the openb files by --traces.")
    cluster = read_openb_nodes(asked.traces / "openb_node_list_gpu_node.csv.gz")
    rows = []
    traces = asked.only.split(",")
    if unknown := sorted({*traces} - {*TRACES} | {*asked.scores.split(",")} - {*SCORES}):
        sys.exit(f"There is no {unknown[0]}; there are {', '.join(TRACES)} and the scores {', '.join(SCORES)}.")
    for score in asked.scores.split(","):
        for trace in traces:
            pods = read_openb_pods(asked.traces / f"openb_pod_list_{trace}.csv.gz")
            runs = [play(cluster, drawn(pods, cluster, seed), score, seed) for seed in range(asked.seeds)]
            rows.append(summary(score, trace, runs))
            print(as_text(rows[-1]), flush=True)
    print(table(rows, traces))
    if asked.json:
        asked.json.write_text(json.dumps({"seeds": asked.seeds, "rows": rows}, indent=2) + "\n", encoding="utf-8")


def drawn(pods: Sequence[Resources], cluster: Cluster, seed: int) -> list[Resources]:
    """Pods until they request as much as the last mark."""
    chance = random.Random(seed)
    found = []
    left = MARKS[-1] * cluster.gpus * MILLI
    while left > 0:
        found.append(chance.choice(pods))
        left -= gpu_milli(found[-1])
    return found


def play(cluster: Cluster, pods: Sequence[Resources], score: str, seed: int) -> dict[str, Any]:
    """One run of a cluster; what was allocated at each mark, and the CPU time of decisions."""
    engine = Engine()
    settings = Settings(policy="fifo", score=score, backfill=Backfill.GREEDY, preemption=False)
    if score == "random":
        settings = replace(settings, score="best_fit")
        cluster = Cluster(tuple(replace(node, labels=((NODE, node.id),)) for node in cluster.nodes))
    for order in (
        command.CreateCluster("packing"),
        command.SetSplit(Split(0.0, 1.0)),
        command.ChangeSettings(settings),
        *(command.JoinNode(node) for node in cluster.nodes),
    ):
        answer = engine.handle(order, 0.0)
        assert not isinstance(answer, Refusal), answer.sentence()
    chance = random.Random(seed)
    marks = [mark * cluster.gpus * MILLI for mark in MARKS]
    asked = allocated = 0
    reached: list[float] = []
    seconds: list[float] = []
    for place, pod in enumerate(pods, start=1):
        asked += gpu_milli(pod)
        ask = at_random(pod, engine, chance) if score == "random" else pod
        if ask is not None:
            spec = TaskSpec(TenantId("all"), ask, command="true")
            answer = engine.handle(command.SubmitTasks((NewTask(TaskId(place), spec),)), 0.0)
            assert not isinstance(answer, Refusal), answer.sentence()
            began = time.thread_time()
            new_events = engine.decide(0.0)
            seconds.append(time.thread_time() - began)
            allocated += sum(
                event.placement.charge_milli for event in new_events if isinstance(event, events.TaskPlaced)
            )
        while len(reached) < len(marks) and asked >= marks[len(reached)]:
            reached.append(100 * allocated / cluster.gpus / MILLI)
    seconds.sort()
    return {
        "allocated": reached,
        "p50_us": 1e6 * seconds[len(seconds) // 2],
        "p99_us": 1e6 * seconds[len(seconds) * 99 // 100],
    }


def at_random(pod: Resources, engine: Engine, chance: random.Random) -> Resources | None:
    """The pod, bound to any node that has room for it now."""
    shape = Shape(pod)
    shape.refresh(engine.state.index)
    found = groups_with_room(shape, engine.state.index)
    return replace(pod, labels=((NODE, chance.choice(found).host.spec.id),)) if found else None


def summary(score: str, trace: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the seeds."""
    return {
        "score": score,
        "trace": trace,
        "allocated": [round(statistics.fmean(run["allocated"][place] for run in runs), 2) for place in (0, 1)],
        "least_and_most": [
            [round(pick(run["allocated"][place] for run in runs), 2) for pick in (min, max)] for place in (0, 1)
        ],
        "p50_us": round(statistics.fmean(run["p50_us"] for run in runs), 1),
        "p99_us": round(statistics.fmean(run["p99_us"] for run in runs), 1),
    }


def as_text(row: dict[str, Any]) -> str:
    """One line of progress."""
    at_100, at_130 = row["allocated"]
    low, high = row["least_and_most"][0]
    return (
        f"{row['score']:14} {row['trace']:12} {at_100:6.2f} / {at_130:5.2f} %   ({low:.2f} to {high:.2f})   "
        f"decision p50 {row['p50_us']:.0f} µs, p99 {row['p99_us']:.0f} µs"
    )


def table(rows: list[dict[str, Any]], traces: list[str]) -> str:
    """Scores and published policies beside each other."""
    lines = ["", f"| allocated at 100 / 130 % asked | {' | '.join(traces)} |", "|---" * (len(traces) + 1) + "|"]
    for name, published in PUBLISHED.items():
        cells = [f"{at_100} / {at_130}" for at_100, at_130 in (published[TRACES.index(trace)] for trace in traces)]
        lines.append(f"| ({name}) | {' | '.join(cells)} |")
    for score in dict.fromkeys(row["score"] for row in rows):
        cells = ["{:.1f} / {:.1f}".format(*row["allocated"]) for row in rows if row["score"] == score]
        lines.append(f"| {score} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
