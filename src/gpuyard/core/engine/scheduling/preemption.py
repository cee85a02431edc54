"""Preemption: choose tasks to stop so that a task that goes before them can start, at the least loss of work.

A waiting task may stop a running task that allows preemption in two cases:

- the policy ranks the running task weaker (`policy.rank`), unless the policy spares it from this task (`policy.spares`), or
  the waiting task borrows and the other's class does not;
- the waiting task claims GPUs that are guaranteed to its class or tenant, and that of the running task exceeds its own
  guarantee (for a tenant without a guarantee: more than 0).

A task that a quota stops may take GPUs only from tasks that count against the same quota: its own class, its own
tenant.

The cost of a stop is counted in GPU-seconds: all the work done so far for a task that starts over, a fixed amount for
one that is suspended or checkpointed. On each node the weakest victims are taken until there is room, among equally
weak ones the cheapest; then victims that turned out to be unnecessary are spared. The node whose strongest victim is
weakest is chosen; among equal ones the cheapest.

Where ranks change in steps, all preemptible running tasks are kept in a list, weakest first. The search goes down that
list. The first node on which enough of them were found is the most promising; it is examined closely, and the search
ends when no further node can be better. At most `search_depth` nodes are examined closely.

Against thrashing: a task is not stopped before it has run for `preemption_min_run_seconds`, nor more than
`preemption_limit` times, and a victim never has the right to stop the task it was stopped for. While victims are being
stopped, the place is reserved for the task they were stopped for, which requests no further victims meanwhile.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from math import inf
from typing import NamedTuple

from gpuyard.core.domain.causes import CauseKind
from gpuyard.core.domain.values import MILLI, NodeId, Preemption, TaskId, TenantId
from gpuyard.core.engine.phases import HOLDING, Running, Stopping
from gpuyard.core.engine.quota import BATCH, ONLINE, TenantUsage, closed_by_model, left_for
from gpuyard.core.engine.scheduling.backfill import ResourceAmount, need_of
from gpuyard.core.engine.scheduling.bookings import closed_by_bookings
from gpuyard.core.engine.state import Reservation, State, holds_gpus
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, members, without
from gpuyard.core.placement.index import DeviceGroup
from gpuyard.core.placement.shape import Shape

STOP_COSTS_SECONDS = {Preemption.SUSPEND: 10.0, Preemption.CHECKPOINT: 60.0}
"""Cost of a stop that keeps the work, in seconds on each of the task's GPUs."""


class PreemptionPlan(NamedTuple):
    """A way to make room: the nodes, the tasks to stop and the right to stop them."""

    nodes: tuple[NodeId, ...]
    victims: tuple[OpenTask, ...]
    why: CauseKind


def find_preemption(
    state: State, task: OpenTask, shape: Shape, at: float
) -> tuple[PreemptionPlan | None, float | None]:
    """Return the cheapest way to make room for a task; else None, and when to retry if a victim is too young."""
    rights = _Rights(state, task, shape, at)
    if not rights.any:
        return None, None
    here: list[tuple[float, float, int, DeviceGroup, list[OpenTask]]] = []
    closed = shape.above_quota(rights.left_milli) | closed_by_model(task.tenant_usage, shape, state.index)
    if state.bookings:
        closed |= closed_by_bookings(state, task, shape, at)
    for at_best, device_group in islice(
        _candidates(state, shape, closed, rights), max(state.settings.search_depth, 2 * shape.nodes)
    ):
        if len(here) >= shape.nodes and at_best < -sorted(way[0] for way in here)[shape.nodes - 1]:
            break
        found = _weakest(state, device_group, shape, rights, at)
        if found is not None:
            strongest = min((rights.rank(victim) for victim in found), default=inf)
            here.append((-strongest, sum(loss(victim, at) for victim in found), len(found), device_group, found))
    if len(here) < shape.nodes:
        return None, rights.retry_at
    here.sort(key=lambda way: (*way[:3], way[3].number))
    chosen = here[: shape.nodes]
    victims = tuple({victim.id: victim for way in chosen for victim in way[4]}.values())
    if not victims or not rights.still_hold(victims):
        return None, rights.retry_at
    why = CauseKind.PREEMPTED if all(rights.by_policy(victim) for victim in victims) else CauseKind.RECLAIMED
    return PreemptionPlan(tuple(way[3].host.spec.id for way in chosen), victims, why), None


