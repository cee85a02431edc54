"""The storage of a scheduler that replicates: found it, copy it from the other scheduler, or open what is there.

    data folder has            role master                              role standby
    a replica                  open it                                  open it
    a journal                  found: it becomes the first replica      refused: it is that of another cluster
    nothing                    found, unless the other one has data     copy that of the other one

Later, a standby that is too far behind closes its files, copies the data folder of the leader, and opens it again.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress

import structlog

from gpuyard.core.domain.errors import StandbyOutdated
from gpuyard.live.control_plane import server
from gpuyard.live.control_plane.replication import overview
from gpuyard.live.control_plane.replication.copying import finish_copy, receive_copy, remove_unsent_copies
from gpuyard.live.control_plane.replication.journal import ReplicatedJournal, ReplicatedRecords
from gpuyard.live.control_plane.replication.replica_files import (
    ReplicaFiles,
    found_again,
    found_replica,
    has_journal,
    is_replica,
    open_replica,
    refuse_to_found_again,
)
from gpuyard.live.control_plane.replication.service import Replication, ReplicationOptions
from gpuyard.live.control_plane.server import JOIN_TOKEN_FILE, SchedulerStartError
from gpuyard.live.control_plane.settings import ReplicationSection, ServerSettings
from gpuyard.live.control_plane.shared_storage import OpenedStorage
from gpuyard.live.control_plane.stores.cluster_stores import ClusterStores
from gpuyard.live.control_plane.stores.documents import RecordDocuments
from gpuyard.live.control_plane.stores.record_layouts import DOCUMENTS_LAYOUT, LAYOUTS
from gpuyard.live.control_plane.stores.secrets_key import KEY_FILE, KeySource, NoCipher, WrongSecretsKey
from gpuyard.live.wire import frames
from gpuyard.live.wire.answers import ReplicationAnswer
from gpuyard.live.wire.frames import ConnectionLost, FramedConnection, Hello, WrongPeer
from gpuyard.system.backoff import Backoff
from gpuyard.system.files import replace_file
from gpuyard.system.locks import take_lock
from gpuyard.version import __version__

RETRY_SECONDS, MAX_RETRY_SECONDS = 0.2, 2.0
LOOK_SECONDS = 3.0
"""How long a scheduler with an empty data folder looks for one that has data, before it founds a cluster."""

MOST_CANDIDATES = 50
"""So many agents are told where to vote. Each is connected with both schedulers, and seven of them vote."""
LOCK_FILE = "replication.lock"

log = structlog.get_logger()


class ReplicatedStorage:
    """See SharedStorage, and Replicating."""

    def __init__(self, settings: ServerSettings, stack: ExitStack, *, take_over: bool) -> None:
        """Take the data folder and the port. `stack` gives them back. `take_over`: this replica counts, and no other."""
        self._settings = settings
        self._folder = settings.data_dir
        self._listener = stack.enter_context(server.listen(settings.replication.address, "the other scheduler"))
        stack.callback(os.close, self._take_folder())
        self._key = _secrets_key(settings)
        self._replication: Replication | None = None
        self._takes_over = take_over
        self._addresses = (str(settings.replication.address), str(settings.replication.peer_address))
        self._candidates = set[str]()
        """The nodes whose agents were told where to vote."""
        stack.callback(self._close)

    def _take_folder(self) -> int:
        try:
            return take_lock(self._folder / LOCK_FILE)
        except BlockingIOError:
            raise SchedulerStartError(
                f"Another scheduler uses the data folder {self._folder}. Give each scheduler its own one."
            ) from None

    @property
    def replicating(self) -> "ReplicatedStorage":
        """The replication to the other scheduler."""
        return self

    async def open(self, told: "asyncio.Task[bool]", say: Callable[[str], None]) -> OpenedStorage | None:
        """Open the journal and the stores; None: told to stop."""
        if self._replication is not None and self._replication.copy_wanted.is_set():
            await asyncio.to_thread(self._close)
            if not await self._copy(told, say):
                return None
        if self._replication is None:
            if not await self._prepare(told, say):
                return None
            await asyncio.to_thread(self._start)
        replication = self._replication
        assert replication is not None, "it was just started"
        records = {layout.name: ReplicatedRecords(replication, layout.name) for layout in LAYOUTS}
        documents = RecordDocuments(records[DOCUMENTS_LAYOUT.name], NoCipher())
        stores = ClusterStores(dict(records), documents, NoCipher(), [])
        return OpenedStorage(ReplicatedJournal(replication), stores)

    def _start(self) -> None:
        """Open the files, and begin to replicate."""
        settings = self._settings
        files = open_replica(self._folder, settings.access_file)
        try:
            token = settings.join_token or _drawn_join_token(files)
            replace_file(self._folder / JOIN_TOKEN_FILE, f"{token}\n".encode())  # an agent of this machine reads it
            replication = Replication(files, self._options(), token)
            replication.start(self._listener.dup())
        except BaseException:
            files.close()
            raise
        self._replication = replication
        log.info("replication_started", replica=files.log.name, cluster=files.log.cluster, seq=files.journal.head.seq)

    def _close(self) -> None:
        replication, self._replication = self._replication, None
        if replication is not None:
            replication.close()
            replication.files.close()

    def _options(self) -> ReplicationOptions:
        settings = self._settings
        said = settings.replication
        return ReplicationOptions(
            folder=self._folder,
            peer_address=str(said.peer_address),
            own_address=_own_address(self._listener),
            url=settings.public_url,
            lease_seconds=float(said.heartbeat_timeout),
            renew_seconds=float(said.heartbeat_interval),
            single_copy_after=_single_copy_after(said),
            secrets_key=self._key,
            server_tls=_server_tls(settings),
            client_tls=_client_tls(settings),
        )

    # --- the first start ----------------------------------------------------------------------------------------------

    async def _prepare(self, told: "asyncio.Task[bool]", say: Callable[[str], None]) -> bool:
        """Make the data folder that of a replica; return False if told to stop."""
        finish_copy(self._folder)
        remove_unsent_copies(self._folder)
        if is_replica(self._folder):
            if self._takes_over:
                await self._refuse_beside_peer()
                self._takes_over = False
                name = await asyncio.to_thread(found_again, self._folder, _scheduler_name(self._settings))
                log.warning("replication_founded", replica=name)
            return True
        refuse_to_found_again(self._folder)
        has_data = has_journal(self._folder)
        is_standby = self._settings.scheduler.role == "standby"
        if has_data and is_standby:
            raise SchedulerStartError(
                f"The data folder {self._folder} has a journal of its own, so it cannot become a copy of the one of "
                f"{self._settings.replication.peer_address}. Give this standby an empty data folder."
            )
        if is_standby:
            return await self._copy(told, say)
        say("The scheduler looks whether the other one has data; try again in a few seconds.")
        async with self._answering_that_there_is_nothing():
            cluster = await self._cluster_of_peer()
        if cluster and has_data:
            raise SchedulerStartError(
                f"The data folder {self._folder} has a journal of its own, and the scheduler at "
                f"{self._settings.replication.peer_address} has one, too (cluster {cluster}). Decide which one is the "
                "right one, and give the other scheduler an empty data folder."
            )
        if cluster:
            return await self._copy(told, say)
        name = await asyncio.to_thread(
            found_replica, self._folder, _scheduler_name(self._settings), self._settings.access_file
        )
        log.info("replication_founded", replica=name)
        return True

    async def _refuse_beside_peer(self) -> None:
        """Taking over beside a scheduler that runs would make two clusters of one."""
        with suppress(OSError, ConnectionLost):
            connection = await self._dial()
            connection.close()
            raise SchedulerStartError(
                f"The other scheduler runs at {self._settings.replication.peer_address}. --take-over makes this one count "
                "alone, with what it has: stop the other one first, and never start it with its old data folder again."
            )

    async def _cluster_of_peer(self) -> str:
        """Return the cluster of the other scheduler; empty: it has none, or it cannot be reached."""
        loop = asyncio.get_running_loop()
        give_up_at, problem = loop.time() + LOOK_SECONDS, ""
        while loop.time() < give_up_at:
            try:
                connection = await self._dial()
            except WrongPeer:
                raise
            except (OSError, ConnectionLost) as error:
                problem = str(error) or type(error).__name__
                if isinstance(error, ConnectionRefusedError):
                    break  # nothing runs there
                await asyncio.sleep(RETRY_SECONDS)
                continue
            connection.close()
            other = connection.other
            if not other.cluster and other.info.get("role") == "master" and not has_journal(self._folder):
                raise SchedulerStartError(
                    f"The scheduler at {self._settings.replication.peer_address} has scheduler.role: master, too, and this one "
                    "has no data. Set scheduler.role to standby here, so that it copies the other one."
                )
            return other.cluster
        log.warning(
            "peer_not_found",
            message=f"The scheduler at {self._settings.replication.peer_address} does not answer ({problem}). This one "
            "founds the cluster, and the other one copies it: start that one with an empty data folder.",
        )
        return ""

    async def _dial(self) -> FramedConnection:
        return await frames.connect(
            str(self._settings.replication.peer_address), self._seed(), self._key, tls=_client_tls(self._settings)
        )

    def _seed(self) -> Hello:
        info: dict[str, str] = {"role": self._settings.scheduler.role}
        return Hello(frames.PROTOCOL, "seed", _scheduler_name(self._settings), "", __version__, info)

    # --- copying ------------------------------------------------------------------------------------------------------

    async def _copy(self, told: "asyncio.Task[bool]", say: Callable[[str], None]) -> bool:
        """Copy the data folder of the leader, as soon as there is one; return False if told to stop."""
        peer = str(self._settings.replication.peer_address)
        say(f"This standby waits for the scheduler at {peer}, which it has to copy; try again later.")
        copying = asyncio.create_task(self._copy_repeatedly(peer, say))
        async with self._answering_that_there_is_nothing():
            await asyncio.wait((copying, told), return_when=asyncio.FIRST_COMPLETED)
        if not copying.done():
            copying.cancel()
            with suppress(asyncio.CancelledError):
                await copying
            return False
        await copying
        return True

    async def _copy_repeatedly(self, peer: str, say: Callable[[str], None]) -> None:
        backoff, said = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS), ""

        def progress(done: int, total: int) -> None:
            backoff.reset()
            say(f"This standby copies the data of {peer}: {done >> 20} of {total >> 20} MiB; try again later.")

        while True:
            try:
                connection = await self._dial()
                try:
                    await receive_copy(connection, self._folder, _scheduler_name(self._settings), progress)
                finally:
                    connection.close()
            except (OSError, ConnectionLost, WrongPeer) as error:
                problem = str(error) or type(error).__name__
                say(f"This standby waits for the scheduler at {peer}, which it has to copy. {problem}")
                if problem != said:
                    log.warning("copy_failed", peer=peer, message=problem)
                    said = problem
                await asyncio.sleep(backoff.next())
            else:
                return

    @asynccontextmanager
    async def _answering_that_there_is_nothing(self) -> AsyncIterator[None]:
        """Tell another scheduler, and voters, that there is no data here yet."""

        async def refuse(_: FramedConnection) -> None:
            raise WrongPeer("This scheduler has no data yet; it copies that of the other one.")

        def key_of(kind: str) -> bytes | None:
            return None if kind == "voter" else self._key

        answering = await frames.serve(
            self._listener.dup(), lambda _: self._seed(), key_of, refuse, tls=_server_tls(self._settings), limit=100
        )
        try:
            yield
        finally:
            answering.close()
            await answering.wait_closed()

    # --- what people and nodes ask ------------------------------------------------------------------------------------

    def answer(self) -> ReplicationAnswer:
        """Return which replicas hold every event, and who votes."""
        return overview.answer_of(self._running.view)

    def peer_url(self) -> str:
        """Return where clients reach the other scheduler; empty: not known yet."""
        return self._running.peer_url

    def voting_for(self, node: str) -> Sequence[str]:
        """Return where the agent of this node votes; empty: there are enough."""
        if node not in self._candidates:
            if len(self._candidates) >= MOST_CANDIDATES:
                self._candidates &= self._running.registered
            if len(self._candidates) >= MOST_CANDIDATES:
                return ()
            self._candidates.add(node)
        return self._addresses

    def register_voters(self, nodes: Collection[str]) -> None:
        """Only agents of these nodes may vote."""
        self._running.registered = frozenset(nodes)

    def why_not_leading(self) -> str:
        """Return why this standby cannot lead at present, or nothing."""
        return overview.why_not_leading(self._running.view)

    def write_alone(self) -> str:
        """Leave the standby out until it has caught up; return why this is not possible now, or nothing."""
        return self._running.allow_single()

    @property
    def _running(self) -> Replication:
        if self._replication is None:
            raise StandbyOutdated("This scheduler copies the data of the other one. Try again when it is complete.")
        return self._replication


def _own_address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _single_copy_after(said: ReplicationSection) -> float | None:
    seconds = said.heartbeat_timeout if said.single_copy_after is None else said.single_copy_after
    return float(seconds) or None


def _scheduler_name(settings: ServerSettings) -> str:
    """Return the name of this scheduler, which its replica and its voter have in front of their random parts."""
    return f"{socket.gethostname()}:{settings.replication.address.port}"


def _secrets_key(settings: ServerSettings) -> bytes:
    """Return the key with which the schedulers of a cluster recognize each other; the first one draws it."""
    source = KeySource(settings.data_dir / KEY_FILE)
    found = source.read()
    if found is not None:
        return found
    if settings.scheduler.role == "standby" or is_replica(settings.data_dir):
        raise WrongSecretsKey(
            f"The key with which the schedulers recognize each other is missing from {source.shown}. Copy the file from "
            "the other scheduler, or set GPUYARD_SECRETS_KEY to the same value for both."
        )
    return source.create()


def _drawn_join_token(files: ReplicaFiles) -> str:
    documents = RecordDocuments(files.records[DOCUMENTS_LAYOUT.name], NoCipher())
    return (documents.read(JOIN_TOKEN_FILE) or b"").decode().strip()


def _server_tls(settings: ServerSettings) -> ssl.SSLContext | None:
    tls = settings.server.tls
    if not tls.cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.cert, tls.key)
    return context


def _client_tls(settings: ServerSettings) -> ssl.SSLContext | None:
    if not settings.server.tls.cert:
        return None
    return ssl.create_default_context(cafile=settings.replication.ca or None)
