"""The elastic pool of a live yard, with nodes that are played."""

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
from tests.unit.live.control_plane.test_settings import load
from tests.unit.live.control_plane.yards import TOKEN, ended, open_yard, run, spec, status, submit, until

KIND = NodeSpec(NodeId("pool"), (Gpu("virtual", 24_576),) * 2)
ONE = NodeId("pool-0001")


def pooled(yard: Scheduler, provider: MemoryProvider, **settings: float) -> ElasticPool:
    return ElasticPool(yard.loop, provider, PoolSettings(**{"idle_seconds": 0.0, **settings}), KIND, every_seconds=0.01)  # type: ignore[arg-type]


def states(provider: MemoryProvider) -> dict[str, PoolNodeState]:
    return {hired.node: hired.state for hired in provider.nodes()}


def test_a_node_is_booted_used_closed_let_go_taken_out_and_forgotten(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path) as (yard, address):
            provider = MemoryProvider(time.time)
            pool = pooled(yard, provider)
            (task,) = await submit(yard, spec())
            await pool.step()
            assert states(provider) == {ONE: PoolNodeState.READY}
            playing = asyncio.create_task(FakeNode(ONE, 2, join_token=TOKEN).play(address))
            await ended(yard, task)
            await pool.step()
            assert yard.views.nodes[ONE].cordoned
            assert states(provider) == {ONE: PoolNodeState.GONE}
            await pool.step()
            assert (dict(yard.views.nodes), states(provider)) == ({}, {})
            playing.cancel()

    run(story)


def test_a_node_is_opened_again_if_a_task_was_quicker(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path) as (yard, address):
            node = FakeNode(ONE, 2, join_token=TOKEN, runs_for=None)
            playing = asyncio.create_task(node.play(address))
            await until(lambda: ONE in yard.views.nodes)
            (task,) = await submit(yard, spec())
            pool = pooled(yard, MemoryProvider(time.time, ready=[ONE]))
            assert not await pool.close(ONE)
            assert not yard.views.nodes[ONE].cordoned
            await until(lambda: node.attempts)
            node.end(AttemptRef(task, 1))
            await ended(yard, task)
            assert await pool.close(ONE)
            assert yard.views.nodes[ONE].cordoned
            playing.cancel()

    run(story)


def test_what_ran_on_a_node_that_its_owner_took_away_waits_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path) as (yard, address):
            node = FakeNode(ONE, 2, join_token=TOKEN, runs_for=None)
            playing = asyncio.create_task(node.play(address))
            (task,) = await submit(yard, spec())
            await until(lambda: node.attempts)
            provider = MemoryProvider(time.time, ready=[ONE])
            provider.release([ONE])
            await pooled(yard, provider).step()
            assert ONE not in yard.views.nodes
            assert await status(yard, task) == "pending"
            playing.cancel()

    run(story)


def test_a_provider_that_fails_is_asked_again(tmp_path: Path) -> None:
    class Moody(MemoryProvider):
        calls = 0

        def boot(self, nodes: Sequence[NodeId]) -> None:
            self.calls += 1
            if self.calls == 1:
                raise OSError("no answer")
            super().boot(nodes)

    async def story() -> None:
        async with open_yard(tmp_path) as (yard, _):
            provider = Moody(time.time)
            await submit(yard, spec())
            running = asyncio.create_task(pooled(yard, provider).run())
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


def test_the_file_says_what_a_node_of_the_pool_is(tmp_path: Path) -> None:
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
def test_a_pool_that_can_not_be_is_one_sentence(tmp_path: Path, was: str, then: str, sentence: str) -> None:
    assert was in POOL
    with pytest.raises(WrongSettings) as wrong:
        load(tmp_path, POOL.replace(was, then))
    assert sentence in str(wrong.value)
