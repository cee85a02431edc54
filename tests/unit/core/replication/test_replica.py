"""A replica whose standby is not known yet, was lost, or came back with another disk."""

from collections.abc import Collection, Iterable
from itertools import pairwise

import pytest

from gpuyard.core.replication.candidacy import Candidacy
from gpuyard.core.replication.log import LogEntry
from gpuyard.core.replication.membership import FEWEST_VOTERS, Membership, founding_membership
from gpuyard.core.replication.messages import (
    AppendEntries,
    Canvass,
    CanvassAnswer,
    EntriesHeld,
    EntriesMismatch,
    EpochRefused,
    ReleaseLease,
    RequestVote,
    VoteGranted,
)
from gpuyard.core.replication.outputs import (
    EntriesCommitted,
    LeadershipEnded,
    ReplicaOutput,
    ReplicaRecord,
    SendMessage,
    VoterOutput,
    VoterRecord,
    WriteEntries,
)
from gpuyard.core.replication.replica import Replica, ReplicaStatus
from gpuyard.core.replication.timing import Timing
from gpuyard.core.replication.voter import Voter

VOTERS = frozenset({"v1", "v2", "v3"})
TIMING = Timing(lease=5.0, renew_every=1.0)
TELLS_SOON = Timing(lease=5.0, renew_every=1.0, tell_after=0.1)
TWO = (LogEntry(0, b"one"), LogEntry(0, b"two"))


class Story:
    """A scheduler A with voters that answer at once. What it sends to other replicas is kept in `sent`."""

    def __init__(self, membership: Membership, timing: Timing = TIMING, entries: Iterable[LogEntry] = ()) -> None:
        self.now = 0.0
        self.voters: dict[str, Voter] = {}
        self.sent: list[tuple[str, object]] = []
        self.outputs: list[ReplicaOutput] = []
        for name in membership.voters:
            self.add_voter(name, membership)
        self.replica = Replica("A", "", timing, ReplicaRecord(0, membership), entries, self.now, patience=1.0)

    def add_voter(self, name: str, accepted: Membership) -> None:
        self.voters[name] = Voter(name, TIMING, VoterRecord(0, "", accepted), self.now, restarted=False)

    def does(self, outputs: Iterable[ReplicaOutput]) -> None:
        for output in outputs:
            self.outputs.append(output)
            if not isinstance(output, SendMessage):
                continue
            if output.to == self.replica.name:
                self.does(self.replica.receive(self.now, output.message))  # type: ignore[arg-type]
            elif (voter := self.voters.get(output.to)) is not None:
                for answer in voter.receive(self.now, output.message):  # type: ignore[arg-type]
                    if isinstance(answer, SendMessage):
                        self.does(self.replica.receive(self.now, answer.message))  # type: ignore[arg-type]
            else:
                self.sent.append((output.to, output.message))

    def passes(self, seconds: float) -> None:
        end = self.now + seconds
        while self.replica.next_tick() <= end:
            self.now = max(self.now, self.replica.next_tick())
            self.does(self.replica.tick(self.now))
        self.now = end

    def meets(self, name: str) -> None:
        self.does(self.replica.meet(self.now, name))

    def appends(self, *payloads: bytes) -> None:
        self.does(self.replica.append(payloads))

    def hears(self, name: str, position: int) -> None:
        self.does(self.replica.receive(self.now, EntriesHeld(name, self.replica.record.promised, position)))

    @property
    def in_sync(self) -> Collection[str]:
        reign = self.replica.reign
        assert reign is not None
        assert reign.proposed is None
        return reign.current.in_sync


def leader(
    in_sync: Collection[str] = ("A", "B"), timing: Timing = TIMING, inherited: Collection[LogEntry] = ()
) -> Story:
    story = Story(Membership(0, 0, frozenset(in_sync), VOTERS, VOTERS), timing, inherited)
    story.passes(1.0)
    assert story.replica.reign is not None
    return story


