"""The file of a replica: what is written is there after a restart, and positions and events stay together."""

import sqlite3
from pathlib import Path

import pytest

from gpuyard.core.replication.log import LogEntry
from gpuyard.core.replication.membership import Membership
from gpuyard.core.replication.outputs import ReplicaRecord, SaveReplica, WriteEntries
from gpuyard.live.control_plane.replication import log_file
from gpuyard.live.control_plane.replication.log_file import FILE, Base, ReplicationLog, drawn_name
from gpuyard.live.control_plane.replication.record_changes import decode_changes, encode_changes
from gpuyard.live.control_plane.stores.cluster_records import Put
from gpuyard.live.control_plane.stores.database import StoreDamaged, StoreError, StoreLocked
from gpuyard.live.control_plane.stores.record_layouts import SECRETS

EMPTY = Base(0, 0, 0)
MEMBERSHIP = Membership(3, 1, frozenset({"a#1"}), frozenset({"v"}), frozenset({"v"}))
RECORD = ReplicaRecord(3, MEMBERSHIP)
EVENT, CHANGE = b'{"an": "event"}', b"R\x92\x01"


def created(folder: Path, base: Base = EMPTY) -> ReplicationLog:
    return ReplicationLog.create(folder / FILE, "a#1", "cluster", base, RECORD)


def entries(*payloads: bytes, epoch: int = 4) -> tuple[LogEntry, ...]:
    return tuple(LogEntry(epoch, payload) for payload in payloads)


def test_a_new_log_knows_its_replica_and_is_empty(tmp_path: Path) -> None:
    created(tmp_path, Base(7, 2, 5)).close()
    log = ReplicationLog(tmp_path / FILE)
    assert (log.name, log.cluster, log.record, log.base, log.last) == ("a#1", "cluster", RECORD, Base(7, 2, 5), 7)
    assert (log.oldest, log.epoch_at(7), log.after(7, 10)) == (7, 2, [])
    log.close()


def test_writes_are_there_after_a_restart_and_a_later_one_replaces_the_tail(tmp_path: Path) -> None:
    log, later = created(tmp_path), ReplicaRecord(9, MEMBERSHIP)
    log.save([WriteEntries(0, entries(EVENT, CHANGE, EVENT)), SaveReplica(later)])
    log.save([WriteEntries(1, entries(EVENT, epoch=5))])
    log.save([WriteEntries(2, (LogEntry(6, EVENT, last=False),))])
    assert log.after(2, 1) == [LogEntry(6, EVENT, last=False)]
    log.save([WriteEntries(2, ())])
    log.close()
    again = ReplicationLog(tmp_path / FILE)
    assert again.record == later
    assert again.after(0, 10) == [*entries(EVENT), *entries(EVENT, epoch=5)]
    assert (again.last, again.epoch_at(1), again.epoch_at(2)) == (2, 4, 5)
    assert again.after(1, 1) == list(entries(EVENT, epoch=5))
    again.close()


def test_events_are_found_by_their_number_also_after_old_entries_were_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "TRIM_STEP", 2)
    log = created(tmp_path, Base(10, 1, 4))
    log.save([WriteEntries(10, entries(CHANGE, EVENT, CHANGE, EVENT, CHANGE))])
    positions = {4: 10, 5: 12, 6: 14}
    assert {seq: log.position_of(seq) for seq in positions} == positions
    assert log.trim(13)
    assert not log.trim(13)
    assert log.base == Base(13, 4, 5)
    assert (log.position_of(5), log.position_of(6)) == (13, 14)
    assert not log.trim(13)
    log.close()


def test_a_journal_of_another_time_is_refused(tmp_path: Path) -> None:
    log = created(tmp_path, Base(10, 1, 4))
    log.save([WriteEntries(10, entries(EVENT))])
    for seq in (3, 6):
        with pytest.raises(StoreDamaged, match=f"ends at event {seq}, which this replication log does not have"):
            log.position_of(seq)
    with pytest.raises(StoreDamaged, match="entry 12 is missing"):
        log.epoch_at(12)
    log.close()


def test_a_second_process_with_the_same_file_is_refused(tmp_path: Path) -> None:
    log = created(tmp_path)
    with pytest.raises(StoreLocked):
        ReplicationLog(tmp_path / FILE)
    log.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DELETE FROM replica", "it names no replica"),
        ("UPDATE replica SET record = x'00'", "its record cannot be read"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, change: str, said: str) -> None:
    created(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute(change)
    database.close()
    with pytest.raises(StoreError, match=said):
        ReplicationLog(tmp_path / FILE)


def test_every_copy_has_a_name_of_its_own() -> None:
    assert len({drawn_name("host:9092") for _ in range(100)}) == 100


def test_deleted_secrets_leave_the_log_and_the_others_stay(tmp_path: Path) -> None:
    def written(*tasks: int) -> bytes:
        (entry,) = encode_changes("secrets", [Put(SECRETS, [(task, b"hunter%d" % task) for task in tasks])])
        return entry

    def files() -> bytes:
        return b"".join(path.read_bytes() for path in tmp_path.glob(f"{FILE}*"))

    log = created(tmp_path)
    log.save([WriteEntries(0, entries(EVENT, written(1, 2), EVENT, written(3), written(4)))])
    log.save([WriteEntries(4, entries(EVENT, epoch=5))])
    assert log.secrets == {1: 2, 2: 2, 3: 4}
    log.forget_secrets([1, 3])
    assert [b"hunter%d" % task in files() for task in (1, 2, 3)] == [False, True, False]
    log.close()
    again = ReplicationLog(tmp_path / FILE)
    assert again.secrets == {2: 2}
    kept = [decode_changes(entry.payload) for entry in again.after(0, 10) if not entry.payload.startswith(b"{")]
    assert [change.rows for _, changes in kept for change in changes if isinstance(change, Put)] == [
        [(2, b"hunter2")],
        [],
    ]
    again.close()
