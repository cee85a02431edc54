"""When Python's garbage collector looks for cycles: rarely, and never at everything in the midst of work.

A full collection looks at every object that is kept. With 100,000 open tasks it stops the event loop for half a second,
and Python starts one whenever that number has grown by a quarter. Tasks leave no cycles behind, connections and errors
do. So only young objects are looked at by itself, few enough for a pause of some milliseconds, and everything is looked
at when few tasks are open, or once a day.
"""

import asyncio
import gc
import time
from collections.abc import Callable

YOUNG, YOUNGER = 5_000, 10
"""New objects before a collection of those; and after so many of these, one of all of them together."""
NEVER = 1 << 30
CALM_TASKS = 2_000
LOOK_SECONDS = 60.0
AT_LEAST_EVERY_SECONDS = 86_400.0


def freeze_recovered() -> None:
    """Begin: what was recovered stays, so no collection need look at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, YOUNGER, NEVER)


async def collect_when_idle(
    open_tasks: Callable[[], int],
    *,
    every_seconds: float = LOOK_SECONDS,
    at_least_every_seconds: float = AT_LEAST_EVERY_SECONDS,
) -> None:
    """Look at everything now and then."""
    last = time.monotonic()
    while True:
        await asyncio.sleep(every_seconds)
        if open_tasks() <= CALM_TASKS or time.monotonic() - last > at_least_every_seconds:
            gc.collect()
            last = time.monotonic()
