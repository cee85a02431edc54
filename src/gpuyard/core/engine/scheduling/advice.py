"""Advice: an advisor chooses between candidates on the basis of the present state.

The order of the queue is a key that is set once. A key cannot express decisions that depend on the moment, such as
whether to start on the slow GPUs that are free or to wait for fast ones that soon will be. Therefore a policy may be
*advised*: when the pass has found a place for the first task in the queue, the advisor picks one of a few candidates.

    candidates, each a row of figures                        action
      0        the first task, where the pass would place it   placed, as without advice
      1 …      the same task on GPUs of another speed          placed there
      …        another task that wants the same GPUs           placed before the first
      last     the first task waits                            its line is blocked until faster GPUs are freed

The figures are functions of state and instant and name neither tasks nor GPUs, so one advisor serves clusters of any
size. The search is bounded: `TASKS` tasks, `SPEEDS` speeds, `LOOK` lines and device groups. The advisor is asked only
if some candidate could be faster elsewhere: where all GPUs are equal, the order of the queue suffices. Waiting is
offered only while a running task will free GPUs for the task, so that a cluster never stalls; after `HOLD_BACK_SECONDS` the
advisor is asked again. An advisor returns the number of a candidate and has no other influence: quotas, reservations
and rules are checked before it is asked.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.values import Preemption
from gpuyard.core.engine.quota import check_quota
from gpuyard.core.engine.scheduling.try_place import Ready
from gpuyard.core.engine.state import State, holds_gpus
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.engine.waiting.queue import Group, Line
from gpuyard.core.placement.choose import choose
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, members, without
from gpuyard.core.placement.shape import Shape

TASKS, SPEEDS, LOOK = 4, 3, 32
HOLD_BACK_SECONDS = 3_600.0
"""Seconds after which the advisor is asked again about a task that waits on advice, even if no GPU was freed."""


class CandidateFeatures(NamedTuple):
    """The figures of a candidate, in the order of a model's inputs; gpuyard.core.engine.scheduling.advisor_features computes them.

    Names that begin with `log` are logarithms: `log1p`, or of one plus the figure to base 2 (`log2`).
    """

    waits: float
    """1 if the candidate is that the first task waits."""
    first: float
    """1 if it is the decision without advice."""
    log_seconds_here: float
    log_seconds_best: float
    """Expected run time at the speed of the candidate, and at full speed."""
    log_band: float
    """Upper bound of the run-time estimate over the estimate."""
    log2_gpus: float
    speed: float
    log_seconds_until: float
    """For a candidate that waits: seconds until faster GPUs have room."""
    saved: float
    """Part of its run that the task saves by waiting for faster GPUs."""
    log_queue_before: float
    log_queue_behind: float
    """Hours of work per GPU that wait before and behind the task for its fastest GPUs."""
    log_waited: float
    free_after: float
    free_faster: float
    """Free GPUs of this speed after the decision, and of the fastest, in multiples of the task's GPUs."""
    wide_waits: float
    log2_wide_gpus: float
    log_wide_seconds: float
    """The first blocked task that needs more GPUs: whether there is one, its GPUs and its run time."""
    log_tasks_waiting: float
    log_work_waiting: float
    """Waiting tasks and hours of their work, per GPU of the cluster."""
    gain_of_first: float
    """`saved` of the first candidate."""
    ends_an_hour: float
    """Part of all GPUs that is expected to be freed within an hour."""
    rule: float
    """A rule of thumb: waiting is good if it saves enough."""


FEATURES = CandidateFeatures._fields
"""Names of the figures of a row, in order."""

Rows = Sequence[Sequence[float]]


class Advisor(Protocol):
    """Picks one of the candidates. The same rows must always give the same answer."""

    def pick(self, rows: Rows) -> int:
        """Return the number of a candidate; 0 is the decision without advice."""
        ...


class Candidate(NamedTuple):
    """A task and where it would be placed; `placement` None: it waits."""

    task: OpenTask
    line: Line
    group: Group
    placement: Placement | None
    speed: float


