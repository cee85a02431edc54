"""The elastic pool of a live scheduler, with fake nodes."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.pool import PoolNode, PoolNodeState, PoolSettings
from gpuyard.core.domain.task import Resources
from gpuyard.core.domain.values import AttemptRef, NodeId
from gpuyard.live.control_plane.nodes.pool import ElasticPool, ElasticPools
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.control_plane.settings import pools_of
from gpuyard.live.wire.config import WrongSettings
from gpuyard.testing import MemoryProvider
from gpuyard.testing.fake_node import FakeNode
from tests.unit.live.control_plane.clusters import TOKEN, ended, open_scheduler, run, spec, status, submit, until
from tests.unit.live.control_plane.test_settings import load

KIND = NodeSpec(NodeId("pool"), (Gpu("virtual", 24_576),) * 2)
ONE = NodeId("pool-0001")


def pooled(scheduler: Scheduler, provider: MemoryProvider, **settings: float) -> ElasticPools:
    limits = PoolSettings(**{"idle_seconds": 0.0, **settings})  # type: ignore[arg-type]
    return ElasticPools(scheduler.loop, [ElasticPool(provider, limits, KIND)], every_seconds=0.01)


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
pools:
  big:
    gpus: "2:NVIDIA H100 80GB HBM3:80"
    cpus: 64
    memory_mb: 1000
    labels: {rack: a}
    max: 4
    price: 2.5
    boot_command: boot {node}
    release_command: release {node}
    pressure: 30s
"""


def test_the_settings_file_describes_a_node_of_the_pool(tmp_path: Path) -> None:
    ((rule, kind, said),) = pools_of(load(tmp_path, POOL))
    gpu = Gpu("NVIDIA H100 80GB HBM3", 80 * 1024)
    assert rule == PoolSettings(0, 4, idle_seconds=600.0, pressure_seconds=30.0, lost_seconds=900.0)
    assert kind == NodeSpec(NodeId("big"), (gpu, gpu), 64, 1000, (("rack", "a"),))
    assert (said.boot_command, said.price) == ("boot {node}", 2.5)


def test_pools_are_sorted_by_price(tmp_path: Path) -> None:
    cheap = POOL.split("big:")[1].replace("price: 2.5", "price: 0.5").replace("pressure: 30s", "lost_limit: 5m")
    found = pools_of(load(tmp_path, f"{POOL}  spot:{cheap}"))
    assert [(kind.id, rule.lost_seconds) for rule, kind, _ in found] == [("spot", 300.0), ("big", 900.0)]


def test_without_pools_there_are_none(tmp_path: Path) -> None:
    assert pools_of(load(tmp_path, "{}")) == []


@pytest.mark.parametrize(
    ("was", "then", "sentence"),
    [
        ("big:", "big one:", "pools has the key"),
        ("boot_command: boot {node}", "", "pools.big.boot_command is missing"),
        ("release_command: release {node}", "", "pools.big.release_command is missing"),
        ('gpus: "2:NVIDIA H100 80GB HBM3:80"', "", "pools.big.gpus is missing"),
        ('gpus: "2:NVIDIA H100 80GB HBM3:80"', "gpus: 2", "pools.big.gpus"),
        (
            'gpus: "2:NVIDIA H100 80GB HBM3:80"',
            'gpus: "0:H100:80"',
            "it must be COUNT:MODEL:GIGABYTES, such as 8:H100:80",
        ),
        ("max: 4", "max: 4\n    min: 5", "pools.big.min (5) is above pools.big.max (4)."),
        ("max: 4", "max: 0", "pools.big.max is 0"),
        ("price: 2.5", "price: -1", "pools.big.price"),
        ("pressure: 30s", "lost_limit: 10ms", "pools.big.lost_limit is 0.01 s; it must be at least 1 s."),
        ("pressure: 30s", "presure: 30s", 'did you mean "pressure"?'),
    ],
)
def test_an_invalid_pool_is_one_sentence(tmp_path: Path, was: str, then: str, sentence: str) -> None:
    assert was in POOL
    with pytest.raises(WrongSettings) as wrong:
        load(tmp_path, POOL.replace(was, then))
    assert sentence in str(wrong.value)


def test_a_task_boots_a_node_in_the_cheapest_pool_that_can_hold_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, _):
            cheap, dear = MemoryProvider(time.time, 1000.0), MemoryProvider(time.time, 1000.0)
            large = NodeSpec(NodeId("large"), (Gpu("virtual", 24_576),) * 8)
            pools = ElasticPools(
                scheduler.loop,
                [
                    ElasticPool(cheap, PoolSettings(max_nodes=1), KIND),
                    ElasticPool(dear, PoolSettings(max_nodes=4), large),
                ],
                every_seconds=0.01,
            )
            await submit(scheduler, spec(resources=Resources(gpus=2)))
            await pools.step()
            assert (list(states(cheap)), list(states(dear))) == ([ONE], [])
            await submit(scheduler, spec(resources=Resources(gpus=2)))
            await pools.step()
            await pools.step()
            assert (list(states(cheap)), list(states(dear))) == ([ONE], [NodeId("large-0001")])

    run(story)


def test_a_pool_that_cannot_be_queried_does_not_stop_the_others(tmp_path: Path) -> None:
    class Broken(MemoryProvider):
        def nodes(self) -> Sequence[PoolNode]:
            raise OSError("no connection")

    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, _):
            provider = MemoryProvider(time.time, 1000.0)
            broken = ElasticPool(Broken(time.time), PoolSettings(), NodeSpec(NodeId("broken"), KIND.gpus))
            pools = ElasticPools(
                scheduler.loop, [broken, ElasticPool(provider, PoolSettings(), KIND)], every_seconds=0.01
            )
            await submit(scheduler, spec())
            await pools.step()
            assert list(states(provider)) == [ONE]

    run(story)
