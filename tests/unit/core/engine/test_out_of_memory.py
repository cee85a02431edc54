"""A task that ran out of GPU memory requests more, and is not retried if no GPU has more."""

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.task import NewTask
from gpuyard.core.domain.tenant import QuotaMode, Split
from gpuyard.core.domain.values import NodeId, Outcome, TaskId, TaskStatus
from gpuyard.core.engine.engine import Engine
from gpuyard.testing import ClusterStory, cpu_task, gang, node, share, task


def cluster() -> ClusterStory:
    story = ClusterStory(retry_delay_seconds=1.0)
    story.has_node(node("small", gpus=2, model="A30", gpu_memory_mib=24_000))
    story.has_node(node("middle", gpus=2, model="A100", gpu_memory_mib=40_000))
    return story


def runs_out(story: ClusterStory, name: str, on: str | None = None, peak: int | None = None) -> None:
    number = story.numbers[name]
    attempt = story.state.tasks[number].attempts
    actual = None if peak is None else Actual(peak)
    where = None if on is None else NodeId(on)
    story.tells(command.ReportEnded(number, attempt, Outcome.OUT_OF_MEMORY, 1, where, actual=actual))


def asks_mib(story: ClusterStory, name: str) -> int:
    return story.state.tasks[story.numbers[name]].spec.resources.gpu_memory_asked_mib


def last_of(story: ClusterStory, name: str) -> events.Event:
    return story.events_of(name)[-1]


def test_the_next_attempt_of_a_whole_gpu_goes_to_a_larger_one() -> None:
    story = cluster()
    story.submits(task("train", models=("A30", "A100"), retries=3, speeds=(("A100", 1.0), ("A30", 2.0))))
    assert story.nodes_of("train") == ("small",)
    runs_out(story, "train", peak=23_000)
    assert asks_mib(story, "train") == 36_000
    story.passes(10)
    assert story.nodes_of("train") == ("middle",)


def test_a_retry_requests_the_largest_gpu_if_none_has_half_as_much_again() -> None:
    story = cluster()
    story.has_node(node("large", gpus=1, model="A100X", gpu_memory_mib=48_000))
    story.submits(task("train", models=("A100", "A100X"), retries=3, speeds=(("A100", 2.0), ("A100X", 1.0))))
    runs_out(story, "train")
    assert asks_mib(story, "train") == 48_000


def test_a_task_that_had_the_largest_gpu_is_not_retried_and_says_why() -> None:
    story = cluster()
    story.submits(task("train", models=("A100",), retries=3))
    runs_out(story, "train")
    assert story.status("train") is TaskStatus.FAILED
    assert last_of(story, "train") == events.TaskEnded(
        story.numbers["train"], TaskStatus.FAILED, Cause(CauseKind.OUT_OF_MEMORY_ON_LARGEST)
    )


def test_a_task_without_retries_ends_with_that_reason() -> None:
    story = cluster()
    story.submits(task("train", models=("A30",)))
    runs_out(story, "train")
    assert last_of(story, "train") == events.TaskEnded(
        story.numbers["train"], TaskStatus.FAILED, Cause(CauseKind.OUT_OF_MEMORY)
    )


def test_running_out_of_memory_counts_as_a_failure() -> None:
    story = cluster()
    story.submits(task("train", models=("A30", "A100"), retries=1, speeds=(("A100", 1.0), ("A30", 2.0))))
    runs_out(story, "train")
    story.passes(10)
    story.fails("train")
    assert story.status("train") is TaskStatus.FAILED


def test_a_share_grows_by_half_until_it_is_a_whole_gpu() -> None:
    story = cluster()
    story.submits(share("infer", fraction=0.5, models=("A100",), retries=9))
    for wanted in (30_000, 40_000):
        runs_out(story, "infer")
        assert asks_mib(story, "infer") == wanted
        story.passes(1000)
    assert story.gpus_in_use() == 1
    runs_out(story, "infer")
    assert story.status("infer") is TaskStatus.FAILED


def test_a_gang_requests_what_enough_nodes_have() -> None:
    story = cluster()
    story.has_node(node("middle-2", gpus=2, model="A100", gpu_memory_mib=40_000))
    story.has_node(node("small-2", gpus=2, model="A30", gpu_memory_mib=24_000))
    story.has_node(node("lonely", gpus=2, model="H200", gpu_memory_mib=141_000))
    story.submits(gang("train", members=2, gpus_each=2, models=("A30", "A100", "H200"), retries=2, speeds=(("A30", 9.0), ("H200", 1.0))))  # fmt: skip
    assert sorted(story.nodes_of("train")) == ["small", "small-2"]
    runs_out(story, "train", on="small", peak=20_000)
    ended = next(event for event in story.events_of("train") if isinstance(event, events.AttemptEnded))
    assert ended.outcome is Outcome.OUT_OF_MEMORY
    assert ended.actual == Actual(20_000)
    assert asks_mib(story, "train") == 36_000
    story.passes(10)
    assert len(story.nodes_of("train")) == 2


def test_a_gang_whose_first_part_only_noticed_reports_the_real_reason() -> None:
    engine = Engine()
    engine.handle(command.SetSplit(Split(0.5, 0.5, QuotaMode.BORROW)), 0.0)
    for name in ("one", "two"):
        engine.handle(command.JoinNode(node(name, gpus=1)), 0.0)
    engine.handle(command.SubmitTasks((NewTask(TaskId(1), gang("train", members=2, gpus_each=1).spec),)), 0.0)
    engine.decide(0.0)
    engine.handle(command.ReportStarted(TaskId(1), 1), 1.0)
    one, two = NodeId("one"), NodeId("two")
    engine.handle(command.ReportEnded(TaskId(1), 1, Outcome.FAILED, 1, one, actual=Actual(100, 50.0)), 2.0)
    new_events = engine.handle(
        command.ReportEnded(TaskId(1), 1, Outcome.OUT_OF_MEMORY, 1, two, actual=Actual(900, 100.0)), 3.0
    )
    assert isinstance(new_events, list)
    assert events.AttemptEnded(TaskId(1), 1, Outcome.OUT_OF_MEMORY, 1, actual=Actual(900, 75.0)) in new_events
    assert new_events[-1] == events.TaskEnded(TaskId(1), TaskStatus.FAILED, Cause(CauseKind.OUT_OF_MEMORY))


def test_a_task_without_gpus_is_retried_unchanged() -> None:
    story = cluster()
    story.submits(cpu_task("prepare", cpus=1, retries=1))
    runs_out(story, "prepare")
    story.passes(10)
    assert story.is_running("prepare")
    runs_out(story, "prepare")
    assert last_of(story, "prepare") == events.TaskEnded(
        story.numbers["prepare"], TaskStatus.FAILED, Cause(CauseKind.EXIT_CODE)
    )
