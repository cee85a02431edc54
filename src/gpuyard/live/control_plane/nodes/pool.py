"""The elastic pool of a live yard: asks the rule now and then, and does what it says.

nodes of the provider ──► rule (engine.pool, on the state) ──► boot            the provider boots; the agent joins by itself
                                                          ├──► give_back       close the node; nothing runs there still: let it go
                                                          ├──► remove          it is down: lost, taken out, forgotten
                                                          └──► release         the yard does not know it: let it go, or forget it
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
"""Whose word it is, in the journal."""

log = structlog.get_logger()


class ElasticPool:
    """A pool, its provider, and what is remembered of it."""

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
        """For ever. What goes wrong is said and tried again: tasks go on without it."""
        while True:
            try:
                await self.step()
            except StorageFull:
                pass  # the yard says so itself
            except Exception:
                log.exception("pool_failed")
            await asyncio.sleep(self._every_seconds)

    async def step(self) -> None:
        """Ask once, and do as told."""
        hired = await asyncio.to_thread(self._provider.nodes)
        orders = await self._loop.look(
            lambda state, now: pool_orders(state, now, self._settings, self._kind, hired, self._idle_since)
        )
        if orders.boot:
            log.info("pool_grows", nodes=list(orders.boot))
            await asyncio.to_thread(self._provider.boot, orders.boot)
        leaving = [node for node in orders.give_back if await self.close(node)]
        if leaving:
            log.info("pool_shrinks", nodes=leaving)
        removed = [node for node in orders.remove if await self._remove(node)]
        released = [*leaving, *removed, *orders.release]
        if released:
            await asyncio.to_thread(self._provider.release, released)

    async def close(self, node: NodeId) -> bool:
        """Let nothing new come to a node; whether it is empty, and stays so. Else a task was quicker, and it stays open."""
        await self._loop.tell(command.CordonNode(node), BY)
        if not await self._loop.look(lambda state, _: bool(state.on_node.get(node))):
            return True
        await self._loop.tell(command.UncordonNode(node), BY)
        return False

    async def _remove(self, node: NodeId) -> bool:
        """Take a node that is down out of the yard."""
        await self._loop.tell(command.LoseNode(node), BY)
        answer = await self._loop.tell(command.RemoveNode(node), BY)
        return not isinstance(answer, Refusal)
