"""One connection to a scheduler, as the agent keeps it: queued messages and acknowledgments."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from gpuyard.live.agent.supervisor import messages
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import AgentsStub


@dataclass
class SchedulerConnection:
    """One connection: the messages to send, and which of them the scheduler has received."""

    stub: AgentsStub
    metadata: tuple[tuple[str, str], ...]
    heard_at: float
    """When the last message known to have arrived was sent, on the boot clock, which never jumps or stops."""
    awaited_until: float
    """Until when the scheduler certainly waits for this node, on the boot clock. Afterwards its commands may be
    outdated: it may have declared the node lost, or admitted another agent in its place."""
    queue: list[tuple[pb.Report, float]] = field(default_factory=list)
    """Reports, each with the time of what it reports, on the boot clock."""
    goodbye: pb.Goodbye | None = None
    said_goodbye: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the scheduler has acknowledged that this agent stops on purpose."""
    heartbeat: pb.Heartbeat | None = None
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    number: int = 0
    ends: dict[int, messages.AttemptKey] = field(default_factory=dict)
    """Reports of ends by number, until the scheduler acknowledges them."""
    sent: dict[float, float] = field(default_factory=dict)
    """Heartbeats in flight: their timestamp, and when they were sent on the boot clock."""
    round_trip_seconds: float | None = None
    """Time between sending the last acknowledged heartbeat and its acknowledgment."""

    def report(self, key: messages.AttemptKey, at: float, **what: Any) -> None:
        """Queue a report about an attempt. `at` is when it happened, on the boot clock."""
        self.number += 1
        self.queue.append(
            (pb.Report(number=self.number, task=key.task, attempt=key.attempt, origin=key.origin, **what), at)
        )
        self.woken.set()
        if "ended" in what:
            self.ends[self.number] = key
