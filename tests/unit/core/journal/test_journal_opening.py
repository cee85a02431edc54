"""The journal on disk: opening, witnesses, segments, snapshots."""

import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuyard.core.domain.errors import JournalDamaged, JournalError, JournalFromFuture, JournalLocked
from gpuyard.core.domain.events import TaskHeld
from gpuyard.core.domain.values import TaskId
from gpuyard.core.journal import snapshots
from gpuyard.core.journal.codec import Codec
from gpuyard.core.journal.records import JournalEntry, Position, Record, Snapshot
from gpuyard.core.journal.stores.sqlite import SqliteJournal, read_folder


def held(*tasks: int) -> list[JournalEntry]:
    return [JournalEntry(float(task), TaskHeld(TaskId(task))) for task in tasks]


def tasks_in(journal: SqliteJournal, after: int = 0) -> list[int]:
    return [record.event.task for record in journal.read(after) if isinstance(record.event, TaskHeld)]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_folder_becomes_an_empty_journal(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path / "a" / "b")

    assert journal.head.seq == 0
    assert journal.notes == []
    assert journal.cut is None
    journal.close()


def test_a_closed_journal_is_plain_files(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path)
    journal.append(held(1))
    journal.close()

    assert names(tmp_path) == ["facts-000000000001.sqlite", "head", "lock"]


def test_a_creation_that_was_killed_is_repeated(tmp_path: Path) -> None:
    SqliteJournal.open(tmp_path).close()
    (tmp_path / "facts-000000000001.sqlite").rename(tmp_path / "facts-000000000001.sqlite.new")

    journal = SqliteJournal.open(tmp_path)
    journal.append(held(1))
    journal.close()
    assert names(tmp_path) == ["facts-000000000001.sqlite", "head", "lock"]


def test_a_second_writer_is_refused_with_the_process_id_of_the_first(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path)

    with pytest.raises(JournalLocked, match=r"Process \d+ writes the journal"):
        SqliteJournal.open(tmp_path)
    journal.close()
    SqliteJournal.open(tmp_path).close()


def test_a_refused_journal_is_not_locked(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path)
    journal.append(held(1))
    journal.close()

    for _ in range(2):
        with pytest.raises(JournalDamaged):
            SqliteJournal.open(tmp_path, witness=Position(5, "00"))


def test_an_external_witness_is_believed(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path)
    first = journal.append(held(1))
    head = journal.append(held(2, 3))
    journal.close()

    SqliteJournal.open(tmp_path, witness=head).close()
    SqliteJournal.open(tmp_path, witness=first).close()
    with pytest.raises(
        JournalDamaged, match=r"an external witness records that the journal went to event 4, but it ends at 3"
    ):
        SqliteJournal.open(tmp_path, witness=Position(4, head.hash))
    with pytest.raises(
        JournalDamaged, match=r"damaged at event 2: an external witness has recorded another event there"
    ):
        SqliteJournal.open(tmp_path, witness=Position(2, head.hash))


def test_damage_names_the_segment_the_event_and_the_way_out(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path, segment_events=2)
    for task in range(1, 7):
        journal.append(held(task))
    journal.close()
    with sqlite3.connect(tmp_path / "facts-000000000003.sqlite") as connection:
        connection.execute("UPDATE fact SET payload = replace(CAST(payload AS TEXT), '4', '5') WHERE seq = 4")
    connection.close()

    with pytest.raises(
        JournalDamaged, match=r"facts-000000000003.sqlite in .* at event 4: .*backup.*gpuyard\.core\.journal\.salvage"
    ):
        SqliteJournal.open(tmp_path)


def test_a_missing_segment_is_damage(tmp_path: Path) -> None:
    for missing in ("facts-000000000001.sqlite", "facts-000000000003.sqlite", "facts-000000000005.sqlite"):
        folder = tmp_path / missing
        journal = SqliteJournal.open(folder, segment_events=2)
        for task in range(1, 7):
            journal.append(held(task))
        journal.close()
        (folder / missing).unlink()

        with pytest.raises(JournalDamaged):
            SqliteJournal.open(folder)


