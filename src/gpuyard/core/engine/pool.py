"""When an elastic pool grows and shrinks. Pure: orders follow from state, instant, provisioned nodes and settings.

The pool grows on queue pressure: tasks that wait although they lack only GPUs, find no room at present, and could run
on a node of this kind. Their demand is packed into the nodes that are already on their way; the rest determines how
many more to request. A task that is held, backs off, waits for other tasks or for its tenant's quota causes no
pressure. A class has a part of the GPUs in the cluster: where that part is too small for a task to start on the
requested nodes, enough nodes are requested to make it large enough, or none; and a task that finds room and waits for
others of its class causes pressure only if it needs more than the whole part.

The pool shrinks when a node has been idle for a while and no waiting task could use it, longest idle first, never below
the minimum. A node is given back only while it is empty: no task is ever stopped to save money. A node that stays lost
was taken away, as spot nodes are; it is removed, and another can take its place.

Several pools are evaluated from the cheapest to the most expensive. `covered` carries from one to the next how many
waiting tasks the cheaper pools have nodes for, up to their maximum; only the rest is pressure on the next pool. A task
therefore causes a boot in the cheapest pool that can hold it.

The packing counts GPUs, CPUs and host memory of each node; it ignores links between GPUs and fractions of single GPUs,
so a pool may be one node short for a while, and requests it later. The caller keeps the idle times (`idle_since`); if
they are lost, nodes stay a little longer.

The design follows Kubernetes' cluster-autoscaler (pressure by packing, ten minutes of idleness) and Slurm's power
saving.
"""

from collections.abc import Container, Iterator, Sequence
from math import inf

from msgspec.structs import replace

from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.pool import PoolActions, PoolNode, PoolNodeState, PoolSettings
from gpuyard.core.domain.task import Resources
from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.core.domain.values import MILLI, NodeId, TenantId
from gpuyard.core.engine.phases import Waiting
from gpuyard.core.engine.quota import ONLINE, TenantUsage
from gpuyard.core.engine.state import State
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.engine.waiting.queue import Group
from gpuyard.core.placement.choose import choose, groups_with_room
from gpuyard.core.placement.demand import milli_of
from gpuyard.core.placement.index import Index
from gpuyard.core.placement.shape import Shape

Room = tuple[int, int, int]
"""Thousandths of GPUs, CPUs, MiB of memory: what a node has left, or what a part of a task takes."""


def pool_orders(
    state: State,
    now: float,
    settings: PoolSettings,
    kind: NodeSpec,
    provisioned: Sequence[PoolNode],
    idle_since: dict[NodeId, float],
    covered: dict[int, int] | None = None,
    lost_since: dict[NodeId, float] | None = None,
) -> PoolActions:
    """Return the orders for a pool of nodes like `kind`; `idle_since` is kept from one call to the next.

    `covered`: tasks of each line, by its number, for which cheaper pools have nodes on their way; those of this pool
    are added. `lost_since`: when nodes of the pool were lost, kept from one call to the next.
    """
    hosts = state.index.hosts
    coming, kept, failed = _sorted(now, settings, provisioned, hosts)
    lost = _lost(state, now, kept, {} if lost_since is None else lost_since)
    taken = [node for node, since in lost.items() if now >= since + settings.lost_seconds]
    kept = [node for node in kept if node not in taken]
    rested = [node for node, since in failed if now >= since + settings.retry_seconds]
    resting = len(failed) - len(rested)  # failed nodes are not requested again at once
    leaving = sum(it.state is PoolNodeState.LEAVING for it in provisioned)
    space = max(0, settings.max_nodes - len(coming) - len(kept) - resting - leaving)
    idle = _idle(state, now, kept, idle_since)
    ripe = [node for node, since in idle.items() if now >= since + settings.idle_seconds]
    spare = ripe[: max(0, len(coming) + len(kept) - settings.min_nodes)]
    missing, ripens_at = 0, inf
    on_order = len(coming) + resting
    if space or spare or (on_order and covered is not None):
        pressing, at_least, ripens_at = _pressing(
            state, now, settings, kind, {it.node for it in provisioned}, space + on_order
        )
        own = {line: count - covered.get(line, 0) for line, count in pressing.items()} if covered else pressing
        own = {line: count for line, count in own.items() if count > 0}
        asked, uncovered = _missing(state, kind, own, on_order, space)
        missing = max(asked, at_least - on_order) if own else 0
        if covered is not None:
            for line, count in own.items():
                covered[line] = covered.get(line, 0) + count - uncovered.get(line, 0)
        if pressing:
            spare = [node for node in spare if not hosts[node].open]  # no waiting task could use those
    boot = min(max(missing, settings.min_nodes - len(coming) - len(kept)), space)
    gone = [it.node for it in provisioned if it.state is PoolNodeState.GONE]
    times = [
        ripens_at,
        *(since + settings.idle_seconds for node, since in idle.items() if node not in ripe),
        *(since + settings.retry_seconds for node, since in failed if node not in rested),
        *(since + settings.boot_limit_seconds for since in coming.values()),
        *(since + settings.lost_seconds for node, since in lost.items() if node not in taken),
    ]
    return PoolActions(
        boot=tuple(_names(kind.id, boot, {*hosts, *(it.node for it in provisioned)})),
        give_back=tuple(spare),
        remove=(*(node for node in gone if node in hosts), *taken),
        release=(*rested, *(node for node in gone if node not in hosts)),
        again_at=min(times) if min(times) < inf else None,
    )


