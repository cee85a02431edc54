"""The use of NVML's samples, with a fake NVML."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard.learn.profiler.watch import GpuWatch, gpus_here


class NVMLError(Exception):
    pass


class FakeNvml:
    """One GPU whose samples are at these instants, in seconds before now (below zero: to come)."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_TOTAL_POWER_SAMPLES, NVML_GPU_UTILIZATION_SAMPLES, NVML_MEMORY_UTILIZATION_SAMPLES = 0, 1, 2
    NVML_VALUE_TYPE_DOUBLE, NVML_VALUE_TYPE_UNSIGNED_INT = 0, 1

    def __init__(self, samples: dict[int, list[tuple[float, int]]], kind: int = NVML_VALUE_TYPE_UNSIGNED_INT) -> None:
        self._samples = samples
        self._kind = kind
        self.processes: list[Any] = []
        self.energy_mj: list[int] = []

    def nvmlInit(self) -> None:  # noqa: N802 as NVIDIA spells it
        pass

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        return number

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "575.57.08"

    def nvmlDeviceGetClockInfo(self, _gpu: int, kind: int) -> int:  # noqa: N802
        return {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 3201}[kind]

    def nvmlDeviceGetTemperature(self, _gpu: int, _kind: int) -> int:  # noqa: N802
        return 41

    def nvmlDeviceGetMemoryInfo(self, _gpu: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=5 * 2**20)

    def nvmlDeviceGetTotalEnergyConsumption(self, _gpu: int) -> int:  # noqa: N802
        if not self.energy_mj:
            raise NVMLError("Not Supported")
        return self.energy_mj.pop(0)

    def nvmlDeviceGetComputeRunningProcesses(self, _gpu: int) -> list[Any]:  # noqa: N802
        return self.processes

    def nvmlDeviceGetSamples(self, _gpu: int, kind: int, _since: int) -> tuple[int, list[Any]]:  # noqa: N802
        if kind not in self._samples:
            raise NVMLError("Not Supported")
        now = time.time()
        return self._kind, [
            SimpleNamespace(timeStamp=int((now - ago) * 1e6), sampleValue=SimpleNamespace(uiVal=value, dVal=value / 2))
            for ago, value in self._samples[kind]
        ]


def watched(nvml: FakeNvml, for_seconds: float) -> GpuWatch:
    """A watch that has run for so long."""
    watch = GpuWatch(0, nvml)
    with watch:
        watch._began -= for_seconds
    return watch


def test_power_and_utilization_are_means_over_the_samples_of_that_time() -> None:
    power, use = [(9.0, 300_000), (5.0, 500_000)], [(9.0, 100), (1.0, 50)]
    seen = watched(FakeNvml({0: power, 1: use, 2: [(3.0, 20)]}), for_seconds=10.0).seen
    assert seen is not None
    assert (seen.power_w, seen.utilization, seen.memory_utilization) == (400.0, 0.75, 0.2)
    assert (seen.sm_clock_mhz, seen.memory_clock_mhz, seen.temperature_c, seen.memory_mib) == (1980, 3201, 41, 5.0)


def test_samples_outside_the_time_do_not_count() -> None:
    """A sample of use speaks of the 0.2 s before its stamp, one of power of 0.02 s."""
    early, inside, late = 9.9, 5.0, -5.0
    samples = {0: [(early, 1000), (inside, 3000)], 1: [(early, 10), (inside, 90), (late, 10)], 2: [(late, 10)]}
    seen = watched(FakeNvml(samples), for_seconds=10.0).seen
    assert seen is not None
    assert (seen.power_w, seen.utilization, seen.memory_utilization) == (2.0, 0.9, None)


def test_values_of_type_double_are_read_as_such() -> None:
    nvml = FakeNvml({0: [(1.0, 1000)]}, kind=FakeNvml.NVML_VALUE_TYPE_DOUBLE)
    seen = watched(nvml, for_seconds=10.0).seen
    assert seen is not None
    assert seen.power_w == 0.5


def test_a_value_the_driver_does_not_sample_is_none() -> None:
    seen = watched(FakeNvml({}), for_seconds=10.0).seen
    assert seen is not None
    assert (seen.power_w, seen.utilization, seen.memory_utilization) == (None, None, None)


def test_energy_is_the_difference_of_the_counter() -> None:
    nvml = FakeNvml({})
    nvml.energy_mj = [5_000_000, 5_012_500]
    seen = watched(nvml, for_seconds=1.0).seen
    assert seen is not None
    assert seen.energy_j == 12.5


def test_a_gpu_without_a_counter_of_energy_has_no_energy() -> None:
    seen = watched(FakeNvml({}), for_seconds=1.0).seen
    assert seen is not None
    assert seen.energy_j is None


def test_a_very_short_time_has_no_sample() -> None:
    seen = watched(FakeNvml({0: [(0.0, 1000)], 1: [(0.0, 10)], 2: []}), for_seconds=0.001).seen
    assert seen is not None
    assert (seen.power_w, seen.utilization) == (None, None)


def test_samples_are_kept_although_the_work_failed() -> None:
    watch = GpuWatch(0, FakeNvml({}))
    with pytest.raises(ZeroDivisionError), watch:
        raise ZeroDivisionError
    assert watch.seen is not None


def test_memory_of_selected_processes_excludes_others_and_unknown_ones() -> None:
    nvml = FakeNvml({})
    nvml.processes = [
        SimpleNamespace(pid=1, usedGpuMemory=3 * 2**20),
        SimpleNamespace(pid=2, usedGpuMemory=None),  # as drivers in containers have it
        SimpleNamespace(pid=3, usedGpuMemory=2**20),
    ]
    watch = GpuWatch(0, nvml)
    assert watch.memory_of({1, 2}) == 3.0
    assert watch.memory_of(set()) == 0.0
    assert watch.driver == "575.57.08"


def test_without_nvml_there_is_no_gpu() -> None:
    assert gpus_here() >= 0
