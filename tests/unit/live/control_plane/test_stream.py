"""Events for whoever listens: nobody holds the others up, and nobody fills the memory."""

import asyncio

import pytest

from gpuyard.core.domain.events import TaskHeld
from gpuyard.core.domain.values import TaskId
from gpuyard.core.journal.records import Record
from gpuyard.live.control_plane.stream import MOST_WAITING, EventStream
from tests.unit.live.control_plane.clusters import run


def events(first: int, count: int) -> list[Record]:
    return [Record(seq, 1.0, TaskHeld(TaskId(seq))) for seq in range(first, first + count)]


@pytest.mark.parametrize("size", [1, 1000])
def test_one_who_is_too_many_events_behind_is_let_go_and_has_missed_nothing_before(size: int) -> None:
    async def story() -> None:
        stream, heard = EventStream(), []
        slow = stream.listen(5)
        first = asyncio.ensure_future(anext(slow))
        await asyncio.sleep(0)
        for place in range(2 * MOST_WAITING // size):
            stream.publish(events(1 + place * size, size))
        heard = [record.seq for record in await first]
        async for records in slow:
            assert records, "it was not let go"
            heard += [record.seq for record in records]
        assert heard == list(range(1, len(heard) + 1))
        assert len(heard) < MOST_WAITING + size

    run(story)


def test_a_listener_that_keeps_up_receives_everything_even_large_batches() -> None:
    async def story() -> None:
        stream = EventStream()
        listener = stream.listen(60)
        next_ = asyncio.ensure_future(anext(listener))
        await asyncio.sleep(0)
        for size in (1, 2 * MOST_WAITING, 3, 2 * MOST_WAITING):
            stream.publish(events(1, size))
            assert len(await next_) == size
            next_ = asyncio.ensure_future(anext(listener))
            await asyncio.sleep(0)
        next_.cancel()

    run(story)
