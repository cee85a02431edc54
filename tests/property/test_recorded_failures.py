"""Scenarios that once broke an invariant, kept as recorded, and some hundred new ones."""

import pytest

from tests.replay.faulty_scenario import FaultyScenario
from tests.replay.random_scenario import RandomScenario

ONCE_FAILED = {
    170: "a task that overtook all who wait for their class's quota was not asked, though it wanted less",
    184: "the same, for a line of several tenants",
    378: "use faded, and a task went before a promise by time alone",
    1055: "without backfill, a task that goes first joined a blocked line and was not tried",
    1247: "the same, for a task without GPUs",
    2146: "an empty line got room and stayed blocked",
    3036: "a task waited behind one that its class may never have, because both were at their tenant's limit",
    3097: "a promise was given up in the middle of a pass, and who had waited behind it was not asked again",
    5873: "a task waited behind one that no open node could hold any more, because both were at their class's limit",
    103606: "a task that a guarantee puts before a reservation joined a blocked line and was not tried",
    103751: "a reserved start was moved to a later instant, and a task short enough to fit before it was not tried",
    301122: "a guarantee lets a task stop others, and a task of the other class had blocked their line before it was tried",
    303947: "the same, with an unknown new start",
    502521: "a guarantee covers a task, and one that it may stop was placed and started in the same instant",
    1000193: "classes no longer borrowed, and a task that could stop one of the other class now was not tried",
    1000300: "a task rose to a higher rank, and one that waits for its class's quota and may stop it was not tried",
    1000770: "nodes were cleared for a task, and another that could stop the rest there was not tried afterwards",
    1001358: "a class used less than its part, and its tasks that may reclaim the rest were not tried",
    1001755: "a class used more and more of the other's part, enough at last for a large task of the other to reclaim",
    1001843: "without backfill, a budget was spent, and tasks behind one that could no longer pay were not tried",
    1006620: "the same, looked at in the very instant",
    1007920: "others were stopped for a task that could not pay",
    1002646: "a task on a closed node was taken for one that could be stopped to make room",
    1004908: "a class passed its part, and a task that may stop its tasks from then on was not tried",
    1009947: "a tenant used less, too little for its first task to fit, which could stop fewer others now",
    8371: "a task whose promised nodes were free slept with its line, because another of the line had no room",
}


ROUGH_ONES = {
    406: "a share that its tenant's limit on a model allows on large GPUs only was blocked as if it were allowed on none",
    200046: "a task on reserved nodes was being stopped, and one that would fit beside the reservation was not tried",
    202642: "the same, for a group that its tenant's limit on a GPU model kept to these nodes",
    403510: "the rank of a running task rose with time, and a task that may stop it from then on was not tried",
    803124: "a guarantee covers a task, and one that it may stop was placed and started in the same instant",
    203894: "a preemptible task began to run where a task with a guarantee lacked CPUs, and that one was not tried",
    1005201: "a node was lost, a class had more than its part then, and tasks that may reclaim it were not tried",
    1003133: "a task left the rest of its class's quota to one that stopped others, and could then stop others itself",
    801593: "a gang of whole nodes was blocked by a quota for its largest node, and explain gave no reason",
    1208: "borrowing was no longer allowed, and tasks behind reservations on borrowed GPUs were not tried",
}


@pytest.mark.parametrize("seed", sorted(ROUGH_ONES))
def test_a_recorded_failure_of_a_faulty_scenario_stays_fixed(seed: int) -> None:
    FaultyScenario(seed).takes_steps(60)


@pytest.mark.parametrize("fifty", range(1))
def test_fifty_faulty_scenarios_share_no_gpu_and_strand_nothing(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + 50):
        FaultyScenario(seed).takes_steps(60)


@pytest.mark.parametrize("seed", sorted(ONCE_FAILED))
def test_a_recorded_failure_stays_fixed(seed: int) -> None:
    RandomScenario(seed).takes_steps(50)


@pytest.mark.parametrize("fifty", range(40, 42))
def test_fifty_scenarios_strand_nothing(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + 50):
        RandomScenario(seed).takes_steps(50)


@pytest.mark.parametrize("hundred", range(30, 32))
def test_a_hundred_scenarios_with_unpredictable_tasks_strand_nothing(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        RandomScenario(seed, policy="default", unpredictable=True).takes_steps(50)


@pytest.mark.parametrize("fifty", range(2))
def test_fifty_scenarios_of_two_kinds_share_no_gpu_and_strand_nothing(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + 50):
        RandomScenario(seed, policy="default", kinds=True).takes_steps(50)
