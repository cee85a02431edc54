"""One connected agent: its queue of commands and its pending reports."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from secrets import token_hex

from gpuyard.core.domain.values import AttemptRef, NodeId
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import attempt_of

MOST_IN_A_MESSAGE = 50
"""A launch may be 1 MiB, and an agent accepts messages of up to 64 MiB."""
RECEIPT_SECONDS = 0.05
"""How long an acknowledgment waits for a command to share its message."""


class AgentSession:
    """A connected agent."""

    def __init__(self, registration: pb.Registration, there: dict[AttemptRef, int]) -> None:
        self.id = token_hex(16)
        self.node = NodeId(registration.node.id)
        self.address = registration.address
        self.version = registration.version
        self.has_channels = registration.channels
        """Whether the agent opens terminals and ports; older ones do not."""
        self.gpus = list(registration.node.gpus)
        self.there = there
        """The attempts on the node when it registered."""
        self.outbox: list[pb.Command] = []
        self.backlog: list[pb.Report] = []
        """Reports that wait until the journal has room."""
        self.ports = {attempt_of(it): it.port for it in registration.attempts if it.port}
        self.received = 0
        self.heard = 0.0
        self.absence_seconds = 0.0
        self.connected = False
        self.closed = False
        self.on_close: set[Callable[[], None]] = set()
        """Called when the session ends."""
        self.reporting_gpus: set[int] = set()
        """GPUs whose new health is being written to the journal."""
        self.unknown_attempts: dict[AttemptRef, None] = {}
        self.goodbye = False
        """True when the agent stops on purpose and this is durable."""
        self._woken = asyncio.Event()
        self._now = asyncio.get_running_loop().time
        self._soon: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Send pending messages now."""
        self._woken.set()

    def wake_soon(self) -> None:
        """Send pending messages soon, together with the next command: one message instead of two."""
        if self._soon is None or self._soon.cancelled() or self._soon.when() < self._now():
            self._soon = asyncio.get_running_loop().call_later(RECEIPT_SECONDS, self._woken.set)

    def send(self, commands: Iterable[pb.Command]) -> None:
        """Queue commands. A session that is over takes none: the next one of the node is reconciled with the state."""
        if self.closed:
            return
        self.outbox.extend(commands)
        self._woken.set()

    def close(self) -> None:
        """End the session. Commands that were not sent yet are dropped."""
        self.closed = True
        self.outbox.clear()
        self._woken.set()
        for tell in list(self.on_close):
            tell()

    async def messages(
        self, epoch: int, committed: Callable[[], tuple[int, str]]
    ) -> AsyncIterator[pb.SchedulerMessage]:
        """Yield messages to the agent, each with as many commands as are pending and fit."""
        while not self.closed:
            await self._woken.wait()
            self._woken.clear()
            while not self.closed:
                now, self.outbox = self.outbox[:MOST_IN_A_MESSAGE], self.outbox[MOST_IN_A_MESSAGE:]
                absence_seconds, self.absence_seconds = self.absence_seconds, 0.0  # sent once: it counts from then
                seq, digest = committed()
                yield pb.SchedulerMessage(
                    epoch=epoch,
                    seq=seq,
                    hash=digest,
                    received=self.received,
                    commands=now,
                    heard=self.heard,
                    patience_seconds=absence_seconds,
                    goodbye=self.goodbye,
                )
                if not self.outbox:
                    break


class AgentSessions(dict[NodeId, AgentSession]):
    """The newest session of each node."""

    def __init__(self) -> None:
        super().__init__()
        self.by_id: dict[str, AgentSession] = {}
        """Sessions that may connect or are connected."""

    def add(self, session: AgentSession) -> None:
        """Add the session of a node that has registered, and end its previous one."""
        self.detach(session.node)
        self[session.node] = self.by_id[session.id] = session

    def detach(self, node: NodeId) -> None:
        """End the session of a node: nothing more is sent to the agent that holds it."""
        if (old := self.pop(node, None)) is not None:
            old.close()
            self.by_id.pop(old.id, None)

    def send(self, node: NodeId, *commands: pb.Command) -> None:
        """Queue commands for a node if it is connected; otherwise it gets them when it reconnects."""
        session = self.get(node)
        if session is not None and session.connected:
            session.send(commands)

    def close_all(self) -> None:
        """Make every agent register again: a command may not have been sent, and reconciliation sends it."""
        for session in self.values():
            session.close()
