"""Applies the power levels of a plan to its GPUs as its calls start."""

from collections.abc import Sequence
from typing import Protocol

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.system.gpu_clocks import Clocks


class NoClocks(GpuyardError):
    """The power levels of the plan are not applied."""


class ClockSetter(Protocol):
    """Locks and frees clocks of GPUs by their name: `Clocks` on this machine, `RemoteClocks` on others."""

    def lock(self, gpu: str, mhz: int) -> str | None:
        """Lock a GPU to this clock; return why that failed, or None."""

    def free(self, gpu: str) -> None:
        """Reset the clock of a GPU if it was locked here."""

    def close(self) -> None:
        """Reset all clocks that were locked here."""


def clocks_here() -> Clocks:
    """Return the clocks of this machine, which are reset however the process ends. Raise `NoClocks` without NVML."""
    import pynvml  # type: ignore[import-untyped]

    from gpuyard.system.clock_guard import ClockGuard

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoClocks(f"The power levels of the plan are not applied: {error}.") from None
    return Clocks(pynvml, ClockGuard())


class PlannedLevels:
    """Sets the clock of each GPU to the level that the plan chose for a call. For a level without a clock in the problem
    file, the GPU runs at its own clock.

    `devices` are the names of the GPUs for `clocks`: CUDA device names, or the numbers of the GPUs for those of other
    machines.
    """

    def __init__(self, problem: Problem, plan: Plan, devices: Sequence[str], clocks: ClockSetter) -> None:
        self.troubles: list[str] = []
        """Why GPUs stay at full speed, in sentences, each once."""
        self._problem = problem
        self._level = plan.level
        self._devices = devices
        self._clocks = clocks
        self._now: dict[int, int] = {}

    def begins(self, call: int, gpus: range) -> None:
        """Set the level for a call that starts on these GPUs."""
        level = 0 if self._level is None else int(self._level[call])
        for gpu in gpus:
            levels = self._problem.gpus[gpu].levels
            mhz = levels[level].mhz if level < len(levels) else None
            if mhz is None:
                if gpu in self._now:
                    self.leaves(gpu)
                continue
            if self._now.get(gpu) == mhz:
                continue
            self._now[gpu] = mhz
            trouble = self._clocks.lock(self._devices[gpu], mhz)
            if trouble is not None and trouble not in self.troubles:
                self.troubles.append(trouble)

    def leaves(self, gpu: int) -> None:
        """Reset the clock of a GPU, for example when it is given back."""
        self._now.pop(gpu, None)
        self._clocks.free(self._devices[gpu])

    def close(self) -> None:
        """Reset the clocks of all GPUs."""
        self._clocks.close()
