"""A WebSocket to the scheduler, for one thread that waits for several things: it never blocks, and has a descriptor.

Framing is that of the library websockets; connection, TLS and the answer to a refused request are those of every other
request (connection.py).
"""

import socket
import ssl
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse

from websockets.exceptions import InvalidState, ProtocolError
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State

from gpuyard.live.sdk.errors import Unreachable

READ_BYTES = 1 << 16
MOST_BYTES = 1 << 17
"""Longest message."""
FULL_BYTES = 256 * 1024
"""Bytes that wait to be sent; a caller that sees more should wait."""


class ClientWebSocket:
    """One connection that has become a WebSocket."""

    def __init__(self, server: str, connection: HTTPConnection, response: HTTPResponse) -> None:
        self._server = server
        self._kept = connection, response
        """They hold the socket open."""
        self._socket: socket.socket = connection.sock
        self._socket.setblocking(False)
        with suppress(OSError):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._protocol = Protocol(Side.CLIENT, state=State.OPEN, max_size=MOST_BYTES)
        self._unsent = bytearray()
        self._parts: list[bytes] = []
        self.heard_at = time.monotonic()
        """When something has arrived last; the scheduler sends a ping every 15 seconds."""
        self.ended = False
        """Whether the scheduler has closed it."""
        early = b""
        with suppress(OSError):
            early = response.fp.peek()
        self._early = self._take(early) if early else []

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._socket.fileno()

    @property
    def has_pending(self) -> bool:
        """Whether there is something to read although the descriptor may not say so."""
        return bool(self._early) or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0)

    @property
    def wants_to_write(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be sent that no more should be added."""
        return len(self._unsent) > FULL_BYTES

    def send(self, message: bytes) -> None:
        """Send a binary message, now or as soon as the connection takes it. Raise `Unreachable` if it is broken."""
        try:
            self._protocol.send_binary(message)
        except InvalidState:
            raise self._broken("closed by the other side") from None
        self._add_output()
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as it goes."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent[:MOST_BYTES])]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return
        except OSError as error:
            raise self._broken(error) from None

    def read(self) -> list[bytes]:
        """Return the messages that have arrived. Raise `Unreachable` if the connection is broken."""
        messages, self._early = self._early, []
        try:
            data = self._socket.recv(READ_BYTES)
            while isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
                data += self._socket.recv(READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return messages
        except OSError as error:
            raise self._broken(error) from None
        self.heard_at = time.monotonic()
        if not data:
            if messages:
                return messages
            if self._protocol.close_rcvd is None:
                raise self._broken("closed by the other side")
            self.ended = True
            return []
        return messages + self._take(data)

    def close(self) -> None:
        """Close it."""
        with suppress(OSError, ProtocolError):
            if self._protocol.state is State.OPEN:
                self._protocol.send_close(1000)
                self._add_output()
                self._socket.send(self._unsent)
        for part in self._kept:
            part.close()

    @property
    def close_code(self) -> int | None:
        """The code with which the scheduler has closed it."""
        return None if self._protocol.close_rcvd is None else int(self._protocol.close_rcvd.code)

    def _take(self, data: bytes) -> list[bytes]:
        self._protocol.receive_data(data)
        messages: list[bytes] = []
        for event in self._protocol.events_received():
            if not isinstance(event, Frame):
                continue
            if event.opcode in {Opcode.BINARY, Opcode.CONT}:
                self._parts.append(bytes(event.data))
                if event.fin:
                    messages.append(b"".join(self._parts))
                    self._parts = []
            elif event.opcode is Opcode.CLOSE:
                self.ended = True
        self._add_output()  # answers to pings
        if self._protocol.parser_exc is not None and not self.ended:
            raise self._broken(self._protocol.parser_exc)
        if not self.ended:
            self.flush()
        return messages

    def _add_output(self) -> None:
        for part in self._protocol.data_to_send():
            self._unsent += part

    def _broken(self, why: object) -> Unreachable:
        return Unreachable(f"The connection to {self._server} broke ({why}).", may_have_arrived=True)