def preemptible_gpus(state: State, task: OpenTask, node: NodeId, at: float) -> int:
    """Return an upper bound of the GPUs of a node that a waiting task could take: only ranks are checked."""
    rank, in_steps, settings = state.policy.rank, state.policy.changes_at is not None, state.settings
    above = rank(task, at, settings) + state.policy.margin if rank else inf
    return sum(
        len(part.gpus)
        for victim in state.on_node[node].values()
        if isinstance(victim.phase, Running) and state.is_preemptible(victim)
        and (state.reclaims or (rank is not None and (victim.rank if in_steps else rank(victim, at, settings)) > above))
        for part in victim.phase.placement.slices
        if part.node == node
    )  # fmt: skip


def loss(victim: OpenTask, at: float) -> float:
    """Return the GPU-seconds that stopping a task wastes."""
    assert isinstance(victim.phase, Running)
    gpus = victim.phase.placement.charge_milli / MILLI
    return gpus * STOP_COSTS_SECONDS.get(victim.preemption, victim.served_at(at))


class _UnderWay:
    """Preemptions in progress: what claims will add to a class or tenant, and what victims release."""

    def __init__(self, state: State) -> None:
        self.claimed_by_class, self.lost_by_class = [0, 0], [0, 0]
        self.claimed_by_tenant: dict[TenantId, int] = {}
        self.lost_by_tenant: dict[TenantId, int] = {}
        for reservation in state.reservations.values():
            if not reservation.claim or isinstance(reservation.task.phase, Stopping):
                continue  # not a claim, or the task is being moved and is already charged
            _add(self.claimed_by_class, self.claimed_by_tenant, reservation.task, reservation.need_milli)
            for victim in map(state.tasks.__getitem__, reservation.victims):
                if (
                    holds_gpus(victim.phase) and victim.id not in state.reservations
                ):  # a task that is moved returns none
                    charge = victim.active.placement.charge_milli
                    _add(self.lost_by_class, self.lost_by_tenant, victim, charge)


def _add(by_class: list[int], by_tenant: dict[TenantId, int], task: OpenTask, milli: int) -> None:
    by_class[task.class_index] += milli
    by_tenant[task.spec.tenant] = by_tenant.get(task.spec.tenant, 0) + milli


