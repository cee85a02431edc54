"""The executor with and without deviations from the plan. Every GPU loads in 10 s and unloads in 1 s."""

from math import inf

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
from tests.unit.plan.executor.small_work import FOLLOWS_ONLY, plan, starts, work


def only(commands: list[ExecutorCommand], kind: type) -> list[ExecutorCommand]:
    return [command for command in commands if isinstance(command, kind)]


def test_a_gpu_loads_calls_and_switches_in_the_order_of_the_plan() -> None:
    executor = Executor(work([(0, 5, []), (1, 7, []), (1, 2, [])]), plan((0, 0), (2, 0), (1, 0)), FOLLOWS_ONLY)
    assert rehearse(executor) == 10 + 5 + 1 + 10 + 2 + 7
    assert starts(executor) == {0: 10, 2: 26, 1: 28}
    assert executor.counts.switches == 1
    assert executor.counts.switch_time_s == 21


def test_the_next_model_is_loaded_while_its_call_waits_for_input() -> None:
    executor = Executor(work([(0, 50, []), (1, 4, [0])], gpus=2), plan((0, 0), (1, 1)), FOLLOWS_ONLY)
    assert rehearse(executor) == 10 + 50 + 4


def test_a_group_starts_together_after_its_gpus_freed_their_memory() -> None:
    calls: list[tuple[int, float, list[int]]] = [(0, 5, []), (2, 3, [])]
    executor = Executor(work(calls, gpus=2, width=(1, 1, 2)), plan((0, 1), (1, 0)), FOLLOWS_ONLY)
    assert rehearse(executor) == 10 + 5 + 1 + 10 + 3


def test_a_later_request_begins_when_it_has_arrived() -> None:
    executor = Executor(work([(0, 5, [])], earliest=[60.0]), plan((0, 0)), FOLLOWS_ONLY)
    assert rehearse(executor) == 65


def test_a_call_of_the_same_model_fills_the_time_until_the_first_one_can_begin() -> None:
    calls: list[tuple[int, float, list[int]]] = [(0, 100, []), (1, 5, [0]), (1, 20, [])]
    executor = Executor(work(calls, gpus=2), plan((0, 0), (1, 1), (2, 1)), FOLLOWS_ONLY)
    assert rehearse(executor) == 115
    assert starts(executor)[2] == 10


def test_an_idle_gpu_steals_from_the_one_furthest_behind_if_that_pays() -> None:
    calls: list[tuple[int, float, list[int]]] = [(0, 30, []), (0, 30, []), (0, 30, [])]
    executor = Executor(work(calls, gpus=2), plan((0, 0), (1, 0), (2, 0)), Rules(replans=False))
    assert rehearse(executor) == 10 + 30 + 30
    assert executor.counts.stolen == 1


def test_no_call_is_stolen_that_would_end_later() -> None:
    calls: list[tuple[int, float, list[int]]] = [(0, 3, []), (0, 3, [0]), (0, 3, [0])]
    executor = Executor(work(calls, gpus=2), plan((0, 0), (1, 0), (2, 0)), Rules(replans=False))
    assert rehearse(executor) == 19
    assert executor.counts.stolen == 0


def test_a_failed_call_is_retried_and_then_given_up_with_its_dependents() -> None:
    executor = Executor(
        work([(0, 5, []), (0, 5, [0]), (0, 5, [])]), plan((0, 0), (1, 0), (2, 0)), Rules(retries=1, replans=False)
    )
    attempts: list[int] = []

    def fails(_now: float, command: ExecutorCommand) -> ExecutorEvent | None:
        if isinstance(command, Call) and command.call == 0:
            attempts.append(command.attempt)
            return Failed(command.operation, "no luck")
        return None

    rehearse(executor, watch=fails)
    assert attempts == [1, 2]
    assert executor.is_over
    assert executor.given_up == {0: "no luck", 1: "it depends on a call that failed: no luck"}
    assert executor.done == 1
    assert executor.counts.retries == 1


def test_calls_of_a_lost_worker_restart_elsewhere_and_its_late_answer_is_ignored() -> None:
    executor = Executor(work([(0, 5, [])], gpus=2), plan((0, 0)), Rules(replans=False))
    (load,) = executor.begin(0.0)
    assert isinstance(load, Load)
    (call,) = executor.handle(Done(load.operation, 10.0), 10.0)
    assert isinstance(call, Call)
    (again,) = executor.handle(Lost(0), 12.0)
    assert isinstance(again, Load)
    assert list(again.gpus) == [1]
    assert executor.handle(Done(call.operation, 5.0, "late"), 15.0) == []
    assert executor.counts.ignored == 1
    (second,) = executor.handle(Done(again.operation, 10.0), 22.0)
    assert isinstance(second, Call)
    assert second.attempt == 2
    assert executor.handle(Done(second.operation, 5.0, "in time"), 27.0) == [DropResult(0, "in time")]
    assert executor.done == 1


