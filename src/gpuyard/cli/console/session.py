"""One session: keys of the user's terminal to the task, its output to the terminal, across lost connections.

If the connection is lost it is made again, after 0.2 to 5 seconds, also to a scheduler that was restarted or to another
one that leads now. What was typed meanwhile is sent then; the task goes on in any case.
"""

import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from gpuyard.cli.console.raw_terminal import EscapeKeys, LeaveTerminal, RawTerminal, terminal_size

if TYPE_CHECKING:
    from gpuyard.live.sdk import ClusterError
    from gpuyard.live.sdk.console import TaskConsole

DEAD_SECONDS = 45.0
"""Without a sign of life for this long a connection counts as lost."""
GIVE_UP_SECONDS = 900.0
"""How long a lost connection is tried again."""
SHORTEST_SECONDS, LONGEST_SECONDS = 0.2, 5.0
NOTICE_SECONDS = 1.0
KEY_BYTES = 4096
INTERRUPT = b"\x03"
"""Ctrl-C: leaves a session that only watches."""
OVER = frozenset({"TaskEnded", "NotRunning", "NoConsole"})
"""Codes of a scheduler, after an interruption, for a command that has ended meanwhile."""
TAKEN = frozenset({"Attached", "TakenOver"})
"""Codes of a node when another client types."""
AGAIN = frozenset({"NodeUnreachable", "TooManyChannels", "NotReady", "NotLeading"})
"""Codes of refusals that pass."""
TOO_MANY = "TooManyChannels"
"""Of them, the one that names the way out: a client that has not been attached yet says so and ends."""
HANG_UP_CODES = frozenset({4001})
"""The scheduler closes the connection because the client has lost access."""


class SessionEnd(NamedTuple):
    """How a session has ended."""

    why: str
    """`exit`: the command has ended; `over`: it ended while there was no connection; `detached`: by the user; `refused`:
    by the node or the scheduler; `lost`: there is no connection any more."""
    code: int | None = None
    signal: int | None = None
    sentence: str = ""
    reason: str = ""
    """The code of a refusal."""


