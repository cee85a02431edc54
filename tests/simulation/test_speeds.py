"""Tasks with speeds per GPU model: where they are placed, how long they take, what is expected of them."""

from typing import Any

import pytest

from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.values import Preemption
from gpuyard.core.engine import snapshot
from gpuyard.testing import ClusterStory, gang, node, task

SPEEDS = (("K80", 0.25), ("V100", 1.0))


def new_cluster(**settings: Any) -> ClusterStory:
    """One fast GPU and two slow ones, all for batch work."""
    cluster = ClusterStory(**settings)
    cluster.is_split(online=0.0)
    cluster.has_node(node("slow", gpus=2, model="K80"))
    cluster.has_node(node("fast", gpus=1, model="V100"))
    return cluster


def test_a_task_takes_the_free_gpu_on_which_it_is_fastest() -> None:
    cluster = new_cluster()
    cluster.submits(task("first", speeds=SPEEDS), task("second", speeds=SPEEDS))
    assert cluster.nodes_of("first") == ("fast",)
    assert cluster.nodes_of("second") == ("slow",)


@pytest.mark.parametrize("score", ["best_fit", "spread", "fragmentation"])
def test_speed_counts_before_any_score(score: str) -> None:
    cluster = new_cluster(score=score)
    cluster.submits(task("old", speeds=(("K80", 3.0), ("V100", 2.0))))
    assert cluster.nodes_of("old") == ("slow",)


def test_a_task_takes_longer_where_it_is_slow() -> None:
    cluster = new_cluster()
    cluster.submits(task("first", speeds=SPEEDS, runs_for=100.0), task("second", speeds=SPEEDS, runs_for=100.0))
    cluster.passes(100)
    assert cluster.running() == ["second"]
    cluster.passes(299)
    assert cluster.running() == ["second"]
    cluster.passes(1)
    assert cluster.running() == []


def test_only_the_ratios_count_and_a_model_without_a_speed_is_as_slow_as_the_slowest() -> None:
    cluster = new_cluster()
    cluster.has_node(node("other", gpus=1, model="T4"))
    cluster.cordons("fast")
    cluster.cordons("slow")
    cluster.submits(task("unknown", speeds=(("K80", 5.0), ("V100", 20.0)), runs_for=100.0))
    assert cluster.nodes_of("unknown") == ("other",)
    cluster.passes(399)
    assert cluster.is_running("unknown")
    cluster.passes(1)
    assert cluster.running() == []


def test_a_gang_prefers_one_model_and_runs_at_the_speed_of_its_slowest_part() -> None:
    cluster = ClusterStory()
    cluster.is_split(online=0.0)
    cluster.has_node(node("fast-1", gpus=1, model="V100"))
    cluster.has_node(node("slow-1", gpus=1, model="K80"))
    cluster.has_node(node("slow-2", gpus=1, model="K80"))
    cluster.submits(gang("alike", members=2, gpus_each=1, speeds=SPEEDS))
    assert set(cluster.nodes_of("alike")) == {"slow-1", "slow-2"}
    cluster.finishes("alike")
    cluster.cordons("slow-2")
    cluster.submits(gang("mixed", members=2, gpus_each=1, speeds=SPEEDS, runs_for=100.0))
    assert set(cluster.nodes_of("mixed")) == {"fast-1", "slow-1"}
    cluster.passes(399)
    assert cluster.is_running("mixed")
    cluster.passes(1)
    assert cluster.running() == []


def test_work_done_at_one_speed_is_not_repeated_at_another() -> None:
    cluster = new_cluster()
    cluster.submits(task("first", speeds=SPEEDS))
    cluster.submits(task("second", runs_for=100.0, speeds=SPEEDS, preemption=Preemption.CHECKPOINT))
    cluster.passes(200)
    assert cluster.state.tasks[cluster.numbers["second"]].served_at(cluster.now) == 50.0
    cluster.finishes("first")
    cluster.cordons("slow", drain=True)  # it has done half of its work, and does the other half four times as fast
    assert cluster.nodes_of("second") == ("fast",)
    cluster.passes(49)
    assert cluster.is_running("second")
    cluster.passes(1)
    assert cluster.running() == []


