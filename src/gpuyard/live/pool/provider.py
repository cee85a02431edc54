"""The interface to a provider of nodes: a cloud, a power switch, an administrator's command.

    boot      request nodes, by names the scheduler chose  returns at once; their state is in `nodes`
    nodes     all nodes that were requested                booting, then ready or failed; leaving, then gone
    release   release nodes, whatever state they are in    a second time, once they are gone: forget them

Every call is safe to repeat: a known name is not booted twice, and an unknown one counts as released. So after a crash
between a call and recording it, the caller just calls again. A provider does not tell the scheduler that a node is up:
a node joins by itself, under the name it was given. The content of `nodes` survives a restart of the scheduler.

All implementations pass `tests/contract/test_provider.py`.
"""

from collections.abc import Sequence
from typing import Protocol

from gpuyard.core.domain.pool import PoolNode
from gpuyard.core.domain.values import NodeId


class Provider(Protocol):
    """Boots nodes of one kind, and takes them back."""

    def boot(self, nodes: Sequence[NodeId]) -> None:
        """Request nodes."""
        ...

    def nodes(self) -> Sequence[PoolNode]:
        """Return all nodes that were requested and not forgotten, in the order of the requests."""
        ...

    def release(self, nodes: Sequence[NodeId]) -> None:
        """Release nodes; forget those that are gone."""
        ...
