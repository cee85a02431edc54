"""Committed entries become events of the journal and rows of the small stores, in order, and those who wait hear of it."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from math import inf
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard.core.domain.errors import StorageFull, WriterDeposed
from gpuyard.core.domain.events import TaskHeld
from gpuyard.core.domain.values import TaskId
from gpuyard.core.journal.codec import CODEC
from gpuyard.core.journal.records import JournalEntry, Position
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.core.replication.log import LogEntry
from gpuyard.live.control_plane.replication import applier as applier_module
from gpuyard.live.control_plane.replication.applier import Applier
from gpuyard.live.control_plane.replication.journal import ReplicatedJournal
from gpuyard.live.control_plane.replication.record_changes import encode_changes
from gpuyard.live.control_plane.stores.cluster_records import Put, SqliteRecords
from gpuyard.live.control_plane.stores.record_layouts import DOCUMENTS, DOCUMENTS_LAYOUT
from tests.acceptance.waiting import until

SECONDS = 20.0
ROW = ("applied.json", b"{}", 0)


def event(task: int) -> LogEntry:
    return LogEntry(1, CODEC.encode(JournalEntry(float(task), TaskHeld(TaskId(task)), "ann")))


def change() -> LogEntry:
    (entry,) = encode_changes("documents", [Put(DOCUMENTS, [ROW])])
    return LogEntry(1, entry)


class Opened:
    """An applier with its journal and its store."""

    def __init__(self, folder: Path) -> None:
        self.journal = SqliteJournal.open(folder / "journal")
        self.documents = SqliteRecords.open(folder / "documents.sqlite", DOCUMENTS_LAYOUT)
        self.applier = Applier(self.journal, {"documents": self.documents}, 0)

    def close(self) -> None:
        self.applier.close()
        self.journal.close()
        self.documents.close()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(tmp_path)
    yield made
    made.close()


def test_entries_are_applied_in_order_and_those_who_wait_hear_of_their_position(opened: Opened) -> None:
    applier = opened.applier
    first, last = applier.reached(1), applier.reached(4)
    applier.start()
    applier.put(0, [event(1), change(), event(2), event(3)])
    assert (first.result(SECONDS), last.result(SECONDS)) == (1, 4)
    assert [record.event for record in opened.journal.read()] == [TaskHeld(TaskId(task)) for task in (1, 2, 3)]
    assert opened.documents.rows(DOCUMENTS) == [ROW]
    assert (applier.position, applier.changes) == (4, {"documents": 1})
    assert applier.reached(3).result(0) == 3


def test_followers_read_new_events_from_memory_and_old_ones_from_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applier_module, "KEPT_EVENTS", 3)
    opened = Opened(tmp_path)
    opened.applier.start()
    opened.applier.put(0, [event(task) for task in range(1, 9)])
    opened.applier.reached(8).result(SECONDS)
    everything = list(opened.journal.read())
    for seq in range(9):
        for limit in (1, 2, 10):
            assert opened.applier.since(seq, limit) == everything[seq : seq + limit]
    opened.close()


def test_a_full_disk_is_waited_for_and_nothing_is_applied_twice(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applier_module, "RETRY_SECONDS", 0.01)
    write, refused = opened.journal.append_encoded, iter([True, True, False, False])

    def full_at_first(payloads: Sequence[bytes]) -> Any:
        if next(refused, False):
            raise StorageFull
        return write(payloads)

    monkeypatch.setattr(opened.journal, "append_encoded", full_at_first)
    done = opened.applier.reached(3)
    opened.applier.start()
    opened.applier.put(0, [event(1), change(), event(2)])
    assert done.result(SECONDS) == 3
    assert opened.journal.head.seq == 2
    assert not opened.applier.is_full


def test_another_error_ends_it_and_everybody_who_waits_hears_of_it(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Sequence[bytes]) -> Any:
        raise OSError("the disk is broken")

    monkeypatch.setattr(opened.journal, "append_encoded", broken)
    done = opened.applier.reached(1)
    opened.applier.start()
    opened.applier.put(0, [event(1)])
    with pytest.raises(OSError, match="the disk is broken"):
        done.result(SECONDS)
    with pytest.raises(OSError, match="the disk is broken"):
        opened.applier.failed.result(SECONDS)


def test_those_who_wait_for_entries_that_may_never_be_committed_are_told(opened: Opened) -> None:
    done: Future[int] = opened.applier.reached(1)
    opened.applier.give_up(WriterDeposed())
    with pytest.raises(WriterDeposed):
        done.result(0)


def test_nothing_is_applied_while_somebody_copies(opened: Opened) -> None:
    opened.applier.start()
    with opened.applier.still():
        opened.applier.put(0, [event(1)])
        done = opened.applier.reached(1)
        with pytest.raises(TimeoutError):
            done.result(0.05)
    assert done.result(SECONDS) == 1


def replication_of(opened: Opened, committed: int | None = None) -> Any:
    """What a journal asks of a replication whose leader has committed so many entries."""
    return SimpleNamespace(
        lease_seconds=1.5,
        files=SimpleNamespace(journal=opened.journal),
        applier=opened.applier,
        driver=SimpleNamespace(lead=None, heard_at=0.0, replica=SimpleNamespace(record=SimpleNamespace(promised=1))),
        leader_committed=committed,
        peer_url="",
        copy_wanted=Event(),
        check=lambda: None,
    )


class Noted(SqliteJournal):
    """A journal that notes how many events each write has."""

    sizes: list[int]

    def append_encoded(self, payloads: Sequence[bytes]) -> Position:
        self.sizes.append(len(payloads))
        return super().append_encoded(payloads)


def test_where_nobody_waits_entries_are_gathered_and_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applier_module, "GATHER_SECONDS", 3600.0)
    journal = Noted.open(tmp_path / "journal")
    journal.sizes = []
    applier = Applier(journal, {}, 0)
    applier.start()
    applier.put(0, [event(1)])
    applier.wait_for_events(0, 0.1)
    assert journal.sizes == []
    for task in (2, 3):
        applier.put(task - 1, [event(task)])
    assert applier.reached(3).result(SECONDS) == 3, "one who waits ends the gathering"
    assert journal.sizes == [3]
    applier.put(3, [event(4)])
    applier.close()
    assert journal.sizes == [3, 1], "and so does the end"
    journal.close()


def test_many_entries_are_not_gathered_any_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applier_module, "GATHER_SECONDS", 3600.0)
    monkeypatch.setattr(applier_module, "AT_ONCE", 3)
    opened = Opened(tmp_path)
    opened.applier.start()
    for task in range(1, 4):
        opened.applier.put(task - 1, [event(task)])
    until(lambda: opened.applier.position == 3, SECONDS, "they are applied although nobody waits")
    opened.close()


def test_a_follower_is_as_far_behind_as_the_oldest_commit_that_it_lacks(opened: Opened) -> None:
    replication = replication_of(opened, committed=1)
    following = ReplicatedJournal(replication)
    following.follow()
    assert following.behind_seconds == inf, "it never had everything"
    opened.applier.start()
    opened.applier.put(0, [event(1)])
    opened.applier.reached(1).result(SECONDS)
    replication.leader_committed = 2
    following.follow()
    assert following.behind_seconds < SECONDS, "it has what was committed when it was asked first"
    replication.leader_committed = None
    following._level_at = -SECONDS
    following.follow()
    assert following.behind_seconds > SECONDS, "it lacks the second one, and the leader is silent"


def test_a_follower_waits_for_events_and_hears_of_them_at_once(opened: Opened) -> None:
    opened.applier.start()
    following, found = ReplicatedJournal(replication_of(opened)), list[int]()
    thread = Thread(target=lambda: found.extend(record.seq for record in following.follow(3600.0)[1]))
    thread.start()
    opened.applier.put(0, [event(1)])
    thread.join(SECONDS)
    assert found == [1]
    assert following.follow(0.001)[1] == [], "it does not wait longer than it was told to"


def test_an_event_in_the_journal_of_which_followers_do_not_hear_yet_comes_with_the_next_look(opened: Opened) -> None:
    opened.applier.start()
    opened.applier.put(0, [event(1)])
    opened.applier.reached(1).result(SECONDS)
    following = ReplicatedJournal(replication_of(opened))
    payload = event(2).payload
    opened.journal.append_encoded([payload])  # as the applier does before it keeps the event for followers
    assert following.follow()[1] == []
    opened.applier._recent.append((2, payload))
    assert [record.event for record in following.follow()[1]] == [TaskHeld(TaskId(2))]
