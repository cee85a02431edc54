"""The commands and events between the executor and its driver. Every operation has a number, and its reply carries it.

A reply to an operation that is not under way any more (its worker was stopped, its GPU taken) is ignored, so nothing
counts twice, however late it comes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuyard.plan.executor.work import Assignment, RemainingWork


@dataclass(frozen=True, slots=True)
class Load:
    """Load a model onto a group of GPUs; the worker of the first one holds it."""

    operation: int
    model: int
    gpus: range
    seconds: float
    """The expected duration."""
    beside: bool = False
    """The GPUs may run calls of other models meanwhile."""


@dataclass(frozen=True, slots=True)
class Unload:
    """Free the memory that a model takes on its group."""

    operation: int
    model: int
    gpus: range
    seconds: float
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """Call the model that the group holds."""

    operation: int
    model: int
    gpus: range
    seconds: float
    call: int
    attempt: int
    """1 for the first run of this call."""
    results: Mapping[int, object]
    """The results of the calls it depends on."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Kill the worker of a GPU, whatever it does, and start a new one: `Back` reports when that is ready."""

    gpu: int


@dataclass(frozen=True, slots=True)
class ReleaseGpu:
    """Stop the worker of a GPU that was reclaimed, and give the GPU back."""

    gpu: int


@dataclass(frozen=True, slots=True)
class Replan:
    """Plan the remaining work; `Replanned` carries the answer. The old plan is followed in the meantime."""

    remaining: RemainingWork


@dataclass(frozen=True, slots=True)
class DropResult:
    """All calls that depend on this one are done. Its result, possibly a final one, is left to the driver."""

    call: int
    result: object


ExecutorCommand = Load | Unload | Call | Stop | ReleaseGpu | Replan | DropResult


@dataclass(frozen=True, slots=True)
class Done:
    """An operation succeeded."""

    operation: int
    seconds: float
    """The duration, as the worker measured it."""
    result: object = None


@dataclass(frozen=True, slots=True)
class Failed:
    """An operation failed; the worker is still alive."""

    operation: int
    why: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The worker of a GPU is gone, with everything it held and did."""

    gpu: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Back:
    """A GPU can be used (again); its worker holds nothing."""

    gpu: int


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """A GPU is needed elsewhere and must be given back by then."""

    gpu: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Replanned:
    """The answer to `Replan`. None: the current queues are as good."""

    assignment: Assignment | None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


ExecutorEvent = Done | Failed | Lost | Back | Reclaimed | Replanned | Tick
