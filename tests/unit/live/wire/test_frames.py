"""Frames over loopback: what two ends that know each other can say, and what others cannot do."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from gpuyard.live.wire import frames
from gpuyard.live.wire.frames import ConnectionLost, FramedConnection, Hello, WrongPeer
from gpuyard.version import __version__
from tests.unit.certificates import certificate, needs_openssl

TOKEN, SECRET = b"the join token", b"the secrets key"
KEYS = {"voter": TOKEN, "replica": SECRET, "seed": SECRET}
SCHEDULER = Hello(frames.PROTOCOL, "replica", "a#1", "cluster-1", __version__, {"lease_seconds": "5"})
VOTER = Hello(frames.PROTOCOL, "voter", "n1#1", "", __version__, {"kind": "witness"})
Handle = Callable[[FramedConnection], Awaitable[None]]


class Scheduler:
    """Listens, and keeps the connections that were handled."""

    def __init__(self, port: int, handle: Handle) -> None:
        self.address = f"127.0.0.1:{port}"
        self.port = port
        self.met: list[Hello] = []
        self._handle = handle

    async def handle(self, connection: FramedConnection) -> None:
        self.met.append(connection.other)
        await self._handle(connection)


async def echo(connection: FramedConnection) -> None:
    while True:
        connection.send(await connection.receive())


@asynccontextmanager
async def scheduler(
    handle: Handle = echo, *, tls: ssl.SSLContext | None = None, limit: int = 10
) -> AsyncIterator[Scheduler]:
    listener = socket.create_server(("127.0.0.1", 0))
    here = Scheduler(listener.getsockname()[1], handle)
    server = await frames.serve(listener, lambda _: SCHEDULER, KEYS.get, here.handle, tls=tls, limit=limit)
    try:
        yield here
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def dialled(
    address: str, hello: Hello = VOTER, key: bytes = TOKEN, tls: ssl.SSLContext | None = None
) -> AsyncIterator[FramedConnection]:
    connection = await frames.connect(address, hello, key, tls=tls)
    try:
        yield connection
    finally:
        connection.close()
        with suppress(ConnectionLost, WrongPeer):
            while True:
                await connection.receive()


async def answers_of(port: int, *parts: bytes) -> bytes:
    """Everything that the scheduler sends to a program that sends these bytes and then waits."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def frame(kind: bytes, body: bytes) -> bytes:
    return kind + len(body).to_bytes(4) + body


def opening(hello: Hello = VOTER) -> bytes:
    return frame(frames.HELLO, msgspec.msgpack.encode({"hello": hello, "nonce": bytes(32)}))


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(30):
            await story()

    asyncio.run(in_time())


def test_both_ends_learn_who_the_other_one_is_and_messages_arrive_whole_and_in_order() -> None:
    messages = [b"", b"one", bytes(3 * 1024 * 1024), b"last"]

    async def story() -> None:
        async with scheduler() as here, dialled(here.address) as connection:
            for message in messages:
                connection.send(message)
            assert [await connection.receive() for _ in messages] == messages
            assert connection.other == SCHEDULER
            assert here.met == [VOTER]

    run(story)


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert frames.host_and_port("[::1]:9092") == ("::1", 9092)
    assert frames.host_and_port("scheduler-1:9092") == ("scheduler-1", 9092)
    for wrong in ("::1:9092", "scheduler-1", "scheduler-1:0", ":9092", "scheduler-1:99999", "scheduler-1:port"):
        with pytest.raises(ValueError, match="is not HOST:PORT"):
            frames.host_and_port(wrong)


@needs_openssl
def test_frames_go_over_tls_and_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    pair, other = certificate(tmp_path, "scheduler"), certificate(tmp_path, "other")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair.cert, pair.key)

    async def story() -> None:
        async with scheduler(tls=server) as here:
            trusted = ssl.create_default_context(cafile=str(pair.cert))
            async with dialled(here.address, tls=trusted) as connection:
                connection.send(b"secret")
                assert await connection.receive() == b"secret"
            with pytest.raises(WrongPeer, match=f"certificate at {here.address} is not accepted"):
                await frames.connect(here.address, VOTER, TOKEN, tls=ssl.create_default_context(cafile=str(other.cert)))
            with pytest.raises((WrongPeer, ConnectionLost)):
                await frames.connect(here.address, VOTER, TOKEN)

    run(story)


def test_a_scheduler_without_tls_says_so_to_one_that_dials_with_tls() -> None:
    async def story() -> None:
        async with scheduler() as here:
            with pytest.raises((WrongPeer, ConnectionLost), match=r"TLS|broken|cannot be reached"):
                await frames.connect(here.address, VOTER, TOKEN, tls=ssl.create_default_context())
            assert here.met == []

    run(story)


