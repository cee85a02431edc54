r"""A client of the console of a task: what it has received and typed, so that it can continue after a lost connection.

console = cluster.console(task)
console.connect()                       and again, after `Unreachable`: nothing is missing, nothing comes twice
select([console, sys.stdin], …)
for event in console.read(): …          ConsoleOutput, ConsoleExit, ConsoleGap
console.type(b"ls\\r")
"""

import re
from collections.abc import Callable
from secrets import token_hex
from typing import NamedTuple

from gpuyard.live.sdk.errors import ClusterError
from gpuyard.live.sdk.websocket import ClientWebSocket
from gpuyard.live.wire import channel_frames as frames

ACK_BYTES = 32 * 1024
"""Output after which the holder is told that it has arrived."""
TYPED_BYTES = 64 * 1024
"""Input that the task has not taken yet, at most; a client should not read more of its own input."""


_QUESTIONS = re.compile(
    rb"\x1b\[[?>=]?[\d;]*[cn]"  # who are you, where is the cursor
    rb"|\x1b\[\??\d+\$p|\x1b\[>\d*q|\x1b\[\?u"  # modes, version, keyboard
    rb"|\x1b\[(?:1[1-9]|2[01])(?:;\d+)*t"  # size of the window
    rb"|\x1b\](?:\d+;)+\?(?:\x07|\x1b\\)"  # colors
    rb"|\x1bP[+$]q[^\x1b]*\x1b\\"  # capabilities
)
"""What programs ask a terminal. It answers as if that were typed."""


def without_questions(output: bytes) -> bytes:
    """Return output that is shown again without what programs asked the terminal then: nothing reads the answers now."""
    return _QUESTIONS.sub(b"", output)


class ConsoleRefused(ClusterError):
    """The node has ended the session, and says why; connecting again does not help."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self._code = code

    @property
    def code(self) -> str:
        """The reason, for programs."""
        return self._code


class ConsoleOutput(NamedTuple):
    """Bytes that the task has written."""

    data: bytes


class ConsoleGap(NamedTuple):
    """Output that is missing, because too much was written meanwhile or it is no longer kept."""

    missing_bytes: int


class ConsoleExit(NamedTuple):
    """The command has ended."""

    code: int | None
    signal: int | None


ConsoleEvent = ConsoleOutput | ConsoleGap | ConsoleExit


class TaskConsole:
    """One client. It is not connected before `connect`."""

    def __init__(
        self,
        open_socket: Callable[[], ClientWebSocket],
        *,
        received: int | None = None,
        steal: bool = False,
        size: tuple[int, int] | None = None,
    ) -> None:
        """`received`: the offset of the output to begin at; None: a little before its end. `size`: columns and rows."""
        self._open_socket = open_socket
        self._token = token_hex(12)
        self._received = -1 if received is None else received
        self._replayed_until = 0
        """Output before this offset was written before this client came."""
        self._acked = max(0, self._received)
        self._steal = steal
        self._size = size
        self._socket: ClientWebSocket | None = None
        self._typed = bytearray()
        """Input that the task has not taken."""
        self._taken = 0
        """The offset of the first byte of `_typed`."""
        self._sent = 0
        self._input_ended = self._end_sent = False
        self.attached = False
        """Whether the task answers on this connection."""
        self.writes = False

    @property
    def received(self) -> int:
        """The offset after the last output that was received."""
        return max(0, self._received)

    @property
    def socket(self) -> ClientWebSocket:
        """The connection."""
        assert self._socket is not None, "connect first"
        return self._socket

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self.socket.fileno()

    def connect(self) -> None:
        """Connect, or connect again. Raise what the scheduler answers."""
        self.close()
        self._socket = self._open_socket()
        self.attached = self._end_sent = False
        words: dict[str, object] = {"token": self._token, "received": self._received, "steal": self._steal}
        if self._size is not None:
            words |= {"columns": self._size[0], "rows": self._size[1]}
        self._socket.send(frames.control(attach=words))

    def close(self) -> None:
        """Leave. The task goes on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.attached = False

    @property
    def takes_input(self) -> bool:
        """Whether there is room for more input."""
        return len(self._typed) < TYPED_BYTES and not self._input_ended

    @property
    def is_done(self) -> bool:
        """Whether the input has ended and the task has taken all of it."""
        return self._input_ended and self._end_sent and not self._typed

    def type(self, data: bytes) -> None:
        """Send input. What is typed without a connection is sent when there is one again."""
        self._typed += data
        self._send_input()

    def end_input(self) -> None:
        """Report that there will be no more input."""
        self._input_ended = True
        self._send_input()

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal."""
        self._size = columns, rows
        if self.attached:
            self.socket.send(frames.control(resize=[columns, rows]))

    def read(self) -> list[ConsoleEvent]:
        """Return what has arrived; raise `ConsoleRefused` if the node has ended the session."""
        events: list[ConsoleEvent] = []
        for message in self.socket.read():
            self._take(frames.unpack(message), events)
        return events

    def acknowledge(self) -> None:
        """Report that the output received so far has been printed."""
        if self.attached and self._received - self._acked >= ACK_BYTES:
            self._acked = self._received
            self.socket.send(frames.pack(frames.ACK, self._received))

    def _take(self, piece: frames.ChannelPiece, events: list[ConsoleEvent]) -> None:
        if piece.kind == frames.OUTPUT:
            new = piece.content[max(0, self._received - piece.offset) :] if self._received >= 0 else piece.content
            if piece.offset < self._replayed_until:
                new = without_questions(new)
            self._received = max(self._received, piece.offset + len(piece.content))
            if new:
                events.append(ConsoleOutput(new))
        elif piece.kind == frames.ACK:
            self._forget_input(piece.offset)
        elif piece.kind == frames.CONTROL:
            words = piece.words
            if (said := words.get("attached")) is not None:
                self.attached, self.writes = True, said["write"]
                if self._received < 0:
                    self._replayed_until = said.get("end", 0)
                self._received = max(self._received, said["offset"]) if self._received >= 0 else said["offset"]
                self._acked = self._received
                self._forget_input(said["input"])
                self._sent = self._taken
                self._send_input()
            elif (said := words.get("gap")) is not None:
                self._received = max(self._received, said[1])
                events.append(ConsoleGap(said[1] - said[0]))
            elif (said := words.get("exit")) is not None:
                events.append(ConsoleExit(said["code"], said["signal"]))
            elif (said := words.get("error")) is not None:
                raise ConsoleRefused(said["code"], said["message"])

    def _forget_input(self, taken: int) -> None:
        if taken > self._taken:
            del self._typed[: taken - self._taken]
            self._taken = taken
            self._sent = max(self._sent, taken)

    def _send_input(self) -> None:
        if not self.attached or not self.writes:
            return
        while self._sent < self._taken + len(self._typed):
            begin = self._sent - self._taken
            piece = bytes(self._typed[begin : begin + frames.PIECE_BYTES])
            self.socket.send(frames.pack(frames.INPUT, self._sent, piece))
            self._sent += len(piece)
        if self._input_ended and not self._end_sent:
            self._end_sent = True
            self.socket.send(frames.pack(frames.END, self._sent))
