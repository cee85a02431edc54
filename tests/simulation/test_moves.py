"""Running tasks move to GPUs on which they are faster: free ones, or in exchange with a task that loses less."""

from typing import Any

import pytest

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.causes import CauseKind
from gpuyard.core.domain.events import AttemptStopping
from gpuyard.core.domain.values import Outcome, Preemption
from gpuyard.core.engine import snapshot
from gpuyard.testing import ClusterStory, gang, node, task
from gpuyard.testing.builders import TaskBuilder

MUCH_FASTER = (("K80", 0.1), ("V100", 1.0))
LITTLE_FASTER = (("K80", 0.8), ("V100", 1.0))


def saves(name: str, speeds: tuple[tuple[str, float], ...] = MUCH_FASTER, **more: Any) -> TaskBuilder:
    """A task with speeds that can be moved."""
    return task(name, speeds=speeds, preemption=Preemption.CHECKPOINT, **more)


def new_cluster(fast: int = 1, slow: int = 2, **settings: Any) -> ClusterStory:
    """A node of fast GPUs and one of slow ones, all for batch work."""
    cluster = ClusterStory(**{"policy": "fifo", **settings})
    cluster.is_split(online=0.0)
    cluster.has_node(node("slow", gpus=slow, model="K80"))
    cluster.has_node(node("fast", gpus=fast, model="V100"))
    return cluster


def whys(cluster: ClusterStory, name: str) -> list[CauseKind]:
    return [event.cause.why for event in cluster.events_of(name) if isinstance(event, AttemptStopping)]


def test_a_task_moves_to_faster_gpus_when_they_are_free() -> None:
    cluster = new_cluster()
    cluster.submits(saves("first", runs_for=1000.0))
    cluster.submits(saves("second", runs_for=1000.0))
    assert cluster.nodes_of("second") == ("slow",)
    cluster.passes(1000)
    assert cluster.nodes_of("second") == ("fast",)
    assert whys(cluster, "second") == [CauseKind.MOVED]
    cluster.passes(899)  # a tenth of the time it worked at a tenth of the speed
    assert cluster.is_running("second")
    cluster.passes(1)
    assert cluster.running() == []


def test_a_task_moves_when_staying_has_cost_as_much_as_the_move() -> None:
    cluster = new_cluster()
    cluster.submits(saves("first"), saves("second"))
    cluster.passes(30)
    cluster.finishes("first")
    cluster.passes(89)  # it was looked at after 60 s, when it had lost 54
    assert cluster.nodes_of("second") == ("slow",)
    cluster.passes(1)  # and after 120
    assert cluster.nodes_of("second") == ("fast",)


def test_a_task_with_an_estimate_moves_as_soon_as_it_is_old_enough_or_never() -> None:
    cluster = new_cluster()
    cluster.submits(saves("first"), saves("long", estimate=3600.0), saves("short", estimate=100.0))
    cluster.passes(30)
    cluster.finishes("first")
    assert cluster.nodes_of("long") == ("slow",)
    cluster.passes(30)
    assert cluster.nodes_of("long") == ("fast",)
    cluster.passes(600)
    cluster.finishes("long")  # the short one has 34 s of work left, less than a move costs
    cluster.passes(300)
    assert cluster.nodes_of("short") == ("slow",)


@pytest.mark.parametrize(
    "stays",
    [
        task("stays", preemption=Preemption.CHECKPOINT),
        task("stays", speeds=MUCH_FASTER, preemption=Preemption.REQUEUE),
        task("stays", speeds=MUCH_FASTER, preemption=Preemption.SUSPEND),
        task("stays", speeds=MUCH_FASTER),
        saves("stays", models=("K80",)),
        saves("stays", whole_nodes=True, gpus=2),
    ],
    ids=["without speeds", "starts over", "in host memory", "never stopped", "one model only", "whole nodes"],
)
def test_other_tasks_stay(stays: TaskBuilder) -> None:
    cluster = new_cluster(fast=2)
    cluster.submits(saves("first", gpus=2))
    cluster.submits(stays)
    cluster.passes(10_000)
    cluster.finishes("first")
    cluster.passes(10_000)
    assert cluster.nodes_of("stays") == ("slow",)


