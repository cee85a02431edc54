"""The executor's reaction to each event, including repeated, late and invalid ones."""

from math import inf

import pytest

from gpuyard.plan.executor.executor import Executor, Rules
from gpuyard.plan.executor.messages import (
    Back,
    Call,
    Done,
    DropResult,
    ExecutorCommand,
    ExecutorEvent,
    Failed,
    Load,
    Lost,
    Reclaimed,
    ReleaseGpu,
    Replan,
    Replanned,
    Stop,
    Tick,
    Unload,
)
from gpuyard.plan.executor.work import Assignment
from gpuyard.testing.rehearsal import rehearse
from tests.unit.plan.executor.small_work import (
    FOLLOWS_ONLY,
    KEEPS_THE_PLAN,
    CallSpec,
    Driver,
    plan,
    starts,
    where,
    work,
)


def kinds(commands: list[ExecutorCommand]) -> list[type]:
    return [type(command) for command in commands]


def test_an_empty_plan_ends_at_once() -> None:
    executor = Executor(work([]), plan())
    assert executor.is_over
    assert executor.begin(0.0) == []
    assert not executor.is_stuck


def test_results_go_to_dependent_calls_and_then_to_the_driver() -> None:
    driver = Driver(
        Executor(work([(0, 5, []), (0, 5, []), (0, 5, [0, 1])]), plan((0, 0), (1, 0), (2, 0)), FOLLOWS_ONLY)
    )
    driver.begins()
    driver.finishes(10.0)
    assert DropResult not in kinds(driver.finishes(15.0, "zero")), "the third call still needs it"
    (last,) = driver.finishes(20.0, "one")
    assert isinstance(last, Call)
    assert last.results == {0: "zero", 1: "one"}
    assert driver.finishes(25.0, "two") == [DropResult(2, "two"), DropResult(0, "zero"), DropResult(1, "one")]
    assert driver.executor.is_over


def test_unused_results_are_returned_as_soon_as_they_are_known_to_be_unused() -> None:
    """Call 2 needs 0 and 1. When 1 is given up, so is 2, and nothing waits for the result of 0 any more."""
    driver = Driver(
        Executor(
            work([(0, 5, []), (0, 5, []), (0, 5, [0, 1])]),
            plan((0, 0), (1, 0), (2, 0)),
            Rules(retries=0, steals=False, replans=False),
        )
    )
    driver.begins()
    driver.finishes(10.0)
    driver.finishes(15.0, "zero")
    failing = driver.under_way.pop()
    assert driver.hears(Failed(failing.operation, "no luck"), 20.0) == [DropResult(0, "zero")]
    assert driver.executor.is_over


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_call_is_retried_as_often_as_the_rules_say(retries: int) -> None:
    executor = Executor(work([(0, 5, [])]), plan((0, 0)), Rules(retries=retries, replans=False))
    attempts: list[int] = []

    def watch(_now: float, command: ExecutorCommand) -> ExecutorEvent | None:
        if isinstance(command, Call):
            attempts.append(command.attempt)
            return Failed(command.operation, "no luck")
        return None

    rehearse(executor, watch=watch)
    assert attempts == list(range(1, retries + 2))
    assert executor.why_not(0) == "no luck"


@pytest.mark.parametrize("allowed", [1, 2])
def test_a_model_is_loaded_as_often_as_the_rules_say_and_then_the_reason_is_reported(allowed: int) -> None:
    executor = Executor(work([(0, 5, [])]), plan((0, 0)), Rules(load_failures=allowed, replans=False))
    loads: list[ExecutorCommand] = []

    def watch(_now: float, command: ExecutorCommand) -> ExecutorEvent | None:
        if isinstance(command, Load):
            loads.append(command)
            return Failed(command.operation, "out of memory")
        return None

    rehearse(executor, watch=watch)
    assert len(loads) == allowed
    assert executor.is_stuck
    assert executor.why_not(0) == "its model could not be loaded: out of memory"


def test_a_gpu_that_comes_back_may_try_to_load_again() -> None:
    driver = Driver(Executor(work([(0, 5, [])]), plan((0, 0)), Rules(load_failures=1, replans=False)))
    driver.begins()
    driver.hears(Failed(driver.under_way.pop().operation, "out of memory"), 3.0)
    assert driver.executor.is_stuck
    driver.hears(Lost(0), 4.0)
    assert kinds(driver.hears(Back(0), 5.0)) == [Load]


