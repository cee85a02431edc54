"""Damage, everywhere: every byte of a small journal is changed, and every file cut at every length.

Whatever is done to it, a journal either reads back exactly what was written, or says in a sentence that it does not.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.core.domain.errors import JournalError
from gpuyard.core.domain.events import ClusterCreated, Event, NodeLost, TaskHeld, TaskReleased
from gpuyard.core.domain.values import NodeId, TaskId
from gpuyard.core.journal.records import JournalEntry, Record, Snapshot
from gpuyard.core.journal.stores.sqlite import SqliteJournal

Files = dict[str, bytes]
DATABASE, LOG = "facts-000000000001.sqlite", "facts-000000000001.sqlite-wal"
OLDER, NEWER = "snapshot-000000000002.json", "snapshot-000000000003.json"


def wrong(at: int, byte: int) -> set[int]:
    """All bits changed, and one."""
    return {byte ^ 0xFF, byte ^ (1 << at % 8)}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: nearly twelve thousand journals are opened here."""
    memory = Path("/dev/shm")
    inside = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else tmp_path))
    yield inside / "journal"
    shutil.rmtree(inside)


def events() -> list[JournalEntry]:
    each: list[Event] = [
        ClusterCreated("y"),
        TaskHeld(TaskId(1)),
        TaskReleased(TaskId(1)),
        NodeLost(NodeId("n")),
        TaskHeld(TaskId(2)),
    ]
    return [JournalEntry(float(at), event) for at, event in enumerate(each)]


def written_journal(folder: Path) -> tuple[Files, list[Record]]:
    """Three events in the database file, two commits more in the log, and two snapshots; copied while it is open."""
    batch = events()
    journal = SqliteJournal.open(folder, page_bytes=512)
    second = journal.append(batch[:2])
    third = journal.append(batch[2:3])
    journal.save_snapshot(Snapshot(second, {"held": [1]}))
    journal.save_snapshot(Snapshot(third, {"held": []}))
    journal.close()
    journal = SqliteJournal.open(folder, page_bytes=512)
    journal.append(batch[3:4])
    journal.append(batch[4:])
    records = list(journal.read())
    files = contents(folder)
    journal.close()
    assert len(files[LOG]) > 512
    return files, records


def contents(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith(("-shm", "lock"))}


def lay_out(folder: Path, files: Files) -> None:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def outcome(folder: Path, files: Files) -> list[Record] | str:
    """All that the journal says it holds, or its sentence."""
    lay_out(folder, files)
    try:
        journal = SqliteJournal.open(folder)
    except JournalError as error:
        assert contents(folder) == files, "a journal that is refused is left as it is"
        return str(error)
    try:
        records = list(journal.read())
        snapshot = next(journal.usable_snapshots(), None)
        assert snapshot is None or snapshot.state in ({"held": [1]}, {"held": []})
        return records
    except JournalError as error:
        return str(error)
    finally:
        journal.close()


def test_the_unchanged_journal_is_intact(folder: Path) -> None:
    files, records = written_journal(folder)

    assert [record.event for record in records] == [entry.event for entry in events()]
    assert outcome(folder, files) == records


@pytest.mark.slow
@pytest.mark.parametrize("name", [DATABASE, LOG, "head", OLDER, NEWER])
def test_a_changed_byte_anywhere_is_detected_or_harmless(folder: Path, name: str) -> None:
    files, records = written_journal(folder)
    content = files[name]
    refused = 0
    for at, value in ((place, other) for place, byte in enumerate(content) for other in wrong(place, byte)):
        found = outcome(folder, files | {name: content[:at] + bytes([value]) + content[at + 1 :]})

        if isinstance(found, str):
            refused += 1
            assert "." in found
        else:
            assert found == records, f"byte {at} of {name} changed what was read"
    # One line of the head and one snapshot can be spared; the events cannot.
    assert (refused > 0) == (name in {DATABASE, LOG}), f"{refused} refused"


