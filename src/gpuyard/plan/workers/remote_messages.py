"""The messages between a plan and the task that holds a block of GPUs for it (`line` carries them).

A block is a range of GPUs of the problem that one task holds on one node. Every start of a worker has a number, and what
is said about a worker carries it: a message about one that was replaced in the meantime is ignored.
"""

from dataclasses import dataclass

from gpuyard.plan.workers.order import Order, Reply, Runtime


@dataclass(frozen=True, slots=True)
class Here:
    """The first message of a task: which block it holds, and where."""

    first: int
    node: str
    task: str


@dataclass(frozen=True, slots=True)
class BeginWorker:
    """Start a worker for a GPU; one that is there is killed first."""

    gpu: int
    number: int
    runtimes: list[Runtime]
    folder: str
    """The folder in which the plan runs; workers run there if it exists on their machine."""


@dataclass(frozen=True, slots=True)
class Execute:
    """Give an order to the worker of a GPU."""

    gpu: int
    order: Order


@dataclass(frozen=True, slots=True)
class EndWorker:
    """Kill the worker of a GPU."""

    gpu: int


@dataclass(frozen=True, slots=True)
class SetClock:
    """Lock the clock of a GPU, as the power level of the next call there requires."""

    gpu: int
    mhz: int | None
    """None: the GPU's own clock."""


@dataclass(frozen=True, slots=True)
class LeaveGpus:
    """Kill all workers and end the task, so that its GPUs are free."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker has started."""

    gpu: int
    number: int
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerSaid:
    """The reply of a worker."""

    gpu: int
    number: int
    reply: Reply


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker ended, in words how."""

    gpu: int
    number: int
    how: str


@dataclass(frozen=True, slots=True)
class ClockTrouble:
    """Why a clock could not be locked."""

    sentence: str


@dataclass(frozen=True, slots=True)
class ReclaimNotice:
    """The scheduler wants the GPUs of the block back."""
