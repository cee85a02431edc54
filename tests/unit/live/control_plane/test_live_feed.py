"""The live stream: one encoding for all viewers, and slow viewers that skip frames."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest

from gpuyard.core.domain.events import NodeChanged, NodeJoined, NodeRemoved, TaskPlaced, TaskSubmitted
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.task import Resources, TaskSpec
from gpuyard.core.domain.values import NodeId, TaskId, TenantId
from gpuyard.core.journal.records import Record
from gpuyard.live.control_plane import time_slices
from gpuyard.live.control_plane.live_feed import LiveFeed
from gpuyard.live.control_plane.readings import Readings
from gpuyard.live.control_plane.views import Views
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.live_answers import AlertCounts

N1 = NodeId("n1")


class LiveStory:
    """Views of one node, and their live feed. The test ticks."""

    def __init__(self, gpus: int = 2) -> None:
        self.views = Views()
        self.telemetry: dict[NodeId, pb.Heartbeat] = {}
        self.readings = Readings(self.views, self.telemetry, {})
        self.feed = LiveFeed(self.views, self.readings, lambda: 1.0, lambda _: AlertCounts())
        self._seq = 0
        self.happens(NodeJoined(NodeSpec(N1, (Gpu("RTX4090", 1000),) * gpus)))

    def happens(self, *events: Any) -> None:
        """Commit events."""
        records = []
        for event in events:
            self._seq += 1
            record = Record(self._seq, 1.0, event)
            self.views.apply(record)
            records.append(record)
        self.feed.hear(records)

    def places(self, task: int, gpu: int, tenant: str = "lab") -> None:
        """A task is submitted and placed."""
        spec = TaskSpec(tenant=TenantId(tenant), resources=Resources(gpus=1), command=("true",))
        self.happens(TaskSubmitted(TaskId(task), spec))
        self.happens(TaskPlaced(TaskId(task), 1, Placement((Slice(N1, (gpu,)),))))


def read(message: bytes) -> tuple[str, dict[str, Any]]:
    """Its event and its data."""
    lines = dict(line.split(b": ", 1) for line in message.strip().split(b"\n"))
    return lines[b"event"].decode(), json.loads(lines[b"data"])


def in_a_loop(story: Callable[[LiveStory], Awaitable[None]]) -> None:
    """Run a story in an event loop; it may not wait for a real second."""

    async def run() -> None:
        async with asyncio.timeout(10):
            await story(LiveStory())

    asyncio.run(run())


async def taken(viewer: AsyncGenerator[bytes, None]) -> tuple[str, dict[str, Any]]:
    return read(await anext(viewer))


def test_all_viewers_of_a_sight_get_the_same_bytes() -> None:
    async def story(live: LiveStory) -> None:
        live.places(1, 0)
        async with (
            aclosing(live.feed.watch(None)) as one,
            aclosing(live.feed.watch(None)) as other,
            aclosing(live.feed.watch(TenantId("lab"))) as member,
        ):
            assert await anext(one) is await anext(other)
            assert (await taken(member))[0] == "snapshot"
            await live.feed.tick()
            first = await anext(one)
            assert first is await anext(other)
            assert first is not await anext(member)

    in_a_loop(story)


def test_a_viewer_that_skips_frames_gets_the_newest_with_all_holders() -> None:
    async def story(live: LiveStory) -> None:
        async with aclosing(live.feed.watch(None)) as slow, aclosing(live.feed.watch(None)) as quick:
            await anext(slow)
            await anext(quick)
            live.places(1, 0)
            await live.feed.tick()
            event, data = await taken(quick)
            assert (event, data["holders"], data["changed_tasks"]) == ("sample", ["task-1", None], ["task-1"])
            for _ in range(5):
                await live.feed.tick()
                event, data = await taken(quick)
                assert "holders" not in data
            event, data = await taken(slow)
            assert (event, data["holders"]) == ("sample", ["task-1", None])
            assert (data["changed_tasks"], data["changed_more"]) == ([], True)
            waiting = asyncio.ensure_future(anext(slow))
            await asyncio.sleep(0)
            assert not waiting.done(), "only the newest frame was kept for the slow viewer"
            await live.feed.tick()
            assert "changed_more" not in read(await waiting)[1]

    in_a_loop(story)


def test_a_viewer_that_missed_a_change_of_the_cards_gets_a_snapshot() -> None:
    async def story(live: LiveStory) -> None:
        async with aclosing(live.feed.watch(None)) as viewer:
            before = (await taken(viewer))[1]
            live.happens(NodeChanged(NodeSpec(N1, (Gpu("RTX4090", 1000), Gpu("RTX4090", 1000)), cpus=4)))
            await live.feed.tick()
            await live.feed.tick()
            event, data = await taken(viewer)
            assert (event, len(data["cards"])) == ("snapshot", 2)
            assert data["generation"] > before["generation"]

    in_a_loop(story)


def test_the_feed_ticks_only_while_someone_watches() -> None:
    async def story(live: LiveStory) -> None:
        assert (live.feed.viewers, live.feed.ticking) == (0, False)
        async with aclosing(live.feed.watch(None)) as viewer:
            await anext(viewer)
            assert (live.feed.viewers, live.feed.ticking) == (1, True)
        assert (live.feed.viewers, live.feed.ticking) == (0, False)

    in_a_loop(story)


def test_readings_of_a_node_are_packed_once_for_each_heartbeat() -> None:
    async def story(live: LiveStory) -> None:
        live.telemetry[N1] = pb.Heartbeat(
            gpus=[pb.GpuUse(index=0, utilization_percent=250.0, power_watts=-5.0), pb.GpuUse(index=7)]
        )
        node = live.readings.refresh()[0]
        packed = live.readings.packed(node)
        assert live.readings.packed(node) is packed
        assert (packed.columns.utilization, list(packed.columns.power)) == (b"\xc8\xff", [0, 0xFFFF])
        node.away = True
        assert live.readings.packed(node).columns.utilization == b"\xff\xff", "what it reported is outdated"

    in_a_loop(story)


@pytest.mark.slow
def test_ten_viewers_of_1600_gpus_cost_less_than_a_twentieth_of_a_core() -> None:
    async def story(live: LiveStory) -> None:
        spec = NodeSpec(N1, (Gpu("RTX4090", 1000),) * 1600)
        live.happens(NodeRemoved(N1), NodeJoined(spec))
        live.places(1, 0)
        viewers = [live.feed.watch(None) for _ in range(10)]
        for viewer in viewers:
            await anext(viewer)
        began, ticks = time.thread_time(), 20
        for tick in range(ticks):
            uses = [pb.GpuUse(index=index, utilization_percent=tick) for index in range(1600)]
            live.telemetry[N1] = pb.Heartbeat(gpus=uses)
            await live.feed.tick()
            for viewer in viewers:
                assert b"event: sample" in await anext(viewer)
        assert (time.thread_time() - began) / ticks < 0.05, "CPU seconds a second"
        for viewer in viewers:
            await viewer.aclose()

    in_a_loop(story)


def test_the_frames_of_many_tenants_are_made_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slices, "SLICE_SECONDS", -1.0)  # every turn is due

    async def story(live: LiveStory) -> None:
        sights = [TenantId(f"t{number}") for number in range(20)]
        viewers = [live.feed.watch(sight) for sight in sights]
        for viewer in viewers:
            await taken(viewer)
        waiting = [asyncio.create_task(taken(viewer)) for viewer in viewers]
        await asyncio.sleep(0)
        ticking = asyncio.create_task(live.feed.tick())
        seen_at = list[int]()
        while not ticking.done():
            await asyncio.sleep(0)
            seen_at.append(sum(task.done() for task in waiting))
        assert len(set(seen_at)) > 10, "viewers get their frames while others are still made"
        assert [(await task)[0] for task in waiting] == ["sample"] * 20
        for viewer in viewers:
            await viewer.aclose()

    in_a_loop(story)
