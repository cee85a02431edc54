"""Starts the commands of attempts without ever waiting for a file system. `launcher.py` explains how.

A starter exists before it is needed, so its pid can be written to disk before it is told what to run. It answers by
closing its socket (it has become the command) or with the error; the supervisor's loop listens to that as to any
socket.
"""

import array
import errno
import marshal
import os
import selectors
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gpuyard.live.agent.supervisor import launcher, proc
from gpuyard.live.agent.supervisor.clock import now
from gpuyard.live.agent.supervisor.messages import Launch, LaunchConsole
from gpuyard.live.agent.supervisor.process_tag import owner

MOST_LETTERS = 200
"""Limit on the characters of a command that are quoted in a message."""
SPARE = 4
"""Starters kept ready while idle."""
MOST_READY = 16
"""Limit on the starters kept ready while launches wait for them."""
ANSWER_SECONDS = 5.0
"""How long a launcher may take to make a starter before it is replaced. Doubled for each replacement in a row."""
MOST_ANSWER_SECONDS = 40.0
PAUSE_SECONDS = 1.0
"""Least time between the starts of two launchers, so that one that always fails costs little."""


class SpawnError(Exception):
    """Carries the sentence for the user."""


class Starter:
    """A process that waits for its order, or carries it out."""

    def __init__(self, pid: int, born: proc.ProcessStart, channel: socket.socket) -> None:
        self.pid = pid
        self.born = born
        self.channel = channel
        self._unsent = self._heard = b""
        channel.setblocking(False)

    def order(self, content: bytes) -> bool:
        """Send the order. Return whether all of it has been sent."""
        self._unsent = len(content).to_bytes(launcher.LENGTH_BYTES, "big") + content
        return self.send()

    def send(self) -> bool:
        """Send the rest of the order.

        Return whether nothing is left to send, which is also so if the starter is gone.
        """
        if not self._unsent:
            return True
        try:
            self._unsent = self._unsent[self.channel.send(self._unsent) :]
        except BlockingIOError:
            return False
        except OSError:
            self._unsent = b""
        return not self._unsent

    def answer(self) -> bytes | None:
        """Return what it sent before it closed its socket: that it begins, or what failed. None if it is still open."""
        try:
            while more := self.channel.recv(1 << 16):
                self._heard += more
        except BlockingIOError:
            return None
        except ConnectionError:
            pass  # closed, with a part of the order unread
        return self._heard

    def close(self) -> None:
        """Close the socket. The answer has arrived, or is not needed."""
        self.channel.close()

    def kill(self) -> None:
        """Kill the starter, whatever it waits for, so that it never executes anything."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Starters:
    """The starters that are ready, and the launcher that makes them."""

    def __init__(
        self, mark: str, selector: selectors.BaseSelector, helpers: set[int], made: Callable[[], None]
    ) -> None:
        """`helpers` are children that belong to no attempt; `made` is called when there are new starters."""
        self._mark = mark
        self._helpers = helpers
        self._selector = selector
        self._made = made
        self._ready: deque[Starter] = deque()
        self._asked: deque[int] = deque()
        """For each starter requested: when, in ticks."""
        self._forks = not launcher.can_clone()
        self._control: socket.socket | None = None
        """The socket to the launcher."""
        self._launcher_pid = 0
        self._begin_at = 0.0
        """No launcher is started before this time, on the boot clock."""
        self._answer_seconds = ANSWER_SECONDS
        self._answer_by = 0.0
        """When the launcher is replaced if requested starters are missing."""

    def __len__(self) -> int:
        return len(self._ready)

    def prepare(self, wanted: int) -> None:
        """Request starters until `wanted` are ready, or a few spare ones."""
        there = len(self._ready) + len(self._asked)
        if there > max(wanted, SPARE // 2):
            return  # requested in batches: a fork next to every launch would slow it down
        missing = min(max(wanted, SPARE), MOST_READY) - there
        if missing <= 0 or (self._control is None and now() < self._begin_at):
            return
        try:
            if self._forks:
                for _ in range(missing if wanted else 0):
                    self.give_back(_fork())
                return
            if self._control is None:
                self._begin()
            assert self._control is not None
            if not self._asked:
                self._answer_by = now() + self._answer_seconds
            self._asked.extend([proc.tick()] * missing)  # before they can exist
            self._control.send((launcher.NOW if wanted else launcher.LATER) * missing)
        except OSError:  # retried after a pause, while launches wait
            self._begin_at = now() + PAUSE_SECONDS
            self.lose_launcher()

    def due_at(self, wanted: int) -> float | None:
        """Return when to call `tick`; None if there is nothing to wait for."""
        if self._asked:
            return self._answer_by
        return self._begin_at if wanted and not self._ready else None

    def tick(self, wanted: int) -> None:
        """Replace a launcher that does not answer, and request starters again if launches wait for them."""
        if self._asked and now() >= self._answer_by:
            self.receive()
            if self._asked and now() >= self._answer_by:
                self._answer_seconds = min(2 * self._answer_seconds, MOST_ANSWER_SECONDS)
                self.lose_launcher()
        if wanted:
            self.prepare(wanted)

    def _hear(self) -> None:
        self.receive()
        self._made()

    def receive(self) -> None:
        """Take over the starters that the launcher has made."""
        while self._control is not None:
            try:
                word, ancillary, _, _ = self._control.recvmsg(8, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                word, ancillary = b"", []
            pid = int.from_bytes(word, "big", signed=True)
            if pid <= 0 or not ancillary:
                self._forks |= pid in {-errno.ENOSYS, -errno.EPERM, -errno.EINVAL}
                self.lose_launcher()
                return
            descriptor = array.array("i", ancillary[0][2])[0]
            before = self._asked.popleft() if self._asked else 0
            self._answer_seconds = ANSWER_SECONDS
            self._answer_by = now() + ANSWER_SECONDS
            self._helpers.add(pid)
            self._ready.append(Starter(pid, (before, proc.tick()), socket.socket(fileno=descriptor)))

    def began_unannounced(self, pid: int) -> int | None:
        """Return when an unknown child began, in ticks, if it looks like a starter; None if it does not.

        Any process can look like one. If no launcher will announce it any more, it is killed: either it is a starter
        that cannot get an order, or it is not a starter.
        """
        found = proc.process(pid) if _looks_like_one(pid, self._mark) else None
        if found is None:
            return None
        if not self._asked or found.began < self._asked[0]:
            with suppress(PermissionError):
                os.kill(pid, signal.SIGKILL)
        return found.began

    def take(self) -> Starter:
        """Take a starter that is ready."""
        starter = self._ready.popleft()
        self._helpers.discard(starter.pid)
        return starter

    def give_back(self, starter: Starter) -> None:
        """Return a starter that got no order."""
        self._helpers.add(starter.pid)
        self._ready.appendleft(starter)

    def lose(self, pid: int) -> bool:
        """Handle the end of a child. Return whether it was the launcher or a ready starter."""
        self._helpers.discard(pid)
        if pid == self._launcher_pid:
            self._launcher_pid = 0
            self.receive()
            self.lose_launcher()
            return True
        for starter in self._ready:
            if starter.pid == pid:
                self._ready.remove(starter)
                starter.close()
                return True
        return False

    def lose_launcher(self) -> None:
        """Kill the launcher; another one is started when needed. It stays a helper until it has been waited for."""
        if self._control is not None:
            self._selector.unregister(self._control)
            self._control.close()
        self._control = None
        if self._launcher_pid:
            os.kill(self._launcher_pid, signal.SIGKILL)  # it may hang, and would not notice the closed socket
        self._launcher_pid = 0
        self._asked.clear()

    def close(self) -> None:
        """Close all sockets. The launcher is killed, and the starters end."""
        self.lose_launcher()
        while self._ready:
            self.take().close()

    def _begin(self) -> None:
        self._begin_at = now() + PAUSE_SECONDS
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            theirs.set_inheritable(True)
            words = (sys.executable, "-I", "-S", "-X", "utf8", launcher.__file__, str(theirs.fileno()), self._mark)
            self._launcher_pid = os.posix_spawn(sys.executable, words, os.environ, setsigmask=())
        self._helpers.add(self._launcher_pid)
        ours.setblocking(False)
        self._control = ours
        self._selector.register(ours, selectors.EVENT_READ, self._hear)


def end_old_launchers(mark: str) -> set[int]:
    """Kill launchers and starters of a supervisor that is gone, so that they begin nothing. Return their pids."""
    pids = set()
    for pid in proc.all_processes():
        if _looks_like_one(pid, mark):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                pids.add(pid)
    return pids


def _looks_like_one(pid: int, folder_mark: str) -> bool:
    """Return whether a process has a launcher's command line and belongs to no attempt. Starters have the same one."""
    words = proc.command_line(pid).split(b"\0")
    is_one = os.fsencode(launcher.__file__) in words and folder_mark.encode() in words
    return is_one and owner(folder_mark, pid) is None