class _Rights:
    """What one waiting task may do to others at this instant."""

    def __init__(self, state: State, task: OpenTask, shape: Shape, at: float) -> None:
        self._state, self._task, self._at = state, task, at
        policy = state.policy
        self._rank = policy.rank
        self._above = policy.rank(task, at, state.settings) + policy.margin if policy.rank else inf
        """The policy lets the task stop running tasks with a rank above this."""
        self._spares = policy.spares
        self._ranks: dict[TaskId, float] = {}
        self._in_steps = policy.changes_at is not None
        """Whether every running task stores its rank, so that many nodes can be searched for weak tasks cheaply."""
        self.retry_at: float | None = None
        need = shape.need_milli
        mine = state.classes[task.class_index]
        tenant = task.tenant_usage
        self._under_way = _UnderWay(state)
        # claims in progress count as used, so that several waiting tasks do not claim the same guarantee
        held = mine.used + self._under_way.claimed_by_class[task.class_index]
        self._class_claim = state.reclaims and mine.limit > mine.guarantee and held + need <= mine.guarantee
        self._borrows = mine.limit > mine.guarantee and held + need > mine.guarantee
        self._tenant_claim = tenant.claims(need + self._under_way.claimed_by_tenant.get(tenant.id, 0))
        self.any = self._rank is not None or self._class_claim or self._tenant_claim
        left = left_for(task, state.classes)
        self.left_milli = left.least
        """What the quotas have left without stopping a task."""
        self.class_missing = max(0, need - left.in_class)
        self.tenant_missing = max(0, need - left.in_tenant)
        """What the victims must release of the quotas of class and tenant."""

    def may_stop(self, victim: OpenTask) -> bool:
        """Whether a running task may be stopped for the waiting task and is old enough; else `retry_at` may be set."""
        phase, settings = victim.phase, self._state.settings
        if not isinstance(phase, Running) or victim.preemption is Preemption.NEVER:
            return False
        if (self.class_missing and victim.class_index != self._task.class_index) or (
            self.tenant_missing and victim.tenant_usage is not self._task.tenant_usage
        ):
            return False
        if victim.preemptions >= settings.preemption_limit or not (self.by_policy(victim) or self._by_quota(victim)):
            return False
        old_enough_at = phase.since + settings.preemption_min_run_seconds
        if old_enough_at > self._at:
            self.retry_at = min(self.retry_at or old_enough_at, old_enough_at)
            return False
        return True

    def are_enough(self, victims: Iterable[OpenTask]) -> bool:
        """Whether the quotas have room once these victims have ended."""
        given_back = sum(victim.active.placement.charge_milli for victim in victims)
        return given_back >= max(self.class_missing, self.tenant_missing)

    def by_policy(self, victim: OpenTask) -> bool:
        """Whether the policy gives the right to stop a task.

        A class that borrows may not stop a task of a class that uses no more than its part, and a task without a
        guarantee may not stop a task of another tenant whose guarantee covers all its usage.
        """
        if self.spares(victim):
            return False
        part = self._state.classes[victim.class_index].guarantee
        other_class = victim.class_index != self._task.class_index
        if self._borrows and other_class and self._class_keeps(victim.class_index) <= part:
            return False
        if self._is_protected(victim.tenant_usage, self._tenant_keeps(victim.tenant_usage)):
            return False
        return self.rank(victim) > self._above

    def spares(self, victim: OpenTask) -> bool:
        """Whether the policy gives no right to stop a task, whatever its rank."""
        return self._spares is not None and self._spares(self._task, victim)

    @property
    def by_rank(self) -> float | None:
        """The rank that victims must exceed, if only their rank gives the right and is stored; else None."""
        return self._above if self._in_steps and not (self._class_claim or self._tenant_claim) else None

    def rank(self, victim: OpenTask) -> float:
        """Return how weakly a running task holds its GPUs (higher: weaker); 0 if the policy has no ranks."""
        if self._rank is None:
            return 0.0
        if self._in_steps:
            return victim.rank
        found = self._ranks.get(victim.id)
        if found is None:
            found = self._ranks[victim.id] = self._rank(victim, self._at, self._state.settings)
        return found

    def _by_quota(self, victim: OpenTask) -> bool:
        """Whether a claim of the class or tenant gives the right to stop a task."""
        state = self._state
        other_class = victim.class_index != self._task.class_index
        part = state.classes[victim.class_index].guarantee
        if self._class_claim and other_class and self._class_keeps(victim.class_index) > part:
            return True
        if self._tenant_claim and victim.spec.tenant != self._task.spec.tenant:
            return self._tenant_keeps(victim.tenant_usage) > victim.tenant_usage.guarantee
        return False

    def _class_keeps(self, class_index: int) -> int:
        """Return what a class uses, less what is already being stopped for others."""
        return self._state.classes[class_index].used - self._under_way.lost_by_class[class_index]

    def _tenant_keeps(self, usage: TenantUsage) -> int:
        """Return what a tenant uses, less what is already being stopped for others."""
        return usage.used - self._under_way.lost_by_tenant.get(usage.id, 0)

    def _is_protected(self, theirs: TenantUsage, used: int) -> bool:
        """Whether a tenant with usage `used` is within its guarantee, and the waiting task has no claim."""
        return theirs is not self._task.tenant_usage and not self._tenant_claim and used <= theirs.guarantee

    def still_hold(self, victims: Iterable[OpenTask]) -> bool:
        """Whether the right to stop each victim still holds once the victims before it are taken."""
        state = self._state
        by_class = [self._class_keeps(class_index) for class_index in (ONLINE, BATCH)]
        by_tenant: dict[TenantId, int] = {}
        for victim in victims:
            assert isinstance(victim.phase, Running)
            charge, class_index, tenant = victim.phase.placement.charge_milli, victim.class_index, victim.spec.tenant
            usage = victim.tenant_usage
            used = by_tenant.setdefault(tenant, self._tenant_keeps(usage))
            if self.by_policy(victim):
                if self._is_protected(usage, used):
                    return False
                by_tenant[tenant] = used - charge
                continue
            over_class = self._class_claim and by_class[class_index] > state.classes[class_index].guarantee
            if not over_class and not (self._tenant_claim and used > usage.guarantee):
                return False
            by_class[class_index] -= charge
            by_tenant[tenant] = used - charge
        return True


def _candidates(
    state: State, shape: Shape, closed: DeviceGroupMask, rights: _Rights
) -> Iterator[tuple[float, DeviceGroup]]:
    """Yield open device groups, one per node, without a claim, and the best possible rank of the strongest victim."""
    for reservation in state.reservations.values():
        if reservation.claim:
            closed |= reservation.device_groups
    wanted = without(shape.eligible & state.index.open, closed)
    if rights.by_rank is not None:
        return _down_the_list(state, shape, wanted, rights, rights.by_rank)
    return (
        (inf, device_group)
        for device_group in emptiest_first(state, shape, wanted)
        if device_group.host.spec.id in state.preemptible or shape.nodes > 1
    )


