"""What is said between the executor and whoever drives it. Every operation has a number, and its answer carries it.

An answer to an operation that is not under way any more (its worker was given up, its GPU taken) is ignored: so nothing
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
    """What it is expected to take."""


@dataclass(frozen=True, slots=True)
class Unload:
    """Free the memory that a model takes on its group."""

    operation: int
    model: int
    gpus: range
    seconds: float


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
    """What the calls before it brought."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the worker of a GPU, whatever it does, and begin a new one: `Back` says when it is there."""

    gpu: int


@dataclass(frozen=True, slots=True)
class GiveBack:
    """End the worker of a GPU that is wanted elsewhere."""

    gpu: int


@dataclass(frozen=True, slots=True)
class PlanAgain:
    """Plan what is left; `Planned` brings the answer. Meanwhile the old plan is followed."""

    remaining: RemainingWork


@dataclass(frozen=True, slots=True)
class Forget:
    """All calls that waited for this one are done; its result, which may be one of the last, is in whoever drives' hands."""

    call: int
    result: object


ExecutorCommand = Load | Unload | Call | Stop | GiveBack | PlanAgain | Forget


@dataclass(frozen=True, slots=True)
class Done:
    """An operation came to a good end."""

    operation: int
    seconds: float
    """What it took, as the worker measured it."""
    result: object = None


@dataclass(frozen=True, slots=True)
class Failed:
    """An operation came to a bad end; the worker lives."""

    operation: int
    why: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The worker of a GPU is gone, and all it held and did."""

    gpu: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Back:
    """A GPU can be used (again); its worker holds nothing."""

    gpu: int


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """Others need a GPU: it has to be given back until then."""

    gpu: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Planned:
    """The answer to `PlanAgain`. None: what is queued is as good."""

    assignment: Assignment | None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


ExecutorEvent = Done | Failed | Lost | Back | Reclaimed | Planned | Tick
