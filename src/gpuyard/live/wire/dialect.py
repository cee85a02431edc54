"""002's dialect on /api: the same tasks in its words, shapes and numbers, so that its clients work as they are.

Its programs decode strictly: seconds, percentages and degrees are whole numbers, lists are plain lists, an error is a text.
Fields of ours may stand beside its own. A task that took too long has failed there, and one that is suspended waits.

A task there has no command: it is a lease, GPUs held until it is cancelled or its time-out ends it. `command` is
accepted beside 002's own fields. `memory_mb` is GPU memory here, needed on each GPU. 002 has one machine and numbers its
devices from 0; a yard numbers all its GPUs through, node after node in the order of their names, which on one machine
is the same (`device_numbers`).
"""

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.task import TaskSpec
from gpuyard.core.domain.values import NodeId, TaskClass, TaskId, TaskStatus
from gpuyard.input.strict import Strict, WrongRequest
from gpuyard.live.wire.limits import Instant, Mebibytes, Note, TenantNameOrNone, Title, instant_of
from gpuyard.live.wire.tasks import Argument, TaskRequest, specs_of, spoken_task_id


class DialectRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task as 002's clients send it."""

    tenant_id: TenantNameOrNone | None = None
    """Empty: one's own."""
    name: Title | None = None
    description: Note | None = None
    gpu_request: Annotated[int, Meta(ge=1, le=100_000)] = 1
    memory_mb: Mebibytes | None = None
    """GPU memory needed on each GPU, in MiB."""
    priority: Annotated[int, Meta(ge=1, le=100)] | None = None
    timeout: Annotated[float, Meta(ge=0, le=1_000_000_000)] | None = None
    """In seconds; 0: none."""
    command: Argument | Annotated[list[Argument], Meta(min_length=1, max_length=10_000)] | None = None


DialectStatus: TypeAlias = Literal["pending", "running", "completed", "failed", "cancelled"]
STATUS_WORDS: dict[TaskStatus, DialectStatus] = {
    TaskStatus.PENDING: "pending",
    TaskStatus.RUNNING: "running",
    TaskStatus.SUSPENDED: "pending",
    TaskStatus.SUCCESS: "completed",
    TaskStatus.FAILED: "failed",
    TaskStatus.TIMEOUT: "failed",
    TaskStatus.CANCELLED: "cancelled",
}
"""What 002 calls each status."""

ROLE_WORDS = {"member": "user", "viewer": "guest"}
"""What 002 calls a role, where it has a word for it."""
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
"""What each role may do, in 002's words."""


class DialectTask(Struct, frozen=True, kw_only=True):
    """A task as 002 answers it."""

    id: str
    tenant_id: str
    name: str
    description: str
    gpu_request: int
    memory_mb: int
    priority: int
    status: DialectStatus
    created_at: Instant
    started_at: Instant | None
    finished_at: Instant | None
    device_ids: list[int]
    timeout: int
    """In seconds, rounded up; 0: none."""
    created_by: str


class DialectError(Struct, frozen=True):
    """What went wrong: 002 has the text, the other two are ours."""

    error: str
    code: str
    field: str | None


class DialectCancelled(Struct, frozen=True):
    """What 002 says to a cancelled task; one that had ended says how."""

    status: DialectStatus


class TenantStats(Struct, frozen=True, kw_only=True):
    """One tenant's part of the counts."""

    max_gpus: int
    """All GPUs of the yard, where the tenant has no limit."""
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
    """GET /api/monitor/device/{id}. What the card does not tell is 0, as 002 has it."""

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


class LoginRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """POST /api/login."""

    username: Annotated[str, Meta(max_length=1024)]
    password: Annotated[str, Meta(max_length=1024)]


class LoginAnswer(Struct, frozen=True, kw_only=True):
    """A token for the header `Authorization: Bearer …`."""

    token: str
    user_id: str
    username: str
    tenant_id: str
    role: str
    expires_at: Instant


class DialectLogin(Struct, frozen=True, kw_only=True):
    """The same in 002's words."""

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
    """All GPUs of the yard, where the tenant has no limit."""
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


read_dialect_task = Strict(DialectRequest).json
read_login = Strict(LoginRequest).json


def dialect_spec_of(
    request: DialectRequest,
    *,
    default_tenant: str,
    default_class: TaskClass = TaskClass.BATCH,
    default_priority: int = 50,
    default_timeout: float | None = None,
    max_gpu_memory_mib: int | None = None,
    user: str = "",
) -> TaskSpec:
    """The task such a request means: what the same words mean on /api/v1."""
    same = TaskRequest(
        tenant_id=request.tenant_id or None,
        name=request.name,
        description=request.description,
        gpu_count=request.gpu_request,
        gpu_memory_mb=request.memory_mb,
        priority=request.priority,
        timeout=request.timeout or None,
        command=request.command,
    )
    try:
        [spec] = specs_of(
            same,
            default_tenant=default_tenant,
            default_class=default_class,
            default_priority=default_priority,
            default_timeout=default_timeout,
            max_gpu_memory_mib=max_gpu_memory_mib,
            user=user,
        )
    except WrongRequest as wrong:
        if wrong.field != "gpu_memory_mb":
            raise
        message = str(wrong).replace("gpu_memory_mb", "memory_mb")
        raise WrongRequest(wrong.code, message, "memory_mb", status=wrong.status) from None
    return spec


def dialect_answer_of(
    id: TaskId,  # noqa: A002 - the field has this name
    spec: TaskSpec,
    *,
    status: TaskStatus,
    priority: int,
    submitted_at: float,
    started_at: float | None,
    finished_at: float | None,
    placement: Placement | None,
    numbers: Mapping[NodeId, int],
    created_by: str,
) -> DialectTask:
    """Everything 002 says about a task. `numbers` comes from `device_numbers`."""
    ask = spec.resources
    return DialectTask(
        id=spoken_task_id(id),
        tenant_id=spec.tenant,
        name=spec.name,
        description=spec.description,
        gpu_request=ask.gpus * ask.nodes or int(ask.share is not None),
        memory_mb=ask.share.memory_mib if ask.share else ask.gpu_memory_mib,
        priority=priority,
        status=STATUS_WORDS[status],
        created_at=instant_of(submitted_at),
        started_at=None if started_at is None else instant_of(started_at),
        finished_at=None if finished_at is None else instant_of(finished_at),
        device_ids=device_ids(placement, numbers),
        timeout=ceil(spec.timeout_seconds or 0),
        created_by=created_by,
    )


def is_dialect(path: str) -> bool:
    """Whether 002's clients ask there."""
    return path.startswith("/api/") and not path.startswith("/api/v1")


def device_numbers(nodes: Iterable[NodeSpec]) -> dict[NodeId, int]:
    """The number of each node's first GPU when all GPUs of the yard are numbered through."""
    numbers, first = {}, 0
    for node in sorted(nodes, key=lambda node: node.id):
        numbers[node.id] = first
        first += len(node.gpus)
    return numbers


def device_ids(placement: Placement | None, numbers: Mapping[NodeId, int]) -> list[int]:
    """The numbers of a placement's GPUs; those of a node that was taken out of the yard have none any more."""
    if placement is None:
        return []
    return [numbers[part.node] + index for part in placement.slices if part.node in numbers for index in part.gpus]
