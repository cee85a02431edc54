"""Tasks that come without a run time get one from what has ended in the yard, and it stays in the journal."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.remaining_time import LAST_LEVEL
from gpuyard.core.domain.task import Estimate, TaskSpec
from gpuyard.core.domain.values import Preemption, TaskId, TaskStatus
from gpuyard.core.journal.records import Record
from gpuyard.live.control_plane.prediction.runtime_estimator import MOST_REMEMBERED, RuntimeEstimator
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.control_plane.views import TaskView, Views
from gpuyard.live.wire.limits import instant_of
from gpuyard.testing import ClusterStory, task
from gpuyard.testing.fake_node import FakeNode
from tests.unit.live.control_plane.clusters import TOKEN, ended, open_scheduler, run, spec, submit

SAID = Estimate(60.0, 60.0, 60.0)


def over(spec: TaskSpec, seconds: float, why: CauseKind = CauseKind.SUCCEEDED) -> TaskView:
    status = TaskStatus.SUCCESS if why is CauseKind.SUCCEEDED else TaskStatus.CANCELLED
    return TaskView(TaskId(1), spec, 0.0, status=status, cause=Cause(why), finished_at=1.0, run_seconds=seconds)


def estimate(runtime_estimator: RuntimeEstimator, spec: TaskSpec) -> Estimate | None:
    return runtime_estimator.estimated(spec, 0.0).estimate


def test_a_task_that_ran_three_times_is_predicted_and_otherwise_unchanged() -> None:
    runtime_estimator, train = RuntimeEstimator(), spec(user="ann", command="python train.py")
    assert estimate(runtime_estimator, train) is None
    for _ in range(3):
        runtime_estimator.ended(over(train, 100.0), 1.0)
    estimated = runtime_estimator.estimated(train, 2.0)
    assert estimated.estimate is not None
    assert estimated.estimate.seconds == pytest.approx(100.0)
    assert estimated.estimate.runs == 3
    assert replace(estimated, estimate=None, remaining_time_levels=(), run_level=None) == train


def test_a_task_gets_the_remaining_time_of_similar_ones_and_a_lease_none() -> None:
    runtime_estimator = RuntimeEstimator()
    for _ in range(50):
        runtime_estimator.ended(over(spec(user="ann", command="slow"), 500_000.0), 1.0)
        runtime_estimator.ended(over(spec(user="ann", command="slow too"), 500_000.0), 1.0)
        runtime_estimator.ended(over(spec(user="ann", command=None), 5.0, CauseKind.CANCELLED), 1.0)
    assert (
        runtime_estimator.estimated(spec(user="bob"), 2.0).remaining_time_levels
        != runtime_estimator.estimated(spec(user="ann"), 2.0).remaining_time_levels
    )
    assert runtime_estimator.estimated(spec(user="ann", command="slow"), 2.0).remaining_time_levels[0] == LAST_LEVEL
    assert runtime_estimator.estimated(spec(user="ann", command=None), 2.0).remaining_time_levels == ()


def test_commands_distinguish_tasks_without_a_name() -> None:
    runtime_estimator = RuntimeEstimator()
    for _ in range(10):
        runtime_estimator.ended(over(spec(user="ann", command="quick"), 10.0), 1.0)
        runtime_estimator.ended(over(spec(user="ann", command=("slow", "-n", "9")), 5_000.0), 1.0)
    quick, slow = (
        estimate(runtime_estimator, spec(user="ann", command=words)) for words in ("quick", ("slow", "-n", "9"))
    )
    assert quick is not None
    assert slow is not None
    assert (quick.seconds, slow.seconds) == pytest.approx((10.0, 5_000.0), rel=0.2)


def test_leases_do_not_count_as_history() -> None:
    runtime_estimator = RuntimeEstimator()
    for _ in range(10):
        runtime_estimator.ended(over(spec(user="ann", command=None), 36_000.0, CauseKind.CANCELLED), 1.0)
        runtime_estimator.ended(over(spec(user="ann", command="quick"), 10.0), 1.0)
    lease, other = (estimate(runtime_estimator, spec(user="ann", command=words)) for words in (None, "other"))
    assert lease is not None
    assert other is not None
    assert lease.seconds > 10_000.0
    assert other.seconds < 100.0


@pytest.mark.parametrize("why", [CauseKind.TIMEOUT, CauseKind.DEADLINE, CauseKind.NOT_LAUNCHED, CauseKind.DEPENDENCY])
def test_tasks_ended_by_the_scheduler_do_not_count_as_history(why: CauseKind) -> None:
    runtime_estimator, train = RuntimeEstimator(), spec()
    for _ in range(9):
        runtime_estimator.ended(over(train, 100.0, why), 1.0)
        runtime_estimator.ended(over(train, 0.0, CauseKind.CANCELLED), 1.0)
    assert estimate(runtime_estimator, train) is None


def test_the_estimate_of_the_user_counts_and_its_range_shows_past_accuracy() -> None:
    runtime_estimator, train = RuntimeEstimator(), spec(user="ann", estimate=SAID)
    assert estimate(runtime_estimator, train) is SAID
    for seconds in (30.0, 60.0, 600.0):
        runtime_estimator.ended(over(train, seconds), 1.0)
    found = estimate(runtime_estimator, train)
    assert found is not None
    assert (found.seconds, found.runs) == (60.0, 0)
    assert (found.low_seconds, found.high_seconds) == pytest.approx((30.0, 600.0))
    assert runtime_estimator.estimated(spec(user="bob", estimate=SAID), 0.0).estimate is SAID


async def lived(scheduler: Scheduler, address: str, *specs: TaskSpec) -> list[TaskId]:
    playing = asyncio.create_task(FakeNode("n1", 2, join_token=TOKEN, runs_for=0.05).play(address))
    tasks = await submit(scheduler, *specs)
    for each in tasks:
        await ended(scheduler, each)
    playing.cancel()
    return tasks


def test_a_scheduler_predicts_from_history_even_after_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, runtime_estimator=RuntimeEstimator()) as (scheduler, address):
            await lived(scheduler, address, *[spec(name="train", user="ann")] * 4)
            (again,) = await submit(scheduler, spec(name="train", user="ann"))
            before = scheduler.views.tasks[again].spec.estimate
            assert before is not None
            assert before.runs == 4
            assert 0.0 < before.seconds < 5.0
        runtime_estimator = RuntimeEstimator()
        async with open_scheduler(tmp_path, runtime_estimator=runtime_estimator) as (scheduler, _):
            assert scheduler.views.tasks[again].spec.estimate == before  # the event stays as it was
            runtime_estimator.remember(scheduler.stores.archive.newest(MOST_REMEMBERED))
            (later,) = await submit(scheduler, spec(name="train", user="ann"))
            assert scheduler.views.tasks[later].spec.estimate == before

    run(story)


def test_with_prediction_off_tasks_are_unchanged(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            await lived(scheduler, address, *[spec()] * 4)
            (again,) = await submit(scheduler, spec())
            assert scheduler.views.tasks[again].spec.estimate is None

    run(story)


# --- how long a task ran ----------------------------------------------------------------------------------------------


class Told:
    """What the views say of a story."""

    def __init__(self, cluster: ClusterStory) -> None:
        self.views = Views()
        self._seq = 0
        cluster.world.listeners.append(self._hear)

    def _hear(self, at: float, new_events: Sequence[events.Event]) -> None:
        for event in new_events:
            self._seq += 1
            self.views.apply(Record(self._seq, at, event))

    def ran(self) -> list[float]:
        return [view.run_seconds for view in self.views.tasks.values()]


def story_of(gpus: int) -> tuple[ClusterStory, Told]:
    cluster = ClusterStory(preemption_min_run_seconds=0.0)
    told = Told(cluster)
    cluster.is_split(online=0.0)
    cluster.has_nodes(1, gpus_each=gpus)
    return cluster, told


def test_suspended_time_is_not_run_time() -> None:
    cluster, told = story_of(2)
    (number,) = cluster.submits(task("a", gpus=2, preemption=Preemption.SUSPEND))  # type: ignore[misc]
    cluster.passes(10)
    cluster.tells(command.SuspendTask(number))
    cluster.passes(100)
    cluster.tells(command.ResumeTask(number))
    cluster.passes(5)
    cluster.finishes("a")
    assert told.ran() == [15.0]


@pytest.mark.parametrize(("preemption", "seconds"), [(Preemption.CHECKPOINT, 17.0), (Preemption.REQUEUE, 7.0)])
def test_a_checkpointed_task_continues_and_another_starts_over(preemption: Preemption, seconds: float) -> None:
    cluster, told = story_of(2)
    cluster.submits(task("humble", gpus=2, priority=1, preemption=preemption))
    cluster.passes(10)
    cluster.submits(task("urgent", gpus=2, priority=99))
    cluster.passes(20)
    cluster.finishes("urgent")
    cluster.passes(7)
    cluster.finishes("humble")
    assert told.ran() == [seconds, 20.0]


def test_the_answer_about_a_task_says_how_long_it_ran_while_it_waits_again_or_is_suspended() -> None:
    cluster, told = story_of(2)
    cluster.submits(task("humble", gpus=2, priority=1, preemption=Preemption.REQUEUE))
    (humble,) = told.views.tasks.values()
    cluster.passes(10)
    assert humble.answer().run_seconds is None
    cluster.submits(task("urgent", gpus=2, priority=99, preemption=Preemption.SUSPEND))
    cluster.passes(20)
    assert (humble.status, humble.answer().run_seconds) == (TaskStatus.PENDING, 10.0)
    urgent = list(told.views.tasks.values())[1]
    cluster.tells(command.SuspendTask(urgent.id))
    cluster.passes(5)
    assert (urgent.status, urgent.answer().run_seconds) == (TaskStatus.SUSPENDED, 20.0)


def test_the_time_in_which_a_task_was_suspended_is_not_run_time_when_it_runs_again() -> None:
    cluster, told = story_of(2)
    cluster.submits(task("a", gpus=2, preemption=Preemption.SUSPEND))
    (view,) = told.views.tasks.values()
    cluster.passes(20)
    cluster.tells(command.SuspendTask(view.id))
    cluster.passes(30)
    cluster.tells(command.ResumeTask(view.id))
    cluster.passes(5)
    answer = view.answer()
    assert (view.status, answer.run_seconds) == (TaskStatus.RUNNING, None)
    assert (answer.running_since, answer.ran_before_seconds) == (instant_of(50.0), 20.0)


def test_a_resumed_task_that_waits_for_gpus_is_no_longer_called_suspended_on_request() -> None:
    cluster, told = story_of(2)
    cluster.submits(task("a", gpus=2, preemption=Preemption.SUSPEND))
    (view,) = told.views.tasks.values()
    cluster.tells(command.SuspendTask(view.id))
    assert view.reason()[0] == "It was suspended on request."
    cluster.submits(task("b", gpus=2))
    cluster.tells(command.ResumeTask(view.id))
    assert view.status is TaskStatus.SUSPENDED
    assert view.reason() == ("It was resumed on request and waits for GPUs.", "resumed_by_user")


def test_unreadable_rows_of_an_archive_are_skipped() -> None:
    runtime_estimator = RuntimeEstimator()
    runtime_estimator.remember([(1.0, b'{"task_id": "task-1"}'), (2.0, b"cut o"), (3.0, b"[]")])
    assert estimate(runtime_estimator, spec(user="ann")) is None


def test_a_restart_does_not_change_how_many_tasks_are_known_to_keep_their_progress() -> None:
    before, after, rows = RuntimeEstimator(), RuntimeEstimator(), []
    for number in range(200):
        asked = spec(user="ann", command="train", preemption=Preemption.CHECKPOINT)
        done = over(before.estimated(asked, 0.0), 60.0 if number % 2 else 90_000.0)
        before.ended(done, 1.0)
        rows.append((1.0, msgspec.json.encode(done.answer())))
    after.remember(rows)
    new = spec(user="ann", command="train", preemption=Preemption.NEVER)
    assert after.estimated(new, 2.0).run_level == before.estimated(new, 2.0).run_level
