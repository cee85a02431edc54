"""Recovery of a scheduler from snapshots, intact or damaged."""

from pathlib import Path

import pytest

from gpuyard.core.domain.commands import SetSplit
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.tenant import Split
from gpuyard.core.journal.records import JournalEntry, Snapshot
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.live.control_plane.stores.recovery import found_cluster, recover, take_snapshot


def _journal_with_two_snapshots(folder: Path, *, segment_events: int = 65_536) -> SqliteJournal:
    """The older one is valid; the newer one is intact but cannot be loaded."""
    journal = SqliteJournal.open(folder, segment_events=segment_events)
    engine, views = recover(journal)
    found_cluster(engine, journal, views, 1.0)
    views.last_seq = journal.head.seq
    journal.save_snapshot(take_snapshot(journal.head, engine, views))
    events = engine.handle(SetSplit(Split(0.4, 0.6)), 2.0)
    assert not isinstance(events, Refusal)
    head = journal.append([JournalEntry(engine.state.now, event) for event in events])
    journal.save_snapshot(Snapshot(head, {"engine": {"written": "by a bug"}, "tasks": []}))
    return journal


def test_after_an_intact_snapshot_that_does_not_load_the_older_one_is_tried(tmp_path: Path) -> None:
    journal = _journal_with_two_snapshots(tmp_path)
    engine, views = recover(journal)
    assert engine.state.cluster_id
    assert engine.state.split == Split(0.4, 0.6)
    assert views.last_seq == journal.head.seq
    journal.close()


def test_where_no_snapshot_loads_all_events_are_read_if_they_are_there(tmp_path: Path) -> None:
    journal = _journal_with_two_snapshots(tmp_path)
    journal.save_snapshot(Snapshot(journal.head, {}))
    for path in tmp_path.glob("snapshot-*.json"):
        if path != journal.snapshot_path(journal.head.seq):
            path.unlink()
    assert recover(journal)[0].state.split == Split(0.4, 0.6)
    journal.close()


def test_where_no_snapshot_loads_and_events_are_retired_the_reason_is_raised(tmp_path: Path) -> None:
    journal = _journal_with_two_snapshots(tmp_path, segment_events=1)
    journal.append([JournalEntry(3.0, record.event) for record in list(journal.read())[-1:]])
    states: list[dict[str, list[int]]] = [{}, {"tasks": []}]
    for state in states:
        journal.save_snapshot(Snapshot(journal.head, state))
        journal.append([JournalEntry(3.0, record.event) for record in list(journal.read(journal.head.seq - 1))])
    assert journal.retire() > 0
    with pytest.raises(KeyError, match="engine"):
        recover(journal)
    journal.close()
