"""An elastic pool: nodes of one kind that a provider boots when they are needed and shuts down when they are not."""

from enum import StrEnum
from math import inf

from gpuyard.core.domain.values import NodeId, Value


class PoolNodeState(StrEnum):
    """The state of a requested node."""

    BOOTING = "booting"
    READY = "ready"
    """It is up: it has joined the cluster, or is about to."""
    FAILED = "failed"
    """It did not boot, and will not."""
    LEAVING = "leaving"
    """It was released and is not down yet."""
    GONE = "gone"
    """It is down: it was released, or the provider took it away."""


class PoolNode(Value, frozen=True):
    """A requested node that the provider still keeps a record of."""

    node: NodeId
    state: PoolNodeState
    since: float
    """The time at which it entered this state."""


class PoolSettings(Value, frozen=True):
    """The size limits of a pool, and when it grows and shrinks."""

    min_nodes: int = 0
    """This many nodes are kept even if they are idle."""
    max_nodes: int = 1
    idle_seconds: float = 600.0
    """A node is released after it has been idle for this long."""
    pressure_seconds: float = 0.0
    """How long a task must have waited before a node is requested for it."""
    retry_seconds: float = 60.0
    """How long to wait after a node failed to boot before a replacement is requested."""
    boot_limit_seconds: float = 900.0
    """A node that has not joined the cluster this long after it was requested, or became ready, has failed."""
    lost_seconds: float = inf
    """A node that has been lost for this long was taken away by the provider: it is removed and released."""


class PoolActions(Value, frozen=True):
    """The actions to take on a pool."""

    boot: tuple[NodeId, ...] = ()
    """Request these nodes."""
    give_back: tuple[NodeId, ...] = ()
    """These nodes are idle: close them to new tasks, then release them."""
    remove: tuple[NodeId, ...] = ()
    """These nodes are down: remove them and their tasks from the cluster, then release them."""
    release: tuple[NodeId, ...] = ()
    """These nodes are not in the cluster: release them; if they are down, the provider drops their record."""
    again_at: float | None = None
    """The next time at which the actions may change without any event; None: never."""
