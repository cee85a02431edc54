"""Starts commands beside running attempts: the holder of each is a child that carries the mark of the attempt.

So it counts as a process that the command left behind (`process_tree.py`): it is stopped, suspended and ended with the
attempt. Its environment is the one with which the command was started, as the kernel has it. Its user is the one of the
launch: the command may have become another one since, as sudo does.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from gpuyard.live.agent.supervisor import launcher, proc, process_tag
from gpuyard.live.agent.supervisor.attempt_record import Attempt
from gpuyard.live.agent.supervisor.messages import AttemptKey, OpenShell
from gpuyard.live.agent.supervisor.spawn import console_of

SHELLS = ("/bin/bash", "/bin/sh")
_OURS = "GPUYARD_"
"""Variables that a client cannot set: by them the processes of an attempt are known."""


class ShellNotStarted(Exception):
    """Carries the code and the sentence for the user."""

    def __init__(self, sentence: str, code: str = "ShellNotStarted") -> None:
        super().__init__(sentence)
        self.code = code


class OpenShells:
    """The holders of all shells, also of those that an earlier supervisor has started."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._holders: dict[int, tuple[AttemptKey, int]] = {}
        """Attempt and begin of each, by pid."""

    @property
    def pids(self) -> set[int]:
        """The holders."""
        return set(self._holders)

    def find(self, attempts: Iterable[Attempt], table: dict[int, proc.Process]) -> None:
        """Find those that run already: holders that carry the mark of an attempt and are not its command."""
        commands = {attempt.pid for attempt in attempts}
        for pid, found in table.items():
            if pid == found.session and pid not in commands and _is_holder(pid):
                key = process_tag.owner(self._mark, pid)
                if key is not None:
                    self._holders[pid] = key, found.began

    def ended(self, pid: int) -> None:
        """Take note of the end of a child."""
        self._holders.pop(pid, None)

    def open(self, asked: OpenShell, attempt: Attempt, group: Path | None) -> None:
        """Start one. Raise `ShellNotStarted` if that is not possible, or too many are open."""
        self._check_room(asked)
        pid = start_holder(asked, attempt, group, process_tag.value(self._mark, asked.key))
        found = proc.process(pid)
        self._holders[pid] = asked.key, found.began if found is not None else 0

    def _check_room(self, asked: OpenShell) -> None:
        for pid, (_, began) in list(self._holders.items()):
            if not proc.is_alive(pid, (began, began)):
                del self._holders[pid]
        own = sum(key == asked.key for key, _ in self._holders.values())
        ways = "End one of them (exit), or wait: a shell without a client is closed after its --linger."
        if own >= asked.most_of_attempt:
            sentence = (
                f"task-{asked.key.task} has {own} shells open, the maximum for one task "
                f"(executor.max_shells_per_task of its node). {ways}"
            )
            raise ShellNotStarted(sentence, "TooManyShells")
        if own and len(self._holders) >= asked.most:
            sentence = (
                f"The node has {len(self._holders)} shells open, its maximum (executor.max_shells); only a task without "
                f"a shell gets one now, and task-{asked.key.task} has {own}. {ways}"
            )
            raise ShellNotStarted(sentence, "TooManyShells")


def start_holder(asked: OpenShell, attempt: Attempt, group: Path | None, mark: str) -> int:
    """Start the holder of a shell beside the command of an attempt; return its pid."""
    pid = _behind_holder(attempt.pid)
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        folder = os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115 - the text as it is
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ShellNotStarted(f"The process of the task cannot be read on its node: {error.strerror}.") from None
    env = dict(os.fsdecode(word).split("=", 1) for word in words if b"=" in word)
    env[process_tag.NAME] = mark  # a process can change what the kernel shows of its environment
    own = launcher.of_holder(env)
    env |= {name: value for name, value in asked.env.items() if not name.startswith(_OURS)}
    uid, gid, groups = _owner_of(attempt, status)
    shell = env.get("SHELL") or next(path for path in SHELLS if Path(path).exists())
    order: dict[str, object] = {
        "argv": asked.argv or (shell,), "env": env, "cwd": folder, "uid": uid, "gid": gid, "groups": groups,
        "group": str(group / "cgroup.procs") if group is not None else "", "log": "", **(console_of(asked.console) or {}),
    }  # fmt: skip
    memory = launcher.order_in_memory(order)
    try:
        return os.posix_spawn(sys.executable, launcher.holder_command(memory, -1), own, setsid=True, setsigmask=())
    except OSError as error:
        raise ShellNotStarted(f"A process cannot be started on its node: {error.strerror}.") from None
    finally:
        os.close(memory)


def _is_holder(pid: int) -> bool:
    return launcher.HOLDER.encode() in proc.command_line(pid).split(b"\0")


def _behind_holder(pid: int) -> int:
    """Return the command that a holder of a console has started; any other process is returned as it is."""
    if not _is_holder(pid):
        return pid
    return next((found.pid for found in proc.all_processes().values() if found.parent == pid), pid)


def _owner_of(attempt: Attempt, status: str) -> tuple[int, int, tuple[int, ...]]:
    """Return uid, gid and groups of the task. `status`: the text of /proc/PID/status of its command."""
    lines = {name: words.split() for name, _, words in (line.partition(":") for line in status.splitlines())}
    uids = set(map(int, lines["Uid"]))
    if attempt.uid is None:
        return int(lines["Uid"][0]), int(lines["Gid"][0]), tuple(map(int, lines.get("Groups", ())))
    if uids != {attempt.uid}:
        sentence = (
            f"The command of task-{attempt.key.task} runs as another user now, as with sudo, so no shell can be opened "
            "beside it. Submit a task of its own for the shell."
        )
        raise ShellNotStarted(sentence, "OtherUser")
    if attempt.gid is None:  # noted by an older supervisor
        return attempt.uid, int(lines["Gid"][0]), tuple(map(int, lines.get("Groups", ())))
    return attempt.uid, attempt.gid, attempt.groups
