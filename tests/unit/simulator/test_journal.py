"""A story is written to a journal, and the journal is simulated."""

from pathlib import Path

import pytest

from gpuyard.core.domain import events
from gpuyard.core.domain.errors import JournalDamaged
from gpuyard.core.domain.values import Outcome, Preemption, TaskId
from gpuyard.core.journal.records import JournalEntry
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import Result, simulate_policy
from gpuyard.simulator.workloads.journal import JournalWorkload, NothingToReplay, read_journal
from gpuyard.testing import ClusterStory, TaskBehavior, cpu_task, gang, task
from tests.replay.random_scenario import RandomScenario

Times = dict[str, tuple[float | None, float | None]]


@pytest.fixture
def story() -> ClusterStory:
    made = ClusterStory(policy="fifo")
    made.is_split(online=0.0)
    return made


def journal_of(story: ClusterStory, folder: Path) -> Path:
    journal = SqliteJournal.open(folder / "journal")
    journal.append([JournalEntry(at, event) for at, event in story.events])
    journal.close()
    return folder


def read(story: ClusterStory, folder: Path) -> JournalWorkload:
    return read_journal(journal_of(story, folder))


def times(story: ClusterStory, result: Result | JournalWorkload) -> Times:
    """When each task first had GPUs, and when it was over."""
    lives = result.happened.lives if isinstance(result, JournalWorkload) else result.recorder.lives
    return {story.names[number]: (life.started, life.ended) for number, life in lives.items()}


def test_with_the_same_settings_everything_happens_again(story: ClusterStory, tmp_path: Path) -> None:
    story.decides_by(backfill="easy", policy="priority", preemption_min_run_seconds=0.0)
    story.has_nodes(2, gpus_each=4)
    story.world.stop_seconds, story.world.start_seconds = 2.0, 1.0
    story.submits(task("long", gpus=4, runs_for=100, estimate=100), task("short", gpus=2, runs_for=30, estimate=30))
    story.passes(5)
    story.submits(gang("both", members=2, gpus_each=3, runs_for=20, estimate=20), task("last", runs_for=7, priority=90))
    story.passes(5)
    story.submits(task("evaluate", gpus=2, runs_for=3, after=("short",), preemption=Preemption.REQUEUE))
    story.runs_out()
    found = read(story, tmp_path)
    assert times(story, simulate_policy(found, found.same)) == times(story, found)
    assert times(story, found)["both"] == (101.0, 122.0)


def test_with_another_policy_the_engine_decides_differently(story: ClusterStory, tmp_path: Path) -> None:
    story.decides_by(backfill="none")
    story.has_nodes(1, gpus_each=8)
    story.submits(task("six", gpus=6, runs_for=100))
    story.passes(1)
    story.submits(task("eight", gpus=8, runs_for=10))
    story.passes(1)
    story.submits(task("one", runs_for=10))
    story.runs_out()
    found = read(story, tmp_path)
    assert times(story, found)["one"] == (110.0, 120.0)
    assert times(story, simulate_policy(found, policy_variant("fifo", found.variants)))["one"] == (110.0, 120.0)
    assert times(story, simulate_policy(found, policy_variant("fifo+backfill", found.variants)))["one"] == (2.0, 12.0)


def test_recorded_changes_of_settings_repeat_only_with_the_same_policy(story: ClusterStory, tmp_path: Path) -> None:
    story.has_nodes(1, gpus_each=1)
    story.submits(task("first", runs_for=10), task("second", runs_for=10), task("third", runs_for=10, priority=90))
    story.passes(1)
    story.decides_by(policy="priority")
    story.runs_out()
    found = read(story, tmp_path)
    for same in (found.same, policy_variant("same", found.variants)):
        assert times(story, simulate_policy(found, same))["third"] == (10.0, 20.0)
    changed = policy_variant("same:search_depth=5", found.variants)
    assert times(story, simulate_policy(found, changed))["third"] == (0.0, 10.0)
    assert times(story, simulate_policy(found, policy_variant("fifo", found.variants)))["third"] == (20.0, 30.0)