def _fork() -> Starter:
    """Make a starter without a launcher, at the cost of a fork of the supervisor itself."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    before = proc.tick()
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        proc.set_process_name(launcher.NAME)
        launcher.restore_oom_score()
        for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:  # noqa: PTH208
            if descriptor > 2 and descriptor != theirs.fileno():
                with suppress(OSError):
                    os.close(descriptor)
        launcher.start(theirs)
    theirs.close()
    return Starter(pid, (before, proc.tick()), ours)


# --- orders and their results -----------------------------------------------------------------------------------------


def order_of(launch: Launch, env: dict[str, str], group: Path | None) -> bytes:
    """Encode the order for a starter. Raise `SpawnError` if the launch cannot be carried out."""
    if launch.uid is not None:
        _check_user(launch.uid)
    gid = launch.gid if launch.gid is not None else -1 if launch.uid is None else launch.uid
    order: launcher.LaunchOrder = (
        launch.argv or ("/bin/sh", "-c", launch.shell), env, launch.cwd, launch.uid, gid, launch.groups, launch.output,
        str(group / "cgroup.procs") if group is not None else "", launch.checkpoint_dir,
        launch.python, launch.umask, launch.limits, console_of(launch.console),
    )  # fmt: skip
    return marshal.dumps(order)


def console_of(console: LaunchConsole | None) -> dict[str, object] | None:
    """Return what the holder of a console needs to know of it; None if there is none."""
    if console is None:
        return None
    return {
        "socket": console.socket, "terminal": console.terminal, "columns": console.columns, "rows": console.rows,
        "linger": console.linger_seconds, "record": console.record,
    }  # fmt: skip


def why(answer: bytes, launch: Launch) -> str:
    """Return the message for a starter's answer."""
    failure: launcher.Failure = marshal.loads(answer.removeprefix(launcher.ABOUT_TO_BEGIN))  # noqa: S302 - from our own starter
    step, number, text = failure
    if step == launcher.TEXT:
        return f"The command, its environment or its work dir contains text that cannot be passed to a process: {text}."
    if step == launcher.OUTPUT:
        return f"Its output cannot be written to {launch.output} on this node: {text}."
    if step == launcher.CHECKPOINT:
        return (
            f"Its checkpoint folder {launch.checkpoint_dir} cannot be made on this node: {text}. Check "
            "executor.checkpoint_dir there."
        )
    if step == launcher.PYTHON:
        return (
            f"The Python of its virtual environment, {launch.python}, does not exist on this node. Put the environment on a "
            "disk that all nodes share, create it there under the same path, or submit the task with --clean-env."
        )
    return _sentence(step, number, text, launch)


