"""What a free GPU does next: its own queue, a gap, a steal, or nothing."""

import pytest

from gpuyard.plan.executor.choosing import own, steal
from gpuyard.plan.executor.execution_state import ExecutionState
from gpuyard.plan.executor.executor import Executor, Rules
from gpuyard.plan.executor.messages import Call, Load
from gpuyard.testing.rehearsal import rehearse
from tests.unit.plan.executor.small_work import FOLLOWS_ONLY, KEEPS_THE_PLAN, CallSpec, plan, starts, where, work


def execution_of(
    calls: list[CallSpec], *places: tuple[int, int], holds: dict[int, int] | None = None, gpus: int = 1
) -> ExecutionState:
    """Calls queued as said; `holds`: the model of each GPU that has one."""
    execution = ExecutionState(work(calls, gpus=gpus))
    for call, first in places:
        execution.enqueue(call, first)
    for gpu, model in (holds or {}).items():
        execution.gpus[gpu].holds[model] = gpu
    return execution


def test_an_empty_queue_has_nothing_to_do() -> None:
    assert own(execution_of([(0, 5, [])]), 0) is None


def test_the_first_call_of_the_queue_is_taken_although_its_model_is_not_loaded() -> None:
    assert own(execution_of([(0, 5, []), (1, 5, [])], (0, 0), (1, 0), holds={0: 1}), 0) == 0


def test_a_gap_is_filled_only_with_calls_of_loaded_models() -> None:
    calls: list[CallSpec] = [(0, 100, []), (0, 5, [0]), (1, 5, []), (0, 5, [])]
    places = ((0, 1), (1, 0), (2, 0), (3, 0))
    assert own(execution_of(calls, *places, gpus=2), 0) == 1, "nothing is loaded: the first waits"
    assert own(execution_of(calls, *places, gpus=2, holds={0: 0}), 0) == 3
    assert own(execution_of(calls, *places, gpus=2, holds={0: 1}), 0) == 2


@pytest.mark.parametrize(("seconds", "taken"), [(100.0, 2), (133.0, 2), (134.0, 1)])
def test_a_call_that_fills_a_gap_may_delay_the_first_one_by_a_quarter_of_its_length(seconds: float, taken: int) -> None:
    execution = execution_of(
        [(0, 100, []), (0, 5, [0]), (0, seconds, [])], (0, 1), (1, 0), (2, 0), gpus=2, holds={0: 0}
    )
    execution.due_end[0] = 100.0
    assert own(execution, 0) == taken


def test_a_steal_takes_the_call_that_gains_most() -> None:
    execution = execution_of(
        [(0, 30, []), (0, 30, []), (0, 60, [])], (0, 1), (1, 1), (2, 1), gpus=2, holds={0: 0, 1: 0}
    )
    assert steal(execution, 0, at_any_price=False) == (2, 0)


def test_a_steal_loads_a_model_only_if_the_call_still_ends_earlier() -> None:
    assert steal(execution_of([(0, 10, [])], (0, 1), gpus=2, holds={1: 0}), 0, at_any_price=False) is None
    behind = [(0, 10.0, list[int]())] * 4
    assert steal(
        execution_of(behind, *((call, 1) for call in range(4)), gpus=2, holds={1: 0}), 0, at_any_price=False
    ) == (
        3,
        0,
    )


def test_only_ready_calls_are_stolen() -> None:
    calls: list[CallSpec] = [(0, 50, []), (0, 50, [0]), (0, 50, [1])]
    execution = execution_of(calls, (1, 1), (2, 1), (0, 1), gpus=2, holds={0: 0, 1: 0})
    assert steal(execution, 0, at_any_price=False) == (0, 0)
    execution.dequeue(0)
    assert steal(execution, 0, at_any_price=False) is None


def test_after_a_steal_a_gpu_reloads_its_model_before_its_own_next_call() -> None:
    """GPU 1 is to run call 1 at 100 s with model 1, which it holds; a steal costs 10 + 1 + 10 s beside the call itself."""
    for seconds, steals in ((70.0, True), (85.0, False)):
        calls: list[CallSpec] = [(0, 90, []), (1, 5, [0]), (0, seconds, [])]
        executor = Executor(work(calls, gpus=2), plan((0, 0), (1, 1), (2, 0)), KEEPS_THE_PLAN)
        rehearse(executor)
        assert (executor.counts.stolen == 1) is steals, seconds