def test_a_journal_without_segments_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path)
    journal.append(held(1))
    journal.close()
    (tmp_path / "facts-000000000001.sqlite").unlink()

    with pytest.raises(JournalDamaged, match="All segments"):
        SqliteJournal.open(tmp_path)


def test_a_segment_of_a_future_format_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.core.journal.stores.segment.FORMAT", 2)
    SqliteJournal.open(tmp_path).close()
    monkeypatch.undo()

    with pytest.raises(JournalFromFuture, match="has format 2, and this gpuyard reads up to 1"):
        SqliteJournal.open(tmp_path)


def test_a_torn_tail_is_reported_once_and_cut(tmp_path: Path) -> None:
    killed, live = tmp_path / "killed", tmp_path / "live"
    journal = SqliteJournal.open(live)
    journal.append(held(1))
    head = (live / "head").read_bytes()
    journal.append(held(2))
    killed.mkdir()
    (killed / "head").write_bytes(head)
    (killed / "facts-000000000001.sqlite").write_bytes((live / "facts-000000000001.sqlite").read_bytes())
    log = (live / "facts-000000000001.sqlite-wal").read_bytes()
    (killed / "facts-000000000001.sqlite-wal").write_bytes(log[:-10])
    journal.close()

    journal = SqliteJournal.open(killed)
    assert journal.cut is not None
    assert (journal.cut.segment, journal.cut.after) == ("facts-000000000001.sqlite", 1)
    assert journal.notes == [journal.cut.sentence()]
    journal.append(held(3))
    journal.close()
    journal = SqliteJournal.open(killed)
    assert journal.cut is None
    assert tasks_in(journal) == [1, 3]
    journal.close()


def test_segments_are_contiguous_and_a_batch_stays_in_one(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path, segment_events=3)
    for batch in (held(1, 2), held(3, 4), held(5), held(6, 7, 8, 9), held(10)):
        journal.append(batch)

    assert [name for name in names(tmp_path) if name.endswith(".sqlite")] == [
        "facts-000000000001.sqlite",
        "facts-000000000005.sqlite",
        "facts-000000000010.sqlite",
    ]
    assert tasks_in(journal) == list(range(1, 11))
    assert tasks_in(journal, after=4) == [5, 6, 7, 8, 9, 10]
    assert journal.verify() == 10
    journal.close()
    journal = SqliteJournal.open(tmp_path, segment_events=3)
    journal.append(held(11))
    assert tasks_in(journal) == list(range(1, 12))
    journal.close()


def test_a_snapshot_is_readable_json(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path)
    head = journal.append(held(1))
    journal.save_snapshot(Snapshot(head, {"held": [1], "name": "Zürich"}))
    journal.close()

    text = (tmp_path / "snapshot-000000000001.json").read_text(encoding="utf-8")
    document = json.loads(text)
    assert list(document) == ["format", "gpuyard", "seq", "hash", "state", "checksum"]
    assert (document["seq"], document["hash"]) == (1, head.hash)
    assert '\n    "held": [\n' in text


def test_a_damaged_snapshot_is_noted_and_the_older_one_used(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path)
    for task in (1, 2):
        journal.save_snapshot(Snapshot(journal.append(held(task)), {"held": task}))
    journal.close()
    newest = tmp_path / "snapshot-000000000002.json"
    newest.write_bytes(newest.read_bytes().replace(b'"held": 2', b'"held": 3'))

    journal = SqliteJournal.open(tmp_path)
    snapshot = next(journal.usable_snapshots(), None)
    assert snapshot is not None
    assert snapshot.state == {"held": 1}
    assert journal.notes == [
        "A snapshot is damaged and was not used: snapshot-000000000002.json does not match its checksum."
    ]
    journal.close()


def test_a_snapshot_of_a_future_format_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = SqliteJournal.open(tmp_path)
    monkeypatch.setattr(snapshots, "FORMAT", 2)
    journal.save_snapshot(Snapshot(journal.append(held(1)), {}))
    monkeypatch.undo()
    journal.close()

    with pytest.raises(JournalFromFuture, match=r"snapshot-000000000001\.json has format 2"):
        SqliteJournal.open(tmp_path)


