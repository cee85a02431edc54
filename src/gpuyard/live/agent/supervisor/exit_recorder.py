"""The keeper process (`gpuyard-keeper`): the parent of a supervisor, which records how tasks end if it is killed.

A process whose parent is gone becomes the child of the nearest ancestor that is a child subreaper. For the tasks of a
supervisor that is the keeper. It waits for its children, and records how each of them ended before it reaps it:

    keeper (subreaper) ── supervisor (subreaper) ── task      the usual case: the supervisor reaps, the keeper sleeps
    keeper (subreaper) ── task                                the supervisor was killed: the keeper reaps

    pid, start of the process in ticks, 1 if it never became a command, exit code or -, signal or -

Each supervisor has its own keeper. The next supervisor brings the next keeper; the old one stays until its last task
has ended, and then ends as well. It does nothing else, holds no lock and forks nothing. It is run from this file by its
path (`python -I -S`) and imports only what is compiled into the interpreter, and `os`.
"""

import _signal  # type: ignore[import-not-found]  # the compiled half of `signal`: without enums
import errno
import os
import sys
import time

NAME = "gpuyard-keeper"
EXITS = "exits.log"
STARTER, STARTER_CODE = "gpuyard-launch", 127
"""`launcher.NAME`, and the exit code of a starter.

A process with this name that ends with this code, or by a signal, may never have become a command. A command can do the
same, so the next supervisor trusts this only if the start of the command is not recorded.
"""
RETRY_SECONDS = 1.0


def keep(folder: str, supervisor: int) -> None:
    """Wait for all children and record how they ended. Return when there are none."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            return
        assert found is not None
        if found.si_pid != supervisor:
            _note(folder, _line(found.si_pid, found.si_code == os.CLD_EXITED, found.si_status))
        os.waitpid(found.si_pid, 0)


def _line(pid: int, exited: bool, status: int) -> bytes:
    """Build the record of a process that has ended. It must not be reaped yet: its entry in /proc is read."""
    descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
    name = content[content.index(b"(") + 1 : content.rindex(b")")].decode(errors="replace")
    began = int(content[content.rindex(b")") + 2 :].split()[19])
    code, signal = (status, "-") if exited else ("-", status)
    never_began = name == STARTER and (not exited or status == STARTER_CODE)
    return f"{pid} {began} {int(never_began)} {code} {signal}\n".encode()


def _note(folder: str, line: bytes) -> None:
    """Append a record. While the disk is full, retry; the process is not reaped, so its exit code is kept."""
    while True:
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(f"{folder}/{EXITS}", flags, 0o600)
            try:
                if os.write(descriptor, line) == len(line):
                    return
                os.write(descriptor, b"\n")  # incomplete lines are ignored
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENFILE, errno.EMFILE, errno.ENOMEM}:
                return  # the folder is gone: no supervisor will read it
        time.sleep(RETRY_SECONDS)


def main(folder: str, supervisor: int) -> None:
    """Run as the keeper of a supervisor that has been started."""
    # Only SIGKILL can end it before its children. It forks nothing, so nothing inherits the ignored signals.
    for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGPIPE):
        _signal.signal(number, _signal.SIG_IGN)
    with open("/proc/self/comm", "w", encoding="ascii") as file:  # noqa: PTH123
        file.write(NAME)
    keep(folder, supervisor)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
