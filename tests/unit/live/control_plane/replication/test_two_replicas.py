"""Two replications in one process: a copy, following, falling behind, and what each of them says."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuyard.core.domain.errors import WriterDeposed
from gpuyard.core.domain.events import TaskHeld
from gpuyard.core.domain.values import TaskId
from gpuyard.core.journal.records import JournalEntry
from gpuyard.live.control_plane.replication import driver, overview
from gpuyard.live.control_plane.replication.copying import receive_copy
from gpuyard.live.control_plane.replication.journal import ReplicatedJournal, ReplicatedRecords
from gpuyard.live.control_plane.replication.service import Replication
from gpuyard.live.control_plane.stores.cluster_records import Put
from gpuyard.live.control_plane.stores.record_layouts import DOCUMENTS
from gpuyard.live.wire import frames
from gpuyard.live.wire.frames import Hello
from gpuyard.version import __version__
from tests.ports import free_port
from tests.replica import KEY, end, leading_journal, replication_of

SECONDS = 20.0


def until(ready: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + SECONDS
    while not ready():
        assert time.monotonic() < give_up_at, f"waited for: {what}"
        time.sleep(0.005)


def held(*tasks: int) -> list[JournalEntry]:
    return [JournalEntry(float(task), TaskHeld(TaskId(task)), "ann") for task in tasks]


class Two:
    """A leads, and B is a copy of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {"a": free_port(), "b": free_port()}
        self.running: dict[str, Replication] = {}
        self.a = self.start("a")
        self.journal = leading_journal(self.a)

    def start(self, name: str) -> Replication:
        other = self.ports["b" if name == "a" else "a"]
        made = self.running[name] = replication_of(
            self.folder / name, port=self.ports[name], peer_port=other, single_after=1.0
        )
        return made

    def copy(self) -> None:
        """Copy the folder of A to that of B."""

        async def copy() -> None:
            hello = Hello(frames.PROTOCOL, "seed", "b", "", __version__)
            connection = await frames.connect(f"127.0.0.1:{self.ports['a']}", hello, KEY)
            (self.folder / "b").mkdir(exist_ok=True)
            await receive_copy(connection, self.folder / "b", "b", lambda _done, _total: None)
            connection.close()

        asyncio.run(copy())

    def stop(self, name: str) -> None:
        end(self.running.pop(name))

    def until_in_sync(self) -> None:
        until(lambda: len(self.a.view.replica.in_sync) == 2, "both have everything")

    def close(self) -> None:
        for replication in self.running.values():
            end(replication)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    made = Two(tmp_path)
    yield made
    made.close()


def test_a_copy_has_what_was_written_before_and_follows_what_comes_after(two: Two) -> None:
    two.journal.append(held(1, 2))
    ReplicatedRecords(two.a, "documents").write(Put(DOCUMENTS, [("one", b"1", 0)]))
    two.copy()
    b = two.start("b")
    two.until_in_sync()
    following = ReplicatedJournal(b)
    two.journal.append(held(3))
    ReplicatedRecords(two.a, "documents").write(Put(DOCUMENTS, [("two", b"2", 0)]))
    until(lambda: following.follow()[1], "it follows")
    assert [record.seq for record in following.read()] == [1, 2, 3]
    assert following.head == two.journal.head
    until(lambda: sorted(b.files.records["documents"].keys(DOCUMENTS)) == ["one", "two"], "it has both documents")
    until(lambda: following.follow()[1] == [] and following.behind_seconds < 1.0, "it is level with the leader")
    assert following.leader().url == "http://here"
    with pytest.raises(WriterDeposed, match="Another scheduler leads"):
        ReplicatedRecords(b, "documents").write(Put(DOCUMENTS, [("three", b"3", 0)]))
    assert following.take_over(following.leader(), "") is None


def test_the_leader_goes_on_alone_and_the_other_one_catches_up(two: Two) -> None:
    two.copy()
    two.start("b")
    two.until_in_sync()
    two.stop("b")
    two.journal.append(held(1))
    until(lambda: two.a.view.replica.in_sync == {two.a.files.log.name}, "it is alone")
    assert "not connected" in " ".join(overview.answer_of(two.a.view).problems)
    b = two.start("b")
    two.until_in_sync()
    until(lambda: b.applier.position == two.a.applier.position, "it has caught up")
    assert b.files.journal.head == two.journal.head


def test_a_standby_that_is_too_far_behind_asks_for_a_copy(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEEP_IN_MEMORY", "KEEP_ON_DISK", "KEEP_BEHIND", "TRIM_EVERY"):
        monkeypatch.setattr(driver, name, 5)
    two.copy()
    two.start("b")
    two.until_in_sync()
    two.stop("b")
    for task in range(40):
        two.journal.append(held(task))
    until(lambda: two.a.files.log.oldest > 20, "old entries are gone")
    b = two.start("b")
    until(b.copy_wanted.is_set, "it is told to copy")
    two.stop("b")
    two.copy()
    b = two.start("b")
    two.until_in_sync()
    assert b.files.journal.head == two.journal.head
    assert (two.folder / "b" / "before_copy" / "journal").is_dir()


def test_a_hand_over_needs_a_standby_with_everything_and_a_second_voter(two: Two) -> None:
    assert not two.journal.can_hand_over()
    two.copy()
    two.start("b")
    two.until_in_sync()
    assert two.journal.can_hand_over()
    told = overview.answer_of(two.a.view)
    assert (told.role, told.standby_behind, [voter.kind for voter in told.voters if voter.votes]) == (
        "leads",
        0,
        ["scheduler"],
    )
    assert "Only 1 of at least 3 voters" in told.problems[0]


def test_a_journal_whose_scheduler_began_anew_leads_in_a_new_epoch(two: Two) -> None:
    epoch = two.journal.epoch
    two.journal.append(held(1))
    two.journal.close()
    again = leading_journal(two.a)
    assert again.epoch > epoch
    assert again.append(held(2)).seq == 2
