"""An elastic pool: nodes of one kind that somebody boots when they are needed and takes back when they are not."""

from enum import StrEnum

from gpuyard.core.domain.values import NodeId, Value


class PoolNodeState(StrEnum):
    """What has become of a node that was asked for."""

    BOOTING = "booting"
    READY = "ready"
    """It is up: it has joined the yard, or is about to."""
    FAILED = "failed"
    """It did not come up, and will not."""
    LEAVING = "leaving"
    """It was let go, and is not down yet."""
    GONE = "gone"
    """It is down: it was let go, or its owner took it away."""


class PoolNode(Value, frozen=True):
    """A node that was asked for and is not forgotten yet."""

    node: NodeId
    state: PoolNodeState
    since: float
    """Since when it is so."""


class PoolSettings(Value, frozen=True):
    """How large a pool may be, and when it grows and shrinks."""

    min_nodes: int = 0
    """So many are kept, needed or not."""
    max_nodes: int = 1
    idle_seconds: float = 600.0
    """A node on which nothing has run for so long is given back."""
    pressure_seconds: float = 0.0
    """A task must have waited so long before a node is asked for because of it."""
    retry_seconds: float = 60.0
    """After a node that did not come up, so long until another is asked for in its place."""
    boot_limit_seconds: float = 900.0
    """A node that has not joined the yard so long after it was asked for, or was up, has failed."""


class PoolActions(Value, frozen=True):
    """What is to be done about a pool."""

    boot: tuple[NodeId, ...] = ()
    """Ask for these."""
    give_back: tuple[NodeId, ...] = ()
    """Nothing runs there: see to it that nothing will, and let them go."""
    remove: tuple[NodeId, ...] = ()
    """They are down: take them out of the yard, with what may have run there, and let them be forgotten."""
    release: tuple[NodeId, ...] = ()
    """The yard does not know them (any more): let them go, or be forgotten."""
    again_at: float | None = None
    """When time alone may change the answer."""
