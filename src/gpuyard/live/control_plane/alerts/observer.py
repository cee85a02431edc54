"""Samples for the rules, read from the views, the last heartbeats, the loop and the predictors.

Everything is in memory, except the free space of the scheduler's own disk. GPUs are looked at in slices, so that the
event loop runs other work in between. A question to the engine waits for a commit; it is given up after a second,
because a commit that hangs is one of the things to be noticed.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.events import TaskPlaced
from gpuyard.core.domain.refusals import BudgetSpent
from gpuyard.core.domain.values import MILLI, NodeId, TaskStatus
from gpuyard.core.engine.state import State
from gpuyard.core.journal.records import Record
from gpuyard.live.control_plane.alerts.commit_times import CommitTimes
from gpuyard.live.control_plane.alerts.rules.rule import Labels, Sample
from gpuyard.live.control_plane.loop import EngineLoop
from gpuyard.live.control_plane.time_slices import TimeSlicer
from gpuyard.live.control_plane.views import NodeView, Views
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.tasks import format_task_id

LOOK_SECONDS = 1.0
"""How long a question to the engine may take."""
IDLE_POWER = 0.35
"""A GPU that draws more than this part of its power limit works, whatever its utilization says."""
LEAST_JUDGED = 20
"""A median error of fewer tasks says nothing about the predictor."""
STUCK, COMMIT_SECONDS, COMMITS = "queue_stuck_seconds", "commit_seconds", "commits"
"""Names of the figures that are kept over a restart."""
SCHEDULER = "scheduler"
"""Label `node` of the disk of the scheduler."""

Scores = Callable[[], Iterable[tuple[str, int, float | None]]]
"""Returns name, number of judged tasks and median relative error of each predictor."""


@dataclass
class Observed:
    """Samples by the name of their rule."""

    by_rule: dict[str, list[Sample]] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    """Rules whose samples could not be read this time."""

    def add(self, rule: str, labels: Labels, value: float | None, summary: str = "") -> None:
        """Add a sample of a rule."""
        self.by_rule.setdefault(rule, []).append(Sample(labels, value, summary))


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What the engine was asked."""

    waiting: int
    """Tasks in the queue; tasks on hold and tasks that wait for others are not."""
    limits: tuple[tuple[Labels, float, str], ...]
    """Labels, percent used and sentence of each limit that has tasks behind it."""


