"""The files of a replica in its data folder: open them, found a cluster with them, or take in a copy.

    journal/             committed events
    access.sqlite, secrets.sqlite, documents.sqlite
    replication.sqlite   the replication log; a data folder with it belongs to a replica
    voter.json           the voter inside this scheduler
    secrets_key          the key that both schedulers have, unless it is in the environment
    copying/             a copy that is being received (copying.py)
    before_copy/         what was here before the last copy

A data folder that has a journal and no replication log is that of a scheduler that was alone. It becomes the first
replica of its cluster: it founds the replication and keeps everything it has.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuyard.core.journal.stores import segment
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.core.replication.membership import founding_membership
from gpuyard.core.replication.outputs import ReplicaRecord
from gpuyard.live.control_plane.replication.log_file import FILE, Base, ReplicationLog, drawn_name
from gpuyard.live.control_plane.stores.cluster_records import Put, SqliteRecords
from gpuyard.live.control_plane.stores.database import StoreDamaged
from gpuyard.live.control_plane.stores.documents import DRAWN_SECRETS, FolderDocuments, RecordDocuments, drawn
from gpuyard.live.control_plane.stores.record_layouts import (
    ACCESS_LAYOUT,
    DOCUMENTS,
    DOCUMENTS_LAYOUT,
    LAYOUTS,
    SECRETS_LAYOUT,
)
from gpuyard.live.control_plane.stores.recovery import found_cluster, open_journal, recover
from gpuyard.live.control_plane.stores.secrets_key import NoCipher
from gpuyard.live.voting import voter_file
from gpuyard.live.voting.voter_file import VOTER_FILE


@dataclass(frozen=True, slots=True)
class ReplicaFiles:
    """The open files of a replica."""

    log: ReplicationLog
    journal: SqliteJournal
    records: Mapping[str, SqliteRecords]

    def close(self) -> None:
        """Close all of them."""
        self.log.close()
        for records in self.records.values():
            records.close()
        self.journal.close()


def record_paths(folder: Path, access_file: Path | None = None) -> dict[str, Path]:
    """Return the files of the records by the name of their store."""
    return {
        ACCESS_LAYOUT.name: access_file or folder / "access.sqlite",
        SECRETS_LAYOUT.name: folder / "secrets.sqlite",
        DOCUMENTS_LAYOUT.name: folder / "documents.sqlite",
    }


LATER_EPOCHS = 1000
"""So many take-overs may have happened since an old copy was made. Voters and agents obey no epoch below one they know."""
COPY_AGAIN = (
    "Move the data folder {folder} away and start this scheduler again: it copies that of the other one. If that is lost, too, "
    "restore a backup of the whole folder."
)


def is_replica(folder: Path) -> bool:
    """Whether this data folder belongs to a replica."""
    return (folder / FILE).exists()


def has_journal(folder: Path) -> bool:
    """Whether this data folder has a journal."""
    return bool(segment.segments_in(folder / "journal"))


def open_replica(folder: Path, access_file: Path) -> ReplicaFiles:
    """Open the files of a replica. The log is exclusive: a second process with the same folder is refused.

    A file that is missing or damaged is not replaced by an empty one: this replica counts as a complete copy.
    """
    with ExitStack() as stack, _naming_the_other_copy(folder):
        log = ReplicationLog(folder / FILE)
        stack.callback(log.close)
        journal = open_journal(folder / "journal")
        stack.callback(journal.close)
        records = dict[str, SqliteRecords]()
        paths = record_paths(folder, access_file)
        for layout in LAYOUTS:
            if not paths[layout.name].exists():
                raise StoreDamaged(f"{paths[layout.name]} is missing.")
            records[layout.name] = SqliteRecords.open(paths[layout.name], layout)
            stack.callback(records[layout.name].close)
        stack.pop_all()
        return ReplicaFiles(log, journal, records)


@contextmanager
def _naming_the_other_copy(folder: Path) -> Iterator[None]:
    try:
        yield
    except StoreDamaged as damage:
        raise StoreDamaged(f"{str(damage).partition(' Restore it')[0]} {COPY_AGAIN.format(folder=folder)}") from damage


def refuse_to_found_again(folder: Path) -> None:
    """Raise an error if this data folder was that of a replica: a cluster that exists must not be founded a second time."""
    if voter_file.has_promised(folder / VOTER_FILE):
        raise StoreDamaged(f"{folder / FILE} is missing. {COPY_AGAIN.format(folder=folder)}")


def found_replica(folder: Path, scheduler: str, access_file: Path | None = None) -> str:
    """Make the data folder of a scheduler that was alone, or an empty one, that of the first replica of its cluster.

    Return the name of the replica. The log is written last: without it, the folder is founded again.
    """
    journal = open_journal(folder / "journal")
    try:
        engine, views = recover(journal)
        found_cluster(engine, journal, views, time.time())
        cluster, epoch, seq = engine.state.cluster_id, engine.state.epoch, journal.head.seq
    finally:
        journal.close()
    _import_documents(folder)
    for layout in LAYOUTS:
        SqliteRecords.open(record_paths(folder, access_file)[layout.name], layout).close()
    name = drawn_name(scheduler)
    voter = voter_file.found(folder / VOTER_FILE, voter_node(name), name, cluster)
    record = ReplicaRecord(epoch, founding_membership(name, voter))  # it leads in epochs above those of the journal
    ReplicationLog.create(folder / FILE, name, cluster, Base(0, 0, seq), record).close()
    return name


def found_again(folder: Path, scheduler: str) -> str:
    """Make this replica the first and only one, on the operator's word that no other one has events that it lacks.

    Return its new name. All its entries count from the next election on.
    """
    log = ReplicationLog(folder / FILE)
    try:
        name = drawn_name(scheduler)
        voter = voter_file.found(folder / VOTER_FILE, voter_node(name), name, log.cluster)
        epoch = max(log.record.promised, log.record.membership.epoch) + LATER_EPOCHS
        log.begin_anew(name, ReplicaRecord(epoch, founding_membership(name, voter)))
    finally:
        log.close()
    return name


def voter_node(replica: str) -> str:
    """Return the name of the voter inside a scheduler, without the random part of its memory."""
    return "scheduler-" + replica.partition("#")[0]


def _import_documents(folder: Path) -> None:
    """Copy the documents of a scheduler that was alone, which are plain files, to the store that is replicated."""
    plain = FolderDocuments(folder)
    rows = [(name, plain.read(name) or b"", int(name in DRAWN_SECRETS)) for name in plain.names()]
    records = SqliteRecords.open(folder / "documents.sqlite", DOCUMENTS_LAYOUT)
    try:
        records.write(Put(DOCUMENTS, rows))
        documents = RecordDocuments(records, NoCipher())
        for name in sorted(DRAWN_SECRETS):
            drawn(documents, name)
    finally:
        records.close()