def test_a_gpu_that_is_absent_at_the_beginning_is_used_when_it_arrives() -> None:
    executor = Executor(work([(0, 50, []), (0, 50, [])], gpus=2), plan((0, 0), (1, 1)), KEEPS_THE_PLAN)
    executor.absent(1)
    assert executor.execution.unassigned == {1: None}
    rehearse(executor, happens=[(20.0, Back(1))])
    assert where(executor) == {0: 0, 1: 1}
    assert starts(executor)[1] == 30.0
    assert executor.counts.lost == 0, "it was never there to be lost"


def test_without_any_gpu_nothing_begins_and_nothing_is_lost() -> None:
    executor = Executor(work([(0, 5, [])]), plan((0, 0)))
    executor.absent(0)
    assert executor.begin(0.0) == []
    assert executor.is_stuck
    assert not executor.is_over
    assert executor.why_not(0) == "no GPU that can run it is left"


def test_answers_to_unknown_operations_change_nothing_and_are_counted() -> None:
    driver = Driver(Executor(work([(0, 5, [])]), plan((0, 0)), FOLLOWS_ONLY))
    driver.begins()
    for event in (Done(999, 1.0), Failed(999, "?"), Done(0, 0.0), Done(-1, 1.0)):
        assert driver.hears(event, 1.0) == []
    assert driver.executor.counts.ignored == 4
    (load,) = driver.under_way
    driver.finishes(10.0)
    assert driver.hears(Done(load.operation, 10.0), 11.0) == [], "the same answer twice"
    assert driver.executor.counts.ignored == 5


def test_a_repeated_loss_or_return_counts_once() -> None:
    driver = Driver(Executor(work([(0, 5, [])]), plan((0, 0)), KEEPS_THE_PLAN))
    driver.begins()
    driver.hears(Lost(0), 1.0)
    assert driver.hears(Lost(0), 2.0) == []
    assert driver.executor.counts.lost == 1
    assert kinds(driver.hears(Back(0), 3.0)) == [Load]
    assert driver.hears(Back(0), 4.0) == []


def test_time_never_goes_back() -> None:
    driver = Driver(Executor(work([(0, 5, [])]), plan((0, 0)), FOLLOWS_ONLY))
    driver.begins()
    driver.finishes(10.0)
    driver.finishes(3.0)
    (run,) = driver.executor.runs
    assert (run.start_s, run.end_s) == (10.0, 10.0)


def test_an_idle_gpu_that_is_reclaimed_is_returned_at_once() -> None:
    driver = Driver(Executor(work([(0, 5, [])], gpus=2), plan((0, 0)), KEEPS_THE_PLAN))
    driver.begins()
    assert driver.hears(Reclaimed(1, 100.0), 1.0) == [ReleaseGpu(1)]
    assert driver.hears(Reclaimed(1, 100.0), 2.0) == [], "it is gone"
    assert driver.executor.counts.reclaimed == 1


def test_loading_is_not_finished_on_a_gpu_that_is_reclaimed() -> None:
    driver = Driver(Executor(work([(0, 5, [])], gpus=1), plan((0, 0)), KEEPS_THE_PLAN))
    driver.begins()
    assert driver.hears(Reclaimed(0, 1000.0), 1.0) == [ReleaseGpu(0)]


def test_of_two_deadlines_the_earlier_one_holds() -> None:
    driver = Driver(Executor(work([(0, 50, [])]), plan((0, 0)), KEEPS_THE_PLAN))
    driver.begins()
    driver.finishes(10.0)
    assert driver.hears(Reclaimed(0, 100.0), 11.0) == []
    assert driver.hears(Reclaimed(0, 200.0), 12.0) == []
    assert driver.executor.next_wakeup() == 100.0
    assert driver.hears(Tick(), 100.0) == [ReleaseGpu(0)]


def test_a_gpu_that_is_no_longer_reclaimed_continues() -> None:
    driver = Driver(Executor(work([(0, 50, []), (0, 5, [])]), plan((0, 0), (1, 0)), KEEPS_THE_PLAN))
    driver.begins()
    driver.finishes(10.0)
    driver.hears(Reclaimed(0, 100.0), 11.0)
    assert driver.hears(Back(0), 12.0) == []
    assert driver.executor.next_wakeup() == inf
    assert Call in kinds(driver.finishes(60.0)), "the model is still there"
    assert driver.executor.counts.moved == 0


