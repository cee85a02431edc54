"""Starts the command of an attempt, without ever waiting for a file system: `launcher.py` says how.

A starter is there before it is needed, so its pid can be noted before it is told what to run. It answers by closing its
socket (it has become the command) or with what failed; the supervisor's loop listens to that as to everything else.
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
from gpuyard.live.agent.supervisor.messages import Launch
from gpuyard.live.agent.supervisor.process_tag import owner

MOST_LETTERS = 200
"""Of a command, in a sentence about it."""
SPARE = 4
"""Starters that are kept ready while nothing happens."""
MOST_READY = 16
"""Starters that are kept ready while launches wait for them."""
ANSWER_SECONDS = 5.0
"""How long a launcher may take to make a starter before it is replaced; twice as long for each one after that."""
MOST_ANSWER_SECONDS = 40.0
PAUSE_SECONDS = 1.0
"""From the start of a launcher to the start of the next one, so that one that always fails costs little."""


class CanNotSpawn(Exception):
    """Carries the sentence for the user."""


class Starter:
    """A process that waits for its order, or carries it out."""

    def __init__(self, pid: int, born: proc.ProcessStart, line: socket.socket) -> None:
        self.pid = pid
        self.born = born
        self.line = line
        self._unsent = self._heard = b""
        line.setblocking(False)

    def order(self, content: bytes) -> bool:
        """Tell it what to run. Whether all of it is said already."""
        self._unsent = len(content).to_bytes(launcher.LENGTH_BYTES, "big") + content
        return self.send()

    def send(self) -> bool:
        """Send what is left of the order. Whether that was all; a starter that is gone needs none."""
        if not self._unsent:
            return True
        try:
            self._unsent = self._unsent[self.line.send(self._unsent) :]
        except BlockingIOError:
            return False
        except OSError:
            self._unsent = b""
        return not self._unsent

    def answer(self) -> bytes | None:
        """What it said before it closed its line: that it begins, or what failed. None: it is still at it."""
        try:
            while more := self.line.recv(1 << 16):
                self._heard += more
        except BlockingIOError:
            return None
        except ConnectionError:
            pass  # closed, with a part of the order unread
        return self._heard

    def close(self) -> None:
        """Its answer came, or does not matter."""
        self.line.close()

    def kill(self) -> None:
        """It executes nothing from here on, whatever it waits for."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Starters:
    """The starters that are ready, and the launcher that makes them."""

    def __init__(
        self, mark: str, selector: selectors.BaseSelector, helpers: set[int], made: Callable[[], None]
    ) -> None:
        """`helpers` are children that belong to no attempt; `made` is called when there are more starters than before."""
        self._mark = mark
        self._helpers = helpers
        self._selector = selector
        self._made = made
        self._ready: deque[Starter] = deque()
        self._asked: deque[int] = deque()
        """For each starter that was asked for: when, in ticks."""
        self._forks = not launcher.can_clone()
        self._control: socket.socket | None = None
        """The line to the launcher."""
        self._launcher_pid = 0
        self._begin_at = 0.0
        """No launcher is started before this instant, on the boot clock."""
        self._answer_seconds = ANSWER_SECONDS
        self._answer_by = 0.0
        """When the launcher is given up on, if starters were asked for."""

    def __len__(self) -> int:
        return len(self._ready)

    def prepare(self, wanted: int) -> None:
        """See to it that there will be so many, or a few."""
        there = len(self._ready) + len(self._asked)
        if there > max(wanted, SPARE // 2):
            return  # several at a time: a fork beside every launch would slow it down
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
        except OSError:  # tried again after a pause, as long as launches wait
            self._begin_at = now() + PAUSE_SECONDS
            self.lose_launcher()

    def due_at(self, wanted: int) -> float | None:
        """When to call `tick`; none: there is nothing to wait for."""
        if self._asked:
            return self._answer_by
        return self._begin_at if wanted and not self._ready else None

    def tick(self, wanted: int) -> None:
        """Replace a launcher that does not answer, and ask again for starters that launches wait for."""
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
        """Take over what the launcher has made."""
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
        """When a child of which nothing is known began, in ticks, if it looks like a starter; none: it does not.

        Any process can look like one. Where no launcher will tell of it any more it is killed: it is a starter that nobody
        can give an order, or not what it seems.
        """
        found = proc.process(pid) if _looks_like_one(pid, self._mark) else None
        if found is None:
            return None
        if not self._asked or found.began < self._asked[0]:
            with suppress(PermissionError):
                os.kill(pid, signal.SIGKILL)
        return found.began

    def take(self) -> Starter:
        """One that is ready."""
        starter = self._ready.popleft()
        self._helpers.discard(starter.pid)
        return starter

    def give_back(self, starter: Starter) -> None:
        """It got no order."""
        self._helpers.add(starter.pid)
        self._ready.appendleft(starter)

    def lose(self, pid: int) -> bool:
        """A child is gone. Whether it was one of these."""
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
        """It is of no use any more; another one is started when it is needed. It stays a helper until it was waited for."""
        if self._control is not None:
            self._selector.unregister(self._control)
            self._control.close()
        self._control = None
        if self._launcher_pid:
            os.kill(self._launcher_pid, signal.SIGKILL)  # it may stand still, and would not see that we hung up
        self._launcher_pid = 0
        self._asked.clear()

    def close(self) -> None:
        """Launcher and starters see that nobody needs them, and end."""
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
    """End launchers and starters of a supervisor that is gone: none of them may begin anything now. Their pids."""
    pids = set()
    for pid in proc.all_processes():
        if _looks_like_one(pid, mark):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                pids.add(pid)
    return pids


def _looks_like_one(pid: int, folder_mark: str) -> bool:
    """Whether a process has the command line of a launcher and belongs to no attempt. Starters share their launcher's."""
    words = proc.command_line(pid).split(b"\0")
    is_one = os.fsencode(launcher.__file__) in words and folder_mark.encode() in words
    return is_one and owner(folder_mark, pid) is None


def _fork() -> Starter:
    """Where there is no launcher: the same, at the price of a fork of the supervisor itself."""
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


# --- orders and what became of them -----------------------------------------------------------------------------------


def order_of(launch: Launch, env: dict[str, str], group: Path | None) -> bytes:
    """What a starter is told; a reason not to is a `CanNotSpawn`."""
    if launch.uid is not None:
        _check_user(launch.uid)
    gid = launch.gid if launch.gid is not None else -1 if launch.uid is None else launch.uid
    order: launcher.LaunchOrder = (
        launch.argv or ("/bin/sh", "-c", launch.shell), env, launch.cwd, launch.uid, gid, launch.groups, launch.output,
        str(group / "cgroup.procs") if group is not None else "",
    )  # fmt: skip
    return marshal.dumps(order)


def why(answer: bytes, launch: Launch) -> str:
    """The sentence for what a starter answered."""
    failure: launcher.Failure = marshal.loads(answer.removeprefix(launcher.ABOUT_TO_BEGIN))  # noqa: S302 - from our own starter
    step, number, text = failure
    if step == launcher.TEXT:
        return f"The command, its environment or its work dir is not text a process can be given: {text}."
    if step == launcher.OUTPUT:
        return f"Its output can not be written to {launch.output} on this node: {text}."
    return _sentence(step, number, text, launch)


def too_slow(launch: Launch) -> str:
    """The sentence for a starter that did not answer in time."""
    return (
        f"It could not be started within {launch.launch_seconds:g} s: the file system of its work dir {launch.cwd} or of its "
        "command does not answer on this node. Check the mounts there, or name another work dir."
    )


def no_starter(launch: Launch) -> str:
    """The sentence for a launch for which there was no starter in time."""
    return (
        f"It could not be started within {launch.launch_seconds:g} s: the supervisor of its node could not get a process to "
        f"start it in. Check on that node that {sys.executable} runs, and that processes can be forked."
    )


def _check_user(uid: int) -> None:
    if os.geteuid() not in {0, uid}:
        raise CanNotSpawn(f"The agent of this node is not root, so it can not run anything as uid {uid}.")
    if not 0 <= uid < 2**32 - 1:
        raise CanNotSpawn(f"There is no user with uid {uid} on this node.")


def _sentence(step: str, number: int, text: str, launch: Launch) -> str:
    """What was wrong, and what to do about it."""
    command = (launch.argv or ("/bin/sh",))[0][:MOST_LETTERS]
    # The name comes with the launch: a look-up could wait for a directory service.
    user = launch.env.get("USER")
    who = "the agent's user" if launch.uid is None else f"user {user}" if user else f"uid {launch.uid}"
    if step == launcher.WORK_DIR:
        if number in {errno.ENOENT, errno.ENOTDIR}:
            return f"The work dir {launch.cwd} does not exist on this node. Create it there, or name another one."
        if number == errno.EACCES:
            return f"The work dir {launch.cwd} may not be entered by {who} on this node. Open it, or name another one."
        return f"The work dir {launch.cwd} can not be used on this node: {text}."
    if number in {errno.ENOENT, errno.ENOTDIR}:
        return f"The command {command!r} was not found on this node. Give its full path, or install it there."
    if number == errno.EACCES:
        return f"The command {command!r} may not be executed by {who} on this node."
    if number == errno.ENOEXEC:
        return f"The command {command!r} is not a program this node can execute. A script begins with #! and its interpreter."
    if number == errno.E2BIG:
        return f"The command {command!r} with its environment is longer than the node's kernel accepts."
    return f"The command {command!r} could not be started on this node: {text}."
