"""The recorder: samples of views and heartbeats, written in a thread, whatever happens to the disk."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpuyard.core.domain.events import NodeJoined, NodeLost
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.values import NodeId
from gpuyard.core.journal.records import Record
from gpuyard.live.control_plane.history.layout import CLUSTER, NODES
from gpuyard.live.control_plane.history.recorder import HistoryRecorder
from gpuyard.live.control_plane.history.store import HistoryStore
from gpuyard.live.control_plane.readings import Readings
from gpuyard.live.control_plane.views import Views
from gpuyard.live.control_plane.worker_threads import WorkerPool
from gpuyard.live.wire import agents_pb2 as pb
from tests.unit.live.control_plane.history.story import T0, opened, series

N1 = NodeId("n1")


class RecorderStory:
    """A node with one GPU, its history, and a clock that the test sets."""

    def __init__(self, folder: Path) -> None:
        self.now = float(T0)
        self.views, self.telemetry, self.latencies = Views(), dict[NodeId, pb.Heartbeat](), dict[NodeId, float]()
        self.views.apply(Record(1, 0.0, NodeJoined(NodeSpec(N1, (Gpu("T4", 16384),)))))
        self.store: HistoryStore = opened(folder)
        readings = Readings(self.views, self.telemetry, self.latencies)
        self.recorder = HistoryRecorder(
            self.store, self.views, readings, lambda: self.now, WorkerPool("history-writer", 1), 1.0
        )

    async def records(self, seconds: int) -> None:
        """Let so many seconds pass, with a sample each."""
        for _ in range(seconds):
            await self.recorder.record(int(self.now))
            self.now += 1


def told(folder: Path, story: Callable[[RecorderStory], Awaitable[None]]) -> None:
    """Run a story in an event loop."""

    async def run() -> None:
        recording = RecorderStory(folder)
        await story(recording)
        recording.store.close()

    asyncio.run(run())


def test_readings_of_a_lost_node_and_of_an_older_agent_are_unknown(tmp_path: Path) -> None:
    async def story(it: RecorderStory) -> None:
        use = pb.GpuUse(index=0, utilization_percent=50.0, power_watts=100.0)
        host = pb.Host(cpu_percent=10.0, memory_used_mib=1, memory_mib=4)
        it.telemetry[N1], it.latencies[N1] = pb.Heartbeat(host=host, gpus=[use]), 0.25
        await it.records(2)
        it.telemetry[N1] = pb.Heartbeat(gpus=[use])  # its driver hangs, so it has not measured its host
        del it.latencies[N1]
        await it.records(1)
        it.views.apply(Record(2, 0.0, NodeLost(N1)))
        await it.records(1)
        assert series(it.store, "n1/0", T0, T0 + 4, 1)["utilization"] == [50, 50, 50, None]
        assert series(it.store, "n1/0", T0, T0 + 4, 1)["allocated"] == [0, 0, 0, None]
        nodes = series(it.store, "n1", T0, T0 + 4, 1, NODES)
        assert nodes["cpu_percent"] == [10, 10, None, None]
        assert nodes["memory_percent"] == [25, 25, None, None]
        assert nodes["network_latency_ms"] == [250, 250, None, None]
        cluster = series(it.store, "", T0, T0 + 4, 1, CLUSTER)
        assert cluster["power_watts"] == [100, 100, 100, None]
        assert cluster["energy_joules"] == [None, 100, 100, None]
        assert cluster["gpus_offline"] == [0, 0, 0, 1]

    told(tmp_path, story)


def test_energy_of_a_pause_counts_as_two_samples(tmp_path: Path) -> None:
    async def story(it: RecorderStory) -> None:
        it.telemetry[N1] = pb.Heartbeat(gpus=[pb.GpuUse(index=0, power_watts=100.0)])
        await it.records(1)
        it.now += 1000
        await it.records(1)
        found = series(it.store, "", T0, T0 + 1200, 1200, CLUSTER)
        assert found["energy_joules"] == [200]

    told(tmp_path, story)


def test_a_full_disk_is_not_logged_with_every_sample_and_the_history_continues_when_there_is_room(
    tmp_path: Path,
) -> None:
    async def story(it: RecorderStory) -> None:
        await it.records(1)
        (pages,) = it.store._database.execute("PRAGMA page_count").fetchone()
        it.store._database.execute(f"PRAGMA max_page_count = {pages}")
        with capture_logs() as logs:
            await it.records(120)
        assert {line["event"] for line in logs} == {"history_write_failed"}
        assert len(logs) < 10, "again only after samples that could be written"
        assert "No space is left" in logs[0]["message"]
        it.store._database.execute("PRAGMA max_page_count = 1000000")
        since = int(it.now)
        await it.records(3)
        assert series(it.store, "n1/0", since, since + 3, 1)["allocated"] == [0, 0, 0]

    told(tmp_path, story)


def test_samples_are_taken_at_whole_multiples_of_the_interval_and_survive_a_clock_that_is_set_back(
    tmp_path: Path,
) -> None:
    async def story(it: RecorderStory) -> None:
        running = asyncio.create_task(it.recorder.run())
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + 20
        it.now = T0 + 0.999
        seen = list[int]()
        while not seen or seen[-1] > T0 - 5000:
            assert loop.time() < give_up_at
            await asyncio.sleep(0.005)
            newest = it.store.covered_until(it.store.tiers[0]) - 1
            if newest > 0 and newest not in seen:
                seen.append(newest)
                it.now = newest + 0.999 if len(seen) < 2 else T0 - 5000.001
        # One more sample may have been due when the clock was set back.
        assert seen in ([T0 + 1, T0 + 2, T0 - 5000], [T0 + 1, T0 + 2, T0 + 3, T0 - 5000])
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    told(tmp_path, story)
