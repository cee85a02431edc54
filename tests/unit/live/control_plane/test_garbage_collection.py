"""When the garbage collector runs a full collection."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from itertools import count

import pytest

from gpuyard.live.control_plane.garbage_collection import CALM_TASKS, NEVER, collect_when_idle, freeze_recovered


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def lives_on(open_tasks: int, at_least_every_seconds: float = 60.0) -> bool:
    async def story() -> bool:
        freeze_recovered()
        old = Cycle()
        gc.collect(1)
        gc.collect(1)  # it is old now, so that it is not found among the young ones
        seen = weakref.ref(old)
        del old
        assert seen() is not None
        looks = count(1)
        looked_often = asyncio.Event()

        def asked() -> int:
            if next(looks) > 5:
                looked_often.set()
            return open_tasks

        looking = asyncio.create_task(
            collect_when_idle(asked, every_seconds=0.01, at_least_every_seconds=at_least_every_seconds)
        )
        async with asyncio.timeout(20):
            await looked_often.wait()
        looking.cancel()
        return seen() is not None

    return asyncio.run(story())


def test_python_never_runs_a_full_collection_by_itself() -> None:
    freeze_recovered()
    assert gc.get_threshold()[2] == NEVER


def test_a_full_collection_runs_while_few_tasks_are_open() -> None:
    assert not lives_on(open_tasks=CALM_TASKS)


def test_no_full_collection_runs_while_many_tasks_are_open() -> None:
    assert lives_on(open_tasks=CALM_TASKS + 1)


def test_a_full_collection_runs_after_a_day_however_many_tasks_are_open() -> None:
    assert not lives_on(open_tasks=CALM_TASKS + 1, at_least_every_seconds=0.02)
