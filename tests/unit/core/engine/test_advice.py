"""An advisor is consulted only where there is a choice."""

from collections.abc import Callable
from typing import Any

import pytest

from gpuyard.core.domain.refusals import HeldBack
from gpuyard.core.domain.task import Estimate
from gpuyard.core.domain.values import Preemption
from gpuyard.core.engine.scheduling.advice import FEATURES, HOLD_BACK_SECONDS, Rows
from gpuyard.core.engine.timers import TimerKind
from gpuyard.testing import ClusterStory, node, task

SPEEDS = (("new", 1.0), ("old", 0.25))
WAITS = FEATURES.index("waits")


class Says:
    """An advisor that follows a rule and records its questions."""

    def __init__(self, rule: Callable[[Rows], int]) -> None:
        self.rule = rule
        self.asked: list[Rows] = []

    def pick(self, rows: Rows) -> int:
        self.asked.append(rows)
        return self.rule(rows)


def first(rows: Rows) -> int:  # noqa: ARG001
    return 0


def wait(rows: Rows) -> int:
    return len(rows) - 1 if rows[-1][WAITS] else 0


def new_cluster(advisor: Says, policy: str = "dqn", **settings: Any) -> ClusterStory:
    """One new GPU and one old, without a split."""
    cluster = ClusterStory(advisor=advisor, policy=policy, backfill="greedy", **settings)
    cluster.is_split(online=0.0)
    cluster.has_node(node("fast", gpus=1, model="new"))
    cluster.has_node(node("slow", gpus=1, model="old"))
    return cluster


def hour(name: str, seconds: float = 3600.0, **more: Any) -> Any:
    return task(name, gpus=1, speeds=SPEEDS, estimate=Estimate(seconds, seconds / 2, seconds * 2), **more)


def test_a_task_waits_for_the_faster_gpu_if_the_advisor_says_so() -> None:
    cluster = new_cluster(Says(wait))
    cluster.submits(hour("one"))
    cluster.submits(hour("two"))
    assert cluster.running() == ["one"]
    assert cluster.why("two") == HeldBack(HOLD_BACK_SECONDS / 60)
    cluster.finishes("one")
    assert cluster.running() == ["two"]
    assert cluster.gpus_of("two") == [("fast", (0,))]


def cluster_without_advisor(policy: str, **settings: Any) -> ClusterStory:
    cluster = ClusterStory(policy=policy, backfill="greedy", **settings)
    cluster.is_split(online=0.0)
    cluster.has_node(node("fast", gpus=1, model="new"))
    cluster.has_node(node("slow", gpus=1, model="old"))
    return cluster


@pytest.mark.parametrize("policy", ["default", "dqn"])
def test_without_an_advisor_a_task_waits_if_that_saves_much_of_its_run(policy: str) -> None:
    cluster = cluster_without_advisor(policy)
    cluster.submits(hour("one"))
    cluster.submits(hour("two"))
    assert cluster.running() == ["one"]  # an hour of waiting and one of running, instead of four
    assert cluster.why("two") == HeldBack(HOLD_BACK_SECONDS / 60)
    cluster.finishes("one")
    assert cluster.gpus_of("two") == [("fast", (0,))]


@pytest.mark.parametrize("policy", ["default", "dqn"])
def test_without_an_advisor_a_task_starts_on_slow_gpus_if_waiting_saves_little(policy: str) -> None:
    cluster = cluster_without_advisor(policy)
    cluster.submits(hour("one", seconds=3600.0 * 4))
    cluster.submits(hour("two"))
    assert cluster.gpus_of("two") == [("slow", (0,))]  # four hours here, four of waiting and one of running there


def test_the_rule_saves_exactly_three_tenths_or_the_task_starts() -> None:
    for wait_seconds, waits in ((6470.0, True), (6490.0, False)):  # 14,400 s here; 10,080 s is three tenths less
        cluster = cluster_without_advisor("default")
        cluster.submits(hour("one", seconds=wait_seconds))
        cluster.submits(hour("two"))
        assert (cluster.running() == ["one"]) is waits


@pytest.mark.parametrize("policy", ["fifo", "sjf", "qssf", "srtf", "priority", "fair_share", "tiresias", "small_first"])
def test_under_other_policies_no_task_waits_for_faster_gpus(policy: str) -> None:
    cluster = cluster_without_advisor(policy)
    cluster.submits(hour("one"))
    cluster.submits(hour("two"))
    assert cluster.running() == ["one", "two"]


def test_a_preemptible_task_starts_at_once_because_it_can_move_later() -> None:
    cluster = cluster_without_advisor("default")
    cluster.submits(hour("one"))
    cluster.submits(hour("two", preemption=Preemption.CHECKPOINT))
    assert cluster.running() == ["one", "two"]


def test_a_task_does_not_wait_for_gpus_that_no_running_task_will_free() -> None:
    cluster = ClusterStory(policy="default", backfill="greedy")
    cluster.is_split(online=0.0)
    cluster.has_node(node("slow", gpus=2, model="old"))
    cluster.submits(hour("one"))
    assert cluster.running() == ["one"]


def test_a_task_that_waits_for_faster_gpus_is_tried_again_after_a_while() -> None:
    cluster = cluster_without_advisor("default")
    cluster.submits(hour("one"))
    cluster.submits(hour("two"))
    cluster.passes(HOLD_BACK_SECONDS + 1)
    assert cluster.running() == ["one"]  # the first should have ended by now, so it is expected to end soon
    cluster.submits(hour("three"))
    assert cluster.running() == ["one"]


