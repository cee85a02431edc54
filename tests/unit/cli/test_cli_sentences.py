"""Facts in words."""

import pytest

from gpuyard.cli import sentences
from gpuyard.cli.sentences import Teller, asked, clock
from gpuyard.core.domain import events as fact
from gpuyard.core.domain.causes import Cause, Why
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.task import Resources, Share, TaskSpec
from gpuyard.core.domain.values import NodeId, Outcome, TaskId, TaskStatus, TenantId

NODE = NodeId("node-1")
SUBMITTED = fact.TaskSubmitted(TaskId(7), TaskSpec(TenantId("vision"), Resources(gpus=2), name="resnet"))


def test_every_fact_has_a_sentence() -> None:
    assert set(sentences._SENTENCES) == set(fact.EVENTS)


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (SUBMITTED, "Task 7 (resnet) of vision was submitted: batch, 2 GPUs."),
        (
            fact.TaskPlaced(TaskId(7), 1, Placement((Slice(NODE, (0, 1, 2)),))),
            "Task 7 (resnet) was placed on node-1, GPUs 0–2.",
        ),
        (
            fact.TaskPlaced(TaskId(7), 1, Placement((Slice(NODE, (3,), 250),))),
            "Task 7 (resnet) was placed on node-1, 0.25 of GPU 3.",
        ),
        (
            fact.TaskRequeued(TaskId(7), Cause(Why.EXIT_CODE), 62.0),
            "Task 7 (resnet) waits again, not before 00:01:02. It ended with a non-zero exit code.",
        ),
        (fact.AttemptEnded(TaskId(7), 2, Outcome.FAILED, 3), "Attempt 2 of task 7 (resnet) failed with exit code 3."),
        (
            fact.TaskEnded(TaskId(7), TaskStatus.CANCELLED, Cause(Why.DEPENDENCY, task=TaskId(6))),
            "Task 7 (resnet) is over: cancelled. Task 6, whose success it needs, did not succeed.",
        ),
        (
            fact.ReservationMade(TaskId(7), (NODE, NodeId("node-2")), 3600.0),
            "node-1 and node-2 are reserved for task 7 (resnet) from 01:00:00 on.",
        ),
        (
            fact.ReservationMade(TaskId(7), (NODE,), None, claim=True),
            "Task 7 (resnet) gets node-1 as soon as the tasks in its way are stopped.",
        ),
        (fact.NodeCordoned(NODE, draining=True), "Node node-1 is being emptied."),
    ],
)
def test_a_fact_is_told_in_a_sentence(event: fact.Event, sentence: str) -> None:
    teller = Teller()
    teller.sentence(SUBMITTED)

    assert teller.sentence(event) == sentence


def test_a_task_nobody_heard_of_goes_by_its_number() -> None:
    assert Teller().sentence(fact.AttemptStarted(TaskId(9), 1)) == "Task 9 runs."


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (Resources(gpus=1), "1 GPU"),
        (Resources(gpus=4, models=("A100", "L40S")), "4 A100/L40S GPUs"),
        (Resources(gpus=8, nodes=2), "2 nodes × 8 GPUs"),
        (Resources(gpus=1, whole_nodes=True), "a whole node"),
        (Resources(share=Share(500)), "0.5 of a GPU"),
        (Resources(share=Share(500), models=("A100",)), "0.5 of one A100 GPU"),
        (Resources(share=Share(memory_mib=4096)), "4096 MiB of a GPU"),
        (Resources(cpus=4), "4 CPUs"),
    ],
)
def test_what_a_task_asks_for_is_told_in_a_few_words(ask: Resources, words: str) -> None:
    assert asked(ask) == words


def test_an_instant_is_told_as_a_clock() -> None:
    assert clock(3723.9) == "01:02:03"
