"""What a voter or a replica asks its driver to do.

The driver performs outputs in order, across calls. Outputs after a write (`SaveVoter`, `SaveReplica`, `WriteEntries`)
are performed when that write is durable and not earlier; several writes may share one sync. After a crash the process
starts from what its disk holds. A message that a replica sends to itself is delivered back to it by the driver.

What is committed, and who leads, is known to a driver from the outputs it has performed. The fields of a replica may be
ahead of them.
"""

from gpuyard.core.domain.values import Value
from gpuyard.core.replication.log import LogEntry
from gpuyard.core.replication.membership import Membership
from gpuyard.core.replication.messages import Message


class VoterRecord(Value, frozen=True):
    """What a voter must not forget."""

    promised: int
    """The highest epoch that it has granted, accepted or obeyed."""
    holder: str
    """The replica of that epoch; empty: none."""
    accepted: Membership


class ReplicaRecord(Value, frozen=True):
    """What a replica must not forget, beside its log."""

    promised: int
    """It accepts no entries of lower epochs."""
    membership: Membership
    """The newest membership it has heard of. It tells whom to ask, and nothing else."""


class SendMessage(Value, frozen=True):
    """Send a message to a voter or replica."""

    to: str
    message: Message


class SaveVoter(Value, frozen=True):
    """Write the record of a voter."""

    record: VoterRecord


class SaveReplica(Value, frozen=True):
    """Write the record of a replica."""

    record: ReplicaRecord


class WriteEntries(Value, frozen=True):
    """Remove all entries after position `start` from the journal and append these, in one transaction."""

    start: int
    entries: tuple[LogEntry, ...]


class FollowCommand(Value, frozen=True):
    """Carry out an instruction of the leader of this epoch."""

    epoch: int
    body: bytes


class LeadershipBegan(Value, frozen=True):
    """This replica leads. It may answer from position `ready_at` on, while `Replica.may_act` is true."""

    epoch: int
    ready_at: int


class LeadershipEnded(Value, frozen=True):
    """This replica does not lead any more. Discard what is computed beyond the committed entries."""

    epoch: int


class EntriesCommitted(Value, frozen=True):
    """The entries up to this position are final. Only now may anyone learn of them."""

    position: int


class StandbyTooFarBehind(Value, frozen=True):
    """The standby needs entries after `position`; this leader has retired those up to `oldest`.

    It can only follow after a copy of the data folder. It is not in the in-sync set, which holds everything.
    """

    position: int
    oldest: int


class JournalsDiffer(Value, frozen=True):
    """The leader has another entry at `position` than this replica, where it is committed. Nothing is taken over.

    The journals belong to different clusters, or one of them was restored from an old copy.
    """

    position: int


VoterOutput = SendMessage | SaveVoter | FollowCommand
ReplicaOutput = (
    SendMessage
    | SaveReplica
    | WriteEntries
    | LeadershipBegan
    | LeadershipEnded
    | EntriesCommitted
    | StandbyTooFarBehind
    | JournalsDiffer
)