class Observer:
    """Reads samples from a running scheduler."""

    def __init__(
        self,
        views: Views,
        telemetry: Mapping[NodeId, pb.Heartbeat],
        loop: EngineLoop,
        commits: CommitTimes,
        *,
        scores: Scores = lambda: (),
        disk: Path | None = None,
    ) -> None:
        self._views = views
        self._telemetry = telemetry
        self._loop = loop
        self._commits = commits
        self._scores = scores
        self._disk = disk
        self._placed_at = max((task.holds_since or 0.0 for task in views.tasks.values()), default=0.0)
        """When a task was last placed, as far as that is known."""
        self._stuck_seconds = 0.0
        """For how long tasks have waited beside idle GPUs. Time in which that was unknown does not count."""
        self._stuck_at: float | None = None
        """The last look, if tasks waited beside idle GPUs then."""

    def hear(self, records: Sequence[Record]) -> None:
        """Note placements."""
        for record in records:
            if isinstance(record.event, TaskPlaced):
                self._placed_at = record.at

    def figures(self) -> dict[str, float]:
        """Return what a restarted scheduler has to know, by name."""
        return {
            STUCK: self._stuck_seconds,
            COMMIT_SECONDS: self._commits.mean() or 0.0,
            COMMITS: float(self._commits.count()),
        }

    def resume(self, figures: Mapping[str, float], *, long_ago: bool) -> None:
        """Continue with the figures of the last scheduler. Its commits do not count if they were long ago."""
        self._stuck_seconds = max(0.0, figures.get(STUCK, 0.0))
        if not long_ago:
            self._commits.resume(figures.get(COMMIT_SECONDS, 0.0), int(figures.get(COMMITS, 0.0)))

    async def look(self, now: float) -> Observed:
        """Return the samples of all rules."""
        found, turns, idle, awaited = Observed(), TimeSlicer(), 0, 0
        for name in list(self._views.nodes):
            node = self._views.nodes.get(name)
            if node is None:
                continue
            self._look_at(found, node)
            if not node.cordoned and not node.lost:
                free = sum(node.gpu_status(gpu) == "idle" for gpu in range(len(node.spec.gpus)))
                idle, awaited = (idle, awaited + free) if node.away else (idle + free, awaited)
            if turns.due():
                await turns.give()
        figures = await self._ask()
        self._queue(found, figures, idle, awaited, now)
        if figures is None:
            found.unknown.add("quota_exhausted")
        else:
            for labels, percent, summary in figures.limits:
                found.add("quota_exhausted", labels, percent, summary)
        self._journal(found)
        for predictor, tasks, error in self._scores():
            value = None if error is None or tasks < LEAST_JUDGED else error * 100.0
            found.add("predictor_drift", (("predictor", predictor),), value)
        if self._disk is not None:
            found.add("disk_full", (("node", SCHEDULER),), await asyncio.to_thread(_free_gib, self._disk))
        return found

    def _look_at(self, found: Observed, node: NodeView) -> None:
        name = str(node.spec.id)
        told = None if node.is_silent else self._telemetry.get(node.spec.id)
        where: Labels = (("node", name),)
        summary = f"Node {name} sends no heartbeats." if node.lost else ""
        found.add("agent_lost", where, float(node.lost), summary)
        host = told.host if told is not None and told.HasField("host") else None
        found.add("disk_full", where, None if host is None else host.disk_free_mib / 1024)
        uses = {use.index: use for use in told.gpus} if told is not None else {}
        for index, gpu in enumerate(node.spec.gpus):
            labels: Labels = (("gpu", f"{name}/{index}"), ("node", name))
            use = uses.get(index)
            hot = use.temperature_c if use is not None and use.HasField("temperature_c") else None
            found.add("gpu_hot", labels, hot)
            used = use.memory_used_mib if use is not None and use.HasField("memory_used_mib") else None
            if gpu.memory_mib:
                found.add("gpu_memory_full", labels, None if used is None else 100.0 * used / gpu.memory_mib)
            for task in node.on_gpu[index]:
                view = self._views.tasks.get(task)
                if view is not None and view.status is TaskStatus.RUNNING:
                    holder: Labels = (*labels, ("task", format_task_id(task)))
                    found.add("idle_gpu_held", holder, _busy_percent(use))

    async def _ask(self) -> EngineFigures | None:
        """Ask the engine; None if it does not answer in time."""

        def ask(state: State, now: float) -> EngineFigures:
            return EngineFigures(state.queue.waiting, tuple(_limits(state, now)))

        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await self._loop.look(ask)
        except (TimeoutError, GpuyardError):
            return None

    def _queue(self, found: Observed, figures: EngineFigures | None, idle: int, awaited: int, now: float) -> None:
        """Judge the queue. `awaited` are idle GPUs of nodes that are away: after a restart they all are, for a while."""
        before, self._stuck_at = self._stuck_at, None
        if figures is None or (figures.waiting and not idle and awaited):
            found.add("queue_stuck", (), None)
            return
        if not figures.waiting or not idle:
            self._stuck_seconds = 0.0
            found.add("queue_stuck", (), 0.0)
            return
        self._stuck_at = now
        counted = self._stuck_seconds + (0.0 if before is None else now - before)
        stuck = self._stuck_seconds = max(0.0, min(counted, now - self._placed_at))
        text = f"{figures.waiting} tasks wait and {idle} GPUs are idle, but no task was placed for {stuck:.0f} s."
        found.add("queue_stuck", (), stuck, text)

    def _journal(self, found: Observed) -> None:
        """A commit in flight counts with its age, so that one that never ends is noticed, too."""
        mean, age = self._commits.mean(), self._loop.append_age
        if mean is None and not age:
            found.add("journal_slow", (), None)
            return
        seconds = max(mean or 0.0, age)
        text = str(self._loop.unwritable or "") or f"Writing to the journal takes {seconds:.2g} s per commit."
        found.add("journal_slow", (), seconds, text)


def _busy_percent(use: pb.GpuUse | None) -> float | None:
    """Return the utilization, or more if the power draw shows that the GPU works."""
    if use is None or not use.HasField("utilization_percent"):
        return None
    busy = use.utilization_percent
    if use.HasField("power_watts") and use.HasField("power_limit_watts") and use.power_limit_watts > 0:
        drawn = use.power_watts / use.power_limit_watts
        if drawn > IDLE_POWER:
            busy = max(busy, 100.0 * drawn)
    return busy


def _limits(state: State, now: float) -> Iterator[tuple[Labels, float, str]]:
    for name, usage in state.tenants.items():
        refusals = state.queue.refusals_at_tenant(name)
        if usage.tenant.max_gpus and refusals - {BudgetSpent}:
            percent = 100.0 * usage.used / (usage.tenant.max_gpus * MILLI)
            text = f"Tenant {name} uses {usage.used / MILLI:g} of its {usage.tenant.max_gpus} GPUs, and its tasks wait."
            yield (("limit", "gpus"), ("tenant", name)), percent, text
        budget = usage.tenant.budget
        if budget is not None and BudgetSpent in refusals:
            percent = 100.0 * (1.0 - usage.budget_left(now) / (budget.gpu_hours * 3600))
            text = f"Tenant {name} has used {percent:.0f} % of its {budget.gpu_hours:g} GPU-hours, and its tasks wait."
            yield (("limit", "budget"), ("tenant", name)), percent, text
    for class_index, usage_of_class in enumerate(state.classes):
        if state.queue.waits_for_class(class_index) and 0 < usage_of_class.limit <= state.index.gpus_up * MILLI:
            percent = 100.0 * usage_of_class.used / usage_of_class.limit
            text = f"Tasks of class {usage_of_class.task_class} use their whole share of the GPUs, and others wait."
            yield (("class", str(usage_of_class.task_class)), ("limit", "share")), percent, text


def _free_gib(folder: Path) -> float | None:
    try:
        free = os.statvfs(folder)
    except OSError:
        return None
    return free.f_bavail * free.f_frsize / 2**30