def test_no_task_moves_if_moves_or_preemption_are_off() -> None:
    for settings in ({"moves": "none"}, {"preemption": False}):
        cluster = new_cluster(**settings)
        cluster.submits(saves("first"), saves("second"))
        cluster.passes(10_000)
        cluster.finishes("first")
        cluster.passes(10_000)
        assert cluster.nodes_of("second") == ("slow",)


def test_waiting_tasks_go_before_tasks_that_would_run_faster() -> None:
    cluster = new_cluster(slow=1)
    cluster.submits(saves("first"), saves("second"), task("waits"))
    cluster.passes(10_000)
    cluster.finishes("first")
    assert cluster.nodes_of("waits") == ("fast",)
    assert cluster.nodes_of("second") == ("slow",)


def test_a_move_takes_no_reserved_gpus() -> None:
    cluster = new_cluster(fast=2, backfill="easy")
    cluster.submits(saves("a", models=("V100",), estimate=20_000.0), task("b", models=("V100",)), saves("slow"))
    cluster.submits(task("large", gpus=2, models=("V100",)))
    cluster.passes(10_000)
    cluster.finishes("b")
    assert cluster.nodes_of("slow") == ("slow",)
    cluster.finishes("a")
    assert cluster.nodes_of("large") == ("fast",)


def test_a_gang_moves_as_a_whole() -> None:
    cluster = ClusterStory(policy="fifo")
    cluster.is_split(online=0.0)
    for name, model in (("slow-1", "K80"), ("slow-2", "K80"), ("fast-1", "V100"), ("fast-2", "V100")):
        cluster.has_node(node(name, gpus=1, model=model))
    cluster.submits(gang("first", members=2, gpus_each=1, models=("V100",)))
    cluster.submits(gang("second", members=2, gpus_each=1, speeds=MUCH_FASTER, preemption=Preemption.CHECKPOINT))
    cluster.passes(10_000)
    cluster.finishes("first")
    assert set(cluster.nodes_of("second")) == {"fast-1", "fast-2"}


def test_two_tasks_swap_places_when_one_gains_more_than_the_other_loses() -> None:
    cluster = new_cluster(slow=1)
    cluster.submits(saves("little", LITTLE_FASTER), saves("much"))
    assert (cluster.nodes_of("little"), cluster.nodes_of("much")) == (("fast",), ("slow",))
    cluster.passes(10_000)
    assert (cluster.nodes_of("little"), cluster.nodes_of("much")) == (("slow",), ("fast",))
    assert (whys(cluster, "little"), whys(cluster, "much")) == ([CauseKind.EXCHANGED], [CauseKind.MOVED])


def test_several_small_tasks_make_room_for_a_large_one() -> None:
    cluster = new_cluster(fast=2, slow=2)
    cluster.submits(saves("a", LITTLE_FASTER), saves("b", LITTLE_FASTER))
    cluster.submits(saves("large", gpus=2))
    cluster.passes(10_000)
    assert [cluster.nodes_of(name) for name in ("a", "b", "large")] == [("slow",), ("slow",), ("fast",)]


def test_an_exchange_leaves_no_task_without_a_place() -> None:
    cluster = new_cluster(fast=2, slow=1)
    cluster.submits(saves("large", LITTLE_FASTER, gpus=2), saves("much"))
    cluster.passes(10_000)
    assert (cluster.nodes_of("large"), cluster.nodes_of("much")) == (("fast",), ("slow",))


def test_with_free_moves_only_no_tasks_swap_places() -> None:
    cluster = new_cluster(slow=1, moves="free")
    cluster.submits(saves("little", LITTLE_FASTER), saves("much"))
    cluster.passes(10_000)
    assert cluster.nodes_of("much") == ("slow",)


