"""Elastic pools, sleep, energy, cost and failures: a few jobs whose figures are computed by hand."""

from collections.abc import Callable
from itertools import cycle
from math import log
from random import Random
from typing import Any

import pytest

from gpuyard.core.domain.board_power import IDLE_PART, busy_watts, known_watts
from gpuyard.core.domain.pool import PoolSettings
from gpuyard.simulator.clusters import Cluster, parse_cluster
from gpuyard.simulator.energy import HOST_WATTS, SUSPENDED_WATTS
from gpuyard.simulator.failures import NeverEnds, NodeRandom
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import Result, simulate_policy
from gpuyard.simulator.scenarios import ElasticNodes, FailingNodes, Scenario, SuspendedNodes, kinds_of
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster

TWO_NODES = parse_cluster("2x8:A100")
BUSY = 400.0
RESTING = 8 * (BUSY * IDLE_PART + HOST_WATTS)
"""Watts of a node on which nothing runs."""
WORK = 8 * BUSY * (1 - IDLE_PART)
"""And how much more it draws when all of its GPUs are in use."""


def played(scenario: Scenario, *jobs: Job, cluster: Cluster = TWO_NODES, policy: str = "fifo+backfill") -> Result:
    return simulate_policy(JobsOnCluster(jobs, cluster), policy_variant(policy), scenario=scenario)


def elastic(least: int, most: int, boot_seconds: float = 100.0, failing_part: float = 0.0) -> ElasticNodes:
    return ElasticNodes(PoolSettings(least, most, idle_seconds=600), boot_seconds, failing_part)


def kwh(watt_seconds: float) -> object:
    return pytest.approx(watt_seconds / 3.6e6)


# --- an elastic pool ------------------------------------------------------------------------------------------------


def test_a_pool_boots_a_node_for_a_waiting_job_and_pays_from_then_on() -> None:
    found = played(Scenario(elastic(0, 2), price=3600.0), Job(0, 1000, 8))
    assert found.measures.avg_queue_s == 100
    assert found.further["cost"] == pytest.approx(8 * 1100)
    assert found.further["energy_kwh"] == kwh(RESTING * 1100 + WORK * 1000)
    assert found.further["gpu_hours_up"] == pytest.approx(8 * 1000 / 3600)
    assert found.measures.utilization == pytest.approx(1.0)


def test_the_fixed_cluster_is_paid_from_the_first_job_to_the_last_end() -> None:
    found = played(Scenario(metered=True, price=3600.0), Job(50, 1000, 8))
    assert found.further["cost"] == pytest.approx(16 * 1000)
    assert found.further["energy_kwh"] == kwh(2 * RESTING * 1000 + WORK * 1000)


def test_an_unused_node_is_released() -> None:
    jobs = Job(0, 100, 8), Job(0, 5000, 8)
    found = played(Scenario(elastic(0, 2, boot_seconds=0), price=3600.0), *jobs)
    assert found.further["cost"] == pytest.approx(8 * 5000 + 8 * (100 + 600))


def test_the_minimum_is_kept_from_start_to_end() -> None:
    found = played(Scenario(elastic(1, 2), price=3600.0), Job(0, 10, 8), Job(5000, 10, 8))
    assert found.measures.avg_queue_s == 0
    assert found.further["cost"] == pytest.approx(8 * 5010)


def test_failed_boots_are_retried() -> None:
    draws = cycle([0.0, 0.9])
    scenario = Scenario(elastic(0, 2, failing_part=0.5), price=3600.0, chance=lambda _: lambda: next(draws))
    found = played(scenario, Job(0, 1000, 8))
    assert found.measures.avg_queue_s == 100 + 60 + 100
    assert found.further["cost"] == pytest.approx(8 * (100 + 100 + 1000))


# --- pools of several kinds ---------------------------------------------------------------------------------------------


def pool(most: int, price: float, **more: Any) -> ElasticNodes:
    return ElasticNodes(PoolSettings(0, most, idle_seconds=600), 100.0, price=price, **more)


def test_the_cheapest_pool_boots_and_the_next_only_for_the_rest() -> None:
    jobs = [Job(0, 1000, 8) for _ in range(3)]
    found = played(Scenario((pool(4, 7200.0), pool(2, 3600.0))), *jobs)
    assert found.measures.avg_queue_s == 100
    assert found.further["cost"] == pytest.approx(8 * 1100 * (1 + 1 + 2))
    assert played(Scenario((pool(4, 7200.0), pool(3, 3600.0))), *jobs).further["cost"] == pytest.approx(3 * 8 * 1100)


def test_a_pool_that_cannot_hold_a_job_is_not_used_for_it() -> None:
    small, large = pool(9, 1.0, gpus=4, model="T4"), pool(1, 3600.0)
    found = played(Scenario((small, large)), Job(0, 1000, 8))
    assert found.measures.avg_queue_s == 100
    assert found.further["cost"] == pytest.approx(8 * 1100)


