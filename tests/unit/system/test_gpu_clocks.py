"""Clocks are locked where NVML allows it, with a fake NVML."""

import pytest

from gpuyard.system.gpu_clocks import Clocks


class NVMLError(Exception):
    pass


class NVMLError_NoPermission(NVMLError):  # noqa: N801 as NVIDIA spells it
    pass


class FakeNvml:
    """Two GPUs; the second one does not allow it."""

    NVMLError = NVMLError
    NVMLError_NoPermission = NVMLError_NoPermission

    def __init__(self) -> None:
        self.clocks: dict[str, tuple[int, int]] = {}

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByIndex(self, number: int) -> str:  # noqa: N802
        return ("GPU-a", "GPU-b")[number]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid not in {"GPU-a", "GPU-b"}:
            raise NVMLError("Not Found")
        return uuid

    def nvmlDeviceSetGpuLockedClocks(self, handle: str, low: int, high: int) -> None:  # noqa: N802
        if handle == "GPU-b":
            raise NVMLError_NoPermission("Insufficient Permissions")
        if low < 300:
            raise NVMLError("Invalid Argument")
        self.clocks[handle] = low, high

    def nvmlDeviceResetGpuLockedClocks(self, handle: str) -> None:  # noqa: N802
        del self.clocks[handle]


@pytest.mark.parametrize("card", ["GPU-a", "0"])
def test_a_clock_is_locked_and_released_at_the_end(card: str) -> None:
    nvml = FakeNvml()
    clocks = Clocks(nvml)
    assert clocks.lock(card, 1200) is None
    assert clocks.lock(card, 1500) is None
    assert nvml.clocks == {"GPU-a": (1500, 1500)}
    clocks.close()
    clocks.close()
    assert nvml.clocks == {}


def test_without_permission_to_lock_a_clock_the_error_says_what_would_help() -> None:
    assert Clocks(FakeNvml()).lock("GPU-b", 1200) == (
        "GPU GPU-b stays at full speed: its clock cannot be locked to 1200 MHz: Insufficient Permissions. "
        "The NVIDIA driver allows this only to root: run as root, or plan without --max-slowdown."
    )


def test_a_missing_gpu_is_reported() -> None:
    assert Clocks(FakeNvml()).lock("GPU-c", 900) == (
        "GPU GPU-c stays at full speed: its clock cannot be locked to 900 MHz: Not Found."
    )


def test_a_gpu_whose_next_level_cannot_be_locked_does_not_stay_at_the_clock_of_the_level_before() -> None:
    nvml = FakeNvml()
    clocks = Clocks(nvml)
    clocks.lock("GPU-a", 1200)
    assert clocks.lock("GPU-a", 5) == (
        "GPU GPU-a stays at full speed: its clock cannot be locked to 5 MHz: Invalid Argument."
    )
    assert nvml.clocks == {}
    clocks.close()
