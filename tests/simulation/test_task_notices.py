"""Messages about tasks: which are pending, and until when."""

import pytest

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.notice import Moment, TaskNotice
from gpuyard.core.domain.values import Outcome, TaskId
from gpuyard.core.engine import snapshot
from gpuyard.core.engine.lifecycle import notices
from gpuyard.testing import ClusterStory, task

START, END, FAIL = Moment
HOOK = "https://hooks.example.org/1"


@pytest.fixture
def cluster() -> ClusterStory:
    """A cluster of one node."""
    made = ClusterStory()
    made.has_nodes(1, gpus_each=8)
    return made


def pending(cluster: ClusterStory) -> list[tuple[str, str]]:
    """Return the pending messages: task and moment."""
    return [(cluster.names[one.task], one.moment.value) for one in cluster.state.notices.values()]


def settle(cluster: ClusterStory) -> None:
    for one in list(cluster.state.notices.values()):
        cluster.tells(command.SettleNotice(one.task, one.number, one.moment, delivered=True))


def test_a_task_tells_of_its_start_and_of_its_end(cluster: ClusterStory) -> None:
    cluster.submits(task("t", notify=(TaskNotice((START, END), HOOK),)))
    assert pending(cluster) == [("t", "start")]
    settle(cluster)
    assert pending(cluster) == []
    cluster.finishes("t")
    assert pending(cluster) == [("t", "end")]


def test_a_failure_is_told_once_if_the_end_is_told_too(cluster: ClusterStory) -> None:
    cluster.submits(
        task("both", notify=(TaskNotice((END, FAIL), HOOK),)), task("one", notify=(TaskNotice((FAIL,), HOOK),))
    )
    cluster.fails("both")
    cluster.fails("one")
    assert pending(cluster) == [("both", "end"), ("one", "fail")]


def test_a_success_and_a_cancellation_are_no_failures_and_a_timeout_is_one(cluster: ClusterStory) -> None:
    notify = (TaskNotice((FAIL,), HOOK),)
    cluster.submits(
        task("good", notify=notify), task("cancelled", notify=notify), task("slow", notify=notify, timeout_seconds=5.0)
    )
    cluster.finishes("good")
    cluster.cancels("cancelled")
    cluster.passes(60)
    assert pending(cluster) == [("slow", "fail")]


def test_a_retry_is_neither_a_start_nor_a_failure(cluster: ClusterStory) -> None:
    cluster.submits(task("t", retries=1, notify=(TaskNotice((START, FAIL), HOOK),)))
    settle(cluster)
    cluster.fails("t")
    cluster.passes(60)
    assert pending(cluster) == []
    cluster.fails("t")
    assert pending(cluster) == [("t", "fail")]


def test_an_array_tells_once_of_its_start_its_first_failure_and_its_end(cluster: ClusterStory) -> None:
    hook = [TaskNotice((START, FAIL), HOOK, place=place, count=3) for place in range(3)]
    mail = [TaskNotice((END,), "mailto:a@b.c", place=place, count=3) for place in range(3)]
    cluster.submits(
        *(task(f"t{place}", notify=(hook[place], mail[place]), array_index=place + 5) for place in range(3))
    )
    assert pending(cluster) == [("t0", "start")]
    settle(cluster)
    cluster.fails("t1")
    assert pending(cluster) == [("t1", "fail")]
    cluster.fails("t0")
    assert pending(cluster) == [("t1", "fail")]
    settle(cluster)
    cluster.finishes("t2")
    [told] = cluster.state.notices.values()
    assert (told.moment, told.count, told.ended) == (END, 3, (("failed", 2), ("success", 1)))
    assert cluster.state.arrays == {}


def test_each_task_of_an_array_tells_if_that_is_asked_for(cluster: ClusterStory) -> None:
    for place in range(2):
        notice = TaskNotice((END,), HOOK, each=True, place=place, count=2)
        cluster.submits(task(f"t{place}", notify=(notice,), array_index=place))
    cluster.finishes("t0", "t1")
    assert pending(cluster) == [("t0", "end"), ("t1", "end")]


def test_a_message_is_settled_once_and_survives_a_snapshot(cluster: ClusterStory) -> None:
    cluster.submits(task("t", notify=(TaskNotice((END,), HOOK),)))
    number = cluster.numbers["t"]
    cluster.tells(command.ReportEnded(number, 1, Outcome.SUCCEEDED, 0))
    assert list(snapshot.load(snapshot.dump(cluster.state)).notices) == [(number, 0, END)]
    order = command.SettleNotice(number, 0, END, delivered=False, tries=5, message="away")
    assert len(cluster.tells(order)) == 1  # type: ignore[arg-type]
    assert cluster.tells(order) == []


def test_messages_are_bounded(cluster: ClusterStory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "MOST_PENDING", 4)
    cluster.submits(*(task(f"t{place}", notify=(TaskNotice((END,), HOOK),)) for place in range(3)))
    cluster.finishes("t0", "t1", "t2")
    assert pending(cluster) == [("t0", "end"), ("t1", "end")]
    assert cluster.state.dropped_notices == {("team", ""): 1}
    settle(cluster)
    assert cluster.state.waiting_notices == {}


def test_a_user_with_many_messages_leaves_room_for_those_of_others(
    cluster: ClusterStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "MOST_PENDING", 8)
    notify = tuple(TaskNotice((END,), f"cmd:sleep {number}", each=True) for number in range(8))
    cluster.submits(task("flood", user="alice", notify=notify), task("other", user="bob", notify=notify[:1]))
    cluster.finishes("flood", "other")
    assert [name for name, _ in pending(cluster)] == ["flood"] * 4 + ["other"]
    loaded = snapshot.load(snapshot.dump(cluster.state))
    assert loaded.waiting_notices == cluster.state.waiting_notices == {("team", "alice"): 4, ("team", "bob"): 1}
    settle(cluster)
    assert cluster.state.waiting_notices == {}


def test_a_message_of_an_older_journal_that_was_dropped_can_be_settled(cluster: ClusterStory) -> None:
    notices.forget(cluster.state, (TaskId(4711), 0, END))
    assert cluster.state.notices == {}
