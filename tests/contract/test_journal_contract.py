"""The contract of journal stores. Every test runs on each store; a new store is one more line in STORES."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.core.domain.errors import EventsRetired, JournalError
from gpuyard.core.domain.events import ClusterCreated, Event, PriorityChanged, ReservationMade, TaskHeld
from gpuyard.core.domain.values import NodeId, TaskId
from gpuyard.core.journal.port import Journal
from gpuyard.core.journal.records import GENESIS, JournalEntry, Position, Record, Snapshot
from gpuyard.core.journal.stores import wal
from gpuyard.core.journal.stores.memory import MemoryJournal
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.testing.full_journal import FullJournal
from tests.postgres_server import shared_server
from tests.replica import OwnedJournal

MakeJournal = Callable[[Path], Journal]


def in_postgres(folder: Path, segment_events: int = 65_536) -> Journal:
    """Open the journal that belongs to a folder, in a schema named after it."""
    server = shared_server()
    from gpuyard.core.journal.stores.postgres import PostgresJournal

    return PostgresJournal.open(server.url(server.schema_of(folder)), segment_events=segment_events)


def shared_in_postgres(folder: Path) -> Journal:
    """Open the journal that belongs to a folder as one of several schedulers, the one that leads."""
    server = shared_server()
    from gpuyard.core.journal.stores.postgres_shared import SharedJournal

    journal = SharedJournal.open(server.url(server.schema_of(folder)), lease_seconds=60.0)
    assert journal.take_over(journal.leader(), "") is not None
    return journal


STORES: dict[str, MakeJournal] = {
    "memory": lambda _: MemoryJournal(),
    "sqlite": SqliteJournal.open,
    "sqlite, on a disk that has room now": FullJournal.open,
    "sqlite, a segment a batch": lambda folder: SqliteJournal.open(folder, segment_events=1),
    "postgres": in_postgres,
    "postgres, shared": shared_in_postgres,
    "replicated": OwnedJournal,
    "postgres, a segment an event": lambda folder: in_postgres(folder, segment_events=1),
}


@pytest.fixture(params=STORES)
def make(request: pytest.FixtureRequest) -> MakeJournal:
    return STORES[request.param]


@pytest.fixture
def journal(make: MakeJournal, tmp_path: Path) -> Iterator[Journal]:
    made = make(tmp_path)
    yield made
    made.close()


def held(*tasks: int) -> list[JournalEntry]:
    return [JournalEntry(float(task), TaskHeld(TaskId(task)), f"user-{task}") for task in tasks]


def as_records(entries: list[JournalEntry], after: int = 0) -> list[Record]:
    return [Record(after + n, entry.at, entry.event, entry.by) for n, entry in enumerate(entries, start=1)]


def test_a_new_journal_is_empty(journal: Journal) -> None:
    assert journal.head == GENESIS
    assert list(journal.read()) == []
    assert next(journal.usable_snapshots(), None) is None


def test_what_was_appended_is_read_in_order_with_numbers_from_one(journal: Journal) -> None:
    head = journal.append(held(5, 3))
    assert head.seq == 2
    assert journal.append(held(4)).seq == 3
    assert journal.head.seq == 3
    assert list(journal.read()) == as_records(held(5, 3, 4))


def test_reading_goes_on_after_any_event(journal: Journal) -> None:
    journal.append(held(1, 2))
    journal.append(held(3, 4))
    for after in range(5):
        assert list(journal.read(after)) == as_records(held(1, 2, 3, 4))[after:]
    assert list(journal.read(99)) == []


def test_a_reader_sees_the_journal_as_of_its_start(journal: Journal) -> None:
    journal.append(held(1, 2))
    reader = journal.read()
    journal.append(held(3))
    assert [record.seq for record in reader] == [1, 2]


def test_an_empty_batch_changes_nothing(journal: Journal) -> None:
    head = journal.append(held(1))
    assert journal.append([]) == head
    assert journal.head == head


def test_a_batch_with_one_bad_event_is_not_written_at_all(journal: Journal) -> None:
    head = journal.append(held(1))
    with pytest.raises(JournalError, match="not finite"):
        journal.append([*held(2), JournalEntry(float("inf"), TaskHeld(TaskId(3)))])
    assert journal.head == head
    assert list(journal.read()) == as_records(held(1))
    assert journal.append(held(4)).seq == 2


def test_the_same_events_have_the_same_hash_however_they_were_grouped(make: MakeJournal, tmp_path: Path) -> None:
    together, apart = make(tmp_path / "together"), make(tmp_path / "apart")
    together.append(held(1, 2, 3))
    for task in (1, 2, 3):
        apart.append(held(task))
    assert together.head == apart.head
    together.close()
    apart.close()


def test_other_events_have_another_hash(make: MakeJournal, tmp_path: Path) -> None:
    one, other = make(tmp_path / "one"), make(tmp_path / "other")
    one.append(held(1, 2))
    other.append(held(2, 1))
    assert one.head.seq == other.head.seq
    assert one.head.hash != other.head.hash
    one.close()
    other.close()


def test_all_stores_compute_the_same_hash(journal: Journal) -> None:
    assert journal.append(held(1, 2, 3)) == MemoryJournal().append(held(1, 2, 3))


def test_the_newest_snapshot_is_loaded(journal: Journal) -> None:
    first = journal.append(held(1))
    second = journal.append(held(2))
    journal.save_snapshot(Snapshot(first, {"tasks": [1]}))
    journal.save_snapshot(Snapshot(second, {"tasks": [1, 2], "ratio": 0.1, "none": None}))
    journal.append(held(3))
    assert next(journal.usable_snapshots(), None) == Snapshot(second, {"tasks": [1, 2], "ratio": 0.1, "none": None})


def test_a_snapshot_may_be_of_an_earlier_position(journal: Journal) -> None:
    first = journal.append(held(1))
    journal.append(held(2, 3))
    journal.save_snapshot(Snapshot(first, "then"))
    assert next(journal.usable_snapshots(), None) == Snapshot(first, "then")
    assert [record.seq for record in journal.read(first.seq)] == [2, 3]


def test_a_snapshot_of_an_empty_journal_is_valid(journal: Journal) -> None:
    journal.save_snapshot(Snapshot(GENESIS, {}))
    assert next(journal.usable_snapshots(), None) == Snapshot(GENESIS, {})


def test_a_snapshot_saved_twice_is_replaced(journal: Journal) -> None:
    head = journal.append(held(1))
    journal.save_snapshot(Snapshot(head, "a"))
    journal.save_snapshot(Snapshot(head, "b"))
    assert next(journal.usable_snapshots(), None) == Snapshot(head, "b")


@pytest.mark.parametrize("position", [Position(9, GENESIS.hash), Position(1, GENESIS.hash)])
def test_a_snapshot_of_another_journal_is_refused(journal: Journal, position: Position) -> None:
    journal.append(held(1))
    with pytest.raises(JournalError, match="was never at event"):
        journal.save_snapshot(Snapshot(position, {}))
    assert next(journal.usable_snapshots(), None) is None


def test_a_state_that_json_cannot_represent_is_refused(journal: Journal) -> None:
    head = journal.append(held(1))
    with pytest.raises(JournalError, match="cannot be written"):
        journal.save_snapshot(Snapshot(head, object()))
    assert next(journal.usable_snapshots(), None) is None


def test_without_two_snapshots_nothing_is_retired(journal: Journal) -> None:
    journal.append(held(1))
    assert journal.retire() == 0
    journal.save_snapshot(Snapshot(journal.append(held(2)), {}))
    assert journal.retire() == 0
    assert len(list(journal.read())) == 2


def test_segments_covered_by_both_snapshots_are_retired_and_the_rest_stays(journal: Journal) -> None:
    older = journal.append(held(1, 2))
    journal.append(held(3))
    journal.save_snapshot(Snapshot(older, "older"))
    journal.save_snapshot(Snapshot(journal.head, "newer"))
    journal.append(held(4))

    retired = journal.retire()

    assert retired <= older.seq
    assert list(journal.read(older.seq)) == as_records(held(3, 4), after=2)
    assert next(journal.usable_snapshots(), None) is not None
    if retired:
        with pytest.raises(EventsRetired, match="were retired") as gone:
            journal.read()
        assert gone.value.oldest == retired + 1
    assert journal.append(held(5)).seq == 5


def test_a_reader_whose_events_are_retired_meanwhile_reads_them_all_the_same_or_is_told(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path, segment_events=1)
    for task in range(1, 11):
        journal.save_snapshot(Snapshot(journal.append(held(task)), {}))
    reader = journal.read()
    assert next(reader).seq == 1
    assert journal.retire() == 8 + 1
    with pytest.raises(EventsRetired) as gone:
        list(reader)
    assert gone.value.oldest == 10
    journal.close()


def test_a_late_reader_creates_no_empty_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = SqliteJournal.open(tmp_path, segment_events=1)
    for task in range(1, 4):
        journal.save_snapshot(Snapshot(journal.append(held(task)), {}))
    log_of = wal.path_of

    def retired_now(path: Path) -> Path:
        monkeypatch.setattr(wal, "path_of", log_of)
        journal.retire()
        return log_of(path)

    reader = journal.read()
    monkeypatch.setattr(wal, "path_of", retired_now)
    with pytest.raises(EventsRetired):
        next(reader)
    assert not (tmp_path / "facts-000000000001.sqlite").exists()
    journal.close()


@pytest.mark.parametrize("name", ["memory", "sqlite, a segment a batch", "postgres, a segment an event"])
def test_a_journal_stays_bounded_over_time(name: str, tmp_path: Path) -> None:
    journal = STORES[name](tmp_path)
    for task in range(1, 101):
        journal.save_snapshot(Snapshot(journal.append(held(task)), {"last": task}))
        journal.retire()
    assert len(list(journal.read(99))) == 1
    with pytest.raises(JournalError, match="Events up to 99 were retired"):
        journal.read(98)
    assert len(list(tmp_path.glob("snapshot-*"))) <= 2
    assert len(list(tmp_path.glob("*.sqlite"))) <= 2
    journal.close()


def test_a_closed_journal_refuses_everything_but_close(journal: Journal) -> None:
    head = journal.append(held(1))
    journal.close()
    journal.close()
    for call in (
        lambda: journal.append(held(2)),
        journal.read,
        lambda: journal.save_snapshot(Snapshot(head, {})),
        lambda: list(journal.usable_snapshots()),
        journal.retire,
    ):
        with pytest.raises(JournalError, match="closed"):
            call()


@pytest.mark.parametrize("name", [name for name in STORES if name != "memory"])
def test_a_reopened_journal_is_unchanged(name: str, tmp_path: Path) -> None:
    journal = STORES[name](tmp_path)
    journal.append(held(1, 2))
    head = journal.append(held(3))
    journal.save_snapshot(Snapshot(head, {"tasks": 3}))
    journal.close()

    journal = STORES[name](tmp_path)
    assert journal.head == head
    assert list(journal.read()) == as_records(held(1, 2, 3))
    assert next(journal.usable_snapshots(), None) == Snapshot(head, {"tasks": 3})
    assert journal.append(held(4)).seq == 4
    journal.close()


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TASKS = st.integers(1, 2**53).map(TaskId)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(TaskHeld, TASKS),
    st.builds(PriorityChanged, TASKS, st.integers(0, 100)),
    st.builds(ClusterCreated, TEXT),
    st.builds(
        ReservationMade,
        TASKS,
        st.lists(TEXT.map(NodeId), max_size=3).map(tuple),
        st.none() | st.floats(allow_nan=False, allow_infinity=False),
        st.booleans(),
    ),
)
ENTRIES = st.builds(JournalEntry, st.floats(allow_nan=False, allow_infinity=False), EVENTS, TEXT)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.lists(ENTRIES, max_size=6), max_size=6))
def test_whatever_is_appended_is_read_back(
    batches: list[list[JournalEntry]], make: MakeJournal, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal = make(folder)
    heads = [journal.append(batch) for batch in batches]
    everything = as_records([entry for batch in batches for entry in batch])

    assert list(journal.read()) == everything
    assert journal.head.seq == len(everything)
    if isinstance(journal, SqliteJournal):
        journal.close()
        for seen in heads[-3:]:
            journal = SqliteJournal.open(folder, witness=seen)
            assert list(journal.read()) == everything
            journal.close()
    journal.close()
