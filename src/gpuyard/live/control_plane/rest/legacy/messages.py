"""Requests and answers of the legacy API, with its names, shapes and units, so that its clients work unchanged.

Its clients decode strictly: seconds, percentages and degrees are whole numbers, lists are plain lists, an error is a
text. Additional fields are allowed. A task that timed out counts as failed there, and a suspended task as pending.

A legacy task has no command: it is a lease, GPUs held until it is cancelled or times out. `command` is accepted in
addition to the legacy fields. `memory_mb` is GPU memory, needed on each GPU. The legacy API knows one machine and
numbers its devices from 0; gpuyard numbers all GPUs, node after node in the order of node names, which is the same on
one machine (`device_numbers`).
"""

from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.values import NodeId, TaskStatus
from gpuyard.input.strict import Strict, WrongRequest
from gpuyard.live.wire.limits import Description, Instant, Mebibytes, TenantNameOrNone, Title
from gpuyard.live.wire.tasks import Argument, TaskRequest


class LegacyTaskRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task as legacy clients send it."""

    tenant_id: TenantNameOrNone | None = None
    """Empty: one's own."""
    name: Title | None = None
    description: Description | None = None
    gpu_request: Annotated[int, Meta(ge=1, le=100_000)] = 1
    memory_mb: Mebibytes | None = None
    """GPU memory needed on each GPU, in MiB."""
    priority: Annotated[int, Meta(ge=1, le=100)] | None = None
    timeout: Annotated[float, Meta(ge=0, le=1_000_000_000)] | None = None
    """In seconds; 0: none."""
    command: Argument | Annotated[list[Argument], Meta(min_length=1, max_length=10_000)] | None = None


LegacyStatus: TypeAlias = Literal["pending", "running", "completed", "failed", "cancelled"]
STATUS_WORDS: dict[TaskStatus, LegacyStatus] = {
    TaskStatus.PENDING: "pending",
    TaskStatus.RUNNING: "running",
    TaskStatus.SUSPENDED: "pending",
    TaskStatus.SUCCESS: "completed",
    TaskStatus.FAILED: "failed",
    TaskStatus.TIMEOUT: "failed",
    TaskStatus.CANCELLED: "cancelled",
}
"""The legacy name of each status."""

ROLE_WORDS = {"member": "user", "viewer": "guest"}
"""The legacy names of roles that have a different name."""
PERMISSIONS: dict[str, tuple[str, ...]] = {
    "admin": (
        "view_tasks",
        "create_tasks",
        "cancel_tasks",
        "manage_users",
        "manage_tenants",
        "view_all_tasks",
        "cancel_all_tasks",
        "view_statistics",
        "manage_system",
    ),
    "operator": (
        "view_tasks",
        "create_tasks",
        "cancel_tasks",
        "manage_tenants",
        "view_all_tasks",
        "cancel_all_tasks",
        "view_statistics",
        "manage_system",
    ),
    "member": ("view_tasks", "create_tasks", "cancel_tasks", "view_statistics"),
    "viewer": ("view_tasks", "view_statistics"),
}
"""The permissions of each role, with legacy names."""


class LegacyTask(Struct, frozen=True, kw_only=True):
    """A task as the legacy API answers it."""

    id: str
    tenant_id: str
    name: str
    description: str
    gpu_request: int
    memory_mb: int
    priority: int
    status: LegacyStatus
    created_at: Instant
    started_at: Instant | None
    finished_at: Instant | None
    device_ids: list[int]
    timeout: int
    """In seconds, rounded up; 0: none."""
    created_by: str


class LegacyError(Struct, frozen=True):
    """What went wrong: legacy clients read the text; code and field are additions."""

    error: str
    code: str
    field: str | None


class LegacyCancelled(Struct, frozen=True):
    """The answer to a cancellation; a task that had ended says how."""

    status: LegacyStatus