def test_a_snapshot_is_a_witness(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path)
    head = journal.append(held(1))
    journal.close()
    snapshots.write(tmp_path, Snapshot(Position(7, head.hash), {}))

    with pytest.raises(JournalDamaged, match="a snapshot records that the journal went to event 7"):
        SqliteJournal.open(tmp_path)


def test_retired_segments_are_gone_and_the_journal_opens_from_its_snapshots(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path, segment_events=2)
    for task in range(1, 8):
        head = journal.append(held(task))
        if task in {5, 7}:
            journal.save_snapshot(Snapshot(head, {"last": task}))

    assert journal.retire() == 4
    assert [name for name in names(tmp_path) if name.endswith(".sqlite")] == [
        "facts-000000000005.sqlite",
        "facts-000000000007.sqlite",
    ]
    journal.close()

    journal = SqliteJournal.open(tmp_path)
    assert tasks_in(journal, after=5) == [6, 7]
    with pytest.raises(JournalError, match="Events up to 4 were retired"):
        journal.read(3)
    assert journal.verify() == 3
    journal.close()
    for path in tmp_path.glob("snapshot-*"):
        path.write_bytes(b"{}")
    with pytest.raises(JournalDamaged, match="begins with event 5, and no snapshot"):
        SqliteJournal.open(tmp_path)


def test_the_older_snapshot_still_has_the_events_it_needs_after_retiring(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path, segment_events=1)
    for task in range(1, 8):
        head = journal.append(held(task))
        if task in {3, 6}:
            journal.save_snapshot(Snapshot(head, {"last": task}))
    journal.retire()
    journal.close()
    (tmp_path / "snapshot-000000000006.json").write_bytes(b"")

    journal = SqliteJournal.open(tmp_path)
    snapshot = next(journal.usable_snapshots(), None)
    assert snapshot is not None
    assert snapshot.state == {"last": 3}
    assert tasks_in(journal, after=3) == [4, 5, 6, 7]
    journal.close()


@pytest.fixture
def retired(tmp_path: Path) -> Path:
    """A folder of six retired events."""
    journal = SqliteJournal.open(tmp_path / "journal", segment_events=2)
    for task in range(1, 8):
        journal.save_snapshot(Snapshot(journal.append(held(task)), {}))
        journal.retire(into=tmp_path / "retired")
    journal.close()
    return tmp_path / "retired"


def test_retired_events_are_packed_for_their_owner_alone_and_can_be_read_later(retired: Path) -> None:
    packed = [
        "facts-000000000001.sqlite.gz",
        "facts-000000000003.sqlite.gz",
        "facts-000000000005.sqlite.gz",
    ]
    assert names(retired) == packed
    assert [record.seq for record in read_folder(retired)] == [1, 2, 3, 4, 5, 6]
    assert [record.seq for record in read_folder(retired, after=3)] == [4, 5, 6]
    assert names(retired) == packed
    assert retired.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in retired.iterdir())


def test_retired_events_may_be_unpacked_and_thinned_out_from_the_oldest_on(retired: Path) -> None:
    subprocess.run(["gunzip", retired / "facts-000000000003.sqlite.gz"], check=True)
    assert [record.seq for record in read_folder(retired)] == [1, 2, 3, 4, 5, 6]
    (retired / "facts-000000000001.sqlite.gz").unlink()
    assert [record.seq for record in read_folder(retired)] == [3, 4, 5, 6]


@pytest.mark.parametrize("damage", [lambda content: content[:40], lambda content: b"x" + content[1:]])
def test_a_damaged_packed_segment_is_named(retired: Path, damage: Callable[[bytes], bytes]) -> None:
    path = retired / "facts-000000000003.sqlite.gz"
    path.write_bytes(damage(path.read_bytes()))
    reader = read_folder(retired)
    assert [next(reader).seq, next(reader).seq] == [1, 2]
    with pytest.raises(JournalDamaged, match=r"facts-000000000003\.sqlite\.gz in .*retired is damaged at event 3"):
        next(reader)


