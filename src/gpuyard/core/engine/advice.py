"""Advice: somebody who looks at the present state is asked where there is something to choose.

The order of the queue is a key, given once. What depends on the moment (is it better to begin on the slow GPUs that are
free, or to wait for the fast ones that soon will be?) no key can say. So a policy may be *advised*: when the pass has
found a place for the first task in line, it puts a question, and whoever advises picks one of a few candidates.

    candidates, each a row of figures                        what is done
      0        the first task, where the pass would place it   placed, as without advice
      1 …      the same task on GPUs of another speed          placed there
      …        another task that wants the same GPUs           placed before the first
      last     the first task waits                            its line sleeps until GPUs are freed on which it is faster

The figures are functions of state and instant and name neither tasks nor GPUs, so that one advisor serves yards of any
size. What is looked at is bounded: `TASKS` tasks, `SPEEDS` speeds, `LOOK` lines and device groups. A question is put only where
some candidate could be faster elsewhere: where all GPUs are equal, the order of the queue is all there is to say. Waiting
is offered only while something runs that will free GPUs for the task, so that no yard stands still; and after `PATIENCE`
it is asked again. An advisor answers with a number of a candidate and has no other say: quotas, promises and rules
have been seen to before it is asked.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.values import Preemption
from gpuyard.core.engine.queue import Group, Line
from gpuyard.core.engine.quota import check_quota
from gpuyard.core.engine.state import State, holds_gpus
from gpuyard.core.engine.task import Task
from gpuyard.core.engine.try_place import Ready
from gpuyard.core.placement.choose import choose
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, members, without
from gpuyard.core.placement.shape import Shape

TASKS, SPEEDS, LOOK = 4, 3, 32
PATIENCE = 3_600.0
"""Seconds after which a task that waits on advice is asked about again, though nothing was freed."""

FEATURES = (
    "waits",
    "first",
    "log_seconds_here",
    "log_seconds_best",
    "log_band",
    "log2_gpus",
    "speed",
    "log_seconds_until",
    "saved",
    "log_queue_before",
    "log_queue_behind",
    "log_waited",
    "free_after",
    "free_faster",
    "wide_waits",
    "log2_wide_gpus",
    "log_wide_seconds",
    "log_tasks_waiting",
    "log_work_waiting",
    "gain_of_first",
    "ends_an_hour",
    "rule",
)
"""What each figure of a row is called, in order; gpuyard.core.engine.advisor_features says what it is."""

Rows = Sequence[Sequence[float]]


class Advisor(Protocol):
    """Whoever picks one of the candidates. The same rows must always give the same answer."""

    def pick(self, rows: Rows) -> int:
        """The number of a candidate; 0 is what would be done without advice."""
        ...


class Candidate(NamedTuple):
    """A task and where it would go; nowhere: it waits."""

    task: Task
    line: Line
    group: Group
    placement: Placement | None
    speed: float


"""See gpuyard.core.engine.schedule."""


def is_advised(state: State, task: Task) -> bool:
    """Whether anybody is to be asked about a task that wants whole GPUs.

    Not about one that may be stopped: it begins at once, for it can be moved later. Nor while nodes are promised to
    anybody: promises are kept in the order of the queue.
    """
    stays = task.preemption is Preemption.NEVER and task.spec.resources.gpus > 0
    return state.policy.advised and stays and not state.reservations


def candidates(state: State, first: Candidate, ready: Sequence[Ready], closed: DeviceGroupMask) -> list[Candidate]:
    """All that could be done instead of placing the first; only itself if there is nothing to ask."""
    assert first.placement is not None
    found = [first]
    found += _elsewhere(state, first, closed)
    device_groups = state.index.device_groups_of(first.placement.nodes)
    for _, number, line, group in _next_in_line(ready, TASKS - 1):
        task = state.tasks.get(number)
        if task is None or task.group is not group or line.blocked is not None or line is first.line:
            continue
        if (other := _instead(state, task, line, group, device_groups)) is not None:
            found.append(other)
    if not any(_could_be_faster(each) for each in found):
        return [first]
    if _runs_something(state, better_than(first)):
        found.append(first._replace(placement=None))
    return found


def _could_be_faster(candidate: Candidate) -> bool:
    tiers = candidate.line.shape.tiers
    return bool(tiers) and candidate.speed < tiers[0][0]


def _next_in_line(ready: Sequence[Ready], count: int) -> list[Ready]:
    """The first few of a heap, in order. Behind each may come its two children, and nobody else: the rest is not looked at."""
    found: list[Ready] = []
    places = [0] if ready else []
    while places and len(found) < count:
        place = min(places, key=lambda each: ready[each][:2])
        places.remove(place)
        places += range(2 * place + 1, min(2 * place + 3, len(ready)))
        found.append(ready[place])
    return found


def better_than(first: Candidate) -> DeviceGroupMask:
    """What a task waits for instead of its place: device groups where it is faster; if there are none, whatever is freed."""
    faster: DeviceGroupMask = 0
    for speed, device_groups in first.line.shape.tiers:
        if speed > first.speed:
            faster |= device_groups
    return faster or first.line.shape.eligible


def _elsewhere(state: State, first: Candidate, closed: DeviceGroupMask) -> Iterator[Candidate]:
    """The same task on GPUs of other speeds."""
    shape, order = first.line.shape, state.order_for(first.line.shape.gpus)
    if shape.nodes > 1:
        return
    for speed, device_groups in shape.tiers[: SPEEDS + 1]:
        if speed != first.speed:
            away = closed | without(shape.eligible, device_groups)
            placement = choose(shape, state.index, order, away, wherever=True, model=first.task.model)
            if placement is not None:
                yield first._replace(placement=placement, speed=speed)


def _instead(state: State, task: Task, line: Line, group: Group, device_groups: DeviceGroupMask) -> Candidate | None:
    """Another task in the place of the first, if it would go there and nothing but its turn is missing."""
    shape, tenant = line.shape, group.tenant
    if not is_advised(state, task):
        return None
    shape.refresh(state.index)
    if tenant.model_limits or tenant.tenant.budget is not None or shape.needs is not None or task.avoid is not None:
        return None
    if check_quota(task, shape.need_milli, state.classes, state.now) is not None:
        return None
    placement = choose(shape, state.index, state.order_for(shape.gpus), model=task.model)
    if placement is None or not state.index.device_groups_of(placement.nodes) & device_groups:
        return None
    return Candidate(task, line, group, placement, speed_at(state, shape, placement))


def speed_at(state: State, shape: Shape, placement: Placement) -> float:
    """How fast tasks of a shape are where they would be placed."""
    if shape.speeds is None:
        return 1.0
    hosts = state.index.hosts
    return min(
        shape.speed_on(hosts[part.node].device_group_of[part.gpus[0]].model) for part in placement.slices if part.gpus
    )


def _runs_something(state: State, device_groups: DeviceGroupMask) -> bool:
    """Whether a task will free GPUs there."""
    return any(_on_device_group(state, number) for number in islice(members(device_groups), LOOK))


def _on_device_group(state: State, number: int) -> bool:
    device_group = state.index.device_group(number)
    return device_group.free_mask != device_group.usable and any(
        holds_gpus(task.phase) for task in state.on_node[device_group.host.spec.id].values()
    )
