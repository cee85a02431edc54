"""The replication of a scheduler: its thread, and what the rest of the scheduler asks of it.

main thread:  ReplicatedJournal, ReplicatedRecords, status, operator's word
│ append, ask                    ▲ futures
replication:  ReplicaDriver ── ReplicaNetwork ── VoterClient (the voter inside this scheduler)
│ committed entries
applier:      journal, records
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple, TypeVar

import structlog
import uvloop

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.replication.electorate import CandidateVoter, choose_voters
from gpuyard.core.replication.messages import Message
from gpuyard.core.replication.replica import Replica, ReplicaStatus
from gpuyard.core.replication.timing import Timing
from gpuyard.live.control_plane.replication.applier import Applier
from gpuyard.live.control_plane.replication.copying import send_copy
from gpuyard.live.control_plane.replication.driver import ReplicaDriver
from gpuyard.live.control_plane.replication.network import Control, Keys, ReplicaNetwork
from gpuyard.live.control_plane.replication.replica_files import ReplicaFiles, voter_node
from gpuyard.live.control_plane.stores.database import StoreError, StoreFull
from gpuyard.live.control_plane.stores.record_layouts import SECRETS, SECRETS_LAYOUT
from gpuyard.live.voting.voter_client import VoterClient
from gpuyard.live.voting.voter_file import VOTER_FILE, DurableVoter
from gpuyard.live.wire.frames import FramedConnection, WrongPeer

LOOK_SECONDS = 1.0
"""How often the leader looks whether other voters are needed."""
FRESH_SECONDS = 1.0
"""A standby that has heard the leader this recently knows how far it is behind."""

_FULL = "The disk of this scheduler is full; running tasks continue. Free some space."

T = TypeVar("T")

log = structlog.get_logger()


class ReplicationFailed(GpuyardError):
    """The replication of this scheduler has failed."""


class ReplicationOptions(NamedTuple):
    """Fixed values of the replication."""

    folder: Path
    peer_address: str
    own_address: str
    """Where this scheduler reaches itself."""
    url: str
    """Where this scheduler answers REST."""
    lease_seconds: float
    renew_seconds: float
    single_copy_after: float | None
    secrets_key: bytes
    server_tls: ssl.SSLContext | None = None
    client_tls: ssl.SSLContext | None = None


class ReplicationView(NamedTuple):
    """The replication as people see it."""

    replica: ReplicaStatus
    connected_voters: dict[str, CandidateVoter]
    """The voters that are connected with this scheduler, by name."""
    peer_connected: bool
    peer_problem: str
    peer_url: str
    problem: str
    """Why this replica cannot follow or write; empty: it can."""


def boot_clock() -> float:
    """Return a clock that never jumps, and also runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def timing_of(options: ReplicationOptions) -> Timing:
    """Return the intervals of the protocol."""
    lease = options.lease_seconds
    return Timing(
        lease=lease,
        renew_every=options.renew_seconds,
        answers_within=max(0.1, lease / 5),
        proposal_retry=1.5 * lease,
        single_after=options.single_copy_after,
    )


