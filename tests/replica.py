"""A replication with one replica, in this process: it founds a cluster in an empty folder, and leads."""

import socket
import time
from pathlib import Path

from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.core.replication.membership import founding_membership
from gpuyard.core.replication.outputs import ReplicaRecord
from gpuyard.live.control_plane.replication.journal import ReplicatedJournal
from gpuyard.live.control_plane.replication.log_file import FILE, Base, ReplicationLog, drawn_name
from gpuyard.live.control_plane.replication.replica_files import is_replica, open_replica, record_paths, voter_node
from gpuyard.live.control_plane.replication.service import Replication, ReplicationOptions
from gpuyard.live.control_plane.stores.cluster_records import SqliteRecords
from gpuyard.live.control_plane.stores.record_layouts import LAYOUTS
from gpuyard.live.voting import voter_file

LEASE_SECONDS, SECONDS = 0.3, 20.0
KEY = b"k" * 32


def replication_of(
    folder: Path, *, port: int = 0, peer_port: int = 1, single_after: float | None = None
) -> Replication:
    """Open the replica in this folder, after founding it if there is none. Close it with `end`."""
    if not is_replica(folder):
        SqliteJournal.open(folder / "journal").close()
        for layout in LAYOUTS:
            SqliteRecords.open(record_paths(folder)[layout.name], layout).close()
        name = drawn_name("alone")
        voter = voter_file.found(folder / voter_file.VOTER_FILE, voter_node(name), name, "cluster")
        record = ReplicaRecord(0, founding_membership(name, voter))
        ReplicationLog.create(folder / FILE, name, "cluster", Base(0, 0, 0), record).close()
    listener = socket.create_server(("127.0.0.1", port))
    own = f"127.0.0.1:{listener.getsockname()[1]}"
    options = ReplicationOptions(
        folder, f"127.0.0.1:{peer_port}", own, "http://here", LEASE_SECONDS, 0.1, single_after, KEY
    )
    made = Replication(open_replica(folder, folder / "access.sqlite"), options, "join")
    made.start(listener)
    return made


def end(replication: Replication) -> None:
    """Stop the threads and close the files."""
    replication.close()
    replication.files.close()


def leading_journal(replication: Replication) -> ReplicatedJournal:
    """Return a journal that has taken over."""
    journal, give_up_at = ReplicatedJournal(replication), time.monotonic() + SECONDS
    while journal.take_over(journal.leader(), "") is None:
        assert time.monotonic() < give_up_at, "it was not elected"
        time.sleep(0.005)
    return journal


class OwnedJournal(ReplicatedJournal):
    """A journal that ends its replication when it is closed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(replication_of(folder))
        give_up_at = time.monotonic() + SECONDS
        while self.take_over(self.leader(), "") is None:
            assert time.monotonic() < give_up_at, "it was not elected"
            time.sleep(0.005)

    def close(self) -> None:
        """Close everything."""
        was_open = not self._is_closed
        super().close()
        if was_open:
            end(self._replication)
