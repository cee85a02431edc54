"""Channels between clients and attempts of this node: their consoles, shells beside them, their TCP ports.

    scheduler ◄── gRPC stream of the channel ──► agent ◄── unix socket ──► holder of a console
                                                       ◄── TCP, loopback ─► a port that the attempt listens on

The agent opens a stream for each channel, when the scheduler asks for it, and passes on what comes. A slow reader slows
the writer: nothing is collected here. If either side ends, the other one is ended.

A client draws the name of its shell and names it again when it comes back. The holder of a shell makes a *record* of it
before the command begins and writes its end there (`console_holder.py`), so a shell is begun once, however often it is
asked for, and a client that comes back after its end learns how it ended.
"""

import asyncio
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec
import structlog

from gpuyard.live.agent import failures, listening_ports
from gpuyard.live.agent.launch_builder import LaunchBuilder, console_of
from gpuyard.live.agent.listening_ports import ListeningPort
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
SCANS_AT_ONCE = 2
"""Searches for listening ports, each in a thread. Heartbeats need threads, too."""
MOST_RECORDS = 1000
"""Shells that a task may have had within `RECORD_SECONDS`."""
RECORD_SECONDS = 3600.0
"""How long the end of a shell is known at least; a client tries to come back for 15 minutes."""
_LENGTH = struct.Struct(">I")

log = structlog.get_logger()


class ChannelRefused(Exception):
    """Why there is no channel: a code for programs, and a sentence."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class _ShellOver(Exception):
    """The shell has ended; `end` is the content of its record."""

    def __init__(self, end: "ShellEnd") -> None:
        super().__init__()
        self.end = end


class ShellEnd(msgspec.Struct, frozen=True):
    """How a shell has ended, as its holder writes it."""

    code: int | None
    signal: int | None
    end: int
    """The length of its output."""


class PortScans:
    """Searches for the ports on which attempts listen.

    A search takes milliseconds of a thread, and a client may open hundreds of connections at once. So those that ask
    for one attempt while a search runs share the next one, which begins after they asked.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._threads = asyncio.Semaphore(SCANS_AT_ONCE)
        self._next: dict[messages.AttemptKey, asyncio.Task[list[ListeningPort]]] = {}
        """The searches that have not begun."""

    async def of(self, key: messages.AttemptKey, pid: int) -> list[ListeningPort]:
        """Return the ports on which an attempt listens now."""
        if (waiting := self._next.get(key)) is None:
            waiting = self._next[key] = asyncio.create_task(self._search(key, pid))
        return await asyncio.shield(waiting)

    async def _search(self, key: messages.AttemptKey, pid: int) -> list[ListeningPort]:
        try:
            await self._threads.acquire()
        finally:
            del self._next[key]
        try:
            return await asyncio.to_thread(listening_ports.of_attempt, self._mark, key, pid)
        finally:
            self._threads.release()


