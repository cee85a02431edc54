"""A log that has only its newest entries in memory, and what happens if a standby needs older ones."""

from collections.abc import Sequence

from gpuyard.core.replication.log import LogEntry, ReplicatedLog, at_most
from gpuyard.core.replication.membership import first_membership
from gpuyard.core.replication.messages import (
    AppendEntries,
    CanvassAnswer,
    EntriesHeld,
    EntriesMismatch,
    MembershipAccepted,
    VoteGranted,
)
from gpuyard.core.replication.outputs import (
    JournalsDiffer,
    ReplicaOutput,
    ReplicaRecord,
    SendMessage,
    StandbyTooFarBehind,
)
from gpuyard.core.replication.replica import Replica
from gpuyard.core.replication.timing import Timing

VOTERS = ("v1", "v2", "v3")
FIRST = first_membership(("A", "B"), VOTERS)
ENTRIES = [LogEntry(epoch, b"%d" % number) for number, epoch in enumerate((1, 1, 1, 2, 2, 2), start=1)]


class Store:
    """The entries after position `oldest`."""

    def __init__(self, entries: Sequence[LogEntry], oldest: int = 0) -> None:
        self._entries, self.oldest = list(entries), oldest

    def epoch_at(self, position: int) -> int:
        assert position >= self.oldest
        return self._entries[position - 1].epoch

    def after(self, position: int, limit: int) -> list[LogEntry]:
        assert position >= self.oldest
        return self._entries[position : position + limit]


def replica(store: Store, start: int, entries: Sequence[LogEntry] = ENTRIES) -> Replica:
    record = ReplicaRecord(2, FIRST)
    return Replica("A", "B", Timing(), record, entries[start:], 0.0, patience=1.0, start=start, store=store)


def leading(store: Store, start: int) -> Replica:
    made = replica(store, start)
    made.tick(1.0)
    for voter in VOTERS:
        made.receive(1.0, CanvassAnswer(voter, 0.0, 2, FIRST))
    epoch = made.record.promised
    for voter in VOTERS:
        made.receive(1.0, VoteGranted(voter, epoch, FIRST))
    for voter in VOTERS:
        made.receive(1.0, MembershipAccepted(voter, (epoch, 0)))
    assert made.reign is not None
    return made


def sent(outputs: Sequence[ReplicaOutput]) -> list[object]:
    return [output.message for output in outputs if isinstance(output, SendMessage)]


def test_a_log_reads_entries_that_left_its_memory_from_the_store() -> None:
    log = ReplicatedLog(ENTRIES, store=Store(ENTRIES))
    log.forget(4)
    assert len(log) == 6
    assert log.after(1, 4) == tuple(ENTRIES[1:5])
    assert log.after(5, 10) == tuple(ENTRIES[5:])
    assert log.entries == ENTRIES
    assert [log.epoch_at(position) for position in range(7)] == [0, 1, 1, 1, 2, 2, 2]
    assert log.first_conflict(2, ENTRIES[2:]) == 4


def test_a_log_without_a_store_forgets_nothing() -> None:
    log = ReplicatedLog(ENTRIES)
    log.forget(4)
    assert log.after(0, 10) == tuple(ENTRIES)


def test_new_entries_are_written_after_those_that_left_the_memory() -> None:
    log = ReplicatedLog(ENTRIES[4:], 4, Store(ENTRIES))
    log.write(5, [LogEntry(3, b"new")])
    assert (len(log), log.epoch_at(6)) == (6, 3)


def test_a_standby_gets_entries_that_the_leader_reads_from_its_store() -> None:
    leader = leading(Store(ENTRIES), start=5)
    (message,) = sent(leader.receive(1.0, EntriesMismatch("B", leader.record.promised, 1)))
    assert isinstance(message, AppendEntries)
    assert (message.start, message.before, message.entries) == (1, 1, tuple(ENTRIES[1:]))


def test_a_standby_that_needs_retired_entries_is_reported_and_not_answered_without_end() -> None:
    leader = leading(Store(ENTRIES, oldest=3), start=5)
    told = leader.receive(1.0, EntriesMismatch("B", leader.record.promised, 1))
    assert told == [StandbyTooFarBehind(1, 3)]


def test_a_standby_compares_from_its_oldest_entry_on() -> None:
    standby = replica(Store(ENTRIES, oldest=3), start=4)
    early = AppendEntries("B", 2, 1, 1, tuple(ENTRIES[1:]), 6, FIRST)
    assert EntriesMismatch("A", 2, 3) in sent(standby.receive(0.5, early))
    later = AppendEntries("B", 2, 3, 1, tuple(ENTRIES[3:]), 6, FIRST)
    assert EntriesHeld("A", 2, 6) in sent(standby.receive(0.5, later))


def test_a_leader_with_another_history_than_the_committed_one_is_reported() -> None:
    standby = replica(Store(ENTRIES), start=4)
    other = (LogEntry(1, b"3"), LogEntry(4, b"other"))
    told = standby.receive(0.5, AppendEntries("B", 5, 2, 1, other, 4, FIRST))
    assert JournalsDiffer(4) in told
    assert sent(told) == []
    assert standby.log.entries == ENTRIES


def test_a_leader_with_another_history_than_the_retired_one_is_reported() -> None:
    standby = replica(Store(ENTRIES, oldest=4), start=4)
    told = standby.receive(0.5, AppendEntries("B", 5, 4, 3, (), 4, FIRST))
    assert JournalsDiffer(4) in told
    assert sent(told) == []


def test_a_message_has_as_many_entries_as_fit_and_at_least_one() -> None:
    entries = tuple(LogEntry(1, b"x" * size) for size in (50, 10, 20, 5))
    assert [len(at_most(size, entries)) for size in (1, 60, 79, 80, 84, 85)] == [1, 2, 2, 3, 3, 4]
    assert at_most(10, ()) == ()


def test_an_append_ends_with_its_last_entry() -> None:
    entries = [LogEntry(1, b"a"), LogEntry(1, b"b", last=False), LogEntry(1, b"c", last=False), LogEntry(1, b"d")]
    log = ReplicatedLog(entries)
    assert [log.whole(position) for position in range(5)] == [0, 1, 1, 1, 4]
