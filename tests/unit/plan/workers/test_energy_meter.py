"""The energy of a run, with a fake NVML."""

import pytest

from gpuyard.plan.workers.energy_meter import EnergyMeter
from tests.unit.system.test_gpu_clocks import FakeNvml, NVMLError


class CountingNvml(FakeNvml):
    """The counters of two GPUs, in millijoules."""

    def __init__(self, **energy_mj: int) -> None:
        super().__init__()
        self.energy_mj = {f"GPU-{name}": value for name, value in energy_mj.items()}

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        if handle not in self.energy_mj:
            raise NVMLError("Not Supported")
        return self.energy_mj[handle]


@pytest.mark.parametrize(("devices", "joules"), [(["0"], 5.0), (["GPU-b"], 7.0), (["0", "1"], 12.0), ([], 0.0)])
def test_the_energy_of_the_gpus_of_a_run_is_added(devices: list[str], joules: float) -> None:
    nvml = CountingNvml(a=1_000_000, b=2_000_000)
    meter = EnergyMeter(nvml, devices)
    nvml.energy_mj = {"GPU-a": 1_005_000, "GPU-b": 2_007_000}
    assert meter.joules() == joules


def test_if_one_gpu_does_not_count_energy_none_is_reported() -> None:
    assert EnergyMeter(CountingNvml(a=1), ["0", "1"]).joules() is None


def test_a_gpu_that_is_lost_during_the_run_has_no_energy() -> None:
    nvml = CountingNvml(a=1)
    meter = EnergyMeter(nvml, ["0"])
    nvml.energy_mj = {}
    assert meter.joules() is None
