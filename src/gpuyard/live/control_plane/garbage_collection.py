"""Run Python's garbage collector rarely, and never on all objects during work.

A full collection visits every live object. With 100,000 open tasks it stops the event loop for half a second, and
Python starts one whenever the number of objects has grown by a quarter. Tasks leave no reference cycles, but
connections and errors do. So automatic collections visit only young objects, few enough for a pause of some
milliseconds, and a full collection runs when few tasks are open, or once a day.
"""

import asyncio
import gc
import time
from collections.abc import Callable

YOUNG, YOUNGER = 5_000, 10
"""Number of new objects before a collection of the youngest generation; number of those before one of the next."""
NEVER = 1 << 30
CALM_TASKS = 2_000
LOOK_SECONDS = 60.0
AT_LEAST_EVERY_SECONDS = 86_400.0


def freeze_recovered() -> None:
    """Freeze the recovered objects at the start: they stay, so collections need not visit them.

    A scheduler that begins anew, because it does not lead any more, has left the objects of its life before.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, YOUNGER, NEVER)


async def collect_when_idle(
    open_tasks: Callable[[], int],
    *,
    every_seconds: float = LOOK_SECONDS,
    at_least_every_seconds: float = AT_LEAST_EVERY_SECONDS,
) -> None:
    """Run a full collection at each interval while few tasks are open, otherwise once a day."""
    last = time.monotonic()
    while True:
        await asyncio.sleep(every_seconds)
        if open_tasks() <= CALM_TASKS or time.monotonic() - last > at_least_every_seconds:
            gc.collect()
            last = time.monotonic()
