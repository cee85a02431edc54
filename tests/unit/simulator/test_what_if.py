"""A journal is simulated with one thing changed."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

import gpuyard
from gpuyard.core.domain import commands as command
from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.journal.records import JournalEntry
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.simulator import PolicyRun, journal_jobs
from gpuyard.simulator.clusters import parse_cluster
from gpuyard.simulator.recorder import TaskTimeline
from gpuyard.simulator.workloads.arrival import Arrival
from gpuyard.simulator.workloads.journal import JournalWorkload, read_journal
from gpuyard.simulator.workloads.what_if import COPY_PART, COPY_SECONDS, Changes, read_quota
from gpuyard.testing import ClusterStory, node, task
from tests.replay.random_scenario import RandomScenario


def written(story: ClusterStory, folder: Path) -> Path:
    journal = SqliteJournal.open(folder / "journal")
    journal.append([JournalEntry(at, event) for at, event in story.events])
    journal.close()
    return folder


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Two nodes, half for each class; two tenants; a chain of two tasks, and one that was cancelled while it waited."""
    story = ClusterStory(policy="fifo", backfill="greedy")
    story.is_split(online=0.5, mode=QuotaMode.STRICT)
    story.has_node(node("left", gpus=4, cpus=32, memory_mib=65_536, gpu_memory_mib=81_920))
    story.has_node(node("right", gpus=4, cpus=32, memory_mib=65_536, gpu_memory_mib=81_920))
    story.has_tenant("research", max_gpus=2)
    story.submits(
        task("first", gpus=2, runs_for=100, tenant="research"),
        task("second", gpus=2, runs_for=100, tenant="research", after=("first",)),
        task("batch", gpus=4, runs_for=50, tenant="team"),
        task("serve", gpus=4, runs_for=200, tenant="team", online=True),
    )
    story.passes(10)
    story.submits(task("waits", gpus=4, runs_for=50, tenant="team"))
    story.passes(10)
    story.submits(task("given_up", gpus=4, runs_for=5, tenant="team"))
    story.passes(5)
    story.cancels("given_up")
    story.runs_out()
    return written(story, tmp_path)


def lives(run: PolicyRun) -> list[TaskTimeline]:
    return list(run.result.recorder.lives.values())


def run_of(folder: Path, **changes: Any) -> PolicyRun:
    *_, run = gpuyard.simulate(journal_jobs(folder, **changes), policies="same")
    return run


def arrivals(found: JournalWorkload) -> list[tuple[float, Arrival]]:
    return [(at, arrival) for at, coming in found.came if isinstance(coming, tuple) for arrival in coming]


def test_without_a_change_everything_is_as_recorded(cluster: Path) -> None:
    recorded, same = gpuyard.simulate(journal_jobs(cluster), policies="same")
    assert lives(same) == lives(recorded)
    assert run_of(cluster, mix={"all": 1.0}).measures == same.measures


def test_another_quota_replaces_the_recorded_one(cluster: Path) -> None:
    as_recorded, more_batch = run_of(cluster), run_of(cluster, quota="0.5:none")
    assert as_recorded.measures.avg_queue_s > more_batch.measures.avg_queue_s
    assert run_of(cluster, quota=0.5).measures == as_recorded.measures
    never = run_of(cluster, quota=0.0)
    assert never.unfinished == 1  # the online task has no part of the GPUs


def test_the_mode_alone_can_be_changed() -> None:
    assert read_quota("borrow") == (None, QuotaMode.BORROW)
    assert read_quota("0.25") == (0.25, None)
    assert read_quota(1) == (1.0, None)


def test_other_nodes_replace_the_recorded_ones_and_are_like_them(cluster: Path) -> None:
    assert run_of(cluster, cluster="4x4").measures.avg_queue_s < run_of(cluster).measures.avg_queue_s
    found = Changes(cluster=parse_cluster("1x8:H100+1x2")).apply_to(read_journal(cluster), Random(0).random)
    joined = [order.node for _, order in found.came if isinstance(order, command.JoinNode)]
    assert [(it.id, len(it.gpus), it.gpus[0].model, it.cpus) for it in joined] == [
        ("node-0001", 8, "H100", 64),
        ("node-0002", 2, "A100", 16),
    ]
    assert {it.gpus[0].memory_mib for it in joined} == {80 * 1024}
    assert found.gpus == 10


