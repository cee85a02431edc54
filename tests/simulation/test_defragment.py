"""Running tasks move to other nodes to make room for a task that needs its GPUs together."""

from typing import Any

import pytest

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.events import AttemptStopping, ReservationDropped, TaskPlaced
from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.core.domain.values import NodeId, Outcome, Preemption
from gpuyard.core.engine import snapshot
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.scheduling import defragment
from gpuyard.testing import ClusterStory, gang, node, share, task
from gpuyard.testing.builders import TaskBuilder

LONG = 9_000.0


def saves(name: str, **more: Any) -> TaskBuilder:
    """A task on one GPU that can be moved and runs for hours."""
    return task(name, **{"preemption": Preemption.CHECKPOINT, "estimate": LONG, **more})


def new_cluster(**settings: Any) -> ClusterStory:
    """Two nodes of four GPUs, under a policy that preempts no task."""
    cluster = ClusterStory(**{"policy": "fifo", "defragment": True, **settings})
    cluster.is_split(online=0.0, mode=QuotaMode.NONE)
    for name in ("left", "right"):
        cluster.has_node(node(name, gpus=4, rack=name))
    return cluster


def fragmented(in_the_way: TaskBuilder | None = None, *, seconds: float = 60.0, **settings: Any) -> ClusterStory:
    """Three GPUs are free beside a task on the right, and one on the left; a task that needs four waits."""
    cluster = new_cluster(**settings)
    cluster.submits(task("ends", gpus=3), in_the_way or saves("small"), task("stays", gpus=3, estimate=LONG))
    cluster.passes(seconds)
    cluster.finishes("ends")
    cluster.submits(task("large", gpus=4))
    cluster.passes(60)
    return cluster


def moves(cluster: ClusterStory) -> list[str]:
    """Return the tasks that were stopped to make room, in order."""
    return [
        cluster.names[event.task]
        for _, event in cluster.events
        if isinstance(event, AttemptStopping) and event.cause.why is CauseKind.MADE_ROOM
    ]


def test_a_task_moves_so_that_a_large_one_finds_room() -> None:
    cluster = fragmented()
    assert (cluster.nodes_of("small"), cluster.nodes_of("large")) == (("left",), ("right",))
    causes = [event.cause for event in cluster.events_of("small") if isinstance(event, AttemptStopping)]
    assert causes == [Cause(CauseKind.MADE_ROOM, task=cluster.numbers["large"])]
    assert causes[0].sentence() == f"It was moved to make room for task-{cluster.numbers['large']}."


@pytest.mark.parametrize("settings", [{"defragment": False}, {"preemption": False}], ids=["off", "no preemption"])
def test_no_task_moves_if_that_is_off(settings: dict[str, Any]) -> None:
    cluster = fragmented(**settings)
    cluster.passes(LONG)
    assert not cluster.is_running("large")


@pytest.mark.parametrize(
    "stays",
    [
        saves("small", preemption=Preemption.NEVER),
        saves("small", preemption=Preemption.SUSPEND),
        share("small", fraction=0.5, preemption=Preemption.CHECKPOINT),
        gang("small", members=2, gpus_each=1, preemption=Preemption.CHECKPOINT),
    ],
    ids=["never stopped", "in host memory", "a share", "a gang"],
)
def test_other_tasks_stay(stays: TaskBuilder) -> None:
    cluster = fragmented(stays)
    cluster.passes(LONG)
    assert moves(cluster) == []


def test_a_task_that_starts_over_moves_only_while_it_has_done_little() -> None:
    early = fragmented(saves("small", preemption=Preemption.REQUEUE))
    assert moves(early) == ["small"]
    late = fragmented(saves("small", preemption=Preemption.REQUEUE, estimate=40_000.0), seconds=30_000.0)
    late.passes(500)
    assert moves(late) == []


def test_it_moves_only_if_the_wait_is_worth_it() -> None:
    cluster = fragmented(saves("small", estimate=170.0))  # ends 50 s after the search
    cluster.passes(1)
    assert moves(cluster) == []


