"""How a process says whose it is: a variable that all descendants of a command inherit.

A session can be left with setsid, a parent by forking twice. The variable goes along wherever nobody clears it.
"""

from collections.abc import Iterable

from gpuyard.live.agent.supervisor import proc
from gpuyard.live.agent.supervisor.messages import AttemptKey

NAME = "GPUYARD_MARK"


def value(mark: str, key: AttemptKey) -> str:
    """What the processes of an attempt carry. The folder's mark tells yards on one host apart."""
    return f"{mark}/{key.task}/{key.attempt}/{key.origin}"


def owner(mark: str, pid: int) -> AttemptKey | None:
    """The attempt whose mark a process carries; none: it carries none of this folder."""
    folder, _, rest = proc.variable(pid, NAME.encode()).partition(b"/")
    numbers = rest.split(b"/")
    if folder != mark.encode() or len(numbers) != 3 or not all(number.isdigit() for number in numbers):
        return None
    return AttemptKey(*map(int, numbers))


def owners(mark: str, pids: Iterable[int]) -> dict[AttemptKey, list[int]]:
    """Who of these carries the mark of which attempt."""
    found: dict[AttemptKey, list[int]] = {}
    for pid in pids:
        if (key := owner(mark, pid)) is not None:
            found.setdefault(key, []).append(pid)
    return found
