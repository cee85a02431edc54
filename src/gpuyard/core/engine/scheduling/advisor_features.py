"""The figures that an advisor sees of each candidate (gpuyard.core.engine.scheduling.advice).

`_row` computes the figures of a `CandidateFeatures`, `_of_all` those that all candidates have in common. Most of the work is the same for
all candidates and for all questions of an instant: the waiting tasks and their work, and the GPUs that will soon be
free in each device group. Therefore a pass examines the cluster once, and once more after each placement (`FeatureCache`);
each task once, however many candidates it has (`_View`); and the running tasks of a device group only if no other has
room at once. The search is bounded at any size of cluster: `LOOK` lines, nodes, and device groups of a speed.
"""

from collections.abc import Sequence
from itertools import islice
from math import inf, log1p, log2

from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.values import TaskId
from gpuyard.core.engine.phases import Running
from gpuyard.core.engine.scheduling.advice import LOOK, SPEEDS, Candidate, CandidateFeatures
from gpuyard.core.engine.scheduling.backfill import ResourceAmount, ends_on, need_of
from gpuyard.core.engine.state import State
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, members
from gpuyard.core.placement.index import DeviceGroup
from gpuyard.core.placement.shape import Shape

RULE_SAVES, RULE_MOST = 0.3, 0.7
"""The rule for waiting: it is good if it saves more than this fraction of a run. Also a feature for learning."""
HOUR, FAR = 3_600.0, 10 * 86_400.0
"""Anything further away than ten days counts as ten days away."""
UNKNOWN_SECONDS = 3_600.0
"""Run time in seconds that is assumed for a task without an estimate."""


def rows_of(cache: "FeatureCache", found: Sequence[Candidate]) -> list[CandidateFeatures]:
    """Return the figures of each candidate."""
    views = [cache.view(each) for each in found]
    of_all = _of_all(cache, found[0], views[0].saved(found[0].speed))
    return [
        _row(cache, each, view, place == 0, of_all) for place, (each, view) in enumerate(zip(found, views, strict=True))
    ]


