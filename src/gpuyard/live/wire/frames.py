"""Frames over TCP or TLS: messages of known length between schedulers, and between voters and schedulers.

A frame is one byte for its type (H hello, P proof, D data, E error), four bytes for the length, and the body. Before any
data, both ends prove that they know the key for this kind of connection, without sending it:

    dialler  ── H: its hello, 32 random bytes ──────────────────►  listener
    dialler  ◄─ H: its hello, 32 random bytes ──────────────────   listener
    dialler  ◄─ P: HMAC over both hellos, as the listener ──────   listener      needs the key
    dialler  ── P: HMAC over both hellos, as the dialler ───────►  listener      needs the key
    dialler  ◄─ D ─►  listener                                     until one of them closes, or says why not (E)

The random bytes make a recorded handshake useless; the role in the HMAC does so for one that is sent back to where it
came from. What is not proven yet may send only short frames, and has `HANDSHAKE_SECONDS`. This does not encrypt and does
not protect the connection afterwards: between machines that is the task of TLS.

The kernel notices a peer that is gone or cut off within `DEAD_SECONDS`. A peer that is there and does not read loses its
connection when `MOST_BUFFERED` bytes wait for it. The types of frames, their layout and the fields `protocol` and
`version` of a hello never change, so that every version can say which one it expects.
"""

import asyncio
import os
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import structlog

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.live.wire.proof import mac, proofs_equal
from gpuyard.version import __version__

PROTOCOL = 1
HELLO, PROOF, DATA, ERROR = b"H", b"P", b"D", b"E"
HEAD_BYTES = 5
MOST_BYTES_BEFORE_PROOF = 4096
"""The longest frame until the other end has proven that it knows the key."""
MOST_BYTES = 8 * 1024 * 1024
"""The longest frame."""
MOST_BUFFERED = 32 * 1024 * 1024
"""How much may wait for a reader that stands still."""
MOST_ERROR_CHARACTERS = 1000
HANDSHAKE_SECONDS = 5.0
CLOSE_SECONDS = 2.0
"""How long a connection that is closed may take to send what is buffered."""
DEAD_SECONDS = 5
"""A peer that acknowledges nothing for this long is gone."""
IDLE_SECONDS = 2
"""An idle connection is probed this often."""
ACCEPT_AGAIN_SECONDS = 0.5
NONCE_BYTES = 32
MOST_SENTENCES, SAY_AGAIN_SECONDS = 1000, 3600.0
"""How many refusals are logged, and how long it takes until the same one is logged again."""
VOTER = "voter"
"""The kind of connection whose key is the join token; the key of all others is that of the secrets."""

T = TypeVar("T")

log = structlog.get_logger()


class ConnectionLost(GpuyardError):
    """The connection to the other end is gone. It is tried again."""


class WrongPeer(GpuyardError):
    """The other end of the connection is not the one that is expected there."""


class Hello(msgspec.Struct, frozen=True):
    """Who is at one end of a connection."""

    protocol: int
    kind: str
    """`replica`: a scheduler. `seed`: an empty scheduler that asks for a copy. `voter`."""
    name: str
    cluster: str
    """Empty: none yet."""
    version: str
    """Of gpuyard."""
    info: dict[str, str] = {}


class _Opening(msgspec.Struct, frozen=True):
    """The body of a hello frame."""

    hello: Hello
    nonce: bytes


class _VersionOnly(msgspec.Struct, frozen=True):
    """The fields of a hello that every version of the protocol has."""

    protocol: int
    version: str = ""