def test_nodes_are_added_and_removed(cluster: Path) -> None:
    more, fewer = run_of(cluster, add_nodes="1x4"), run_of(cluster, remove_nodes="right")
    assert more.measures.avg_queue_s < run_of(cluster).measures.avg_queue_s
    assert fewer.unfinished == 3  # half of four GPUs is not enough for them
    found = Changes(add_nodes=parse_cluster("2x4"), remove_nodes=("left",))
    assert found.apply_to(read_journal(cluster), Random(0).random).gpus == 12


def test_a_node_that_is_lost_in_the_journal_is_not_lost_if_it_was_replaced(tmp_path: Path) -> None:
    story = ClusterStory(policy="fifo")
    story.is_split(online=0.0)
    story.has_nodes(1, gpus_each=1)
    story.submits(task("long", runs_for=100))
    story.passes(50)
    story.loses("node-1")
    story.passes(10)
    story.gets_back("node-1")
    story.runs_out()
    written(story, tmp_path)
    assert [life.ended for life in lives(run_of(tmp_path, cluster="1x1"))] == [100.0]


def test_limits_of_a_tenant_are_changed_and_the_others_stay(cluster: Path) -> None:
    free = run_of(cluster, tenants={"research": {"max_gpus": None}, "team": {"max_gpus": 8, "weight": 3.0}})
    assert free.unfinished == 0
    held = run_of(cluster, tenants={"team": {"gpu_hours": 0.01, "period_seconds": 1000.0}})
    assert held.measures.avg_queue_s > run_of(cluster).measures.avg_queue_s
    found = Changes(tenants={"research": {"weight": 2.0}}).apply_to(read_journal(cluster), Random(0).random)
    limits = [order.tenant for _, order in found.came if isinstance(order, command.SetTenant)]
    assert {(it.id, it.max_gpus, it.weight) for it in limits} == {("research", 2, 2.0)}


def test_a_factor_repeats_or_drops_tasks_with_everything_that_depends_on_them(cluster: Path) -> None:
    recorded = read_journal(cluster)
    found = Changes(mix={"tenant:research": 3.0}).apply_to(recorded, Random(1).random)
    copies = arrivals(found)
    assert found.tasks == 3 * 2 + 4
    assert [arrival.task for _, arrival in copies] == list(range(1, 11))
    by_number = {arrival.task: (at, arrival.spec) for at, arrival in copies}
    chained = [(at, spec) for at, spec in by_number.values() if spec.has_prerequisites]
    assert len(chained) == 3
    for at, spec in chained:
        ((first, last, success),) = spec.prerequisites()
        assert (first, success) == (last, True)
        assert by_number[first][0] == at
        assert by_number[first][1].name == "first"
        assert at <= COPY_PART * 20  # the last task was submitted after 20 s
    assert Changes(mix={"tenant:research": 0.0}).apply_to(recorded, Random(1).random).tasks == 4
    assert Changes(mix={"class:online": 0.0, "tenant:research": 0.0}).apply_to(recorded, Random(1).random).tasks == 3
    assert Changes(mix={"class:online": 2.0, "tenant:team": 1.0}).apply_to(recorded, Random(1).random).tasks == 6


def test_a_mix_is_drawn_from_its_seed_and_runs_to_the_end(cluster: Path) -> None:
    first, again, other = (run_of(cluster, mix={"all": 2.5}, seed=seed) for seed in (4, 4, 5))
    assert first.measures == again.measures != other.measures
    assert first.unfinished == 0
    assert first.measures.jobs == len(lives(first))


def test_a_repeated_task_is_cancelled_like_its_original(cluster: Path) -> None:
    run = run_of(cluster, mix={"all": 2.0}, quota="0.1")
    assert sum(life.ended is not None and life.jct == pytest.approx(5.0) for life in lives(run)) == 2


def test_resampling_keeps_the_mean_number_of_tasks(cluster: Path) -> None:
    recorded = read_journal(cluster)
    counts = [_tasks(recorded, seed) for seed in range(60)]
    assert min(counts) < recorded.tasks < max(counts)
    assert recorded.tasks * 0.8 < sum(counts) / len(counts) < recorded.tasks * 1.2


@pytest.fixture
def busy_minute(tmp_path: Path) -> Path:
    """Twelve tasks within 40 s that keep the four GPUs of one node busy most of the time."""
    story = ClusterStory(policy="fifo", backfill="greedy")
    story.is_split(online=0.5, mode=QuotaMode.NONE)
    story.has_nodes(1, gpus_each=4)
    for number in range(12):
        story.submits(task(f"task-{number}", gpus=2, runs_for=10, online=number % 4 == 0))
        story.passes(40 / 11)
    story.runs_out()
    return written(story, tmp_path)


