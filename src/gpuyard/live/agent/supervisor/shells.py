"""Starts commands beside running attempts: the holder of each is a child that carries the mark of the attempt.

So it counts as a process that the command left behind (`process_tree.py`): it is stopped, suspended and ended with the
attempt. Its environment is the one with which the command was started, as the kernel has it.
"""

import os
import sys
from pathlib import Path

from gpuyard.live.agent.supervisor import launcher, proc
from gpuyard.live.agent.supervisor.messages import OpenShell
from gpuyard.live.agent.supervisor.spawn import console_of

SHELLS = ("/bin/bash", "/bin/sh")


class ShellNotStarted(Exception):
    """Carries the sentence for the user."""


def open_shell(asked: OpenShell, pid: int, group: Path | None) -> int:
    """Start the holder of a shell beside the command `pid`; return its pid."""
    pid = _behind_holder(pid)
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        folder = os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115 - the text as it is
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ShellNotStarted(f"The process of the task cannot be read on its node: {error.strerror}.") from None
    env = dict(os.fsdecode(word).split("=", 1) for word in words if b"=" in word) | asked.env
    uid, gid, groups = _owner_in(status)
    shell = env.get("SHELL") or next(path for path in SHELLS if Path(path).exists())
    order: dict[str, object] = {
        "argv": asked.argv or (shell,), "env": env, "cwd": folder, "uid": uid, "gid": gid, "groups": groups,
        "group": str(group / "cgroup.procs") if group is not None else "", "log": "", **(console_of(asked.console) or {}),
    }  # fmt: skip
    memory = launcher.order_in_memory(order)
    try:
        own = launcher.of_holder(env)
        return os.posix_spawn(sys.executable, launcher.holder_command(memory, -1), own, setsid=True, setsigmask=())
    except OSError as error:
        raise ShellNotStarted(f"A process cannot be started on its node: {error.strerror}.") from None
    finally:
        os.close(memory)


def _behind_holder(pid: int) -> int:
    """Return the command that a holder of a console has started; any other process is returned as it is."""
    if launcher.HOLDER.encode() not in proc.command_line(pid).split(b"\0"):
        return pid
    return next((found.pid for found in proc.all_processes().values() if found.parent == pid), pid)


def _owner_in(status: str) -> tuple[int, int, tuple[int, ...]]:
    """Return uid, gid and groups in the text of /proc/PID/status."""
    lines = {name: words.split() for name, _, words in (line.partition(":") for line in status.splitlines())}
    return int(lines["Uid"][0]), int(lines["Gid"][0]), tuple(map(int, lines.get("Groups", ())))