def test_an_estimate_is_for_the_fastest_model_and_a_reservation_accounts_for_slow_ones() -> None:
    cluster = ClusterStory(policy="fifo", backfill="easy")
    cluster.is_split(online=0.0)
    cluster.has_node(node("slow", gpus=2, model="K80"))
    cluster.submits(task("now", speeds=SPEEDS, estimate=100.0))  # 400 s on this node
    cluster.submits(task("large", gpus=2))
    assert cluster.reserved_for("large") == (("slow",), 400.0)
    cluster.submits(task("long", speeds=SPEEDS, estimate=600.0))
    assert not cluster.is_running("long")
    cluster.submits(task("short", speeds=SPEEDS, estimate=50.0))  # 200 s
    assert cluster.is_running("short")


def test_a_short_task_may_use_the_fast_reserved_gpus_and_not_the_slow_ones() -> None:
    cluster = ClusterStory(policy="fifo", backfill="easy")
    cluster.is_split(online=0.0)
    cluster.has_node(node("slow", gpus=2, model="K80"))
    cluster.has_node(node("fast", gpus=2, model="V100"))
    cluster.submits(task("a", models=("K80",), estimate=200.0), task("b", models=("V100",), estimate=200.0))
    cluster.submits(gang("large", members=2, gpus_each=2))
    assert cluster.reserved_for("large") is not None
    cluster.submits(task("one", speeds=SPEEDS, estimate=100.0), task("two", speeds=SPEEDS, estimate=100.0))
    assert cluster.nodes_of("one") == ("fast",)
    assert not cluster.is_running("two")  # on the slow node it would take 400 s


def test_by_default_a_slow_task_is_demoted_when_it_has_done_the_work_of_a_level() -> None:
    cluster = ClusterStory(policy="default", preemption_min_run_seconds=0.0)
    cluster.is_split(online=0.0)
    cluster.has_node(node("slow", gpus=1, model="K80"))
    cluster.submits(task("now", speeds=SPEEDS, preemption=Preemption.CHECKPOINT))
    cluster.submits(task("next"))
    cluster.passes(4 * 600 - 1)
    assert cluster.running() == ["now"]
    cluster.passes(1)
    assert cluster.running() == ["next"]


def test_under_srtf_no_task_is_preempted_for_running_on_slow_gpus() -> None:
    cluster = ClusterStory(policy="srtf", preemption_min_run_seconds=0.0)
    cluster.is_split(online=0.0)
    cluster.has_node(node("slow", gpus=1, model="K80"))
    cluster.submits(task("now", speeds=SPEEDS, estimate=100.0, preemption=Preemption.CHECKPOINT))
    cluster.submits(task("next", speeds=SPEEDS, estimate=100.0, preemption=Preemption.CHECKPOINT))
    assert cluster.running() == ["now"]


def test_a_scheduler_restored_from_a_snapshot_knows_the_speeds_of_tasks() -> None:
    cluster = new_cluster()
    cluster.submits(task("first", speeds=SPEEDS), task("second", speeds=SPEEDS, estimate=100.0))
    cluster.passes(40)
    again = snapshot.load(snapshot.dump(cluster.state)).tasks[cluster.numbers["second"]]
    assert again.left_seconds(cluster.now) == (100.0 - 10.0) / 0.25


@pytest.mark.parametrize(
    ("speeds", "wrong"),
    [
        ((("K80", 0.0),), no.SpeedOutOfRange("K80", 0.0)),
        ((("K80", float("inf")),), no.SpeedOutOfRange("K80", float("inf"))),
        ((("", 1.0),), no.EmptyName("speeds")),
        ((("K80", 1.0), ("K80", 2.0)), no.DuplicateSpeed("K80")),
    ],
)
def test_invalid_speeds_are_refused(speeds: tuple[tuple[str, float], ...], wrong: no.Invalid) -> None:
    assert new_cluster().submits(task("odd", speeds=speeds)) == wrong
