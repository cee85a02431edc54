"""Runs one command of a notice as another user, and ends everything that is left of it.

The agent must not fork: its libraries have threads, and their fork handlers can crash the child before it executes
anything. So it executes this file (`python -I -S`), which has one thread, forks the command, and waits for it. The kernel
gives every orphan among its descendants to this process, also one that has left its session and cleared its variables, so
nothing of the command outlives it.

The order comes as JSON on the standard input. The variables of the command must not be those of this process, which is root.
Exit code: that of the command, 128 and the number of the signal that ended it, or 124 if its time was over.
"""

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any, NoReturn

TIMED_OUT = 124
_WORDS = 'cd -- "$1" 2>/dev/null || cd / ; exec /bin/sh -c "$2"'
"""The folder is entered as the user: a home on NFS may be closed to root."""
_PR_SET_CHILD_SUBREAPER = 36
_AWAITED = (signal.SIGCHLD, signal.SIGTERM)
_LOOK_SECONDS = 0.02


def _be_the_command(order: dict[str, Any]) -> NoReturn:
    try:
        os.setsid()
        if order["uid"] is not None:
            os.setgroups(order["groups"])
            os.setresgid(order["gid"], order["gid"], order["gid"])
            os.setresuid(order["uid"], order["uid"], order["uid"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve("/bin/sh", ["/bin/sh", "-c", _WORDS, "sh", order["folder"], order["shell"]], order["env"])  # noqa: S606 - what a user has submitted, as that user
    except (OSError, ValueError) as error:
        os.write(2, f"It could not be started: {error}.\n".encode(errors="replace"))
    finally:
        os._exit(126)


def _ends(child: int, until: float) -> bool:
    """Return whether the command ends in time, and before the agent ends it. It is not reaped yet."""
    while True:
        _reap_others(child)
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        left_seconds = until - time.monotonic()
        if left_seconds <= 0:
            return False
        told = signal.sigtimedwait(_AWAITED, left_seconds)
        if told is not None and told.si_signo == signal.SIGTERM:
            return False


def _reap_others(child: int) -> None:
    """Reap orphans that have ended, so that they do not pile up."""
    for pid in _children():
        if pid != child:
            _reaped(pid)


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _children() -> list[int]:
    own = str(os.getpid())
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - `children` of a thread is not in every kernel
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - pathlib would double our memory
                    parent = file.read().rpartition(b")")[2].split()[1].decode()
            except (OSError, IndexError):  # it has ended meanwhile
                continue
            if parent == own:
                found.append(int(name))
    return found


def _end_all(until: float) -> None:
    """Kill every descendant: when one ends, its children become ours."""
    while time.monotonic() < until:
        left = [pid for pid in _children() if not _reaped(pid)]
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # it has ended; or, if the agent is not root, it has become another user
                continue
        signal.sigtimedwait((signal.SIGCHLD,), _LOOK_SECONDS)


def main() -> int:
    """Run the command of the order."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    order = json.load(sys.stdin.buffer)
    kill_seconds = order["kill_seconds"]
    os.umask(0o022)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        print(f"Its processes cannot be kept together: {os.strerror(ctypes.get_errno())}.", flush=True)
        return 126
    child = os.fork()
    if not child:
        _be_the_command(order)
    if not _ends(child, time.monotonic() + order["timeout_seconds"]):
        (os.killpg if os.getpgid(child) == child else os.kill)(child, signal.SIGTERM)
        _ends(child, time.monotonic() + kill_seconds)
        _end_all(time.monotonic() + kill_seconds)
        return TIMED_OUT
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    _end_all(time.monotonic() + kill_seconds)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