def test_repetitions_of_a_short_journal_keep_its_load(busy_minute: Path) -> None:
    recorded, same = gpuyard.simulate(journal_jobs(busy_minute), policies="same")
    assert same.measures.utilization == pytest.approx(recorded.measures.utilization)
    assert recorded.measures.utilization > 0.8
    drawn = [run_of(busy_minute, resample=True, seed=seed) for seed in range(20)]
    mean = sum(run.measures.utilization for run in drawn) / len(drawn)
    assert mean == pytest.approx(recorded.measures.utilization, abs=0.15)
    more_online = run_of(busy_minute, mix={"class:online": 3.0})
    assert more_online.measures.utilization >= recorded.measures.utilization - 0.05
    assert more_online.measures.avg_queue_s > recorded.measures.avg_queue_s


def test_repetitions_of_a_long_journal_come_within_an_hour(tmp_path: Path) -> None:
    story = ClusterStory(policy="fifo", backfill="greedy")
    story.is_split(online=0.5, mode=QuotaMode.NONE)
    story.has_nodes(1, gpus_each=4)
    story.submits(task("first", gpus=1, runs_for=10))
    story.passes(30 * COPY_SECONDS)
    story.submits(task("last", gpus=1, runs_for=10))
    story.runs_out()
    found = Changes(mix={"all": 40.0}).apply_to(read_journal(written(story, tmp_path)), Random(1).random)
    delays = [at for at, arrival in arrivals(found) if arrival.spec.name == "first"]
    assert len(delays) == 40
    assert 0.5 * COPY_SECONDS < max(delays) - min(delays) <= COPY_SECONDS


def _tasks(recorded: JournalWorkload, seed: int) -> int:
    try:
        return Changes(resample=True).apply_to(recorded, Random(seed).random).tasks
    except WrongInput:
        return 0  # nothing was drawn


@pytest.mark.parametrize("seed", [5, 10, 11, 12])
def test_any_scenario_can_be_simulated_with_another_mix(seed: int, tmp_path: Path) -> None:
    life = RandomScenario(seed)
    life.takes_steps(120)
    written(life.story, tmp_path)
    run = run_of(tmp_path, mix={"all": 1.7}, quota="0.4:borrow", add_nodes="2x8", seed=seed)
    assert run.measures.jobs > 0


def test_a_policy_of_ones_own_has_the_settings_of_the_journal(cluster: Path) -> None:
    mine = Policy("mine", starts_all=True, key=lambda task, *_: task.submitted_at)
    *_, same, own = gpuyard.simulate(journal_jobs(cluster), policies=("same:preemption_limit=7", mine))
    assert own.result.policy_variant.settings.policy == "mine"
    assert own.result.policy_variant.settings.aging_seconds == same.result.policy_variant.settings.aging_seconds
    assert own.measures.jobs == same.measures.jobs


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"quota": "much"}, "The quota is 'much'; it must be the part of the GPUs for online tasks"),
        ({"quota": 2}, "The quota is '2'; it must be the part"),
        ({"quota": "0.5:"}, "The quota is '0.5:'; it must be the part"),
        ({"cluster": "many"}, "cluster is 'many'; it must be NODESxGPUS"),
        ({"add_nodes": "1"}, "add_nodes is '1'; it must be NODESxGPUS"),
        ({"remove_nodes": "lefd"}, "There is no node 'lefd' in the journal; did you mean 'left'?"),
        ({"remove_nodes": ["left", "right"]}, "All nodes of the journal are removed, and no others are added."),
        ({"tenants": {"marketing": {"max_gpus": 1}}}, "There is no tenant 'marketing' in the journal; it has: default, "),
        ({"tenants": {"team": {"max_gpus": 1.5}}}, "max_gpus of tenant team is 1.5; it must be a whole number."),
        ({"tenants": {"team": {"weight": -1}}}, "Tenant team: "),
        ({"tenants": {"team": {"colour": 1}}}, "tenants.team"),
        ({"mix": {"everyone": 2}}, "A mix names tasks as all, tenant:NAME, user:NAME or class:NAME, and not as 'everyone'."),
        ({"mix": {"tenant:marketing": 2}}, "There is no tenant 'marketing' in the journal; it has: research, team."),
        ({"mix": {"class:urgent": 2}}, "There is no class 'urgent' in the journal; it has: batch, online."),
        ({"mix": {"all": -1}}, "The factor of all is -1; it must be from 0 to 1,000."),
        ({"mix": {"all": 0}}, "No task is left in this mix."),
        ({"seed": -1}, "seed is -1"),
    ],
)  # fmt: skip
def test_wrong_changes_are_one_sentence(cluster: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(WrongInput) as caught:
        journal_jobs(cluster, **changes)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
