"""A journal that several schedulers follow and one writes: the lease, the take-over, the hand-over. The server is real."""

from collections.abc import Callable, Iterator

import pytest

from gpuyard.core.domain.errors import JournalDamaged, JournalError, WriterDeposed
from gpuyard.core.domain.events import TaskHeld
from gpuyard.core.domain.values import TaskId
from gpuyard.core.journal.records import JournalEntry, Record
from tests.postgres_server import PostgresServer

pytest.importorskip("psycopg", reason="psycopg is missing; install the extra dev.")

from gpuyard.core.journal.stores.postgres import PostgresJournal
from gpuyard.core.journal.stores.postgres_shared import SAFE_PART, SharedJournal

LEASE = 10.0


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.url()


@pytest.fixture
def scheduler(url: str, clock: Clock) -> Iterator[Callable[[], SharedJournal]]:
    opened: list[SharedJournal] = []

    def open_one() -> SharedJournal:
        opened.append(SharedJournal.open(url, lease_seconds=LEASE, clock=clock))
        return opened[-1]

    yield open_one
    for journal in opened:
        journal.close()


def held(*tasks: int) -> list[JournalEntry]:
    return [JournalEntry(float(task), TaskHeld(TaskId(task))) for task in tasks]


def tasks_of(records: list[Record]) -> list[int]:
    return [record.event.task for record in records if isinstance(record.event, TaskHeld)]


def leading(journal: SharedJournal, url: str = "http://a") -> SharedJournal:
    assert journal.take_over(journal.leader(), url) is not None
    return journal


def test_a_scheduler_that_follows_writes_nothing(scheduler: Callable[[], SharedJournal]) -> None:
    follower = scheduler()
    for refused in (lambda: follower.append(held(1)), follower.renew, follower.release, follower.retire):
        with pytest.raises(JournalError, match="does not write it"):
            refused()
    assert not follower.is_held
    assert follower.head.seq == 0


def test_a_follower_gets_every_event_once_and_in_order(scheduler: Callable[[], SharedJournal]) -> None:
    master, standby = leading(scheduler()), scheduler()
    master.append(held(1, 2))
    leader, records = standby.follow()
    assert (leader.epoch, leader.url, tasks_of(records)) == (1, "http://a", [1, 2])
    master.append(held(3))
    assert tasks_of(standby.follow()[1]) == [3]
    assert standby.follow()[1] == []
    assert standby.head == master.head


def test_a_take_over_fails_if_the_leader_has_renewed_since(scheduler: Callable[[], SharedJournal]) -> None:
    master, standby = leading(scheduler()), scheduler()
    seen = standby.leader()
    master.renew()
    assert standby.take_over(seen, "http://b") is None
    seen = standby.leader()
    master.append(held(1))
    assert standby.take_over(seen, "http://b") is None
    assert master.append(held(2)).seq == 2


def test_a_take_over_returns_what_was_not_followed_yet_and_deposes_the_writer(
    scheduler: Callable[[], SharedJournal],
) -> None:
    master, standby = leading(scheduler()), scheduler()
    master.append(held(1))
    standby.follow()
    master.append(held(2, 3))
    missed = standby.take_over(standby.leader(), "http://b")
    assert missed is not None
    assert tasks_of(missed) == [2, 3]
    with pytest.raises(WriterDeposed):
        master.append(held(4))
    with pytest.raises(WriterDeposed):
        master.renew()
    assert standby.append(held(5)).seq == 4
    assert standby.epoch == 2


def test_of_two_that_take_over_at_once_one_leads(scheduler: Callable[[], SharedJournal]) -> None:
    leading(scheduler())
    first, second = scheduler(), scheduler()
    seen = first.leader()
    assert second.leader() == seen
    assert first.take_over(seen, "http://b") == []
    assert second.take_over(seen, "http://c") is None


def test_the_lease_counts_from_when_the_renewal_was_sent(scheduler: Callable[[], SharedJournal], clock: Clock) -> None:
    master = leading(scheduler())
    assert master.held_seconds == pytest.approx(SAFE_PART * LEASE)
    clock.now += 0.5 * LEASE
    master.renew()
    assert master.held_seconds == pytest.approx(SAFE_PART * LEASE)
    clock.now += 0.5 * LEASE
    master.append(held(1))
    clock.now += 0.89 * LEASE
    assert master.is_held
    clock.now += 0.02 * LEASE
    assert not master.is_held


def test_an_empty_append_extends_nothing(scheduler: Callable[[], SharedJournal], clock: Clock) -> None:
    master = leading(scheduler())
    clock.now += 0.95 * LEASE
    master.append([])
    assert not master.is_held


def test_a_released_journal_is_taken_over_at_once_whatever_was_seen(scheduler: Callable[[], SharedJournal]) -> None:
    master, standby = leading(scheduler()), scheduler()
    seen = standby.leader()
    master.release()
    assert not master.is_held
    assert standby.leader().released
    assert standby.take_over(seen, "http://b") == []
    assert not standby.leader().released
    with pytest.raises(JournalError):
        master.append(held(1))


def test_the_leader_learns_who_should_lead_and_a_take_over_forgets_it(scheduler: Callable[[], SharedJournal]) -> None:
    master, standby = leading(scheduler()), scheduler()
    assert master.renew() == ""
    assert standby.ask_for_lead(standby.leader(), "http://b")
    assert master.renew() == "http://b"
    seen = standby.leader()
    master.release()
    assert standby.take_over(standby.leader(), "http://b") == []
    assert standby.renew() == ""
    assert not standby.ask_for_lead(seen, "http://c")


def test_a_scheduler_that_is_alone_on_the_database_deposes_no_leader(
    scheduler: Callable[[], SharedJournal], url: str
) -> None:
    master = leading(scheduler())
    with pytest.raises(JournalError, match="Stop it first"):
        PostgresJournal.open(url)
    assert master.append(held(1)).seq == 1


def test_a_journal_that_was_set_back_is_not_followed(scheduler: Callable[[], SharedJournal], url: str) -> None:
    from tests.unit.core.journal.test_postgres_faults import sql

    master, standby = leading(scheduler()), scheduler()
    master.append(held(1, 2))
    standby.follow()
    sql(url, "DELETE FROM events WHERE seq = 2", "UPDATE leader SET seq = 1, hash = (SELECT hash FROM events)")
    with pytest.raises(JournalDamaged):
        standby.follow()
