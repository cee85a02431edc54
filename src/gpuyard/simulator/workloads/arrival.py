"""Input of a simulated cluster: tasks with their real behavior, and commands, each at its instant."""

from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple, Protocol

from gpuyard.core.domain.commands import Command
from gpuyard.core.domain.task import TaskSpec
from gpuyard.core.domain.values import TaskId
from gpuyard.learn.estimates.history import TaskFeatures
from gpuyard.simulator.policy_variants import PolicyVariant
from gpuyard.simulator.world import TaskBehavior


class Arrival(NamedTuple):
    """One task: what is known at submission, and its real behavior, which the scheduler does not see."""

    task: TaskId
    spec: TaskSpec
    features: TaskFeatures
    """The features that predictions use."""
    run: TaskBehavior

    @property
    def seconds(self) -> float | None:
        """Real run time until it ends by itself; None if it is unknown."""
        run = self.run
        while run.then is not None:
            run = run.then
        return run.seconds if run.seconds < inf else None


TimedInput = tuple[float, tuple[Arrival, ...] | Command]
"""An instant with the tasks that arrive together then, or with a command."""


class Workload(Protocol):
    """The interface of all workloads."""

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        ...

    @property
    def gpus(self) -> int:
        """Largest number of GPUs."""
        ...

    @property
    def stop_seconds(self) -> float:
        """Time a task needs to end after it is told to."""
        ...

    def restart_seconds(self, spec: TaskSpec) -> float:
        """Return the work, in seconds, that a task repeats after a stop that kept its progress."""
        ...

    def slowed_by(self, spec: TaskSpec, other: TaskSpec) -> float:
        """Return the share of its speed that a task keeps next to another on the same GPU."""
        ...

    def opening(self) -> Sequence[Command]:
        """Return the commands that set up the cluster before the first task arrives."""
        ...

    def arrivals(self, policy_variant: PolicyVariant) -> Iterator[TimedInput]:
        """Return all tasks and commands in the order of time."""
        ...
