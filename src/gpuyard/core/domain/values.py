"""The base class of all values, and the identifiers and enumerations that other values use.

A value is frozen, compared by content and never tracked by the garbage collector (`gc=False`: values hold only other
values, so they cannot form cycles). msgspec creates one in about an eighth of the time of a frozen dataclass, and also
provides the codec of the journal; docs/decisions/0002 has the figures.
"""

from enum import StrEnum
from typing import NamedTuple, NewType

from msgspec import Struct

TaskId = NewType("TaskId", int)
NodeId = NewType("NodeId", str)
TenantId = NewType("TenantId", str)


class AttemptRef(NamedTuple):
    """A globally unique reference to an attempt: schedulers that use the same task numbers have different origins."""

    task: TaskId
    attempt: int
    origin: int = 0
    """A random number of the scheduler that placed the attempt; 0: that scheduler has none."""


NOT_THERE = "The node no longer knows this attempt."
"""The explanation of an attempt that was lost because its node no longer has it."""

MILLI = 1000
"""GPUs are counted in integer thousandths, so taking and returning a third of a GPU causes no rounding errors."""

PARAMETER_PREFIX = "GPUYARD_PARAM_"
"""The prefix of the variables in which a task of a sweep finds its values; the client sets them."""


class Value(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """The base class: a frozen record without behavior."""


class TaskClass(StrEnum):
    """The two classes of tasks that the GPUs of a cluster are split between."""

    ONLINE = "online"
    BATCH = "batch"


class Preemption(StrEnum):
    """How a running task may be preempted to free its GPUs, and what it loses."""

    NEVER = "never"
    """It is not preempted; it runs until it ends."""
    SUSPEND = "suspend"
    """Its GPU memory is moved to the host; it resumes later on the same node and loses nothing."""
    CHECKPOINT = "checkpoint"
    """It is asked to save its state and stop; it resumes later on any node from the saved state."""
    REQUEUE = "requeue"
    """It is stopped and later starts from the beginning."""


class OnLost(StrEnum):
    """What happens to a task whose node loses contact with the scheduler."""

    RERUN = "rerun"
    """It is placed again; the old attempt is stopped when its node returns."""
    FENCE = "fence"
    """As `rerun`, but the node itself ends the old attempt when its lease expires, so that two never run at once."""
    WAIT = "wait"
    """It stays assigned to its node until the node returns or an operator decides."""


class TaskStatus(StrEnum):
    """The status of a task as shown to users."""

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


ENDED = (TaskStatus.SUCCESS, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.TIMEOUT)
"""The statuses of a task that has ended."""


class Outcome(StrEnum):
    """How one attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """It exited by itself with a non-zero code, or was killed by a signal."""
    STOPPED = "stopped"
    """The scheduler stopped it."""
    LOST = "lost"
    """Its node was lost, or no longer knows it."""
    NOT_LAUNCHED = "not_launched"
    """The node could not start it."""
    OUT_OF_MEMORY = "out_of_memory"
    """It exited by itself and reported that a GPU was out of memory."""
    TIMED_OUT = "timed_out"
    """The node ended it at its timeout, without waiting for a command of the scheduler."""


class GpuHealth(StrEnum):
    """Whether a GPU may be assigned to tasks."""

    OK = "ok"
    EXTERNAL = "external"
    """A process that gpuyard does not manage uses it."""
    OFFLINE = "offline"
    """It is broken or was taken out of service."""


class Link(StrEnum):
    """How the GPUs of a task in one node should be connected. A preference: it ranks choices and never rejects one."""

    ANY = "any"
    NUMA = "numa"
    NVLINK = "nvlink"
