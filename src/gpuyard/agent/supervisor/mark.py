"""How a process says whose it is: a variable that all descendants of a command inherit.

A session can be left with setsid, a parent by forking twice. The variable goes along wherever nobody clears it.
"""

from collections.abc import Iterable

from gpuyard.agent.supervisor import proc
from gpuyard.agent.supervisor.messages import Key

NAME = "GPUYARD_MARK"


def value(mark: str, key: Key) -> str:
    """What the processes of an attempt carry. The folder's mark tells yards on one host apart."""
    return f"{mark}/{key.task}/{key.attempt}"


def owner(mark: str, pid: int) -> Key | None:
    """The attempt whose mark a process carries; none: it carries none of this folder."""
    folder, _, rest = proc.variable(pid, NAME.encode()).partition(b"/")
    task, _, attempt = rest.partition(b"/")
    if folder != mark.encode() or not task.isdigit() or not attempt.isdigit():
        return None
    return Key(int(task), int(attempt))


def owned(mark: str, key: Key, pids: Iterable[int]) -> list[int]:
    """Those that carry the mark of one attempt."""
    wanted = value(mark, key).encode()
    return [pid for pid in pids if proc.variable(pid, NAME.encode()) == wanted]
