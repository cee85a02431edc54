"""Messages of the replication as bytes."""

import msgspec
import pytest

from gpuyard.core.replication.encoding import MOST_BYTES, WrongMessage, decode_for_replica, decode_for_voter, encode
from gpuyard.core.replication.log import LogEntry
from gpuyard.core.replication.membership import Membership, first_membership
from gpuyard.core.replication.messages import (
    Accept,
    AppendEntries,
    Canvass,
    CanvassAnswer,
    EntriesHeld,
    EntriesMismatch,
    EpochRefused,
    LeaderCommand,
    LeaseRenewed,
    MembershipAccepted,
    OutdatedLeader,
    ReleaseLease,
    RenewLease,
    RequestVote,
    TakeOver,
    ToReplica,
    ToVoter,
    VoteGranted,
)

FIRST = first_membership(("A", "B"), ("v1", "v2", "v3"))
TO_VOTERS: list[ToVoter] = [
    Canvass("A"),
    RequestVote("A", 3),
    Accept("A", FIRST),
    RenewLease("A", 3, 1.5),
    ReleaseLease("A", 3),
    LeaderCommand("A", 3, b"launch"),
]
TO_REPLICAS: list[ToReplica] = [
    CanvassAnswer("v1", 0.0, 2, FIRST),
    VoteGranted("v1", 3, FIRST),
    EpochRefused("v1", 4),
    MembershipAccepted("v1", (3, 0)),
    LeaseRenewed("v1", 3, 1.5),
    AppendEntries("A", 3, 7, 2, (LogEntry(3, b"\x00\xff"),), 7, FIRST),
    EntriesHeld("B", 3, 8),
    EntriesMismatch("B", 3, 5),
    OutdatedLeader("B", 9),
    TakeOver("A", 3),
]


@pytest.mark.parametrize("message", TO_VOTERS, ids=lambda it: type(it).__name__)
def test_a_message_to_a_voter_is_read_as_it_was_sent(message: ToVoter) -> None:
    assert decode_for_voter(encode(message)) == message
    with pytest.raises(WrongMessage, match="not expected here"):
        decode_for_replica(encode(message))


@pytest.mark.parametrize("message", TO_REPLICAS, ids=lambda it: type(it).__name__)
def test_a_message_to_a_replica_is_read_as_it_was_sent(message: ToReplica) -> None:
    assert decode_for_replica(encode(message)) == message
    with pytest.raises(WrongMessage, match="not expected here"):
        decode_for_voter(encode(message))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode("Canvass"),
        msgspec.msgpack.encode(("Canvass", {"replica": 7})),
        msgspec.msgpack.encode(("Nothing", {})),
        bytes(MOST_BYTES + 1),
        encode(Canvass("A")) + b"\x00",
        encode(RenewLease("A", 1, float("inf"))),
        encode(RequestVote("A", -1)),
    ],
)
def test_what_is_no_message_is_refused(content: bytes) -> None:
    with pytest.raises(WrongMessage):
        decode_for_voter(content)


@pytest.mark.parametrize(
    "message",
    [
        EpochRefused("v1", 2**53 + 1),
        OutdatedLeader("B", 2**63 - 2),
        CanvassAnswer("v1", 0.0, 2, Membership(2**60, 0, *[frozenset({"v1"})] * 3)),
        MembershipAccepted("v1", (2**64 - 1, 0)),
        CanvassAnswer("v1", -1.0, 2, FIRST),
        CanvassAnswer("v1", float("nan"), 2, FIRST),
        CanvassAnswer("v1", 1e9, 2, FIRST),
    ],
)
def test_numbers_that_are_impossible_or_that_no_file_has_room_for_are_refused(message: ToReplica) -> None:
    with pytest.raises(WrongMessage, match="impossible number"):
        decode_for_replica(encode(message))
