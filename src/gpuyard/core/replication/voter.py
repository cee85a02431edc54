"""A voter: the part of an agent, or of a witness process, that decides which replica may lead.

It keeps two promises on its disk. It grants an epoch to one replica only, and nothing to lower epochs afterwards; and it
remembers the newest membership it has accepted. One more promise is kept in memory: while a lease runs it grants no
epoch to another replica. After a restart it does not know whether one runs, so it waits for the length of a lease.

    RequestVote(epoch) ── epoch > promised, no foreign lease ──► save, VoteGranted    else EpochRefused
    RenewLease(epoch)  ── epoch = promised, same holder      ──► LeaseRenewed         else EpochRefused
    Accept(membership) ── epoch ≥ promised, not older        ──► save, accepted       else EpochRefused
    LeaderCommand      ── epoch ≥ promised                   ──► save, follow it      else EpochRefused
"""

from gpuyard.core.replication.messages import (
    Accept,
    Canvass,
    CanvassAnswer,
    EpochRefused,
    LeaderCommand,
    LeaseRenewed,
    MembershipAccepted,
    ReleaseLease,
    RenewLease,
    RequestVote,
    ToVoter,
    VoteGranted,
)
from gpuyard.core.replication.outputs import FollowCommand, SaveVoter, SendMessage, VoterOutput, VoterRecord
from gpuyard.core.replication.timing import Timing

NEVER = float("-inf")


class Voter:
    """Created from its record at every start of the process; `now` is always its own monotonic clock."""

    def __init__(self, name: str, timing: Timing, record: VoterRecord, now: float, *, restarted: bool = True) -> None:
        self.name = name
        self.record = record
        self._timing = timing
        self._lease_ends = now + timing.lease if restarted else NEVER

    def receive(self, now: float, message: ToVoter) -> list[VoterOutput]:
        """Answer a message."""
        match message:
            case RenewLease():
                return self._renew(now, message)
            case LeaderCommand():
                return self._command(message)
            case Accept():
                return self._accept(message)
            case Canvass():
                free_in = 0.0 if self.is_free(now, message.replica) else self._lease_ends - now
                record = self.record
                return [
                    SendMessage(message.replica, CanvassAnswer(self.name, free_in, record.promised, record.accepted))
                ]
            case RequestVote():
                return self._vote(now, message)
            case ReleaseLease():
                if self._is_holder(message.replica, message.epoch):
                    self._lease_ends = NEVER
                return []

    def is_free(self, now: float, replica: str) -> bool:
        """Whether no lease of another replica is running."""
        return self.record.holder == replica or now >= self._lease_ends

    def _vote(self, now: float, request: RequestVote) -> list[VoterOutput]:
        granted = SendMessage(request.replica, VoteGranted(self.name, request.epoch, self.record.accepted))
        if self._is_holder(request.replica, request.epoch):  # the request was repeated, perhaps the answer was lost
            self._extend_lease(now)
            return [granted]
        if request.epoch <= self.record.promised or not self.is_free(now, request.replica):
            return [self._refuse(request.replica)]
        self._extend_lease(now)
        return [self._promise(request.epoch, request.replica), granted]

    def _accept(self, request: Accept) -> list[VoterOutput]:
        proposed = request.membership
        if proposed.epoch < self.record.promised or proposed.order < self.record.accepted.order:
            return [self._refuse(request.replica)]
        self.record = VoterRecord(proposed.epoch, request.replica, proposed)
        return [
            SaveVoter(self.record),
            SendMessage(request.replica, MembershipAccepted(self.name, proposed.order)),
        ]

    def _renew(self, now: float, request: RenewLease) -> list[VoterOutput]:
        if self._is_holder(request.replica, request.epoch):
            self._extend_lease(now)
            return [SendMessage(request.replica, LeaseRenewed(self.name, request.epoch, request.sent_at))]
        if request.epoch < self.record.promised:
            return [self._refuse(request.replica)]
        return []  # a leader that was elected without this voter; it sends its membership next

    def _command(self, command: LeaderCommand) -> list[VoterOutput]:
        if not self.obeys(command.epoch):
            return [self._refuse(command.replica)]
        follow = FollowCommand(command.epoch, command.body)
        if command.epoch > self.record.promised:
            return [self._promise(command.epoch, command.replica), follow]
        return [follow]

    def obeys(self, epoch: int) -> bool:
        """Whether a leader of this epoch may still command this node."""
        return epoch >= self.record.promised

    def _promise(self, epoch: int, replica: str) -> SaveVoter:
        self.record = VoterRecord(epoch, replica, self.record.accepted)
        return SaveVoter(self.record)

    def _extend_lease(self, now: float) -> None:
        self._lease_ends = max(self._lease_ends, now + self._timing.lease)

    def _is_holder(self, replica: str, epoch: int) -> bool:
        return self.record.promised == epoch and self.record.holder == replica

    def _refuse(self, replica: str) -> SendMessage:
        return SendMessage(replica, EpochRefused(self.name, self.record.promised))
