"""Where several schedulers have what they share: the journal with its lease, and the small stores beside it.

DatabaseStorage     one database that all of them use          database_storage.py
ReplicatedStorage   a copy in the data folder of each one      replication/storage.py
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gpuyard.core.journal.port import Leader, LeasedJournal
from gpuyard.live.control_plane.role import Replicating
from gpuyard.live.control_plane.stores.cluster_stores import ClusterStores


class OpenedStorage(NamedTuple):
    """An open journal and the stores of its cluster. Whoever has them closes them."""

    journal: LeasedJournal
    stores: ClusterStores


class SharedStorage(Protocol):
    """What the schedulers of a cluster share, as one of them uses it."""

    @property
    def replicating(self) -> Replicating | None:
        """The replication to the other scheduler, if this one replicates."""
        ...

    async def open(self, told: "asyncio.Task[bool]", say: Callable[[str], None]) -> OpenedStorage | None:
        """Open the journal and the stores when the cluster exists; None: told to stop.

        A journal that this scheduler has taken over in order to create the cluster is returned with `is_held`. `say` is
        told why this takes long.
        """
        ...


@dataclass(slots=True)
class LeaderWatch:
    """What a standby has seen of the leader, by its own clock."""

    seen: Leader | None = None
    since: float = 0.0

    def look(self, leader: Leader, now: float) -> None:
        """Note who leads. A beat that has changed begins a lease anew."""
        if self.seen is None or (leader.epoch, leader.beat) != (self.seen.epoch, self.seen.beat):
            self.since = now
        self.seen = leader

    def is_free(self, now: float, lease_seconds: float) -> bool:
        """Whether nobody leads: the leader has released, or its last beat was seen a whole lease ago."""
        return self.seen is not None and (self.seen.released or now - self.since >= lease_seconds)
