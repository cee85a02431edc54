"""The network between agents and schedulers, in place of gRPC: the same calls, the same messages as bytes, and faults.

A link connects a node to the schedulers. While one direction of it is cut nothing arrives there: what was sent waits, as
in TCP, and arrives in order when the link is repaired, unless one side has given up on the connection. A side gives up when
it has not heard of the other for as long as keepalive takes; the other side may not know (half open).

`MemoryChannel` has the methods of a `grpc.aio.Channel` that `AgentsStub` uses, and a server is handed the handler that a
`grpc.aio.server` would be, so calls that are added to the service need nothing here.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from tests.simulation.faults.event_loop import OUTSIDE, Process, VirtualLoop

Deliver = Callable[[], None]
KEEPALIVE_SECONDS = (10.0, 15.0)
"""After so long without a word from the other side a connection is given up: gRPC's keepalive as both sides set it."""
OK = grpc.StatusCode.OK


def failed(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    """How a call fails at its caller."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details, None)


class Network:
    """All links, and the listening servers."""

    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        self.loop = loop
        self.chance = chance
        self.servers: dict[str, Server] = {}
        self.dark: set[str] = set()
        """Addresses whose machine is off: nothing comes back, not even a refusal."""

    def listen(self, address: str, process: Process, handler: "grpc.GenericRpcHandler[Any, Any]") -> None:
        """Answer calls at an address."""
        server = self.servers[address] = Server(self, process, handler)

        def gone() -> None:
            if self.servers.get(address) is server:
                del self.servers[address]

        process.on_kill.append(gone)

    def hang_up(self, address: str) -> None:
        """Stop listening there and close its connections."""
        server = self.servers.pop(address, None)
        for connection in list(server.connections) if server is not None else ():
            connection.server_leaves()


class Link:
    """The connection of a node to the schedulers."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.cut_up = self.cut_down = False
        """From the agent to the scheduler, and back."""
        self.delay_seconds = (0.0002, 0.002)
        self.keepalive = True
        """Off: a side that waits for messages does not notice that the other side is gone."""
        self.cuts = 0
        self.connections: list[Connection] = []

    @property
    def is_cut(self) -> bool:
        return self.cut_up or self.cut_down

    def cut(self, up: bool = True, down: bool = True) -> None:
        """Nothing arrives any more in these directions."""
        self.cut_up, self.cut_down = self.cut_up or up, self.cut_down or down
        self.cuts += 1
        for connection in list(self.connections):
            connection.doubt()

    def mend(self) -> None:
        """Repair it; what waited arrives."""
        self.cut_up = self.cut_down = False
        self.keepalive = True
        self.delay_seconds = (0.0002, 0.002)
        self.cuts += 1
        for connection in list(self.connections):
            connection.up.pump()
            connection.down.pump()
            connection.doubt()

    def reset(self, client: bool, server: bool) -> None:
        """Break the connections at one side or at both, as a box in between that forgot about them does."""
        for connection in list(self.connections):
            if client:
                connection.break_client()
            if server:
                connection.break_server()

    async def accepts(self, address: str) -> bool:
        """Whether a scheduler listens at an address; nobody answers if the link is cut."""
        if self.is_cut or address in self.network.dark:
            await asyncio.sleep(0.5)
            return False
        await asyncio.sleep(self.delay())
        return address in self.network.servers

    def delay(self) -> float:
        return self.network.chance.uniform(*self.delay_seconds)


class Direction:
    """What is under way one way; it arrives in the order in which it was sent."""

    def __init__(self, link: Link, up: bool, refuse: Deliver) -> None:
        self._link = link
        self._up = up
        self._refuse = refuse
        self._queue: deque[tuple[float, Deliver]] = deque()
        self._last_at = 0.0
        self.closed = False
        """Its receiver has given up."""

    def send(self, deliver: Deliver) -> None:
        loop = self._link.network.loop
        at = self._last_at = max(self._last_at, loop.time() + self._link.delay())
        self._queue.append((at, deliver))
        loop.call_at(at, self.pump, context=OUTSIDE)

    def pump(self) -> None:
        """Let arrive what is due."""
        now = self._link.network.loop.time()
        while self._queue and self._queue[0][0] <= now:
            if self._link.cut_up if self._up else self._link.cut_down:
                return
            deliver = self._queue.popleft()[1]
            if self.closed:  # its kernel knows of no such connection, and says so
                self._refuse()
            else:
                deliver()


class Connection:
    """One TCP connection with the calls on it."""

    def __init__(self, link: Link, client: Process, server: "Server") -> None:
        self.link, self.client, self.server = link, client, server
        self.up = Direction(link, True, lambda: self.down.send(self.break_client) if self.client_alive else None)
        self.down = Direction(link, False, lambda: self.up.send(self.break_server) if self.server_alive else None)
        self.client_alive = self.server_alive = True
        self.calls: list[Call] = []
        self.served: list[asyncio.Task[None]] = []
        link.connections.append(self)
        server.connections.append(self)
        client.on_kill.append(self.client_leaves)
        server.process.on_kill.append(self.server_leaves)
        client.on_stop.append(self.doubt)
        server.process.on_stop.append(self.doubt)
        if link.is_cut:
            self.doubt()

    def client_leaves(self) -> None:
        """The agent closed it, or its process is gone: its kernel says so to the other side."""
        if self.client_alive:
            self.up.send(self.break_server)
            self.break_client()

    def server_leaves(self) -> None:
        if self.server_alive:
            self.down.send(self.break_client)
            self.break_server()

    def break_client(self) -> None:
        """The agent's side is over."""
        if not self.client_alive:
            return
        self.client_alive, self.down.closed = False, True
        self.client.on_stop.remove(self.doubt)
        calls, self.calls = self.calls, []
        for call in calls:
            call.fail(failed(grpc.StatusCode.UNAVAILABLE, "The connection broke."))
        self._forget()

    def break_server(self) -> None:
        """The scheduler's side is over: the handler is cancelled."""
        if not self.server_alive:
            return
        self.server_alive, self.up.closed = False, True
        self.server.process.on_stop.remove(self.doubt)
        self.server.connections.remove(self)
        served, self.served = self.served, []
        for task in served:
            task.cancel()
        self._forget()

    def _forget(self) -> None:
        if not self.client_alive and not self.server_alive:
            self.link.connections.remove(self)
            for process, leave in ((self.client, self.client_leaves), (self.server.process, self.server_leaves)):
                if leave in process.on_kill:
                    process.on_kill.remove(leave)

    def doubt(self) -> None:
        """Something may keep the other side from answering: see after a while whether it still does."""
        seconds = self.link.network.chance.uniform(*KEEPALIVE_SECONDS)
        seen = (self.link.cuts, self.client.stops, self.server.process.stops)
        self.link.network.loop.call_later(seconds, self._give_up, seen, context=OUTSIDE)

    def _give_up(self, seen: tuple[int, int, int]) -> None:
        link, client, server = self.link, self.client, self.server.process
        if seen != (link.cuts, client.stops, server.stops) or not link.keepalive:
            return
        if (link.is_cut or server.stopped) and not client.stopped:
            self.client_leaves()
        if (link.is_cut or client.stopped) and not server.stopped:
            self.server_leaves()


class Call:
    """A call as its caller sees it: a stream of messages each way."""

    def __init__(
        self, connection: Connection, serialize: Callable[[Any], bytes], parse: Callable[[bytes], Any]
    ) -> None:
        self._connection, self._serialize, self._parse = connection, serialize, parse
        self._answers: deque[bytes] = deque()
        self._end: grpc.aio.AioRpcError | None = None
        self._over = False
        self._waiter: asyncio.Future[None] | None = None
        self.requests = Requests()
        self.task: asyncio.Task[None] | None = None
        """Who answers."""
        connection.calls.append(self)

    async def write(self, request: Any) -> None:
        """Send a message."""
        if self._over:
            raise self._end or failed(grpc.StatusCode.UNKNOWN, "The call is over.")
        self.send(request)

    def send(self, request: Any) -> None:
        data = self._serialize(request)
        self._connection.up.send(lambda: self.requests.put(data))

    async def read(self) -> Any:
        """The next message, or the end."""
        while not self._answers:
            if self._over:
                if self._end is not None:
                    raise self._end
                return grpc.aio.EOF  # type: ignore[attr-defined]
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._parse(self._answers.popleft())

    def answer(self, data: bytes) -> None:
        self._answers.append(data)
        self._wake()

    def fail(self, error: grpc.aio.AioRpcError | None) -> None:
        """It is over: with an error, or as it should be."""
        if not self._over:
            self._over, self._end = True, error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def cancel(self) -> None:
        """Give up on it, and say so."""
        if not self._over:
            self.fail(failed(grpc.StatusCode.CANCELLED, "Cancelled by the caller."))
            self._connection.up.send(self._stop_answering)
        if self in self._connection.calls:
            self._connection.calls.remove(self)

    def _stop_answering(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Requests:
    """The messages of a caller, for the server."""

    def __init__(self) -> None:
        self._words: deque[bytes | None] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, word: bytes | None) -> None:
        self._words.append(word)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> bytes | None:
        while not self._words:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._words.popleft()

    async def each(self, parse: Callable[[bytes], Any]) -> AsyncIterator[Any]:
        while (word := await self.get()) is not None:
            yield parse(word)


class MemoryChannel:
    """An agent's channel to one address."""

    def __init__(self, link: Link, client: Process, address: str) -> None:
        self._link, self._client, self._address = link, client, address
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:  # noqa: ARG002
        if self._connection is not None:
            self._connection.client_leaves()

    async def _connect(self, deadline: float | None) -> Connection:
        network, loop = self._link.network, asyncio.get_running_loop()
        if self._connection is not None and self._connection.client_alive:
            return self._connection
        while self._link.is_cut or self._address in network.dark:  # no answer to the first packet
            if deadline is not None and loop.time() >= deadline:
                raise failed(grpc.StatusCode.UNAVAILABLE, "The address does not answer.")
            await asyncio.sleep(1.0)
        await asyncio.sleep(self._link.delay())
        server = network.servers.get(self._address)
        if server is None:
            raise failed(grpc.StatusCode.UNAVAILABLE, "Connection refused.")
        self._connection = Connection(self._link, self._client, server)
        return self._connection

    def unary_unary(self, path: str, serialize: Any, parse: Any) -> Callable[..., Any]:
        async def call(
            request: Any,
            *,
            timeout: float | None = None,
            metadata: Sequence[tuple[str, str]] = (),
            wait_for_ready: bool | None = None,  # noqa: ARG001
        ) -> Any:
            loop = asyncio.get_running_loop()
            deadline = None if timeout is None else loop.time() + timeout
            connection = await self._connect(deadline)
            made = Call(connection, serialize, parse)
            made.send(request)
            connection.up.send(lambda: connection.server.serve(connection, made, path, metadata, deadline))
            try:
                async with asyncio.timeout_at(deadline):
                    answer = await made.read()
            except TimeoutError:
                raise failed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline exceeded.") from None
            finally:
                made.cancel()
            return answer

        return call

    def stream_stream(self, path: str, serialize: Any, parse: Any) -> Callable[..., Call]:
        def call(*, metadata: Sequence[tuple[str, str]] = ()) -> Call:
            connection = self._connection
            assert connection is not None, "no stream is opened before the first call"
            made = Call(connection, serialize, parse)
            if connection.client_alive:
                connection.up.send(lambda: connection.server.serve(connection, made, path, metadata, None))
            else:
                made.fail(failed(grpc.StatusCode.UNAVAILABLE, "The connection broke."))
            return made

        return call

    def unary_stream(self, path: str, serialize: Any, parse: Any) -> Callable[..., Call]:
        def call(request: Any, *, metadata: Sequence[tuple[str, str]] = ()) -> Call:
            made = self.stream_stream(path, serialize, parse)(metadata=metadata)
            made.send(request)
            return made

        return call

    def stream_unary(self, path: str, serialize: Any, parse: Any) -> Callable[..., Any]:
        async def call(words: AsyncIterator[Any], *, metadata: Sequence[tuple[str, str]] = ()) -> Any:
            made = self.stream_stream(path, serialize, parse)(metadata=metadata)
            try:
                async for word in words:
                    await made.write(word)
                assert self._connection is not None
                self._connection.up.send(lambda: made.requests.put(None))
                return await made.read()
            finally:
                made.cancel()

        return call


class Details:
    """Which method is called, as a handler of gRPC wants to know it."""

    def __init__(self, method: str, metadata: Sequence[tuple[str, str]]) -> None:
        self.method, self.invocation_metadata = method, metadata


class ServerContext:
    """A call as the server sees it."""

    def __init__(self, metadata: Sequence[tuple[str, str]]) -> None:
        self._metadata = metadata
        self.status: tuple[grpc.StatusCode, str] = (OK, "")

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        return self._metadata

    def peer(self) -> str:
        return "memory"

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:  # noqa: ARG002
        self.status = (code, details)
        raise grpc.aio.AbortError()


class Server:
    """A process that answers calls."""

    def __init__(self, network: Network, process: Process, handler: "grpc.GenericRpcHandler[Any, Any]") -> None:
        self.network, self.process = network, process
        self.connections: list[Connection] = []
        self._handler = handler

    def serve(
        self,
        connection: Connection,
        call: Call,
        path: str,
        metadata: Sequence[tuple[str, str]],
        deadline: float | None,
    ) -> None:
        """Answer a call, inside the process."""
        if not self.process.alive or not connection.server_alive:
            return
        task = call.task = self.process.start(self._answer(connection, call, path, metadata))
        connection.served.append(task)
        if deadline is not None:
            self.network.loop.call_at(deadline, task.cancel, context=OUTSIDE)

    async def _answer(self, connection: Connection, call: Call, path: str, metadata: Sequence[tuple[str, str]]) -> None:
        context = ServerContext(metadata)
        method: Any = self._handler.service(Details(path, metadata))  # type: ignore[arg-type]
        parse, serialize = method.request_deserializer, method.response_serializer

        def say(data: bytes) -> None:
            connection.down.send(lambda: call.answer(data))

        try:
            if method.response_streaming:
                async for answer in method.stream_stream(call.requests.each(parse), context):
                    say(serialize(answer))
            elif method.request_streaming:
                say(serialize(await method.stream_unary(call.requests.each(parse), context)))
            else:
                first = await call.requests.get()
                assert first is not None
                say(serialize(await method.unary_unary(parse(first), context)))
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            context.status = (grpc.StatusCode.CANCELLED, "Cancelled by the server.")
        except Exception as error:
            context.status = (grpc.StatusCode.UNKNOWN, f"Unexpected {type(error).__name__}: {error}")
        code, details = context.status
        if connection.server_alive:
            connection.down.send(lambda: call.fail(None if code is OK else failed(code, details)))
        if (task := call.task) in connection.served:
            connection.served.remove(task)
