"""Whether this scheduler leads or follows, as requests, nodes and metrics see it."""

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuyard.live.wire.answers import ReplicationAnswer


def _always() -> bool:
    return True


class Replicating(Protocol):
    """The replication of this scheduler, as people and nodes see it. May be called from any thread."""

    def answer(self) -> ReplicationAnswer:
        """Return which replicas hold every event, and who votes."""
        ...

    def peer_url(self) -> str:
        """Return where clients reach the other scheduler; empty: not known yet."""
        ...

    def voting_for(self, node: str) -> Sequence[str]:
        """Return where the agent of this node votes; empty: there are enough."""
        ...

    def register_voters(self, nodes: Collection[str]) -> None:
        """Only agents of these nodes may vote."""
        ...

    def why_not_leading(self) -> str:
        """Return why this standby cannot lead at present, or nothing."""
        ...

    def write_alone(self) -> str:
        """Leave the standby out until it has caught up; return why this is not possible now, or nothing."""
        ...


@dataclass(slots=True)
class SchedulerRole:
    """The role of a scheduler. One that is alone always leads."""

    leads: bool = True
    shared: bool = False
    """Whether other schedulers may lead in its place."""
    has_lease: Callable[[], bool] = _always
    """Whether no other scheduler can have taken over yet."""
    epoch: int = 0
    """The number of the take-over; 0: a scheduler that is alone."""
    leader_url: str = ""
    """Where the scheduler that leads answers REST; empty: unknown."""
    level_at: float = 0.0
    """For a standby: when it was level with the journal, by `time.monotonic`."""
    released: bool = False
    """It has stopped to lead on purpose."""
    ask_for_lead: Callable[[], Awaitable[bool]] | None = None
    """For a standby: asks the scheduler that leads to hand over; returns whether there is one."""
    replicating: Replicating | None = None
    """None: the journal is not replicated by the schedulers themselves."""

    @property
    def may_answer(self) -> bool:
        """Whether what this scheduler says as the leader still holds."""
        return self.leads and self.has_lease()

    @property
    def behind_seconds(self) -> float:
        """For a standby: how long ago it was level with the journal. It grows until new events are folded."""
        return time.monotonic() - self.level_at

    @property
    def name(self) -> str:
        """`master` or `standby`."""
        return "master" if self.leads else "standby"