class FeatureCache:
    """Data shared by all questions of a pass, valid until an event other than a placement occurs."""

    def __init__(self, state: State, at: float) -> None:
        self.state, self.at = state, at
        self._waiting: list[tuple[DeviceGroupMask, float, TaskId, OpenTask, float]] | None = None
        self._ends: dict[int, list[tuple[float, ResourceAmount, OpenTask | None]]] = {}
        self._ends_in_an_hour: float | None = None
        self._until: dict[tuple[object, ...], float] = {}
        self._views: dict[TaskId, _View] = {}
        self._free: dict[DeviceGroupMask, int] = {}
        self._usable: dict[DeviceGroupMask, int] = {}

    def invalidate(self, placement: Placement) -> None:
        """Discard the data that a placement has made invalid."""
        self._waiting = None
        for node in placement.nodes:
            for device_group in self.state.index.hosts[node].device_groups:
                self._ends.pop(device_group.number, None)
        self._until.clear()
        self._views.clear()
        self._free.clear()

    def view(self, candidate: Candidate) -> "_View":
        """Return the view of a candidate's task."""
        found = self._views.get(candidate.task.id)
        if found is None:
            found = self._views[candidate.task.id] = _View(self, candidate.task, candidate.line.shape)
        return found

    @property
    def waiting(self) -> list[tuple[DeviceGroupMask, float, TaskId, OpenTask, float]]:
        """For each waiting group: usable device groups, key, number and task of its first task, GPU-seconds of work.

        The work is computed as if all tasks of the group were like the first. At most LOOK lines are considered.
        """
        if self._waiting is None:
            self._waiting = []
            for line in islice(self.state.queue.lines.values(), LOOK):
                for group in line.groups.values():
                    if group.size and (top := group.top()) is not None:
                        key, number, task = top
                        work = group.size * line.shape.need_milli / 1000 * seconds_on(task, 1.0, self.at)
                        self._waiting.append((line.shape.eligible, key, number, task, work))
        return self._waiting

    @property
    def ends_in_an_hour(self) -> float:
        """GPUs that are expected to be freed within an hour, on at most LOOK nodes."""
        if self._ends_in_an_hour is None:
            gpus, at = 0.0, self.at
            for tasks in islice(self.state.on_node.values(), LOOK):
                for task in tasks.values():
                    phase = task.phase
                    if type(phase) is Running and task.seconds_at(task.speed, at, "likely") <= HOUR:
                        gpus += phase.placement.charge_milli / 1000
            self._ends_in_an_hour = gpus
        return self._ends_in_an_hour

    def free(self, device_groups: DeviceGroupMask) -> int:
        """Return the number of free GPUs of these device groups."""
        found = self._free.get(device_groups)
        if found is None:
            by_free = self.state.index.by_free
            found = sum(free * (having & device_groups).bit_count() for free, having in enumerate(by_free) if free)
            self._free[device_groups] = found
        return found

    def usable(self, device_groups: DeviceGroupMask) -> int:
        """Return the number of usable GPUs of these device groups; at most LOOK are considered."""
        found = self._usable.get(device_groups)
        if found is None:
            index = self.state.index
            found = sum(
                index.device_group(number).usable.bit_count() for number in islice(members(device_groups), LOOK)
            )
            self._usable[device_groups] = found
        return found

    def seconds_until(self, shape: Shape, device_groups: DeviceGroupMask) -> float:
        """Return the seconds until one of these device groups has room for a part of a shape; LOOK are considered."""
        asks = (device_groups, shape.gpus, shape.cpus, shape.memory_mib, shape.whole_nodes)
        found = self._until.get(asks)
        if found is None:
            found = self._until[asks] = self._looked_up(shape, device_groups)
        return found

    def _looked_up(self, shape: Shape, device_groups: DeviceGroupMask) -> float:
        index = self.state.index
        short: list[tuple[DeviceGroup, int, int, int]] = []
        """Device groups, and how many GPUs, CPUs and MiB each has beyond the need; at least one is negative."""
        for number in islice(members(device_groups & index.open), LOOK):
            device_group = index.device_group(number)
            need, host = need_of(shape, device_group), device_group.host
            gpus, cpus, memory = (
                device_group.free - need.gpus,
                host.cpus_free - need.cpus,
                host.memory_free - need.memory_mib,
            )
            if gpus >= 0 and cpus >= 0 and memory >= 0:
                return 0.0
            short.append((device_group, gpus, cpus, memory))
        return min(min((self._enough_at(*each) for each in short), default=inf) - self.at, FAR)

    def _enough_at(self, device_group: DeviceGroup, gpus: int, cpus: int, memory_mib: int) -> float:
        """Return when a device group that is short of something will have enough of everything."""
        ends = self._ends.get(device_group.number)
        if ends is None:
            ends = self._ends[device_group.number] = ends_on(self.state, device_group, self.at, "likely")
        for when, freed, _ in ends:
            gpus, cpus, memory_mib = gpus + freed.gpus, cpus + freed.cpus, memory_mib + freed.memory_mib
            if gpus >= 0 and cpus >= 0 and memory_mib >= 0:
                return when
        return inf


class _View:
    """The prospects of a task: when faster GPUs become free, and which other work waits for them."""

    def __init__(self, cache: FeatureCache, task: OpenTask, shape: Shape) -> None:
        self._task, self._at = task, cache.at
        self._seconds: dict[float, float] = {}
        self.tiers = shape.tiers or ((1.0, shape.eligible),)
        self._ways: list[tuple[float, float, float]] = []
        """For each speed: the speed, seconds until the task could end on such GPUs, seconds until it could start."""
        for speed, device_groups in self.tiers[: SPEEDS + 1]:
            seconds = self.seconds(speed)
            until = cache.seconds_until(shape, device_groups)
            self._ways.append((speed, until + seconds, until))
        self.before, self.behind = self._queue_around(cache)
        self.free_faster = cache.free(self.tiers[0][1])

    def seconds(self, speed: float) -> float:
        """Return how long the task is expected to run at this speed."""
        found = self._seconds.get(speed)
        if found is None:
            found = self._seconds[speed] = seconds_on(self._task, speed, self._at)
        return found

    def _queue_around(self, cache: FeatureCache) -> tuple[float, float]:
        """Return the hours of work per GPU of the fastest device groups that wait before and behind the task."""
        task, device_groups = self._task, self.tiers[0][1]
        mine = (task.key, task.id)
        before = behind = 0.0
        for eligible, key, number, other, work in cache.waiting:
            if eligible & device_groups and other is not task:
                if (key, number) < mine:
                    before += work
                else:
                    behind += work
        gpus = max(1, cache.usable(device_groups))
        return before / gpus / HOUR, behind / gpus / HOUR

    def best(self, below: float) -> tuple[float, float]:
        """Return the seconds until the task could end, and start, on GPUs faster than `below`: the soonest end."""
        return min(((done, until) for speed, done, until in self._ways if speed > below), default=(FAR, FAR))

    def saved(self, speed: float) -> float:
        """Return the fraction of its run at this speed that waiting for faster GPUs saves, if they stay available."""
        here = self.seconds(speed)
        done, _ = self.best(speed)
        return max(-1.0, (here - done) / max(here, 1.0))

    def device_groups_at(self, speed: float) -> DeviceGroupMask:
        """Return the device groups where the task has this speed."""
        return next((device_groups for each, device_groups in self.tiers if each == speed), self.tiers[0][1])


