"""A full disk: nothing is written, nothing breaks, and writing continues when there is space again."""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpuyard.core.domain.errors import StorageFull
from gpuyard.core.domain.events import ClusterCreated, TaskHeld
from gpuyard.core.domain.values import TaskId
from gpuyard.core.journal.records import GENESIS, JournalEntry, Snapshot
from gpuyard.core.journal.stores import segment
from gpuyard.core.journal.stores.sqlite import SqliteJournal, read_folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte, which only root can have."""
    where = tmp_path / "disk"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "gpuyard-test", str(where)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def big_batch(kilobytes: int) -> list[JournalEntry]:
    return [JournalEntry(1.0, ClusterCreated("x" * 1024))] * kilobytes


def fill(disk: Path) -> Path:
    """Leave no byte free."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1024)):
                pass
        except OSError:
            pass
    return ballast


def test_a_batch_that_does_not_fit_is_refused_as_a_whole_and_written_when_there_is_space(small_disk: Path) -> None:
    journal = SqliteJournal.open(small_disk / "journal")
    before = journal.append([JournalEntry(0.0, TaskHeld(TaskId(1)))])
    ballast = fill(small_disk)

    for _ in range(3):
        with pytest.raises(StorageFull, match="No space is left"):
            journal.append(big_batch(100))
        assert journal.head == before
        assert len(list(journal.read())) == 1

    ballast.unlink()
    assert journal.append(big_batch(100)).seq == 101
    assert journal.verify() == 101
    journal.close()
    journal = SqliteJournal.open(small_disk / "journal")
    assert journal.verify() == 101
    assert journal.notes == []
    journal.close()


def test_what_was_written_before_the_disk_was_full_survives_a_kill(small_disk: Path, tmp_path: Path) -> None:
    journal = SqliteJournal.open(small_disk / "journal")
    journal.append([JournalEntry(0.0, TaskHeld(TaskId(1)))])
    fill(small_disk)
    with pytest.raises(StorageFull):
        journal.append(big_batch(100))
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in (small_disk / "journal").iterdir():
        if not path.name.endswith("-shm"):
            (copy / path.name).write_bytes(path.read_bytes())
    journal.close()

    journal = SqliteJournal.open(copy)
    assert journal.verify() == 1
    journal.close()


def test_a_new_segment_that_does_not_fit_leaves_the_journal_unchanged(small_disk: Path) -> None:
    journal = SqliteJournal.open(small_disk / "journal", segment_events=1)
    before = journal.append([JournalEntry(0.0, TaskHeld(TaskId(1)))])
    ballast = fill(small_disk)

    with pytest.raises(StorageFull):
        journal.append([JournalEntry(1.0, TaskHeld(TaskId(2)))])
    assert journal.head == before
    assert not list((small_disk / "journal").glob("*.new*"))

    ballast.unlink()
    assert journal.append([JournalEntry(1.0, TaskHeld(TaskId(2)))]).seq == 2
    journal.close()
    SqliteJournal.open(small_disk / "journal").close()


def test_a_snapshot_that_does_not_fit_leaves_earlier_ones(small_disk: Path) -> None:
    journal = SqliteJournal.open(small_disk / "journal")
    journal.save_snapshot(Snapshot(journal.append([JournalEntry(0.0, TaskHeld(TaskId(1)))]), {"first": True}))
    head = journal.append([JournalEntry(1.0, TaskHeld(TaskId(2)))])
    fill(small_disk)

    with pytest.raises(StorageFull):
        journal.save_snapshot(Snapshot(head, ["x" * 100_000]))

    snapshot = next(journal.usable_snapshots(), None)
    assert snapshot is not None
    assert snapshot.state == {"first": True}
    journal.close()


def test_a_journal_cannot_be_created_on_a_full_disk_but_later(small_disk: Path) -> None:
    ballast = fill(small_disk)
    with pytest.raises(StorageFull):
        SqliteJournal.open(small_disk / "journal")
    ballast.unlink()
    SqliteJournal.open(small_disk / "journal").close()


