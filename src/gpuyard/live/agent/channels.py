"""Channels between clients and attempts of this node: their consoles, shells beside them, their TCP ports.

    scheduler ◄── gRPC stream of the channel ──► agent ◄── unix socket ──► holder of a console
                                                       ◄── TCP, loopback ─► a port that the attempt listens on

The agent opens a stream for each channel, when the scheduler asks for it, and passes on what comes. A slow reader slows
the writer: nothing is collected here. If either side ends, the other one is ended.
"""

import asyncio
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
import structlog

from gpuyard.live.agent import failures, listening_ports
from gpuyard.live.agent.launch_builder import LaunchBuilder, console_of
from gpuyard.live.agent.scheduler_connection import SchedulerConnection
from gpuyard.live.agent.supervisor import messages
from gpuyard.live.agent.supervisor.paths import short_path
from gpuyard.live.agent.supervisor_client import SupervisorClient
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire import channel_frames
from gpuyard.live.wire.rpc import CHANNEL_REQUEST

HOLDER_SECONDS = 10.0
"""How long the holder of a console may take to listen."""
LOOK_SECONDS = 0.02
SUPERVISOR_SECONDS = 10.0
CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
"""How long the scheduler may take to read what was sent before the end of a channel."""
PORT_BYTES = 64 * 1024
_LENGTH = struct.Struct(">I")

log = structlog.get_logger()