class Replication:
    """Runs until `close`. Created in the main thread; the methods may be called from any thread."""

    def __init__(self, files: ReplicaFiles, options: ReplicationOptions, join_token: str) -> None:
        self.files = files
        self.options = options
        self.lease_seconds = options.lease_seconds
        self.applier = Applier(files.journal, files.records, files.log.position_of(files.journal.head.seq))
        self.wanted_url = ""
        self._secrets_checked = (0, 0)
        """Up to where entries were applied, and how many of them changed secrets, when the log was last searched for secrets."""
        """The scheduler that has asked to lead; empty: none."""
        self.used_epoch = 0
        """The last epoch in which a journal of this replication has led. Each one leads in an epoch of its own."""
        self.copy_wanted = Event()
        """Set when this replica is too far behind and has to copy the data folder of the leader."""
        self.registered: frozenset[str] = frozenset()
        """The nodes whose agents may vote; set by the scheduler that leads."""
        self.failed: Future[None] = Future()
        self._join_token = join_token
        self._started: Future[None] = Future()
        self._loop = uvloop.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = Thread(target=self._run, name="replication", daemon=True)
        self._driver: ReplicaDriver
        self._network: ReplicaNetwork
        self._seen: ReplicationView

    def start(self, listener: socket.socket) -> None:
        """Start the threads; return when the replica counts time."""
        self._listener = listener
        self.applier.start()
        self._thread.start()
        self._started.result()

    def close(self) -> None:
        """Stop the threads. The files stay open."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
        self.applier.close()
        with suppress(StoreError):  # the next start applies again what may be missing
            self.files.log.note_applied(self.applier.position)

    # --- what the scheduler asks --------------------------------------------------------------------------------------

    @property
    def driver(self) -> ReplicaDriver:
        """The driver; use only what it allows from any thread."""
        return self._driver

    @property
    def leader_committed(self) -> int | None:
        """The position up to which the leader had committed entries when it was heard; None: that was not just now."""
        driver = self._driver
        return driver.leader_committed if boot_clock() - driver.heard_at < FRESH_SECONDS else None

    @property
    def peer_url(self) -> str:
        """Where the other scheduler answers REST."""
        return self._network.peer_url

    def ask(self, question: Callable[[], T]) -> T:
        """Call this in the thread of the replication, and return its answer."""
        future: Future[T] = Future()

        def answer() -> None:
            try:
                future.set_result(question())
            except Exception as error:
                future.set_exception(error)

        self._loop.call_soon_threadsafe(answer)
        return future.result(5.0)

    @property
    def view(self) -> ReplicationView:
        """The replication as people see it, at most a second old."""
        return self._seen

    def check(self) -> None:
        """Raise the error that has ended the replication, if one has."""
        if self.failed.done():
            self.failed.result()

    def append(self, epoch: int, payloads: Sequence[bytes]) -> "Future[int]":
        """Append entries as the leader of this epoch; see ReplicaDriver.append."""
        return self._driver.append(epoch, payloads)

    @property
    def held_seconds(self) -> float:
        """How long no other replica can lead if no lease is renewed."""
        return self._driver.held_until - boot_clock()

    @property
    def is_full(self) -> bool:
        """Whether the disk of this scheduler is full."""
        return self._driver.is_full or self.applier.is_full

    def why_not_committed(self) -> str:
        """Return why entries that were appended are not committed yet, in one sentence; `is_full` says another reason."""
        if self._network.is_peer_connected:
            return "The other scheduler has not confirmed the last events yet; running tasks continue. Try again."
        return (
            "The other scheduler does not answer, and replication.single_copy_after is 0, so nothing is accepted without "
            "it; running tasks continue. Start it, or run `gpuyard detach-standby`."
            if self.options.single_copy_after is None
            else "The other scheduler does not answer; this one goes on without it in a moment. Try again."
        )

    def allow_single(self) -> str:
        """The operator's word: write without the standby until it has caught up. Return why not, or nothing."""

        def allow() -> str:
            replica = self._driver.replica
            if why_not := replica.why_not_single():
                return why_not
            self._driver.step(replica.allow_single)
            self._seen = self._view()
            return ""

        return self.ask(allow)

    def can_hand_over(self) -> bool:
        """Whether the other scheduler is connected and has every event."""
        return self._network.is_peer_connected and self._network.peer in self._driver.replica.record.membership.in_sync

    def hand_over(self) -> None:
        """Stop to lead, so that the other scheduler can lead at once; ask it to, if it has every event."""

        def stop() -> None:
            replica = self._driver.replica
            self._driver.step(replica.hand_over)
            self._driver.step(replica.resign)

        self.ask(stop)

    def resign(self) -> None:
        """Stop to lead, and stand for election again in a new epoch."""
        self.ask(lambda: self._driver.step(self._driver.replica.resign))

    def ask_for_lead(self, url: str) -> bool:
        """Ask the other scheduler to hand over; return whether it is connected."""
        return self.ask(lambda: self._network.say(Control("lead", url)))

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live())
        except BaseException as error:
            self.applier.give_up(ReplicationFailed(str(error)))
            if not self._started.done():
                self._started.set_exception(error)
            self.failed.set_exception(error)
            log.error("replication_failed", exc_info=error)
        finally:
            self._loop.close()

    async def _live(self) -> None:
        files, options, timing = self.files, self.options, timing_of(self.options)
        voter = DurableVoter(options.folder / VOTER_FILE, voter_node(files.log.name), timing, boot_clock)
        for note in voter.notes:
            log.warning("voter_checked", message=note)
        applied = self.applier.position
        replica = Replica(
            files.log.name,
            "",
            timing,
            files.log.record,
            files.log.after(applied, files.log.last - applied),
            boot_clock(),
            patience=_patience(files.log.name, timing),
            start=applied,
            store=files.log,
        )
        self._network = ReplicaNetwork(
            files.log.name,
            files.log.cluster,
            {"url": options.url, "lease_seconds": f"{options.lease_seconds:g}"},
            options.peer_address,
            Keys(options.secrets_key, self._join_token.encode()),
            server_tls=options.server_tls,
            client_tls=options.client_tls,
            serve_copy=self._send_copy,
            told=self._told,
        )
        self._driver = driver = ReplicaDriver(replica, files.log, self.applier, self._send, boot_clock)
        driver.start()
        self._seen = self._view()
        client = VoterClient(
            voter,
            "scheduler",
            voter_node(files.log.name),
            lambda: self._join_token,
            tls=options.client_tls,
            own_address=options.own_address,
        )
        client.set_addresses([options.own_address, options.peer_address])
        applier_failed = asyncio.wrap_future(self.applier.failed)
        tasks = [
            asyncio.create_task(self._network.run(self._listener, driver)),
            asyncio.create_task(client.run()),
            asyncio.create_task(self._choose_voters()),
            asyncio.create_task(self._tell_to_copy()),
        ]
        self._started.set_result(None)
        stopping = asyncio.create_task(self._stopping.wait())
        ends: list[asyncio.Future[Any]] = [stopping, driver.failed, applier_failed, *tasks]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        driver.stop()
        await self._network.flush()  # a leader that has stopped says so
        for task in (*tasks, stopping):
            task.cancel()
        await asyncio.gather(*tasks, stopping, return_exceptions=True)
        for each in done:
            each.result()

    def _send(self, to: str, message: Message) -> None:
        self._network.send(to, message)

    def _told(self, said: Control) -> None:
        if said.say == "lead":
            self.wanted_url = said.url
        elif said.say == "copy" and self._driver.lead is None:
            self.copy_wanted.set()

    async def _tell_to_copy(self) -> None:
        while True:
            await self._driver.too_far_behind.wait()
            self._network.say(Control("copy"))
            await asyncio.sleep(LOOK_SECONDS)
            self._driver.too_far_behind.clear()

    async def _send_copy(self, connection: FramedConnection) -> None:
        if self._driver.lead is None:  # one that leads need not be ready: perhaps only this copy makes it so
            raise WrongPeer("This scheduler does not lead at present, so it cannot be copied. The copy is tried again.")
        self._driver.copied_from = self.applier.position
        await send_copy(connection, self.files, self.applier, self.options.folder)

    async def _choose_voters(self) -> None:
        """While this replica leads, let the agents of the registered nodes vote."""
        driver, network, began_at = self._driver, self._network, None
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._seen = self._view()
            self._forget_secrets()
            now, reign = asyncio.get_running_loop().time(), driver.replica.reign
            if reign is None or not driver.is_ready:
                began_at = None
                continue
            began_at = now if began_at is None else began_at
            missing = reign.current.voters - network.voters.keys()  # some were never connected with this process
            away = {name: now - network.away_since.get(name, began_at) for name in missing}
            wanted = choose_voters(reign.current.voters, network.candidates(), self.registered, away)
            if wanted is not None:
                driver.replica.change_voters(wanted)

    def _forget_secrets(self) -> None:
        """Remove secrets from the log that the store of secrets does not have any more."""
        entries, applied, changes = self.files.log, self.applier.position, self.applier.changes[SECRETS_LAYOUT.name]
        if not entries.secrets or self.is_full or (applied, changes) == self._secrets_checked:
            return
        self._secrets_checked = applied, changes
        kept = set(self.files.records[SECRETS_LAYOUT.name].keys(SECRETS))
        gone = [task for task, position in entries.secrets.items() if position <= applied and task not in kept]
        try:
            if gone:
                entries.forget_secrets(gone)
        except StoreFull:  # tried again with the next change
            return

    def _view(self) -> ReplicationView:
        driver, network = self._driver, self._network
        full = _FULL if self.is_full else ""
        return ReplicationView(
            driver.replica.status(boot_clock()),
            network.candidates(),
            network.is_peer_connected,
            network.peer_problem,
            network.peer_url,
            driver.problem or full,
        )


def _patience(name: str, timing: Timing) -> float:
    """Seconds without a leader before this replica asks for votes; different for two replicas."""
    return timing.lease * (0.5 + 0.2 * (sum(name.encode()) % 8) / 8)
