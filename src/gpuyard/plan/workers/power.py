"""The power levels of a plan, applied to the cards of this machine as its calls begin."""

from collections.abc import Sequence

from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.workers.clocks import Clocks


class PlannedLevels:
    """Sets the clock of each card to the level that the plan chose for a call there, where the file says which clock that is.

    `devices` are what CUDA calls the GPUs now: who borrows them from a yard gets to know that by and by.
    """

    def __init__(self, problem: Problem, plan: Plan, devices: Sequence[str], clocks: Clocks) -> None:
        self.troubles: list[str] = []
        """Why cards stay at full speed, in sentences, each once."""
        self._problem = problem
        self._level = plan.level
        self._devices = devices
        self._clocks = clocks
        self._now: dict[int, int] = {}

    def begins(self, call: int, gpus: range) -> None:
        """A call begins on these GPUs."""
        level = 0 if self._level is None else int(self._level[call])
        for gpu in gpus:
            levels = self._problem.gpus[gpu].levels
            mhz = levels[level].mhz if level < len(levels) else None
            if mhz is None or self._now.get(gpu) == mhz:
                continue
            self._now[gpu] = mhz
            trouble = self._clocks.lock(self._devices[gpu], mhz)
            if trouble is not None and trouble not in self.troubles:
                self.troubles.append(trouble)

    def leaves(self, gpu: int) -> None:
        """A GPU is given back: whoever gets it next finds it as it was."""
        self._now.pop(gpu, None)
        self._clocks.free(self._devices[gpu])

    def close(self) -> None:
        """Cards have their own clocks again."""
        self._clocks.free_all()
