"""The storage that several schedulers share in one database."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack

import structlog

from gpuyard.core.journal.stores.postgres_shared import SharedJournal
from gpuyard.live.control_plane.settings import ServerSettings
from gpuyard.live.control_plane.shared_storage import LeaderWatch, OpenedStorage
from gpuyard.live.control_plane.stores.cluster_stores import ClusterStores, open_cluster_stores
from gpuyard.live.control_plane.stores.database import StoreMissing
from gpuyard.live.control_plane.stores.documents import has_keys
from gpuyard.live.control_plane.stores.secrets_key import KEY_FILE, KeySource

POLL_SECONDS = 0.05
"""How often a scheduler looks whether the cluster exists."""
MASTER_FIRST = 3.0
"""If no scheduler has ever led, one with the role `standby` leaves that to one with the role `master` for so many leases."""

log = structlog.get_logger()


class DatabaseStorage:
    """See SharedStorage."""

    replicating = None

    def __init__(self, settings: ServerSettings, stack: ExitStack) -> None:
        """The database needs nothing to be given back by `stack`."""
        del stack
        self._settings = settings
        self._lease_seconds = float(settings.replication.heartbeat_timeout)
        waits = settings.scheduler.role == "standby"
        self._first_lead_at = asyncio.get_running_loop().time() + (MASTER_FIRST * self._lease_seconds if waits else 0.0)
        """When this scheduler may be the first one that ever leads."""

    async def open(self, told: "asyncio.Task[bool]", say: Callable[[str], None]) -> OpenedStorage | None:
        """Open the journal and the stores when the cluster exists; None: told to stop."""
        del say
        journal = await asyncio.to_thread(
            lambda: SharedJournal.open(self._settings.database, lease_seconds=self._lease_seconds)
        )
        try:
            stores = await self._founded_stores(journal, told)
        except BaseException:
            journal.close()
            raise
        if stores is None:
            journal.close()
            return None
        for note in journal.notes:
            log.warning("journal_checked", message=note)
        return OpenedStorage(journal, stores)

    async def _founded_stores(self, journal: SharedJournal, told: "asyncio.Task[bool]") -> ClusterStores | None:
        """Return the stores of the cluster; None: told to stop.

        In a new database there are none: the first scheduler that leads creates them and draws the keys. If it fails
        before that is done, the next one does it. `journal` is then held.
        """
        loop, watch = asyncio.get_running_loop(), LeaderWatch()
        while not told.done():
            leader = await asyncio.to_thread(journal.leader)
            watch.look(leader, loop.time())
            if leader.epoch:
                stores = await asyncio.to_thread(self._open_founded)
                if stores is not None:
                    return stores
                is_free = watch.is_free(loop.time(), journal.lease_seconds)
            else:
                is_free = loop.time() >= self._first_lead_at
            if is_free and await asyncio.to_thread(journal.take_over, leader, self._settings.public_url) is not None:
                return await asyncio.to_thread(self._open_stores, journal.epoch)
            await asyncio.wait([told], timeout=POLL_SECONDS)
        return None

    def _open_founded(self) -> ClusterStores | None:
        """Open the stores to read them; None if the keys of the cluster are not drawn yet."""
        try:
            stores = self._open_stores(None)
        except StoreMissing:
            return None
        if has_keys(stores.documents):
            return stores
        stores.close()
        return None

    def _open_stores(self, epoch: int | None) -> ClusterStores:
        """Open users, tokens, secrets and documents; `epoch`: that of the scheduler that leads, which may create them."""
        key = KeySource(self._settings.data_dir / KEY_FILE)
        return open_cluster_stores(url=self._settings.database, epoch=epoch, key=key)
