"""Nodes of a simulated world and the behavior of their tasks."""

from math import inf

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import NewTask, Resources, TaskSpec
from gpuyard.core.domain.tenant import Budget, QuotaMode, Split, Tenant
from gpuyard.core.domain.values import Outcome, Preemption, TaskClass, TaskId, TaskStatus, TenantId
from gpuyard.simulator.world import TaskBehavior, World
from gpuyard.testing import node

TASK, OTHER = TaskId(1), TaskId(2)
Heard = list[tuple[float, events.Event]]


def spec(gpus: int = 1, retries: int = 0, **more: object) -> TaskSpec:
    return TaskSpec(TenantId("all"), Resources(gpus=gpus), command="true", retries=retries, **more)  # type: ignore[arg-type]


def world_with(*orders: command.Command) -> tuple[World, Heard]:
    world, heard = World(), Heard()
    world.listeners.append(lambda at, new_events: heard.extend((at, event) for event in new_events))
    for order in (command.JoinNode(node("a", gpus=4)), *orders):
        world.tell(order)
    return world, heard


def submitted(task: TaskId, asked: TaskSpec) -> command.SubmitTasks:
    return command.SubmitTasks((NewTask(task, asked),))


def ends(heard: Heard, task: TaskId = TASK) -> list[tuple[float, TaskStatus]]:
    return [(at, it.status) for at, it in heard if isinstance(it, events.TaskEnded) and it.task == task]


def test_after_a_failure_the_next_attempt_runs_the_next_behavior() -> None:
    world, heard = world_with(command.ChangeSettings(Settings(retry_delay_seconds=2.0)))
    world.runs[TASK] = TaskBehavior(
        10.0, Outcome.FAILED, 1, then=TaskBehavior(0.0, Outcome.NOT_LAUNCHED, None, then=TaskBehavior(30.0))
    )
    world.tell(submitted(TASK, spec(retries=3)))
    world.run_to_end()
    assert ends(heard) == [(10.0 + 2.0 + 0.0 + 4.0 + 30.0, TaskStatus.SUCCESS)]


def test_a_run_that_always_fails_fails_again() -> None:
    world, heard = world_with(command.ChangeSettings(Settings(retry_delay_seconds=2.0)))
    world.runs[TASK] = TaskBehavior(10.0, Outcome.FAILED, 1)
    world.tell(submitted(TASK, spec(retries=1)))
    world.run_to_end()
    assert ends(heard) == [(22.0, TaskStatus.FAILED)]


def test_a_launch_takes_as_long_as_its_run_says() -> None:
    world, heard = world_with()
    world.runs[TASK] = TaskBehavior(10.0, start_seconds=3.0)
    world.tell(submitted(TASK, spec()))
    world.run_to_end()
    assert [at for at, it in heard if isinstance(it, events.AttemptStarted)] == [3.0]
    assert ends(heard) == [(13.0, TaskStatus.SUCCESS)]


def test_a_run_without_an_end_continues_until_it_is_told_to_end() -> None:
    world, heard = world_with()
    world.runs[TASK] = TaskBehavior(inf)
    world.tell(submitted(TASK, spec(timeout_seconds=50.0)))
    world.run_to_end()
    assert ends(heard) == [(50.0, TaskStatus.TIMEOUT)]


def test_a_task_ended_by_its_user_is_cancelled_after_the_same_run_time() -> None:
    world, heard = world_with()
    world.runs[TASK] = TaskBehavior(20.0, Outcome.STOPPED, None)
    world.tell(submitted(TASK, spec()))
    world.run_to_end()
    assert ends(heard) == [(20.0, TaskStatus.CANCELLED)]


def test_a_preempted_task_is_cancelled_by_its_user_only_after_the_same_run_time() -> None:
    all_online = command.SetSplit(Split(1.0, 0.0, QuotaMode.BORROW))
    world, heard = world_with(all_online, command.ChangeSettings(Settings(preemption_min_run_seconds=0.0)))
    world.runs[TASK], world.runs[OTHER] = TaskBehavior(20.0, Outcome.STOPPED, None), TaskBehavior(100.0)
    world.tell(submitted(TASK, spec(4, preemption=Preemption.CHECKPOINT, priority=10)))
    world.advance(15.0)
    world.tell(submitted(OTHER, spec(4, priority=90, task_class=TaskClass.ONLINE)))
    world.run_to_end()
    assert ends(heard, OTHER) == [(115.0, TaskStatus.SUCCESS)]
    assert ends(heard) == [(120.0, TaskStatus.CANCELLED)]


def test_a_run_may_have_speeds_its_task_does_not_declare() -> None:
    world, heard = world_with()
    world.runs[TASK] = TaskBehavior(10.0, speeds=(("A100", 1.0), ("H100", 4.0)))
    world.tell(submitted(TASK, spec()))
    world.run_to_end()
    assert ends(heard) == [(40.0, TaskStatus.SUCCESS)]


def test_a_world_ends_although_a_task_that_never_ends_uses_up_the_budget_of_another() -> None:
    """The engine tries the other one again in each period, for ever."""
    world, heard = world_with(command.SetTenant(Tenant(TenantId("all"), budget=Budget(0.1 / 3600, 10.0))))
    world.tell(submitted(TASK, spec()))
    world.advance(1.0)
    world.runs[OTHER] = TaskBehavior(5.0)
    world.tell(submitted(OTHER, spec()))
    world.run_to_end()
    assert ends(heard) == ends(heard, OTHER) == []
    assert world.now < 1e6
