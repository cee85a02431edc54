"""The time of a decision at every cluster size, compared with an engine that scans.

The cluster: nodes of eight GPUs, four models in equal parts, sixteen tenants with limits, the classes split 70/30. Half the
models are crowded: all their GPUs are in use and 10,000 tasks of 1, 2, 4 or 8 GPUs wait for them. The other half has
room. Then, in turn: a task ends on a crowded node and the next of the 10,000 is chosen (*refill*), a new task comes for
a model with room and is placed (*new*), one of those ends (the level stays the same). What is timed is `Engine.decide`:
who is next, may it, where, and the event entered into the state. Making the command's own events is part of the
lifecycle figure. Garbage is collected and frozen before, as a server does after start-up, and collected as usual then.

    .venv/bin/python benchmarks/engine.py [--gpus 200,1600] [--events 20000] [--json]
"""

import argparse
import gc
import random
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Any

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.events import AttemptStopping, AttemptSuspending, Event, TaskPlaced
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.settings import Backfill, Settings
from gpuyard.core.domain.task import Estimate, NewTask, Resources, Share, TaskSpec
from gpuyard.core.domain.tenant import Split, Tenant
from gpuyard.core.domain.values import NodeId, Outcome, Preemption, TaskClass, TaskId, TenantId
from gpuyard.core.engine.engine import Engine

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common.naive_engine import NaiveEngine
from benchmarks.common.output import print_figures, report_progress

SIZES = (200, 1_600, 16_000, 100_000)
SMALLEST = 200
FEWEST_EVENTS = 1_000
BACKLOG = 10_000
TENANTS = 16
CROWDED = ("A100", "H100")
ROOMY = ("L40S", "RTX4090")
MODELS = CROWDED + ROOMY
NAIVE_SECONDS = 3.0

Progress = Callable[[str], None]