class TenantStats(Struct, frozen=True, kw_only=True):
    """One tenant's part of the counts."""

    max_gpus: int
    """All GPUs of the cluster, where the tenant has no limit."""
    used_gpus: int
    """A share counts as one."""
    max_memory_per_gpu: int
    """In MiB; 0: not limited."""
    usage_percent: float
    pending_tasks: int
    running_tasks: int


class StatsAnswer(Struct, frozen=True):
    """GET /api/stats."""

    pending_tasks: int
    running_tasks: int
    tenants: dict[str, TenantStats]


class DeviceMetrics(Struct, frozen=True, kw_only=True):
    """GET /api/monitor/device/{id}. What the GPU does not report is 0."""

    device_id: int
    timestamp: Instant
    gpu_utilization: int
    """In percent."""
    memory_used: int
    """In MiB, as is the total."""
    memory_total: int
    temperature: int
    power_usage: float
    """In watts, as is the limit."""
    power_limit: float
    fan_speed: int
    allocated: bool
    tenant_id: str
    task_id: str
    node_id: str
    device_index: int
    model: str


class SystemMetrics(Struct, frozen=True, kw_only=True):
    """GET /api/monitor/metrics."""

    timestamp: Instant
    total_gpus: int
    allocated_gpus: int
    avg_utilization: float
    avg_memory_usage: float
    """In percent of the memory."""
    avg_temperature: float
    avg_power_usage: float
    device_metrics: list[DeviceMetrics]
    active_tenants: int
    active_tasks: int
    tenant_utilization: dict[str, float]
    """How busy the GPUs are that each tenant holds, in percent."""


class LegacyLogin(Struct, frozen=True, kw_only=True):
    """POST /api/login."""

    token: str
    user_id: str
    username: str
    tenant_id: str
    role: str
    expires_at: int
    """Seconds since 1970."""


class CurrentUser(Struct, frozen=True, kw_only=True):
    """GET /api/user: who one is."""

    id: str
    username: str
    tenant_id: str
    role: str
    permissions: list[str]
    created_at: str
    """Empty: a user of the machine, who has no account."""
    last_login: str
    """When the newest token of a login was made; empty: never."""


class CurrentTenant(Struct, frozen=True, kw_only=True):
    """GET /api/tenant: whose limits count for one's tasks."""

    id: str
    name: str
    description: str
    max_gpus: int
    """All GPUs of the cluster, where the tenant has no limit."""
    max_memory: int
    """In MiB on each GPU; 0: not limited."""
    priority: int
    created_at: str
    """Always empty: when a tenant was first seen is not kept."""
    active: bool
    tenant_id: str
    max_memory_per_gpu: int
    """The same as `max_memory`."""
    used_gpus: float
    pending_tasks: int
    running_tasks: int


read_legacy_task = Strict(LegacyTaskRequest).json


def task_request_of(legacy: LegacyTaskRequest) -> TaskRequest:
    """Convert a legacy request to the request of /api/v1."""
    return TaskRequest(
        tenant_id=legacy.tenant_id or None,
        name=legacy.name,
        description=legacy.description,
        gpu_count=legacy.gpu_request,
        gpu_memory_mb=legacy.memory_mb,
        priority=legacy.priority,
        timeout=legacy.timeout or None,
        command=legacy.command,
    )


def in_legacy_words(wrong: WrongRequest) -> WrongRequest:
    """Rename the field of an error to its legacy name."""
    if wrong.field != "gpu_memory_mb":
        return wrong
    message = str(wrong).replace("gpu_memory_mb", "memory_mb")
    return WrongRequest(wrong.code, message, "memory_mb", status=wrong.status)


def device_numbers(nodes: Iterable[NodeSpec]) -> dict[NodeId, int]:
    """Return the number of each node's first GPU when all GPUs of the cluster are numbered consecutively."""
    numbers, first = {}, 0
    for node in sorted(nodes, key=lambda node: node.id):
        numbers[node.id] = first
        first += len(node.gpus)
    return numbers
