"""The elastic pool of a live scheduler, with fake nodes."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.pool import PoolNodeState, PoolSettings
from gpuyard.core.domain.values import AttemptRef, NodeId
from gpuyard.live.control_plane.nodes.pool import ElasticPool
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.control_plane.settings import pool_of
from gpuyard.live.wire.config import WrongSettings
from gpuyard.testing import MemoryProvider
from gpuyard.testing.fake_node import FakeNode
from tests.unit.live.control_plane.clusters import TOKEN, ended, open_scheduler, run, spec, status, submit, until
from tests.unit.live.control_plane.test_settings import load

KIND = NodeSpec(NodeId("pool"), (Gpu("virtual", 24_576),) * 2)
ONE = NodeId("pool-0001")


def pooled(scheduler: Scheduler, provider: MemoryProvider, **settings: float) -> ElasticPool:
    limits = PoolSettings(**{"idle_seconds": 0.0, **settings})  # type: ignore[arg-type]
    return ElasticPool(scheduler.loop, provider, limits, KIND, every_seconds=0.01)


def states(provider: MemoryProvider) -> dict[str, PoolNodeState]:
    return {provisioned.node: provisioned.state for provisioned in provider.nodes()}


def test_a_node_is_booted_used_cordoned_released_removed_and_forgotten(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            provider = MemoryProvider(time.time)
            pool = pooled(scheduler, provider)
            (task,) = await submit(scheduler, spec())
            await pool.step()
            assert states(provider) == {ONE: PoolNodeState.READY}
            playing = asyncio.create_task(FakeNode(ONE, 2, join_token=TOKEN).play(address))
            await ended(scheduler, task)
            await pool.step()
            assert scheduler.views.nodes[ONE].cordoned
            assert states(provider) == {ONE: PoolNodeState.GONE}
            await pool.step()
            assert (dict(scheduler.views.nodes), states(provider)) == ({}, {})
            playing.cancel()

    run(story)


def test_a_node_is_uncordoned_if_a_task_was_quicker(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            node = FakeNode(ONE, 2, join_token=TOKEN, runs_for=None)
            playing = asyncio.create_task(node.play(address))
            await until(lambda: ONE in scheduler.views.nodes)
            (task,) = await submit(scheduler, spec())
            pool = pooled(scheduler, MemoryProvider(time.time, ready=[ONE]))
            assert not await pool.close(ONE)
            assert not scheduler.views.nodes[ONE].cordoned
            await until(lambda: node.attempts)
            node.end(AttemptRef(task, 1))
            await ended(scheduler, task)
            assert await pool.close(ONE)
            assert scheduler.views.nodes[ONE].cordoned
            playing.cancel()

    run(story)


def test_attempts_on_a_node_its_owner_took_away_wait_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            node = FakeNode(ONE, 2, join_token=TOKEN, runs_for=None)
            playing = asyncio.create_task(node.play(address))
            (task,) = await submit(scheduler, spec())
            await until(lambda: node.attempts)
            provider = MemoryProvider(time.time, ready=[ONE])
            provider.release([ONE])
            await pooled(scheduler, provider).step()
            assert ONE not in scheduler.views.nodes
            assert await status(scheduler, task) == "pending"
            playing.cancel()

    run(story)


def test_a_failing_provider_is_retried(tmp_path: Path) -> None:
    class Moody(MemoryProvider):
        calls = 0

        def boot(self, nodes: Sequence[NodeId]) -> None:
            self.calls += 1
            if self.calls == 1:
                raise OSError("no answer")
            super().boot(nodes)

    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, _):
            provider = Moody(time.time)
            await submit(scheduler, spec())
            running = asyncio.create_task(pooled(scheduler, provider).run())
            await until(lambda: states(provider))
            running.cancel()

    run(story)


POOL = """
pool:
  kind: big
  gpus: "2:NVIDIA H100 80GB HBM3:80"
  cpus: 64
  memory_mb: 1000
  labels: {rack: a}
  max: 4
  boot_command: boot {node}
  release_command: release {node}
  pressure: 30s
"""


def test_the_settings_file_describes_a_node_of_the_pool(tmp_path: Path) -> None:
    found = pool_of(load(tmp_path, POOL))
    gpu = Gpu("NVIDIA H100 80GB HBM3", 80 * 1024)
    assert found == (
        PoolSettings(0, 4, idle_seconds=600.0, pressure_seconds=30.0),
        NodeSpec(NodeId("big"), (gpu, gpu), 64, 1000, (("rack", "a"),)),
    )


def test_without_a_kind_there_is_no_pool(tmp_path: Path) -> None:
    assert pool_of(load(tmp_path, "{}")) is None


@pytest.mark.parametrize(
    ("was", "then", "sentence"),
    [
        ("kind: big", "min: 1", "pool.kind is missing"),
        ("kind: big", "kind: big one", "it must be a name of at most 128 letters"),
        ("boot_command: boot {node}", "", "pool.boot_command is missing"),
        ("release_command: release {node}", "", "pool.release_command is missing"),
        ('gpus: "2:NVIDIA H100 80GB HBM3:80"', "", "pool.gpus is missing"),
        ('gpus: "2:NVIDIA H100 80GB HBM3:80"', "gpus: 2", "pool.gpus"),
        (
            'gpus: "2:NVIDIA H100 80GB HBM3:80"',
            'gpus: "0:H100:80"',
            "it must be COUNT:MODEL:GIGABYTES, such as 8:H100:80",
        ),
        ("max: 4", "max: 4\n  min: 5", "pool.min (5) is above pool.max (4)."),
        ("max: 4", "max: 0", "pool.max is 0"),
        ("pressure: 30s", "presure: 30s", 'did you mean "pressure"?'),
    ],
)
def test_an_invalid_pool_is_one_sentence(tmp_path: Path, was: str, then: str, sentence: str) -> None:
    assert was in POOL
    with pytest.raises(WrongSettings) as wrong:
        load(tmp_path, POOL.replace(was, then))
    assert sentence in str(wrong.value)
