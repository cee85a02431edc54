"""An authenticated connection between a plan and its workers on other machines.

Both ends know the key of the run. Each proves it by an HMAC over a number that the other end has just drawn, and no
byte is interpreted before that. Every message carries an HMAC of its direction, number and content, so a message that
was changed, repeated or added by somebody else is not unpickled: the line is closed.

    plan ──  name of the protocol, draw a ───────────────────────► worker
         ◄── draw b, HMAC(key, "worker", a, b) ───────────────────
         ──  HMAC(key, "plan", a, b); zeros if it was wrong ─────►
         ◄── length, HMAC(HMAC(key, "from worker", a, b), number, content), content ──►  and the same back

The content is not encrypted. Both ends send an empty message every two seconds; an end that hears nothing for fifteen
closes the line, so a machine that lost its power is noticed, too.
"""

import hmac
import os
import pickle
import socket
import struct
from contextlib import suppress
from hashlib import sha256
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, Final, Self

PROTOCOL: Final = b"gpuyard-plan/1\n"
PING_S: Final = 2.0
SILENT_S: Final = 15.0
HANDSHAKE_S: Final = 5.0
"""How long it may take in all until both ends have proved that they know the key, however the bytes arrive."""
DRAWN: Final = 32
MAC: Final = 32
REFUSED: Final = bytes(MAC)
"""The answer to a wrong proof: so a worker knows that its key is wrong, and not that the plan had no time for it."""
PIECE: Final = 1 << 20
"""Bytes that are sent or received at a time; the time limits are those of a piece."""
LONGEST: Final = 1 << 36

_LENGTH = struct.Struct(">Q")


class NotAuthenticated(Exception):
    """The other end does not know the key of this run."""


class NotProven(NotAuthenticated):
    """The connection ended or was too slow before the other end had proved anything: another one may succeed."""


class LineClosed(Exception):
    """The other end is gone, or was silent for too long."""


def _mac(key: bytes, *parts: bytes | bytearray) -> bytes:
    made = hmac.new(key, digestmod=sha256)
    for part in parts:
        made.update(part)
    return made.digest()


class WorkerLink:
    """A connection after both ends have proved that they know the key. Sending never blocks; one thread receives."""

    def __init__(self, connection: socket.socket, ours: bytes, theirs: bytes) -> None:
        self._connection = connection
        connection.settimeout(SILENT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ours, self._theirs = ours, theirs
        self._sent = self._received = 0
        self._waiting: SimpleQueue[Any] = SimpleQueue()
        self._sender = Thread(target=self._send_all, daemon=True)
        self._sender.start()

    # --- both ends prove that they know the key -----------------------------------------------------------------------

    @classmethod
    def of_worker(cls, connection: socket.socket, key: bytes) -> Self:
        """Return the line to a worker that has connected. Raise `NotAuthenticated` if it does not know the key."""
        end = monotonic() + HANDSHAKE_S
        try:
            drawn = os.urandom(DRAWN)
            _send_by(end, connection, PROTOCOL + drawn)
            said = _exactly(connection, DRAWN + MAC, end)
            both = drawn + said[:DRAWN]
            if not hmac.compare_digest(bytes(said[DRAWN:]), _mac(key, b"worker", both)):
                _send_by(end, connection, REFUSED)
                raise NotAuthenticated
            _send_by(end, connection, _mac(key, b"plan", both))
        except (OSError, LineClosed):
            raise NotProven from None
        return cls(connection, _mac(key, b"from plan", both), _mac(key, b"from worker", both))

    @classmethod
    def to_plan(cls, connection: socket.socket, key: bytes) -> Self:
        """Return the line to the plan. Raise `NotAuthenticated` if the other end does not know the key."""
        end = monotonic() + HANDSHAKE_S
        try:
            said = _exactly(connection, len(PROTOCOL) + DRAWN, end)
            if not said.startswith(PROTOCOL):
                raise NotAuthenticated
            drawn = os.urandom(DRAWN)
            both = bytes(said[len(PROTOCOL) :]) + drawn
            _send_by(end, connection, drawn + _mac(key, b"worker", both))
            if not hmac.compare_digest(bytes(_exactly(connection, MAC, end)), _mac(key, b"plan", both)):
                raise NotAuthenticated
        except (OSError, LineClosed):
            raise NotProven from None
        return cls(connection, _mac(key, b"from worker", both), _mac(key, b"from plan", both))

    # --- messages -----------------------------------------------------------------------------------------------------

    def send(self, message: object) -> None:
        """Send a message, after those before it. If the other end is gone, `receive` says so."""
        self._waiting.put(message)

    def receive(self) -> Any:
        """Return the next message; raise `LineClosed` if there will be none."""
        while True:
            try:
                head = _exactly(self._connection, _LENGTH.size + MAC)
                (length,) = _LENGTH.unpack(head[: _LENGTH.size])
                if length > LONGEST:
                    raise LineClosed
                content = _exactly(self._connection, length)
            except OSError:
                raise LineClosed from None
            number = _LENGTH.pack(self._received)
            if not hmac.compare_digest(bytes(head[_LENGTH.size :]), _mac(self._theirs, number, content)):
                raise LineClosed
            self._received += 1
            if content:
                return pickle.loads(content)  # noqa: S301 - it is from a process that knows the key

    def close(self, patience_s: float = 0.0) -> None:
        """Close the line; what was sent before may take this long to be delivered."""
        self._waiting.put(None)
        if patience_s:
            self._sender.join(patience_s)
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _send_all(self) -> None:
        with suppress(OSError):  # the receiving thread notices it, too
            while True:
                try:
                    message = self._waiting.get(timeout=PING_S)
                except Empty:
                    content = b""
                else:
                    if message is None:
                        return
                    content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
                self._put(content)

    def _put(self, content: bytes) -> None:
        number = _LENGTH.pack(self._sent)
        self._sent += 1
        self._connection.sendall(_LENGTH.pack(len(content)) + _mac(self._ours, number, content))
        whole = memoryview(content)
        for begin in range(0, len(content), PIECE):
            self._connection.sendall(whole[begin : begin + PIECE])


def _limit(connection: socket.socket, end: float) -> None:
    """Let the next operation take until `end` at most."""
    left = end - monotonic()
    if left <= 0:
        raise LineClosed
    connection.settimeout(left)


def _send_by(end: float, connection: socket.socket, content: bytes) -> None:
    _limit(connection, end)
    connection.sendall(content)


def _exactly(connection: socket.socket, length: int, end: float | None = None) -> bytearray:
    """Receive so many bytes, by `end` if that is given; memory is taken as they arrive."""
    got = bytearray()
    while len(got) < length:
        if end is not None:
            _limit(connection, end)
        piece = connection.recv(min(PIECE, length - len(got)))
        if not piece:
            raise LineClosed
        got += piece
    return got