def test_a_call_that_ends_before_the_deadline_is_finished_before_its_gpu_is_returned() -> None:
    executor = Executor(work([(0, 5, []), (0, 5, [])], gpus=1), plan((0, 0), (1, 0)), Rules(replans=False))
    (load,) = executor.begin(0.0)
    assert isinstance(load, Load)
    (call,) = executor.handle(Done(load.operation, 10.0), 10.0)
    assert isinstance(call, Call)
    assert executor.handle(Reclaimed(0, 20.0), 11.0) == []
    assert executor.next_wakeup() == 20.0
    assert ReleaseGpu(0) in executor.handle(Done(call.operation, 5.0), 15.0)
    assert executor.done == 1
    assert executor.is_stuck
    assert len(only(executor.handle(Back(0), 50.0), Load)) == 1


def test_a_call_that_would_end_after_the_deadline_is_stopped_at_once_and_runs_elsewhere() -> None:
    executor = Executor(work([(0, 50, [])], gpus=2), plan((0, 0)), Rules(replans=False))
    (load,) = executor.begin(0.0)
    assert isinstance(load, Load)
    executor.handle(Done(load.operation, 10.0), 10.0)
    commands = executor.handle(Reclaimed(0, 20.0), 11.0)
    assert ReleaseGpu(0) in commands
    (again,) = only(commands, Load)
    assert isinstance(again, Load)
    assert list(again.gpus) == [1]
    assert executor.counts.moved == 1


def test_a_call_that_overruns_the_deadline_is_stopped_then() -> None:
    executor = Executor(work([(0, 5, [])], gpus=1), plan((0, 0)), Rules(replans=False))
    (load,) = executor.begin(0.0)
    assert isinstance(load, Load)
    executor.handle(Done(load.operation, 10.0), 10.0)
    assert executor.handle(Reclaimed(0, 20.0), 11.0) == []
    assert executor.handle(Tick(), 20.0) == [ReleaseGpu(0)]


def test_a_group_fails_with_each_of_its_gpus_and_the_worker_that_held_it_restarts() -> None:
    executor = Executor(work([(2, 5, [])], gpus=3, width=(1, 1, 2)), plan((0, 0)), Rules(replans=False))
    (load,) = executor.begin(0.0)
    assert isinstance(load, Load)
    executor.handle(Done(load.operation, 10.0), 10.0)
    assert executor.handle(Lost(1), 11.0) == [Stop(0)]
    executor.handle(Back(0), 12.0)
    (again,) = only(executor.handle(Back(1), 13.0), Load)
    assert isinstance(again, Load)
    assert len(again.gpus) == 2


def test_no_group_spans_two_machines() -> None:
    executor = Executor(work([(2, 5, [])], gpus=3, width=(1, 1, 2), host=[0, 1, 1]), plan((0, 0)), Rules(replans=False))
    (load,) = executor.begin(0.0)
    assert isinstance(load, Load)
    assert list(load.gpus) == [1, 2]


def test_the_remaining_work_is_replanned_when_a_gpu_is_lost() -> None:
    executor = Executor(work([(0, 5, []), (1, 5, [])], gpus=3), plan((0, 0), (1, 1)), Rules(steals=False))
    executor.begin(0.0)
    (again,) = only(executor.handle(Lost(1), 4.0), Replan)
    assert isinstance(again, Replan)
    left = again.remaining
    assert left.call == [0, 1]
    assert left.usable == [True, False, True]
    assert left.gpu == [0, -1]
    assert left.busy_until_s == [10.0, 4.0, 4.0]
    assert left.holds == [0, -1, -1], "what is being loaded will be there when the GPU is free"
    (load,) = executor.handle(Replanned(Assignment([0, 1], [0, 2], [10, 10], [15, 15])), 4.0)
    assert isinstance(load, Load)
    assert list(load.gpus) == [2]
    assert executor.counts.replanned == 1


def test_the_remaining_work_is_replanned_with_better_estimates_when_calls_drift() -> None:
    calls: list[tuple[int, float, list[int]]] = [(0, 10, []) for _ in range(10)]
    executor = Executor(work(calls), plan(*((call, 0) for call in range(10)), every_s=10), Rules())
    asked: list[list[float]] = []

    def again(left: object) -> None:
        asked.append(list(left.seconds))  # type: ignore[attr-defined]

    rehearse(executor, seconds=lambda call: call.seconds * 2, plan=again)
    assert asked
    assert all(10 < seconds < 20 for seconds in asked[0])
    assert asked[-1][-1] > asked[0][-1]


