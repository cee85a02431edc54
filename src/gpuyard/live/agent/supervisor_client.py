"""The agent's connection to its supervisor: finds or starts it, reconnects, and repeats commands it may have missed.

    async with SupervisorClient(folder) as processes:
        processes.send(Launch(AttemptKey(7, 1), shell="make"))
        async for events in processes.events():
            ...

The first event is a `AttemptList`, and another one comes after each reconnection: the reader compares it with its own
state. A command that was not answered before the connection broke is sent again (every command is safe to repeat).
"""

import asyncio
import os
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.live.agent.supervisor import messages
from gpuyard.live.agent.supervisor.clock import now
from gpuyard.live.agent.supervisor.paths import socket_address

START_SECONDS = 30.0
"""How long a supervisor may take to listen, on a busy machine."""

MOST_IN_A_FRAME = 100
"""A launch may be a megabyte long, and a frame must stay below the length limit."""

_SETTLED_BY: dict[type[messages.SupervisorMessage], tuple[type[messages.SupervisorMessage], ...]] = {
    messages.Launch: (messages.Launched, messages.Prepared, messages.NotLaunched, messages.ProcessEnded),
    messages.Start: (messages.Launched, messages.NotLaunched, messages.ProcessEnded, messages.NotHeld),
    messages.StopAttempt: (messages.NotLaunched, messages.ProcessEnded, messages.NotHeld),
    messages.Suspend: (messages.SuspendedNow, messages.NotLaunched, messages.ProcessEnded, messages.NotHeld),
    messages.Resume: (messages.ResumedNow, messages.NotLaunched, messages.ProcessEnded, messages.NotHeld),
    messages.Extend: (messages.Extended,),
}
"""The events that answer each command. Commands without an answer (renew, forget, list) are not repeated."""

_HANDED_ON = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "TZ", "USER", "VIRTUAL_ENV")

KeyedCommand = (
    messages.Launch | messages.Start | messages.StopAttempt | messages.Suspend | messages.Resume | messages.Extend
)


class SupervisorDoesNotStart(GpuyardError):
    """The supervisor of the node's tasks does not start. The file supervisor.out in its folder says why."""


class SupervisorEnded(SupervisorDoesNotStart):
    """The supervisor of the node's tasks ended while it started. The file supervisor.out in its folder says why."""