def test_a_retry_behaves_like_the_recorded_retry_after_the_clusters_back_off(
    story: ClusterStory, tmp_path: Path
) -> None:
    story.decides_by(retry_delay_seconds=7.0)
    story.has_nodes(1, gpus_each=1)
    story.world.runs[TaskId(1)] = TaskBehavior(10.0, Outcome.FAILED, 1, then=TaskBehavior(30.0))
    story.submits(task("flaky", retries=2))
    story.runs_out()
    found = read(story, tmp_path)
    assert times(story, simulate_policy(found, found.same)) == {"flaky": (0.0, 47.0)} == times(story, found)
    assert times(story, simulate_policy(found, policy_variant("fifo", found.variants))) == {"flaky": (0.0, 47.0)}


def test_a_task_cancelled_while_it_waited_is_cancelled_at_the_same_instant(story: ClusterStory, tmp_path: Path) -> None:
    story.has_nodes(1, gpus_each=8)
    story.submits(task("most", gpus=6, runs_for=100), task("all", gpus=8), task("small", gpus=2, runs_for=1))
    story.passes(50)
    story.cancels("all")
    story.runs_out()
    found = read(story, tmp_path)
    assert times(story, simulate_policy(found, policy_variant("fifo", found.variants)))["all"] == (None, 50.0)
    assert times(story, simulate_policy(found, policy_variant("fifo", found.variants)))["small"] == (50.0, 51.0)


def test_a_lease_is_released_after_the_same_duration_and_not_at_the_same_instant(
    story: ClusterStory, tmp_path: Path
) -> None:
    story.decides_by(backfill="greedy")
    story.has_nodes(1, gpus_each=8)
    story.submits(task("most", gpus=7, runs_for=100), task("all", gpus=8, runs_for=10), task("lease", command=None))
    story.submits(task("needs it", after=("lease",)))
    story.passes(50)
    story.cancels("lease")
    story.runs_out()
    found = read(story, tmp_path)
    assert times(story, found)["lease"] == (0.0, 50.0)
    again = times(story, simulate_policy(found, policy_variant("fifo", found.variants)))
    assert (again["lease"], again["needs it"]) == ((110.0, 160.0), (None, 160.0))


def test_suspended_time_is_not_work(story: ClusterStory, tmp_path: Path) -> None:
    story.decides_by(policy="srtf", preemption_min_run_seconds=0.0)
    story.has_nodes(1, gpus_each=1)
    story.submits(task("long", runs_for=100, estimate=100, preemption=Preemption.SUSPEND))
    story.passes(10)
    story.submits(task("short", runs_for=20, estimate=20))
    story.runs_out()
    found = read(story, tmp_path)
    assert times(story, found) == {"long": (0.0, 120.0), "short": (10.0, 30.0)}
    assert times(story, simulate_policy(found, found.same)) == times(story, found)
    assert times(story, simulate_policy(found, policy_variant("fifo", found.variants))) == {
        "long": (0.0, 100.0),
        "short": (100.0, 120.0),
    }


def test_a_node_is_lost_and_returns_as_recorded(story: ClusterStory, tmp_path: Path) -> None:
    story.has_nodes(1, gpus_each=1)
    story.submits(task("long", runs_for=100))
    story.passes(30)
    story.loses("node-1")
    story.passes(30)
    story.gets_back("node-1")
    story.runs_out()
    found = read(story, tmp_path)
    assert times(story, simulate_policy(found, found.same)) == {"long": (0.0, 160.0)} == times(story, found)


def test_a_timeout_ends_the_same_tasks(story: ClusterStory, tmp_path: Path) -> None:
    story.has_nodes(1, gpus_each=1)
    story.submits(task("first", runs_for=5), task("endless", timeout_seconds=10.0))
    story.runs_out()
    found = read(story, tmp_path)
    assert times(story, simulate_policy(found, policy_variant("fifo", found.variants)))["endless"] == (5.0, 15.0)