def test_a_plan_that_is_met_is_not_remade() -> None:
    calls: list[tuple[int, float, list[int]]] = [(0, 10, []) for _ in range(10)]
    executor = Executor(work(calls), plan(*((call, 0) for call in range(10)), every_s=10), Rules())
    rehearse(executor, plan=lambda _left: 1 / 0)  # type: ignore[arg-type, return-value]
    assert executor.counts.replanned == 0


def test_a_group_that_cannot_load_a_model_is_not_used_for_it_again() -> None:
    executor = Executor(work([(0, 5, [])], gpus=2), plan((0, 0)), Rules(replans=False))
    tried: list[int] = []

    def fails(_now: float, command: ExecutorCommand) -> ExecutorEvent | None:
        if isinstance(command, Load):
            tried.append(command.gpus[0])
            if command.gpus[0] == 0:
                return Failed(command.operation, "no room")
        return None

    rehearse(executor, watch=fails)
    assert tried == [0, 0, 0, 1]
    assert executor.done == 1


def test_a_call_that_repeatedly_kills_its_worker_is_given_up() -> None:
    executor = Executor(work([(0, 5, [])]), plan((0, 0)), Rules(losses=2, replans=False))
    commands = executor.begin(0.0)
    now = 0.0
    while not executor.is_over:
        now += 10
        (command,) = commands
        if isinstance(command, Load):
            commands = executor.handle(Done(command.operation, 10.0), now)
        else:
            executor.handle(Lost(0), now)
            commands = executor.handle(Back(0), now)
    assert executor.given_up == {0: "its worker was lost 3 times while it ran"}


def test_if_no_gpu_could_run_the_remaining_work_it_is_stuck_and_says_so() -> None:
    executor = Executor(work([(0, 5, [])]), plan((0, 0)), Rules())
    executor.begin(0.0)
    assert executor.handle(Lost(0), 1.0) == []
    assert executor.is_stuck
    assert executor.next_wakeup() == inf
    assert [type(command) for command in executor.handle(Back(0), 2.0)] == [Load, Replan]


def test_a_failed_unload_stops_the_worker() -> None:
    executor = Executor(work([(0, 5, []), (1, 5, [])]), plan((0, 0), (1, 0)), Rules(replans=False))

    def fails(_now: float, command: ExecutorCommand) -> ExecutorEvent | None:
        return Failed(command.operation, "stuck") if isinstance(command, Unload) else None

    assert rehearse(executor, watch=fails, restart_s=3.0) == 10 + 5 + 1 + 3 + 10 + 5


def test_a_ready_call_of_higher_priority_overtakes_although_it_needs_another_model() -> None:
    calls: list[tuple[int, float, list[int]]] = [(0, 5, []), (0, 5, []), (1, 7, []), (0, 5, [])]
    executor = Executor(work(calls, priority=[50, 50, 90, 50]), plan((0, 0), (1, 0), (2, 0), (3, 0)), FOLLOWS_ONLY)
    rehearse(executor)
    assert starts(executor) == {2: 10, 0: 28, 1: 33, 3: 38}


def test_a_request_that_arrives_late_overtakes_at_the_next_call_if_it_is_more_urgent() -> None:
    calls: list[tuple[int, float, list[int]]] = [(0, 5, []), (0, 5, []), (0, 5, []), (0, 1, [])]
    some = work(calls, priority=[50, 50, 50, 51], earliest=[0, 0, 0, 12.0])
    executor = Executor(some, plan((0, 0), (1, 0), (2, 0), (3, 0)), FOLLOWS_ONLY)
    rehearse(executor)
    assert starts(executor) == {0: 10, 3: 15, 1: 16, 2: 21}


def test_a_call_does_not_overtake_one_that_it_depends_on() -> None:
    calls: list[tuple[int, float, list[int]]] = [(0, 5, []), (0, 5, []), (0, 1, [1])]
    executor = Executor(work(calls, priority=[10, 10, 90]), plan((0, 0), (1, 0), (2, 0)), FOLLOWS_ONLY)
    rehearse(executor)
    assert starts(executor) == {0: 10, 1: 15, 2: 20}


def test_calls_that_an_earlier_run_has_done_are_not_run_and_their_results_are_passed_on() -> None:
    executor = Executor(work([(0, 5, []), (0, 5, [0]), (0, 5, [])]), plan((0, 0), (1, 0), (2, 0)), FOLLOWS_ONLY)
    executor.restore(0, "from before")
    executor.restore(2, "a last one")
    assert only(executor.begin(0.0), DropResult) == [DropResult(2, "a last one")]
    loaded = executor.handle(Done(1, 10.0), 10.0)
    assert [(c.call, c.results) for c in loaded if isinstance(c, Call)] == [(1, {0: "from before"})]
    executor.handle(Done(2, 5.0), 15.0)
    assert executor.is_over
    assert (executor.done, executor.restored) == (3, {0, 2})
