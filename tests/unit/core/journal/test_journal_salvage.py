"""Salvaging a damaged journal."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard.core.domain.errors import JournalDamaged, JournalError
from gpuyard.core.domain.events import TaskHeld
from gpuyard.core.domain.values import TaskId
from gpuyard.core.journal.records import JournalEntry, Record, Snapshot
from gpuyard.core.journal.salvage import salvage
from gpuyard.core.journal.stores.sqlite import SqliteJournal


def journal_of_six(folder: Path, *, snapshot_at: int | None = None) -> list[Record]:
    """Six events in three segments."""
    journal = SqliteJournal.open(folder, segment_events=2)
    for task in range(1, 7):
        head = journal.append([JournalEntry(float(task), TaskHeld(TaskId(task)))])
        if task == snapshot_at:
            journal.save_snapshot(Snapshot(head, {"last": task}))
    records = list(journal.read())
    journal.close()
    return records


def spoil(folder: Path, seq: int) -> None:
    """Change the event with this number, and nothing else, on the disk."""
    for path in folder.glob("*.sqlite"):
        content = path.read_bytes()
        path.write_bytes(content.replace(f'"task":{seq}}}'.encode(), b'"task":9}'))


def test_everything_before_the_damage_is_kept(tmp_path: Path) -> None:
    records = journal_of_six(tmp_path / "old")
    spoil(tmp_path / "old", 4)

    salvaged = salvage(tmp_path / "old", tmp_path / "new")

    assert (salvaged.after, salvaged.head.seq, salvaged.witnessed) == (0, 3, 6)
    assert "3 later events are lost" in salvaged.sentence()
    assert "facts-000000000003.sqlite" in salvaged.why
    journal = SqliteJournal.open(tmp_path / "new")
    assert list(journal.read()) == records[:3]
    journal.append([JournalEntry(7.0, TaskHeld(TaskId(7)))])
    journal.close()


def test_damage_before_a_snapshot_does_not_matter(tmp_path: Path) -> None:
    records = journal_of_six(tmp_path / "old", snapshot_at=4)
    spoil(tmp_path / "old", 2)

    salvaged = salvage(tmp_path / "old", tmp_path / "new")

    assert (salvaged.after, salvaged.head.seq, salvaged.why) == (4, 6, "")
    journal = SqliteJournal.open(tmp_path / "new")
    snapshot = next(journal.usable_snapshots(), None)
    assert snapshot is not None
    assert snapshot.state == {"last": 4}
    assert list(journal.read(after=4)) == records[4:]
    journal.close()


def test_the_snapshot_alone_is_kept_when_no_segment_can_be_read(tmp_path: Path) -> None:
    journal_of_six(tmp_path / "old", snapshot_at=4)
    for path in (tmp_path / "old").glob("*.sqlite"):
        path.write_bytes(b"nonsense" * 1000)

    salvaged = salvage(tmp_path / "old", tmp_path / "new")

    assert (salvaged.after, salvaged.head.seq) == (4, 4)
    assert "begins with the snapshot at event 4" in salvaged.sentence()
    assert "2 later events" in salvaged.sentence()
    SqliteJournal.open(tmp_path / "new").close()


def test_a_journal_damaged_only_in_its_head_file_loses_nothing(tmp_path: Path) -> None:
    records = journal_of_six(tmp_path / "old", snapshot_at=4)
    (tmp_path / "old" / "head").write_bytes(b"")
    with pytest.raises(JournalDamaged, match="head is damaged"):
        SqliteJournal.open(tmp_path / "old")

    salvaged = salvage(tmp_path / "old", tmp_path / "new")

    assert (salvaged.head.seq, salvaged.witnessed) == (6, None)
    journal = SqliteJournal.open(tmp_path / "new")
    assert list(journal.read()) == records
    journal.close()


def test_the_damaged_folder_is_not_changed(tmp_path: Path) -> None:
    journal_of_six(tmp_path / "old", snapshot_at=4)
    spoil(tmp_path / "old", 5)
    before = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}

    salvage(tmp_path / "old", tmp_path / "new")

    assert {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()} == before


def test_from_an_empty_folder_nothing_is_salvaged(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()

    with pytest.raises(JournalDamaged, match="Neither the first event nor a snapshot"):
        salvage(tmp_path / "old", tmp_path / "new")
    with pytest.raises(JournalError, match="is not empty"):
        salvage(tmp_path / "old", tmp_path)


def test_salvage_is_a_command(tmp_path: Path) -> None:
    journal_of_six(tmp_path / "old")
    command = [sys.executable, "-m", "gpuyard.core.journal.salvage", str(tmp_path / "old"), str(tmp_path / "new")]

    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("The new journal begins with the first event and ends at event 6. 0 later events")
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "is not empty" in again.stderr
