"""The vote of a node on which scheduler leads. It exists once a scheduler has told the agent where to vote.

The addresses come with every registration (`Welcome.voting`) and are kept over restarts, so that the node votes also
while no scheduler leads and no agent can register.
"""

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path

import structlog

from gpuyard.core.replication.timing import Timing
from gpuyard.live.voting.voter_client import VoterClient
from gpuyard.live.voting.voter_file import VOTER_FILE, DurableVoter
from gpuyard.live.wire.clock import SYSTEM_CLOCK

OPEN_AGAIN_SECONDS = 5.0

log = structlog.get_logger()


class AgentVoter:
    """Connects the voter of a node, whose record is in the work folder."""

    def __init__(self, folder: Path, node: str, join_token: str, tls: ssl.SSLContext | None = None) -> None:
        """Read the record, if there is one; raise OSError if it cannot be read."""
        self._path = folder / VOTER_FILE
        self._node = node
        self._join_token = join_token
        self._tls = tls
        self._cluster = ""
        self._addresses: tuple[str, ...] = ()
        self._changed = asyncio.Event()
        self._voter = self._open() if self._path.exists() else None

    def promised_in(self, cluster: str) -> int:
        """Return the highest epoch that this node has granted in a cluster; it obeys no scheduler of a lower one there."""
        if self._voter is None or self._voter.cluster != cluster:
            return 0
        return self._voter.promised

    def vote_at(self, cluster: str, addresses: Sequence[str]) -> None:
        """Vote on the schedulers of this cluster at these addresses, or on none."""
        if (cluster, tuple(addresses)) != (self._cluster, self._addresses):
            self._cluster, self._addresses = cluster, tuple(addresses)
            self._changed.set()

    async def run(self) -> None:
        """Vote until cancelled."""
        while not self._addresses:
            await self._next_change()
        client = VoterClient(await self._opened(), "agent", self._node, lambda: self._join_token, tls=self._tls)
        async with asyncio.TaskGroup() as group:
            group.create_task(client.run())
            while True:
                if await self._is_of_this_cluster(client):
                    client.set_addresses(self._addresses)
                await self._next_change()

    async def _next_change(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def _is_of_this_cluster(self, client: VoterClient) -> bool:
        """Whether the voter may vote in the cluster of the node. If the node has moved to another one, it starts again."""
        if not self._cluster or (await self._opened()).cluster in {"", self._cluster}:
            return True
        try:
            client.set_addresses(())
            await client.leave_cluster()
        except OSError as error:
            log.warning("state_write_failed", path=str(self._path), message=str(error))
            return False
        return True

    async def _opened(self) -> DurableVoter:
        while self._voter is None:
            try:
                self._voter = await asyncio.to_thread(self._open)
            except OSError as error:
                log.warning("state_write_failed", path=str(self._path), message=str(error))
                await asyncio.sleep(OPEN_AGAIN_SECONDS)
        return self._voter

    def _open(self) -> DurableVoter:
        voter = DurableVoter(self._path, self._node, Timing(), SYSTEM_CLOCK.boot)
        for note in voter.notes:
            log.warning("voter_checked", message=note)
        return voter
