"""The next model of a GPU is loaded while the GPU runs calls of another one."""

from dataclasses import replace

from gpuyard.plan.executor.executor import Executor, LoadRun
from gpuyard.plan.executor.messages import Call, Done, Failed, Load, Lost, Reclaimed, ReleaseGpu, Unload
from gpuyard.testing.rehearsal import rehearse
from tests.unit.plan.executor.small_work import FOLLOWS_ONLY, KEEPS_THE_PLAN, CallSpec, Driver, plan, starts, work

THREE: list[CallSpec] = [(0, 30.0, []), (1, 30.0, [0]), (2, 30.0, [1])]
"""Three models in turn, each of 1 GB, 10 s to load and 1 s to unload."""
ALL = (True, True, True)


def on_two_gb(calls: list[CallSpec], **more: object) -> Executor:
    asked = replace(work(calls, gpu_memory_gb=[2.0], preloads=ALL), **more)  # type: ignore[arg-type]
    return Executor(asked, plan(*((call, 0) for call in range(len(calls)))), FOLLOWS_ONLY)


def test_only_the_first_load_is_waited_for_if_two_models_fit() -> None:
    executor = on_two_gb(THREE)
    assert rehearse(executor) == 10 + 3 * 30
    assert starts(executor) == {0: 10.0, 1: 40.0, 2: 70.0}
    assert executor.loads == [LoadRun(0, 0, 0.0, 10.0), LoadRun(1, 0, 10.0, 20.0), LoadRun(2, 0, 41.0, 51.0)]
    assert (executor.counts.switch_time_s, executor.counts.hidden_switch_s) == (31.0, 21.0)


def test_models_that_do_not_fit_side_by_side_are_loaded_one_after_another() -> None:
    executor = on_two_gb(THREE, gpu_memory_gb=[1.5])
    assert rehearse(executor) == 10 + 3 * 30 + 2 * 11
    assert executor.counts.hidden_switch_s == 0.0


def test_a_model_that_must_not_be_loaded_beside_calls_is_loaded_after_them() -> None:
    executor = on_two_gb(THREE, preloads=(True, False, True))
    rehearse(executor)
    assert starts(executor) == {0: 10.0, 1: 51.0, 2: 81.0}


def test_without_the_option_nothing_overlaps() -> None:
    executor = on_two_gb(THREE, preloads=())
    assert rehearse(executor) == 10 + 3 * 30 + 2 * 11


def test_the_load_begins_with_the_call_and_its_model_is_called_when_both_are_over() -> None:
    driver = Driver(on_two_gb(THREE))
    assert driver.begins() == [Load(1, 0, range(1), 10.0)]
    called, loads = driver.finishes(10.0)
    assert isinstance(called, Call)
    assert loads == Load(3, 1, range(1), 10.0, beside=True)
    assert driver.hears(Done(loads.operation, 10.0), 20.0) == []
    unloads, second = sorted(driver.hears(Done(called.operation, 30.0), 40.0), key=lambda one: isinstance(one, Call))[
        -2:
    ]
    assert isinstance(second, Call)
    assert second.call == 1
    assert isinstance(unloads, Unload)
    assert unloads.beside


def test_a_call_that_is_ready_runs_while_the_model_of_the_next_one_is_loaded() -> None:
    """The second call of model 0 is ready at 15 s, when its GPU has begun to load model 1 for the call before it."""
    calls: list[CallSpec] = [(0, 2.0, []), (1, 5.0, [0]), (0, 4.0, [])]
    asked = work(calls, gpu_memory_gb=[2.0], preloads=ALL, earliest=[0.0, 0.0, 15.0])
    executor = Executor(asked, plan((0, 0), (1, 0), (2, 0)), KEEPS_THE_PLAN)
    rehearse(executor)
    assert starts(executor)[2] == 15.0
    assert starts(executor)[1] == 20.0


def test_a_load_that_fails_beside_a_call_is_tried_again_and_the_call_goes_on() -> None:
    driver = Driver(on_two_gb(THREE))
    driver.begins()
    _, loads = driver.finishes(10.0)
    assert isinstance(loads, Load)
    assert driver.hears(Failed(loads.operation, "no room for it"), 12.0) == [Load(4, 1, range(1), 10.0, beside=True)]
    assert driver.executor.counts.moved == 0


def test_a_lost_gpu_loses_its_call_and_its_load() -> None:
    driver = Driver(on_two_gb(THREE))
    driver.begins()
    called, loads = driver.finishes(10.0)
    assert isinstance(called, Call)
    assert isinstance(loads, Load)
    driver.hears(Lost(0), 12.0)
    driver.hears(Done(loads.operation, 10.0), 20.0)
    driver.hears(Done(called.operation, 30.0), 40.0)
    assert driver.executor.counts.ignored == 2
    assert driver.executor.runs == []


def test_a_reclaimed_gpu_finishes_its_call_although_a_load_beside_it_ends_before() -> None:
    driver = Driver(on_two_gb(THREE))
    driver.begins()
    called, loads = driver.finishes(10.0)
    assert isinstance(called, Call)
    assert isinstance(loads, Load)
    driver.hears(Reclaimed(0, 60.0), 12.0)
    assert driver.hears(Done(loads.operation, 10.0), 20.0) == []
    assert ReleaseGpu(0) in driver.hears(Done(called.operation, 30.0), 40.0)
    assert [run.call for run in driver.executor.runs] == [0]


def test_a_wide_model_is_loaded_beside_calls_when_all_its_gpus_have_room() -> None:
    calls: list[CallSpec] = [(0, 30.0, []), (0, 20.0, []), (1, 10.0, [])]
    asked = work(calls, gpus=2, width=(1, 2), gpu_memory_gb=[2.0, 2.0], preloads=(True, True))
    executor = Executor(asked, plan((0, 0), (1, 1), (2, 0)), FOLLOWS_ONLY)
    assert rehearse(executor) == 10 + 30 + 10
    assert executor.loads[-1] == LoadRun(1, 0, 10.0, 20.0)
