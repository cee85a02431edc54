"""Conditions of a simulation besides its workload and its policy: an elastic pool or sleeping nodes, a price, failures.
Each adds its own figures to those of the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from msgspec.structs import replace

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.pool import PoolSettings
from gpuyard.core.domain.values import NodeId
from gpuyard.simulator.clusters import POOL
from gpuyard.simulator.elastic import SimulatedPool
from gpuyard.simulator.energy import HOUR, PowerMeter
from gpuyard.simulator.failures import Failures, NodeRandom
from gpuyard.simulator.world import World


@dataclass(frozen=True, slots=True)
class ElasticNodes:
    """Nodes are provisioned on demand. All are of the kind of the first node."""

    settings: PoolSettings
    boot_seconds: float
    failing_part: float = 0.0
    """Share of boots that fail."""


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

    pool: ElasticNodes | SuspendedNodes | None = None
    repair: FailingNodes | None = None
    metered: bool = False
    """Whether energy and cost are measured."""
    price: float | None = None
    """Price of one GPU for an hour."""
    chance: NodeRandom = lambda _: lambda: 0.0


class AppliedScenario:
    """A scenario applied to a world: create it before the first event, read its figures after the last."""

    def __init__(self, world: World, scenario: Scenario, opening: Sequence[command.Command]) -> None:
        self._price = scenario.price
        self.opening = list(opening)
        """Commands that set up the cluster before the first task arrives."""
        self.meter: PowerMeter | None = None
        self._failures: Failures | None = None
        self._has_pool = scenario.pool is not None
        if scenario.metered or scenario.pool is not None:
            self.meter = PowerMeter(scenario.price or 0.0)
            world.listeners.append(self.meter.hear)
        if scenario.repair is not None:
            up, repair = scenario.repair.up_hours * HOUR, scenario.repair.repair_hours * HOUR
            self._failures = Failures(world, up, repair, scenario.chance)
        if scenario.pool is not None:
            self._found_pools(world, scenario.pool, scenario.chance)

    def _found_pools(self, world: World, pool: ElasticNodes | SuspendedNodes, chance: NodeRandom) -> None:
        assert self.meter is not None
        nodes = [order.node for order in self.opening if isinstance(order, command.JoinNode)]
        self.opening = [order for order in self.opening if not isinstance(order, command.JoinNode)]
        if isinstance(pool, ElasticNodes):
            draw, part = chance("boots"), pool.failing_part
            pools = [
                SimulatedPool(
                    world, self.meter, next(iter(kinds_of(nodes))), pool.settings,
                    boot_seconds=pool.boot_seconds, fails=lambda: draw() < part,
                )
            ]  # fmt: skip
        else:
            pools = [
                SimulatedPool(
                    world, self.meter, kind, PoolSettings(max_nodes=count, idle_seconds=pool.idle_seconds, boot_limit_seconds=inf),
                    boot_seconds=pool.wake_seconds, asleep=True, nodes=count,
                )
                for kind, count in kinds_of(nodes).items()
            ]  # fmt: skip
        self.opening += [order for each in pools for order in each.opening()]

    def gpus(self, otherwise: int) -> float:
        """Return the number of GPUs, for a pool the average over time; `otherwise` if the cluster is fixed."""
        return self.meter.average_gpus if self.meter is not None and self._has_pool else otherwise

    def figures(self) -> dict[str, float]:
        """Return the figures that the scenario adds to the measures, by name."""
        found: dict[str, float] = {}
        if self.meter is not None:
            found |= {"energy_kwh": self.meter.energy_kwh, "gpu_hours_up": self.meter.gpu_hours_up}
            if self._price is not None:
                found["cost"] = self.meter.cost
        if self._failures is not None:
            found |= {
                "node_failures": self._failures.node_failures,
                "attempts_lost": self._failures.attempts_lost,
                "gpu_hours_lost": self._failures.gpu_seconds_lost / HOUR,
            }
        return found


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
