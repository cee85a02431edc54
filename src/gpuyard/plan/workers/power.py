"""Applies the power levels of a plan to the GPUs of this machine as its calls start."""

from collections.abc import Sequence

from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.system.gpu_clocks import Clocks


class PlannedLevels:
    """Sets the clock of each GPU to the level that the plan chose for a call. For a level without a clock in the problem
    file, the GPU runs at its own clock.

    `devices` are the current CUDA device names of the GPUs; for borrowed GPUs they become known over time.
    """

    def __init__(self, problem: Problem, plan: Plan, devices: Sequence[str], clocks: Clocks) -> None:
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
