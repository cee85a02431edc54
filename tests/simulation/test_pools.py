"""A cluster whose nodes are booted and released on demand; every invariant is checked at every step."""

from random import Random

import pytest

from gpuyard.core.domain.events import AttemptStopping, NodeJoined, NodeRemoved, TaskEnded
from gpuyard.core.domain.pool import PoolSettings
from gpuyard.simulator.elastic import SimulatedPool, SpotNodes
from gpuyard.simulator.energy import PowerMeter
from gpuyard.simulator.failures import Failures
from gpuyard.testing import ClusterStory, TaskBuilder, cpu_task, gang, node, share, task


def drawn(name: str, chance: Random) -> TaskBuilder:
    runs_for = chance.choice((5, 60, 900))
    match chance.randrange(3):
        case 0:
            return task(name, gpus=chance.choice((1, 2, 8)), runs_for=runs_for)
        case 1:
            return gang(name, members=chance.choice((2, 4)), gpus_each=4, runs_for=runs_for)
        case _:
            return share(name, fraction=0.3, runs_for=runs_for)


@pytest.mark.slow
@pytest.mark.parametrize("backfill", ["none", "easy", "conservative", "greedy"])
@pytest.mark.parametrize("seed", range(5))
def test_everything_runs_without_preemption_and_the_pool_keeps_its_bounds(seed: int, backfill: str) -> None:
    chance = Random(seed)
    cluster = ClusterStory(policy="fifo", backfill=backfill)
    pool = PoolSettings(min_nodes=1, max_nodes=4, idle_seconds=300)
    elastic = SimulatedPool(
        cluster.world, PowerMeter(), node("pool", gpus=8), pool, boot_seconds=60, fails=lambda: chance.random() < 0.2
    )
    for order in elastic.opening():
        cluster.tells(order)
    cluster.has_node(node("fixed", gpus=0, cpus=1))
    cluster.submits(cpu_task("keeper", cpus=1, runs_for=200_000))  # while something runs, the pool continues
    for place in range(40):
        cluster.submits(drawn(f"job-{place}", chance))
        cluster.passes(chance.choice((0, 0, 30, 3000)))
    cluster.runs_out()
    events = [event for _, event in cluster.events]
    assert sum(isinstance(event, TaskEnded) for event in events) == 41
    assert not [event for event in events if isinstance(event, AttemptStopping)]
    came_and_went = [event for event in events if isinstance(event, NodeJoined | NodeRemoved)]
    nodes = [1 if isinstance(event, NodeJoined) else -1 for event in came_and_went]
    sizes = [sum(nodes[: place + 1]) for place in range(1, len(nodes))]
    assert (min(sizes), max(sizes)) == (1 + 1, 4 + 1)  # and the one that is always there
    assert -1 in nodes


@pytest.mark.parametrize("seed", range(5))
def test_a_pool_whose_nodes_fail_still_ends_everything(seed: int) -> None:
    chance = Random(seed)
    cluster = ClusterStory()
    Failures(cluster.world, up_seconds=3000, repair_seconds=300, chance=lambda name: Random(f"{seed} {name}").random)
    elastic = SimulatedPool(
        cluster.world, PowerMeter(), node("pool", gpus=8), PoolSettings(max_nodes=3, idle_seconds=100), boot_seconds=30
    )
    for order in elastic.opening():
        cluster.tells(order)
    for place in range(30):
        cluster.submits(task(f"job-{place}", gpus=chance.choice((1, 4, 8)), runs_for=chance.choice((10, 400))))
        cluster.passes(chance.choice((0, 50, 500)))
    cluster.runs_out()
    assert sum(isinstance(event, TaskEnded) for _, event in cluster.events) == 30


@pytest.mark.parametrize("seed", range(5))
def test_pools_of_several_kinds_with_spot_nodes_end_everything_within_their_bounds(seed: int) -> None:
    chance = Random(seed)
    cluster = ClusterStory()
    meter = PowerMeter(1.0, {"spot": 0.3})
    spot = SimulatedPool(
        cluster.world, meter, node("spot", gpus=8), PoolSettings(max_nodes=2, idle_seconds=100), boot_seconds=30,
        spot=SpotNodes(4000.0, 60.0, lambda name: Random(f"{seed} {name}").random),
    )  # fmt: skip
    dear = SimulatedPool(
        cluster.world, meter, node("dear", gpus=4), PoolSettings(min_nodes=1, max_nodes=3, idle_seconds=100),
        boot_seconds=30, cheaper=(spot,),
    )  # fmt: skip
    for order in (*spot.opening(), *dear.opening()):
        cluster.tells(order)
    for place in range(40):
        cluster.submits(task(f"job-{place}", gpus=chance.choice((1, 4, 8)), runs_for=chance.choice((10, 400, 1500))))
        cluster.passes(chance.choice((0, 50, 500)))
    cluster.runs_out()
    events = [event for _, event in cluster.events]
    assert sum(isinstance(event, TaskEnded) for event in events) == 40
    assert spot.nodes_revoked > 0
    for name, most in (("spot", 2), ("dear", 3)):
        size = 0
        for event in events:
            if isinstance(event, NodeJoined) and event.node.id.startswith(name):
                size += 1
            elif isinstance(event, NodeRemoved) and event.node.startswith(name):
                size -= 1
            assert size <= most
