"""Notices: whom to tell when a task starts, ends or fails, and what is still to be told."""

from enum import StrEnum
from typing import TypeAlias

from gpuyard.core.domain.values import TaskId, Value

MOST_NOTICES = 8
"""Maximum number of notices of a task."""
Sender: TypeAlias = tuple[str, str]
"""Tenant and user of a message."""


class Moment(StrEnum):
    """An occurrence in the life of a task that people want to be told about."""

    START = "start"
    """Its first attempt has started."""
    END = "end"
    """It has ended, in any way."""
    FAIL = "fail"
    """It has failed, or has reached its timeout."""


class TaskNotice(Value, frozen=True):
    """Somebody to be told about a task, or once about a whole array."""

    on: tuple[Moment, ...]
    target: str
    """A web address, or `mailto:` and mail addresses."""
    each: bool = False
    """For an array: about each of its tasks instead of once."""
    place: int = 0
    """For an array: the position of this task in it."""
    count: int = 1
    """For an array: how many tasks it has."""


class PendingNotice(Value, frozen=True):
    """A message that has not been delivered yet."""

    task: TaskId
    """The task; for an array, the one that caused it."""
    number: int
    """The position of the notice in the list of the task."""
    moment: Moment
    target: str
    since: float
    count: int = 1
    """Above 1: it is about an array with so many tasks."""
    ended: tuple[tuple[str, int], ...] = ()
    """For an array that has ended: number of tasks by status."""
    tenant: str = ""
    user: str = ""

    @property
    def sender(self) -> "Sender":
        """Whose message it is."""
        return self.tenant, self.user


class ArrayProgress(Value, frozen=True):
    """What has happened in an array about which notices are sent."""

    first: TaskId
    count: int
    started: bool = False
    failed: bool = False
    ended: tuple[tuple[str, int], ...] = ()
    """Number of ended tasks by status, sorted."""
