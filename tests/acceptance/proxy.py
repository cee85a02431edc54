"""A proxy between an agent and its scheduler that can stall, cut or duplicate connections. Loopback only."""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

Direction = Literal["both", "up", "down"]
_RESET = struct.pack("ii", 1, 0)


@dataclass(eq=False)
class _Connection:
    agent: asyncio.StreamWriter
    scheduler: asyncio.StreamWriter
    is_half: bool = False
    """The agent's side is gone; the scheduler still sees a connection."""


class Proxy:
    """Forwards connections to another port of this machine, in a thread of its own."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._refuses = False
        self._connections: set[_Connection] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accept, "127.0.0.1", 0), self._loop
        ).result(10)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.restore()

    # --- faults of the connection ------------------------------------------------------------------------------------

    def hold(self, direction: Direction) -> None:
        """Let no byte through; connections stay open."""

        def close() -> None:
            if direction in {"both", "up"}:
                self._up.clear()
            if direction in {"both", "down"}:
                self._down.clear()

        self._call(close)

    def reset(self) -> None:
        """Reset every connection; new ones are let through."""
        self._call(self._drop_all)

    def cut(self) -> None:
        """Reset every connection, and refuse new ones."""
        self._refuses = True
        self.reset()

    def double(self) -> None:
        """Reset the agent's side only: it connects again, and the scheduler has two connections of one agent."""

        def halve() -> None:
            for it in self._connections:
                it.is_half = True
                _abort(it.agent)

        self._call(halve)

    def restore(self) -> None:
        """Forward everything again; duplicated connections become one."""

        def open_gates() -> None:
            self._refuses = False
            self._up.set()
            self._down.set()
            for it in [one for one in self._connections if one.is_half]:
                self._drop(it)

        self._call(open_gates)

    def end(self) -> None:
        """Close everything."""

        async def close() -> None:
            self._server.close()
            self._drop_all()
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, act: Callable[[], object]) -> None:
        async def run() -> None:
            act()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    # --- forwarding --------------------------------------------------------------------------------------------------

    async def _accept(self, from_agent: asyncio.StreamReader, to_agent: asyncio.StreamWriter) -> None:
        try:
            if self._refuses:
                raise ConnectionRefusedError
            from_scheduler, to_scheduler = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            _abort(to_agent)
            return
        it = _Connection(to_agent, to_scheduler)
        self._connections.add(it)
        for pump in (
            self._pump(it, from_agent, to_scheduler, self._up),
            self._pump(it, from_scheduler, to_agent, self._down),
        ):
            task = asyncio.create_task(pump)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(
        self, it: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await gate.wait()
                if it.is_half:
                    continue  # what the scheduler says to a connection that has no other end
                writer.write(data)
                await writer.drain()
        if not it.is_half or writer is it.agent:
            self._drop(it)

    def _drop_all(self) -> None:
        for it in list(self._connections):
            self._drop(it)

    def _drop(self, it: _Connection) -> None:
        self._connections.discard(it)
        _abort(it.agent)
        _abort(it.scheduler)


def _abort(writer: asyncio.StreamWriter) -> None:
    found: socket.socket | None = writer.get_extra_info("socket")
    if found is not None:
        with suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