class TerminalSession:
    """The session of one terminal."""

    def __init__(
        self,
        console: "TaskConsole",
        *,
        escape: bool,
        reads: bool,
        types: bool,
        again: str,
        logged: bool = True,
        insists: bool = False,
    ) -> None:
        """`reads`: keys are read; `types`: and sent to the task. `again`: the command that attaches again.

        `logged`: what is shown is also the output of the task. `insists`: wait while too many terminals are open.
        """
        self._console = console
        self._keys = EscapeKeys(enabled=escape)
        self._reads = reads
        self._types = types
        self._again = again
        self._where = "`gpuyard logs` has what is kept" if logged else "they are not kept"
        self._was_attached = False
        self._insists = insists
        self._lost_at: float | None = None
        self._told = False
        """Whether the user knows that there is no connection."""

    @property
    def _may_give_up(self) -> bool:
        """Whether nothing is lost if too many terminals are open, because the command can be repeated."""
        return not self._was_attached and not self._insists

    def run(self) -> SessionEnd:
        """Serve the terminal until the session ends."""
        with RawTerminal() as terminal:
            try:
                return self._run(terminal)
            except LeaveTerminal as leaving:
                return SessionEnd("detached", signal=leaving.number or None)
            finally:
                self._console.close()

    def _run(self, terminal: RawTerminal) -> SessionEnd:
        from gpuyard.live.sdk import ClusterError, Refused, Unreachable
        from gpuyard.live.sdk.console import ConsoleRefused

        pause = SHORTEST_SECONDS
        while True:
            error: ClusterError = Unreachable("The connection was closed.")
            try:
                self._console.connect()
                end = self._serve(terminal)
                if end is not None:
                    return end
            except ConsoleRefused as refusal:
                return SessionEnd("refused", sentence=str(refusal), reason=refusal.code)
            except Refused as refusal:
                if refusal.code not in AGAIN or (refusal.code == TOO_MANY and self._may_give_up):
                    over = self._was_attached and refusal.code in OVER
                    return SessionEnd("over" if over else "refused", sentence=str(refusal), reason=refusal.code)
                error = refusal
            except ClusterError as broken:
                error = broken
            self._console.close()  # what is typed from here on is kept until there is a connection again
            now = time.monotonic()
            if self._lost_at is None:
                self._lost_at, self._told, pause = now, False, SHORTEST_SECONDS
            if now - self._lost_at > GIVE_UP_SECONDS:
                return SessionEnd("lost", sentence=f"{error} The task goes on; to attach again: {self._again}")
            if not self._told and now - self._lost_at >= NOTICE_SECONDS:
                self._told = True
                terminal.say(f"no connection; the task goes on. Trying again ({_first(error)})")
            self._wait(terminal, pause)
            pause = min(LONGEST_SECONDS, pause * 1.5)

    def _note_attached(self, terminal: RawTerminal) -> None:
        if self._console.attached and (self._lost_at is not None or not self._was_attached):
            if self._told:
                terminal.say("connected again")
            self._was_attached, self._lost_at, self._told = True, None, False

    def _serve(self, terminal: RawTerminal) -> SessionEnd | None:
        """Serve one connection. None: it has been lost."""
        from gpuyard.live.sdk.console import ConsoleExit, ConsoleGap, ConsoleOutput

        console, socket = self._console, self._console.socket
        while True:
            poll = select.poll()
            poll.register(terminal.wakeup, select.POLLIN)
            poll.register(socket.fileno(), select.POLLIN | (select.POLLOUT if socket.wants_to_write else 0))
            if self._reads and console.takes_input:
                poll.register(0, select.POLLIN)
            ready = {number for number, _ in poll.poll(0 if socket.has_pending else 5000)}
            if (size := terminal.heed_signals()) is not None:
                console.resize(*size)
            if 0 in ready:
                self._read_keys()
            if socket.fileno() in ready or socket.has_pending:
                socket.flush()
                events = console.read()
                self._note_attached(terminal)
                for event in events:
                    match event:
                        case ConsoleOutput(data):
                            terminal.write(data)
                        case ConsoleGap(count):
                            terminal.say(f"{count:,} bytes of output are missing here; {self._where}")
                        case ConsoleExit(code, number):
                            return SessionEnd("exit", code, number)
                console.acknowledge()
            if socket.ended:
                if socket.close_code in HANG_UP_CODES:
                    return SessionEnd(
                        "refused", sentence="The scheduler ended the session: you have lost access to it."
                    )
                return None
            if time.monotonic() - socket.heard_at > DEAD_SECONDS:
                return None

    def _read_keys(self) -> None:
        """Read keys and send them. Raise `LeaveTerminal` if the user leaves, or the terminal is gone."""
        try:
            keys = os.read(0, KEY_BYTES)
        except OSError:
            keys = b""
        if not keys:
            raise LeaveTerminal(signal.SIGHUP)
        if self._keys.find(keys) or (not self._types and INTERRUPT in keys):
            raise LeaveTerminal(0)
        if self._types:
            self._console.type(keys)

    def _wait(self, terminal: RawTerminal, seconds: float) -> None:
        """Wait before the next try; keys are kept."""
        give_up_at = time.monotonic() + seconds
        while (left := give_up_at - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(terminal.wakeup, select.POLLIN)
            if self._reads and self._console.takes_input:
                poll.register(0, select.POLLIN)
            ready = {number for number, _ in poll.poll(left * 1000)}
            if (size := terminal.heed_signals()) is not None:
                self._console.resize(*size)
            if 0 in ready:
                self._read_keys()


def _first(error: "ClusterError") -> str:
    return str(error).split(". ")[0].rstrip(".")


def check_terminal(what: str) -> None:
    """Refuse a standard input that is no terminal."""
    import typer

    if not sys.stdin.isatty():
        raise typer.BadParameter(
            f"standard input is not a terminal; {what}", param_hint="'--pty'" if "--pty" in what else "'TASK'"
        )


def own_size() -> tuple[int, int]:
    """Return columns and rows of the user's terminal."""
    return terminal_size()