class _OpeningOfAnyVersion(msgspec.Struct, frozen=True):
    """The body of a hello frame of any version of the protocol."""

    hello: _VersionOnly


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of HOST:PORT; an IPv6 address is in brackets. Raise `ValueError` if it is something else."""
    host, _, port = address.rpartition(":")
    is_ipv6 = host.startswith("[") and host.endswith("]")
    if not host or (":" in host and not is_ipv6) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is not HOST:PORT.")
    return host.strip("[]"), int(port)


class _Stream:
    """Frames on a connection of which nothing is known yet."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._problem = ""
        """Why this end has aborted the connection."""
        _notice_dead_peers(writer.get_extra_info("socket"))

    def write(self, kind: bytes, body: bytes) -> None:
        """Send a frame as soon as possible. What waits for a reader that stands still is limited."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        self._writer.writelines((kind, len(body).to_bytes(4), body))
        if transport.get_write_buffer_size() > MOST_BUFFERED:
            self.abort(f"The other end has not read for too long: more than {MOST_BUFFERED} bytes wait for it.")

    async def drain(self) -> None:
        """Wait until little is buffered."""
        try:
            await self._writer.drain()
        except OSError as error:
            raise self._lost(error) from error
        if self._writer.transport.is_closing():
            raise self._lost()

    async def read(self, most_bytes: int) -> tuple[bytes, bytes]:
        """Return the next frame: its type and its body. An error frame is raised."""
        try:
            head = await self._reader.readexactly(HEAD_BYTES)
            kind, length = head[:1], int.from_bytes(head[1:])
            if kind not in {HELLO, PROOF, DATA, ERROR} or head == b"HTTP/":
                raise WrongPeer(_not_frames(head))
            if length > most_bytes:
                raise WrongPeer(f"The other end announces a frame of {length} bytes; at most {most_bytes} are allowed.")
            body = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError) as error:
            lost = self._lost(error)
            self.abort()  # what is sent from now on would not be read
            raise lost from error
        if kind == ERROR:
            raise WrongPeer(_printable(body.decode(errors="replace"), MOST_ERROR_CHARACTERS))
        return kind, body

    async def read_only(self, kind: bytes, most_bytes: int) -> bytes:
        """Return the body of the next frame, which has this type."""
        found, body = await self.read(most_bytes)
        if found != kind:
            raise WrongPeer("The other end sent a frame that is not expected here.")
        return body

    def abort(self, problem: str = "") -> None:
        """Close the connection at once; nothing more is sent."""
        self._problem = self._problem or problem
        self._writer.transport.abort()

    def close(self) -> None:
        """Close the connection when everything is sent, within `CLOSE_SECONDS`."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        is_empty = not transport.get_write_buffer_size()
        self._writer.close()
        if not is_empty:
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, transport.abort)

    async def closed(self) -> None:
        """Wait until a connection that is being closed is gone."""
        with suppress(OSError):
            await self._writer.wait_closed()

    def _lost(self, error: Exception | None = None) -> ConnectionLost:
        if self._problem:
            return ConnectionLost(self._problem)
        if isinstance(error, OSError):
            return ConnectionLost(f"The connection has broken: {error.strerror or error}.")
        return ConnectionLost("The other end has closed the connection.")


class FramedConnection:
    """A connection whose other end has proven that it knows the key."""

    def __init__(self, stream: _Stream, other: Hello) -> None:
        self.other = other
        self._stream = stream

    def send(self, body: bytes) -> None:
        """Send a message as soon as possible; it is dropped if the connection is gone.

        A connection is closed if its reader stands still, or if a message is too long for the other end.
        """
        if len(body) > MOST_BYTES:
            self._stream.abort(f"A message of {len(body)} bytes is too long; at most {MOST_BYTES} are allowed.")
            return
        self._stream.write(DATA, body)

    async def drain(self) -> None:
        """Wait until most of what was sent has left. Raise `ConnectionLost` if it cannot leave."""
        await self._stream.drain()

    async def receive(self) -> bytes:
        """Return the next message.

        Raise `ConnectionLost` at the end of the connection, and `WrongPeer` with the reason if the other end gives one.
        """
        return await self._stream.read_only(DATA, MOST_BYTES)

    def close(self) -> None:
        """Close the connection when everything is sent, within `CLOSE_SECONDS`."""
        self._stream.close()


# --- dial ----------------------------------------------------------------------------------------------------------------


async def connect(address: str, hello: Hello, key: bytes, *, tls: ssl.SSLContext | None = None) -> FramedConnection:
    """Dial HOST:PORT. Raise `ConnectionLost` if that may succeed later, and `WrongPeer` if something must be changed."""
    try:
        host, port = host_and_port(address)
    except ValueError:
        raise WrongPeer(f"{address!r} is not an address; it must be HOST:PORT, such as scheduler-1:9092.") from None
    if not key:
        raise WrongPeer(f"There is no key for the connection to {address}: {_what_to_check(hello.kind)}")
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            stream = _Stream(*await asyncio.open_connection(host, port, ssl=tls))
            try:
                return FramedConnection(stream, await _prove_to_listener(stream, hello, key))
            except BaseException:
                stream.close()
                raise
    except TimeoutError as error:
        raise ConnectionLost(f"{address} did not answer within {HANDSHAKE_SECONDS:g} s.") from error
    except ssl.SSLCertVerificationError as error:
        authority = "tls.ca, --tls-ca" if hello.kind == "voter" else "replication.ca"
        raise WrongPeer(
            f"The certificate at {address} is not accepted: {error.verify_message}. Check the authority ({authority}) and "
            "the names in the certificate."
        ) from error
    except ssl.SSLError as error:
        raise WrongPeer(
            f"The TLS handshake with {address} failed ({error.reason}). Check that TLS is used there."
        ) from error
    except OSError as error:
        # What asyncio says of an error names a Python function.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
        raise ConnectionLost(f"{address} cannot be reached: {reason}.") from error