def test_if_the_wait_is_unknown_tasks_move_when_it_has_lasted_as_long_as_the_move_costs() -> None:
    cluster = new_cluster()
    cluster.submits(task("ends", gpus=3), saves("small", estimate=None), task("stays", gpus=3))
    cluster.passes(10_000)
    cluster.finishes("ends")
    cluster.submits(task("large", gpus=4))
    cluster.passes(494)  # twice 990 GPU-seconds, on four GPUs
    assert moves(cluster) == []
    cluster.passes(1)
    assert moves(cluster) == ["small"]


def test_if_tasks_run_longer_than_expected_the_move_is_considered_again() -> None:
    cluster = new_cluster()
    cluster.submits(task("ends", gpus=3), saves("small", estimate=150.0), task("stays", gpus=3, estimate=150.0))
    cluster.passes(60)
    cluster.finishes("ends")
    cluster.submits(task("large", gpus=4))
    cluster.passes(80)  # waiting ten seconds more costs less than a move
    assert moves(cluster) == []
    cluster.passes(LONG)  # but neither task has ended, and nothing else has happened
    assert moves(cluster) == ["small"]


@pytest.mark.parametrize("in_the_way", [1, 3], ids=["one GPU", "three GPUs"])
@pytest.mark.parametrize("preemption", [Preemption.NEVER, Preemption.CHECKPOINT])
def test_tasks_that_no_move_can_help_do_not_keep_others_from_it(in_the_way: int, preemption: Preemption) -> None:
    cluster = new_cluster()
    for number in range(2):
        cluster.has_node(node(f"other {number}", gpus=4, model="H100"))
        cluster.submits(task(f"blocks {number}", gpus=in_the_way, models=("H100",), preemption=preemption))
    a100: dict[str, Any] = {"models": ("A100",)}
    cluster.submits(task("ends", gpus=3, **a100), saves("small", **a100), task("stays", gpus=3, estimate=LONG, **a100))
    cluster.passes(60)
    cluster.submits(*(task(f"waits {cpus}", gpus=4, cpus=40 + cpus, models=("H100",)) for cpus in range(1, 7)))
    cluster.finishes("ends")
    cluster.submits(task("large", gpus=4, **a100))
    cluster.passes(60)
    assert moves(cluster) == ["small"]


def test_no_task_moves_if_it_finds_no_other_place() -> None:
    cluster = new_cluster()
    cluster.submits(task("ends", gpus=2), saves("small", gpus=2), task("stays", gpus=3))
    cluster.passes(60)
    cluster.finishes("ends")
    cluster.submits(task("large", gpus=4))
    cluster.passes(LONG)
    assert moves(cluster) == []


def test_another_task_moves_if_the_cheapest_one_finds_no_place() -> None:
    cluster = new_cluster()
    cluster.submits(task("ends", gpus=2), saves("bound", labels=(("rack", "right"),)), saves("free"))
    cluster.submits(task("stays", gpus=3, estimate=LONG))
    cluster.passes(60)
    cluster.finishes("ends")
    cluster.submits(task("large", gpus=3))
    cluster.passes(60)
    assert cluster.is_running("large")
    assert moves(cluster) == ["free"]


def test_nodes_are_cleared_for_a_gang() -> None:
    cluster = new_cluster()
    for name in ("third", "fourth"):
        cluster.has_node(node(name, gpus=4))
    for number in range(4):
        cluster.submits(task(f"ends {number}", gpus=3), saves(f"small {number}"))
    cluster.passes(60)
    cluster.finishes("ends 0", "ends 1", "ends 2")
    cluster.submits(gang("gang", members=2, gpus_each=4, estimate=LONG))
    cluster.passes(60)
    assert len(cluster.nodes_of("gang")) == 2
    assert len(moves(cluster)) == 2


