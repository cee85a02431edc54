"""How a replica becomes leader: it canvasses the voters, then asks for their votes in a new epoch.

The first round changes nothing at the voters, so a replica that cannot win does not disturb a leader. In the second
round a vote is a promise: the voter accepts nothing of lower epochs afterwards. Each vote carries the newest membership
that the voter has accepted; from these the candidate learns which membership is in force. Its own memory does not count:
it may have been left out of the in-sync set without hearing of it.
"""

from dataclasses import dataclass, field
from enum import Enum

from gpuyard.core.replication.membership import Membership


class Round(Enum):
    """The two rounds of a candidacy."""

    CANVASS = "canvass"
    VOTE = "vote"


@dataclass(slots=True)
class Candidacy:
    """The questions and answers of one round."""

    round: Round
    epoch: int
    """The epoch that is asked for; in the canvass round the one that would be."""
    asked_at: float
    gives_up_at: float
    asked: frozenset[str]
    answers: dict[str, Membership] = field(default_factory=dict)
    """What the voters that support this candidate have accepted."""
    free_at: dict[str, float] = field(default_factory=dict)
    """When the leases end that keep the other voters from supporting it, unless they are renewed."""

    def foundation(self, replica: str) -> Membership | None:
        """The membership in force, if these answers are enough to know it and it allows this replica to lead.

        A membership is taken if a quorum of its own voters has answered and none of them has accepted a newer one. No
        newer one can then have been decided, because its decision needs a majority of these voters, too; and in the
        vote round none can be decided later, because they have promised.
        """
        for membership in sorted(set(self.answers.values()), key=_order, reverse=True):
            support = {voter for voter, known in self.answers.items() if known.order <= membership.order}
            if membership.quorum(support) and replica in membership.in_sync:
                return membership
        return None

    def asks_again_at(self, membership: Membership) -> float | None:
        """The instant at which the leases that run leave a quorum free; None: no lease is in the way, or it is not known."""
        free = set(self.answers)
        if membership.quorum(free):
            return None
        for voter, instant in sorted(self.free_at.items(), key=lambda it: it[1]):
            free.add(voter)
            if membership.quorum(free):
                return instant
        return None


def _order(membership: Membership) -> tuple[int, int]:
    return membership.order