@pytest.mark.slow
def test_damage_deep_in_a_larger_tree_is_detected(folder: Path) -> None:
    """Pages within pages and events longer than a page; every twenty-ninth byte, which hits every kind of place."""
    batch = [JournalEntry(float(at), ClusterCreated("y" * (1500 if at % 9 == 4 else 30))) for at in range(24)]
    journal = SqliteJournal.open(folder, page_bytes=512)
    journal.append(batch[:18])
    journal.close()
    journal = SqliteJournal.open(folder, page_bytes=512)
    journal.append(batch[18:20])
    journal.append(batch[20:])
    records = list(journal.read())
    files = contents(folder)
    journal.close()

    for name in (DATABASE, LOG):
        content = files[name]
        for at in range(0, len(content), 29):
            for value in wrong(at, content[at]):
                found = outcome(folder, files | {name: content[:at] + bytes([value]) + content[at + 1 :]})
                assert isinstance(found, str) or found == records, f"byte {at} of {name} changed what was read"
            found = outcome(folder, files | {name: content[:at]})
            assert isinstance(found, str) or found == records, f"{name} cut at {at} changed what was read"


def test_a_header_that_would_corrupt_later_writes_is_refused(folder: Path) -> None:
    """Byte 20 says how many bytes of a page are not to be used: SQLite reads on as before, and writes elsewhere."""
    files, _ = written_journal(folder)
    for at in (18, 19, 20):
        changed = bytearray(files[DATABASE])
        changed[at] ^= 2

        assert "does not begin like" in str(outcome(folder, files | {DATABASE: bytes(changed)}))


@pytest.mark.slow
@pytest.mark.parametrize("name", [DATABASE, LOG, "head", NEWER])
def test_a_file_truncated_anywhere_is_detected_or_harmless(folder: Path, name: str) -> None:
    files, records = written_journal(folder)
    for length in range(len(files[name])):
        found = outcome(folder, files | {name: files[name][:length]})

        assert isinstance(found, str) or found == records, f"{name} cut at {length} changed what was read"
        if name in {DATABASE, LOG}:
            assert isinstance(found, str), f"{name} cut at {length} went unnoticed"


@pytest.mark.parametrize("name", [DATABASE, LOG, "head", OLDER, NEWER])
def test_a_missing_file_is_detected_or_harmless(folder: Path, name: str) -> None:
    files, records = written_journal(folder)
    del files[name]

    found = outcome(folder, files)

    assert found == records if name in {OLDER, NEWER} else isinstance(found, str)


@pytest.mark.slow
def test_only_unacknowledged_events_at_the_end_may_be_lost(folder: Path) -> None:
    """The same, with a head file from before the last commit: the writer was killed between the two."""
    files, records = written_journal(folder)
    shutil.rmtree(folder)
    journal = SqliteJournal.open(folder, page_bytes=512)
    journal.append(events()[:4])
    files["head"] = contents(folder)["head"]
    journal.close()
    named = 0
    for length in range(len(files[LOG])):
        lay_out(folder, files | {LOG: files[LOG][:length]})
        try:
            journal = SqliteJournal.open(folder)
        except JournalError:
            continue
        found = list(journal.read())
        assert found == records[: len(found)]
        assert len(found) >= 4
        named += journal.cut is not None and journal.cut.sentence() in journal.notes
        journal.close()
    assert named > 500, "the cut tail is named"


def test_files_swapped_with_those_of_another_journal_are_detected(folder: Path) -> None:
    files, _ = written_journal(folder)
    shutil.rmtree(folder)
    other = SqliteJournal.open(folder, page_bytes=512)
    other.append([JournalEntry(0.0, ClusterCreated("another")), *events()[1:]])
    strange = contents(folder)
    other.close()

    for name in (DATABASE, "head"):
        swapped = files | {name: strange[name]}
        if name == DATABASE:
            swapped[LOG] = strange[LOG]
        assert isinstance(outcome(folder, swapped), str)
