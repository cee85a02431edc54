"""What comes to a simulated yard from outside: tasks with what they really do, and orders, each at its instant."""

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
    """One task: what is known when it comes, and what nobody knows then."""

    task: TaskId
    spec: TaskSpec
    asked: TaskFeatures
    """What predictions go by."""
    run: TaskBehavior

    @property
    def seconds(self) -> float | None:
        """How long it runs until it ends by itself; none: nobody knows."""
        run = self.run
        while run.then is not None:
            run = run.then
        return run.seconds if run.seconds < inf else None


TimedInput = tuple[float, tuple[Arrival, ...] | Command]
"""Tasks that come together, or an order, and when."""


class Workload(Protocol):
    """Whatever it was read from, it is played in one way."""

    @property
    def tasks(self) -> int:
        """How many come."""
        ...

    @property
    def gpus(self) -> int:
        """How many GPUs there are, at the most."""
        ...

    @property
    def stop_seconds(self) -> float:
        """How long a task needs to end when it is told to."""
        ...

    def restart_seconds(self, spec: TaskSpec) -> float:
        """Work that a task does once more after a stop that kept what it had done."""
        ...

    def slowed_by(self, spec: TaskSpec, other: TaskSpec) -> float:
        """What a task keeps of its speed beside another on the same card."""
        ...

    def opening(self) -> Sequence[Command]:
        """What is so before anything comes."""
        ...

    def arrivals(self, policy_variant: PolicyVariant) -> Iterator[TimedInput]:
        """All that comes, in order."""
        ...
