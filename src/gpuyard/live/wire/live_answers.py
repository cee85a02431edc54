"""The answer of `GET /api/v1/overview` and the messages of `GET /api/v1/live`."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field

from gpuyard.core.domain.values import TaskClass
from gpuyard.live.wire.answers import QuotaAnswer
from gpuyard.live.wire.limits import Instant


class GpuCounts(Struct, frozen=True):
    """GPUs of the cluster by state."""

    total: int
    idle: int
    busy: int
    external: int
    offline: int


class TaskCounts(Struct, frozen=True):
    """Open tasks that the caller may see, by status."""

    pending: int
    running: int
    suspended: int


class NodeCounts(Struct, frozen=True):
    """Nodes of the cluster. A cordoned or draining node is online; the agent of an away node was stopped on purpose."""

    total: int
    online: int
    away: int
    offline: int


class AlertCounts(Struct, frozen=True):
    """Alerts by state."""

    firing: int = 0
    pending: int = 0


class ClassCounts(Struct, frozen=True):
    """Open tasks of one class that the caller may see."""

    task_class: TaskClass = field(name="class")
    running: int
    pending: int
    gpus: float
    """GPUs that they hold."""


class TenantCounts(Struct, frozen=True):
    """Open tasks of one tenant, and the GPUs that it holds."""

    tenant_id: str
    running: int
    pending: int
    gpus: float


class Change(Struct, frozen=True):
    """A recent event in the life of a task or a node."""

    at: Instant
    event: str
    """The name of the event, as in GET /api/v1/events."""
    task_id: str | None
    node_id: str | None
    text: str


class OverviewAnswer(Struct, frozen=True, kw_only=True):
    """The state of the cluster in one answer."""

    now: Instant
    version: str
    started_at: Instant
    """When the scheduler started."""
    gpus: GpuCounts
    tasks: TaskCounts
    nodes: NodeCounts
    classes: list[ClassCounts]
    tenants: list[TenantCounts]
    """Tenants with open tasks that the caller may see."""
    quota: QuotaAnswer | None
    """Null: there is no split between online and batch tasks."""
    longest_wait_seconds: float | None
    """Of the task that has been pending longest; null: none waits."""
    expected_wait_seconds: float | None
    """Expected remaining wait of the task in the middle of the queue; null: none waits, or it is not known."""
    alerts: AlertCounts
    changes: list[Change]
    """The newest events first."""
    can_plan: bool
    """Whether plans can be computed here: the packages of `gpuyard[plan]` are installed beside the scheduler."""


class LiveCard(Struct, frozen=True, gc=False):
    """A GPU in the live stream. Its position in the list is its position in `samples` and `holders`."""

    gpu_id: str
    node_id: str
    device_index: int
    model: str
    memory_mb: int


class LiveMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data of the messages `snapshot` and `sample`. A sample has no cards, and holders only if they have changed."""

    at: Instant
    build: str
    """Changes when the server runs another version: a page may then load itself again."""
    gpus: GpuCounts
    tasks: TaskCounts
    nodes: NodeCounts
    alerts: AlertCounts
    generation: int
    """Changes with the list of cards."""
    cards: list[LiveCard] | UnsetType = UNSET
    samples: str
    """Base64 of six bytes a card: state (0 idle, 1 busy, 2 external, 3 offline), utilization in percent, memory in percent,
    temperature in degrees Celsius, and power in watts as two bytes, low byte first. All bits set: unknown."""
    holders: list[str | None] | UnsetType = UNSET
    """The task on each card; null: none, or none that the caller may see."""
    changed_tasks: list[str] | UnsetType = UNSET
    changed_more: Literal[True] | UnsetType = UNSET
    """More tasks have changed than are listed, or samples were left out: ask for the tasks on the page again."""