async def _prove_to_listener(stream: _Stream, hello: Hello, key: bytes) -> Hello:
    mine = _opening(hello)
    stream.write(HELLO, mine)
    theirs = await stream.read_only(HELLO, MOST_BYTES_BEFORE_PROOF)
    other = _hello_in(theirs)
    proof = await stream.read_only(PROOF, MOST_BYTES_BEFORE_PROOF)
    if not proofs_equal(proof, mac(key, b"gpuyard frames listener", mine, theirs)):
        stream.write(PROOF, b"")  # the listener reports it, too
        raise WrongPeer(f"The two ends have different keys: {_what_to_check(hello.kind)}")
    stream.write(PROOF, mac(key, b"gpuyard frames dialler", mine, theirs))
    return other


# --- listen --------------------------------------------------------------------------------------------------------------


async def serve(
    listener: socket.socket,
    hello_to: Callable[[Hello], Hello],
    key_of: Callable[[str], bytes | None],
    handle: Callable[[FramedConnection], Awaitable[None]],
    *,
    tls: ssl.SSLContext | None,
    limit: int,
) -> "FrameServer":
    """Accept connections on a socket that listens, and close it at the end.

    `key_of` returns the key for a kind of connection; None: this kind is not accepted. `handle` runs as long as its
    connection. If it raises `WrongPeer` or another error of gpuyard, the other end receives the sentence. With `limit`
    connections a new one takes the place of the oldest that has not proven its key, and is refused if there is none.
    """
    return FrameServer(listener, hello_to, key_of, handle, tls, limit)