@pytest.mark.parametrize(("hello", "sentence"), [(VOTER, "join token"), (SCHEDULER, "GPUYARD_SECRETS_KEY")])
def test_another_key_is_refused_with_a_sentence_that_says_what_to_check(hello: Hello, sentence: str) -> None:
    async def story() -> None:
        async with scheduler() as here:
            with pytest.raises(WrongPeer, match=f"different keys.*{sentence}"):
                await frames.connect(here.address, hello, b"another key")
            assert here.met == []

    run(story)


def test_a_dialler_without_a_key_is_told_what_to_set() -> None:
    with pytest.raises(WrongPeer, match=r"no key .* join token"):
        asyncio.run(frames.connect("127.0.0.1:9092", VOTER, b""))


def test_another_version_of_the_protocol_is_refused_and_both_versions_are_named() -> None:
    async def story() -> None:
        newer = msgspec.structs.replace(VOTER, protocol=7, version="9.1")
        async with scheduler() as here:
            with pytest.raises(WrongPeer, match=r"version 1 of .* the other one version 7 \(gpuyard 9\.1\)"):
                await frames.connect(here.address, newer, TOKEN)
            future = msgspec.msgpack.encode({"hello": {"protocol": 2, "version": "9.2", "more": [1]}})
            told = await answers_of(here.port, frame(frames.HELLO, future))
            assert told[:1] == frames.ERROR
            assert b"version 2 (gpuyard 9.2)" in told

    run(story)


def test_a_kind_of_connection_without_a_key_is_refused() -> None:
    async def story() -> None:
        async with scheduler() as here:
            with pytest.raises(WrongPeer, match="kind 'visitor' are not accepted"):
                await frames.connect(here.address, msgspec.structs.replace(VOTER, kind="visitor"), TOKEN)

    run(story)


def test_the_reason_of_a_refusal_after_the_handshake_reaches_the_other_end() -> None:
    async def refuse(_: FramedConnection) -> None:
        raise WrongPeer("This voter belongs to another cluster.")

    async def story() -> None:
        async with scheduler(refuse) as here, dialled(here.address) as connection:
            with pytest.raises(WrongPeer, match="This voter belongs to another cluster"):
                await connection.receive()

    run(story)


def test_nothing_listens_is_said_in_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ConnectionLost, match=f"{address} cannot be reached"):
        asyncio.run(frames.connect(address, VOTER, TOKEN))


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: scheduler\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        bytes(1000),
        frame(frames.HELLO, b"\xc1garbage"),
        frame(frames.HELLO, msgspec.msgpack.encode({"hello": VOTER, "nonce": b"short"})),
        frame(frames.DATA, b"data before the handshake"),
        frame(frames.HELLO, b"\x81" * 4000),
        frames.HELLO + b"\xff\xff\xff\xff",
        opening() + frame(frames.PROOF, b""),
        opening() + frame(frames.PROOF, bytes(32)),
        opening() + frame(frames.DATA, b"data without a proof"),
        frames.HELLO + (frames.MOST_BYTES_BEFORE_PROOF + 1).to_bytes(4),
    ],
)
def test_what_is_not_a_handshake_ends_the_connection_and_the_next_one_is_served(sent: bytes) -> None:
    async def story() -> None:
        async with scheduler() as here:
            await answers_of(here.port, sent)
            assert here.met == []
            async with dialled(here.address) as connection:
                connection.send(b"still there")
                assert await connection.receive() == b"still there"

    run(story)


def test_half_a_handshake_is_given_up_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "HANDSHAKE_SECONDS", 0.2)

    async def story() -> None:
        async with scheduler() as here:
            for part in (b"", b"H", opening()[:20], opening()):
                await answers_of(here.port, part)
            assert here.met == []

    run(story)


def test_a_recorded_handshake_cannot_be_used_again() -> None:
    """A program between the two ends records what the dialler sends, and sends it in a connection of its own."""
    recorded = bytearray()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray | None) -> None:
        while part := await reader.read(65536):
            if record is not None:
                record += part
            writer.write(part)
        writer.close()

    async def story() -> None:
        async with scheduler() as here:
            done = asyncio.Event()

            async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                onward, there = await asyncio.open_connection("127.0.0.1", here.port)
                await asyncio.gather(pipe(reader, there, recorded), pipe(onward, writer, None))
                done.set()

            listener = await asyncio.start_server(between, "127.0.0.1", 0)
            async with dialled(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}") as connection:
                connection.send(b"first")
                assert await connection.receive() == b"first"
            await done.wait()
            listener.close()
            assert here.met == [VOTER]
            assert b"different keys" in await answers_of(here.port, bytes(recorded))
            assert here.met == [VOTER]

    run(story)


