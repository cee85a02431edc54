"""What the executor does when things go as planned, and when they do not. Every GPU loads in 10 s and unloads in 1 s."""

from math import inf

from gpuyard.plan.executor.executor import Executor, Rules
from gpuyard.plan.executor.messages import (
    Back,
    Call,
    Done,
    ExecutorCommand,
    ExecutorEvent,
    Failed,
    Forget,
    GiveBack,
    Load,
    Lost,
    PlanAgain,
    Planned,
    Reclaimed,
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
    assert executor.tally.switches == 1
    assert executor.tally.switch_time_s == 21


def test_the_next_model_is_loaded_while_its_call_still_waits() -> None:
    executor = Executor(work([(0, 50, []), (1, 4, [0])], gpus=2), plan((0, 0), (1, 1)), FOLLOWS_ONLY)
    assert rehearse(executor) == 10 + 50 + 4


def test_a_group_begins_together_and_its_gpus_free_their_memory_before() -> None:
    calls: list[tuple[int, float, list[int]]] = [(0, 5, []), (2, 3, [])]
    executor = Executor(work(calls, gpus=2, width=(1, 1, 2)), plan((0, 1), (1, 0)), FOLLOWS_ONLY)
    assert rehearse(executor) == 10 + 5 + 1 + 10 + 3


def test_a_request_that_comes_later_begins_when_it_has_come() -> None:
    executor = Executor(work([(0, 5, [])], earliest=[60.0]), plan((0, 0)), FOLLOWS_ONLY)
    assert rehearse(executor) == 65


def test_a_call_of_the_same_model_fills_the_time_until_the_first_one_can_begin() -> None:
    calls: list[tuple[int, float, list[int]]] = [(0, 100, []), (1, 5, [0]), (1, 20, [])]
    executor = Executor(work(calls, gpus=2), plan((0, 0), (1, 1), (2, 1)), FOLLOWS_ONLY)
    assert rehearse(executor) == 115
    assert starts(executor)[2] == 10


def test_an_idle_gpu_steals_from_the_one_that_is_furthest_behind_when_that_pays() -> None:
    calls: list[tuple[int, float, list[int]]] = [(0, 30, []), (0, 30, []), (0, 30, [])]
    executor = Executor(work(calls, gpus=2), plan((0, 0), (1, 0), (2, 0)), Rules(plans_again=False))
    assert rehearse(executor) == 10 + 30 + 30
    assert executor.tally.stolen == 1


def test_nothing_is_stolen_that_would_end_later_with_the_thief() -> None:
    calls: list[tuple[int, float, list[int]]] = [(0, 3, []), (0, 3, [0]), (0, 3, [0])]
    executor = Executor(work(calls, gpus=2), plan((0, 0), (1, 0), (2, 0)), Rules(plans_again=False))
    assert rehearse(executor) == 19
    assert executor.tally.stolen == 0


def test_a_failed_call_is_run_again_and_given_up_after_its_retries_with_all_that_wait_for_it() -> None:
    executor = Executor(
        work([(0, 5, []), (0, 5, [0]), (0, 5, [])]), plan((0, 0), (1, 0), (2, 0)), Rules(retries=1, plans_again=False)
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
    assert executor.tally.retries == 1


def test_what_a_lost_worker_did_begins_anew_elsewhere_and_its_late_answer_is_ignored() -> None:
    executor = Executor(work([(0, 5, [])], gpus=2), plan((0, 0)), Rules(plans_again=False))
    (load,) = executor.begin(0.0)
    assert isinstance(load, Load)
    (call,) = executor.handle(Done(load.operation, 10.0), 10.0)
    assert isinstance(call, Call)
    (again,) = executor.handle(Lost(0), 12.0)
    assert isinstance(again, Load)
    assert list(again.gpus) == [1]
    assert executor.handle(Done(call.operation, 5.0, "late"), 15.0) == []
    assert executor.tally.ignored == 1
    (second,) = executor.handle(Done(again.operation, 10.0), 22.0)
    assert isinstance(second, Call)
    assert second.attempt == 2
    assert executor.handle(Done(second.operation, 5.0, "in time"), 27.0) == [Forget(0, "in time")]
    assert executor.done == 1


def test_a_call_that_ends_before_the_deadline_is_finished_before_its_gpu_is_given_back() -> None:
    executor = Executor(work([(0, 5, []), (0, 5, [])], gpus=1), plan((0, 0), (1, 0)), Rules(plans_again=False))
    (load,) = executor.begin(0.0)
    assert isinstance(load, Load)
    (call,) = executor.handle(Done(load.operation, 10.0), 10.0)
    assert isinstance(call, Call)
    assert executor.handle(Reclaimed(0, 20.0), 11.0) == []
    assert executor.next_wakeup() == 20.0
    assert GiveBack(0) in executor.handle(Done(call.operation, 5.0), 15.0)
    assert executor.done == 1
    assert executor.is_stuck
    assert len(only(executor.handle(Back(0), 50.0), Load)) == 1


def test_a_call_that_would_end_after_the_deadline_is_stopped_at_once_and_runs_elsewhere() -> None:
    executor = Executor(work([(0, 50, [])], gpus=2), plan((0, 0)), Rules(plans_again=False))
    (load,) = executor.begin(0.0)
    assert isinstance(load, Load)
    executor.handle(Done(load.operation, 10.0), 10.0)
    commands = executor.handle(Reclaimed(0, 20.0), 11.0)
    assert GiveBack(0) in commands
    (again,) = only(commands, Load)
    assert isinstance(again, Load)
    assert list(again.gpus) == [1]
    assert executor.tally.moved == 1


def test_a_call_that_overruns_the_deadline_is_stopped_then() -> None:
    executor = Executor(work([(0, 5, [])], gpus=1), plan((0, 0)), Rules(plans_again=False))
    (load,) = executor.begin(0.0)
    assert isinstance(load, Load)
    executor.handle(Done(load.operation, 10.0), 10.0)
    assert executor.handle(Reclaimed(0, 20.0), 11.0) == []
    assert executor.handle(Tick(), 20.0) == [GiveBack(0)]


def test_a_group_dies_with_each_of_its_gpus_and_the_worker_that_held_it_begins_anew() -> None:
    executor = Executor(work([(2, 5, [])], gpus=3, width=(1, 1, 2)), plan((0, 0)), Rules(plans_again=False))
    (load,) = executor.begin(0.0)
    assert isinstance(load, Load)
    executor.handle(Done(load.operation, 10.0), 10.0)
    assert executor.handle(Lost(1), 11.0) == [Stop(0)]
    executor.handle(Back(0), 12.0)
    (again,) = only(executor.handle(Back(1), 13.0), Load)
    assert isinstance(again, Load)
    assert len(again.gpus) == 2


def test_no_group_spans_two_machines() -> None:
    executor = Executor(
        work([(2, 5, [])], gpus=3, width=(1, 1, 2), host=[0, 1, 1]), plan((0, 0)), Rules(plans_again=False)
    )
    (load,) = executor.begin(0.0)
    assert isinstance(load, Load)
    assert list(load.gpus) == [1, 2]


def test_what_is_left_is_planned_again_when_a_gpu_is_lost_and_the_answer_is_followed() -> None:
    executor = Executor(work([(0, 5, []), (1, 5, [])], gpus=3), plan((0, 0), (1, 1)), Rules(steals=False))
    executor.begin(0.0)
    (again,) = only(executor.handle(Lost(1), 4.0), PlanAgain)
    assert isinstance(again, PlanAgain)
    left = again.remaining
    assert left.call == [0, 1]
    assert left.usable == [True, False, True]
    assert left.gpu == [0, -1]
    assert left.busy_until_s == [10.0, 4.0, 4.0]
    assert left.holds == [0, -1, -1], "what is being loaded will be there when the GPU is free"
    (load,) = executor.handle(Planned(Assignment([0, 1], [0, 2], [10, 10], [15, 15])), 4.0)
    assert isinstance(load, Load)
    assert list(load.gpus) == [2]
    assert executor.tally.planned_again == 1


def test_what_is_left_is_planned_again_with_better_estimates_when_calls_take_other_times() -> None:
    calls: list[tuple[int, float, list[int]]] = [(0, 10, []) for _ in range(10)]
    executor = Executor(work(calls), plan(*((call, 0) for call in range(10)), every_s=10), Rules())
    asked: list[list[float]] = []

    def again(left: object) -> None:
        asked.append(list(left.seconds))  # type: ignore[attr-defined]

    rehearse(executor, seconds=lambda call: call.seconds * 2, plan=again)
    assert asked
    assert all(10 < seconds < 20 for seconds in asked[0])
    assert asked[-1][-1] > asked[0][-1]


def test_a_plan_that_is_kept_to_is_not_made_again() -> None:
    calls: list[tuple[int, float, list[int]]] = [(0, 10, []) for _ in range(10)]
    executor = Executor(work(calls), plan(*((call, 0) for call in range(10)), every_s=10), Rules())
    rehearse(executor, plan=lambda _left: 1 / 0)  # type: ignore[arg-type, return-value]
    assert executor.tally.planned_again == 0


def test_a_group_that_can_not_load_a_model_is_not_asked_for_it_any_more() -> None:
    executor = Executor(work([(0, 5, [])], gpus=2), plan((0, 0)), Rules(plans_again=False))
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


def test_a_call_whose_worker_dies_under_it_again_and_again_is_given_up() -> None:
    executor = Executor(work([(0, 5, [])]), plan((0, 0)), Rules(losses=2, plans_again=False))
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


def test_without_any_gpu_that_could_run_what_is_left_it_is_stuck_and_says_so() -> None:
    executor = Executor(work([(0, 5, [])]), plan((0, 0)), Rules())
    executor.begin(0.0)
    assert executor.handle(Lost(0), 1.0) == []
    assert executor.is_stuck
    assert executor.next_wakeup() == inf
    assert [type(command) for command in executor.handle(Back(0), 2.0)] == [Load, PlanAgain]


def test_unloading_that_fails_stops_the_worker() -> None:
    executor = Executor(work([(0, 5, []), (1, 5, [])]), plan((0, 0), (1, 0)), Rules(plans_again=False))

    def fails(_now: float, command: ExecutorCommand) -> ExecutorEvent | None:
        return Failed(command.operation, "stuck") if isinstance(command, Unload) else None

    assert rehearse(executor, watch=fails, restart_s=3.0) == 10 + 5 + 1 + 3 + 10 + 5
