"""A provider whose nodes exist in memory only: the twin for tests, and the one a simulation hires from.

Time and chance are handed in: `clock` says what time it is, `fails` is asked once for each boot.
"""

from collections.abc import Callable, Sequence

from gpuyard.core.domain.pool import PoolNode, PoolNodeState
from gpuyard.core.domain.values import NodeId


class MemoryProvider:
    """See gpuyard.live.pool.provider.Provider."""

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
        self._hired = {node: PoolNode(node, PoolNodeState.READY, now) for node in ready}

    def boot(self, nodes: Sequence[NodeId]) -> None:
        """Each is ready, or has failed, when the time to boot is over."""
        up_at = self._clock() + self._boot_seconds
        for node in nodes:
            if node not in self._hired:
                self._hired[node] = PoolNode(
                    node, PoolNodeState.FAILED if self._fails() else PoolNodeState.READY, up_at
                )

    def nodes(self) -> Sequence[PoolNode]:
        """As of now."""
        now = self._clock()
        return [
            hired
            if hired.since <= now
            else PoolNode(hired.node, PoolNodeState.BOOTING, hired.since - self._boot_seconds)
            for hired in self._hired.values()
        ]

    def release(self, nodes: Sequence[NodeId]) -> None:
        """At once."""
        now = self._clock()
        for node in nodes:
            hired = self._hired.pop(node, None)
            if hired is not None and hired.state is not PoolNodeState.GONE:
                self._hired[node] = PoolNode(node, PoolNodeState.GONE, now)

    def next_change(self) -> float | None:
        """When the next node is up or has failed."""
        now = self._clock()
        return min((hired.since for hired in self._hired.values() if hired.since > now), default=None)
