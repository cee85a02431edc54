"""Requests and answers of /api/v1 other than tasks: GPUs, quota, nodes, tenants, users, tokens, leases, errors.

Requests are strict (`read_...`); answers are plain records that msgspec writes as they stand.
"""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct, field

from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.core.domain.values import TaskClass, TaskStatus
from gpuyard.input.strict import Strict
from gpuyard.live.wire.booking_answers import BookingReference
from gpuyard.live.wire.limits import (
    BudgetPeriod,
    Description,
    GpuCount,
    GpuHours,
    Instant,
    Mebibytes,
    ModelName,
    NodeCount,
    Password,
    Percent,
    PositiveSeconds,
    Priority,
    SystemUser,
    TenantName,
    Title,
    Weight,
)
from gpuyard.live.wire.task_answers import ForecastAnswer, TaskAnswer
from gpuyard.live.wire.tasks import TaskRequest

HealthStatus: TypeAlias = Literal[
    "ok", "starting", "storage_full", "storage_unreachable", "standby_unreachable", "stopping"
]
RoleName: TypeAlias = Literal["admin", "operator", "member", "viewer"]
"""Everything · everything except users and tokens of others · tasks of the own tenant · read only."""
UserName: TypeAlias = TenantName


# --- errors and lists ---------------------------------------------------------------------------------------------------


class Error(Struct, frozen=True):
    """An error: a stable code for programs, a message for users, and the field that caused it."""

    code: str
    message: str
    field: str | None = None


class ErrorAnswer(Struct, frozen=True):
    """The form of every error."""

    error: Error


class TaskList(Struct, frozen=True):
    """A page of tasks. `next_cursor` requests the next page; null: this is the last one."""

    tasks: list[TaskAnswer]
    total: int
    next_cursor: str | None


class CancelAnswer(Struct, frozen=True):
    """The result of cancelling a task; a task that had ended is not changed."""

    task_id: str
    id: str
    status: TaskStatus
    message: str
    had_ended: bool = False
    """Whether it had ended before, so that nothing was changed."""


class MessageAnswer(Struct, frozen=True):
    """The request was executed; `message` describes the result."""

    message: str


class HealthAnswer(Struct, frozen=True):
    """Whether the scheduler works; `message` gives the reason if not."""

    status: HealthStatus
    version: str
    message: str | None = None
    clock_ahead_seconds: float = 0.0
    """Seconds by which the time of the scheduler is ahead of the clock of its machine; below 0: behind."""
    role: Literal["master", "standby"] = "master"
    """A standby answers reads, and takes over if the master is silent."""
    epoch: int = 0
    """The number of the last take-over; 0: this scheduler has its journal for itself."""
    leader: str = ""
    """Address of the scheduler that leads; empty: none, or this scheduler has its journal for itself."""
    behind_seconds: float = 0.0
    """For a standby: how long ago it was level with the journal."""


class VoterAnswer(Struct, frozen=True):
    """An agent, a witness or a scheduler that decides, with others, which scheduler may lead."""

    name: str
    kind: Literal["agent", "witness", "scheduler", "unknown"]
    """`unknown`: it was not connected since this scheduler was started."""
    node: str
    connected: bool
    """Whether it is connected to the scheduler that answers."""
    votes: bool
    """Only some of those that are connected vote: an odd number, seven at most."""


class ReplicationAnswer(Struct, frozen=True):
    """How two schedulers replicate the journal, as one of them sees it."""

    replica: str
    """The name of the copy in the data folder of this scheduler."""
    role: Literal["leads", "follows", "candidate"]
    epoch: int
    peer: str
    """The copy of the other scheduler; empty: it was not met yet."""
    peer_url: str
    peer_connected: bool
    in_sync: list[str]
    """The copies that have every event that was ever acknowledged. Only these can lead."""
    entries: int
    """Number of entries that are acknowledged: events, and changes of users, tokens and documents."""
    standby_behind: int | None
    """Number of entries that the standby has still to confirm; null: this scheduler does not lead."""
    voters: list[VoterAnswer]
    problems: list[str]
    """What is wrong or missing, one sentence each."""


