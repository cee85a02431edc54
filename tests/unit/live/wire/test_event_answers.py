"""Events in the words of the API."""

import msgspec
import pytest

from gpuyard.core.domain import events
from gpuyard.core.domain.booking import BookedGpus, Booking
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.task import Resources, TaskSpec
from gpuyard.core.domain.values import GpuHealth, NodeId, TaskId, TaskStatus, TenantId
from gpuyard.live.wire.event_answers import event_answer
from gpuyard.testing import ClusterStory, gang, node, task

PRIVATE = {"spec", "placement", "cause", "because", "slices", "tenant_key", "digest", "key", "fact"}


def test_a_task_is_described_as_in_the_api() -> None:
    spec = TaskSpec(TenantId("lab"), Resources(gpus=1, models=("H100",)), name="train", command=("python", "a.py"))
    told = event_answer(events.TaskSubmitted(TaskId(7), spec, "key", "digest"), 0.0, "alice")
    assert (told["task_id"], told["status"]) == ("task-7", "pending")
    answer = msgspec.to_builtins(told["task"])
    assert (answer["id"], answer["tenant_id"], answer["gpu_model"]) == ("task-7", "lab", "H100")


def test_placements_causes_and_instants_have_their_public_names() -> None:
    placed = events.TaskPlaced(TaskId(7), 1, Placement((Slice(NodeId("box"), (0, 1)),)))
    assert event_answer(placed, 0.0, "") == {
        "type": "TaskPlaced", "task_id": "task-7", "attempt": 1, "node_ids": ["box"],
        "allocated_gpus": ["box/0", "box/1"],
    }  # fmt: skip
    because = events.TaskPlaced(TaskId(7), 1, placed.placement, Cause(CauseKind.QUEUED, task=TaskId(7)))
    assert event_answer(because, 0.0, "")["reason_code"] == "queued"
    ended = event_answer(events.TaskEnded(TaskId(7), TaskStatus.FAILED, Cause(CauseKind.EXIT_CODE)), 0.0, "")
    assert (ended["status"], ended["reason_code"]) == ("failed", "exit_code")
    requeued = event_answer(events.TaskRequeued(TaskId(7), Cause(CauseKind.EXIT_CODE), 5.0), 0.0, "")
    assert (requeued["status"], requeued["not_before"]) == ("pending", "1970-01-01T00:00:05.000000Z")
    health = event_answer(events.GpuHealthChanged(NodeId("box"), 3, GpuHealth.OFFLINE), 0.0, "")
    assert (health["gpu_id"], health["node_id"]) == ("box/3", "box")


def test_every_event_of_a_life_can_be_told_and_none_with_words_of_the_inside() -> None:
    cluster = ClusterStory()
    cluster.has_node(node("n1", gpus=4, zone="a"))
    cluster.has_nodes(1, gpus_each=4)
    cluster.has_tenant("lab", max_gpus=4, guaranteed_gpus=2)
    cluster.submits(gang("wide", members=2, gpus_each=4, estimate=10, runs_for=10), task("next", gpus=4, retries=1))
    cluster.passes(20)
    cluster.fails("next")
    cluster.passes(100)
    told = [msgspec.to_builtins(event_answer(event, at, "")) for at, event in cluster.events]
    assert len({one["type"] for one in told}) > 8
    for one in told:
        assert not PRIVATE & one.keys(), one
        msgspec.json.encode(one)


@pytest.mark.parametrize("kind", [kind for kind in events.Event.__subclasses__() if "task" in kind.__struct_fields__])
def test_no_field_of_a_task_is_missing(kind: type[events.Event]) -> None:
    """A new field of an event gets a public name here, or stays as it is because it has one."""
    public = {
        "attempt", "round", "message", "exit_code", "signal", "outcome", "priority", "status", "claim", "borrowed", "spec",
        "key", "digest", "origin", "number", "moment", "delivered", "tries",
    }  # fmt: skip
    from gpuyard.live.wire.event_answers import FIELDS

    assert set(kind.__struct_encode_fields__) <= public | FIELDS.keys()


def test_bookings_are_told_with_ids_and_dates() -> None:
    booking = Booking(3, TenantId("lab"), 0.0, 3600.0, (BookedGpus(NodeId("n1"), 2),), "alice", note="demo")
    told = event_answer(events.BookingMade(booking), 0.0, "")
    assert (told["booking_id"], told["begins_at"], told["ends_at"], told["gpu_count"]) == (
        "booking-3", "1970-01-01T00:00:00.000000Z", "1970-01-01T01:00:00.000000Z", 2,
    )  # fmt: skip
    assert told["parts"] == [{"node_id": "n1", "gpu_count": 2}]
    began = event_answer(events.BookingBegan(3, (TaskId(7),), (NodeId("n1"),)), 0.0, "")
    assert began == {"type": "BookingBegan", "booking_id": "booking-3", "late_tasks": ["task-7"], "node_ids": ["n1"]}