class Both:
    """Two schedulers, A and B, with voters. Messages arrive at once unless they are cut off."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cuts: set[tuple[str, str]] = set()
        """From where to where messages are lost; `voters` are all voters."""
        membership = Membership(0, 0, frozenset({"A", "B"}), VOTERS, VOTERS)
        self.voters = {
            name: Voter(name, TIMING, VoterRecord(0, "", membership), 0.0, restarted=False) for name in VOTERS
        }
        self.replicas = {
            name: Replica(name, peer, TIMING, ReplicaRecord(0, membership), (), 0.0, patience=patience)
            for name, peer, patience in (("A", "B", 1.0), ("B", "A", 1.5))
        }

    def until_leads(self, name: str) -> None:
        give_up_at = self.now + 10 * TIMING.lease
        while not self.replicas[name].may_act(self.now):
            assert self.now < give_up_at, f"{name} does not lead"
            self.passes(0.1)

    def passes(self, seconds: float) -> None:
        end = self.now + seconds
        while (at := min(replica.next_tick() for replica in self.replicas.values())) <= end:
            self.now = max(self.now, at)
            for name, replica in self.replicas.items():
                self.does(name, replica.tick(self.now))
        self.now = end

    def does(self, sender: str, outputs: Iterable[ReplicaOutput | VoterOutput]) -> None:
        for output in outputs:
            if not isinstance(output, SendMessage):
                continue
            here, there = ("voters" if name in self.voters else name for name in (sender, output.to))
            if (here, there) in self.cuts:
                continue
            receiver: Voter | Replica = self.voters.get(output.to) or self.replicas[output.to]
            self.does(output.to, receiver.receive(self.now, output.message))  # type: ignore[arg-type]


# --- a cluster begins with one scheduler ---


def test_a_scheduler_that_founds_a_cluster_leads_alone_and_sends_nothing_to_a_standby_that_it_does_not_know() -> None:
    story = Story(founding_membership("A", "vA"))
    story.passes(1.0)
    story.appends(b"one")
    story.passes(3.0)
    assert EntriesCommitted(1) in story.outputs
    assert story.sent == []


def test_voters_that_know_no_membership_are_added() -> None:
    story = Story(founding_membership("A", "vA"))
    nobody = frozenset[str]()
    for name in VOTERS:
        story.add_voter(name, Membership(0, 0, nobody, nobody, nobody))
    story.passes(1.0)
    story.replica.change_voters(VOTERS)
    story.passes(3.0)
    status = story.replica.status(story.now)
    assert (status.voters, status.previous_voters, status.answering) == (VOTERS, VOTERS, VOTERS)
    assert not status.is_proposing


def test_a_leader_is_not_given_too_few_voters() -> None:
    story = Story(founding_membership("A", "vA"))
    with pytest.raises(ValueError, match=f"until there are {FEWEST_VOTERS}"):
        story.replica.change_voters({"vA", "v1"})


def test_a_standby_joins_when_it_has_confirmed_to_hold_everything() -> None:
    story = leader(in_sync=("A",))
    story.meets("B")
    story.passes(2.0)
    assert story.in_sync == {"A"}  # also of an empty log it has to confirm that it is equal
    story.hears("B", 0)
    story.passes(1.0)
    assert story.in_sync == {"A", "B"}


# --- another standby at the other end ---


def test_a_follower_remembers_whom_it_has_met() -> None:
    story = Story(founding_membership("A", "vA"))
    story.meets("B")
    assert story.replica.peer == "B"
    assert story.outputs == []


def test_meeting_the_same_standby_again_changes_nothing() -> None:
    story = leader()
    story.meets("B")
    assert story.replica.meet(story.now, "B") == []


def test_a_standby_with_another_disk_takes_the_place_of_the_old_one_when_it_holds_everything() -> None:
    story = leader(inherited=TWO)
    story.meets("B#1")
    story.hears("B#1", 1)
    story.passes(1.0)
    assert story.in_sync == {"A", "B"}
    story.hears("B#1", 2)
    assert story.replica.committed == 0  # B is in the in-sync set, and has not confirmed them in this epoch
    story.passes(1.0)
    assert story.in_sync == {"A", "B#1"}
    story.hears("B#1", 2)
    assert story.replica.committed == 2


def test_while_a_standby_is_replaced_nothing_is_committed_without_the_old_one() -> None:
    story = leader()
    story.meets("B#1")
    story.hears("B#1", 0)
    voters = dict(story.voters)
    story.voters.clear()
    story.passes(1.0)
    story.appends(b"one")
    story.hears("B#1", 1)
    assert story.replica.committed == 0  # the replacement is proposed and not decided
    story.voters.update(voters)
    story.passes(1.0)
    assert story.in_sync == {"A", "B#1"}
    story.passes(1.0)
    assert story.replica.committed == 1


def test_what_a_leader_knows_of_a_standby_is_not_believed_of_the_next_one() -> None:
    story = leader()
    story.meets("B")
    story.appends(b"one")
    story.hears("B", 1)
    story.meets("B#1")
    story.sent.clear()
    story.hears("B", 1)  # late
    story.does(story.replica.receive(story.now, EntriesMismatch("B", story.replica.record.promised, 0)))
    assert story.sent == []
    story.passes(1.0)
    assert story.in_sync == {"A", "B"}
    to, message = story.sent[-1]
    assert (to, isinstance(message, AppendEntries) and message.start) == ("B#1", 1)
    assert story.replica.status(story.now).standby_held is None


def test_a_standby_that_confirms_in_the_same_epoch_after_another_one_starts_from_nothing() -> None:
    story = leader()
    story.meets("B")
    story.hears("B", 0)
    story.meets("C")
    story.meets("B")
    assert story.replica.status(story.now).standby_held is None


# --- one copy only ---


def test_the_operator_can_leave_out_a_standby_that_does_not_exist_any_more() -> None:
    story = leader(in_sync=("A", "B#old"))
    story.meets("B#new")
    story.appends(b"one")
    assert story.replica.why_not_single() == ""
    story.does(story.replica.allow_single(story.now))
    assert story.in_sync == {"A"}
    story.passes(0.5)
    assert story.replica.status(story.now).committed == 1


def test_why_the_operator_cannot_allow_a_single_copy() -> None:
    story = leader()
    story.voters.clear()
    story.does(story.replica.allow_single(story.now))
    assert "a majority of the voters has to accept it" in story.replica.why_not_single()
    assert story.replica.allow_single(story.now) == []
    assert "writes alone" in leader(in_sync=("A",)).replica.why_not_single()
    follower = Story(founding_membership("A", "vA")).replica
    assert "does not lead" in follower.why_not_single()
    assert follower.allow_single(0.0) == []


def test_the_word_of_the_operator_does_not_wait_for_another_change() -> None:
    story = leader()
    story.replica.change_voters({"v4", "v5", "v6"})
    story.passes(1.0)
    assert story.replica.status(story.now).is_proposing
    assert story.replica.why_not_single() == ""
    story.does(story.replica.allow_single(story.now))
    assert story.in_sync == {"A"}
    assert story.replica.status(story.now).voters == VOTERS


def test_an_old_name_in_the_in_sync_set_counts_as_silent() -> None:
    story = leader(in_sync=("A", "B#old"), timing=Timing(single_after=10.0), inherited=TWO)
    story.meets("B#new")
    for _ in range(8):
        story.passes(1.0)
        story.hears("B#new", 0)  # it is far behind
    assert story.in_sync == {"A", "B#old"}
    for _ in range(3):
        story.passes(1.0)
        story.hears("B#new", 0)
    assert story.in_sync == {"A"}


# --- a standby that is behind ---


def entries_sent(story: Story) -> int:
    return sum(len(message.entries) for _, message in story.sent if isinstance(message, AppendEntries))


def test_a_slow_standby_is_not_sent_again_what_is_on_its_way() -> None:
    story = leader(timing=Timing(lease=5.0, renew_every=1.0, batch=100, window=200))
    story.meets("B")
    story.hears("B", 0)
    story.sent.clear()
    for _ in range(10):
        story.appends(*[b"event"] * 100)
        story.passes(1.0)
    assert entries_sent(story) == 200
    story.hears("B", 100)
    story.passes(5.0)
    assert entries_sent(story) == 300
    confirmed = 100
    while confirmed < 1000:
        confirmed += 100
        story.hears("B", confirmed)
    assert entries_sent(story) == 1000


def test_a_standby_is_told_of_a_commit_soon_although_nothing_follows() -> None:
    story = leader(timing=TELLS_SOON)
    story.meets("B")
    story.hears("B", 0)
    story.appends(b"one")
    story.sent.clear()
    story.hears("B", 1)
    assert story.replica.committed == 1
    assert story.sent == []
    story.passes(TELLS_SOON.tell_after)
    ((to, told),) = story.sent
    assert isinstance(told, AppendEntries)
    assert (to, told.committed, told.entries) == ("B", 1, ())
    story.sent.clear()
    story.passes(0.5 * TELLS_SOON.renew_every)
    assert story.sent == [], "it is told once"


def test_a_standby_that_gets_more_entries_is_told_of_a_commit_with_them() -> None:
    story = leader(timing=TELLS_SOON)
    story.meets("B")
    story.hears("B", 0)
    story.appends(b"one")
    story.hears("B", 1)
    story.sent.clear()
    story.appends(b"two")
    story.passes(TELLS_SOON.tell_after)
    assert [told.committed for _, told in story.sent if isinstance(told, AppendEntries)] == [1]


def test_a_leader_without_a_standby_has_nobody_to_tell_of_a_commit() -> None:
    story = leader(in_sync=("A",), timing=TELLS_SOON)
    story.appends(b"one")
    assert story.replica.committed == 1
    story.passes(0.5 * TELLS_SOON.renew_every)
    assert story.sent == []


def test_a_standby_that_has_missed_messages_gets_them_again() -> None:
    both = Both()
    both.until_leads("A")
    both.passes(1.0)
    for lost in (("A", "B"), ("B", "A")):
        both.cuts = {lost}
        for _ in range(3):
            both.does("A", both.replicas["A"].append((b"one", b"two")))
            both.passes(0.5)
        both.cuts = set()
        both.passes(2.5)
        one, other = (both.replicas[name] for name in "AB")
        assert one.may_act(both.now)
        assert len(one.log) == len(other.log) == one.committed == other.committed > 0


# --- giving up the lead ---


def test_a_leader_that_resigns_returns_with_a_new_epoch_at_once() -> None:
    story = leader()
    reign = story.replica.reign
    assert reign is not None
    outputs = story.replica.resign(story.now)
    assert outputs == [
        LeadershipEnded(reign.epoch),
        *(SendMessage(voter, ReleaseLease("A", reign.epoch)) for voter in sorted(VOTERS)),
    ]
    assert not story.replica.may_act(story.now)
    story.does(outputs)
    story.passes(0.1)
    again = story.replica.reign
    assert again is not None
    assert again.epoch > reign.epoch


def test_a_leader_resigns_before_its_first_membership_is_decided() -> None:
    story = leader()
    story.does(story.replica.resign(story.now))
    replica = story.replica
    replica.tick(story.now)
    for voter in VOTERS:
        replica.receive(story.now, CanvassAnswer(voter, 0.0, 1, replica.record.membership))
    epoch = replica.record.promised
    for voter in VOTERS:
        replica.receive(story.now, VoteGranted(voter, epoch, replica.record.membership))
    assert replica.status(story.now).role == "candidate"
    assert SendMessage("v1", ReleaseLease("A", epoch)) in replica.resign(story.now)
    assert SendMessage("v1", Canvass("A")) in replica.tick(story.now)


@pytest.mark.parametrize("lost", [("A", "voters"), ("voters", "A"), ("A", "voters", "A")])
def test_the_standby_leads_if_the_leader_is_cut_off_from_the_voters_and_not_from_the_standby(
    lost: tuple[str, ...],
) -> None:
    both = Both()
    both.until_leads("A")
    cut_at = both.now
    both.cuts = set(pairwise(lost))
    both.until_leads("B")
    assert not both.replicas["A"].may_act(both.now)
    assert both.now - cut_at < TIMING.lease + 4 * TIMING.renew_every
    both.cuts = set()
    both.passes(2 * TIMING.lease)
    assert both.replicas["B"].may_act(both.now)
    assert both.replicas["A"].reign is None


def test_without_voters_nobody_leads_and_with_them_one_does_again() -> None:
    both = Both()
    both.until_leads("A")
    both.cuts = {("A", "voters"), ("voters", "A"), ("B", "voters"), ("voters", "B")}
    both.passes(3 * TIMING.lease)
    assert not any(replica.reign for replica in both.replicas.values())
    both.cuts = set()
    both.passes(2 * TIMING.lease)
    assert sum(replica.may_act(both.now) for replica in both.replicas.values()) == 1


def test_a_follower_has_nothing_to_resign() -> None:
    assert Story(founding_membership("A", "vA")).replica.resign(0.0) == []


def test_a_wish_for_voters_is_forgotten_when_the_reign_ends() -> None:
    story = leader()
    story.replica.change_voters({"v1", "v2", "v4"})
    story.does(story.replica.resign(story.now))
    story.passes(3.0)
    assert story.replica.status(story.now).voters == VOTERS
    assert not any(isinstance(it, SendMessage) and it.to == "v4" for it in story.outputs)


def test_a_wish_for_voters_that_do_not_answer_is_withdrawn_once() -> None:
    story = leader()
    story.replica.change_voters({"v4", "v5", "v6"})
    story.passes(2.0)
    assert story.replica.status(story.now).is_proposing
    story.passes(TIMING.proposal_retry + 2.0)
    asked = sum(isinstance(it, SendMessage) and it.to == "v4" for it in story.outputs)
    story.passes(20.0)
    assert sum(isinstance(it, SendMessage) and it.to == "v4" for it in story.outputs) == asked


# --- what is final ---


class Store:
    """Everything up to position 3 is retired."""

    oldest = 3

    @staticmethod
    def epoch_at(position: int) -> int:
        assert position == 3
        return 1

    @staticmethod
    def after(position: int, limit: int) -> list[LogEntry]:
        raise AssertionError(position, limit)


def test_what_was_applied_before_the_start_is_committed() -> None:
    membership = founding_membership("A", "vA")
    entries = [LogEntry(1, b"four"), LogEntry(1, b"five")]
    replica = Replica(
        "B", "A", TIMING, ReplicaRecord(0, membership), entries, 0.0, patience=9.0, start=3, store=Store()
    )
    assert replica.committed == 3
    outputs = replica.receive(0.0, AppendEntries("A", 2, 3, 1, (LogEntry(1, b"four"),), 4, membership))
    assert [it for it in outputs if isinstance(it, EntriesCommitted | WriteEntries)] == [EntriesCommitted(4)]


def test_a_leader_does_not_announce_again_what_was_applied_before_its_start() -> None:
    membership = founding_membership("A", "vA")
    story = Story(membership)
    story.replica = Replica(
        "A", "", TIMING, ReplicaRecord(4, membership), [], 0.0, patience=1.0, start=3, store=Store()
    )
    story.passes(1.0)
    assert story.replica.is_ready(story.now)
    assert not any(isinstance(output, EntriesCommitted) for output in story.outputs)


def test_a_new_replica_with_the_membership_of_a_leader_asks_for_no_epoch_of_it() -> None:
    membership = Membership(7, 2, frozenset({"A"}), VOTERS, VOTERS)
    story = Story(membership)
    story.passes(1.0)
    assert story.replica.record.promised == 8


# --- for people ---


def test_the_status_of_a_follower_has_nothing_of_a_leader() -> None:
    membership = founding_membership("A", "vA")
    assert Story(membership, entries=[LogEntry(1, b"one")]).replica.status(0.0) == ReplicaStatus(
        name="A",
        peer="",
        role="follows",
        epoch=0,
        length=1,
        committed=0,
        in_sync=membership.in_sync,
        voters=membership.voters,
        previous_voters=membership.voters,
        answering=frozenset(),
        standby_held=None,
        standby_silent_seconds=None,
        is_proposing=False,
        lease_left=0.0,
    )


def test_the_status_of_a_leader_tells_who_answers() -> None:
    story = leader()
    story.meets("B")
    story.hears("B", 0)
    story.passes(2.0)
    del story.voters["v3"]
    story.passes(TIMING.lease)
    status = story.replica.status(story.now)
    assert (status.role, status.epoch, status.peer) == ("leads", 1, "B")
    assert status.answering == {"v1", "v2"}
    assert (status.standby_held, status.standby_silent_seconds) == (0, 2.0 + TIMING.lease)
    assert TIMING.lead - TIMING.renew_every <= status.lease_left <= TIMING.lead


def test_a_leader_that_has_heard_no_standby_does_not_say_for_how_long() -> None:
    assert leader().replica.status(1.0).standby_silent_seconds is None


def test_the_status_of_a_leader_without_answers_has_no_lease() -> None:
    story = leader()
    story.voters.clear()
    story.passes(TIMING.lease + 1.0)
    status = story.replica.status(story.now)
    assert (status.answering, status.lease_left) == (frozenset(), 0.0)
    assert not story.replica.may_act(story.now)


def test_a_new_leader_counts_the_silence_of_its_predecessor_from_when_it_was_last_heard() -> None:
    membership = Membership(0, 0, frozenset({"A", "B"}), VOTERS, VOTERS)
    story = Story(membership, Timing(lease=5.0, renew_every=1.0, single_after=2.5))
    story.meets("B")
    story.does(story.replica.receive(0.0, AppendEntries("B", 1, 0, 0, (), 0, membership)))
    story.passes(2.9)
    assert story.in_sync == {"A", "B"}
    story.passes(0.2)
    assert story.in_sync == {"A"}


def test_a_new_leader_leaves_out_a_standby_that_has_been_silent_for_long_enough_at_once() -> None:
    membership = Membership(0, 0, frozenset({"A", "B"}), VOTERS, VOTERS)
    story = Story(membership, Timing(lease=5.0, renew_every=1.0, single_after=0.5))
    story.meets("B")
    story.does(story.replica.receive(0.0, AppendEntries("B", 1, 0, 0, (), 0, membership)))
    story.passes(1.0)
    assert story.replica.next_tick() > story.now
    assert story.in_sync == {"A"}


# --- elections ---


def test_a_candidate_asks_again_when_the_leases_of_a_majority_end() -> None:
    membership = Membership(0, 0, frozenset({"A", "B"}), VOTERS, VOTERS)
    story = Story(membership)
    for at, voter in zip((0.1, 0.2, 0.7), story.voters.values(), strict=True):
        voter.receive(at, RequestVote("B", 1))
    story.passes(TIMING.lease + 0.199)
    assert story.replica.reign is None
    story.passes(0.002)
    assert story.replica.reign is not None


def test_a_voter_whose_lease_always_ends_at_once_does_not_let_a_candidate_ask_without_a_pause() -> None:
    membership = Membership(0, 0, frozenset({"A", "B"}), VOTERS, VOTERS)
    story = Story(membership)
    story.voters.clear()
    canvasses = 0
    story.passes(1.0)
    while story.now < 2.0:
        canvasses += 1
        assert canvasses < 50, "it asks without a pause"
        for voter, free_in in (("v1", 0.0), ("v2", 1e-9)):
            story.does(story.replica.receive(story.now, CanvassAnswer(voter, free_in, 0, membership)))
        story.passes(story.replica.next_tick() - story.now)
        if not isinstance(story.replica.role, Candidacy):
            story.passes(story.replica.next_tick() - story.now)


def test_a_candidate_without_a_majority_asks_again_after_an_interval() -> None:
    membership = Membership(0, 0, frozenset({"A", "B"}), VOTERS, VOTERS)
    story = Story(membership)
    away = {name: story.voters.pop(name) for name in ("v2", "v3")}
    story.passes(1.0 + TIMING.answers_within)
    story.voters |= away
    story.passes(TIMING.renew_every - 0.01)
    assert story.replica.reign is None
    story.passes(0.02)
    assert story.replica.reign is not None


# --- appends count as a whole ---


def test_a_commit_never_ends_within_an_append() -> None:
    story = leader(in_sync=("A", "B"))
    story.meets("B")
    story.does(story.replica.append((b"one", b"two", b"three"), (b"four",)))
    for position in (1, 2):
        story.hears("B", position)
        assert story.replica.committed == 0
    story.hears("B", 3)
    assert story.replica.committed == 3
    story.hears("B", 4)
    assert story.replica.committed == 4


def test_a_standby_announces_whole_appends_only() -> None:
    membership = Membership(1, 0, frozenset({"A", "B"}), VOTERS, VOTERS)
    story = Story(membership)
    one, two = LogEntry(1, b"one", last=False), LogEntry(1, b"two")
    story.does(story.replica.receive(0.0, AppendEntries("B", 1, 0, 0, (one,), 2, membership)))
    assert story.replica.committed == 0
    story.does(story.replica.receive(0.0, AppendEntries("B", 1, 1, 1, (two,), 2, membership)))
    assert story.replica.committed == 2


def test_a_new_leader_removes_an_append_whose_end_it_never_got() -> None:
    entries = [LogEntry(0, b"one"), LogEntry(0, b"two", last=False), LogEntry(0, b"three", last=False)]
    story = leader(in_sync=("A", "B"), inherited=entries)
    assert WriteEntries(1, ()) in story.outputs
    assert len(story.replica.log) == 1
    story.meets("B")
    story.hears("B", 1)
    assert story.replica.committed == 1


def test_answers_of_voters_that_were_not_asked_change_nothing() -> None:
    membership = Membership(1, 0, frozenset({"A"}), VOTERS, VOTERS)
    fake = Membership(900, 0, frozenset({"X"}), frozenset({"stranger"}), frozenset({"stranger"}))
    story = Story(membership)
    for message in (
        EpochRefused("stranger", 900),
        CanvassAnswer("stranger", 0.0, 900, fake),
        VoteGranted("stranger", 1, fake),
    ):
        assert story.replica.receive(story.now, message) == []
    story.passes(2.0)
    assert story.replica.reign is not None
    for message in (EpochRefused("stranger", 900), CanvassAnswer("stranger", 0.0, 900, fake)):
        assert story.replica.receive(story.now, message) == []
    assert (story.replica.record.promised, story.replica.reign is not None) == (2, True)


def test_an_epoch_that_is_impossibly_far_ahead_is_ignored() -> None:
    story = Story(Membership(1, 0, frozenset({"A"}), VOTERS, VOTERS))
    story.passes(2.0)
    assert story.replica.receive(story.now, EpochRefused("v1", 2**53)) == []
    assert story.replica.reign is not None
    assert story.replica.receive(story.now, EpochRefused("v1", 7)) != []
    assert story.replica.reign is None