class ExplainAnswer(Struct, frozen=True):
    """Why a task waits, how many tasks are ahead of it, and when it is likely to start; null: unknown."""

    task_id: str
    status: TaskStatus
    reason: str | None
    reason_code: str | None
    ahead: int
    starts_at: Instant | None
    starts_low: Instant | None
    starts_high: Instant | None
    nodes: list[str]
    guessed: bool = False
    """The start is a rough estimate, because a task ahead has exceeded its own estimate."""
    estimated_seconds: float | None = None
    """Expected run time of the task: submitted with it, or predicted."""
    estimated_low_seconds: float | None = None
    estimated_high_seconds: float | None = None
    predicted_from: int | None = None
    """Number of similar runs from which it was predicted."""
    model_ran_on: list[str] = []
    """Suitable nodes where its model was last loaded; preferred among equally good placements."""
    forecasts: list[ForecastAnswer] = []
    """Prediction from its declared workload, for each GPU model of the cluster."""
    more_ahead: bool = False
    """More tasks than `ahead` are ahead of it: the count stops at 10,000."""
    may_be_overtaken: bool = False
    """Smaller tasks may start before it, on GPUs that are too few for it."""
    predicted_from_other_work: bool = False
    """Fewer than ten tasks of its user, size and kind had ended when its run time was predicted."""


# --- predictions --------------------------------------------------------------------------------------------------------


class PredictionScore(Struct, frozen=True):
    """Accuracy of one predictor for recently ended tasks; errors are relative. Null: fewer than 10 tasks have ended."""

    predictor: str
    about: str
    tasks: int
    median_ape: float | None
    mape: float | None
    band_coverage: float | None


class ModelStatusAnswer(Struct, frozen=True):
    """The performance model in use, and why."""

    file: str | None
    """Null: the one that is shipped."""
    since: Instant | None
    why: str
    refused: int
    """Number of rejected files."""
    refused_why: str | None
    trained_on: dict[str, int]
    """Rows of each kind; empty: no task has declared a workload yet, so the model is not loaded."""


class PredictionsAnswer(Struct, frozen=True):
    """Accuracy of the predictions of this cluster."""

    enabled: bool
    scores: list[PredictionScore]
    model: ModelStatusAnswer | None


# --- GPUs, nodes, quota -------------------------------------------------------------------------------------------------


class GpuAnswer(Struct, frozen=True, kw_only=True):
    """One GPU. `id` is NODE/INDEX, as in the `allocated_gpus` of a task."""

    id: str
    node_id: str
    device_index: int
    model: str
    memory: int
    """In MiB."""
    status: Literal["idle", "busy", "external", "offline"]
    current_task: str | None
    tasks: list[str]
    """All tasks on it: several when it is shared."""
    user: str | None = None
    """Who submitted the current task; null: nobody, or a task that the caller may not see."""
    updated_at: Instant
    uuid: str | None = None
    virtual: bool = False
    why: str | None = None
    """Why it is external or offline."""
    utilization: float | None = None
    memory_used: int | None = None
    temperature: float | None = None
    power_usage: float | None = None


class GpusAnswer(Struct, frozen=True, kw_only=True):
    """All GPUs of the cluster. `external` ones are used by processes outside the cluster."""

    total: int
    idle: int
    busy: int
    external: int
    offline: int
    gpus: list[GpuAnswer]


class ClassQuotaFigures(Struct, frozen=True):
    """Quota and usage of one class. A share counts as a fraction of a GPU."""

    quota: int
    used: float
    available: float
    """max(0, quota - used)."""


class QuotaAnswer(Struct, frozen=True, kw_only=True):
    """The split of the cluster between online and batch tasks."""

    total_gpus: int
    online: ClassQuotaFigures
    batch: ClassQuotaFigures
    online_percent: float
    batch_percent: float
    mode: QuotaMode


class QuotaRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Change the split. Both values are fractions; `batch_percent`, if given, must be 1 - `online_percent`."""

    online_percent: Percent
    batch_percent: Percent | None = None
    mode: QuotaMode | None = None


class UnknownAttemptAnswer(Struct, frozen=True):
    """An attempt that a node runs and the scheduler does not know. It is kept until it ends or an operator stops it."""

    task_id: str
    attempt: int


class NodeAnswer(Struct, frozen=True, kw_only=True):
    """A node as its agent last reported it, with its GPUs and the attempts that the scheduler does not know."""

    id: str
    status: Literal["online", "away", "offline", "cordoned", "draining"]
    reason: str | None = None
    """Why an operator has cordoned or drained it."""
    gpus: int
    gpus_idle: int
    gpu_models: dict[str, int]
    cpus: int
    memory_mb: int
    labels: dict[str, str]
    tasks: list[str]
    last_seen: Instant | None
    version: str | None
    address: str | None
    cpu_percent: float | None
    memory_used_mb: int | None
    load: float | None
    disk_free_mb: int | None
    supervisor_silent_seconds: float | None
    """Seconds since the supervisor of the tasks last answered the agent; null: it answers, or this is unknown."""
    devices: list[GpuAnswer]
    unknown_attempts: list[UnknownAttemptAnswer]


class NodeList(Struct, frozen=True):
    """All nodes."""

    nodes: list[NodeAnswer]
    total: int


# --- tenants, users, tokens ---------------------------------------------------------------------------------------------


class TenantAnswer(Struct, frozen=True, kw_only=True):
    """Limits and usage of a tenant."""

    id: str
    max_gpus: int | None
    max_gpus_by_model: dict[str, int]
    guaranteed_gpus: int | None
    max_open_tasks: int | None = None
    """Maximum number of open tasks; null: the limit of the cluster."""
    weight: float
    gpu_hours: float | None
    gpu_hours_period: float | None
    """In seconds."""
    used_gpus: float
    pending_tasks: int
    running_tasks: int


class TenantList(Struct, frozen=True):
    """All tenants that the user may see."""

    tenants: list[TenantAnswer]
    total: int


class CompletionWord(Struct, frozen=True):
    """A word that a shell can complete, and a few words about it."""

    word: str
    hint: str = ""


class CompletionList(Struct, frozen=True):
    """Words for the completion of a shell."""

    kind: str
    words: list[CompletionWord]


class TenantRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a tenant. A limit that is omitted does not apply."""

    max_gpus: GpuCount | None = None
    max_gpus_by_model: dict[ModelName, GpuCount] | None = None
    guaranteed_gpus: GpuCount | None = None
    max_open_tasks: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None
    """Maximum number of open tasks; omitted: the limit of the cluster."""
    weight: Weight | None = None
    gpu_hours: GpuHours | None = None
    gpu_hours_period: BudgetPeriod | None = None
    """In seconds (default: 30 days)."""


class UserAnswer(Struct, frozen=True, kw_only=True):
    """A user, without the password."""

    username: str
    tenant_id: str
    role: RoleName
    system_user: str = ""
    """The system account that the user's tasks run as; empty: that of the tenant."""


class UserList(Struct, frozen=True):
    """All users."""

    users: list[UserAnswer]
    total: int


class UserRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new user, or changes to an existing one, who keeps the password if none is given."""

    username: UserName
    password: Password | None = None
    tenant_id: TenantName = "default"
    role: RoleName = "member"
    system_user: SystemUser = ""
    """The system account that the user's tasks run as on nodes whose agent is root; empty: that of the tenant."""


class TokenRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new token for the current user; an administrator may create one for another user."""

    name: Title = ""
    username: UserName | None = None
    lifetime: PositiveSeconds | None = None
    """In seconds; omitted: until it is revoked, or as long as the login or token that creates it."""
    password: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    """Password of the current user. With it, the token may outlive the login or token that creates it."""


class LoginRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A username and its password."""

    username: Annotated[str, Meta(max_length=1024)]
    password: Annotated[str, Meta(max_length=1024)]


