"""A journal copied between folders and databases: same events, same hashes, same snapshots."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from gpuyard.cli import main
from gpuyard.core.domain.errors import JournalDamaged, JournalError, JournalLocked, NoJournal
from gpuyard.core.domain.events import TaskHeld
from gpuyard.core.domain.values import TaskId
from gpuyard.core.journal.copying import copy_journal, is_url
from gpuyard.core.journal.port import Journal
from gpuyard.core.journal.read import read_journal
from gpuyard.core.journal.records import JournalEntry, Snapshot
from gpuyard.core.journal.stores import segment
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from tests.postgres_server import shared_server

EVENTS = 9


def in_folder(folder: Path) -> str:
    return str(folder)


def in_database(folder: Path) -> str:
    server = shared_server()
    return server.url(server.schema_of(folder))


PLACES: dict[str, Callable[[Path], str]] = {"folder": in_folder, "database": in_database}


@pytest.fixture(params=PLACES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return PLACES[request.param](tmp_path / "source")


@pytest.fixture(params=PLACES)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return PLACES[request.param](tmp_path / "target")


def opened(place: str, segment_events: int = 65_536) -> Journal:
    if not is_url(place):
        return SqliteJournal.open(Path(place), segment_events=segment_events)
    from gpuyard.core.journal.stores.postgres import PostgresJournal

    return PostgresJournal.open(place, segment_events=segment_events)


def write(place: str, *, retired: bool = False) -> None:
    """A journal with nine events and two snapshots, which begins with event 7 if some were retired."""
    journal = opened(place, segment_events=2)
    for task in range(1, EVENTS + 1):
        at = journal.append([JournalEntry(float(task), TaskHeld(TaskId(task)), "alice")])
        if task in {7, 8}:
            journal.save_snapshot(Snapshot(at, {"last": task}))
    if retired:
        assert journal.retire() == 6
    journal.close()


def silent(_doing: str, _done: int, _total: int) -> None:
    pass


@pytest.mark.parametrize("retired", [False, True])
def test_a_copy_holds_the_same_events_hashes_and_snapshots(source: str, target: str, retired: bool) -> None:
    write(source, retired=retired)
    told: list[tuple[str, int, int]] = []
    copied = copy_journal(source, target, lambda *now: told.append(now))

    first = 7 if retired else 1
    count = EVENTS + 1 - first
    assert (copied.events, copied.snapshots, copied.after) == (count, 2, first - 1)
    assert told[0] == ("copied", 0, count)
    assert told[-1] == ("checked", count, count)
    old, new = opened(source), opened(target)
    assert new.head == old.head == copied.head
    assert list(new.read(copied.after)) == list(old.read(copied.after))
    assert [snapshot.state for snapshot in new.usable_snapshots()] == [{"last": 8}, {"last": 7}]
    assert new.append([JournalEntry(1.0, TaskHeld(TaskId(1)))]).seq == EVENTS + 1
    old.close()
    new.close()


def test_an_empty_journal_can_be_copied(source: str, target: str) -> None:
    opened(source).close()
    assert copy_journal(source, target, silent).events == 0
    opened(target).close()


def test_many_events_are_copied_in_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.core.journal.copying._BATCH", 3)
    monkeypatch.setattr("gpuyard.core.journal.copying.SEGMENT_EVENTS", 4)
    write(str(tmp_path / "source"))
    copy_journal(str(tmp_path / "source"), str(tmp_path / "target"), silent)
    assert [segment.first_seq(path) for path in segment.segments_in(tmp_path / "target")] == [1, 7]


def test_a_target_that_is_not_empty_is_refused_and_left_alone(source: str, target: str) -> None:
    write(source)
    write(target)
    with pytest.raises(JournalError, match=r"is not an empty folder|There is a journal"):
        copy_journal(source, target, silent)
    with pytest.raises(JournalError, match=r"is not an empty folder|There is a journal"):
        copy_journal(source, source, silent)
    journal = opened(target)
    assert journal.head.seq == EVENTS
    journal.close()


def test_a_source_without_a_journal_is_named(source: str, target: str) -> None:
    with pytest.raises(NoJournal, match="There is no journal in"):
        copy_journal(source, target, silent)


def test_a_journal_that_is_being_written_is_not_copied(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_url(source):
        from gpuyard.core.journal.stores import postgres_connection

        short = postgres_connection.Waits(lock_seconds=0.1)
        monkeypatch.setattr(postgres_connection, "Waits", lambda: short)
    journal = opened(source)
    with pytest.raises(JournalLocked):
        copy_journal(source, target, silent)
    journal.close()


def test_a_damaged_source_is_refused_and_the_target_stays_empty(tmp_path: Path, target: str) -> None:
    write(str(tmp_path / "damaged"))
    with segment.writing(tmp_path):
        writer = segment.open_writer(segment.segments_in(tmp_path / "damaged")[1])
        writer.execute("UPDATE fact SET payload = '{}' WHERE seq = 3")
        writer.close()
    with pytest.raises(JournalDamaged, match="event 3"):
        copy_journal(str(tmp_path / "damaged"), target, silent)
    write(str(tmp_path / "whole"))
    assert copy_journal(str(tmp_path / "whole"), target, silent).events == EVENTS


def test_an_interrupted_copy_leaves_the_target_empty(source: str, target: str) -> None:
    write(source)

    def interrupt(_doing: str, done: int, _total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_journal(source, target, interrupt)
    assert copy_journal(source, target, silent).events == EVENTS


def test_both_places_are_read_by_the_same_command(source: str) -> None:
    write(source, retired=True)
    assert [record.seq for record in read_journal(source)] == [7, 8, 9]
    assert [record.seq for record in read_journal(source, after=8)] == [9]


# --- the command -------------------------------------------------------------------------------------------------------


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gpuyard", "journal", "copy", *words])
    return main()


def test_the_command_copies_the_journal_of_a_data_folder(
    tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(str(tmp_path / "data" / "journal"))
    assert call(monkeypatch, "--from", str(tmp_path / "data"), "--to", target, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["events"], said["snapshots"], said["head"]["seq"]) == (EVENTS, 2, EVENTS)


def test_the_command_reports_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(str(tmp_path / "old"), retired=True)
    words = ("--from", str(tmp_path / "old"), "--to", str(tmp_path / "new"))
    monkeypatch.setattr(import_module("gpuyard.cli.journal.copy"), "_LINE_SECONDS", 0.0)
    assert call(monkeypatch, *words) == 0
    said = capsys.readouterr()
    assert said.out.startswith(
        "Copied 3 events, beginning after event 6 and 2 snapshots. The copy ends at event 9 with"
    )
    assert "gpuyard: 3 of 3 events copied\n" in said.err
    assert "gpuyard: 3 of 3 events checked\n" in said.err
    assert call(monkeypatch, *words) == 1
    assert "is not an empty folder" in capsys.readouterr().err


WITHOUT_PSYCOPG = """
import sys
sys.modules["psycopg"] = None
from gpuyard.cli import main
sys.argv = ["gpuyard", "journal", "copy", *sys.argv[1:]]
sys.exit(main())
"""


def test_folders_need_no_psycopg_and_a_database_names_the_extra(tmp_path: Path) -> None:
    write(str(tmp_path / "old"))
    command = [sys.executable, "-c", WITHOUT_PSYCOPG, "--from", str(tmp_path / "old"), "--to"]
    done = subprocess.run([*command, str(tmp_path / "new")], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run([*command, "postgresql:///yard"], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "gpuyard: A journal in PostgreSQL needs psycopg: pip install 'gpuyard[postgres]'.\n"