def test_a_deadline_that_has_passed_stops_the_call_at_once() -> None:
    driver = Driver(Executor(work([(0, 5, [])]), plan((0, 0)), KEEPS_THE_PLAN))
    driver.begins()
    driver.finishes(10.0)
    assert driver.hears(Reclaimed(0, 2.0), 11.0) == [ReleaseGpu(0)]
    assert driver.executor.counts.moved == 1


def test_if_one_gpu_of_a_group_is_reclaimed_its_call_ends_and_only_that_gpu_goes() -> None:
    driver = Driver(Executor(work([(0, 5, [])], gpus=2, width=(2,)), plan((0, 0)), KEEPS_THE_PLAN))
    driver.begins()
    driver.finishes(10.0)
    assert driver.hears(Reclaimed(1, 100.0), 11.0) == []
    commands = driver.finishes(15.0)
    assert ReleaseGpu(1) in commands
    assert ReleaseGpu(0) not in commands
    assert Stop(0) in commands, "its worker held the model across both"


def test_a_failing_call_on_a_reclaimed_gpu_returns_it_and_runs_elsewhere() -> None:
    driver = Driver(Executor(work([(0, 5, [])], gpus=2), plan((0, 0)), KEEPS_THE_PLAN))
    driver.begins()
    driver.finishes(10.0)
    driver.hears(Reclaimed(0, 100.0), 11.0)
    commands = driver.hears(Failed(driver.under_way.pop().operation, "no luck"), 12.0)
    assert ReleaseGpu(0) in commands
    (load,) = (command for command in commands if isinstance(command, Load))
    assert list(load.gpus) == [1]


def test_a_call_missing_in_a_plan_is_not_lost() -> None:
    executor = Executor(work([(0, 5, []), (0, 5, [])]), plan((1, 0)), FOLLOWS_ONLY)
    rehearse(executor)
    assert executor.is_over
    assert executor.done == 2


def test_a_call_named_twice_in_a_plan_runs_once() -> None:
    executor = Executor(work([(0, 5, []), (0, 5, [])], gpus=2), plan((0, 0), (0, 1), (0, 0), (1, 0)), FOLLOWS_ONLY)
    rehearse(executor)
    assert executor.is_over
    assert where(executor) == {0: 0, 1: 0}


@pytest.mark.parametrize("first", [-1, 1, 2, 77])
def test_a_plan_with_unknown_gpus_is_followed_as_far_as_possible(first: int) -> None:
    executor = Executor(work([(0, 5, []), (0, 5, [])], gpus=2, width=(2,)), plan((0, first), (1, 0)), FOLLOWS_ONLY)
    rehearse(executor)
    assert executor.is_over
    assert set(where(executor).values()) == {0}


def test_a_new_plan_does_not_affect_calls_that_have_begun_or_ended() -> None:
    calls: list[CallSpec] = [(0, 5, []), (0, 50, []), (0, 5, [])]
    driver = Driver(Executor(work(calls, gpus=2), plan((0, 0), (1, 0), (2, 0)), Rules(steals=False)))
    driver.begins()
    driver.finishes(10.0)
    driver.finishes(15.0)
    late = Assignment([0, 1, 2], [1, 1, 1], [15, 15, 70], [20, 65, 75])
    commands = driver.hears(Replanned(late), 16.0)
    assert [list(it.gpus) for it in commands if isinstance(it, Load)] == [[1]]
    driver.finishes(60.0)
    driver.finishes(66.0)
    driver.finishes(71.0)
    assert where(driver.executor) == {0: 0, 1: 0, 2: 1}


def test_an_answer_that_the_queue_is_as_good_changes_nothing() -> None:
    driver = Driver(Executor(work([(0, 5, []), (1, 5, [])], gpus=3), plan((0, 0), (1, 1)), Rules(steals=False)))
    driver.begins()
    assert Replan in kinds(driver.hears(Lost(2), 1.0))
    assert driver.hears(Replanned(None), 2.0) == []
    assert driver.executor.counts.replanned == 0


def test_only_one_plan_is_requested_at_a_time_and_the_next_when_it_has_arrived() -> None:
    driver = Driver(Executor(work([(0, 5, []), (1, 5, [])], gpus=4), plan((0, 0), (1, 1)), Rules(steals=False)))
    driver.begins()
    assert Replan in kinds(driver.hears(Lost(2), 1.0))
    assert Replan not in kinds(driver.hears(Lost(3), 2.0))
    assert Replan in kinds(driver.hears(Replanned(None), 3.0)), "it did not know of the second loss"