def emptiest_first(state: State, shape: Shape, wanted: DeviceGroupMask) -> Iterator[DeviceGroup]:
    """Yield device groups that could hold one part of a shape, at most one per node, those with most free GPUs first."""
    seen: set[NodeId] = set()
    for device_groups in reversed(state.index.by_free):
        for number in members(device_groups & wanted):
            device_group = state.index.device_group(number)
            node = device_group.host.spec.id
            if node not in seen and device_group.usable.bit_count() >= shape.gpus:
                seen.add(node)
                yield device_group


def _down_the_list(
    state: State, shape: Shape, wanted: DeviceGroupMask, rights: _Rights, above: float
) -> Iterator[tuple[float, DeviceGroup]]:
    """Yield device groups in which enough preemptible tasks hold GPUs, those of the weakest tasks first."""
    seen: set[NodeId] = set()
    if shape.nodes > 1:  # a gang may combine cleared nodes with nodes that need no victim
        for device_group in emptiest_first(state, shape, wanted):
            if device_group.free < shape.gpus:
                break
            seen.add(device_group.host.spec.id)
            yield inf, device_group
    hosts = state.index.hosts
    # GPUs that each device group still lacks, counting the victims met so far
    short: dict[int, int] = {}
    for minus_rank, _, task in state.weak:
        if -minus_rank <= above:
            return
        phase, rank = task.phase, task.rank
        if type(phase) is not Running or rank != -minus_rank:
            continue  # a stale entry
        if rights.spares(task):
            continue
        for part in phase.placement.slices:
            host = hosts[part.node]
            device_group = host.device_group_of[part.gpus[0]] if part.gpus else host.device_groups[0]
            if not device_group.bit & wanted or part.node in seen:
                continue
            left = short.get(device_group.number, shape.gpus - device_group.free) - len(part.gpus)
            short[device_group.number] = left
            if left <= 0 and device_group.usable.bit_count() >= shape.gpus:
                seen.add(part.node)
                yield rank, device_group


def will_be_cleared(state: State, reservation: Reservation, node: NodeId) -> bool:
    """Whether a node will have the room for a claim once its victims have ended."""
    victims = [state.tasks[victim] for victim in sorted(reservation.victims)]
    device_groups = [
        device_group
        for device_group in state.index.hosts[node].device_groups
        if device_group.bit & reservation.shape.eligible
    ]
    return any(
        _free_without(device_group, victims).covers(need_of(reservation.shape, device_group))
        for device_group in device_groups
    )


def _weakest(
    state: State, device_group: DeviceGroup, shape: Shape, rights: _Rights, at: float
) -> list[OpenTask] | None:
    """Return the weakest victims that make room in a device group; empty: none is needed; None: it is impossible."""
    need, host = need_of(shape, device_group), device_group.host
    free = ResourceAmount(device_group.free, host.cpus_free, host.memory_free)
    if free.covers(need) and rights.are_enough(()):
        return []
    running = [victim for victim in state.on_node[host.spec.id].values() if rights.may_stop(victim)]
    running.sort(key=lambda victim: (-rights.rank(victim), loss(victim, at), victim.id))
    chosen: list[OpenTask] = []
    for victim in running:
        if free.covers(need) and rights.are_enough(chosen):
            break
        chosen.append(victim)
        free = _free_without(device_group, chosen)
    if not free.covers(need) or not rights.are_enough(chosen):
        return None
    for victim in reversed(chosen[:-1]):
        others = [other for other in chosen if other is not victim]
        if _free_without(device_group, others).covers(need) and rights.are_enough(others):
            chosen = others
    return chosen


def _free_without(device_group: DeviceGroup, victims: list[OpenTask]) -> ResourceAmount:
    """Return what a device group has free once these victims end; a shared GPU only if all its tasks are victims."""
    host = device_group.host
    free = ResourceAmount(device_group.free, host.cpus_free, host.memory_free)
    sharing: dict[int, int] = {}
    for victim in victims:
        phase = victim.phase
        assert isinstance(phase, HOLDING)
        keeps_memory = victim.preemption is Preemption.SUSPEND and not isinstance(phase, Stopping)
        for part in phase.placement.slices:
            if part.node != host.spec.id:
                continue
            here = [gpu for gpu in part.gpus if device_group.usable >> gpu & 1]
            if part.milli < MILLI and here:
                sharing[here[0]] = sharing.get(here[0], 0) + 1
                here = []
            free = free.plus(ResourceAmount(len(here), part.cpus, 0 if keeps_memory else part.memory_mib))
    whole_again = sum(1 for gpu, count in sharing.items() if device_group.shared[gpu].tasks == count)
    return free.plus(ResourceAmount(whole_again, 0, 0))