def test_tasks_that_had_not_ended_are_left_out_and_counted(story: ClusterStory, tmp_path: Path) -> None:
    story.has_nodes(1, gpus_each=2)
    story.submits(task("done", runs_for=5), task("runs"), task("waits", gpus=2), task("never", after=("runs",)))
    story.passes(10)
    story.cancels("never")
    found = read(story, tmp_path)
    assert (found.tasks, found.still_running, found.still_waiting) == (1, 1, 2)
    assert times(story, simulate_policy(found, found.same)) == {"done": (0.0, 5.0)} == times(story, found)


def test_policies_by_run_time_use_the_estimate_of_the_task_and_an_oracle_the_truth(
    story: ClusterStory, tmp_path: Path
) -> None:
    story.has_nodes(1, gpus_each=1)
    story.submits(task("first", runs_for=10))
    story.passes(1)
    story.submits(task("boasts", runs_for=50, estimate=5), task("modest", runs_for=20, estimate=30))
    story.runs_out()
    found = read(story, tmp_path)
    assert times(story, simulate_policy(found, policy_variant("sjf", found.variants)))["boasts"] == (10.0, 60.0)
    assert times(story, simulate_policy(found, policy_variant("sjf", found.variants), oracle=True))["modest"] == (
        10.0,
        30.0,
    )


def test_a_cluster_without_gpus_has_none_in_use(story: ClusterStory, tmp_path: Path) -> None:
    story.has_nodes(1, gpus_each=0)
    story.submits(cpu_task("count", cpus=4, runs_for=10))
    story.runs_out()
    found = read(story, tmp_path)
    measures = simulate_policy(found, found.same).measures
    assert (measures.jobs, measures.avg_jct_s, measures.utilization) == (1, 10.0, 0.0)


@pytest.mark.parametrize("seed", [5, 10])
def test_any_scenario_can_be_simulated_under_any_policy(seed: int, tmp_path: Path) -> None:
    life = RandomScenario(seed)
    life.takes_steps(120)
    found = read(life.story, tmp_path)
    for each in found.variants.values():
        result = simulate_policy(found, each)
        assert result.recorder.lives.keys() == found.happened.lives.keys()
        assert 0 < result.measures.jobs <= found.tasks


def test_a_journal_being_written_is_read_and_not_changed(story: ClusterStory, tmp_path: Path) -> None:
    story.has_nodes(1, gpus_each=1)
    story.submits(task("first", runs_for=10))
    story.runs_out()
    journal = SqliteJournal.open(tmp_path)
    journal.append([JournalEntry(at, event) for at, event in story.events])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".sqlite-shm"}
    assert read_journal(tmp_path).tasks == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name in before} == before
    journal.append([JournalEntry(story.now, events.AccessChanged("user_added", "ann"))])
    journal.close()


def test_a_folder_without_a_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(NothingToReplay, match=f"There is no journal in {tmp_path}."):
        read_journal(tmp_path)


def test_a_journal_without_ended_tasks_is_named(story: ClusterStory, tmp_path: Path) -> None:
    with pytest.raises(
        NothingToReplay, match=r"No task has ended in the journal in .*, so there is nothing to simulate."
    ):
        read(story, tmp_path)


def test_a_journal_without_its_beginning_is_no_workload(story: ClusterStory, tmp_path: Path) -> None:
    story.has_nodes(1, gpus_each=1)
    journal = SqliteJournal.open(tmp_path, segment_events=2)
    for at, event in story.events:
        journal.append([JournalEntry(at, event)])
    journal.close()
    min(tmp_path.glob("facts-*.sqlite")).unlink()
    with pytest.raises(NothingToReplay, match="begins with event 3, and earlier events are needed"):
        read_journal(tmp_path)


def test_a_damaged_journal_is_reported(story: ClusterStory, tmp_path: Path) -> None:
    path = min(journal_of(story, tmp_path).glob("journal/facts-*.sqlite"))
    content = path.read_bytes()
    path.write_bytes(content.replace(b"SplitSet", b"SplitSat"))
    with pytest.raises(JournalDamaged, match="is damaged at event"):
        read_journal(tmp_path)