def test_a_price_of_the_scenario_holds_for_pools_without_their_own() -> None:
    jobs = [Job(0, 1000, 8) for _ in range(2)]
    found = played(Scenario((elastic(0, 1), pool(1, 7200.0)), price=3600.0), *jobs)
    assert found.further["cost"] == pytest.approx(8 * 1100 * (1 + 2))


def test_a_spot_node_is_drained_and_then_taken_away() -> None:
    taken = -log(1 - 0.5) * 3600  # the first node lives as long as this draw says
    spot = pool(1, 1.0, spot_hours=1.0, notice_seconds=200.0)
    lives = {"spot-1-0001": (0.5, 1 - 1e-12)}
    scenario = Scenario((spot,), chance=lambda name: iter(lives.get(name.removeprefix("spot "), (0.9,) * 9)).__next__)
    keeps = played(scenario, Job(0, 5000, 8), policy="levels")
    loses = simulate_policy(
        JobsOnCluster((Job(0, 5000, 8),), TWO_NODES, preemptible=False), policy_variant("levels"), scenario=scenario
    )
    for found in (keeps, loses):
        assert found.further["nodes_revoked"] == 1
    # It stops with the notice, waits for the loss of the only node and the boot of the next, and continues.
    assert keeps.further["attempts_lost"] == 0
    assert keeps.measures.avg_jct_s == pytest.approx(100 + taken + 100 + (5000 - (taken - 200)) + 40, abs=15)
    assert loses.further["attempts_lost"] == 1
    assert loses.further["gpu_hours_lost"] == pytest.approx(8 * taken / 3600)
    assert loses.measures.avg_jct_s == pytest.approx(100 + taken + 100 + 5000, abs=15)


def test_a_gang_on_a_spot_node_that_is_taken_away_starts_again_and_the_node_is_not_paid_any_more() -> None:
    taken = -log(1 - 0.5) * 3600
    lives = {"spot spot-1-0001": (0.5,)}
    never = (1 - 1e-12,) * 9
    chance: NodeRandom = lambda name: iter(lives.get(name, never)).__next__  # noqa: E731
    spot = pool(3, 3600.0, spot_hours=1.0, notice_seconds=0.0)
    jobs = JobsOnCluster((Job(0, 5000, 16),), TWO_NODES, preemptible=False)
    found = simulate_policy(jobs, policy_variant("fifo"), scenario=Scenario((spot,), chance=chance))
    assert (found.measures.jobs, found.further["nodes_revoked"], found.further["attempts_lost"]) == (1, 1, 1)
    assert found.measures.avg_jct_s == pytest.approx(100 + taken + 100 + 5000, abs=15)
    assert found.further["cost"] == pytest.approx(8 * (2 * (100 + taken) + 2 * (100 + 5000)), abs=8 * 40)


def test_spot_nodes_and_failures_are_counted_separately() -> None:
    chance = lambda name: Random(f"4 {name}").random  # noqa: E731
    spot = pool(4, 1.0, spot_hours=2.0)
    jobs = [Job(600 * place, 3000, 8) for place in range(12)]
    found = played(Scenario((spot,), FailingNodes(5.0, 0.5), chance=chance), *jobs)
    assert found.measures.jobs == 12
    assert min(found.further["nodes_revoked"], found.further["node_failures"]) > 0


# --- sleep --------------------------------------------------------------------------------------------------------------


def test_idle_nodes_sleep_and_are_woken_when_they_are_needed() -> None:
    jobs = Job(0, 5000, 8), Job(4000, 1000, 8)
    found = played(Scenario(SuspendedNodes(idle_seconds=600, wake_seconds=60)), *jobs)
    assert found.measures.avg_queue_s == 30
    awake, asleep = RESTING * (5060 + 600 + 1060), SUSPENDED_WATTS * (4000 - 600)
    assert found.further["energy_kwh"] == kwh(awake + asleep + WORK * 6000)


def test_sleeping_nodes_are_paid_for() -> None:
    found = played(Scenario(SuspendedNodes(100, 60), price=3600.0), Job(0, 5000, 8))
    assert found.further["cost"] == pytest.approx(16 * 5000)


def test_every_kind_of_node_sleeps_separately() -> None:
    kinds = Cluster((*parse_cluster("2x8:A100").nodes, *parse_cluster("1x4:T4").nodes))
    assert {kind.id: (len(kind.gpus), count) for kind, count in kinds_of(kinds.nodes).items()} == {
        "node": (8, 2),
        "node.2": (4, 1),
    }
    found = played(Scenario(SuspendedNodes(100, 60)), Job(0, 10, 20), Job(5000, 10, 8), cluster=parse_cluster("3x8"))
    assert found.measures.jobs == 2


# --- energy -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "watts"),
    [
        ("A100", 400),
        ("NVIDIA A100-SXM4-80GB", 400),
        ("NVIDIA A100 80GB PCIe", 400),
        ("A10", 150),
        ("L40S", 350),
        ("L40", 300),
        ("L4", 72),
        ("V100M32", 300),
        ("Tesla V100-SXM2-32GB", 300),
        ("NVIDIA GeForce RTX 4090", 450),
        ("GeForce RTX 3090", 350),
        ("rtx4090", 450),
    ],
)
def test_the_power_of_a_gpu_is_found_by_the_model_in_its_name(model: str, watts: float) -> None:
    assert known_watts(model) == watts


