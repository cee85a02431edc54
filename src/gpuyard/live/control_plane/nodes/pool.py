"""The elastic pools of a live cluster: evaluates the rule periodically and carries out its decisions.

Pools are evaluated from the cheapest to the most expensive, so that a task boots a node in the cheapest that can hold it.

nodes of the provider ─► rule (engine.pool, on the state) ─┬─► boot       the provider boots; the agent joins by itself
                                                           ├─► give_back  cordon the node; if it stays empty, return it
                                                           ├─► remove     it is down: declare it lost and remove it
                                                           └─► release    unknown to the cluster: return or forget it
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.errors import StorageUnavailable
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.pool import PoolActions, PoolNode, PoolSettings
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import NodeId
from gpuyard.core.engine.pool import pool_orders
from gpuyard.core.engine.state import State
from gpuyard.live.control_plane.loop import EngineLoop
from gpuyard.live.pool.provider import Provider

BY = "pool"
"""The author of the pool's commands in the journal."""

log = structlog.get_logger()


@dataclass(slots=True)
class ElasticPool:
    """A pool with its provider and its memory."""

    provider: Provider
    settings: PoolSettings
    kind: NodeSpec
    idle_since: dict[NodeId, float] = field(default_factory=dict)
    lost_since: dict[NodeId, float] = field(default_factory=dict)


class ElasticPools:
    """All pools of a cluster, the cheapest first."""

    def __init__(self, loop: EngineLoop, pools: Sequence[ElasticPool], every_seconds: float) -> None:
        self._loop = loop
        self._pools = pools
        self._every_seconds = every_seconds
        self.nodes = frozenset[NodeId]()
        """The nodes of all pools, as of the last round."""

    async def run(self) -> None:
        """Run forever. A failure is logged and retried; tasks continue without the pools."""
        while True:
            try:
                await self.step()
            except StorageUnavailable:
                pass  # the loop reports it
            except Exception:  # whatever goes wrong, the next round tries again and the scheduler goes on
                log.exception("pool_query_failed")
            await asyncio.sleep(self._every_seconds)

    async def step(self) -> None:
        """Evaluate the rule once for every pool and carry out its decisions."""
        known: list[tuple[ElasticPool, Sequence[PoolNode]]] = []
        for pool in self._pools:
            try:
                known.append((pool, await asyncio.to_thread(pool.provider.nodes)))
            except Exception:  # other pools go on
                log.exception("pool_query_failed", pool=pool.kind.id)
        self.nodes = frozenset(node.node for _, nodes in known for node in nodes)
        for pool, orders in await self._loop.look(lambda state, now: _orders(state, now, known)):
            await self._carry_out(pool, orders)

    async def _carry_out(self, pool: ElasticPool, orders: PoolActions) -> None:
        if orders.boot:
            log.info("pool_grown", nodes=list(orders.boot))
            await asyncio.to_thread(pool.provider.boot, orders.boot)
        leaving = [node for node in orders.give_back if await self.close(node)]
        if leaving:
            log.info("pool_shrunk", nodes=leaving)
        removed = [node for node in orders.remove if await self._remove(node)]
        released = [*leaving, *removed, *orders.release]
        if released:
            await asyncio.to_thread(pool.provider.release, released)

    async def close(self, node: NodeId) -> bool:
        """Cordon a node; return whether it is empty and stays so. If a task was placed first, uncordon it."""
        await self._loop.tell(command.CordonNode(node), BY)
        if not await self._loop.look(lambda state, _: bool(state.on_node.get(node))):
            return True
        await self._loop.tell(command.UncordonNode(node), BY)
        return False

    async def _remove(self, node: NodeId) -> bool:
        """Remove a node that is down from the cluster."""
        await self._loop.tell(command.LoseNode(node), BY)
        answer = await self._loop.tell(command.RemoveNode(node), BY)
        return not isinstance(answer, Refusal)


def _orders(
    state: State, now: float, known: Sequence[tuple[ElasticPool, Sequence[PoolNode]]]
) -> list[tuple[ElasticPool, PoolActions]]:
    """Return the decisions for all pools; each covers tasks that are no pressure on the next one."""
    covered: dict[int, int] = {}
    return [
        (
            pool,
            pool_orders(state, now, pool.settings, pool.kind, provisioned, pool.idle_since, covered, pool.lost_since),
        )
        for pool, provisioned in known
    ]
