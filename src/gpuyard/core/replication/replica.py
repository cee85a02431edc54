"""A replica: one of the two schedulers. It follows, is a candidate, or leads.

    scheduler A (leads)                         scheduler B (follows)
      journal  ──── AppendEntries(epoch, …) ────►  journal
               ◄─── EntriesHeld(epoch, n) ───────            an entry is committed when every replica of the
        │   ▲                                                in-sync set holds it durably; only then anyone learns of it
        │   │ VoteGranted, LeaseRenewed, MembershipAccepted
        ▼   │
      voters: the agents of the nodes, and witnesses         a majority decides who may lead, and who is in sync

**Two questions are separated.** Which entries exist is decided by the replicas: all of the in-sync set must hold an
entry. Who leads, and who is in the in-sync set, is decided by a majority of the voters. So two schedulers are enough for
the journal, and the voters store a few bytes.

**An epoch has one leader.** A voter grants an epoch once, a candidate needs a quorum, and never asks twice for the same
epoch, not even after a restart. Voters and replicas that have promised an epoch refuse lower ones.

**A leader has every committed entry**, because only a replica of the in-sync set can be elected, and the candidate learns
that set from a quorum of voters. The set becomes smaller only when a quorum has accepted it. From the moment a larger set
is proposed, the new replica must hold every entry that is committed.

**Two leaders never act at the same time.** A leader acts while a quorum has confirmed messages that it sent less than a
lease ago; a voter that has confirmed one grants no other replica for a lease after it arrived. This needs clocks that run
at nearly the right speed. It protects answers and launches; committed entries do not depend on it.

**An append counts as a whole.** It may be several messages, but no commit ends within it. So what a new leader has of an
append without its end was not committed, and it removes that.

**A standby that is away stops commits**, unless the operator allows single writing, or `Timing.single_after` is set.

**The name of a replica stands for its disk.** A scheduler that has lost its disk comes back with a copy of the leader's
journal and a new name. The old name stays in the in-sync set until the new one holds everything; then one change puts
the new one in its place. It needs no word of the operator, because there are two copies again. It is safe for the same
reasons as a smaller and a larger set are: until the decision the old replica must hold what is committed, from the
proposal on the new one must. The decision itself needs a quorum of the voters, and no replica.

The life of a leader:

    Following ── no leader for `patience` ──► Candidacy (canvass) ── quorum free ──► Candidacy (vote)
        ▲                                                                               │ quorum granted
        └── a higher epoch, hand-over, or no answers ── Leading ◄── membership accepted by a quorum ── Proposing

A leader whose leases are over stops. If it went on, it could keep the standby from leading without leading itself: where it
reaches the standby and not the voters, or where it reaches the voters and their answers are lost.

Time comes in with each call as the monotonic clock of this process. Answers are outputs; see `outputs.py` for the rules
that a driver follows.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from msgspec import structs

from gpuyard.core.domain.values import Value
from gpuyard.core.replication.candidacy import Candidacy, Round
from gpuyard.core.replication.log import EntryStore, LogEntry, ReplicatedLog, at_most
from gpuyard.core.replication.membership import FEWEST_VOTERS, Membership
from gpuyard.core.replication.messages import (
    Accept,
    AppendEntries,
    Canvass,
    CanvassAnswer,
    EntriesHeld,
    EntriesMismatch,
    EpochRefused,
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
from gpuyard.core.replication.outputs import (
    EntriesCommitted,
    JournalsDiffer,
    LeadershipBegan,
    LeadershipEnded,
    ReplicaOutput,
    ReplicaRecord,
    SaveReplica,
    SendMessage,
    StandbyTooFarBehind,
    WriteEntries,
)
from gpuyard.core.replication.reign import NOT_DUE, Reign
from gpuyard.core.replication.timing import Timing

LEAST_PAUSE = 0.05
"""Part of `Timing.answers_within` between two canvasses, whatever voters say about their leases."""
MOST_EPOCHS_AHEAD = 1_000_000
"""An epoch further ahead is a lie: each one is an election."""


class ReplicaStatus(Value, frozen=True):
    """What a replica knows, for people. Nothing is decided by it."""

    name: str
    peer: str
    """The replica at the other end; empty: not known yet."""
    role: Literal["follows", "candidate", "leads"]
    epoch: int
    """The highest epoch that it has promised; if it leads, this is its own."""
    length: int
    """How many entries its log has, committed or not."""
    committed: int
    in_sync: frozenset[str]
    """May be out of date if it does not lead; so may the voters."""
    voters: frozenset[str]
    previous_voters: frozenset[str]
    answering: frozenset[str]
    """The voters whose leases are running; empty if it does not lead."""
    standby_held: int | None
    """The position up to which the peer has confirmed to hold the log; None: not leading, or it has confirmed nothing."""
    standby_silent_seconds: float | None
    """Since when the peer was not heard; None: not leading, or never heard."""
    is_proposing: bool
    """Whether a change of the membership waits for the voters."""
    lease_left: float
    """For how many seconds it may act; 0 if it does not lead."""


class Following:
    """The role of a replica that neither leads nor asks for votes."""


class Replica:
    """Created from its record and journal at every start of the process."""

    def __init__(
        self,
        name: str,
        peer: str,
        timing: Timing,
        record: ReplicaRecord,
        entries: Iterable[LogEntry],
        now: float,
        *,
        patience: float,
        start: int = 0,
        store: EntryStore | None = None,
    ) -> None:
        """`peer`: the other replica; empty: not known yet (see `meet`). `patience`: seconds without a leader before it
        stands for election; different for the two replicas.

        `entries` follow the position `start`. Those before it are in the `store` or retired, and they are committed: they
        were applied, or a copy of the leader's journal has brought them.
        """
        self.name = name
        self.peer = peer
        self.log = ReplicatedLog(entries, start, store)
        self.committed = start
        self.record = record
        self.role: Following | Candidacy | Reign = Following()
        self._timing = timing
        self._patience = patience
        self._highest_epoch = max(record.promised, record.membership.epoch)
        self._stands_at = now + patience
        self._wanted_voters: frozenset[str] | None = None
        self._last_leader: tuple[str, float] | None = None
        """The replica that was last followed, and when it was heard."""

    # --- what a driver asks ---

    @property
    def reign(self) -> Reign | None:
        """The reign, if this replica leads: a quorum has accepted its first membership."""
        return self.role if isinstance(self.role, Reign) and self.role.decided else None

    def may_act(self, now: float) -> bool:
        """Whether this replica may answer, commit and command nodes at this instant. Ask before each of them."""
        reign = self.reign
        return reign is not None and now < reign.lease_ends()

    def is_ready(self, now: float) -> bool:
        """Whether, in addition, everything that predecessors may have committed is committed here."""
        reign = self.reign
        return reign is not None and self.committed >= reign.inherited and self.may_act(now)

    def why_not_single(self) -> str:
        """Why `allow_single` would do nothing; empty: it would leave out the standby."""
        reign = self.reign
        if reign is None:
            return "This scheduler does not lead. Ask the one that leads."
        if reign.newest.in_sync != {self.name}:
            return ""
        if reign.proposed is None:
            return "This scheduler already writes alone."
        return "This is already under way: a majority of the voters has to accept it."

    def status(self, now: float) -> ReplicaStatus:
        """Return what this replica knows, for people."""
        reign = self.reign
        membership = self.record.membership if reign is None else reign.current
        heard_at = None if reign is None else reign.heard_at.get(self.peer)
        role: Literal["follows", "candidate", "leads"] = "follows" if isinstance(self.role, Following) else "candidate"
        return ReplicaStatus(
            name=self.name,
            peer=self.peer,
            role=role if reign is None else "leads",
            epoch=self.record.promised,
            length=len(self.log),
            committed=self.committed,
            in_sync=membership.in_sync,
            voters=membership.voters,
            previous_voters=membership.previous_voters,
            answering=frozenset() if reign is None else reign.answering(now),
            standby_held=None if reign is None else reign.holds.get(self.peer),
            standby_silent_seconds=None if heard_at is None else now - heard_at,
            is_proposing=reign is not None and reign.proposed is not None,
            lease_left=0.0 if reign is None else max(0.0, reign.lease_ends() - now),
        )

    def next_tick(self) -> float:
        """The instant at which `tick` has work although no message came."""
        match self.role:
            case Candidacy():
                return self.role.gives_up_at
            case Reign():
                return min(self.role.renew_at, self.role.tell_at)
            case _:
                return self._stands_at

    # --- what a driver tells ---

    def tick(self, now: float) -> list[ReplicaOutput]:
        """Do what is due at this instant."""
        if now < self.next_tick():
            return []
        match self.role:
            case Candidacy():
                return self._give_up(now, self.role)
            case Reign():
                return self._renew(now, self.role) if now >= self.role.renew_at else self._replicate(self.role)
            case _:
                return self._canvass(now)

    def meet(self, now: float, name: str) -> list[ReplicaOutput]:
        """The replica of this name is at the other end of the connection.

        It is another one than before if the other scheduler has lost its disk. A leader then knows nothing about what it
        holds; the old name stays in the in-sync set until this one can replace it.
        """
        if name == self.peer:
            return []
        self.peer = name
        reign = self.reign
        if reign is None:
            return []
        reign.meet(now, name, len(self.log))
        return self._replicate(reign)

    def append(self, *appends: Sequence[bytes]) -> list[ReplicaOutput]:
        """Append encoded events, of each append all or none. Only a leader may call this.

        They count when `EntriesCommitted` covers them.
        """
        reign = self.reign
        assert reign is not None, "only a leader appends"
        entries = tuple(
            LogEntry(reign.epoch, payload, number == len(payloads))
            for payloads in appends
            for number, payload in enumerate(payloads, start=1)
        )
        start = len(self.log)
        self.log.write(start, entries)
        sent = self._replicate(reign) if self._has_room(reign) else []
        return [*sent, WriteEntries(start, entries), self._held_here(reign)]

    def forget(self, keep: int) -> None:
        """Remove final entries from memory, all but the newest `keep`. They are read from the store from now on.

        Call this only when every `WriteEntries` so far is durable: until then the store may have other entries.
        """
        self.log.forget(self.committed - keep)

    def allow_single(self, now: float) -> list[ReplicaOutput]:
        """The operator's word: commit without the standby until it has caught up. Events are then on one disk only.

        It leaves out every other replica, also one that does not exist any more. A change that is under way is withdrawn
        for it: the operator should not have to wait for voters that do not answer. Ask `why_not_single` first.
        """
        reign = self.reign
        if reign is None or self.why_not_single():
            return []
        return self._propose(now, reign, in_sync=frozenset({self.name}))

    def change_voters(self, voters: Collection[str]) -> None:
        """Say which voters there should be (see electorate.py). The leader brings the change about.

        The wish is forgotten when the voters do not accept it in time, and when the reign ends; repeat it.
        """
        if len(set(voters)) < FEWEST_VOTERS:
            raise ValueError(f"{len(set(voters))} voters are too few; add witnesses until there are {FEWEST_VOTERS}.")
        self._wanted_voters = frozenset(voters)

    def hand_over(self, now: float) -> list[ReplicaOutput]:
        """Planned change of the leader: stop, give the leases back, and ask the standby to take over."""
        reign = self.reign
        if reign is None or reign.proposed or self.peer not in reign.current.in_sync or not self.may_act(now):
            return []
        released = self._tell(reign.everyone, ReleaseLease(self.name, reign.epoch))
        ended = self._follow(now, wait=3 * self._timing.lease)
        return [*ended, *released, SendMessage(self.peer, TakeOver(self.name, reign.epoch))]

    def resign(self, now: float) -> list[ReplicaOutput]:
        """Stop to lead, give the leases back, and stand for election at once: the next reign has a new epoch.

        For a driver that cannot use this epoch. If the other replica is elected first, this one follows it.
        """
        reign = self.role
        if not isinstance(reign, Reign):
            return []
        return [*self._follow(now, wait=0.0), *self._tell(reign.everyone, ReleaseLease(self.name, reign.epoch))]

    def receive(self, now: float, message: ToReplica) -> list[ReplicaOutput]:
        """Answer a message."""
        match message:
            case LeaseRenewed():
                return self._on_renewed(now, message)
            case EntriesHeld():
                return self._on_held(now, message)
            case AppendEntries():
                return self._on_append(now, message)
            case EntriesMismatch():
                return self._on_mismatch(now, message)
            case MembershipAccepted():
                return self._on_accepted(now, message)
            case CanvassAnswer():
                return self._on_canvass_answer(now, message)
            case VoteGranted():
                return self._on_granted(now, message)
            case EpochRefused():
                return self._on_higher_epoch(now, message.promised) if message.voter in self._asked() else []
            case OutdatedLeader():
                return self._on_higher_epoch(now, message.promised)
            case TakeOver():
                follows = isinstance(self.role, Following) and message.epoch >= self.record.promised
                return self._canvass(now) if follows else []

    # --- following ---

    def _on_append(self, now: float, message: AppendEntries) -> list[ReplicaOutput]:
        if message.epoch < self.record.promised:
            return [SendMessage(message.replica, OutdatedLeader(self.name, self.record.promised))]
        assert self.reign is None or self.reign.epoch != message.epoch, "an epoch has one leader"
        outputs = self._follow(now)
        self._stands_at = now + self._patience
        self._last_leader = (message.replica, now)
        outputs += self._remember(promised=message.epoch, membership=message.membership)
        return [*outputs, *self._merge(message)]

    def _merge(self, message: AppendEntries) -> list[ReplicaOutput]:
        """Compare with the log of the leader; cut only where it differs, because a late message repeats old entries."""
        log, start = self.log, message.start
        if not log.matches(start, message.before):
            if start == log.oldest:
                return [JournalsDiffer(start)]  # it cannot compare earlier entries
            try_from = max(log.oldest, min(start - 1, len(log)))
            return [SendMessage(message.replica, EntriesMismatch(self.name, message.epoch, try_from))]
        outputs: list[ReplicaOutput] = []
        same = log.first_conflict(start, message.entries)
        missing = message.entries[same:]
        if missing and start + same < self.committed:
            return [JournalsDiffer(start + same + 1)]  # committed entries are never removed
        if missing:
            log.write(start + same, missing)
            outputs.append(WriteEntries(start + same, missing))
        held = self._comparable(message)
        outputs.append(SendMessage(message.replica, EntriesHeld(self.name, message.epoch, held)))
        committed = log.whole(min(held, message.committed))
        if committed > self.committed:
            self.committed = committed
            outputs.append(EntriesCommitted(self.committed))
        return outputs

    def _comparable(self, message: AppendEntries) -> int:
        """The position up to which both logs are known to be equal; this log may have other entries after it."""
        return message.start + len(message.entries)

    def _follow(self, now: float, wait: float | None = None) -> list[ReplicaOutput]:
        """Give up what was aimed at or held, and wait before standing for election (again)."""
        reign = self.reign
        if not isinstance(self.role, Following):
            self.role, self._wanted_voters = Following(), None
            self._stands_at = now + (self._patience if wait is None else wait)
        return [LeadershipEnded(reign.epoch)] if reign else []

    def _asked(self) -> frozenset[str]:
        """The voters whose answers count. Others may be connected; they were asked nothing."""
        match self.role:
            case Candidacy():
                return self.role.asked
            case Reign():
                return self.role.everyone
            case _:
                return self.record.membership.everyone

    def _on_higher_epoch(self, now: float, promised: int) -> list[ReplicaOutput]:
        if promised > self._highest_epoch + MOST_EPOCHS_AHEAD:
            return []
        self._highest_epoch = max(self._highest_epoch, promised)
        if isinstance(self.role, Reign) and promised > self.role.epoch:
            return self._follow(now)
        return []

    # --- becoming leader ---

    def _canvass(self, now: float) -> list[ReplicaOutput]:
        asked = self.record.membership.everyone
        self.role = Candidacy(Round.CANVASS, self._highest_epoch + 1, now, now + self._timing.answers_within, asked)
        return self._tell(asked, Canvass(self.name))

    def _on_canvass_answer(self, now: float, answer: CanvassAnswer) -> list[ReplicaOutput]:
        candidacy = self.role
        if not isinstance(candidacy, Candidacy) or answer.voter not in candidacy.asked:
            return []
        self._on_higher_epoch(now, answer.promised)
        if candidacy.round is not Round.CANVASS:
            return []
        outputs = self._ask_more(candidacy, answer.accepted, Canvass(self.name))
        if answer.free_in > 0:
            candidacy.free_at[answer.voter] = now + answer.free_in
        else:
            candidacy.answers[answer.voter] = answer.accepted
        if candidacy.foundation(self.name) is not None:
            return [*outputs, *self._request_votes(now, candidacy.asked)]
        again_at = candidacy.asks_again_at(self.record.membership)
        if again_at is not None:
            candidacy.gives_up_at = min(candidacy.gives_up_at, again_at)
        return outputs

    def _request_votes(self, now: float, asked: frozenset[str]) -> list[ReplicaOutput]:
        """From here on entries of lower epochs are refused, and this epoch is never asked for again, also after a restart."""
        epoch = self._highest_epoch + 1
        saved = self._remember(promised=epoch)
        self.role = Candidacy(Round.VOTE, epoch, now, now + self._timing.answers_within, asked)
        return [*saved, *self._tell(asked, RequestVote(self.name, epoch))]

    def _on_granted(self, now: float, vote: VoteGranted) -> list[ReplicaOutput]:
        role = self.role
        if not isinstance(role, Candidacy) or role.round is not Round.VOTE or role.epoch != vote.epoch:
            return []
        if vote.voter not in role.asked:
            return []
        outputs = self._ask_more(role, vote.accepted, RequestVote(self.name, role.epoch))
        role.answers[vote.voter] = vote.accepted
        foundation = role.foundation(self.name)
        if foundation is None:
            return outputs
        return [*outputs, *self._begin_reign(now, role, foundation)]

    def _ask_more(self, candidacy: Candidacy, reported: Membership, question: ToVoter) -> list[ReplicaOutput]:
        """Ask the voters of a reported membership, too: the one that is known here may be out of date."""
        more = reported.everyone - candidacy.asked
        candidacy.asked |= more
        return [*self._remember(membership=reported), *self._tell(more, question)]

    def _begin_reign(self, now: float, candidacy: Candidacy, foundation: Membership) -> list[ReplicaOutput]:
        """Propose the membership that was found, in the new epoch. Nothing counts until a quorum has accepted it."""
        outputs: list[ReplicaOutput] = []
        whole = self.log.whole(len(self.log))
        if whole < len(self.log):  # the rest of an append never came, so no part of it was committed
            self.log.write(whole, ())
            outputs.append(WriteEntries(whole, ()))
        reign = Reign(self.name, candidacy.epoch, foundation, whole, self._timing)
        for voter in candidacy.answers:
            reign.confirm(voter, candidacy.asked_at)
        reign.proposed_at = reign.began_at = now
        reign.renew_at = now + self._timing.renew_every
        self.role = reign
        return [
            *outputs,
            *self._remember(membership=reign.newest),
            *self._tell(reign.everyone, Accept(self.name, reign.newest)),
        ]

    def _give_up(self, now: float, candidacy: Candidacy) -> list[ReplicaOutput]:
        """Too few answers. Votes that were given are released, so that the other replica need not wait for them."""
        outputs = self._follow(now)
        if candidacy.round is Round.CANVASS:
            again_at = candidacy.asks_again_at(self.record.membership)
            earliest = candidacy.asked_at + self._timing.answers_within * LEAST_PAUSE
            latest = now + self._timing.renew_every
            self._stands_at = latest if again_at is None else max(earliest, min(again_at, latest))
            return outputs
        return [*outputs, *self._tell(candidacy.asked, ReleaseLease(self.name, candidacy.epoch))]

    # --- leading: leases and membership ---

    def _renew(self, now: float, reign: Reign) -> list[ReplicaOutput]:
        """Once per `renew_every`: renew leases, repeat what was not answered, start changes that are due."""
        timing = self._timing
        reign.renew_at = now + timing.renew_every
        outputs: list[ReplicaOutput] = []
        if reign.decided is None and now - reign.proposed_at > timing.lease:
            return [*self._follow(now), *self._tell(reign.everyone, ReleaseLease(self.name, reign.epoch))]
        if reign.decided is not None:
            if not self.may_act(now):
                return self._step_down(now, reign)
            outputs += self._changes_due(now, reign)
        lacking = reign.everyone - reign.accepted if reign.proposed else reign.silent(now - 2 * timing.renew_every)
        outputs += self._tell(lacking, Accept(self.name, reign.newest))
        outputs += self._tell(reign.everyone, RenewLease(self.name, reign.epoch, now))
        if reign.decided is not None:
            outputs += self._replicate(reign)
        return outputs

    def _step_down(self, now: float, reign: Reign) -> list[ReplicaOutput]:
        """The leases are over: a majority of the voters does not answer.

        A leader that went on could prevent another one: a standby that it still reaches would not stand for election, and
        voters whose answers are lost would go on to renew its leases.
        """
        outputs = [*self._follow(now), *self._tell(reign.everyone, ReleaseLease(self.name, reign.epoch))]
        if self.peer in reign.current.in_sync:
            outputs.append(SendMessage(self.peer, TakeOver(self.name, reign.epoch)))
        return outputs

    def _changes_due(self, now: float, reign: Reign) -> list[ReplicaOutput]:
        """At most one change of the membership at a time."""
        decided = reign.current
        if reign.proposed is not None:
            stuck = reign.proposed.voters != decided.voters and now - reign.proposed_at > self._timing.proposal_retry
            if not stuck:
                return []
            self._wanted_voters = None
            return self._propose(now, reign, voters=decided.voters)
        if decided.previous_voters != decided.voters:
            return self._propose(now, reign, previous_voters=decided.voters)
        in_sync = self._in_sync_due(now, reign, decided.in_sync)
        if in_sync != decided.in_sync:
            return self._propose(now, reign, in_sync=in_sync)
        if self._wanted_voters not in {None, decided.voters}:
            return self._propose(now, reign, voters=self._wanted_voters)
        return []

    def _in_sync_due(self, now: float, reign: Reign, in_sync: frozenset[str]) -> frozenset[str]:
        """This replica and the standby, once that holds everything; in the place of one that it has replaced, if there is one.

        Alone if the operator's settings allow it and one of the set is silent for too long.
        """
        if reign.can_include(self.peer, self.committed) and reign.silence(now, self.peer) < self._timing.lease:
            return frozenset({self.name, self.peer})
        limit = self._timing.single_after
        if limit is not None and any(reign.silence(now, other) > limit for other in in_sync - {self.name}):
            return frozenset({self.name})
        return in_sync

    def _propose(self, now: float, reign: Reign, **changes: frozenset[str] | None) -> list[ReplicaOutput]:
        proposed = reign.propose(now, lambda decided: structs.replace(decided, **changes))
        return [
            *self._remember(membership=proposed),
            *self._tell(reign.everyone, Accept(self.name, proposed)),
        ]

    def _on_accepted(self, now: float, answer: MembershipAccepted) -> list[ReplicaOutput]:
        reign = self.role
        if not isinstance(reign, Reign):
            return []
        begins = reign.decided is None
        if not reign.accept(answer.voter, answer.order):
            return []
        if not begins:
            return self._advance(now, reign)
        reign.began_at = now
        if self._last_leader is not None:  # its silence began before this reign
            reign.hear(*self._last_leader)
        return [
            LeadershipBegan(reign.epoch, reign.inherited),
            *self._replicate(reign),
            self._held_here(reign),
            *self._tell(reign.everyone, RenewLease(self.name, reign.epoch, now)),
            *self._changes_due(now, reign),
        ]

    def _on_renewed(self, now: float, answer: LeaseRenewed) -> list[ReplicaOutput]:
        reign = self.role
        if not isinstance(reign, Reign) or reign.epoch != answer.epoch:
            return []
        reign.confirm(answer.voter, answer.sent_at)
        return self._advance(now, reign)

    # --- leading: entries ---

    def _replicate(self, reign: Reign) -> list[ReplicaOutput]:
        """Send the standby what it was not sent yet; also if that is nothing, as a sign of life.

        Nothing is sent a second time unless the standby says that it lacks it. A slow standby would spend its time with
        what it has, and fall further behind. Where a message was lost, the next one does not fit, and it says so.
        """
        reign.tell_at = NOT_DUE
        if not self.peer:
            return []
        start = max(min(reign.sent_to_standby, len(self.log)), self.log.oldest)
        after = self.log.after(start, self._timing.batch) if self._has_room(reign) else ()
        entries = at_most(self._timing.batch_bytes, after)
        reign.sent_to_standby = start + len(entries)
        message = AppendEntries(
            self.name, reign.epoch, start, self.log.epoch_at(start), entries, self.committed, reign.current
        )
        return [SendMessage(self.peer, message)]

    def _has_room(self, reign: Reign) -> bool:
        """Whether more entries may be sent to the standby before it has confirmed those that were sent."""
        sent = reign.sent_to_standby
        return sent - reign.holds.get(self.peer, sent) < self._timing.window

    def _on_held(self, now: float, answer: EntriesHeld) -> list[ReplicaOutput]:
        reign = self.reign
        if reign is None or reign.epoch != answer.epoch:
            return []
        reign.holds[answer.replica] = max(reign.holds.get(answer.replica, 0), answer.position)
        reign.hear(answer.replica, now)
        outputs = self._advance(now, reign)
        if answer.replica == self.peer and reign.sent_to_standby < len(self.log) and self._has_room(reign):
            outputs += self._replicate(reign)
        return outputs

    def _on_mismatch(self, now: float, answer: EntriesMismatch) -> list[ReplicaOutput]:
        reign = self.reign
        if reign is None or reign.epoch != answer.epoch or answer.replica != self.peer:
            return []
        reign.hear(answer.replica, now)
        if answer.try_from < reign.holds.get(self.peer, 0):
            return []  # a late answer: the standby has confirmed more since
        if answer.try_from < self.log.oldest:
            return [StandbyTooFarBehind(answer.try_from, self.log.oldest)]
        reign.sent_to_standby = answer.try_from
        return self._replicate(reign)

    def _advance(self, now: float, reign: Reign) -> list[ReplicaOutput]:
        """Commit what every replica of the in-sync set holds."""
        if not self.may_act(now):
            return []
        position = self.log.whole(reign.held_by_all())
        if position <= self.committed:
            return []
        self.committed = position
        reign.tell_at = min(reign.tell_at, now + self._timing.tell_after)
        return [EntriesCommitted(position)]

    def _held_here(self, reign: Reign) -> SendMessage:
        """To itself, after the writes before it: this replica holds its own log."""
        return SendMessage(self.name, EntriesHeld(self.name, reign.epoch, len(self.log)))

    # --- both ---

    def _remember(self, promised: int = 0, membership: Membership | None = None) -> list[ReplicaOutput]:
        """Write a higher promise or a newer membership to the record."""
        old = self.record
        newer = membership is not None and membership.order > old.membership.order
        record = ReplicaRecord(
            max(old.promised, promised), membership if newer and membership is not None else old.membership
        )
        self._highest_epoch = max(self._highest_epoch, record.promised, record.membership.epoch)
        if record == old:
            return []
        self.record = record
        return [SaveReplica(record)]

    def _tell(self, voters: Collection[str], message: ToVoter) -> list[ReplicaOutput]:
        return [SendMessage(voter, message) for voter in sorted(voters)]
