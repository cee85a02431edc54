"""The port to whoever boots nodes: a cloud, a power switch, an administrator's command.

    boot      ask for nodes, by names the yard chose       returns at once; what becomes of them is in `nodes`
    nodes     everything that was asked for                booting, then ready or failed; leaving, then gone
    release   let nodes go, whatever state they are in     a second time, once they are gone: forget them

Every call is safe to repeat: a name that is known is not booted twice, and one that is not known is let go already. So
whoever crashed between a call and writing it down just calls again. A provider does not tell the yard that a node is
there: a node joins by itself, under the name it was given. What stands in `nodes` survives a restart of the scheduler.

All of them pass `tests/contract/test_provider.py`.
"""

from collections.abc import Sequence
from typing import Protocol

from gpuyard.core.domain.pool import PoolNode
from gpuyard.core.domain.values import NodeId


class Provider(Protocol):
    """Boots nodes of one kind, and takes them back."""

    def boot(self, nodes: Sequence[NodeId]) -> None:
        """Ask for nodes."""
        ...

    def nodes(self) -> Sequence[PoolNode]:
        """All that were asked for and not forgotten, in the order they were asked for."""
        ...

    def release(self, nodes: Sequence[NodeId]) -> None:
        """Let nodes go; forget those that are gone."""
        ...
