"""The stories of tasks in memory: events, runs, and their limits."""

import msgspec

from gpuyard.core.domain import events
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.values import NodeId, Outcome, TaskId, TaskStatus
from gpuyard.core.journal.records import Record
from gpuyard.live.control_plane.stories import FIRST_EVENTS, MOST_EVENTS, Stories, answered, unpacked
from gpuyard.live.wire.story_answers import OF_TASKS, StoryAnswer, StoryEvent

TASK = TaskId(7)
HERE = Placement((Slice(NodeId("a"), (0, 1)),))
THERE = Placement((Slice(NodeId("b"), (3,)),))
CAUSE = Cause(CauseKind.SUSPENDED_BY_USER)


def heard(*told: events.Event) -> Stories:
    stories = Stories()
    for seq, event in enumerate(told, 1):
        stories.hear(Record(seq, float(seq), event, "ann@10.0.0.1"))
    return stories


def told(stories: Stories) -> list[StoryEvent]:
    return [msgspec.json.decode(one, type=StoryEvent) for one in stories.events_of(TASK)[0]]


def test_every_event_of_a_task_belongs_to_its_story() -> None:
    of_tasks = {event for event in events.EVENTS if "task" in event.__struct_fields__}
    assert of_tasks - {events.NoticeSettled} == OF_TASKS, "notices settle when the task may be archived already"


def test_runs_are_the_times_in_which_gpus_were_held() -> None:
    stories = heard(
        events.TaskPlaced(TASK, 1, HERE),
        events.AttemptStarted(TASK, 1),
        events.AttemptSuspending(TASK, 1, CAUSE, 1),
        events.AttemptSuspended(TASK, 1),
        events.AttemptResuming(TASK, 1, HERE, 1),
        events.AttemptResumed(TASK, 1),
        events.AttemptEnded(TASK, 1, Outcome.LOST),
        events.TaskRequeued(TASK, CAUSE, 0.0),
        events.TaskPlaced(TASK, 2, THERE),
    )
    runs = [(run.attempt, run.gpus, run.started_at, run.ended_at, run.share) for run in stories.runs_of(TASK)]
    assert runs == [
        (1, ["a/0", "a/1"], 1.0, 4.0, 1.0),
        (1, ["a/0", "a/1"], 5.0, 7.0, 1.0),
        (2, ["b/3"], 9.0, None, 1.0),
    ]


def test_a_packed_story_is_read_as_the_story_in_memory_was() -> None:
    stories = heard(
        events.TaskHeld(TASK),
        events.TaskPlaced(TASK, 1, HERE),
        events.AttemptStarted(TASK, 1),
        events.AttemptSuspending(TASK, 1, CAUSE, 1),
        events.AttemptSuspended(TASK, 1),
        events.TaskReleased(TASK),
        events.AttemptEnded(TASK, 1, Outcome.FAILED, exit_code=3, message="Zürich"),
        events.TaskEnded(TASK, TaskStatus.FAILED, CAUSE),
    )
    packed = stories.packed(TASK, 0.5, "ann")
    answer = answered(0.5, "ann", *stories.events_of(TASK))
    assert msgspec.json.decode(answer, type=StoryAnswer).events[1:] == told(stories)
    assert unpacked(packed) == answer
    assert unpacked(stories.packed(TASK, 0.5, "ann")) == answer, "the events were encoded for a reader meanwhile"
    assert unpacked(answer) == answer, "earlier versions have archived the answer"
    assert unpacked(Stories().packed(TASK, 0.5, "ann")) == answered(0.5, "ann", [], 0)


def test_a_release_ends_a_suspension_or_a_hold_and_the_story_says_which() -> None:
    stories = heard(
        events.TaskHeld(TASK),
        events.TaskReleased(TASK),
        events.TaskPlaced(TASK, 1, HERE),
        events.AttemptSuspending(TASK, 1, CAUSE, 1),
        events.AttemptSuspended(TASK, 1),
    )
    stories.events_of(TASK)  # encodes what was heard so far
    stories.hear(Record(6, 6.0, events.TaskReleased(TASK), "ann@10.0.0.1"))
    released = [one.text for one in told(stories) if one.event == "TaskReleased"]
    assert released == ["The task was released.", "The task was resumed; it continues when there are GPUs for it."]


def test_a_recovered_attempt_continues_its_run() -> None:
    stories = heard(
        events.TaskPlaced(TASK, 1, HERE),
        events.AttemptEnded(TASK, 1, Outcome.LOST),
        events.AttemptRecovered(TASK, 1, NodeId("a")),
    )
    assert [run.ended_at for run in stories.runs_of(TASK)] == [None]


def test_an_event_is_told_in_a_sentence_with_its_cause() -> None:
    stories = heard(
        events.TaskPlaced(TASK, 1, Placement((*HERE.slices, *THERE.slices)), Cause(CauseKind.GPUS_FREED, TaskId(3))),
        events.AttemptEnded(TASK, 1, Outcome.FAILED, signal=9, message="Out of memory."),
        events.TaskRequeued(TASK, Cause(CauseKind.OUT_OF_MEMORY), 0.0, 2048),
        events.ReservationMade(TASK, (NodeId("a"),), None),
        events.TaskEnded(TASK, TaskStatus.CANCELLED, Cause(CauseKind.CANCELLED)),
    )
    placed, ended, requeued, reserved, over = told(stories)
    assert placed.text == "GPUs were assigned on nodes a, b for attempt 1."
    assert (placed.cause, placed.node_id, placed.by, placed.seq) == ("task-3 released GPUs.", "a", "ann@10.0.0.1", 1)
    assert ended.text == "Attempt 1 failed by signal 9. Out of memory."
    assert requeued.text == "The task waits again. The next attempt requests 2048 MiB on each GPU."
    assert reserved.text == "Node a is reserved for it."
    assert (over.text, over.cause_code) == ("The task ended: cancelled.", "cancelled")


def test_a_very_long_story_keeps_its_beginning_and_its_end() -> None:
    many = 5 * MOST_EVENTS
    stories = heard(*(events.PriorityChanged(TASK, number % 100) for number in range(many)))
    kept, left_out = stories.events_of(TASK)
    assert len(kept) <= MOST_EVENTS
    assert len(kept) + left_out == many
    numbers = [event.seq for event in told(stories)]
    assert numbers[:FIRST_EVENTS] == list(range(1, FIRST_EVENTS + 1))
    assert numbers[-100:] == list(range(many - 99, many + 1))


def test_a_story_is_the_same_after_a_snapshot() -> None:
    stories = heard(events.TaskPlaced(TASK, 1, HERE), events.AttemptStarted(TASK, 1))
    again = Stories()
    again.load(TASK, msgspec.json.decode(msgspec.json.encode(stories.dump(TASK))))
    assert told(again) == told(stories)
    assert again.runs_of(TASK) == stories.runs_of(TASK)
    assert again.dump(TASK) == stories.dump(TASK)
    stories.forget([TASK])
    assert (stories.events_of(TASK), stories.runs_of(TASK), stories.dump(TASK)) == (([], 0), [], {})