class FrameServer:
    """Returned by `serve`."""

    def __init__(
        self,
        listener: socket.socket,
        hello_to: Callable[[Hello], Hello],
        key_of: Callable[[str], bytes | None],
        handle: Callable[[FramedConnection], Awaitable[None]],
        tls: ssl.SSLContext | None,
        limit: int,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._hello_to = hello_to
        self._key_of = key_of
        self._handle = handle
        self._tls = tls
        self._limit = limit
        self._connections: dict[asyncio.Task[None], socket.socket] = {}
        self._unproven: dict[asyncio.Task[Any], None] = {}
        """The oldest first."""
        self._is_full = False
        self._said: set[str] = set()
        self._forget_said_at = 0.0
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Close the socket and all connections."""
        self._accepting.cancel()
        for task in self._connections:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait, after `close`, until all connections are gone."""
        await asyncio.gather(self._accepting, *self._connections, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    accepted, address = await loop.sock_accept(self._listener)
                except OSError as error:  # no descriptor is left
                    log.warning("connection_refused", message=f"A connection cannot be accepted: {error.strerror}.")
                    await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                    continue
                if not self._has_room():
                    accepted.close()
                    continue
                task = loop.create_task(self._live(accepted, address[0]))
                self._connections[task], self._unproven[task] = accepted, None
                task.add_done_callback(self._forget)
        finally:
            self._listener.close()

    def _has_room(self) -> bool:
        was_full, self._is_full = self._is_full, len(self._connections) >= self._limit
        if not self._is_full:
            return True
        if not was_full:
            message = f"There are {self._limit} connections, which is the limit."
            log.warning("connection_refused", message=message)
        if not self._unproven:
            return False
        oldest = next(iter(self._unproven))
        del self._unproven[oldest]
        oldest.cancel()
        return True

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._connections.pop(task).close()
        self._unproven.pop(task, None)

    async def _live(self, accepted: socket.socket, host: str) -> None:
        """Handle one connection from its handshake to its end."""
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                stream = await self._open(accepted)
        except OSError as error:  # errors of TLS and the time limit, too
            log.debug("connection_closed", peer=host, message=str(error))
            return
        try:
            other = await self._prove_to_dialler(stream)
            self._unproven.pop(_this_task(), None)
            await self._handle(FramedConnection(stream, other))
        except ConnectionLost as error:
            log.debug("connection_closed", peer=host, message=str(error))
        except GpuyardError as error:
            self._say_once(host, str(error))
            stream.write(ERROR, str(error).encode())
        except Exception:
            log.exception("connection_failed", peer=host)
        finally:
            stream.close()
            await stream.closed()

    async def _open(self, accepted: socket.socket) -> _Stream:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted, ssl=self._tls)
        return _Stream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def _prove_to_dialler(self, stream: _Stream) -> Hello:
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                return await self._exchange(stream)
        except TimeoutError as error:
            raise ConnectionLost(f"The handshake took longer than {HANDSHAKE_SECONDS:g} s.") from error

    async def _exchange(self, stream: _Stream) -> Hello:
        theirs = await stream.read_only(HELLO, MOST_BYTES_BEFORE_PROOF)
        other = _hello_in(theirs)
        key = self._key_of(other.kind)
        if not key:
            raise WrongPeer(f"Connections of the kind {_printable(other.kind, 20)!r} are not accepted here yet.")
        mine = _opening(self._hello_to(other))
        stream.write(HELLO, mine)
        stream.write(PROOF, mac(key, b"gpuyard frames listener", theirs, mine))
        proof = await stream.read_only(PROOF, MOST_BYTES_BEFORE_PROOF)
        if not proofs_equal(proof, mac(key, b"gpuyard frames dialler", theirs, mine)):
            raise WrongPeer(f"The two ends have different keys: {_what_to_check(other.kind)}")
        return other

    def _say_once(self, host: str, sentence: str) -> None:
        """Log a refusal once, because it is repeated every few seconds until its cause is removed.

        Sentences contain text of the other end: a stranger must not fill the log with them.
        """
        now = asyncio.get_running_loop().time()
        if now >= self._forget_said_at:
            self._said.clear()
            self._forget_said_at = now + SAY_AGAIN_SECONDS
        if f"{host} {sentence}" in self._said or len(self._said) >= MOST_SENTENCES:
            return
        self._said.add(f"{host} {sentence}")
        log.warning("connection_refused", peer=host, message=sentence)


# --- both ----------------------------------------------------------------------------------------------------------------


def _this_task() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None, "a connection is handled by a task"
    return task


def _opening(hello: Hello) -> bytes:
    return msgspec.msgpack.encode(_Opening(hello, secrets.token_bytes(NONCE_BYTES)))


def _hello_in(body: bytes) -> Hello:
    """Return the hello in the body of a hello frame. Raise `WrongPeer` if it is of another version of the protocol."""
    other = _decoded(body, _OpeningOfAnyVersion).hello
    if other.protocol != PROTOCOL:
        raise WrongPeer(
            f"One end speaks version {PROTOCOL} of the replication protocol (gpuyard {__version__}), the other one version "
            f"{other.protocol} (gpuyard {_printable(other.version, 20)}). Use the same version of gpuyard at both ends."
        )
    opening = _decoded(body, _Opening)
    if len(opening.nonce) != NONCE_BYTES:
        raise WrongPeer("The hello of the other end cannot be read: its random number has a wrong length.")
    return opening.hello


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WrongPeer(f"The hello of the other end cannot be read: {error}.") from error


def _what_to_check(kind: str) -> str:
    if kind == VOTER:
        return (
            "voters need the join token of the schedulers (auth.join_token, or the file join_token in the data folder). "
            "Check it, and which process listens at this address."
        )
    return (
        "both schedulers need the same secrets key. Set GPUYARD_SECRETS_KEY to the same value on both, or copy the file "
        "secrets_key from the data folder of the first one."
    )


def _not_frames(head: bytes) -> str:
    if head[:2] in {b"\x15\x03", b"\x16\x03"}:
        return "The other end uses TLS, and this one does not. Use TLS at both ends or at none."
    return "The other end does not speak this protocol. Check which process listens at the address."


def _printable(text: str, most: int) -> str:
    return "".join(character for character in text[:most] if character.isprintable())


def _notice_dead_peers(connection: socket.socket) -> None:
    """Let the kernel end a connection whose peer acknowledges nothing, be it idle or not."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, DEAD_SECONDS - IDLE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_SECONDS * 1000)