def is_advised(state: State, task: OpenTask) -> bool:
    """Whether the advisor, or the rule for waiting, is asked about a task that needs whole GPUs.

    It is not asked about a preemptible task, which starts at once because it can be moved later, nor while there are
    reservations, which are honored in the order of the queue.
    """
    stays = task.preemption is Preemption.NEVER and task.spec.resources.gpus > 0
    return stays and not state.reservations


def candidates(state: State, first: Candidate, ready: Sequence[Ready], closed: DeviceGroupMask) -> list[Candidate]:
    """Return all alternatives to placing the first task, including itself; only itself if there is nothing to ask."""
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
    if not any(could_be_faster(each) for each in found):
        return [first]
    if may_wait(state, first):
        found.append(first._replace(placement=None))
    return found


def could_be_faster(candidate: Candidate) -> bool:
    """Whether there are GPUs on which the task is faster than in its placement."""
    tiers = candidate.line.shape.tiers
    return bool(tiers) and candidate.speed < tiers[0][0]


def may_wait(state: State, first: Candidate) -> bool:
    """Whether a running task will free GPUs that are better for the first task."""
    return _runs_something(state, better_than(first))


def _next_in_line(ready: Sequence[Ready], count: int) -> list[Ready]:
    """Return the first few entries of a heap, in order. Only the children of entries already taken are compared."""
    found: list[Ready] = []
    places = [0] if ready else []
    while places and len(found) < count:
        place = min(places, key=lambda each: ready[each][:2])
        places.remove(place)
        places += range(2 * place + 1, min(2 * place + 3, len(ready)))
        found.append(ready[place])
    return found


def better_than(first: Candidate) -> DeviceGroupMask:
    """Return the device groups a task waits for: those where it is faster, or all eligible ones if there are none."""
    faster: DeviceGroupMask = 0
    for speed, device_groups in first.line.shape.tiers:
        if speed > first.speed:
            faster |= device_groups
    return faster or first.line.shape.eligible


def _elsewhere(state: State, first: Candidate, closed: DeviceGroupMask) -> Iterator[Candidate]:
    """Yield the same task on GPUs of other speeds."""
    shape, order = first.line.shape, state.order_for(first.line.shape.gpus)
    if shape.nodes > 1:
        return
    for speed, device_groups in shape.tiers[: SPEEDS + 1]:
        if speed != first.speed:
            away = closed | without(shape.eligible, device_groups)
            placement = choose(shape, state.index, order, away, wherever=True, model=first.task.model)
            if placement is not None:
                yield first._replace(placement=placement, speed=speed)


def _instead(
    state: State, task: OpenTask, line: Line, group: Group, device_groups: DeviceGroupMask
) -> Candidate | None:
    """Return another task in place of the first, if it would be placed there and lacks only its turn."""
    shape, tenant = line.shape, group.tenant
    if not is_advised(state, task):
        return None
    shape.refresh(state.index)
    if (
        state.bookings
        or tenant.model_limits
        or tenant.tenant.budget is not None
        or shape.needs is not None
        or task.avoid is not None
    ):
        return None
    if check_quota(task, shape.need_milli, state.classes, state.now) is not None:
        return None
    placement = choose(shape, state.index, state.order_for(shape.gpus), model=task.model)
    if placement is None or not state.index.device_groups_of(placement.nodes) & device_groups:
        return None
    return Candidate(task, line, group, placement, speed_at(state, shape, placement))


def speed_at(state: State, shape: Shape, placement: Placement) -> float:
    """Return the speed of tasks of a shape in a placement."""
    if shape.speeds is None:
        return 1.0
    hosts = state.index.hosts
    return min(
        shape.speed_on(hosts[part.node].device_group_of[part.gpus[0]].model) for part in placement.slices if part.gpus
    )


def _runs_something(state: State, device_groups: DeviceGroupMask) -> bool:
    """Whether a task will free GPUs in these device groups."""
    return any(_on_device_group(state, number) for number in islice(members(device_groups), LOOK))


def _on_device_group(state: State, number: int) -> bool:
    device_group = state.index.device_group(number)
    return device_group.free_mask != device_group.usable and any(
        holds_gpus(task.phase) for task in state.on_node[device_group.host.spec.id].values()
    )
