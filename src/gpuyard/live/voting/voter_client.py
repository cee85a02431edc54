"""The connections of a voter: it dials all schedulers, so that only these need an open port.

    voter ──── dials ────► scheduler that leads      renews its lease, proposes memberships
          ──── dials ────► standby                   asks for votes when the leader is silent

A voter belongs to the cluster of the first scheduler that it meets, and refuses others afterwards. Its record is written
in a thread of its own, because the process has other work that must not wait for a slow disk.
"""

import asyncio
import random
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from math import isfinite
from typing import TypeVar

import structlog

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.replication.encoding import WrongMessage, decode_for_voter, encode
from gpuyard.core.replication.outputs import SendMessage
from gpuyard.core.replication.timing import LONGEST_LEASE_SECONDS
from gpuyard.live.voting.voter_file import DurableVoter
from gpuyard.live.wire import frames
from gpuyard.live.wire.frames import FramedConnection, Hello, WrongPeer
from gpuyard.system.backoff import Backoff
from gpuyard.version import __version__

RETRY_SECONDS, MAX_RETRY_SECONDS = 0.2, 2.0
STEADY_SECONDS = 0.5
"""A scheduler that refuses this voter after the handshake does so before this time is over."""

T = TypeVar("T")

log = structlog.get_logger()


class VoterClient:
    """Connects a voter with all schedulers. Its methods are called in the loop in which it runs, or before."""

    def __init__(
        self,
        voter: DurableVoter,
        kind: str,
        node: str,
        join_token: Callable[[], str],
        *,
        tls: ssl.SSLContext | None = None,
        own_address: str = "",
    ) -> None:
        """`kind` is `agent`, `witness` or `scheduler`; `node` is the node or machine of the voter.

        `own_address` is where the scheduler listens that this voter is a part of. Its certificate is not checked, because
        it is for the names under which others reach it.
        """
        self.problems: dict[str, str] = {}
        """Why there is no connection, by address; empty: there is one."""
        self._voter = voter
        self._info = {"kind": kind, "node": node}
        self._join_token = join_token
        self._tls = tls
        self._own_address = own_address
        self._addresses: tuple[str, ...] = ()
        self._changed = asyncio.Event()
        self._leases: dict[str, float] = {}
        """What the schedulers that are connected have told, by address."""
        self._writer = ThreadPoolExecutor(1, "voter")

    @property
    def connected(self) -> list[str]:
        """The addresses of the schedulers that are connected."""
        return [address for address, problem in self.problems.items() if not problem]

    @property
    def problem(self) -> str:
        """Why a scheduler is not connected; empty: all are."""
        return next((problem for problem in self.problems.values() if problem), "")

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Connect with the schedulers at these addresses, each HOST:PORT, and with no others."""
        self._addresses = tuple(dict.fromkeys(addresses))
        self._changed.set()

    async def leave_cluster(self) -> None:
        """Let the voter belong to no cluster, so that it can join another one. Raise OSError if it cannot be written."""
        await self._in_thread(self._voter.leave)

    async def run(self) -> None:
        """Stay connected until cancelled."""
        talks: dict[str, asyncio.Task[None]] = {}
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._changed.clear()
                    for address in talks.keys() - set(self._addresses):
                        talks.pop(address).cancel()
                    for address in self._addresses:
                        if address not in talks:
                            talks[address] = group.create_task(self._stay_connected(address))
                    await self._changed.wait()
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            self._writer.shutdown(wait=False)

    async def _stay_connected(self, address: str) -> None:
        backoff, said = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS), ""

        def settle() -> None:
            nonlocal said
            said = ""
            backoff.reset()
            log.info("vote_connection_opened", address=address, voter=self._voter.name)

        try:
            while True:
                try:
                    await self._vote_at(address, settle)
                except (GpuyardError, OSError) as error:  # the file of the voter cannot be written
                    problem = self.problems[address] = str(error)
                    if problem != said:
                        log.warning("vote_connection_failed", address=address, message=problem)
                        said = problem
                await asyncio.sleep(backoff.next() * random.uniform(0.5, 1.0))  # noqa: S311 - voters of a lost leader spread
        finally:
            self.problems.pop(address, None)

    async def _vote_at(self, address: str, settle: Callable[[], None]) -> None:
        """Answer a scheduler until the connection ends."""
        token = self._join_token()
        hello = Hello(frames.PROTOCOL, frames.VOTER, self._voter.name, self._voter.cluster, __version__, self._info)
        tls = _unchecked() if self._tls is not None and address == self._own_address else self._tls
        connection = await frames.connect(address, hello, token.encode(), tls=tls)
        steady = asyncio.get_running_loop().call_later(STEADY_SECONDS, settle)
        try:
            await self._meet(address, connection.other)
            self.problems[address] = ""
            await self._answer(connection)
        except WrongMessage as error:
            raise WrongPeer(f"The scheduler at {address} sent something wrong: {error}") from error
        finally:
            steady.cancel()
            self._leases.pop(address, None)
            connection.close()

    async def _meet(self, address: str, other: Hello) -> None:
        if other.kind != "replica" or not other.cluster:
            raise WrongPeer(f"The process at {address} is not a scheduler that replicates its journal.")
        lease = _lease_in(other)
        await self._in_thread(partial(self._voter.join, other.cluster))
        self._leases[address] = lease
        longest = max(self._leases.values())
        if longest > self._voter.lease_seconds or len(self._leases) == len(self._addresses):
            await self._in_thread(partial(self._voter.use_lease, longest))

    async def _answer(self, connection: FramedConnection) -> None:
        while True:
            message = decode_for_voter(await connection.receive())
            if message.replica != connection.other.name:
                raise WrongMessage("A scheduler may speak for itself only.")
            for output in await self._in_thread(partial(self._voter.receive, message)):
                if isinstance(output, SendMessage):  # commands to a node come through its agent, over gRPC
                    connection.send(encode(output.message))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Call the voter. One thread does this, so that messages of several schedulers come one after the other."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, work)


def _unchecked() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _lease_in(scheduler: Hello) -> float:
    with suppress(ValueError):
        seconds = float(scheduler.info.get("lease_seconds", ""))
        if isfinite(seconds) and 0 < seconds <= LONGEST_LEASE_SECONDS:
            return seconds
    raise WrongPeer("The scheduler does not tell how long a lease lasts. Use the same version of gpuyard everywhere.")
