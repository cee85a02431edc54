"""Which nodes are alive: when each was last heard of, who is away on purpose, and which are lost.

A node is lost after `offline_after_seconds` of silence. Not counted are the time in which this process was stalled, the
time for which a predecessor announced its absence to the nodes, and the absence that an agent announced when it was stopped
on purpose. A successor gives every node at least as much time as its predecessor did.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import structlog

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.errors import StorageUnavailable
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import NodeId
from gpuyard.live.control_plane.loop import EngineLoop
from gpuyard.live.control_plane.nodes.sessions import AgentSessions
from gpuyard.live.control_plane.options import SchedulerOptions
from gpuyard.live.control_plane.views import Views

BEATS_TO_MISS = 3
"""Minimum number of heartbeats within the time after which a node is lost, whatever that time is."""
UNKNOWN_ABSENCE_SECONDS = 300.0
"""How long to wait for absent nodes if the journal is an old copy, which may lack the events of their planned stops."""
STALLED_SECONDS = 2.0
"""A check that is late by more than this means that this process was stalled, not the nodes."""

AgentProcess = tuple[str, str]
"""The instance of an agent and the boot of its machine."""

log = structlog.get_logger()


def now_on_loop() -> float:
    """Return the time of the event loop's monotonic clock."""
    return asyncio.get_running_loop().time()


class NodeLiveness:
    """Knows when each node was heard of, and declares silent nodes lost."""

    def __init__(self, loop: EngineLoop, views: Views, sessions: AgentSessions, options: SchedulerOptions) -> None:
        self._loop = loop
        self._views = views
        self._sessions = sessions
        self.heartbeat_seconds = min(options.heartbeat_seconds, options.offline_after_seconds / BEATS_TO_MISS)
        self.offline_after_seconds = options.offline_after_seconds
        self._check_seconds = options.check_seconds
        self._take_over = options.take_over
        before = loop.engine.state
        self._predecessor_seconds = before.offline_after_seconds
        self._absence_left_seconds = max(0.0, before.scheduler_back_by - before.now)
        self._away_left = {node: max(0.0, by - before.now) for node, by in before.back_by.items()}
        """Remaining announced absence, in seconds, of nodes that were away on purpose when this scheduler started."""
        self.scheduler_back_by = 0.0
        self.away_until: dict[NodeId, float] = {}
        """Until when a node is expected to be away."""
        self.last_heard: dict[NodeId, float] = {}
        self.checked_at = float("inf")
        """Time of the last check by `watch`; infinite until it starts."""
        self._registering: dict[NodeId, list[AgentProcess]] = {}

    def heard(self, node: NodeId) -> None:
        """Note a sign of life of a node."""
        self.last_heard[node] = now_on_loop()

    def silent_seconds(self, node: NodeId) -> float:
        """Return for how long a node has been silent, without the time in which this process was stalled."""
        return max(0.0, now_on_loop() - self.last_heard.get(node, float("-inf")) - self.standing_still())

    @contextmanager
    def registering(self, node: NodeId, agent: AgentProcess) -> Iterator[None]:
        """Do not declare a node lost while it registers. A registration that is refused is not a sign of life."""
        self._registering.setdefault(node, []).append(agent)
        try:
            yield
        finally:
            self._registering[node].remove(agent)
            if not self._registering[node]:
                del self._registering[node]

    def others_register(self, node: NodeId, agent: AgentProcess) -> bool:
        """Whether another agent registers this node at the moment."""
        return any(other != agent for other in self._registering.get(node, ()))

    def standing_still(self) -> float:
        """Return how long this process was stalled, if it has just resumed: that time is not silence of an agent."""
        late = now_on_loop() - self.checked_at - self._check_seconds
        return late if late > STALLED_SECONDS else 0.0

    def wait_for_the_absent(self) -> None:
        """Wait longer for absent nodes of an old journal: an agent may be stopped on purpose while its tasks run."""
        until = now_on_loop() + UNKNOWN_ABSENCE_SECONDS
        for node in self._views.nodes:
            if node not in self._sessions:
                self.away_until[node] = max(until, self.away_until.get(node, 0.0))

    async def watch(self, at_each_check: Callable[[float], None]) -> None:
        """Declare nodes lost after too long a silence. `at_each_check` gets the time of the check."""
        before = self.checked_at = now_on_loop()
        self.scheduler_back_by = before + self._absence_left_seconds
        self.away_until = {node: before + seconds for node, seconds in self._away_left.items()} | self.away_until
        if self._take_over:
            self.wait_for_the_absent()
        # Agents still pause between connection attempts as the previous scheduler told them, not as this one will.
        longer = max(0.0, self._predecessor_seconds - self.offline_after_seconds) + self.heartbeat_seconds
        for node in self._views.nodes:
            self.last_heard.setdefault(node, before + longer)
        while True:
            await asyncio.sleep(self._check_seconds)
            now = self.checked_at = now_on_loop()
            stood_still = now - before - self._check_seconds
            before = now
            if stood_still > STALLED_SECONDS:
                log.warning("process_paused", seconds=round(stood_still, 1))
            if self._loop.unwritable:
                stood_still += self._check_seconds  # agents cannot register or report meanwhile, so this is not silence
            if stood_still > STALLED_SECONDS or self._loop.unwritable:
                for node in self.last_heard:
                    self.last_heard[node] += stood_still
            at_each_check(now)
            with suppress(StorageUnavailable):
                await self._lose_the_silent(now)

    async def _lose_the_silent(self, now: float) -> None:
        if self._loop.unwritable or now < self.scheduler_back_by:
            return
        for node, view in list(self._views.nodes.items()):
            if now < self.away_until.get(node, 0.0) or node in self._registering:
                continue
            if not view.lost and now - self.last_heard.setdefault(node, now) > self.offline_after_seconds:
                if (session := self._sessions.get(node)) is not None:
                    session.close()
                silent_seconds = round(now - self.last_heard[node], 1)
                if not isinstance(await self._loop.tell(command.LoseNode(node)), Refusal):
                    log.warning("agent_offline", node_id=node, silent_seconds=silent_seconds)