def test_what_a_dialler_sends_proves_nothing_when_it_is_sent_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process at the address does not know the key: it sends back what it receives."""
    monkeypatch.setattr(frames, "HANDSHAKE_SECONDS", 0.2)

    async def story() -> None:
        done = asyncio.Event()

        async def reflect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while part := await reader.read(65536):
                writer.write(part)
            writer.close()
            done.set()

        server = await asyncio.start_server(reflect, "127.0.0.1", 0)
        with pytest.raises((WrongPeer, ConnectionLost)):
            await frames.connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", VOTER, TOKEN)
        await done.wait()
        server.close()

    run(story)


def test_the_proof_of_a_listener_sent_back_to_it_proves_nothing() -> None:
    async def story() -> None:
        async with scheduler() as here:
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(opening())
            hello = await frame_of(reader)
            proof = await frame_of(reader)
            assert (hello[:1], proof[:1]) == (frames.HELLO, frames.PROOF)
            writer.write(proof)
            assert b"different keys" in await reader.read()
            assert here.met == []
            writer.close()
            await writer.wait_closed()

    run(story)


async def frame_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(frames.HEAD_BYTES)
    return head + await reader.readexactly(int.from_bytes(head[1:]))


def test_a_reader_that_stands_still_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MOST_BUFFERED", 4 * 1024 * 1024)
    lost: list[str] = []

    async def flood(connection: FramedConnection) -> None:
        for _ in range(100):
            connection.send(bytes(1024 * 1024))
            await asyncio.sleep(0)
        try:
            await connection.receive()
        except ConnectionLost as error:
            lost.append(str(error))

    async def story() -> None:
        async with scheduler(flood) as here:
            connection = await frames.connect(here.address, VOTER, TOKEN)
            while not lost:
                await asyncio.sleep(0.01)
            with suppress(ConnectionLost):
                while True:
                    await connection.receive()
            connection.close()

    run(story)
    assert "has not read for too long" in lost[0]


def test_a_sender_that_waits_for_its_reader_keeps_little_in_memory() -> None:
    sent: list[int] = []

    async def send_much(connection: FramedConnection) -> None:
        for number in range(64):
            connection.send(bytes(1024 * 1024))
            await connection.drain()
            sent.append(number)

    async def story() -> None:
        async with scheduler(send_much) as here, dialled(here.address) as connection:
            assert len(await connection.receive()) == 1024 * 1024
            assert len(sent) < 32
            for _ in range(63):
                await connection.receive()
            with pytest.raises(ConnectionLost, match="closed the connection"):
                await connection.receive()

    run(story)


def test_a_message_that_is_too_long_ends_the_connection() -> None:
    async def story() -> None:
        async with scheduler() as here, dialled(here.address) as connection:
            connection.send(bytes(frames.MOST_BYTES + 1))
            with pytest.raises(ConnectionLost, match="too long"):
                await connection.receive()

    run(story)


def test_strangers_do_not_keep_others_out_and_proven_connections_stay() -> None:
    async def story() -> None:
        async with scheduler(limit=3) as here:
            strangers = [await asyncio.open_connection("127.0.0.1", here.port) for _ in range(10)]
            async with dialled(here.address) as one, dialled(here.address) as two, dialled(here.address) as three:
                with pytest.raises(ConnectionLost):
                    await frames.connect(here.address, VOTER, TOKEN)
                for connection in (one, two, three):
                    connection.send(b"here")
                    assert await connection.receive() == b"here"
            for _, writer in strangers:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

    run(story)


def test_the_kernel_watches_for_a_peer_that_is_cut_off() -> None:
    async def story() -> None:
        async with scheduler() as here:
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            stream = frames._Stream(reader, writer)
            watched: socket.socket = writer.get_extra_info("socket")
            assert watched.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert watched.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == frames.DEAD_SECONDS * 1000
            stream.close()
            await stream.closed()

    run(story)


def test_a_server_that_is_closed_ends_its_connections() -> None:
    async def story() -> None:
        async with scheduler() as here:
            connection = await frames.connect(here.address, VOTER, TOKEN)
            connection.send(b"there")
            assert await connection.receive() == b"there"
        with pytest.raises(ConnectionLost):
            await connection.receive()
        connection.send(b"dropped")
        with pytest.raises(ConnectionLost):
            await connection.drain()
        connection.close()
        with pytest.raises(ConnectionLost):
            await frames.connect(here.address, VOTER, TOKEN)

    run(story)
