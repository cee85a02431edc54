"""The messages between replicas and voters. Any of them may be lost, doubled, late or out of order.

A voter is addressed by the name of its memory (node and number of the memory): an agent that has lost its memory is
another voter, and messages to the old one are dropped.
"""

from gpuyard.core.domain.values import Value
from gpuyard.core.replication.log import LogEntry
from gpuyard.core.replication.membership import Membership

# --- from a replica to a voter ---


class Canvass(Value, frozen=True):
    """Would you vote for this replica? Changes nothing at the voter."""

    replica: str


class RequestVote(Value, frozen=True):
    """Grant this epoch, and with it a lease, to this replica."""

    replica: str
    epoch: int


class Accept(Value, frozen=True):
    """Accept this membership, proposed by the leader of its epoch."""

    replica: str
    membership: Membership


class RenewLease(Value, frozen=True):
    """Extend the lease. `sent_at` is the clock of the leader; the answer repeats it."""

    replica: str
    epoch: int
    sent_at: float


class ReleaseLease(Value, frozen=True):
    """The replica does not act in this epoch any more; another one may be elected at once."""

    replica: str
    epoch: int


class LeaderCommand(Value, frozen=True):
    """An instruction to the agent (launch, stop). It is followed only if no higher epoch is known."""

    replica: str
    epoch: int
    body: bytes


# --- from a voter to a replica ---


class CanvassAnswer(Value, frozen=True):
    """When no lease prevents a vote any more, and what the voter has stored."""

    voter: str
    free_in: float
    """Seconds until the running lease ends if it is not renewed, by the clock of the voter; 0: no other replica has one."""
    promised: int
    accepted: Membership


class VoteGranted(Value, frozen=True):
    """The vote for this epoch. `accepted` is the newest membership that the voter had accepted."""

    voter: str
    epoch: int
    accepted: Membership


class EpochRefused(Value, frozen=True):
    """The request belongs to an epoch below `promised`, or another lease is running."""

    voter: str
    promised: int


class MembershipAccepted(Value, frozen=True):
    """The membership of this order is stored."""

    voter: str
    order: tuple[int, int]


class LeaseRenewed(Value, frozen=True):
    """The lease is extended; `sent_at` is copied from the request."""

    voter: str
    epoch: int
    sent_at: float


# --- between replicas ---


class AppendEntries(Value, frozen=True):
    """The entries after position `start`. The entry at `start` has the epoch `before`; 0 if there is none."""

    replica: str
    epoch: int
    start: int
    before: int
    entries: tuple[LogEntry, ...]
    committed: int
    membership: Membership


class EntriesHeld(Value, frozen=True):
    """The log of this replica is durable and equal to that of the leader up to `position`.

    A leader also sends this to itself, after the write that it is about.
    """

    replica: str
    epoch: int
    position: int


class EntriesMismatch(Value, frozen=True):
    """The log of this replica differs at or before `start`; send from `try_from` on."""

    replica: str
    epoch: int
    try_from: int


class OutdatedLeader(Value, frozen=True):
    """The other replica has promised a higher epoch and accepts nothing from this leader."""

    replica: str
    promised: int


class TakeOver(Value, frozen=True):
    """Planned hand-over: the leader of this epoch has stopped and released its leases."""

    replica: str
    epoch: int


ToVoter = Canvass | RequestVote | Accept | RenewLease | ReleaseLease | LeaderCommand
ToReplica = (
    CanvassAnswer
    | VoteGranted
    | EpochRefused
    | MembershipAccepted
    | LeaseRenewed
    | AppendEntries
    | EntriesHeld
    | EntriesMismatch
    | OutdatedLeader
    | TakeOver
)
Message = ToVoter | ToReplica
