"""The results of requests. They are snapshots and do not change; ask the client for the current state."""

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct

from gpuyard.core.domain.values import ENDED, TaskStatus
from gpuyard.live.wire.answers import GpuAnswer, LeaseAnswer
from gpuyard.live.wire.task_answers import TaskAnswer
from gpuyard.system.call_runner import CALL_RUNNER


class Task(TaskAnswer, frozen=True, kw_only=True):
    """A task at the time of the answer."""

    def __str__(self) -> str:
        """Return the task in one short line; `repr` has every field."""
        where = f" on {', '.join(self.node_ids)}" if self.node_ids else ""
        return f"{self.id}{f' {self.name}' if self.name else ''}: {self.status}{where}"

    @property
    def number(self) -> int:
        """7 for task-7. Newer tasks have higher numbers."""
        return int(self.id.removeprefix("task-"))

    @property
    def is_call(self) -> bool:
        """Whether it runs a Python function that `submit`, `map` or an executor has sent."""
        return isinstance(self.command, list) and self.command[1:3] == ["-m", CALL_RUNNER]

    @property
    def ended(self) -> bool:
        """Whether it is in a final state."""
        return self.status in ENDED

    @property
    def succeeded(self) -> bool:
        """Whether it ended with success."""
        return self.status is TaskStatus.SUCCESS


class Page(Struct, frozen=True):
    """Some tasks of a list, newest first. `next_cursor` requests the next page; None: this is the last one."""

    tasks: list[Task]
    total: int
    next_cursor: str | None


class Lease(Struct, frozen=True):
    """GPUs that were granted to this program."""

    id: str
    gpus: list[str]
    """As NODE/INDEX."""
    node_id: str | None
    env: dict[str, str]
    """The environment variables with which a process uses exactly these GPUs."""
    expires_at: str | None
    created_at: str
    """When it was requested."""


class TaskHandle:
    """Something that stands for a task, such as the call of a function."""

    task: Task

    @property
    def id(self) -> str:
        """Its id, such as `task-7`."""
        return self.task.id

    @property
    def created_at(self) -> str:
        """When it was submitted."""
        return self.task.created_at


TaskRef: TypeAlias = Task | LeaseAnswer | Lease | TaskHandle | str | int
"""A task, its id (`task-7`) or its number. A task or lease means exactly that one, see `created_at_of`."""


def id_of(task: TaskRef) -> str:
    """Return the id, such as `task-7`."""
    if isinstance(task, str):
        return task
    return f"task-{task}" if isinstance(task, int) else task.id


def number_of(task: TaskRef) -> int | None:
    """Return 7 for task-7; None if it cannot be a task id."""
    digits = id_of(task).removeprefix("task-")
    return int(digits) if digits.isascii() and digits.isdigit() else None


def created_at_of(task: TaskRef) -> str | None:
    """Return when a task was submitted, which identifies it besides its number; None if only the number is known.

    Numbers repeat if a scheduler is replaced by one with another data folder, or with an older copy of it.
    """
    return None if isinstance(task, str | int) else task.created_at


def visible_devices(gpus: Iterable[str], known: Iterable[GpuAnswer]) -> str:
    """Return CUDA_VISIBLE_DEVICES for these GPUs: UUIDs of real ones, indices of virtual ones."""
    by_id = {gpu.id: gpu for gpu in known}
    names = []
    for gpu in gpus:
        found = by_id.get(gpu)
        index = gpu.rpartition("/")[2]
        names.append(index if found is None or found.virtual or not found.uuid else found.uuid)
    return ",".join(names)