def test_an_unassigned_call_is_taken_by_an_idle_gpu() -> None:
    execution = execution_of([(0, 5, []), (0, 5, [])], (1, 1), gpus=2)
    assert steal(execution, 0, at_any_price=False) == (0, 0)


def test_an_unassigned_call_that_would_delay_the_own_queue_waits_unless_nothing_is_running() -> None:
    execution = execution_of([(0, 500, []), (1, 5, [])], (1, 0), holds={0: 1})
    assert steal(execution, 0, at_any_price=False) is None
    assert steal(execution, 0, at_any_price=True) == (0, 0)


def test_a_wide_call_is_stolen_by_a_group_of_idle_gpus() -> None:
    calls: list[CallSpec] = [(1, 50, []), (1, 50, []), (1, 50, [])]
    executor = Executor(work(calls, gpus=4, width=(1, 2)), plan((0, 0), (1, 0), (2, 0)), KEEPS_THE_PLAN)
    rehearse(executor)
    assert executor.counts.stolen == 1
    assert sorted(where(executor).values()) == [0, 0, 2]


def test_of_two_groups_the_one_that_holds_the_model_steals() -> None:
    calls: list[CallSpec] = [(1, 50, []), (1, 50, []), (1, 50, [])]
    small = work(calls, gpus=5, width=(1, 2))
    execution = ExecutionState(small)
    for call in range(3):
        execution.enqueue(call, 0)
    for gpu in (3, 4):
        execution.gpus[gpu].holds[1] = 3
    found = steal(execution, 3, at_any_price=False)
    assert found is not None
    assert found[1] == 3


def test_a_faster_gpu_steals_and_a_slower_one_does_not() -> None:
    calls: list[CallSpec] = [(0, 20, []), (0, 20, [])]
    for speed, stolen in (([1.0, 4.0], 1), ([1.0, 0.1], 0)):
        executor = Executor(work(calls, gpus=2, speed=speed), plan((0, 0), (1, 0)), KEEPS_THE_PLAN)
        rehearse(executor)
        assert executor.counts.stolen == stolen, speed


def test_without_stealing_every_call_stays_where_the_plan_has_it() -> None:
    executor = Executor(work([(0, 30, [])] * 4, gpus=3), plan(*((call, 0) for call in range(4))), FOLLOWS_ONLY)
    assert rehearse(executor) == 10 + 4 * 30
    assert set(where(executor).values()) == {0}
    assert executor.counts.stolen == 0


def test_gpus_that_hold_several_models_fill_gaps_of_either() -> None:
    calls: list[CallSpec] = [(0, 5, []), (1, 5, []), (2, 90, []), (0, 5, [2]), (1, 5, [])]
    roomy = work(calls, gpus=2, gpu_memory_gb=[4.0, 4.0], multi_model=True)
    executor = Executor(roomy, plan((0, 0), (1, 0), (2, 1), (3, 0), (4, 0)), FOLLOWS_ONLY)
    loads: list[int] = []
    rehearse(executor, watch=lambda _, it: loads.append(it.model) if isinstance(it, Load) else None)
    assert sorted(loads) == [0, 1, 2], "nothing is unloaded, so nothing is loaded twice"
    assert starts(executor)[4] < starts(executor)[3]
    assert executor.counts.switches == 1, "the second model came onto a GPU that held another one"


def test_after_a_failed_steal_a_gpu_does_not_search_again_at_once() -> None:
    """Looking is not free: with calls of 40 s it looks every 10 s at most, whatever happens meanwhile."""
    calls: list[CallSpec] = [(0, 40, []), (0, 40, [0])]
    executor = Executor(work(calls, gpus=2), plan((0, 0), (1, 0)), Rules(replans=False))
    begun: list[float] = []
    rehearse(executor, watch=lambda now, it: begun.append(now) if isinstance(it, Call) else None)
    assert begun == [10.0, 50.0]
    assert executor.counts.stolen == 0