class SessionAnswer(Struct, frozen=True):
    """Who the caller is. Without a login, `login_required` is true and the rest is empty."""

    login_required: bool
    username: str | None
    tenant_id: str | None
    """Null: tasks of all tenants, and `default` for submissions."""
    role: RoleName | None
    via: Literal["token", "login", "session", "local"] | None
    """How the caller was recognized; `local`: as owner of a process on the machine of the scheduler, without a login."""
    actions: list[str]
    """The rights of the role."""


class LoginAnswer(Struct, frozen=True, kw_only=True):
    """A token for the header `Authorization: Bearer …`."""

    token: str
    user_id: str
    username: str
    tenant_id: str
    role: str
    expires_at: Instant


class TokenCreated(Struct, frozen=True, kw_only=True):
    """A new token. `token` is shown only once; the server stores its hash."""

    id: str
    token: str
    name: str
    username: str
    expires_at: Instant | None


class TokenAnswer(Struct, frozen=True, kw_only=True):
    """A token without its secret."""

    id: str
    name: str
    username: str
    created_at: Instant
    expires_at: Instant | None
    last_used_at: Instant | None


class TokenList(Struct, frozen=True):
    """All tokens that the user may see."""

    tokens: list[TokenAnswer]
    total: int


# --- leases -------------------------------------------------------------------------------------------------------------


class LeaseRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GPUs without a process, held until released or until `timeout` seconds after they were granted."""

    gpu_count: GpuCount | None = None
    timeout: PositiveSeconds | None = None
    gpu_model: ModelName | Annotated[list[ModelName], Meta(min_length=1, max_length=64)] | None = None
    gpu_memory_mb: Mebibytes | None = None
    gpu_fraction: Annotated[float, Meta(ge=0, le=1)] | None = None
    nodes: NodeCount | None = None
    priority: Literal["high", "low"] | Priority | None = None
    task_class: TaskClass | None = field(name="class", default=None)
    name: Title | None = None
    description: Description | None = None
    tenant_id: TenantName | None = None
    project: Title | None = None
    require_fit: bool | None = None
    booking: BookingReference | None = None
    """Use the GPUs of this booking."""


class LeaseAnswer(Struct, frozen=True, kw_only=True):
    """A lease. Its GPUs are held while it is `running`."""

    id: str
    task_id: str
    status: TaskStatus
    gpu_count: int
    gpus: list[str]
    node_id: str | None
    name: str
    tenant_id: str
    user: str
    created_at: Instant
    started_at: Instant | None
    expires_at: Instant | None
    finished_at: Instant | None
    reason: str | None


class LeaseList(Struct, frozen=True):
    """All leases that are held or waited for."""

    leases: list[LeaseAnswer]
    total: int


def task_of_lease(lease: LeaseRequest) -> TaskRequest:
    """A lease is a task with no command."""
    return TaskRequest(**{name: getattr(lease, name) for name in lease.__struct_fields__})


def lease_of_task(task: TaskAnswer, *, expires_at: Instant | None) -> LeaseAnswer:
    """The same the other way round."""
    return LeaseAnswer(
        id=task.id,
        task_id=task.task_id,
        status=task.status,
        gpu_count=task.gpu_count,
        gpus=task.allocated_gpus,
        node_id=task.node_id,
        name=task.name,
        tenant_id=task.tenant_id,
        user=task.user,
        created_at=task.created_at,
        started_at=task.started_at,
        expires_at=expires_at,
        finished_at=task.finished_at,
        reason=task.reason,
    )


class PortAnswer(Struct, frozen=True):
    """A TCP port on which a process of a task listens."""

    port: int
    pid: int
    command: str
    """The name of the process."""


class PortList(Struct, frozen=True):
    """The TCP ports on which a task listens."""

    ports: list[PortAnswer]


# --- reading ------------------------------------------------------------------------------------------------------------

read_quota = Strict(QuotaRequest).json
read_tenant = Strict(TenantRequest).json
read_user = Strict(UserRequest).json
read_token = Strict(TokenRequest).json
read_login = Strict(LoginRequest).json
read_lease = Strict(LeaseRequest).json
