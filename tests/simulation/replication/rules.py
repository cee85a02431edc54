"""The rules of the protocol, each with a way to switch it off. Without a rule the model must be able to fail.

Rules that the protocol code keeps are replaced by patches of that code, here and not there. Rules that its driver keeps
(`process.py`, `node.py`) are read from `World.without`.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from msgspec import structs

from gpuyard.core.replication.candidacy import Candidacy
from gpuyard.core.replication.log import ReplicatedLog
from gpuyard.core.replication.membership import Membership, _majority
from gpuyard.core.replication.messages import (
    AppendEntries,
    CanvassAnswer,
    EntriesHeld,
    LeaseRenewed,
    ReleaseLease,
    ToReplica,
    VoteGranted,
)
from gpuyard.core.replication.outputs import LeadershipBegan, ReplicaRecord
from gpuyard.core.replication.reign import Reign
from gpuyard.core.replication.replica import Replica
from gpuyard.core.replication.voter import Voter

Patch = tuple[type, str, Callable[..., Any]]


class ProtocolRule(NamedTuple):
    """A rule in one sentence, and the patches that switch it off; none: the driver does it."""

    sentence: str
    patches: tuple[Patch, ...] = ()


# --- the code without a rule ---


def _foundation_ignoring_sync(self: Candidacy, replica: str) -> Membership | None:  # noqa: ARG001
    for membership in sorted(set(self.answers.values()), key=lambda it: it.order, reverse=True):
        support = {voter for voter, known in self.answers.items() if known.order <= membership.order}
        if membership.quorum(support):
            return membership
    return None


_receive = Replica.receive


def _receive_from_memory(self: Replica, now: float, message: ToReplica) -> list[Any]:
    """Whatever membership a voter reports, take the one that this replica remembers."""
    if isinstance(message, CanvassAnswer | VoteGranted):
        message = structs.replace(message, accepted=self.record.membership)
    return list(_receive(self, now, message))


_begin_reign = Replica._begin_reign


def _begin_without_decision(self: Replica, now: float, candidacy: Candidacy, foundation: Membership) -> list[Any]:
    outputs: list[Any] = _begin_reign(self, now, candidacy, foundation)
    reign = self.role
    assert isinstance(reign, Reign)
    reign.decided, reign.proposed = reign.proposed, None
    return [*outputs, LeadershipBegan(reign.epoch, reign.inherited), *self._replicate(reign), self._held_here(reign)]


def _any_position(self: ReplicatedLog, position: int) -> int:  # noqa: ARG001
    return position


def _begin_with_parts(self: Replica, now: float, candidacy: Candidacy, foundation: Membership) -> list[Any]:
    with patch.object(ReplicatedLog, "whole", _any_position):
        return list(_begin_reign(self, now, candidacy, foundation))


def _hold_without_consent(self: Reign) -> frozenset[str]:
    """Leave a standby out as soon as it is silent."""
    late = any(self.silence(self.renew_at, other) > 0.8 for other in self._must_hold - {self.leader})
    return frozenset({self.leader}) if late else self._must_hold


def _hold_as_proposed(self: Reign) -> frozenset[str]:
    return self.newest.in_sync


_on_held = Replica._on_held


def _held_by_the_present_standby(self: Replica, now: float, answer: EntriesHeld) -> list[Any]:
    if answer.replica != self.name:
        answer = structs.replace(answer, replica=self.peer)
    return list(_on_held(self, now, answer))


def _resign_in_word_only(self: Replica, now: float) -> list[Any]:  # noqa: ARG001
    reign = self.role
    return list(self._tell(reign.everyone, ReleaseLease(self.name, reign.epoch))) if isinstance(reign, Reign) else []


def _hold_as_decided(self: Reign) -> frozenset[str]:
    return self.decided.in_sync if self.decided is not None else self._must_hold


def _include_at_once(self: Reign, replica: str, committed: int) -> bool:
    return self.holds.get(replica, -1) >= committed


def _include_blindly(self: Reign, replica: str, committed: int) -> bool:  # noqa: ARG001
    return replica in self.holds


_remember = Replica._remember


def _remember_no_candidacy(self: Replica, promised: int = 0, membership: Membership | None = None) -> list[Any]:
    if membership is None:  # a candidate asks for votes
        self._highest_epoch = max(self._highest_epoch, promised)
        return []
    return _remember(self, promised, membership)


def _no_promise_at_all(self: Replica, promised: int = 0, membership: Membership | None = None) -> list[Any]:
    outputs: list[Any] = _remember(self, promised, membership)
    self.record = ReplicaRecord(0, self.record.membership)
    return outputs


def _nothing_same(self: ReplicatedLog, start: int, entries: Collection[object]) -> int:  # noqa: ARG001
    return 0


def _whole_log(self: Replica, message: AppendEntries) -> int:  # noqa: ARG001
    return len(self.log)


def _always_matches(self: ReplicatedLog, position: int, epoch: int) -> bool:  # noqa: ARG001
    return position <= len(self)


def _quorum_of_new(self: Membership, among: Collection[str]) -> bool:
    return _majority(self.voters, among)


def _renewed_from_arrival(self: Replica, now: float, answer: LeaseRenewed) -> list[Any]:
    reign = self.role
    if not isinstance(reign, Reign) or reign.epoch != answer.epoch:
        return []
    reign.confirm(answer.voter, now)
    return list(self._advance(now, reign))


def _always(self: object, *_: object) -> bool:  # noqa: ARG001
    return True


RULES: dict[str, ProtocolRule] = {
    "voter_sync": ProtocolRule("A voter writes its promise and the membership durably before it answers."),
    "journal_sync": ProtocolRule("A replica writes entries and promises durably before it confirms them."),
    "monotonic": ProtocolRule("Leases are measured on monotonic clocks, not on the wall clock."),
    "restart_wait": ProtocolRule("A voter that restarts waits for a lease before it votes for another replica."),
    "new_memory": ProtocolRule("A voter that has lost its memory has a new name; it counts when it was added."),
    "voter_lease": ProtocolRule("A voter grants no other replica while a lease runs.", ((Voter, "is_free", _always),)),
    "send_time": ProtocolRule(
        "A leader counts a lease from when its message was sent, not from when the answer arrived.",
        ((Replica, "_on_renewed", _renewed_from_arrival),),
    ),
    "obeys": ProtocolRule("An agent follows no epoch below the highest it has granted.", ((Voter, "obeys", _always),)),
    "in_sync": ProtocolRule(
        "Only a replica of the in-sync set can lead.", ((Candidacy, "foundation", _foundation_ignoring_sync),)
    ),
    "learn_membership": ProtocolRule(
        "A candidate learns the membership from a quorum of voters, not from its memory.",
        ((Replica, "receive", _receive_from_memory),),
    ),
    "decide_first": ProtocolRule(
        "A leader commits nothing before a quorum has accepted its first membership.",
        ((Replica, "_begin_reign", _begin_without_decision),),
    ),
    "consent": ProtocolRule(
        "A standby is left out when a quorum has accepted it, not when it is silent.",
        ((Reign, "must_hold", _hold_without_consent),),
    ),
    "leave_decided": ProtocolRule(
        "A standby that is left out or replaced must hold entries until a quorum has accepted that.",
        ((Reign, "must_hold", _hold_as_proposed),),
    ),
    "new_replica": ProtocolRule("A scheduler that has lost its disk has a new name; it counts when it was included."),
    "own_confirmation": ProtocolRule(
        "What one standby has confirmed says nothing about the one that has replaced it.",
        ((Replica, "_on_held", _held_by_the_present_standby),),
    ),
    "copy_committed": ProtocolRule("A copy for a new standby has committed entries only."),
    "early_copy": ProtocolRule("A leader gives a copy before it is ready."),
    "resign_first": ProtocolRule(
        "A leader that resigns does not act any more when it gives the leases back.",
        ((Replica, "resign", _resign_in_word_only),),
    ),
    "include_first": ProtocolRule(
        "A standby that is to be included must hold entries from the proposal on.",
        ((Reign, "must_hold", _hold_as_decided),),
    ),
    "include_complete": ProtocolRule(
        "A standby is included when it holds everything that may have been committed.",
        ((Reign, "can_include", _include_blindly),),
    ),
    "include_inherited": ProtocolRule(
        "The entries that a leader inherits count as committed for that.",
        ((Reign, "can_include", _include_at_once),),
    ),
    "candidate_promise": ProtocolRule(
        "A replica that asks for votes refuses entries of lower epochs from then on, and never asks for that epoch again.",
        ((Replica, "_remember", _remember_no_candidacy),),
    ),
    "replica_promise": ProtocolRule(
        "A replica refuses entries of epochs below the highest it has seen.",
        ((Replica, "_remember", _no_promise_at_all),),
    ),
    "conflict_only": ProtocolRule(
        "A standby removes entries only where they differ from those of the leader.",
        ((ReplicatedLog, "first_conflict", _nothing_same),),
    ),
    "confirm_compared": ProtocolRule(
        "A standby confirms what it has compared, not the length of its log.", ((Replica, "_comparable", _whole_log),)
    ),
    "compare_before": ProtocolRule(
        "A standby takes entries only if the entry before them is the same.",
        ((ReplicatedLog, "matches", _always_matches),),
    ),
    "whole_commits": ProtocolRule("No commit ends within an append.", ((ReplicatedLog, "whole", _any_position),)),
    "whole_reigns": ProtocolRule(
        "A new leader removes an append whose end it never got.", ((Replica, "_begin_reign", _begin_with_parts),)
    ),
    "joint": ProtocolRule(
        "A change of the voters needs a majority of the old and of the new ones.",
        ((Membership, "quorum", _quorum_of_new),),
    ),
}


@contextmanager
def switched_off(rules: Collection[str]) -> Iterator[None]:
    """The code of the protocol without these rules."""
    with ExitStack() as stack:
        for name in rules:
            for owner, attribute, replacement in RULES[name].patches:
                stack.enter_context(patch.object(owner, attribute, replacement))
        yield
