"""The elastic pool of a live cluster: evaluates the rule periodically and carries out its decisions.

nodes of the provider ─► rule (engine.pool, on the state) ─┬─► boot       the provider boots; the agent joins by itself
                                                           ├─► give_back  cordon the node; if it stays empty, return it
                                                           ├─► remove     it is down: declare it lost and remove it
                                                           └─► release    unknown to the cluster: return or forget it
"""

import asyncio

import structlog

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.errors import StorageFull
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.pool import PoolSettings
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import NodeId
from gpuyard.core.engine.pool import pool_orders
from gpuyard.live.control_plane.loop import EngineLoop
from gpuyard.live.pool.provider import Provider

BY = "pool"
"""The author of the pool's commands in the journal."""

log = structlog.get_logger()


class ElasticPool:
    """A pool with its provider and its memory."""

    def __init__(
        self, loop: EngineLoop, provider: Provider, settings: PoolSettings, kind: NodeSpec, every_seconds: float
    ) -> None:
        self._loop = loop
        self._provider = provider
        self._settings = settings
        self._kind = kind
        self._every_seconds = every_seconds
        self._idle_since: dict[NodeId, float] = {}

    async def run(self) -> None:
        """Run forever. A failure is logged and retried; tasks continue without the pool."""
        while True:
            try:
                await self.step()
            except StorageFull:
                pass  # the loop reports it
            except Exception:  # whatever a provider raises, the next round tries again and the scheduler goes on
                log.exception("pool_query_failed")
            await asyncio.sleep(self._every_seconds)

    async def step(self) -> None:
        """Evaluate the rule once and carry out its decisions."""
        provisioned = await asyncio.to_thread(self._provider.nodes)
        orders = await self._loop.look(
            lambda state, now: pool_orders(state, now, self._settings, self._kind, provisioned, self._idle_since)
        )
        if orders.boot:
            log.info("pool_grown", nodes=list(orders.boot))
            await asyncio.to_thread(self._provider.boot, orders.boot)
        leaving = [node for node in orders.give_back if await self.close(node)]
        if leaving:
            log.info("pool_shrunk", nodes=leaving)
        removed = [node for node in orders.remove if await self._remove(node)]
        released = [*leaving, *removed, *orders.release]
        if released:
            await asyncio.to_thread(self._provider.release, released)

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