def _sorted(
    now: float, settings: PoolSettings, provisioned: Sequence[PoolNode], hosts: Container[NodeId]
) -> tuple[dict[NodeId, float], list[NodeId], list[tuple[NodeId, float]]]:
    """Return nodes on their way and since when, nodes in the cluster, and nodes that failed and when."""
    coming: dict[NodeId, float] = {}
    kept: list[NodeId] = []
    failed: list[tuple[NodeId, float]] = []
    for it in provisioned:
        if it.state is PoolNodeState.FAILED:
            failed.append((it.node, it.since))
        elif it.state in {PoolNodeState.BOOTING, PoolNodeState.READY}:
            late_at = it.since + settings.boot_limit_seconds
            if it.node in hosts:
                kept.append(it.node)
            elif now < late_at:
                coming[it.node] = it.since
            else:
                failed.append((it.node, late_at))
    return coming, kept, failed


def _lost(state: State, now: float, kept: Sequence[NodeId], lost_since: dict[NodeId, float]) -> dict[NodeId, float]:
    """Return the nodes that are lost and since when."""
    found = {node: lost_since.get(node, now) for node in kept if state.index.hosts[node].lost}
    lost_since.clear()
    lost_since.update(found)
    return found


def _idle(state: State, now: float, kept: Sequence[NodeId], idle_since: dict[NodeId, float]) -> dict[NodeId, float]:
    """Return nodes on which nothing runs and since when, longest idle first. A cordoned node counts as idle, too."""
    found: dict[NodeId, float] = {}
    for node in kept:
        if not state.on_node[node] and node not in state.orphaned_attempts and not state.index.hosts[node].lost:
            found[node] = idle_since.get(node, now)
    idle_since.clear()
    idle_since.update(found)
    return dict(sorted(found.items(), key=lambda pair: pair[1]))


def _names(kind: NodeId, count: int, taken: set[NodeId]) -> Iterator[NodeId]:
    number = 0
    while count > 0:
        number += 1
        if (name := NodeId(f"{kind}-{number:04}")) not in taken:
            count -= 1
            yield name


# --- pressure -----------------------------------------------------------------------------------------------------


def _pressing(
    state: State, now: float, settings: PoolSettings, kind: NodeSpec, pool: set[NodeId], most_more: int
) -> tuple[dict[int, int], int, float]:
    """Return the pressure on the pool.

    It consists of the number of tasks of each line, by its number, that wait for nodes of this kind; the number of
    further nodes their classes need; and when the next task will have waited long enough.
    """
    pressing: dict[int, int] = {}
    wanted: dict[TenantId, int] = {}
    at_least, ripens_at = 0, inf
    template = Index()
    template.join(kind)
    for line in state.queue.lines.values():
        waiting = [task for group in line.groups.values() if group.size for task in _unblocked(group)]
        if not waiting or not _could_use(state, line.shape, template, settings.max_nodes, pool):
            continue
        has_room = _has_room(state, line.shape)
        need = line.shape.need_milli
        for task in waiting:
            assert isinstance(task.phase, Waiting)
            if has_room and need <= state.classes[task.class_index].limit:
                continue
            more = _nodes_for_class(state, task.class_index, need, len(kind.gpus), range(not has_room, most_more + 1))
            ripe_at = task.phase.since + settings.pressure_seconds
            if more is None or not _tenant_may_use(task.tenant_usage, wanted.get(task.tenant_usage.id, 0) + need, now):
                continue
            if ripe_at > now:
                ripens_at = min(ripens_at, ripe_at)
                continue
            wanted[task.tenant_usage.id] = wanted.get(task.tenant_usage.id, 0) + need
            pressing[line.number] = pressing.get(line.number, 0) + 1
            at_least = max(at_least, more)
    return pressing, at_least, ripens_at