class AgentChannels:
    """The channels of one node."""

    def __init__(
        self,
        processes: SupervisorClient,
        launch_builder: LaunchBuilder,
        attempts: Callable[[], Mapping[messages.AttemptKey, messages.HeldAttempt]],
        mark: str,
        *,
        shells: tuple[int, int] = (16, 64),
    ) -> None:
        """`attempts` returns the attempts as the supervisor reports them. `shells`: the most beside one, and beside all."""
        self._processes = processes
        self._launch_builder = launch_builder
        self._attempts = attempts
        self._ports = PortScans(mark)
        self._shells = shells
        self._opening: dict[tuple[messages.AttemptKey, str], asyncio.Future[messages.ShellOpened]] = {}

    def shell_opened(self, answer: messages.ShellOpened) -> None:
        """Take the supervisor's answer about a shell."""
        waiting = self._opening.get((answer.key, answer.session))
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

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
                await self._shell(call, key, asked)
            case pb.OpenChannel.PORTS:
                found = await self._ports.of(key, held.pid)
                await call.write(pb.ChannelFrame(frame=listening_ports.encode(found)))
            case pb.OpenChannel.PORT:
                await self._port(call, key, asked.port, held.pid)
            case _:
                raise ChannelRefused("AgentTooOld", "The agent of the node is older than the scheduler. Update it.")

    # --- consoles -----------------------------------------------------------------------------------------------------

    async def _shell(self, call: Any, key: messages.AttemptKey, asked: pb.OpenChannel) -> None:
        """Begin a shell, or attach to the one that has this name; if it has ended, say how."""
        if not (asked.session.isascii() and asked.session.isalnum()):
            raise ChannelRefused("ShellNotStarted", "The name of a shell has only letters and digits.")
        folder = self._launch_builder.shells_folder(key)
        path, record = folder / f"{asked.session}.sock", folder / f"{asked.session}.json"
        if not record.exists():
            _make_room(folder, key)
            await self._open_shell(key, asked, console_of(asked.console, path, str(record)))
        try:
            await self._console(call, key, asked, path, record)
        except _ShellOver as over:
            await call.write(pb.ChannelFrame())
            attached = _received_by(await call.read())
            for words in _ended_shell(over.end, attached):
                await call.write(pb.ChannelFrame(frame=channel_frames.control(**words)))

    async def _open_shell(
        self, key: messages.AttemptKey, asked: pb.OpenChannel, console: messages.LaunchConsole
    ) -> None:
        """Have the supervisor start the holder of a shell; one that is being started is waited for."""
        place = key, asked.session
        if (answer := self._opening.get(place)) is None:
            answer = self._opening[place] = asyncio.get_running_loop().create_future()
            most_of_attempt, most = self._shells
            self._processes.send(
                messages.OpenShell(
                    key, asked.session, console, argv=tuple(asked.argv), env=dict(asked.env),
                    most_of_attempt=most_of_attempt, most=most,
                )
            )  # fmt: skip
        try:
            opened = await asyncio.wait_for(asyncio.shield(answer), SUPERVISOR_SECONDS)
        except TimeoutError:
            sentence = "The supervisor of its node does not answer; try again later."
            raise ChannelRefused("ShellNotStarted", sentence) from None
        finally:
            self._opening.pop(place, None)
        if opened.message:
            raise ChannelRefused(opened.code or "ShellNotStarted", opened.message)

    async def _console(
        self, call: Any, key: messages.AttemptKey, asked: pb.OpenChannel, path: Path, record: Path | None = None
    ) -> None:
        reader, writer = await self._connect(key, path, record)
        try:
            rights = channel_frames.control(rights={"write": asked.write})
            writer.write(_LENGTH.pack(len(rights)) + rights)
            await call.write(pb.ChannelFrame())
            await _until_left(call, reader, writer)
        finally:
            writer.close()

    async def _connect(
        self, key: messages.AttemptKey, path: Path, record: Path | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the holder of a console, which may be starting. Raise `_ShellOver` if the record has its end."""
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + HOLDER_SECONDS
        while True:
            try:
                with short_path(path) as address:
                    return await asyncio.open_unix_connection(address, limit=1 << 18)
            except (FileNotFoundError, NotADirectoryError, ConnectionError):
                if record is not None and (end := _end_in(record)) is not None:
                    raise _ShellOver(end) from None
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
        found = await self._ports.of(key, pid)
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


def _make_room(folder: Path, key: messages.AttemptKey) -> None:
    """Remove old records of shells that have ended. Raise `ChannelRefused` if too many are not old."""
    try:
        records = list(folder.glob("*.json"))
    except FileNotFoundError:
        return
    if len(records) < MOST_RECORDS:
        return
    old = time.time() - RECORD_SECONDS
    removed = 0
    for record in records:
        with suppress(FileNotFoundError):
            if (told := record.stat()).st_size and told.st_mtime < old:
                record.unlink()
                removed += 1
    if len(records) - removed >= MOST_RECORDS:
        sentence = (
            f"task-{key.task} has had {len(records) - removed} shells within an hour, the maximum; use one shell for "
            "several commands, or wait."
        )
        raise ChannelRefused("TooManyShells", sentence)


def _end_in(record: Path) -> ShellEnd | None:
    """Return the end of a shell; None: it has none yet."""
    try:
        return msgspec.json.decode(record.read_bytes(), type=ShellEnd)
    except (OSError, msgspec.MsgspecError):
        return None


def _received_by(message: Any) -> int:
    """Return the output that a client has, as its first frame says; -1: it does not say."""
    with suppress(channel_frames.MalformedFrame, AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return int(channel_frames.unpack(message.frame).words["attach"]["received"])
    return -1


def _ended_shell(end: ShellEnd, received: int) -> list[dict[str, object]]:
    """Return what the holder of a shell would say to a client that comes back, without output, which is gone."""
    at = {"offset": end.end, "end": end.end, "input": 0, "write": True, "terminal": True}
    gap: list[dict[str, object]] = [{"gap": [received, end.end]}] if 0 <= received < end.end else []
    return [{"attached": at}, *gap, {"exit": msgspec.to_builtins(end)}]


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