class ChannelRefused(Exception):
    """Why there is no channel: a code for programs, and a sentence."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class AgentChannels:
    """The channels of one node."""

    def __init__(
        self,
        processes: SupervisorClient,
        launch_builder: LaunchBuilder,
        attempts: Callable[[], Mapping[messages.AttemptKey, messages.HeldAttempt]],
        mark: str,
    ) -> None:
        """`attempts` returns the attempts as the supervisor reports them."""
        self._processes = processes
        self._launch_builder = launch_builder
        self._attempts = attempts
        self._mark = mark
        self._opening: dict[str, asyncio.Future[str]] = {}

    def shell_opened(self, session: str, message: str) -> None:
        """Take the supervisor's answer about a shell."""
        waiting = self._opening.pop(session, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    async def open(self, connection: SchedulerConnection, key: messages.AttemptKey, asked: pb.OpenChannel) -> None:
        """Open a channel and serve it until it ends."""
        call = connection.stub.channel(metadata=(*connection.metadata, (CHANNEL_REQUEST, asked.request)))
        try:
            try:
                await self._serve(call, key, asked)
            except ChannelRefused as refusal:
                await call.write(pb.ChannelFrame(error=str(refusal), code=refusal.code))
            await _ended(call)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError, OSError) as end:
            log.debug("channel_ended", task=key.task, why=failures.raw(end))
        finally:
            call.cancel()

    async def _serve(self, call: Any, key: messages.AttemptKey, asked: pb.OpenChannel) -> None:
        held = self._attempts().get(key)
        if held is None or held.phase not in {messages.ProcessPhase.RUNNING, messages.ProcessPhase.SUSPENDED}:
            raise ChannelRefused("NotRunning", f"task-{key.task} does not run on its node any more, or not yet.")
        match asked.kind:
            case pb.OpenChannel.CONSOLE:
                await self._console(call, key, asked, self._launch_builder.console_socket(key))
            case pb.OpenChannel.SHELL:
                path = self._launch_builder.console_socket(key, asked.session)
                if not path.exists():
                    await self._open_shell(key, asked, path)
                await self._console(call, key, asked, path)
            case pb.OpenChannel.PORTS:
                found = await asyncio.to_thread(listening_ports.of_attempt, self._mark, key, held.pid)
                await call.write(pb.ChannelFrame(frame=listening_ports.encode(found)))
            case pb.OpenChannel.PORT:
                await self._port(call, key, asked.port, held.pid)
            case _:
                raise ChannelRefused("AgentTooOld", "The agent of the node is older than the scheduler. Update it.")

    # --- consoles -----------------------------------------------------------------------------------------------------

    async def _open_shell(self, key: messages.AttemptKey, asked: pb.OpenChannel, path: Path) -> None:
        answer = self._opening[asked.session] = asyncio.get_running_loop().create_future()
        self._processes.send(
            messages.OpenShell(
                key, asked.session, console_of(asked.console, path), argv=tuple(asked.argv), env=dict(asked.env)
            )
        )
        try:
            message = await asyncio.wait_for(answer, SUPERVISOR_SECONDS)
        except TimeoutError:
            message = "The supervisor of its node does not answer; try again later."
        finally:
            self._opening.pop(asked.session, None)
        if message:
            raise ChannelRefused("ShellNotStarted", message)

    async def _console(self, call: Any, key: messages.AttemptKey, asked: pb.OpenChannel, path: Path) -> None:
        reader, writer = await self._connect(key, path)
        try:
            rights = channel_frames.control(rights={"write": asked.write})
            writer.write(_LENGTH.pack(len(rights)) + rights)
            await call.write(pb.ChannelFrame())
            await _until_left(call, reader, writer)
        finally:
            writer.close()

    async def _connect(self, key: messages.AttemptKey, path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the holder of a console, which may be starting."""
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + HOLDER_SECONDS
        while True:
            try:
                with short_path(path) as address:
                    return await asyncio.open_unix_connection(address, limit=1 << 18)
            except (FileNotFoundError, NotADirectoryError, ConnectionError):
                held = self._attempts().get(key)
                if held is None or held.phase is messages.ProcessPhase.ENDED:
                    raise ChannelRefused("NotRunning", f"task-{key.task} has ended.") from None
                if clock() >= give_up_at:
                    sentence = (
                        f"task-{key.task} has no open terminal on its node: it has ended, or was started without one."
                    )
                    raise ChannelRefused("NoConsole", sentence) from None
            await asyncio.sleep(LOOK_SECONDS)

    # --- ports --------------------------------------------------------------------------------------------------------

    async def _port(self, call: Any, key: messages.AttemptKey, port: int, pid: int) -> None:
        found = await asyncio.to_thread(listening_ports.of_attempt, self._mark, key, pid)
        one = next((it for it in found if it.port == port), None)
        if one is None:
            others = ", ".join(str(it.port) for it in found) or "none"
            sentence = f"No process of task-{key.task} listens on port {port}; ports on which it listens: {others}."
            raise ChannelRefused("NotListening", sentence)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(one.loopback, port, limit=1 << 18)
        except (OSError, TimeoutError) as error:
            sentence = f"Port {port} of task-{key.task} accepts no connection ({failures.raw(error)})."
            raise ChannelRefused("NotListening", sentence) from None
        try:
            await call.write(pb.ChannelFrame())
            await _both(_to_port(call, writer), _from_port(call, reader))
        finally:
            writer.close()


async def _ended(call: Any) -> None:
    """End our direction, and wait until the scheduler has read all of it: it would lose the rest if we cancelled then."""
    await call.done_writing()
    async with asyncio.timeout(READ_SECONDS):
        while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
            continue


async def _until_left(call: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry both directions of a console until the client leaves; after its holder has ended, until all was read.

    Cancelling a read of a stream cancels the stream, so what comes from the client is read to its end.
    """
    inward, outward = (asyncio.ensure_future(way) for way in (_to_holder(call, writer), _from_holder(call, reader)))
    try:
        await asyncio.wait((inward, outward), return_when=asyncio.FIRST_COMPLETED)
        if outward.done():
            outward.result()
            await call.done_writing()
            await asyncio.wait((inward,), timeout=READ_SECONDS)
        if inward.done():
            inward.result()
    finally:
        for way in (inward, outward):
            way.cancel()
        await asyncio.gather(inward, outward, return_exceptions=True)


async def _both(*ways: Any) -> None:
    """Carry both directions until both have ended."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _to_holder(call: Any, writer: asyncio.StreamWriter) -> None:
    while (message := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
        with suppress(ConnectionError):  # the holder has ended; what it said is still on its way
            writer.write(_LENGTH.pack(len(message.frame)) + message.frame)
            await writer.drain()


async def _from_holder(call: Any, reader: asyncio.StreamReader) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            if length > channel_frames.MOST_FRAME_BYTES:
                return
            await call.write(pb.ChannelFrame(frame=await reader.readexactly(length)))


async def _to_port(call: Any, writer: asyncio.StreamWriter) -> None:
    while (message := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
        if message.end:
            if writer.can_write_eof():
                writer.write_eof()
            continue
        writer.write(message.frame)
        await writer.drain()
    raise ConnectionAbortedError  # the client has left: nothing more is read for it


async def _from_port(call: Any, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(PORT_BYTES):
        await call.write(pb.ChannelFrame(frame=data))
    await call.write(pb.ChannelFrame(end=True))