def too_slow(launch: Launch) -> str:
    """Return the message for a starter that did not answer in time."""
    return (
        f"The task could not be started within {launch.launch_seconds:g} s: the file system of its "
        f"work dir {launch.cwd}, of its checkpoint folder or of its command does not respond on this "
        "node. Check the mounts there, or use another work dir."
    )


def no_starter(launch: Launch) -> str:
    """Return the message for a launch that got no starter in time."""
    return (
        f"The task could not be started within {launch.launch_seconds:g} s: the supervisor of its "
        f"node got no process to start it in. Check on that node that {sys.executable} runs and that "
        "processes can be forked."
    )


def _check_user(uid: int) -> None:
    if os.geteuid() not in {0, uid}:
        raise SpawnError(f"The agent of this node is not root, so it cannot run tasks as uid {uid}.")
    if not 0 <= uid < 2**32 - 1:
        raise SpawnError(f"This node has no user with uid {uid}.")


def _sentence(step: str, number: int, text: str, launch: Launch) -> str:
    """Return the message: what failed, and what to do about it."""
    command = (launch.argv or ("/bin/sh",))[0][:MOST_LETTERS]
    # The name comes with the launch: a lookup could wait for a directory service.
    user = launch.env.get("USER")
    who = "the agent's user" if launch.uid is None else f"user {user}" if user else f"uid {launch.uid}"
    if step == launcher.WORK_DIR:
        if number in {errno.ENOENT, errno.ENOTDIR}:
            return f"The work dir {launch.cwd} does not exist on this node. Create it there, or use another one."
        if number == errno.EACCES:
            return (
                f"The work dir {launch.cwd} may not be entered by {who} on this node. Change its "
                "permissions, or use another one."
            )
        return f"The work dir {launch.cwd} cannot be used on this node: {text}."
    if number in {errno.ENOENT, errno.ENOTDIR}:
        return f"The command {command!r} was not found on this node. Use its full path, or install it there."
    if number == errno.EACCES:
        return f"The command {command!r} may not be executed by {who} on this node."
    if number == errno.ENOEXEC:
        return (
            f"The command {command!r} is not a program that this node can execute. A script begins with "
            "#! and its interpreter."
        )
    if number == errno.E2BIG:
        return f"The command {command!r} with its environment is longer than the kernel of the node accepts."
    return f"The command {command!r} could not be started on this node: {text}."