class SupervisorClient:
    """The supervisor of one folder, as the agent sees it. One reader, any number of senders, one event loop."""

    def __init__(self, folder: Path, boot: Callable[[], float] = now) -> None:
        self.folder = folder.absolute()
        self._boot = boot
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader | None = None
        self._queue: list[messages.SupervisorCommand] = []
        self._flush_is_due = False
        self._unanswered: dict[messages.AttemptKey, list[KeyedCommand]] = {}
        self._closed = False
        self._unanswered_since: float | None = None
        """When the oldest unanswered ping was sent, on the boot clock."""

    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def send(self, *commands: messages.SupervisorCommand) -> None:
        """Queue commands. They are sent together at the end of this turn of the loop, or once reconnected."""
        for command in commands:
            if isinstance(command, KeyedCommand):
                self._unanswered.setdefault(command.key, []).append(command)
            elif isinstance(command, messages.ForgetAttempts):
                # A launch that is repeated after its forget would run again, so it is not repeated any more.
                for key in command.keys:
                    self._unanswered.pop(key, None)
        self._queue.extend(commands)
        if not self._flush_is_due and self._writer is not None:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def launching(self) -> list[messages.AttemptKey]:
        """Return the attempts that were sent to the supervisor and are not confirmed yet."""
        return [
            key
            for key, commands in self._unanswered.items()
            if any(isinstance(command, messages.Launch) for command in commands)
        ]

    def awaits(self, key: messages.AttemptKey) -> bool:
        """Return whether a command about an attempt has not been answered yet."""
        return key in self._unanswered

    def ping(self) -> None:
        """Check whether the supervisor responds; `silent_seconds` tells the result."""
        if self._unanswered_since is None:
            self._unanswered_since = self._boot()
            self.send(messages.Ping())

    @property
    def silent_seconds(self) -> float:
        """How long the supervisor has not answered; 0 if there is no unanswered ping."""
        return 0.0 if self._unanswered_since is None else self._boot() - self._unanswered_since

    async def events(self) -> AsyncIterator[list[messages.SupervisorEvent]]:
        """Yield the supervisor's events in batches until `close`.

        Reconnect if needed, and start a new supervisor if it is gone.
        """
        frames = messages.Frames()
        while not self._closed:
            if self._reader is None:
                frames = messages.Frames()
                await self._connect()
            assert self._reader is not None
            data = b""
            try:
                data = await self._reader.read(1 << 18)
                bodies = frames.feed(data)
                batches = [messages.decode_events(body) for body in bodies]
            except (OSError, ValueError):
                batches, data = [], b""
            if not data:
                self._hang_up()
            for batch in batches:
                for event in batch:
                    self._settle(event)
                yield batch

    async def close(self) -> None:
        """Close the connection. The supervisor and its tasks continue."""
        self._closed = True
        self._flush()
        writer = self._writer
        if writer is not None:
            with suppress(OSError, TimeoutError):  # it is gone or does not read: give up
                await asyncio.wait_for(writer.drain(), 5.0)
        self._hang_up()

    # --- the connection -----------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        """Find the supervisor or start one, and subscribe."""
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while self._writer is None:
            try:
                with socket_address(self.folder) as address:
                    self._reader, self._writer = await asyncio.open_unix_connection(address, limit=1 << 20)
            except (FileNotFoundError, NotADirectoryError, ConnectionError):
                if asyncio.get_running_loop().time() > deadline:
                    raise SupervisorDoesNotStart(
                        f"The supervisor in {self.folder} does not answer; see supervisor.out there."
                    ) from None
                with suppress(SupervisorEnded):  # for example, it was killed; the next one may work
                    await asyncio.to_thread(start, self.folder)
            except OSError as error:
                raise SupervisorDoesNotStart(f"The supervisor in {self.folder} cannot be reached: {error}.") from error
        self._writer.write(messages.frame([messages.Subscribe()]))
        self._flush()

    def _hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None
        # Queued commands with a key are among the unanswered ones, which are all repeated in their order.
        self._queue = [command for command in self._queue if not isinstance(command, KeyedCommand)]
        if not self._closed:
            self._queue += [command for commands in self._unanswered.values() for command in commands]

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._writer is not None and self._queue:
            for first in range(0, len(self._queue), MOST_IN_A_FRAME):
                self._writer.write(messages.frame(self._queue[first : first + MOST_IN_A_FRAME]))
            self._queue = []

    def _settle(self, event: messages.SupervisorEvent) -> None:
        self._unanswered_since = None
        if isinstance(event, messages.AttemptList | messages.NotReplaced | messages.Pong):
            return
        commands = self._unanswered.get(event.key)
        if commands is None:
            return
        left = [command for command in commands if not isinstance(event, _SETTLED_BY[type(command)])]
        if left:
            self._unanswered[event.key] = left
        else:
            del self._unanswered[event.key]


def start(folder: Path) -> None:
    """Start the supervisor of a folder and wait until it listens. Do nothing if one listens already."""
    env = {
        name: value for name, value in os.environ.items() if name in _HANDED_ON or name.startswith(("LC_", "PYTHON"))
    }
    command = [sys.executable, "-m", "gpuyard.live.agent.supervisor", "--folder", str(folder)]
    try:
        done = subprocess.run(  # noqa: S603 - our own module, by our own interpreter
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=START_SECONDS, check=False, cwd="/"
        )
    except subprocess.TimeoutExpired:
        raise SupervisorDoesNotStart(
            f"The supervisor in {folder} did not listen within {START_SECONDS:.0f} s."
        ) from None
    if done.returncode < 0:
        raise SupervisorEnded
    if done.returncode:
        problem = SupervisorEnded if done.returncode == os.EX_TEMPFAIL else SupervisorDoesNotStart
        lines = deque(done.stderr.decode(errors="replace").strip().splitlines(), maxlen=1)
        raise problem(lines[0] if lines else "")