def test_events_that_can_not_be_packed_stay_in_the_journal(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path / "journal", segment_events=2)
    for task in range(1, 8):
        journal.save_snapshot(Snapshot(journal.append(held(task)), {}))
    (tmp_path / "retired").write_text("no folder")
    with pytest.raises(JournalError, match="retired"):
        journal.retire(into=tmp_path / "retired")
    assert tasks_in(journal) == [1, 2, 3, 4, 5, 6, 7]
    (tmp_path / "retired").unlink()
    assert journal.retire(into=tmp_path / "retired") == 6
    journal.close()


def test_retired_events_are_printed_a_line_each(retired: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "gpuyard.core.journal.read", retired, "--after", "4"], capture_output=True, check=True
    )
    told = [json.loads(line) for line in said.stdout.splitlines()]
    assert [(line["seq"], line["at"], line["fact"]) for line in told] == [
        (5, 5.0, {"type": "TaskHeld", "task": 5}),
        (6, 6.0, {"type": "TaskHeld", "task": 6}),
    ]
    wrong = subprocess.run(
        [sys.executable, "-m", "gpuyard.core.journal.read", retired / "x"], capture_output=True, check=False
    )
    assert (wrong.returncode, wrong.stderr.decode()) == (1, f"There is no journal in {retired / 'x'}.\n")


def test_a_live_journal_can_be_read_by_other_processes(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path)
    journal.append(held(1, 2))

    assert [record.seq for record in read_folder(tmp_path)] == [1, 2]
    journal.append(held(3))
    assert [record.seq for record in read_folder(tmp_path, after=1)] == [2, 3]
    journal.close()
    with pytest.raises(JournalError, match="There is no journal"):
        list(read_folder(tmp_path / "nowhere"))


def test_a_segment_is_retired_only_when_it_has_no_readers(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path, segment_events=2)
    journal.append(held(1, 2))
    lingering = journal.read()
    assert next(lingering).seq == 1
    for task in range(3, 8):
        journal.save_snapshot(Snapshot(journal.append(held(task)), {}))

    assert journal.retire() == 0
    assert next(lingering).seq == 2
    assert list(lingering) == []
    assert journal.retire() == 6
    journal.close()


def test_snapshots_may_be_saved_in_parallel_to_the_writer(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path, segment_events=50)
    first = journal.append(held(0))
    errors: list[BaseException] = []

    def save_and_retire() -> None:
        try:
            for _ in range(20):
                journal.save_snapshot(Snapshot(journal.head, {}))
                journal.retire()
        except BaseException as error:
            errors.append(error)

    beside = threading.Thread(target=save_and_retire)
    beside.start()
    for task in range(1, 400):
        journal.append(held(task))
    beside.join()

    assert errors == []
    assert journal.head.seq == first.seq + 399
    journal.close()
    SqliteJournal.open(tmp_path).close()


class Retiring(Codec):
    """Retires what it can when the first event is read."""

    journal: SqliteJournal

    def decode(self, seq: int, payload: bytes) -> Record:
        if seq == 1:
            self.journal.retire()
        return super().decode(seq, payload)


def test_a_segment_that_is_retired_while_the_journal_is_verified_is_no_damage(tmp_path: Path) -> None:
    codec = Retiring()
    journal = codec.journal = SqliteJournal.open(tmp_path, segment_events=1, codec=codec)
    for task in range(1, 8):
        head = journal.append(held(task))
        if task in {3, 6}:
            journal.save_snapshot(Snapshot(head, {}))

    assert journal.verify() == 4, "the events 4 to 7 are left"
    journal.close()


def test_snapshots_that_are_saved_at_the_same_time_do_not_delete_each_other(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path)
    heads = [journal.append(held(task)) for task in range(1, 41)]
    with ThreadPoolExecutor(4) as pool:
        for saved in [pool.submit(journal.save_snapshot, Snapshot(head, {})) for head in heads]:
            saved.result()

    kept = [journal.snapshot_path(each.seq) for each in journal._snapshots]
    assert sorted(tmp_path.glob(snapshots.PATTERN)) == kept
    journal.close()
