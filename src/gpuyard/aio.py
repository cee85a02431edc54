"""The client of a live cluster for asyncio: `cluster = gpuyard.aio.connect()`, then `await cluster.submit(…)`."""

from gpuyard.live.sdk.aio import AsyncClient, connect

__all__ = ["AsyncClient", "connect"]
