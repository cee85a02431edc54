"""Conditions of a simulation besides its workload and its policy: an elastic pool or sleeping nodes, a price, failures.
Each adds its own figures to those of the run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from msgspec.structs import replace

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.pool import PoolSettings
from gpuyard.core.domain.values import NodeId
from gpuyard.simulator.clusters import POOL
from gpuyard.simulator.elastic import SimulatedPool, SpotNodes
from gpuyard.simulator.energy import HOUR, PowerMeter
from gpuyard.simulator.failures import Failures, LostWork, NodeRandom, RandomDraw
from gpuyard.simulator.world import World


@dataclass(frozen=True, slots=True)
class ElasticNodes:
    """Nodes of one kind that are provisioned on demand."""

    settings: PoolSettings
    boot_seconds: float
    failing_part: float = 0.0
    """Share of boots that fail."""
    gpus: int | None = None
    """GPUs of a node; None means as the first node of the cluster."""
    model: str | None = None
    """GPU model; None means as the first node of the cluster."""
    price: float | None = None
    """Price of one GPU for an hour; None means that of the scenario. The cheapest pool that can hold a task boots."""
    spot_hours: float | None = None
    """Mean time until the provider takes a node away; None means never."""
    notice_seconds: float = 120.0
    """Time between the announcement that a spot node is taken away and its loss."""

    def kind(self, like: NodeSpec, name: str) -> NodeSpec:
        """Return the nodes of this pool; what it does not say is as on another node."""
        gpu = like.gpus[0] if self.model is None else replace(like.gpus[0], model=self.model)
        return replace(like, id=NodeId(name), gpus=(gpu,) * (len(like.gpus) if self.gpus is None else self.gpus))


@dataclass(frozen=True, slots=True)
class SuspendedNodes:
    """Nodes go to sleep when nothing has run there for a while and are woken on demand."""

    idle_seconds: float
    wake_seconds: float


@dataclass(frozen=True, slots=True)
class FailingNodes:
    """Nodes fail and are repaired."""

    up_hours: float
    repair_hours: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """The conditions of a run; a condition that is not set does not apply."""

    pool: ElasticNodes | tuple[ElasticNodes, ...] | SuspendedNodes | None = None
    """Several elastic pools boot in the order of their prices."""
    repair: FailingNodes | None = None
    metered: bool = False
    """Whether energy and cost are measured."""
    price: float | None = None
    """Price of one GPU for an hour."""
    chance: NodeRandom = lambda _: lambda: 0.0


class AppliedScenario:
    """A scenario applied to a world: create it before the first event, read its figures after the last."""

    def __init__(self, world: World, scenario: Scenario, opening: Sequence[command.Command]) -> None:
        self._elastic = elastic_pools(scenario)
        self._has_cost = scenario.price is not None or any(pool.price is not None for pool in self._elastic)
        self.opening = list(opening)
        """Commands that set up the cluster before the first task arrives."""
        self.meter: PowerMeter | None = None
        self._failures: Failures | None = None
        self._pools: list[SimulatedPool] = []
        self._lost_work: LostWork | None = None
        if scenario.metered or scenario.pool is not None:
            prices = {name: pool.price for name, pool in named_pools(self._elastic).items() if pool.price is not None}
            self.meter = PowerMeter(scenario.price or 0.0, prices)
            world.listeners.append(self.meter.hear)
        if scenario.repair is not None or any(pool.spot_hours is not None for pool in self._elastic):
            self._lost_work = LostWork()
            world.listeners.append(self._lost_work.hear)
        if scenario.repair is not None:
            up, repair = scenario.repair.up_hours * HOUR, scenario.repair.repair_hours * HOUR
            self._failures = Failures(world, up, repair, scenario.chance)
        if scenario.pool is not None:
            self._found_pools(world, scenario.pool, scenario.chance)

    def _found_pools(self, world: World, pool: object, chance: NodeRandom) -> None:
        assert self.meter is not None
        nodes = [order.node for order in self.opening if isinstance(order, command.JoinNode)]
        self.opening = [order for order in self.opening if not isinstance(order, command.JoinNode)]
        if isinstance(pool, SuspendedNodes):
            self._pools = [
                SimulatedPool(
                    world, self.meter, kind, PoolSettings(max_nodes=count, idle_seconds=pool.idle_seconds, boot_limit_seconds=inf),
                    boot_seconds=pool.wake_seconds, asleep=True, nodes=count,
                )
                for kind, count in kinds_of(nodes).items()
            ]  # fmt: skip
        first = next(iter(kinds_of(nodes)))
        for name, each in named_pools(self._elastic).items():
            draw, part = chance(f"boots {name}" if len(self._elastic) > 1 else "boots"), each.failing_part
            spot = None
            if each.spot_hours is not None:
                spot = SpotNodes(each.spot_hours * HOUR, each.notice_seconds, chance)
            self._pools.append(
                SimulatedPool(
                    world, self.meter, each.kind(first, name or first.id), each.settings, boot_seconds=each.boot_seconds,
                    fails=_fails(draw, part), cheaper=tuple(self._pools), spot=spot,
                )
            )  # fmt: skip
        self.opening += [order for each in self._pools for order in each.opening()]

    def gpus(self, otherwise: int) -> float:
        """Return the number of GPUs, for a pool the average over time; `otherwise` if the cluster is fixed."""
        return self.meter.average_gpus if self.meter is not None and self._pools else otherwise

    def figures(self) -> dict[str, float]:
        """Return the figures that the scenario adds to the measures, by name."""
        found: dict[str, float] = {}
        if self.meter is not None:
            found |= {"energy_kwh": self.meter.energy_kwh, "gpu_hours_up": self.meter.gpu_hours_up}
            if self._has_cost:
                found["cost"] = self.meter.cost
        revoked = sum(pool.nodes_revoked for pool in self._pools)
        if any(pool.spot_hours is not None for pool in self._elastic):
            found["nodes_revoked"] = revoked
        if self._failures is not None:
            found["node_failures"] = self._failures.node_failures - revoked
        if self._lost_work is not None:
            found |= {
                "attempts_lost": self._lost_work.attempts_lost,
                "gpu_hours_lost": self._lost_work.gpu_seconds_lost / HOUR,
            }
        return found


def _fails(draw: RandomDraw, part: float) -> Callable[[], bool]:
    return lambda: draw() < part


def elastic_pools(scenario: Scenario) -> tuple[ElasticNodes, ...]:
    """Return the elastic pools of a scenario, the cheapest first; of equal prices in the given order."""
    pools = scenario.pool
    found = (pools,) if isinstance(pools, ElasticNodes) else pools if isinstance(pools, tuple) else ()
    return tuple(sorted(found, key=lambda pool: scenario.price or 0.0 if pool.price is None else pool.price))


def named_pools(pools: Sequence[ElasticNodes]) -> dict[str, ElasticNodes]:
    """Return the pools by the names of their nodes; a single one like the nodes of the cluster has their name."""
    if len(pools) == 1 and pools[0].price is None:
        return {"": pools[0]}
    return {
        f"{'on-demand' if pool.spot_hours is None else 'spot'}-{place}": pool
        for place, pool in enumerate(pools, start=1)
    }


def kinds_of(nodes: Sequence[NodeSpec]) -> dict[NodeSpec, int]:
    """Return every kind of node with its count; a kind is named after its pool, with a number if a pool has several."""
    counts: dict[NodeSpec, int] = {}
    for node in nodes:
        plain = replace(node, id=NodeId(""))
        counts[plain] = counts.get(plain, 0) + 1
    named: dict[NodeSpec, int] = {}
    numbers: dict[str, int] = {}
    for plain, count in counts.items():
        name = dict(plain.labels).get(POOL) or "node"
        number = numbers[name] = numbers.get(name, 0) + 1
        named[replace(plain, id=NodeId(name if number == 1 else f"{name}.{number}"))] = count
    return named