def test_the_advisor_is_not_consulted_without_a_choice() -> None:
    asked = Says(wait)
    cluster = new_cluster(asked)
    cluster.submits(task("plain", gpus=1))
    assert cluster.running() == ["plain"]
    assert asked.asked == []


def test_a_preemptible_task_is_not_held_back() -> None:
    asked = Says(wait)
    cluster = new_cluster(asked)
    cluster.submits(hour("one", preemption=Preemption.CHECKPOINT))
    cluster.submits(hour("two", preemption=Preemption.CHECKPOINT))
    assert cluster.running() == ["one", "two"]
    assert asked.asked == []


def test_other_policies_consult_no_advisor() -> None:
    asked = Says(wait)
    cluster = new_cluster(asked, policy="srtf")
    cluster.submits(hour("one"))
    cluster.submits(hour("two"))
    assert cluster.running() == ["one", "two"]
    assert asked.asked == []


def test_waiting_is_not_offered_if_nothing_running_could_be_waited_for() -> None:
    asked = Says(wait)
    cluster = ClusterStory(advisor=asked, policy="dqn", backfill="greedy")
    cluster.is_split(online=0.0)
    cluster.has_node(node("slow", gpus=2, model="old"))
    cluster.submits(hour("one"))
    assert cluster.running() == ["one"]


def test_a_held_back_task_is_reconsidered_after_a_while() -> None:
    asked = Says(wait)
    cluster = new_cluster(asked)
    cluster.submits(hour("one"))
    cluster.submits(hour("two"))
    assert cluster.running() == ["one"]
    asked.rule = first
    cluster.passes(HOLD_BACK_SECONDS - 1)
    assert cluster.running() == ["one"]
    cluster.passes(2)
    assert cluster.gpus_of("two") == [("slow", (0,))]


def test_another_task_goes_first_if_the_advisor_says_so() -> None:
    def other(rows: Rows) -> int:
        return 1 if len(rows) > 1 and not rows[1][WAITS] else 0

    cluster = ClusterStory(advisor=Says(other), policy="dqn", backfill="greedy")
    cluster.is_split(online=0.0)
    cluster.has_node(node("fast", gpus=2, model="new"))
    cluster.has_node(node("slow", gpus=2, model="old"))
    cluster.submits(task("there", gpus=2, models=("new",)))
    cluster.submits(task("here", gpus=2, models=("old",)))
    cluster.submits(task("short", gpus=1, speeds=SPEEDS, estimate=Estimate(60, 60, 60)))
    cluster.submits(task("wide", gpus=2, speeds=SPEEDS, estimate=Estimate(600, 600, 600)))
    cluster.finishes("here")
    assert cluster.running() == ["there", "wide"]


def test_the_advisor_is_not_consulted_if_all_gpus_are_equally_fast() -> None:
    asked = Says(wait)
    cluster = ClusterStory(advisor=asked, policy="dqn", backfill="greedy")
    cluster.is_split(online=0.0)
    cluster.has_nodes(1, gpus_each=2)
    cluster.submits(task("now", gpus=2))
    cluster.submits(task("short", gpus=1, estimate=Estimate(60, 60, 60)))
    cluster.submits(task("wide", gpus=2, estimate=Estimate(600, 600, 600)))
    cluster.finishes("now")
    assert cluster.running() == ["short"]
    assert asked.asked == []


def test_a_row_has_a_value_for_every_feature() -> None:
    asked = Says(first)
    cluster = new_cluster(asked)
    cluster.submits(hour("one"))
    cluster.submits(hour("two"))
    assert {len(row) for rows in asked.asked for row in rows} == {len(FEATURES)}
    rows = asked.asked[-1]
    assert rows[0][FEATURES.index("speed")] == 0.25
    saved = rows[0][FEATURES.index("saved")]
    assert saved == pytest.approx((4 * 3600 - 2 * 3600) / (4 * 3600)), (
        "an hour until the other ends, and one at full speed"
    )


def test_a_question_sees_the_placements_of_the_same_pass() -> None:
    def last_question(*, together: bool) -> Rows:
        asked = Says(first)
        cluster = ClusterStory(advisor=asked, policy="dqn", backfill="greedy")
        cluster.is_split(online=0.0)
        cluster.has_node(node("fast", gpus=1, model="new"))
        cluster.has_node(node("slow", gpus=2, model="old"))
        cluster.submits(hour("one"))
        later = [hour("two", 1800.0), hour("three")]
        for batch in [later] if together else [[each] for each in later]:
            cluster.submits(*batch)
        assert cluster.running() == ["one", "two", "three"]
        return asked.asked[-1]

    assert last_question(together=True) == last_question(together=False)


def test_a_repeatedly_held_back_task_is_reconsidered_once() -> None:
    cluster = new_cluster(Says(wait))
    cluster.submits(hour("before"))
    cluster.submits(hour("patient"))
    for number in range(5):
        cluster.submits(task(f"short-{number}", gpus=1, models=("new",), estimate=Estimate(60, 60, 60)))
    for name in ("before", "short-0", "short-1", "short-2", "short-3"):
        cluster.finishes(name)
        assert cluster.why("patient") == HeldBack(HOLD_BACK_SECONDS / 60)
    assert len([timer for timer in cluster.state.timers if timer.about is TimerKind.LINE]) == 1
