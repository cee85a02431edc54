"""A voter whose promises are on its disk."""

from pathlib import Path

import pytest

from gpuyard.core.replication.membership import Membership, first_membership
from gpuyard.core.replication.messages import Accept, EpochRefused, MembershipAccepted, RequestVote, VoteGranted
from gpuyard.core.replication.outputs import SendMessage
from gpuyard.core.replication.timing import Timing
from gpuyard.live.voting import voter_file
from gpuyard.live.voting.voter_file import BLANK, DurableVoter, VoterOfOtherCluster

TIMING = Timing(lease=2.0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_voter_that_starts_again_keeps_its_name_and_its_promise(tmp_path: Path) -> None:
    clock = Clock()
    voter = DurableVoter(tmp_path / "voter.json", "node-1", TIMING, clock)
    clock.now += 2.0
    assert voter.receive(RequestVote("A", 4)) == [SendMessage("A", VoteGranted(voter.name, 4, BLANK.accepted))]
    again = DurableVoter(tmp_path / "voter.json", "node-1", TIMING, clock)
    clock.now += 2.0
    assert again.name == voter.name
    assert again.receive(RequestVote("B", 4)) == [SendMessage("B", EpochRefused(voter.name, 4))]


def test_a_voter_that_starts_again_waits_for_a_lease_before_it_votes(tmp_path: Path) -> None:
    clock = Clock()
    voter = DurableVoter(tmp_path / "voter.json", "node-1", TIMING, clock)
    assert voter.receive(RequestVote("A", 1)) == [SendMessage("A", EpochRefused(voter.name, 0))]
    clock.now += 2.0
    assert voter.receive(RequestVote("A", 1)) == [SendMessage("A", VoteGranted(voter.name, 1, BLANK.accepted))]


def test_a_membership_is_on_disk_before_it_is_accepted(tmp_path: Path) -> None:
    voter = DurableVoter(tmp_path / "voter.json", "node-1", TIMING, Clock())
    first = first_membership(("A", "B"), (voter.name, "v2", "v3"))
    assert voter.receive(Accept("A", first)) == [SendMessage("A", MembershipAccepted(voter.name, first.order))]
    assert b'"in_sync":["' in (tmp_path / "voter.json").read_bytes()


def test_a_voter_with_a_damaged_file_has_a_new_name(tmp_path: Path) -> None:
    path = tmp_path / "voter.json"
    before = DurableVoter(path, "node-1", TIMING, Clock()).name
    path.write_bytes(path.read_bytes()[:20])
    after = DurableVoter(path, "node-1", TIMING, Clock())
    assert (before.partition("#")[0], after.name.partition("#")[0]) == ("node-1", "node-1")
    assert before != after.name
    assert "this voter has a new name" in after.notes[0]


def test_a_vote_that_cannot_be_written_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    voter = DurableVoter(tmp_path / "voter.json", "node-1", TIMING, clock)
    clock.now += 2.0

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(voter_file, "replace_file", full)
        assert voter.receive(RequestVote("A", 1)) == []
    clock.now += 2.0
    assert voter.receive(RequestVote("B", 1)) == [SendMessage("B", VoteGranted(voter.name, 1, BLANK.accepted))]


def test_the_highest_epoch_that_a_voter_obeys_is_known_after_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    voter = DurableVoter(tmp_path / "voter.json", "node-1", TIMING, clock)
    assert voter.promised == 0
    clock.now += 2.0
    voter.receive(RequestVote("A", 4))
    assert voter.promised == 4
    assert DurableVoter(tmp_path / "voter.json", "node-1", TIMING, clock).promised == 4


def test_a_voter_belongs_to_one_cluster_for_ever(tmp_path: Path) -> None:
    DurableVoter(tmp_path / "voter.json", "node-1", TIMING, Clock()).join("cluster-1")
    voter = DurableVoter(tmp_path / "voter.json", "node-1", TIMING, Clock())
    assert voter.cluster == "cluster-1"
    voter.join("cluster-1")
    with pytest.raises(VoterOfOtherCluster, match=r"belongs to cluster cluster-1, .* remove .*voter\.json"):
        voter.join("cluster-2")


def test_a_voter_that_starts_again_waits_for_the_lease_that_it_was_told(tmp_path: Path) -> None:
    clock = Clock()
    DurableVoter(tmp_path / "voter.json", "node-1", TIMING, clock).use_lease(9.0)
    voter = DurableVoter(tmp_path / "voter.json", "node-1", TIMING, clock)
    assert voter.lease_seconds == 9.0
    clock.now += 8.9
    assert voter.receive(RequestVote("A", 1)) == [SendMessage("A", EpochRefused(voter.name, 0))]
    clock.now += 0.1
    assert voter.receive(RequestVote("A", 1)) == [SendMessage("A", VoteGranted(voter.name, 1, BLANK.accepted))]


def test_a_voter_that_is_told_another_lease_waits_for_it_once(tmp_path: Path) -> None:
    clock = Clock()
    voter = DurableVoter(tmp_path / "voter.json", "node-1", TIMING, clock)
    clock.now += 2.0
    voter.use_lease(3.0)
    assert voter.receive(RequestVote("A", 1)) == [SendMessage("A", EpochRefused(voter.name, 0))]
    clock.now += 3.0
    assert voter.receive(RequestVote("A", 1)) == [SendMessage("A", VoteGranted(voter.name, 1, BLANK.accepted))]


def test_the_first_voter_of_a_cluster_has_accepted_itself_and_the_first_replica(tmp_path: Path) -> None:
    path = tmp_path / "voter.json"
    name = voter_file.found(path, "scheduler-a", "a#1", "cluster-1")
    clock = Clock()
    voter = DurableVoter(path, "scheduler-a", TIMING, clock)
    assert (voter.name, voter.cluster) == (name, "cluster-1")
    clock.now += 2.0
    alone = frozenset({name})
    membership = Membership(0, 0, frozenset({"a#1"}), alone, alone)
    assert voter.receive(RequestVote("a#1", 1)) == [SendMessage("a#1", VoteGranted(name, 1, membership))]
    assert voter_file.found(path, "scheduler-a", "a#1") != name
