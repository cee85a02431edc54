"""Journals are read for ever: every journal that a version ever wrote is read and replayed here, event by event."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuyard.core.domain.events import EVENTS
from gpuyard.core.engine import invariants, snapshot
from gpuyard.core.engine.state import State
from gpuyard.core.journal.records import Record
from gpuyard.core.journal.stores.sqlite import SqliteJournal, read_folder
from tests.replay.recovery import document, recovered, replayed

JOURNALS = Path(__file__).parent / "journals"
VERSIONS = sorted(path.name for path in JOURNALS.iterdir())


@pytest.fixture(params=VERSIONS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy: opening a journal locks it, and would change what is committed here."""
    return Path(shutil.copytree(JOURNALS / request.param, tmp_path / "journal"))


def expected(folder: Path) -> list[object]:
    return [json.loads(line) for line in (folder / "expected.jsonl").read_text(encoding="utf-8").splitlines()]


def as_lines(records: Iterator[Record]) -> list[object]:
    return [json.loads(msgspec.json.encode(record)) for record in records]


def test_every_event_reads_as_expected(folder: Path) -> None:
    journal = SqliteJournal.open(folder)

    assert as_lines(journal.read()) == expected(folder)
    assert journal.notes == []
    assert journal.verify() == len(expected(folder))
    journal.close()


def test_it_can_be_read_without_being_opened_for_writing(folder: Path) -> None:
    assert as_lines(read_folder(folder)) == expected(folder)


def test_the_events_add_up_to_the_state_they_always_added_up_to(folder: Path) -> None:
    state = replayed(read_folder(folder))

    invariants.check(state)
    kept = snapshot.load(json.loads((folder / "state.json").read_text(encoding="utf-8")))
    assert document(state) == document(kept)


def test_from_its_snapshot_on_the_events_add_up_to_the_same(folder: Path) -> None:
    journal = SqliteJournal.open(folder)
    newest = next(journal.usable_snapshots(), None)

    assert newest is not None
    assert 0 < newest.position.seq < journal.head.seq
    state = recovered(journal)
    invariants.check(state)
    assert document(state) == document(replayed(read_folder(folder)))
    journal.close()


def test_its_snapshot_is_what_the_events_before_it_add_up_to(folder: Path) -> None:
    journal = SqliteJournal.open(folder)
    newest = next(journal.usable_snapshots(), None)
    journal.close()

    assert newest is not None
    before = replayed(record for record in read_folder(folder) if record.seq <= newest.position.seq)
    assert document(snapshot.load(newest.state)) == document(before)


def test_every_type_of_event_is_in_some_journal() -> None:
    there = {type(record.event) for version in VERSIONS for record in read_folder(JOURNALS / version)}
    missing = sorted(event.__name__ for event in EVENTS if event not in there)

    assert not missing, (
        f"No journal in tests/replay/journals holds a {' or a '.join(missing)}. Add it to the story in "
        "tests/replay/write_journal.py and run that for the new version; never change the journal of an old one."
    )


def test_a_journal_of_no_events_adds_up_to_an_empty_yard(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path)

    assert document(recovered(journal)) == document(State())
    journal.close()