class Cluster:
    """A cluster of a given size with its load and its clock."""

    def __init__(self, gpus: int, *, seed: int = 1, share_of_batch: float = 0.3, **settings: Any) -> None:
        self.random = random.Random(seed)
        self.gpus = gpus
        self.engine = Engine()
        self.now = 0.0
        self.number = 0
        self.share_of_batch = share_of_batch
        self.tell(command.CreateCluster("bench"))
        self.tell(command.ChangeSettings(Settings(**{"backfill": Backfill.GREEDY, **settings})))
        self.tell(command.SetSplit(Split(0.7, 0.3)))
        self.tenant_gpus = gpus // 4
        for tenant in range(TENANTS):
            self.tell(command.SetTenant(Tenant(TenantId(f"tenant-{tenant}"), max_gpus=self.tenant_gpus)))
        self.nodes = [self._node(place) for place in range(gpus // 8)]
        for node in self.nodes:
            self.tell(command.JoinNode(node))
        self.on_crowded: list[TaskId] = []
        self.on_roomy: list[TaskId] = []

    def _node(self, place: int) -> NodeSpec:
        cards = tuple(Gpu(MODELS[place % 4], 81_920, numa=gpu // 4, nvlink=gpu // 4) for gpu in range(8))
        return NodeSpec(NodeId(f"node-{place}"), cards, 64, 1_000_000)

    def new_task(self, models: Sequence[str], **more: Any) -> NewTask:
        """A task as users send it: every value is a new object."""
        draw = self.random
        self.number += 1
        gpus = draw.choice((1, 1, 1, 1, 2, 2, 4, 8))
        asked = {"gpus": gpus, "models": (draw.choice(models),), **more.pop("resources", {})}
        batch = draw.random() < self.share_of_batch
        return NewTask(
            TaskId(self.number),
            TaskSpec(
                TenantId(f"tenant-{draw.randrange(TENANTS)}"),
                Resources(**asked),
                name=f"task-{self.number}",
                user=f"user-{draw.randrange(100)}",
                task_class=TaskClass.BATCH if batch else TaskClass.ONLINE,
                priority=draw.randrange(101),
                command="python train.py",
                **more,
            ),
        )

    def tell(self, asked: command.Command) -> list[Event]:
        """A command that must be accepted."""
        answer = self.engine.handle(asked, self.now)
        assert isinstance(answer, list), answer.sentence()
        return answer

    def decide(self) -> tuple[float, list[TaskId]]:
        """One decision: how long it took in microseconds, and what was placed."""
        began = perf_counter()
        events = self.engine.decide(self.now)
        took = (perf_counter() - began) * 1e6
        placed = [event.task for event in events if isinstance(event, TaskPlaced)]
        for task in placed:
            self.tell(command.ReportStarted(task, self.engine.state.tasks[task].attempts))
        return took, placed

    def submit(self, new: NewTask) -> None:
        """Submit a task."""
        self.tell(command.SubmitTasks((new,)))

    def end(self, task: TaskId) -> None:
        """End a task with success."""
        self.tell(command.ReportEnded(task, self.engine.state.tasks[task].attempts, Outcome.SUCCEEDED, 0))

    def fill(self) -> None:
        """Crowd one half, put the backlog before it, and fill the other half to three fifths."""
        state = self.engine.state
        while state.queue.waiting < BACKLOG:
            for _ in range(200):
                self.submit(self.new_task(CROWDED))
            self.on_crowded += self.decide()[1]
        held = 0
        while held < self.gpus // 2 * 0.6:
            new = self.new_task(ROOMY)
            held += new.spec.resources.gpus
            self.submit(new)
            self.on_roomy += self.decide()[1]
        gc.collect()
        gc.freeze()

    def take(self, tasks: list[TaskId]) -> TaskId:
        """One of these, at random, in constant time."""
        place = self.random.randrange(len(tasks))
        tasks[place], tasks[-1] = tasks[-1], tasks[place]
        return tasks.pop()

    def top_up(self) -> None:
        """Keep the backlog as long as it was."""
        while self.engine.state.queue.waiting < BACKLOG:
            self.submit(self.new_task(CROWDED))
            self.on_crowded += self.decide()[1]


def run(gpus: Sequence[int] = SIZES, events: int = 20_000, progress: Progress | None = None) -> dict[str, Any]:
    """All sizes, then the expensive searches separately."""
    tell = progress or (lambda _: None)
    runs = []
    for size in gpus:
        tell(f"{size} GPUs: decisions")
        row: dict[str, Any] = {"gpus": size, **_decisions(size, events)}
        tell(f"{size} GPUs: lifecycles")
        row["lifecycles_per_s"] = _lifecycles(size, events)
        row["bytes_per_task"] = _bytes_per_task(size)
        tell(f"{size} GPUs: the naive engine")
        row["naive_decision_us_p50"] = _naive(size)
        row["naive_over_engine"] = round(row["naive_decision_us_p50"] / row["decision_us_p50"], 1)
        runs.append(row)
    return {
        "backlog": BACKLOG,
        "events": events,
        "runs": runs,
        "apart": _apart(min(1_600, max(gpus)), events // 10, tell),
    }


def _decisions(size: int, events: int) -> dict[str, float]:
    cluster = Cluster(size)
    cluster.fill()
    refill: list[float] = []
    fresh: list[float] = []
    nothing: list[float] = []
    for _ in range(events):
        cluster.now += 0.01
        cluster.end(cluster.take(cluster.on_crowded))
        took, placed = cluster.decide()
        cluster.on_crowded += placed
        (refill if placed else nothing).append(took / max(len(placed), 1))
        cluster.top_up()
        cluster.submit(cluster.new_task(ROOMY))
        took, placed = cluster.decide()
        cluster.on_roomy += placed
        (fresh if placed else nothing).append(took)
        if cluster.on_roomy:
            cluster.end(cluster.take(cluster.on_roomy))
            cluster.decide()
    gc.unfreeze()
    figures = _percentiles("decision_us", refill + fresh)
    figures |= _percentiles("refill_us", refill) | _percentiles("new_us", fresh)
    return {**figures, "refused_us_p50": _percentiles("x", nothing)["x_p50"] if nothing else 0.0}


def _lifecycles(size: int, events: int) -> int:
    """Tasks that were submitted, placed, started and ended, a second, with the backlog waiting."""
    cluster = Cluster(size)
    cluster.fill()
    specs = [cluster.new_task(CROWDED) for _ in range(events)]
    engine, events = cluster.engine, 0
    began = perf_counter()
    for new in specs:
        cluster.now += 0.01
        events += len(cluster.tell(command.SubmitTasks((new,))))
        ended = cluster.take(cluster.on_crowded)
        attempt = engine.state.tasks[ended].attempts
        events += len(cluster.tell(command.ReportEnded(ended, attempt, Outcome.SUCCEEDED, 0)))
        for event in engine.decide(cluster.now):
            events += 1
            if isinstance(event, TaskPlaced):
                events += len(cluster.tell(command.ReportStarted(event.task, event.attempt)))
                cluster.on_crowded.append(event.task)
    took = perf_counter() - began
    gc.unfreeze()
    return round(events / 5 / took)  # five events make one life


def _bytes_per_task(size: int) -> int:
    cluster = Cluster(size)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(BACKLOG):
        cluster.submit(cluster.new_task(CROWDED, after_any=()))
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return round(used / BACKLOG)


def _naive(size: int) -> float:
    """The same load on the engine that scans, for as many decisions as a few seconds allow."""
    cluster = Cluster(size)
    online = round(size * 0.7)
    naive = NaiveEngine(online, size - online, cluster.tenant_gpus, cluster.engine.state.settings.aging_seconds)
    for node in cluster.nodes:
        naive.join(node)
    for node, busy in naive.nodes:  # crowd one half by hand: filling it by scanning would take an hour
        if node.gpus[0].model in CROWDED:
            for gpu in range(8):
                new = cluster.new_task(CROWDED, resources={"gpus": 1})
                busy[gpu] = True
                naive.running[new.id] = (new, busy, [gpu])
                naive.used[new.spec.task_class] += 1
                naive.by_tenant[new.spec.tenant] = naive.by_tenant.get(new.spec.tenant, 0) + 1
    for _ in range(BACKLOG):
        naive.submit(cluster.new_task(CROWDED), 0.0)
    times: list[float] = []
    running = list(naive.running)
    stop = perf_counter() + NAIVE_SECONDS
    while (perf_counter() < stop or not times) and len(times) < 2_000 and running:
        naive.end(running.pop(cluster.random.randrange(len(running))))
        began = perf_counter()
        placed = naive.decide()
        times.append((perf_counter() - began) * 1e6)
        if placed is not None:
            running.append(placed)
            naive.submit(cluster.new_task(CROWDED), 0.0)
    return round(sorted(times)[len(times) // 2], 1)


# --- separately ----------------------------------------------------------------------------------------------------------


def _apart(size: int, events: int, tell: Progress) -> list[dict[str, Any]]:
    """The searches that are bounded in depth, each in its own cluster."""
    estimate = Estimate(3600.0, 1800.0, 7200.0)
    cases: list[tuple[str, dict[str, Any], Callable[[Cluster], NewTask]]] = [
        ("backfill easy", {"backfill": Backfill.EASY}, lambda cluster: cluster.new_task(CROWDED, estimate=estimate)),
        (
            "backfill conservative",
            {"backfill": Backfill.CONSERVATIVE},
            lambda cluster: cluster.new_task(CROWDED, estimate=estimate),
        ),
        (
            "gangs of 2 to 4 nodes",
            {},
            lambda cluster: cluster.new_task(CROWDED, resources={"nodes": cluster.random.choice((2, 3, 4))}),
        ),
        ("shares", {}, lambda cluster: cluster.new_task(CROWDED, resources={"gpus": 0, "share": Share(250)})),
        ("class quota full", {"share_of_batch": 0.6}, lambda cluster: cluster.new_task(CROWDED)),
        ("fair share", {"policy": "fair_share"}, lambda cluster: cluster.new_task(CROWDED)),
    ]
    rows = []
    for name, settings, make in cases:
        tell(f"apart, {size} GPUs: {name}")
        rows.append({"what": name, "gpus": size, **_one_apart(Cluster(size, **settings), make, events)})
    tell(f"apart, {size} GPUs: preemption")
    rows.append({"what": "preemption", "gpus": size, **_preemption(size, events)})
    return rows


def _one_apart(cluster: Cluster, make: Callable[[Cluster], NewTask], events: int) -> dict[str, float]:
    running: list[TaskId] = []
    state = cluster.engine.state
    while state.queue.waiting < BACKLOG // 10:
        cluster.submit(make(cluster))
        running += cluster.decide()[1]
    gc.collect()
    gc.freeze()
    times = []
    for _ in range(events):
        cluster.now += 1.0
        cluster.end(cluster.take(running))
        took, placed = cluster.decide()
        times.append(took)
        running += placed
        while state.queue.waiting < BACKLOG // 10:
            cluster.submit(make(cluster))
            running += cluster.decide()[1]
    gc.unfreeze()
    return _percentiles("decision_us", times)


def _preemption(size: int, events: int) -> dict[str, float]:
    """Urgent tasks arrive at a cluster full of batch tasks that may be suspended; victims are chosen."""
    cluster = Cluster(size, share_of_batch=1.0)
    cluster.tell(command.SetSplit(Split(1.0, 0.0)))
    cluster.share_of_batch = 0.0
    while True:
        new = cluster.new_task(CROWDED, preemption=Preemption.SUSPEND, resources={"gpus": 1})
        spec = {field: getattr(new.spec, field) for field in new.spec.__struct_fields__} | {"priority": 0}
        cluster.submit(NewTask(new.id, TaskSpec(**spec)))
        if not cluster.decide()[1]:
            break
    cluster.now += 3600.0
    times = []
    for _ in range(min(events, size // 8)):
        new = cluster.new_task(CROWDED, resources={"gpus": 2})
        spec = {field: getattr(new.spec, field) for field in new.spec.__struct_fields__} | {"priority": 100}
        cluster.submit(NewTask(new.id, TaskSpec(**spec)))
        began = perf_counter()
        events = cluster.engine.decide(cluster.now)
        if any(isinstance(event, AttemptSuspending | AttemptStopping) for event in events):
            times.append((perf_counter() - began) * 1e6)
    return _percentiles("decision_us", times)


def _percentiles(name: str, values: list[float]) -> dict[str, float]:
    """p50, p99 and p99.9."""
    cuts = quantiles(values, n=1000, method="inclusive")
    return {f"{name}_p50": round(cuts[499], 2), f"{name}_p99": round(cuts[989], 2), f"{name}_p999": round(cuts[998], 2)}


def _sizes(text: str) -> tuple[int, ...]:
    """Parse `200,1600`."""
    sizes = tuple(int(word) for word in text.split(","))
    if min(sizes) < SMALLEST:
        raise argparse.ArgumentTypeError(f"{min(sizes)} GPUs are too few to measure; take {SMALLEST} or more")
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=_sizes, default=SIZES, metavar="N,N", help="cluster sizes in GPUs")
    parser.add_argument("--events", type=int, default=20_000, help="decisions measured for each size")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    asked = parser.parse_args()
    if asked.events < FEWEST_EVENTS:
        parser.error(f"--events must be at least {FEWEST_EVENTS}")
    print_figures(run(asked.gpus, asked.events, report_progress), as_json=asked.json)


if __name__ == "__main__":
    main()
