"""Marks the processes of an attempt with an environment variable that all descendants of a command inherit.

A process can leave its session with setsid, and its parent by forking twice. It keeps the variable unless it clears it.
"""

from collections.abc import Iterable

from gpuyard.live.agent.supervisor import proc
from gpuyard.live.agent.supervisor.messages import AttemptKey

NAME = "GPUYARD_MARK"


def value(mark: str, key: AttemptKey) -> str:
    """Return the value for the processes of an attempt. The folder's mark distinguishes several agents on one host."""
    return f"{mark}/{key.task}/{key.attempt}/{key.origin}"


def owner(mark: str, pid: int) -> AttemptKey | None:
    """Return the attempt whose mark a process carries; None if it has no mark of this folder."""
    folder, _, rest = proc.variable(pid, NAME.encode()).partition(b"/")
    numbers = rest.split(b"/")
    if folder != mark.encode() or len(numbers) != 3 or not all(number.isdigit() for number in numbers):
        return None
    return AttemptKey(*map(int, numbers))


def owners(mark: str, pids: Iterable[int]) -> dict[AttemptKey, list[int]]:
    """Group processes by the attempt whose mark they carry."""
    found: dict[AttemptKey, list[int]] = {}
    for pid in pids:
        if (key := owner(mark, pid)) is not None:
            found.setdefault(key, []).append(pid)
    return found