def test_a_task_of_higher_priority_makes_no_room() -> None:
    cluster = new_cluster(slow=1, policy="priority")
    cluster.submits(saves("little", LITTLE_FASTER, priority=60), saves("much", priority=50))
    cluster.passes(10_000)
    assert cluster.nodes_of("much") == ("slow",)


@pytest.mark.parametrize(("policy", "then"), [("srtf", "slow"), ("dqn", "fast")])
def test_under_dqn_two_tasks_of_similar_size_swap_places_even_for_the_longer_one(policy: str, then: str) -> None:
    cluster = new_cluster(slow=1, policy=policy, backfill="greedy")
    cluster.submits(saves("little", LITTLE_FASTER, estimate=20_000.0), saves("much", estimate=25_000.0))
    cluster.passes(1_000)
    assert cluster.nodes_of("much") == (then,)


def test_a_task_without_speeds_makes_no_room() -> None:
    cluster = new_cluster(slow=1)
    cluster.submits(task("silent", models=("V100",), preemption=Preemption.CHECKPOINT), saves("much"))
    cluster.passes(10_000)
    assert cluster.nodes_of("much") == ("slow",)


def test_a_limit_on_a_model_keeps_a_task_in_place() -> None:
    cluster = new_cluster(slow=1)
    cluster.has_tenant("team", max_gpus_by_model=(("V100", 0),))
    cluster.submits(saves("little", LITTLE_FASTER, tenant="other"), saves("much"))
    cluster.passes(10_000)
    assert cluster.nodes_of("much") == ("slow",)
    cluster.finishes("little")
    cluster.passes(10_000)
    assert cluster.nodes_of("much") == ("slow",)


# --- during the move ---------------------------------------------------------------------------------------------------


def moving(stop_seconds: float = 20.0) -> ClusterStory:
    """An exchange that has begun and takes a while."""
    cluster = new_cluster(slow=1)
    cluster.world.stop_seconds = stop_seconds
    cluster.submits(saves("little", LITTLE_FASTER), saves("much"))
    cluster.passes(241)  # it was looked at after 240 s
    assert (whys(cluster, "little"), whys(cluster, "much")) == ([CauseKind.EXCHANGED], [CauseKind.MOVED])
    return cluster


def test_both_places_are_kept_while_tasks_swap() -> None:
    cluster = moving()
    cluster.submits(task("new"))
    cluster.passes(20)
    assert (cluster.nodes_of("little"), cluster.nodes_of("much")) == (("slow",), ("fast",))
    assert not cluster.is_running("new")


@pytest.mark.parametrize("gone", ["little", "much"])
def test_a_task_that_ends_during_its_move_frees_its_place(gone: str) -> None:
    cluster = moving()
    cluster.tells(command.ReportEnded(cluster.numbers[gone], 1, Outcome.SUCCEEDED, 0))
    cluster.submits(task("new"))
    cluster.passes(20)
    assert {"little", "much", "new"} - set(cluster.running()) == {gone}


def test_a_task_cancelled_during_its_move_is_not_placed_again() -> None:
    cluster = moving()
    cluster.cancels("much")
    cluster.passes(20)
    assert cluster.running() == ["little"]
    assert cluster.status("much") == "cancelled"


def test_a_task_whose_new_node_is_lost_during_the_move_waits_as_usual() -> None:
    cluster = moving()
    cluster.loses("fast")
    cluster.passes(20)
    assert cluster.running() == ["little"]
    cluster.finishes("little")
    assert cluster.nodes_of("much") == ("slow",)


def test_a_move_continues_after_a_restart_of_the_scheduler() -> None:
    cluster = moving()
    again = snapshot.load(snapshot.dump(cluster.state))
    assert {hold.task.id: hold.victims for hold in again.reservations.values()} == {
        hold.task.id: hold.victims for hold in cluster.state.reservations.values()
    }
    assert len(again.reservations) == 2
