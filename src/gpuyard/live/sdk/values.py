"""What comes back from a yard. Values: a task of yesterday says what was true yesterday; ask the client for a new one."""

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct

from gpuyard.core.domain.values import ENDED, TaskStatus
from gpuyard.live.wire.answers import GpuAnswer, LeaseAnswer
from gpuyard.live.wire.task_answers import TaskAnswer


class Task(TaskAnswer, frozen=True, kw_only=True):
    """A task as the yard told of it."""

    @property
    def number(self) -> int:
        """7 for task-7: the younger, the higher."""
        return int(self.id.removeprefix("task-"))

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.status in ENDED

    @property
    def succeeded(self) -> bool:
        """Whether it ended well."""
        return self.status is TaskStatus.SUCCESS


class Page(Struct, frozen=True):
    """Some tasks of a list, newest first. `next_cursor` asks for the next ones; none: these were the last."""

    tasks: list[Task]
    total: int
    next_cursor: str | None


class Lease(Struct, frozen=True):
    """GPUs that were given to this program."""

    id: str
    gpus: list[str]
    """As NODE/INDEX."""
    node_id: str | None
    env: dict[str, str]
    """What a process needs in its environment to use these GPUs and no others."""
    expires_at: str | None
    created_at: str
    """When it was asked for."""


TaskRef: TypeAlias = Task | LeaseAnswer | Lease | str | int
"""A task, its id (`task-7`) or its number. A task or lease stands for itself only, see `created_at_of`."""


def id_of(task: TaskRef) -> str:
    """`task-7`, however it was said."""
    if isinstance(task, str):
        return task
    return f"task-{task}" if isinstance(task, int) else task.id


def number_of(task: TaskRef) -> int | None:
    """7 for task-7; none for what can not be a task's id."""
    digits = id_of(task).removeprefix("task-")
    return int(digits) if digits.isascii() and digits.isdigit() else None


def created_at_of(task: TaskRef) -> str | None:
    """When a task was submitted, which tells it from another one under its number; none: only the number is known.

    Numbers repeat if a scheduler is replaced by one with another data folder, or with an older copy of it.
    """
    return None if isinstance(task, str | int) else task.created_at


def visible_devices(gpus: Iterable[str], known: Iterable[GpuAnswer]) -> str:
    """CUDA_VISIBLE_DEVICES for these GPUs: UUIDs where cards have them, indices of those that are pretended."""
    by_id = {gpu.id: gpu for gpu in known}
    names = []
    for gpu in gpus:
        card = by_id.get(gpu)
        index = gpu.rpartition("/")[2]
        names.append(index if card is None or card.virtual or not card.uuid else card.uuid)
    return ",".join(names)
