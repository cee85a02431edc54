"""How long the event loop of a server keeps other work waiting, in processor time of its thread."""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gpuyard.live.control_plane.garbage_collection import freeze_recovered
from tests.acceptance.rest_cluster import RestCluster


class LoopTime:
    """The longest piece of work so far."""

    longest = 0.0


@contextmanager
def collector_as_in_a_server() -> Iterator[None]:
    """Let the collector visit only new objects, not those of the whole test process."""
    before = gc.get_threshold()
    freeze_recovered()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


@contextmanager
def loop_time(cluster: RestCluster) -> Iterator[LoopTime]:
    """Measure the pieces of work of the event loop, with the collector as in a server."""
    found, ended = LoopTime(), asyncio.Event()

    async def watch() -> None:
        while not ended.is_set():
            began = time.thread_time()
            await asyncio.sleep(0)
            found.longest = max(found.longest, time.thread_time() - began)

    async def begin() -> "asyncio.Task[None]":
        return asyncio.create_task(watch())

    async def end() -> None:
        ended.set()
        await watching

    with collector_as_in_a_server():
        watching = cluster.inside(begin)
        try:
            yield found
        finally:
            cluster.inside(end)
