"""A scheduler as voters see it: it listens for them, and asks."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpuyard.core.replication.encoding import decode_for_replica, encode
from gpuyard.core.replication.messages import ToReplica, ToVoter
from gpuyard.live.wire import frames
from gpuyard.live.wire.frames import FramedConnection, Hello, WrongPeer
from gpuyard.version import __version__

TOKEN = "a join token"


class AskingScheduler:
    """Accepts voters, and asks the one that has connected last."""

    def __init__(self, listener: socket.socket, name: str, cluster: str, lease_seconds: float) -> None:
        self.name = name
        self.port: int = listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.refuses = ""
        """Why no voter is accepted."""
        self.met: list[Hello] = []
        self.voter: FramedConnection | None = None
        self._hello = Hello(
            frames.PROTOCOL, "replica", name, cluster, __version__, {"lease_seconds": f"{lease_seconds:g}"}
        )
        self._answers: asyncio.Queue[ToReplica] = asyncio.Queue()

    async def ask(self, message: ToVoter) -> ToReplica:
        """Send a message to the voter, and return its answer."""
        await self.connected()
        assert self.voter is not None
        self.voter.send(encode(message))
        return await self._answers.get()

    async def connected(self) -> None:
        """Wait for a voter."""
        while self.voter is None:
            await asyncio.sleep(0.01)

    async def left(self) -> None:
        """Wait until there is no voter."""
        while self.voter is not None:
            await asyncio.sleep(0.01)

    def hello_to(self, _: Hello) -> Hello:
        return self._hello

    async def handle(self, connection: FramedConnection) -> None:
        self.met.append(connection.other)
        if self.refuses:
            raise WrongPeer(self.refuses)
        self.voter = connection
        try:
            while True:
                self._answers.put_nowait(decode_for_replica(await connection.receive()))
        finally:
            self.voter = None


@asynccontextmanager
async def asking_scheduler(
    name: str,
    *,
    cluster: str = "cluster-1",
    lease_seconds: float = 1.0,
    port: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[AskingScheduler]:
    """A scheduler that listens until the end of the block."""
    listener = socket.create_server(("127.0.0.1", port))
    here = AskingScheduler(listener, name, cluster, lease_seconds)
    server = await frames.serve(listener, here.hello_to, {"voter": TOKEN.encode()}.get, here.handle, tls=tls, limit=10)
    try:
        yield here
    finally:
        server.close()
        await server.wait_closed()