@pytest.mark.parametrize("model", ["GPU", "A1000", "A10G", "RTX A1000", "NVIDIA GeForce RTX 3090 Ti", "T400", "H1000"])
def test_a_gpu_whose_name_only_begins_like_another_model_is_unknown(model: str) -> None:
    assert known_watts(model) is None
    assert busy_watts(model) == 300


def test_a_partly_busy_node_draws_part_of_the_power() -> None:
    found = played(Scenario(metered=True), Job(0, 1000, 2))
    assert found.further["energy_kwh"] == kwh((2 * RESTING + WORK / 4) * 1000)


def test_power_over_time_is_kept_for_the_chart() -> None:
    found = played(Scenario(elastic(0, 2), price=3600.0), Job(0, 1000, 8))
    assert found.meter is not None
    line = {at: (now.nodes_up, now.cost) for at, now in found.meter.line.points}
    assert line[0.0] == (0, 0.0)
    assert line[100.0] == (1, 800.0)


# --- failures -----------------------------------------------------------------------------------------------------------


def draws(*values: float) -> Callable[[str], Callable[[], float]]:
    """Nodes draw these in turn, and then what makes them last forever."""

    def stream(_: str) -> Callable[[], float]:
        left = iter(values)
        return lambda: next(left, 1 - 1e-15)

    return stream


HALF = 0.5
"""Drawn, it gives 0.69 times the mean."""
LN_2 = 0.6931471805599453


def test_jobs_of_a_failed_node_restart_when_it_is_repaired() -> None:
    found = played(
        Scenario(repair=FailingNodes(1.0, 0.5), chance=draws(HALF, HALF)), Job(0, 3600, 8), cluster=parse_cluster("1x8")
    )
    fails_at, back_after = 3600 * LN_2, 1800 * LN_2
    assert found.measures.avg_jct_s == pytest.approx(fails_at + back_after + 3600)
    assert found.further == {
        "fragmentation": 0.0,
        "node_failures": 1,
        "attempts_lost": 1,
        "gpu_hours_lost": pytest.approx(8 * LN_2),
    }


def test_a_gang_is_lost_with_one_of_its_nodes() -> None:
    chance = draws(HALF, HALF)
    one_fails = Scenario(
        repair=FailingNodes(1.0, 0.5), chance=lambda name: chance(name) if name.endswith("1") else draws()("")
    )
    found = played(one_fails, Job(0, 3600, 16))
    assert found.further["attempts_lost"] == 1
    assert found.further["gpu_hours_lost"] == pytest.approx(16 * LN_2)


def test_other_jobs_continue_while_a_node_is_repaired() -> None:
    chance = draws(HALF, HALF)
    one_fails = Scenario(
        repair=FailingNodes(1.0, 0.5), chance=lambda name: chance(name) if name.endswith("1") else draws()("")
    )
    found = played(one_fails, Job(0, 3000, 8), Job(0, 3000, 8))
    assert found.further["attempts_lost"] == 1
    assert found.measures.p50_jct_s > 3000
    assert min(life.jct for life in found.recorder.lives.values()) == 3000


def test_all_policies_meet_the_same_failures() -> None:
    scenario = Scenario(repair=FailingNodes(1.0, 0.5), chance=draws(HALF, HALF))
    jobs = [Job(place * 100, 600, 4) for place in range(40)]
    assert {played(scenario, *jobs, policy=name).further["node_failures"] for name in ("fifo", "default", "srtf")} == {
        2
    }


def test_a_job_longer_than_its_nodes_live_is_named() -> None:
    always = Scenario(repair=FailingNodes(1.0, 0.1), chance=lambda _: lambda: 0.1)
    with pytest.raises(NeverEnds, match=r"Task 1 was lost with its nodes 1,000 times"):
        played(always, Job(0, 3600, 8))


def test_a_pool_may_have_nodes_that_fail() -> None:
    scenario = Scenario(elastic(0, 2), repair=FailingNodes(1.0, 0.5), chance=draws(HALF))
    found = played(scenario, Job(0, 3600, 8), Job(0, 3600, 8))
    assert found.further["attempts_lost"] >= 1
    assert found.measures.jobs == 2


def test_a_node_under_repair_draws_nothing_and_is_paid_for() -> None:
    scenario = Scenario(metered=True, price=3600.0, repair=FailingNodes(1.0, 0.5), chance=draws(HALF, HALF))
    found = played(scenario, Job(0, 3600, 8), cluster=parse_cluster("1x8:A100"))
    up = 3600 * LN_2 + 3600
    assert found.further["energy_kwh"] == kwh((RESTING + WORK) * up)
    assert found.further["cost"] == pytest.approx(8 * (up + 1800 * LN_2))


def test_a_released_node_does_not_fail() -> None:
    scenario = Scenario(elastic(0, 1), repair=FailingNodes(1.0, 0.5), chance=draws(HALF))
    found = played(scenario, Job(0, 10, 8), Job(7200, 10, 8))
    assert found.further["node_failures"] == 0
