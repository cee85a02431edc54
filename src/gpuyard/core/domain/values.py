"""The base of every value, and the small words the others are written in.

A value is frozen, compared by content and never tracked by the garbage collector (`gc=False`: values hold only other
values, so they can not form cycles). msgspec makes one in about an eighth of the time a frozen dataclass needs and gives the
journal its codec for free; docs/decisions/0002 has the figures.
"""

from enum import StrEnum
from typing import NamedTuple, NewType

from msgspec import Struct

TaskId = NewType("TaskId", int)
NodeId = NewType("NodeId", str)
TenantId = NewType("TenantId", str)


class AttemptRef(NamedTuple):
    """Which attempt, in the whole world: two schedulers that use the same numbers have different origins."""

    task: TaskId
    attempt: int
    origin: int = 0
    """Drawn at random by the scheduler that placed it; 0: by one that drew none."""


NOT_THERE = "The node does not know this attempt any more."
"""How a lost attempt is explained that its node should have and has not."""

MILLI = 1000
"""GPUs are counted in thousandths, as whole numbers: a third of a GPU taken and given back a million times is still zero."""


class Value(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """A frozen record without behaviour of its own."""


class TaskClass(StrEnum):
    """The two kinds of work a yard splits its GPUs between."""

    ONLINE = "online"
    BATCH = "batch"


class Preemption(StrEnum):
    """What may be done to a running task so that another can have its GPUs, and what the task loses by it."""

    NEVER = "never"
    """Nothing: it runs until it ends."""
    SUSPEND = "suspend"
    """Its memory moves to the host; it goes on later, on the same node, and loses nothing."""
    CHECKPOINT = "checkpoint"
    """It is asked to save and stop; it goes on later, anywhere, from what it saved."""
    REQUEUE = "requeue"
    """It is stopped and starts from the beginning."""


class OnLost(StrEnum):
    """What happens to a task whose node is cut off."""

    RERUN = "rerun"
    """It is placed again; the old attempt is stopped when its node returns."""
    FENCE = "fence"
    """As rerun, and the node itself ends the old attempt when its lease runs out: never two at once."""
    WAIT = "wait"
    """It stays with its node until that returns or an operator decides."""


class TaskStatus(StrEnum):
    """What a user is told about a task."""

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


ENDED = (TaskStatus.SUCCESS, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.TIMEOUT)
"""What a task can be that is over."""


class Outcome(StrEnum):
    """How one attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """It ended by itself with a non-zero exit code or a signal."""
    STOPPED = "stopped"
    """We stopped it."""
    LOST = "lost"
    """Its node was lost, or the node does not know it any more."""
    NOT_LAUNCHED = "not_launched"
    """The node could not start it."""
    OUT_OF_MEMORY = "out_of_memory"
    """It ended by itself, and said that a GPU had no memory left for it."""
    TIMED_OUT = "timed_out"
    """The node ended it at its time-out; it need not wait for the scheduler to say so."""


class GpuHealth(StrEnum):
    """Whether a GPU may be given to a task."""

    OK = "ok"
    EXTERNAL = "external"
    """Somebody outside the yard uses it."""
    OFFLINE = "offline"
    """It is broken or taken out."""


class Link(StrEnum):
    """How close together the GPUs of one node should be: a wish that orders the choices and never refuses one."""

    ANY = "any"
    NUMA = "numa"
    NVLINK = "nvlink"
