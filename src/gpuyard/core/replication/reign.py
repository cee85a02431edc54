"""What a leader knows in its epoch: the membership, the leases it was given, and what each replica holds."""

from collections.abc import Callable, Collection

from msgspec import structs

from gpuyard.core.replication.membership import Membership
from gpuyard.core.replication.timing import Timing

NEVER = float("-inf")
NOT_DUE = float("inf")


class Reign:
    """One epoch of one leader. It begins with a proposed membership, and nothing counts until that is decided."""

    def __init__(self, leader: str, epoch: int, foundation: Membership, length: int, timing: Timing) -> None:
        self.leader = leader
        self.epoch = epoch
        self.inherited = length
        """The length of the log when the reign began. Predecessors may have committed all of it."""
        self.decided: Membership | None = None
        """The newest membership that a quorum has accepted; None: not yet one of this epoch."""
        self.proposed: Membership | None = structs.replace(foundation, epoch=epoch, version=0)
        """The membership that voters are asked to accept; None: no change is under way."""
        self.proposed_at = NEVER
        self.accepted: set[str] = set()
        self.holds: dict[str, int] = {}
        """The position up to which each replica has confirmed, in this epoch, to hold the log of this leader."""
        self.sent_to_standby = length
        """Entries up to here have been sent; the next message continues there."""
        self.began_at = NEVER
        """When the first membership was decided; before that, when it was proposed."""
        self.heard_at: dict[str, float] = {}
        """When each replica was heard last; the predecessor perhaps in its own epoch."""
        self.renew_at = NEVER
        self.tell_at = NOT_DUE
        """When the standby is told what was committed, unless a message with entries or a sign of life tells it before."""
        self._must_hold = foundation.in_sync
        self._timing = timing
        self._confirmed: dict[str, float] = {}
        self._confirmed_at = NEVER

    @property
    def current(self) -> Membership:
        """The membership that leases are counted by."""
        membership = self.decided or self.proposed
        assert membership is not None, "a reign has a decided or a proposed membership"
        return membership

    @property
    def newest(self) -> Membership:
        """The membership that voters should have."""
        return self.proposed or self.current

    @property
    def everyone(self) -> frozenset[str]:
        """All voters of the decided and the proposed membership."""
        return self.current.everyone | self.newest.everyone

    # --- leases ---

    def confirm(self, voter: str, sent_at: float) -> None:
        """A voter has granted or renewed the lease, in answer to a message that was sent at `sent_at`."""
        if sent_at > self._confirmed.get(voter, NEVER):
            self._confirmed[voter] = sent_at
            self._count_leases()

    def lease_ends(self) -> float:
        """Until when no other replica can have been elected, by the clock of this leader."""
        return self._confirmed_at + self._timing.lead

    def answering(self, now: float) -> frozenset[str]:
        """The voters whose leases are running."""
        since = now - self._timing.lead
        return frozenset(voter for voter in self.everyone if self._confirmed.get(voter, NEVER) > since)

    def silent(self, since: float) -> Collection[str]:
        """The voters that have confirmed no message sent after this instant."""
        return [voter for voter in sorted(self.everyone) if self._confirmed.get(voter, NEVER) < since]

    def _count_leases(self) -> None:
        """The latest instant such that a quorum has confirmed messages that were sent at or after it."""
        confirmed, membership = self._confirmed, self.current
        for instant in sorted(set(confirmed.values()), reverse=True):
            if membership.quorum({voter for voter, sent_at in confirmed.items() if sent_at >= instant}):
                self._confirmed_at = instant
                return
        self._confirmed_at = NEVER

    # --- membership ---

    def propose(self, now: float, change: Callable[[Membership], Membership]) -> Membership:
        """Start a change of the decided membership. It replaces a proposal that was not decided."""
        assert self.decided is not None, "the first membership of an epoch is decided before it is changed"
        version = self.newest.version + 1
        proposed = structs.replace(change(self.decided), version=version)
        self._must_hold = self.must_hold() | proposed.in_sync
        self.proposed, self.proposed_at, self.accepted = proposed, now, set()
        return proposed

    def accept(self, voter: str, order: tuple[int, int]) -> bool:
        """A voter has accepted a membership. Return whether the proposed one is decided by that."""
        if self.proposed is None or order != self.proposed.order:
            return False
        self.accepted.add(voter)
        if not self.proposed.quorum(self.accepted):
            return False
        self.decided, self.proposed = self.proposed, None
        self._must_hold = self.decided.in_sync
        self._count_leases()
        return True

    # --- entries ---

    def must_hold(self) -> frozenset[str]:
        """The replicas that must hold an entry before it is committed.

        While a change is proposed it may already be decided without this leader knowing it, or never be. So the
        replicas of both memberships are needed: one that is to be included from the proposal on, one that is to be
        left out until the decision. If a standby that lost its disk is replaced, this is the old one, the leader and the
        new one: nothing is committed until the decision, which needs voters and no replica.
        """
        return self._must_hold

    def meet(self, now: float, replica: str, length: int) -> None:
        """Another replica is the standby. What it holds is asked from the end of the log (`length`) backwards."""
        self.holds.pop(replica, None)
        self.heard_at[replica] = now
        self.sent_to_standby = length

    def hear(self, replica: str, at: float) -> None:
        """A replica was heard."""
        self.heard_at[replica] = max(at, self.heard_at.get(replica, NEVER))

    def silence(self, now: float, replica: str) -> float:
        """For how long a replica has not been heard. One that is not the standby any more is not heard at all."""
        return now - self.heard_at.get(replica, self.began_at)

    def held_by_all(self) -> int:
        """The position up to which all replicas that must hold the entries have confirmed it."""
        return min(self.holds.get(replica, 0) for replica in self.must_hold())

    def can_include(self, replica: str, committed: int) -> bool:
        """Whether a replica has confirmed to hold everything that may have been committed, by this leader or before it."""
        return replica in self.holds and self.holds[replica] >= max(committed, self.inherited)
