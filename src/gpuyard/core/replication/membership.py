"""Who must hold an event before it counts, and who votes: one value that a quorum of voters has accepted."""

from collections.abc import Collection

from gpuyard.core.domain.values import Value

FEWEST_VOTERS = 3
"""With two voters the loss of one stops the cluster; with one, its host decides alone. Add witnesses instead."""


class Membership(Value, frozen=True):
    """One version of the membership. The versions of one epoch are all proposed by its leader."""

    epoch: int
    version: int
    in_sync: frozenset[str]
    """The replicas that hold every committed entry. An entry is committed when all of them hold it; one of them is
    needed to lead."""
    voters: frozenset[str]
    previous_voters: frozenset[str]
    """Differs from `voters` while a change of voters is under way. Every quorum then has a majority of both."""

    @property
    def order(self) -> tuple[int, int]:
        """Newer versions are larger."""
        return (self.epoch, self.version)

    @property
    def everyone(self) -> frozenset[str]:
        """All voters, also those that are being replaced."""
        return self.voters | self.previous_voters

    def quorum(self, among: Collection[str]) -> bool:
        """Whether these voters can decide: a majority of the voters, and of the previous ones."""
        return _majority(self.voters, among) and (
            self.voters == self.previous_voters or _majority(self.previous_voters, among)
        )


def first_membership(replicas: Collection[str], voters: Collection[str]) -> Membership:
    """The membership that a new cluster starts with on all replicas and voters. All journals are empty or equal."""
    if len(set(voters)) < FEWEST_VOTERS:
        raise ValueError(f"{len(set(voters))} voters are too few; add witnesses until there are {FEWEST_VOTERS}.")
    return Membership(0, 0, frozenset(replicas), frozenset(voters), frozenset(voters))


def founding_membership(replica: str, voter: str) -> Membership:
    """The membership that a cluster begins with while it has one scheduler: its replica, which may have a journal, and the
    voter beside it.

    Only that voter holds it before the first start; no other voter and no other replica knows a membership then. Further
    voters count when the leader has added them (`Replica.change_voters`), a standby when the leader has included it.
    """
    return Membership(0, 0, frozenset({replica}), frozenset({voter}), frozenset({voter}))


def _majority(of: frozenset[str], among: Collection[str]) -> bool:
    return 2 * sum(voter in among for voter in of) > len(of)
