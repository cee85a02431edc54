"""Elastic pools in a simulated world: the rule of the live scheduler, with a provider of in-memory nodes.

The provider takes a spot node away after a random time, exponentially distributed. It announces this: the node is then
closed and drained, so tasks that may be preempted move, and the others are lost with the node when the notice is over.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log

from msgspec.structs import replace

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.pool import PoolActions, PoolNodeState, PoolSettings
from gpuyard.core.domain.values import NodeId, TaskId
from gpuyard.core.engine.pool import pool_orders
from gpuyard.live.pool.memory import MemoryProvider
from gpuyard.simulator.energy import PowerMeter
from gpuyard.simulator.failures import NodeRandom, RandomDraw
from gpuyard.simulator.world import World

REACTION_SECONDS = 10.0
"""Minimum interval between evaluations of the rule, as in the live scheduler."""


@dataclass(frozen=True, slots=True)
class SpotNodes:
    """Nodes that the provider takes away."""

    mean_seconds: float
    """Mean time from joining to being taken away."""
    notice_seconds: float
    chance: NodeRandom


class SimulatedPool:
    """An elastic pool as a `gpuyard.simulator.world.WorldActor`. Released nodes leave, or sleep if `asleep`."""

    def __init__(
        self,
        world: World,
        meter: PowerMeter,
        kind: NodeSpec,
        settings: PoolSettings,
        *,
        boot_seconds: float,
        fails: Callable[[], bool] = lambda: False,
        asleep: bool = False,
        nodes: int | None = None,
        cheaper: "Sequence[SimulatedPool]" = (),
        spot: SpotNodes | None = None,
    ) -> None:
        """Create a pool that starts with `nodes` nodes; None means the minimum of its settings.

        `cheaper`: pools that are asked first; this one boots nodes only for tasks that those have no space for.
        """
        self._world = world
        self._meter = meter
        self._kind = kind
        self._settings = settings
        self._cheaper = tuple(cheaper)
        self._spot = spot
        self._draws: dict[NodeId, RandomDraw] = {}
        self._taken_at: dict[NodeId, float] = {}
        """When each spot node in the cluster is taken away."""
        self._announced: set[NodeId] = set()
        self.nodes_revoked = 0
        self._leaves = meter.sleeps if asleep else meter.leaves
        count = settings.min_nodes if nodes is None else nodes
        self._first = [NodeId(f"{kind.id}-{number + 1:04}") for number in range(count)]
        self._provider = MemoryProvider(lambda: world.now, boot_seconds, fails, self._first)
        self._idle_since: dict[NodeId, float] = {}
        self._acted_at = -REACTION_SECONDS
        self._stirred = True
        self._strangers: set[TaskId] = set()
        """Tasks that no node of this kind could hold."""
        self._again_at: float | None = None
        self._up_at: float | None = None
        """When the next booting node is up or has failed; None if none is booting."""
        world.actors.append(self)
        world.listeners.append(self._hear)

    def opening(self) -> list[command.Command]:
        """Return the commands that add the initial nodes."""
        for name in self._first:
            self._lives(name, self._world.now)
        return [command.JoinNode(self._node(name)) for name in self._first]

    def due(self) -> float | None:
        """Return when to act next: after a relevant event, when a node is up, or when the rule asks for it."""
        times = [at for at in (self._again_at, self._up_at) if at is not None]
        times += [self._next_step(node) for node in self._taken_at]
        if self._stirred:
            times.append(self._acted_at + REACTION_SECONDS)
        return min(times) if times and not self._world.is_over else None

    def act(self, now: float) -> Iterator[command.Command]:
        """Add the nodes that have booted, and apply the rule."""
        self._stirred, self._acted_at = False, now
        yield from self._revocations(now)
        yield from self._joins(now)
        orders = self.orders(now)
        self._again_at = orders.again_at
        self._provider.boot(orders.boot)
        for name in orders.boot:
            self._meter.boots(now, self._node(name))
        for name in (*orders.release, *orders.give_back):
            self._leaves(now, self._node(name))
        for name in orders.remove:  # refused while other parts of a gang end, and repeated
            yield command.LoseNode(name)
            yield command.RemoveNode(name)
        for name in orders.give_back:
            self._forget(name)
            yield command.RemoveNode(name)
        for _ in range(2):  # first pass: the nodes go down; second pass: they are removed
            self._provider.release((*orders.give_back, *orders.release))
        self._up_at = self._provider.next_change()
        yield from self._joins(now)  # nodes without boot time join at once

    def orders(self, now: float, covered: dict[int, int] | None = None) -> PoolActions:
        """Return what the rule asks for now. `covered`: tasks that are no pressure any more; this pool's are added."""
        state, provisioned = self._world.engine.state, self._provider.nodes()
        if covered is None and self._cheaper:
            covered = {}
            for pool in self._cheaper:
                pool.orders(now, covered)
        return pool_orders(state, now, self._settings, self._kind, provisioned, self._idle_since, covered)

    # --- spot nodes -----------------------------------------------------------------------------------------------------

    def _next_step(self, node: NodeId) -> float:
        """Return when a spot node is announced or taken away."""
        assert self._spot is not None
        return self._taken_at[node] - (0.0 if node in self._announced else self._spot.notice_seconds)

    def _revocations(self, now: float) -> Iterator[command.Command]:
        for node in [node for node in self._taken_at if self._next_step(node) <= now]:
            if node not in self._announced:
                self._announced.add(node)
                yield command.CordonNode(node, drain=True)
            if self._taken_at[node] <= now:
                self.nodes_revoked += 1
                self._forget(node)
                self._meter.is_taken(self._node(node))
                self._provider.release((node,))  # it is down at once

    def _lives(self, node: NodeId, now: float) -> None:
        """Draw when a spot node that joins now is taken away."""
        if self._spot is not None:
            if node not in self._draws:
                self._draws[node] = self._spot.chance(f"spot {node}")
            self._taken_at[node] = now - self._spot.mean_seconds * log(1.0 - self._draws[node]())

    def _forget(self, node: NodeId) -> None:
        self._taken_at.pop(node, None)
        self._announced.discard(node)

    # --- nodes that join ------------------------------------------------------------------------------------------------

    def _joins(self, now: float) -> Iterator[command.Command]:
        for provisioned in self._provider.nodes():
            if (
                provisioned.state is PoolNodeState.READY
                and provisioned.node not in self._world.engine.state.index.hosts
            ):
                self._lives(provisioned.node, now)
                yield command.JoinNode(self._node(provisioned.node))
            elif provisioned.state is PoolNodeState.FAILED:
                self._leaves(now, self._node(provisioned.node))

    def _node(self, name: NodeId) -> NodeSpec:
        return replace(self._kind, id=name)

    def _hear(self, _at: float, new_events: Sequence[events.Event]) -> None:
        for event in new_events:
            if self._concerns(event):
                self._stirred = True

    def _concerns(self, event: events.Event) -> bool:
        """Return whether an event can change what this pool does; events of tasks in other pools cannot."""
        match event:
            case events.TaskSubmitted(task, spec):
                if any(label not in self._kind.labels for label in spec.resources.labels):
                    self._strangers.add(task)
                    return False
            case events.TaskEnded(task) if task in self._strangers:
                self._strangers.remove(task)
                return False
        return getattr(event, "task", None) not in self._strangers