def test_neither_priorities_nor_ranks_count() -> None:
    cluster = fragmented(saves("small", priority=90), policy="priority")
    assert cluster.is_running("large")
    assert cluster.is_running("small")


@pytest.mark.parametrize(("speed", "moved"), [(0.5, []), (1.0, ["small"])])
def test_a_task_does_not_move_to_slower_gpus(speed: float, moved: list[str]) -> None:
    cluster = ClusterStory(policy="fifo", defragment=True, moves="none")
    cluster.is_split(online=0.0, mode=QuotaMode.NONE)
    cluster.has_node(node("slow", gpus=4, model="K80"))
    cluster.has_node(node("fast", gpus=4, model="V100"))
    cluster.submits(task("ends", gpus=3, models=("V100",)), task("stays", gpus=3, models=("K80",)))
    cluster.submits(saves("small", speeds=(("K80", speed), ("V100", 1.0))))
    if cluster.nodes_of("small") != ("fast",):  # both are equally good
        cluster.finishes("small")
        cluster.submits(task("fills", models=("K80",)), saves("small", speeds=(("K80", speed), ("V100", 1.0))))
        cluster.finishes("fills")
    assert cluster.nodes_of("small") == ("fast",)
    cluster.passes(60)
    cluster.finishes("ends")
    cluster.submits(task("large", gpus=4, models=("V100",)))
    cluster.passes(60)
    assert moves(cluster) == moved


@pytest.mark.parametrize(("estimate", "moved"), [(LONG, []), (300.0, ["small"])])
def test_a_task_moves_to_reserved_gpus_only_if_it_ends_before_they_are_used(estimate: float, moved: list[str]) -> None:
    cluster = new_cluster(reserve_after_seconds=0.0)
    cluster.submits(task("ends", gpus=3), saves("small", estimate=estimate), task("stays", gpus=3, estimate=500.0))
    cluster.submits(task("first", gpus=4, labels=(("rack", "left"),)))
    cluster.passes(60)
    assert cluster.reserved_for("first") == (("left",), 500.0)
    cluster.submits(task("large", gpus=4, labels=(("rack", "right"),)))
    cluster.finishes("ends")
    cluster.passes(60)
    assert moves(cluster) == moved


def test_a_task_at_its_quota_gets_no_room() -> None:
    cluster = new_cluster()
    cluster.has_tenant("team", max_gpus=6)
    cluster.submits(task("ends", gpus=3), saves("small", tenant="other"), task("stays", gpus=3, estimate=LONG))
    cluster.passes(60)
    cluster.finishes("ends")
    cluster.submits(task("large", gpus=4))
    cluster.passes(LONG)
    assert moves(cluster) == []


def test_a_task_is_not_moved_again_within_an_hour() -> None:
    cluster = fragmented()
    cluster.finishes("large")
    cluster.submits(task("blocks", gpus=3, estimate=3 * LONG))
    assert cluster.nodes_of("blocks") == ("right",)
    cluster.finishes("stays")  # now the small task stands in the way on the left
    cluster.submits(task("larger", gpus=4))
    cluster.passes(3_590)
    assert moves(cluster) == ["small"]
    cluster.passes(20)
    assert moves(cluster) == ["small", "small"]


def test_at_most_some_tasks_move_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defragment, "MOST_MOVES", 0)
    cluster = fragmented()
    cluster.passes(1_000)
    assert moves(cluster) == []


def test_without_backfill_room_is_made_only_for_the_first_task() -> None:
    cluster = new_cluster(backfill="none")
    cluster.submits(task("ends", gpus=3), saves("small"), task("stays", gpus=3, estimate=LONG))
    cluster.passes(60)
    cluster.submits(gang("first", members=2, gpus_each=3), task("large", gpus=4))
    cluster.finishes("ends")
    cluster.passes(1_000)
    assert moves(cluster) == []


# --- during the move --------------------------------------------------------------------------------------------------


