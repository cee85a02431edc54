"""A provider whose nodes exist in memory only, for tests and simulations.

Time and randomness are passed in: `clock` returns the time, `fails` is called once for each boot.
"""

from collections.abc import Callable, Sequence

from gpuyard.core.domain.pool import PoolNode, PoolNodeState
from gpuyard.core.domain.values import NodeId


class MemoryProvider:
    """Implements `gpuyard.live.pool.provider.Provider`."""

    def __init__(
        self,
        clock: Callable[[], float],
        boot_seconds: float = 0.0,
        fails: Callable[[], bool] = lambda: False,
        ready: Sequence[NodeId] = (),
    ) -> None:
        self._clock = clock
        self._boot_seconds = boot_seconds
        self._fails = fails
        now = clock()
        self._provisioned = {node: PoolNode(node, PoolNodeState.READY, now) for node in ready}

    def boot(self, nodes: Sequence[NodeId]) -> None:
        """Boot nodes. Each is ready, or has failed, after `boot_seconds`."""
        up_at = self._clock() + self._boot_seconds
        for node in nodes:
            if node not in self._provisioned:
                self._provisioned[node] = PoolNode(
                    node, PoolNodeState.FAILED if self._fails() else PoolNodeState.READY, up_at
                )

    def nodes(self) -> Sequence[PoolNode]:
        """Return all nodes in their current state."""
        now = self._clock()
        return [
            provisioned
            if provisioned.since <= now
            else PoolNode(provisioned.node, PoolNodeState.BOOTING, provisioned.since - self._boot_seconds)
            for provisioned in self._provisioned.values()
        ]

    def release(self, nodes: Sequence[NodeId]) -> None:
        """Release nodes at once; forget those that are gone."""
        now = self._clock()
        for node in nodes:
            provisioned = self._provisioned.pop(node, None)
            if provisioned is not None and provisioned.state is not PoolNodeState.GONE:
                self._provisioned[node] = PoolNode(node, PoolNodeState.GONE, now)

    def next_change(self) -> float | None:
        """Return when the next node is ready or has failed; None if none is booting."""
        now = self._clock()
        return min(
            (provisioned.since for provisioned in self._provisioned.values() if provisioned.since > now), default=None
        )
