"""Runs the commands by which tasks tell of their start and end, as the user of the task and within limits.

A task may have ended when its command runs, so the command is no part of an attempt: it holds no GPU, and neither the end of
the task nor the next task on its GPUs waits for it. Time, output and number are bounded. A process of its own
(`notice_runner.py`) ends the command also if the agent is killed meanwhile.
"""

import asyncio
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gpuyard.live.agent import notice_runner
from gpuyard.live.agent.notice_runner import TIMED_OUT

AT_ONCE = 4
KILL_SECONDS = 5.0
"""Between SIGTERM and SIGKILL."""
MOST_OUTPUT_BYTES = 1 << 20
SHOWN_BYTES = 300
LOOK_SECONDS = 0.1
_TIMED_OUT = TIMED_OUT, -signal.SIGKILL


@dataclass(frozen=True, slots=True)
class NoticeCommand:
    """A command with everything that it needs to run."""

    shell: str
    env: Mapping[str, str]
    folder: str
    timeout_seconds: float
    uid: int | None = None
    """None: that of the agent."""
    gid: int | None = None
    groups: Sequence[int] = ()


class NoticeCommands:
    """Runs a few commands at a time."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)

    async def run(self, command: NoticeCommand) -> str:
        """Run a command to its end; return why it failed in one sentence, or nothing."""
        async with self._places:
            return await asyncio.to_thread(_run, command)


def _run(command: NoticeCommand) -> str:
    uid, gid = command.uid, command.gid
    if uid is not None and os.geteuid() not in {0, uid}:
        return f"The agent of this node is not root, so it cannot run commands as uid {uid}."
    changes = uid is not None and os.geteuid() == 0
    order = json.dumps({
        "shell": command.shell, "env": dict(command.env), "folder": command.folder, "timeout_seconds": command.timeout_seconds,
        "kill_seconds": KILL_SECONDS, "uid": uid if changes else None, "gid": uid if gid is None else gid, "groups": list(command.groups),
    })  # fmt: skip
    try:
        child = subprocess.Popen(  # noqa: S603 - our own module, by our own interpreter; without `user=`, so that nothing forks the agent
            [sys.executable, "-I", "-S", "-X", "utf8", notice_runner.__file__],
            cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return f"The command could not be started: {error}."
    assert child.stdin is not None
    with suppress(BrokenPipeError):
        child.stdin.write(order.encode())
        child.stdin.close()
    with child:
        try:
            output, is_whole = _output_of(child, time.monotonic() + command.timeout_seconds + 3 * KILL_SECONDS)
        finally:
            child.terminate()  # it ends everything that is left of the command
            try:
                code = child.wait(3 * KILL_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                code = child.wait()
    if not is_whole:
        return f"The command wrote more than {MOST_OUTPUT_BYTES >> 20} MiB, so it was ended."
    if code in _TIMED_OUT:
        return f"The command was ended after {command.timeout_seconds:g} s."
    if not code:
        return ""
    how = f"with exit code {code}" if code > 0 else f"by signal {-code}"
    shown = " ".join(output.decode(errors="replace").split())
    return f"The command ended {how}{f': {shown}' if shown else ''}."


def _output_of(child: "subprocess.Popen[bytes]", until: float) -> tuple[bytes, bool]:
    """Read until the command has ended; return the end of its output, and whether it has written little enough."""
    assert child.stdout is not None
    read, last = 0, b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while time.monotonic() < until:
            over = _has_ended(child.pid)  # looked at before reading, so that its last words are read
            ready = selector.select(0.0 if over else LOOK_SECONDS)
            part = os.read(child.stdout.fileno(), 1 << 16) if ready else b""
            read, last = read + len(part), (last + part)[-SHOWN_BYTES:]
            if read > MOST_OUTPUT_BYTES:
                return last, False
            if over and not part:
                break
            if ready and not part:  # it has closed its output and goes on
                selector.unregister(child.stdout)
    return last, True


def _has_ended(pid: int) -> bool:
    """Whether a child has ended. It is not reaped: until its group was killed, its number must not be another's."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