def moving(*more: TaskBuilder) -> ClusterStory:
    """Two tasks are leaving the right node for the two free GPUs of the left one, which takes 20 seconds."""
    cluster = new_cluster()
    cluster.world.stop_seconds = 20.0
    cluster.submits(task("stays", gpus=2, estimate=LONG), task("blocks", gpus=2))
    cluster.submits(task("ends", gpus=2), saves("one"), saves("two"))
    cluster.submits(*more) if more else None
    cluster.passes(60)
    cluster.finishes("ends", "blocks")
    cluster.submits(task("large", gpus=4))
    cluster.passes(61)
    assert sorted(moves(cluster)) == ["one", "two"]
    return cluster


def test_the_tasks_that_move_are_named() -> None:
    cluster = moving()
    one, two = cluster.numbers["one"], cluster.numbers["two"]
    (where,) = cluster.nodes_of("one")
    reason = cluster.why("large")
    assert reason == no.WaitingForMoves((one, two), NodeId(where))
    assert reason.sentence() == (
        f"To make room for the task on node {where}, these tasks are being moved to other nodes: task-{one}, task-{two}."
    )


def test_the_new_places_are_kept_for_the_tasks_that_move() -> None:
    cluster = moving()
    cluster.submits(saves("new"), saves("online", online=True, priority=100))
    assert not {"new", "online"} & set(cluster.running())
    cluster.passes(20)
    assert {"one", "two", "large", "stays"} == set(cluster.running())
    assert cluster.nodes_of("one") == cluster.nodes_of("two") == cluster.nodes_of("stays")


def test_a_task_that_ends_instead_gives_its_new_place_back() -> None:
    cluster = moving()
    cluster.tells(command.ReportEnded(cluster.numbers["one"], 1, Outcome.SUCCEEDED, 0))
    cluster.submits(task("new"))
    cluster.passes(20)
    assert {"two", "large", "stays", "new"} == set(cluster.running())


def test_a_task_cancelled_during_its_move_is_not_placed_again() -> None:
    cluster = moving()
    cluster.cancels("one")
    cluster.passes(20)
    assert {"two", "large", "stays"} == set(cluster.running())


def test_if_the_waiting_task_is_cancelled_the_others_continue_in_their_new_places() -> None:
    cluster = moving()
    cluster.cancels("large")
    cluster.passes(20)
    assert {"one", "two", "stays"} == set(cluster.running())
    assert cluster.nodes_of("one") == cluster.nodes_of("stays")


def test_a_task_whose_new_node_is_lost_during_the_move_waits_as_usual() -> None:
    cluster = moving()
    (new,) = cluster.nodes_of("stays")
    cluster.loses(new)
    cluster.passes(20)
    assert cluster.is_running("large")
    assert not {"one", "two"} & set(cluster.running())
    cluster.finishes("large")
    assert {"one", "two"} <= set(cluster.running())


def test_if_the_cleared_node_is_lost_the_tasks_start_elsewhere_at_once() -> None:
    cluster = moving()
    (old,) = cluster.nodes_of("one")
    cluster.loses(old)
    assert {"one", "two", "stays"} == set(cluster.running())
    first = next(event for event in cluster.events_of("large") if isinstance(event, ReservationDropped))
    assert first.cause.why is CauseKind.NODES_CHANGED


def test_moves_continue_after_a_restart_of_the_scheduler() -> None:
    cluster = moving()
    again = snapshot.load(snapshot.dump(cluster.state))
    assert {hold.task.id: (hold.nodes, hold.victims) for hold in again.reservations.values()} == {
        hold.task.id: (hold.nodes, hold.victims) for hold in cluster.state.reservations.values()
    }
    assert len(again.reservations) == 3
    engine = Engine(again)
    placed = []
    for name in ("one", "two"):
        engine.handle(command.ReportEnded(cluster.numbers[name], 1, Outcome.STOPPED), cluster.now + 20)
        placed += [event for event in engine.decide(cluster.now + 20) if isinstance(event, TaskPlaced)]
    assert [cluster.names[event.task] for event in placed] == ["one", "two", "large"]