def _of_all(cache: FeatureCache, first: Candidate, gain: float) -> dict[str, float]:
    """Return the figures that all candidates have in common."""
    assert first.placement is not None
    state = cache.state
    gpus_up = max(1, state.index.gpus_up)
    wide = _wider(state, first, state.index.device_groups_of(first.placement.nodes))
    work = 0.0
    for _, _, _, _, more in cache.waiting:
        work += more
    return {
        "wide_waits": float(wide is not None),
        "log2_wide_gpus": log2(1 + wide.spec.resources.all_gpus) if wide is not None else 0.0,
        "log_wide_seconds": log1p(seconds_on(wide, 1.0, cache.at)) if wide is not None else 0.0,
        "log_tasks_waiting": log1p(state.queue.waiting / gpus_up),
        "log_work_waiting": log1p(work / HOUR / gpus_up),
        "gain_of_first": gain,
        "ends_an_hour": cache.ends_in_an_hour / gpus_up,
    }


def _row(cache: FeatureCache, it: Candidate, view: _View, first: bool, of_all: dict[str, float]) -> CandidateFeatures:
    task, shape, saved = it.task, it.line.shape, view.saved(it.speed)
    waits, estimate = it.placement is None, task.estimate
    free_here = cache.free(view.device_groups_at(it.speed)) - (0 if waits else shape.gpus)
    return CandidateFeatures(
        waits=float(waits),
        first=float(first),
        log_seconds_here=log1p(view.seconds(it.speed)),
        log_seconds_best=log1p(view.seconds(1.0)),
        log_band=log1p(estimate.high_seconds / max(estimate.seconds, 1e-3)) if estimate is not None else 8.0,
        log2_gpus=log2(1 + task.spec.resources.all_gpus),
        speed=it.speed,
        log_seconds_until=log1p(view.best(it.speed)[1]) if waits else 0.0,
        saved=saved,
        log_queue_before=log1p(view.before),
        log_queue_behind=log1p(view.behind),
        log_waited=log1p(max(0.0, cache.at - task.submitted_at)),
        free_after=free_here / max(1, shape.gpus),
        free_faster=view.free_faster / max(1, shape.gpus),
        rule=min(RULE_MOST, max(-RULE_SAVES, saved - RULE_SAVES)) if waits else 0.0,
        **of_all,
    )


def waiting_pays(state: State, first: Candidate, at: float) -> bool:
    """Whether a task ends much earlier if it waits for faster GPUs than in its placement; this is the rule without an advisor.

    Faster GPUs that have room now were not chosen for another reason, such as energy or a limit, so it waits for none.
    """
    here = seconds_on(first.task, first.speed, at)
    cache, shape = FeatureCache(state, at), first.line.shape
    soonest = FAR
    for speed, device_groups in shape.tiers[: SPEEDS + 1]:
        if speed > first.speed:
            until = cache.seconds_until(shape, device_groups)
            if until <= 0.0:
                return False
            soonest = min(soonest, until + seconds_on(first.task, speed, at))
    return here - soonest > RULE_SAVES * max(here, 1.0)


def seconds_on(task: OpenTask, speed: float, at: float) -> float:
    """Return how long a task is expected to run at this speed."""
    seconds = task.seconds_at(speed, at, "likely")
    return seconds if seconds < inf else UNKNOWN_SECONDS / speed


def _wider(state: State, first: Candidate, device_groups: DeviceGroupMask) -> OpenTask | None:
    """Return the first blocked task that needs more GPUs than the first candidate, and some of the same."""
    gpus = first.line.shape.need_milli
    best: tuple[float, TaskId] | None = None
    for line in islice(state.queue.lines.values(), LOOK):
        if line.blocked is None or line.shape.need_milli <= gpus or not line.shape.eligible & device_groups:
            continue
        for heads in line.heads:
            if heads and (best is None or heads[0][:2] < best) and heads[0][1] in state.tasks:
                best = heads[0][:2]
    return None if best is None else state.tasks[best[1]]