def test_without_replanning_no_plan_is_requested() -> None:
    executor = Executor(work([(0, 10, [])] * 6, gpus=2), plan(*((call, 0) for call in range(6))), KEEPS_THE_PLAN)
    asked: list[ExecutorCommand] = []

    def watch(_now: float, command: ExecutorCommand) -> None:
        asked.extend([command] if isinstance(command, Replan) else [])

    rehearse(executor, seconds=lambda call: call.seconds * 9, watch=watch, happens=[(3.0, Lost(1)), (40.0, Back(1))])
    assert executor.is_over
    assert asked == []


@pytest.mark.parametrize(("factor", "asks"), [(1.0, False), (1.02, False), (0.98, False), (1.2, True), (0.5, True)])
def test_a_new_plan_is_requested_only_when_calls_drift_beyond_the_limit(factor: float, asks: bool) -> None:
    executor = Executor(work([(0, 10, [])] * 10), plan(*((call, 0) for call in range(10))), Rules())
    asked: list[object] = []
    rehearse(executor, seconds=lambda call: call.seconds * factor, plan=asked.append)
    assert bool(asked) is asks


def test_the_remaining_work_excludes_calls_no_gpu_could_run_and_their_dependents() -> None:
    calls: list[CallSpec] = [(0, 5, []), (1, 5, []), (0, 5, [1]), (0, 5, [2])]
    wide = work(calls, gpus=2, width=(1, 2))
    driver = Driver(Executor(wide, plan((0, 0), (1, 0), (2, 0), (3, 0)), Rules(steals=False)))
    driver.begins()
    (again,) = (it for it in driver.hears(Lost(1), 1.0) if isinstance(it, Replan))
    assert again.remaining.call == [0]
    assert again.remaining.order == [0]


def test_the_remaining_work_states_when_running_calls_will_end() -> None:
    calls: list[CallSpec] = [(0, 40, []), (0, 5, [0])]
    driver = Driver(Executor(work(calls, gpus=3, earliest=[0.0, 20.0]), plan((0, 0), (1, 0)), Rules(steals=False)))
    driver.begins()
    driver.finishes(10.0)
    (again,) = (it for it in driver.hears(Lost(2), 12.0) if isinstance(it, Replan))
    left = again.remaining
    assert (left.now_s, left.call, left.earliest_s) == (12.0, [1], [50.0])
    assert left.busy_until_s == [50.0, 12.0, 12.0]
    assert left.holds == [0, -1, -1]


def test_the_least_recently_used_models_are_unloaded() -> None:
    calls: list[CallSpec] = [(0, 5, []), (1, 5, []), (0, 5, []), (2, 5, [])]
    roomy = work(calls, gpu_memory_gb=[2.0], multi_model=True)
    executor = Executor(roomy, plan(*((call, 0) for call in range(4))), FOLLOWS_ONLY)
    dropped: list[int] = []
    rehearse(executor, watch=lambda _, it: dropped.append(it.model) if isinstance(it, Unload) else None)
    assert dropped == [1]


def test_a_run_with_calls_of_no_duration_ends() -> None:
    executor = Executor(work([(0, 0.0, [])] * 50, gpus=2), plan(*((call, call % 2) for call in range(50))), Rules())
    assert rehearse(executor) == 10.0
    assert executor.done == 50


def test_a_lost_gpu_of_a_group_loses_the_call_once() -> None:
    driver = Driver(Executor(work([(0, 5, [])], gpus=3, width=(3,)), plan((0, 0)), Rules(losses=0, replans=False)))
    driver.begins()
    driver.finishes(10.0)
    assert driver.hears(Lost(2), 11.0) == [Stop(0)]
    assert driver.executor.counts.moved == 1
    assert driver.executor.given_up == {0: "its worker was lost 1 times while it ran"}


def test_a_stopped_worker_is_not_used_before_it_is_back() -> None:
    driver = Driver(Executor(work([(0, 5, []), (1, 5, [])]), plan((0, 0), (1, 0)), KEEPS_THE_PLAN))
    driver.begins()
    driver.finishes(10.0)
    driver.finishes(15.0)
    assert driver.hears(Failed(driver.under_way.pop().operation, "stuck"), 16.0) == [Stop(0)]
    assert driver.hears(Tick(), 17.0) == []
    assert kinds(driver.hears(Back(0), 18.0)) == [Load]