def test_on_a_full_disk_a_closed_journal_can_still_be_read(small_disk: Path) -> None:
    journal = SqliteJournal.open(small_disk / "journal")
    journal.append([JournalEntry(0.0, TaskHeld(TaskId(1)))])
    journal.close()
    fill(small_disk)

    assert [record.seq for record in read_folder(small_disk / "journal")] == [1]
    with pytest.raises(StorageFull):
        SqliteJournal.open(small_disk / "journal")


def test_a_database_that_may_not_grow_says_so_and_accepts_what_still_fits(tmp_path: Path) -> None:
    """Without root: SQLite's own limit gives the same error as a full disk."""
    path = segment.create(tmp_path, GENESIS, page_bytes=512)
    connection = segment.open_writer(path)
    connection.execute("PRAGMA max_page_count=10")

    with pytest.raises(StorageFull), segment.writing(tmp_path):
        segment.write(connection, [(1, bytes(100), bytes(16)), (2, bytes(10_000), bytes(16))])
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    segment.write(connection, [(1, bytes(100), bytes(16))])

    connection.close()
    assert segment.last_seq(path) == 1


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """As in a process whose connections took all of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken[0] + 8, 64), hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_a_descriptor_for_a_new_segment_nothing_is_written_until_there_is_one(
    tmp_path: Path,
) -> None:
    journal = SqliteJournal.open(tmp_path / "journal", segment_events=5)
    for number in range(5):
        journal.append([JournalEntry(float(number), TaskHeld(TaskId(number)))])
    before = journal.head
    with no_descriptor_left():
        for _ in range(3):
            with pytest.raises(StorageFull, match="No file descriptor is left"):
                journal.append([JournalEntry(9.0, TaskHeld(TaskId(9)))])
    assert journal.head == before
    journal.append([JournalEntry(9.0, TaskHeld(TaskId(9)))])
    journal.close()
    again = SqliteJournal.open(tmp_path / "journal")
    assert [record.at for record in again.read()] == [0.0, 1.0, 2.0, 3.0, 4.0, 9.0]
    again.close()


@pytest.mark.parametrize("spare", range(1, 9))
def test_a_few_descriptors_are_as_good_as_none_and_break_nothing(tmp_path: Path, spare: int) -> None:
    """Wherever it runs out of them: making the segment, syncing its folder, opening it again."""
    journal = SqliteJournal.open(tmp_path / "journal", segment_events=5)
    for number in range(5):
        journal.append([JournalEntry(float(number), TaskHeld(TaskId(number)))])
    free = [os.open(os.devnull, os.O_RDONLY) for _ in range(spare)]
    with no_descriptor_left(), suppress(StorageFull):
        for descriptor in free:
            os.close(descriptor)
        journal.append([JournalEntry(9.0, TaskHeld(TaskId(9)))])
    if journal.head.seq == 5:
        journal.append([JournalEntry(9.0, TaskHeld(TaskId(9)))])
    journal.close()
    assert [record.at for record in read_folder(tmp_path / "journal")] == [0.0, 1.0, 2.0, 3.0, 4.0, 9.0]


def test_events_whose_head_can_not_be_noted_for_lack_of_space_are_written_once(tmp_path: Path) -> None:
    """A file system that copies on write needs space to write in place."""
    journal = SqliteJournal.open(tmp_path / "journal")
    before = journal.append([JournalEntry(1.0, TaskHeld(TaskId(1)))])
    head = journal._noted._file
    kept, full = os.dup(head), os.open("/dev/full", os.O_RDWR)
    os.dup2(full, head)
    for _ in range(3):
        with pytest.raises(StorageFull, match="No space is left"):
            journal.append([JournalEntry(2.0, TaskHeld(TaskId(2)))])
        assert journal.head == before
        assert [record.at for record in journal.read()] == [1.0]
    os.dup2(kept, head)
    os.close(kept)
    os.close(full)
    journal.append([JournalEntry(2.0, TaskHeld(TaskId(2)))])
    journal.append([JournalEntry(3.0, TaskHeld(TaskId(3)))])
    journal.close()
    again = SqliteJournal.open(tmp_path / "journal")
    assert [record.at for record in again.read()] == [1.0, 2.0, 3.0]
    again.close()
