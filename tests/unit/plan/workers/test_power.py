"""GPUs run at the power level that the plan chose for each call, with a fake NVML."""

from dataclasses import replace

import numpy as np
import pytest

from gpuyard.plan.planner.compiled.timing import timed
from gpuyard.plan.workers.plans import at_levels
from gpuyard.plan.workers.power import PlannedLevels
from gpuyard.system.gpu_clocks import Clocks
from tests.unit.plan.planner.problem_stories import ints, problem
from tests.unit.system.test_gpu_clocks import FakeNvml

LEVELS = [{"speed": 1.0, "watts": 300, "mhz": 1500}, {"speed": 0.8, "watts": 200, "mhz": 1100}]
TWO = problem(
    [("a", "m", 1, []), ("b", "m", 1, []), ("c", "m", 1, [])],
    {"m": {"memory_gb": 1}},
    gpus=[{"levels": LEVELS}, {"levels": LEVELS}, {}],
)


def test_a_gpu_has_the_clock_of_the_level_of_each_call_and_its_own_again_in_the_end() -> None:
    nvml = FakeNvml()
    plan = replace(timed(TWO, ints(0, 0, 0), ints(0, 1, 2)), level=ints(1, 0, 0))
    levels = PlannedLevels(TWO, plan, ["GPU-a", "GPU-b", "GPU-c"], Clocks(nvml))
    levels.begins(0, range(1))
    assert nvml.clocks == {"GPU-a": (1100, 1100)}
    levels.begins(1, range(1))
    assert nvml.clocks == {"GPU-a": (1500, 1500)}
    levels.close()
    assert nvml.clocks == {}


def test_a_level_without_a_clock_runs_at_the_clock_of_the_gpu() -> None:
    nvml = FakeNvml()
    levels = [{"speed": 1.0, "watts": 300}, {"speed": 0.8, "watts": 200, "mhz": 1100}]
    one = problem([("a", "m", 1, []), ("b", "m", 1, [])], {"m": {"memory_gb": 1}}, gpus=[{"levels": levels}])
    plan = replace(timed(one, ints(0, 0), ints(0, 1)), level=ints(1, 0))
    planned = PlannedLevels(one, plan, ["GPU-a"], Clocks(nvml))
    planned.begins(0, range(1))
    assert nvml.clocks == {"GPU-a": (1100, 1100)}
    planned.begins(1, range(1))
    assert nvml.clocks == {}


def test_missing_permission_is_reported_once_and_gpus_without_levels_are_left_alone() -> None:
    plan = replace(timed(TWO, ints(1, 1, 2), ints(0, 1, 2)), level=ints(1, 1, 0))
    levels = PlannedLevels(TWO, plan, ["GPU-a", "GPU-b", "GPU-c"], Clocks(FakeNvml()))
    levels.begins(0, range(1, 2))
    levels.begins(1, range(1, 2))
    levels.begins(2, range(2, 3))
    assert len(levels.troubles) == 1
    assert levels.troubles[0].startswith("GPU GPU-b stays at full speed")


def test_a_returned_gpu_has_its_own_clock_and_ours_again_when_it_comes_back() -> None:
    nvml = FakeNvml()
    plan = replace(timed(TWO, ints(0, 0, 0), ints(0, 1, 2)), level=ints(1, 0, 0))
    devices = ["0", "1", "2"]
    levels = PlannedLevels(TWO, plan, devices, Clocks(nvml))
    devices[0] = "GPU-a"  # as a cluster announces when it lends the GPU
    levels.begins(0, range(1))
    levels.leaves(0)
    assert nvml.clocks == {}
    levels.begins(0, range(1))
    assert nvml.clocks == {"GPU-a": (1100, 1100)}


def test_calls_are_expected_to_take_the_time_of_their_power_level() -> None:
    plan = timed(TWO, ints(0, 0, 1), ints(0, 1, 2), np.array([1.25, 1.0, 1.25]))
    assert at_levels(TWO, replace(plan, level=ints(1, 0, 1))).calls.seconds.tolist() == pytest.approx([1.25, 1.0, 1.25])
    assert at_levels(TWO, plan) is TWO
