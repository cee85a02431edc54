"""What a simulation is played under besides its workload and its policy: an elastic pool or nodes that sleep, a price,
failures. Each adds figures of its own to those of the run.
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
from gpuyard.simulator.elastic import ElasticPool
from gpuyard.simulator.energy import HOUR, Meter
from gpuyard.simulator.failures import Chance, Failures
from gpuyard.simulator.world import World


@dataclass(frozen=True, slots=True)
class Elastic:
    """Nodes are hired when they are needed. All are of the kind of the first one."""

    settings: PoolSettings
    boot_seconds: float
    failing_part: float = 0.0
    """How many of all boots fail."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Nodes sleep when nothing has run there for a while, and are woken when they are needed."""

    idle_seconds: float
    wake_seconds: float


@dataclass(frozen=True, slots=True)
class Repair:
    """Nodes fail and are repaired."""

    up_hours: float
    repair_hours: float


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is so; what is not named is not."""

    pool: Elastic | Sleep | None = None
    repair: Repair | None = None
    metered: bool = False
    """Whether energy and cost are added up."""
    price: float | None = None
    """Of one GPU for an hour."""
    chance: Chance = lambda _: lambda: 0.0


class Setting:
    """Conditions in a world: to be made before anything happens there, and asked when all is over."""

    def __init__(self, world: World, conditions: Conditions, opening: Sequence[command.Command]) -> None:
        self._price = conditions.price
        self.opening = list(opening)
        """What is so before anything comes."""
        self.meter: Meter | None = None
        self._failures: Failures | None = None
        self._has_pool = conditions.pool is not None
        if conditions.metered or conditions.pool is not None:
            self.meter = Meter(conditions.price or 0.0)
            world.listeners.append(self.meter.hear)
        if conditions.repair is not None:
            up, repair = conditions.repair.up_hours * HOUR, conditions.repair.repair_hours * HOUR
            self._failures = Failures(world, up, repair, conditions.chance)
        if conditions.pool is not None:
            self._found_pools(world, conditions.pool, conditions.chance)

    def _found_pools(self, world: World, pool: Elastic | Sleep, chance: Chance) -> None:
        assert self.meter is not None
        nodes = [order.node for order in self.opening if isinstance(order, command.JoinNode)]
        self.opening = [order for order in self.opening if not isinstance(order, command.JoinNode)]
        if isinstance(pool, Elastic):
            draw, part = chance("boots"), pool.failing_part
            pools = [
                ElasticPool(
                    world, self.meter, next(iter(kinds_of(nodes))), pool.settings,
                    boot_seconds=pool.boot_seconds, fails=lambda: draw() < part,
                )
            ]  # fmt: skip
        else:
            pools = [
                ElasticPool(
                    world, self.meter, kind, PoolSettings(max_nodes=count, idle_seconds=pool.idle_seconds, boot_limit_seconds=inf),
                    boot_seconds=pool.wake_seconds, asleep=True, nodes=count,
                )
                for kind, count in kinds_of(nodes).items()
            ]  # fmt: skip
        self.opening += [order for each in pools for order in each.opening()]

    def gpus(self, otherwise: int) -> float:
        """How many GPUs there were: of a pool, on average."""
        return self.meter.average_gpus if self.meter is not None and self._has_pool else otherwise

    def figures(self) -> dict[str, float]:
        """What it adds to the measures, by name."""
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
    """Every kind of node and how many there are of it; a kind bears the name of its pool, and a number if need be."""
    counts: dict[NodeSpec, int] = {}
    for node in nodes:
        plain = replace(node, id=NodeId(""))
        counts[plain] = counts.get(plain, 0) + 1
    named: dict[NodeSpec, int] = {}
    twins: dict[str, int] = {}
    for plain, count in counts.items():
        name = dict(plain.labels).get(POOL) or "node"
        number = twins[name] = twins.get(name, 0) + 1
        named[replace(plain, id=NodeId(name if number == 1 else f"{name}.{number}"))] = count
    return named