def _nodes_for_class(state: State, class_index: int, need: int, gpus: int, choices: range) -> int | None:
    """Return the number of further nodes with which a class may use `need` more; None: no choice suffices."""
    if not need or state.split.mode is not QuotaMode.STRICT:
        return 0
    needed = state.classes[class_index].used + need
    for nodes in choices:
        total = state.index.gpus_up + nodes * gpus
        online = state.split.online_gpus(total)
        part = online if class_index == ONLINE else total - online
        if part == total or needed <= part * MILLI:
            return nodes
    return None


def _unblocked(group: Group) -> list[OpenTask]:
    """Return the waiting tasks of a group that is not at a limit and not pinned to the nodes it was suspended on."""
    if group.blocked is not None or group.line.shape.pin:
        return []
    return list({id_: task for key, id_, task in group.heap if task.group is group and task.key == key}.values())


def _tenant_may_use(tenant: TenantUsage, milli: int, now: float) -> bool:
    """Whether a tenant may use `milli` more."""
    return tenant.fits(milli) and tenant.can_pay(now)


def _could_use(state: State, shape: Shape, template: Index, most: int, pool: set[NodeId]) -> bool:
    """Whether a node of the kind could hold a part of such a task, and pool and cluster together all of it."""
    if not _one_part(shape, template).eligible:
        return False
    if shape.nodes <= most:
        return True
    here = _one_part(shape, state.index)
    return shape.nodes <= most + len(state.index.hosts_of(here.eligible) - pool)


def _one_part(shape: Shape, index: Index) -> Shape:
    """Return the shape of the part of a task that runs on one node."""
    part = Shape(replace(shape.resources, nodes=1))
    part.refresh(index)
    return part


def _has_room(state: State, shape: Shape) -> bool:
    """Whether a task would find room at present: then it waits for its turn, not for a node."""
    shape.refresh(state.index)
    return choose(shape, state.index, state.order_for(shape.gpus)) is not None


def _missing(
    state: State, kind: NodeSpec, pressing: dict[int, int], coming: int, space: int
) -> tuple[int, dict[int, int]]:
    """Return how many nodes to request, besides those that are coming, and the tasks for which there is no space."""
    whole = (len(kind.gpus) * MILLI, kind.cpus, kind.memory_mib)
    bins: dict[Room, int] = {whole: coming}
    asked, uncovered = 0, dict[int, int]()
    lines = ((state.queue.by_number[number], count) for number, count in pressing.items())
    for line, count in sorted(lines, key=lambda pair: -pair[0].shape.gpus):
        ask = line.shape.resources
        part = _part(ask, kind)
        there = len(groups_with_room(_one_part(line.shape, state.index), state.index)) if ask.nodes > 1 else 0
        holders = sum(nodes for room, nodes in bins.items() if _fitting(room, part))
        left = _put(bins, part, max(0, count * ask.nodes - there))
        # the parts of a gang run on different nodes
        needed = max(-(-left // _fitting(whole, part)), ask.nodes - there - holders)
        more = min(needed, space - asked)
        if more > 0:
            asked += more
            bins[whole] = bins.get(whole, 0) + more
            left = _put(bins, part, left)
        if left:
            uncovered[line.number] = min(count, -(-left // ask.nodes))
    return asked, uncovered


def _part(ask: Resources, kind: NodeSpec) -> Room:
    """Return what one part of a task takes of a node."""
    gpus = len(kind.gpus) * MILLI if ask.whole_nodes else milli_of(ask, kind.gpus[0].memory_mib if kind.gpus else 0)
    return gpus, ask.cpus, ask.memory_mib


def _fitting(room: Room, part: Room) -> int:
    """Return how many parts of this size fit; a part that takes nothing counts as one per node."""
    return min((has // takes for has, takes in zip(room, part, strict=True) if takes), default=1)


def _put(bins: dict[Room, int], part: Room, count: int) -> int:
    """Put parts into the fullest nodes that can hold them; return how many are left over."""
    for room in sorted(bins):
        fit = _fitting(room, part)
        while count and fit and bins.get(room):
            here = min(fit, count)
            nodes = min(bins[room], count // here)
            count -= nodes * here
            rest = (room[0] - here * part[0], room[1] - here * part[1], room[2] - here * part[2])
            bins[room] -= nodes
            bins[rest] = bins.get(rest, 0) + nodes
    return count
