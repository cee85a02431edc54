"""The connections of a replica: the other scheduler, and the voters.

    this scheduler ──── dials ────► the other one        its messages to it; both do this
    voters         ──── dial  ────► this scheduler       questions and answers, both ways
    an empty scheduler ─ dials ───► this scheduler       asks for a copy of the data folder (copying.py)

A connection has proven who is at its other end (frames.py). A message is accepted only from the replica or voter that it
names. What cannot be sent at once to a connected reader is buffered; without a connection it is dropped, as the protocol
expects of a network.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec
import structlog

from gpuyard.core.replication.electorate import CandidateVoter
from gpuyard.core.replication.encoding import WrongMessage, decode_for_replica, encode
from gpuyard.core.replication.messages import Message
from gpuyard.live.control_plane.replication.driver import ReplicaDriver
from gpuyard.live.wire import frames
from gpuyard.live.wire.frames import ConnectionLost, FramedConnection, Hello, WrongPeer
from gpuyard.system.backoff import Backoff
from gpuyard.version import __version__

MESSAGE, CONTROL = b"M", b"C"
"""First byte of a frame between two schedulers: a message of the protocol, or one of this module."""
RETRY_SECONDS, MAX_RETRY_SECONDS = 0.2, 1.0
MOST_CONNECTIONS = 1_000
FLUSH_SECONDS = 0.5
MOST_REMEMBERED = 1_000
"""Voters that have left."""

log = structlog.get_logger()


class Control(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message between two schedulers that is not part of the protocol."""

    say: str
    """`lead`: the sender asks to lead. `copy`: the receiver is too far behind and must copy the data folder."""
    url: str = ""


class Keys(NamedTuple):
    """What proves who is at the other end."""

    schedulers: bytes
    """The secrets key, which only schedulers have."""
    voters: bytes
    """The join token."""


class ConnectedVoter(NamedTuple):
    """A voter that is connected."""

    candidate: CandidateVoter
    connection: FramedConnection


class ReplicaNetwork:
    """Lives in the loop of the replication thread."""

    def __init__(
        self,
        name: str,
        cluster: str,
        info: dict[str, str],
        peer_address: str,
        keys: Keys,
        *,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        serve_copy: Callable[[FramedConnection], Awaitable[None]],
        told: Callable[[Control], None],
    ) -> None:
        """`told` is called with what the other scheduler says beside the protocol."""
        self.voters: dict[str, ConnectedVoter] = {}
        self.away_since: dict[str, float] = {}
        """When voters that were connected have left, by the clock of the loop."""
        self.peer_url = ""
        self.peer_version = ""
        self.peer_problem = ""
        """Why there is no connection to the other scheduler; empty: there is."""
        self._name = name
        self._cluster = cluster
        self._info = info
        self._peer_address = peer_address
        self._keys = keys
        self._server_tls = server_tls
        self._client_tls = client_tls
        self._serve_copy = serve_copy
        self._told = told
        self._driver: ReplicaDriver | None = None
        self._peer = ""
        self._out: FramedConnection | None = None

    @property
    def is_peer_connected(self) -> bool:
        """Whether messages to the other scheduler can be sent."""
        return self._out is not None

    def send(self, to: str, message: Message) -> None:
        """Send a message to a voter or to the other replica; dropped if it is not connected."""
        voter = self.voters.get(to)
        if voter is not None:
            voter.connection.send(encode(message))
        elif to == self._peer and self._out is not None:
            self._out.send(MESSAGE + encode(message))

    def candidates(self) -> dict[str, CandidateVoter]:
        """Return the voters that are connected, by name."""
        return {name: voter.candidate for name, voter in self.voters.items()}

    def say(self, control: Control) -> bool:
        """Tell the other scheduler something; return whether it is connected."""
        if self._out is None:
            return False
        self._out.send(CONTROL + msgspec.msgpack.encode(control))
        return True

    @property
    def peer(self) -> str:
        """The name of the other replica; empty: it was not met yet."""
        return self._peer

    async def flush(self) -> None:
        """Wait until what was sent has left, but not long."""
        connections = [voter.connection for voter in self.voters.values()]
        if self._out is not None:
            connections.append(self._out)
        with suppress(TimeoutError, ConnectionLost):
            async with asyncio.timeout(FLUSH_SECONDS):
                for connection in connections:
                    await connection.drain()

    async def run(self, listener: socket.socket, driver: ReplicaDriver) -> None:
        """Serve and dial until cancelled."""
        self._driver = driver
        server = await frames.serve(
            listener, self._hello_to, self._key_of, self._handle, tls=self._server_tls, limit=MOST_CONNECTIONS
        )
        try:
            await self._dial()
        finally:
            server.close()
            await server.wait_closed()
            for voter in list(self.voters.values()):
                voter.connection.close()
            if self._out is not None:
                self._out.close()

    # --- who is there -------------------------------------------------------------------------------------------------

    def _hello(self, kind: str) -> Hello:
        return Hello(frames.PROTOCOL, kind, self._name, self._cluster, __version__, self._info)

    def _hello_to(self, other: Hello) -> Hello:
        return self._hello("replica" if other.kind != "seed" else "seed")

    def _key_of(self, kind: str) -> bytes | None:
        return {"replica": self._keys.schedulers, "seed": self._keys.schedulers, "voter": self._keys.voters}.get(kind)

    async def _handle(self, connection: FramedConnection) -> None:
        kind = connection.other.kind
        if kind == "seed":
            await self._serve_copy(connection)
            return
        self._check_cluster(connection.other)
        if kind == "voter":
            await self._serve_voter(connection)
        else:
            self._meet(connection.other)
            await self._hear_peer(connection)

    def _check_cluster(self, other: Hello) -> None:
        """Refuse a voter or scheduler of another cluster. A voter that has none yet may join."""
        if other.cluster == self._cluster or (other.kind == "voter" and not other.cluster):
            return
        if other.kind == "voter":
            raise WrongPeer(
                f"This voter belongs to cluster {other.cluster}, and this scheduler to cluster {self._cluster}. To let "
                "it vote here, remove its file voter.json."
            )
        if other.kind == "seed":
            raise WrongPeer("The other scheduler has no data yet; it copies that of this one.")
        raise WrongPeer(
            f"The scheduler at the other end belongs to cluster {other.cluster}, and this one to cluster "
            f"{self._cluster}: they cannot replicate. Check replication.peer_address. To make it the standby of this "
            "one, move its data folder away and start it with scheduler.role: standby."
        )

    # --- voters -------------------------------------------------------------------------------------------------------

    async def _serve_voter(self, connection: FramedConnection) -> None:
        name = connection.other.name
        before = self.voters.get(name)
        here = self.voters[name] = ConnectedVoter(_candidate(connection.other), connection)
        self.away_since.pop(name, None)
        if before is not None:
            before.connection.close()
        log.debug("voter_connected", voter=name)
        try:
            while True:
                message = decode_for_replica(await connection.receive())
                if getattr(message, "voter", None) != name:
                    raise WrongMessage("A voter may speak for itself only.")
                self._driver_here.receive(message)
        finally:
            if self.voters.get(name) is here:
                del self.voters[name]
                self.away_since[name] = asyncio.get_running_loop().time()
                if len(self.away_since) > MOST_REMEMBERED:
                    del self.away_since[next(iter(self.away_since))]
                log.debug("voter_disconnected", voter=name)

    # --- the other scheduler --------------------------------------------------------------------------------------------

    async def _dial(self) -> None:
        backoff, said = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS), ""
        while True:
            try:
                connection = await frames.connect(
                    self._peer_address, self._hello("replica"), self._keys.schedulers, tls=self._client_tls
                )
            except (OSError, TimeoutError, ConnectionLost, WrongPeer) as error:
                self.peer_problem = str(error) or type(error).__name__
                if self.peer_problem != said:
                    log.warning("peer_connection_failed", address=self._peer_address, message=self.peer_problem)
                    said = self.peer_problem
                await asyncio.sleep(backoff.next())
                continue
            try:
                self._check_cluster(connection.other)
                self._out, self.peer_problem, said = connection, "", ""
                backoff.reset()
                self._meet(connection.other)
                log.info("peer_connected", address=self._peer_address, replica=connection.other.name)
                await connection.receive()  # the other end sends nothing here: this ends with the connection
                raise WrongPeer("The other scheduler has sent something on a connection that is for this one.")
            except (ConnectionLost, WrongPeer) as error:
                self.peer_problem = str(error)
                if self.peer_problem != said:
                    log.warning("peer_disconnected", address=self._peer_address, message=str(error))
                    said = self.peer_problem
                await asyncio.sleep(backoff.next())
            finally:
                self._out = None
                connection.close()

    def _meet(self, other: Hello) -> None:
        if other.name == self._name:
            raise WrongPeer(
                "This scheduler is connected with itself, or with one that has a copy of its data folder. Check "
                "replication.peer_address, and give each scheduler its own data folder."
            )
        self.peer_url, self.peer_version = other.info.get("url", ""), other.version
        if other.name != self._peer:
            self._peer = other.name
            driver = self._driver_here
            driver.step(lambda now: driver.replica.meet(now, other.name) or ())

    async def _hear_peer(self, connection: FramedConnection) -> None:
        """Pass on the messages that the other scheduler sends on the connection that it has dialled."""
        name = connection.other.name
        while True:
            body = await connection.receive()
            if body[:1] == CONTROL:
                with suppress(msgspec.MsgspecError):  # a newer version may say more
                    self._told(msgspec.msgpack.decode(body[1:], type=Control))
                continue
            message = decode_for_replica(body[1:])
            if getattr(message, "replica", None) != name:
                raise WrongMessage("A replica may speak for itself only.")
            if name == self._peer:
                self._driver_here.receive(message)

    @property
    def _driver_here(self) -> ReplicaDriver:
        assert self._driver is not None, "the network runs with a driver"
        return self._driver


def _candidate(voter: Hello) -> CandidateVoter:
    kind, node = voter.info.get("kind"), voter.info.get("node", "")
    match kind:
        case "agent" | "witness" | "scheduler":
            return CandidateVoter(kind, node)
        case _:
            raise WrongPeer(f"A voter must be an agent, a witness or a scheduler, and this one says {kind!r}.")
