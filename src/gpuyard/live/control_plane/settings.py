"""The settings file of a scheduler, its checks, and its conversion to internal settings.

The keys are those of two earlier designs (the legacy API has one of them) and of gpuyard itself, each in
its own section; configs/scheduler.yaml shows all of them. Some keys are synonyms (`system.port` and
`server.http_address`, `scheduler.interval` and `scheduler.schedule_interval`): give one of them, or the same value for
both. A key of a feature that does not exist yet is refused if its value would have an effect, because a silently
ignored setting is worse than an error.
"""

import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, field
from msgspec.structs import replace

from gpuyard.core.domain.node import RESERVED_PREFIX, Gpu, NodeSpec
from gpuyard.core.domain.pool import PoolSettings
from gpuyard.core.domain.settings import Backfill, Settings
from gpuyard.core.domain.tenant import Budget, QuotaMode, Split, Tenant
from gpuyard.core.domain.validation import MOST_REMEMBERED, check_split, check_tenant
from gpuyard.core.domain.values import NodeId, TaskClass, TenantId
from gpuyard.core.engine.policies import POLICIES
from gpuyard.core.placement.scores import SCORES
from gpuyard.core.replication.timing import LONGEST_LEASE_SECONDS
from gpuyard.input.nearest_name import closest_word
from gpuyard.live.control_plane.access.allowed_hosts import refuse_plain_address, refuse_unsafe_address
from gpuyard.live.control_plane.alerts.options import AlertOptions
from gpuyard.live.control_plane.alerts.receivers.mail import Mail
from gpuyard.live.control_plane.alerts.receivers.notification import Receiver
from gpuyard.live.control_plane.alerts.receivers.webhook import Webhook, wrong_address
from gpuyard.live.control_plane.alerts.rules.built_in import BUILT_IN
from gpuyard.live.control_plane.alerts.rules.rule import Rule, Severity
from gpuyard.live.control_plane.stores.system_users import refuse_own_account
from gpuyard.live.control_plane.task_notices.policy import NoticePolicy
from gpuyard.live.wire.certificates import wrong_authority, wrong_pair
from gpuyard.live.wire.config import (
    Address,
    Complaint,
    Duration,
    DurationGivenInHours,
    DurationGivenInMilliseconds,
    DurationOrNone,
    PeerAddress,
    load,
    too_short,
)
from gpuyard.live.wire.limits import (
    CpuCount,
    GpuCount,
    GpuHours,
    GpuPercent,
    GpuSelectors,
    Labels,
    Mebibytes,
    ModelName,
    Password,
    Percent,
    PoolName,
    SystemUser,
    TenantName,
    Weight,
)
from gpuyard.live.wire.sections import FilePath, FolderPath, Section

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
DEFAULT_TENANT = "default"
"""Its limits apply to every tenant that the file does not name."""
DEFAULT_HTTP_ADDRESS = Address("127.0.0.1:8080")
DEFAULT_SCHEDULE_SECONDS = 5.0

GpuKind: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^([1-9][0-9]{0,3}:[^:\u0000-\u001f\u007f]{1,128}:[1-9][0-9]{0,4})?$(?!\n)",
        description="COUNT:MODEL:GIGABYTES, such as 8:H100:80",
    ),
]
ScoreWeight: TypeAlias = Annotated[float, Meta(ge=0, le=1_000_000)]
ShellLine: TypeAlias = Annotated[str, Meta(max_length=4096)]
LogLevel: TypeAlias = Literal["debug", "info", "warn", "warning", "error"]
Threshold: TypeAlias = Annotated[float, Meta(gt=0, le=1e12)]
ReceiverName: TypeAlias = Annotated[
    str,
    Meta(
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$(?!\n)",
        description="a name of at most 64 letters, digits, dots, dashes and underscores",
    ),
]
HeaderValue: TypeAlias = Annotated[
    str, Meta(max_length=4096, pattern=r"^[\u0021-\u007e]*$(?!\n)", description="printable ASCII without spaces")
]
MailAddress: TypeAlias = Annotated[
    str,
    Meta(
        max_length=320,
        pattern=r"^[^\u0000-\u0020\u007f<>,;:\"()@]+@[^\u0000-\u0020\u007f<>,;:\"()@]+$(?!\n)",
        description="a mail address such as ops@example.org",
    ),
]

ENGINE = Settings()
ALGORITHMS: dict[str, Settings] = {
    "round_robin": Settings(policy="fair_share"),
    "least_used": Settings(policy="priority", score="spread"),
    **{name: Settings(policy=name) for name in POLICIES},
}
"""The meaning of `scheduler.algorithm`. The legacy `round_robin` serves tenants in turn, as fair share does by usage; its
`least_used` takes the emptiest device first, which is a choice of nodes (`spread`), in the order of priority.
"""

DATABASE_SCHEMES = ("postgresql://", "postgres://")
BEATS_IN_A_LEASE = 3
"""A lease outlasts at least this many pauses between two renewals."""
LEAST_TIMEOUT_SECONDS = 3.0
"""Below this, nodes would do little but send heartbeats, which they send three times as often."""
LEAST_SECONDS = {
    "scheduler.schedule_interval": 0.1,
    "scheduler.interval": 0.1,
    "scheduler.snapshot_interval": 1.0,
    "scheduler.pool_interval": 0.1,
    "scheduler.aging": 1.0,
    "scheduler.level": 1.0,
    "scheduler.task_timeout": 1.0,
    "scheduler.grace": 0.1,
    "scheduler.max_grace": 0.1,
    "scheduler.longest_booking": 60.0,
    "scheduler.book_ahead": 60.0,
    "replication.heartbeat_interval": 0.1,
    "replication.heartbeat_timeout": 1.0,
    "replication.single_copy_after": 1.0,
    "agent.heartbeat_timeout": LEAST_TIMEOUT_SECONDS,
    "storage.retention": 60.0,
    "storage.audit_retention": 60.0,
    "storage.checkpoint_retention": 1.0,
    "blobs.retention": 1.0,
    "auth.token_lifetime": 60.0,
    "auth.session_idle": 60.0,
    "gpu.check_interval": 0.1,
    "monitor.interval": 1.0,
    "monitor.retention": 60.0,
    "alerts.interval": 0.1,
    "alerts.group_interval": 0.1,
    "alerts.repeat_interval": 60.0,
}
"""Minimum values. Shorter times would fully occupy the scheduler or make the feature useless."""
LEAST_POOL_SECONDS = 1.0
"""Minimum of the times of a pool."""
LEAST_PERIOD_SECONDS = 60.0
"""Minimum period of a tenant's budget."""
MOST_OPEN_TASKS = 100_000
"""Maximum number of open tasks of a tenant without max_open_tasks."""


OTHER_NAMES = (
    ("server.http_address", "system.host"),
    ("server.http_address", "system.port"),
    ("scheduler.schedule_interval", "scheduler.interval"),
    ("logging.level", "system.log_level"),
    ("logging.output", "system.log_file"),
    ("auth.join_token", "agent.join_token"),
)
"""Pairs of keys with the same meaning."""


class ServerTlsSection(Section, frozen=True):
    """PEM files. With a certificate and its key both ports use TLS; with `client_ca` agents need a certificate too."""

    cert: FilePath = ""
    key: FilePath = ""
    client_ca: FilePath = ""


class ServerSection(Section, frozen=True):
    """Where the scheduler listens."""

    http_address: Address | None = None
    grpc_address: Address = Address("127.0.0.1:9090")
    host_names: list[Annotated[str, Meta(min_length=1, max_length=253)]] = []
    """Further host names of the server, in addition to its address."""
    public_url: Annotated[str, Meta(max_length=2048)] = ""
    """Where clients reach this scheduler; a standby sends them there. Empty: derived from `http_address`."""
    plain: bool = False
    """Allow listening beyond loopback without TLS."""
    max_connections: Annotated[int, Meta(ge=16, le=1_000_000)] = 4096
    """Maximum number of HTTP connections; fewer if the limit of descriptors is lower."""
    max_connections_per_address: Annotated[int, Meta(ge=8, le=1_000_000)] = 1024
    max_channels: Annotated[int, Meta(ge=1, le=10_000)] = 500
    """Maximum number of terminals, shells and connections to ports; the next three keys are parts of it."""
    max_channels_per_user: Annotated[int, Meta(ge=1, le=10_000)] = 125
    max_channels_per_task: Annotated[int, Meta(ge=1, le=10_000)] = 64
    max_channels_per_node: Annotated[int, Meta(ge=1, le=500)] = 250
    tls: ServerTlsSection = ServerTlsSection()


class SystemSection(Section, frozen=True):
    """Legacy keys for the address and the log."""

    host: Annotated[str, Meta(max_length=253)] | None = None
    port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    log_level: LogLevel | None = None
    log_file: FilePath | None = None
    """Empty: standard output."""


class WeightsSection(Section, frozen=True):
    """The weights of the score `weighted`."""

    time: ScoreWeight = ENGINE.weight_time
    energy: ScoreWeight = ENGINE.weight_energy
    balance: ScoreWeight = ENGINE.weight_balance
    fragmentation: ScoreWeight = ENGINE.weight_fragmentation
    follow_idle: bool = ENGINE.weights_follow_idle
    """gpuyard.core.placement.scores.weighted documents these keys."""


class SchedulerSection(Section, frozen=True):
    """How and when the scheduler decides."""

    role: Literal["master", "standby"] = "master"
    schedule_interval: Duration | None = None
    """Only a safety sweep: decisions are made on events."""
    interval: DurationGivenInMilliseconds | None = None
    """Legacy key for `schedule_interval`, in milliseconds."""
    snapshot_interval: Duration = Duration(30)
    pool_interval: Duration = Duration(10)
    """Interval at which the elastic pools are checked."""
    algorithm: str = "default"
    policy_model: FilePath = ""
    """The trained model of the algorithm `dqn`; empty: the built-in model."""
    score: str = ""
    """Which of the suitable nodes a task gets; empty: that of the algorithm, `best_fit` for most."""
    weights: WeightsSection = WeightsSection()
    preemptive: bool = True
    """Whether tasks may take GPUs from running tasks that allow it."""
    preemption_min_run: DurationOrNone = DurationOrNone(ENGINE.preemption_min_run_seconds)
    preemption_limit: Annotated[int, Meta(ge=0, le=MOST_REMEMBERED)] = ENGINE.preemption_limit
    backfill: Backfill = ENGINE.backfill
    reserve_after: DurationOrNone = DurationOrNone(ENGINE.reserve_after_seconds)
    aging: Duration = Duration(ENGINE.aging_seconds)
    level: Duration = Duration(ENGINE.level_seconds)
    defragment: bool = ENGINE.defragment
    model_affinity: bool = ENGINE.model_affinity
    """gpuyard.core.domain.settings documents these eight keys."""
    task_timeout: DurationOrNone = DurationOrNone(0)
    """For tasks without a timeout of their own; 0: no limit."""
    grace: DurationOrNone = DurationOrNone(0)
    """Between SIGTERM and SIGKILL, for tasks without a grace of their own; 0: `executor.grace` of their node."""
    max_grace: Duration = Duration(600)
    """The longest grace that a task may request."""
    queue_size: Annotated[int, Meta(ge=0, le=MOST_REMEMBERED)] = 0
    """Maximum number of waiting tasks; 0: limited by memory only."""
    members_may_book: bool = False
    """Whether members may book GPUs for their tenant; admins and operators always may."""
    longest_booking: Duration = Duration(ENGINE.longest_booking_seconds)
    """Maximum length of a booking or a maintenance window."""
    book_ahead: Duration = Duration(ENGINE.book_ahead_seconds)
    """How far in the future a booking may begin."""


class ReplicationSection(Section, frozen=True):
    """A second scheduler that takes over."""

    enabled: bool = False
    """Replicate the journal to the other scheduler, without a database."""
    address: Address = Address("127.0.0.1:9092")
    """Where the other scheduler and the voters connect to."""
    peer_address: PeerAddress = PeerAddress("")
    """The `address` of the other scheduler."""
    single_copy_after: DurationOrNone | None = None
    """Go on without the other scheduler when it has been silent for this long; until it has caught up, new events are on
    one disk only. None: as long as the lease. 0: never, so nothing is accepted until it is back."""
    ca: FilePath = ""
    """The certificate authority of the other scheduler, with `server.tls`; empty: those of the system."""
    heartbeat_interval: Duration = Duration(0.3)
    heartbeat_timeout: Duration = Duration(1.5)
    """The lease: a standby takes over when the scheduler that leads has been silent for this long."""


class QuotaSection(Section, frozen=True):
    """The split of the cluster between online and batch work, until it is changed over the API."""

    online_percent: Percent | None = None
    batch_percent: Percent | None = None
    mode: QuotaMode | None = None
    """`strict`; `borrow`: idle GPUs of the other class may be used and are given back; `none`: there is no split."""


class AgentsSection(Section, frozen=True):
    """Rules for agents."""

    heartbeat_timeout: Duration = Duration(15)
    join_token: str = ""
    """The same as `auth.join_token`."""


class StorageSection(Section, frozen=True):
    """Where events are stored."""

    data_dir: FolderPath = "/var/lib/gpuyard"
    snapshot_dir: FilePath = ""
    """Empty: `snapshots` below the data folder."""
    retired_dir: FilePath = ""
    """Where events that no snapshot needs any more are moved, compressed; empty: they are deleted."""
    shared_storage: Annotated[str, Meta(max_length=4096)] = ""
    """postgresql://…: the database of the journal, which several schedulers share. A folder has no effect."""
    retention: Duration = Duration(30 * 86400)
    """How long ended tasks can be queried."""
    checkpoint_retention: Duration = Duration(7 * 86400)
    """How long the nodes keep the checkpoint folder of a task after its end."""
    audit_retention: Duration = Duration(365 * 86400)
    """How long events that carry a user's name are kept after their segment has left the journal."""


class BlobsSection(Section, frozen=True):
    """Code snapshots, functions, arguments and results of tasks."""

    dir: FilePath = ""
    """Empty: `blobs` below the data folder. Several schedulers need a folder that all of them share."""
    max_blob_mb: Annotated[int, Meta(ge=1, le=1_000_000)] = 256
    """Maximum size of one blob, in MiB."""
    max_tenant_mb: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 10_240
    """Maximum size of all blobs of a tenant, in MiB."""
    retention: Duration = Duration(7 * 86400)
    """How long a blob is kept after its last use by a task."""


class PredictionSection(Section, frozen=True):
    """Run times of tasks that are submitted without one."""

    enabled: bool = True
    model: str = ""
    """A file of `gpuyard train predictor`, loaded whenever it is new and not worse; empty: the built-in model."""


class LoggingSection(Section, frozen=True):
    """Level, format and destination of the log."""

    level: LogLevel | None = None
    format: Literal["json", "text"] = "json"
    output: FilePath | None = None
    """stdout, stderr or a path."""


class AuthSection(Section, frozen=True):
    """Authentication and authorization."""

    enabled: bool = False
    """If off, only the server's own user and root have access, and only over loopback."""
    local_admin: bool = False
    """With login on: also admit the server's own user and root as admins over loopback without a login."""
    token_lifetime: Duration = Duration(86400)
    """Lifetime of the tokens that a login creates, and of the sessions of browsers."""
    session_idle: Duration = Duration(7200)
    """A session of a browser that is not used for this long ends."""
    join_token: str = ""
    """The token that agents must prove to know. Empty: one is generated and kept in the data folder."""


class UserEntry(Section, frozen=True):
    """A user that exists from the start."""

    username: TenantName
    password: Password
    """In plain text, or as a hash that begins with $argon2."""
    tenant_id: TenantName = DEFAULT_TENANT
    role: Literal["admin", "operator", "member", "viewer", "user"] = "member"
    """The legacy role `user` is a member."""
    system_user: SystemUser = ""
    """The system account that the user's tasks run as; empty: that of the tenant."""


class PoolEntry(Section, frozen=True):
    """Nodes of one kind that are booted on demand by an administrator's commands."""

    gpus: GpuKind = ""
    """The GPUs of each node."""
    cpus: CpuCount = 0
    memory_mb: Mebibytes = 0
    labels: Labels = {}
    min: Annotated[int, Meta(ge=0, le=10_000)] = 0
    max: Annotated[int, Meta(ge=1, le=10_000)] = 1
    price: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """Price of a GPU for an hour: the cheapest pool that can hold a waiting task boots a node for it."""
    boot_command: ShellLine = ""
    release_command: ShellLine = ""
    idle: Duration = Duration(600)
    """A node without tasks for this time is returned."""
    pressure: DurationOrNone = DurationOrNone(0)
    """How long a task must have waited before a node is booted for it."""
    boot_limit: Duration = Duration(900)
    """A node that has not joined within this time has failed."""
    lost_limit: Duration = Duration(900)
    """A node that has been lost for this time was taken away: it is removed and released."""


class TenantEntry(Section, frozen=True):
    """A tenant's limits, and defaults for its tasks."""

    max_gpus: GpuCount | None = None
    max_memory_per_gpu: Mebibytes = 0
    """Maximum GPU memory that a task may request on one GPU, in MiB; 0: not limited."""
    priority: Annotated[int, Meta(ge=0, le=100)] = 50
    task_class: TaskClass = field(name="class", default=TaskClass.BATCH)
    weight: Weight = 1.0
    max_gpus_by_model: dict[ModelName, GpuCount] = {}
    guaranteed_gpus: GpuCount | None = None
    max_open_tasks: Annotated[int, Meta(ge=1, le=MOST_REMEMBERED)] | None = None
    """Maximum number of tasks that have not ended; None: MOST_OPEN_TASKS."""
    gpu_hours: GpuHours | None = None
    gpu_hours_period: Duration = Duration(30 * 86400)
    user: SystemUser = ""
    """The system account that its tasks run as; empty: the one that the agent's own file names."""


class ServerGpuSection(Section, frozen=True):
    """Legacy keys for the GPUs of this machine, for the agent of `gpuyard up`. Other agents have their own files."""

    enabled: bool = True
    devices: GpuSelectors = []
    max_memory_percent: GpuPercent = 100
    max_compute_percent: GpuPercent = 100
    check_interval: Duration = Duration(5)


class MonitorSection(Section, frozen=True):
    """Past use of the GPUs: the history, and /api/monitor."""

    enabled: bool = True
    """Whether samples are taken and served."""
    interval: Duration = Duration(1)
    """Time between two samples."""
    retention: DurationGivenInHours = DurationGivenInHours(365 * 86_400)
    """How long the history is kept: single samples for an hour at most, values per minute for a week at most."""
    http_api: bool = True
    """Whether /api/monitor is served."""
    http_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """A second port that serves the whole API as well."""


class RuleEntry(Section, frozen=True):
    """Changes of a built-in rule; what is left out stays as it is built in."""

    enabled: bool = True
    severity: Severity | None = None
    threshold: Threshold | None = None
    clear: Threshold | None = None
    """A firing alert ends beyond this value; if only `threshold` is given, their ratio stays as it is built in."""
    for_: DurationOrNone | None = field(name="for", default=None)
    keep_firing_for: DurationOrNone | None = None


class WebhookEntry(Section, frozen=True):
    """A web address that is told of alerts."""

    name: ReceiverName
    url: Annotated[str, Meta(min_length=1, max_length=2048)]
    token: HeaderValue = ""
    """Sent as `Authorization: Bearer`."""
    send_resolved: bool = True


class MailEntry(Section, frozen=True):
    """Mail addresses that are told of alerts, and their server."""

    name: ReceiverName
    host: Annotated[str, Meta(min_length=1, max_length=253)]
    from_: MailAddress = field(name="from")
    to: Annotated[list[MailAddress], Meta(min_length=1, max_length=50)]
    port: Annotated[int, Meta(ge=1, le=65535)] = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    username: HeaderValue = ""
    password: Annotated[str, Meta(max_length=1024)] = ""
    ca: FilePath = ""
    """A PEM file of the authority of the server; empty: those of the system."""
    send_resolved: bool = True


class AlertsSection(Section, frozen=True):
    """Rules about the cluster, and receivers that are told when one of them holds."""

    enabled: bool = True
    interval: Duration = Duration(5)
    """Time between two evaluations."""
    group_interval: Duration = Duration(60)
    """Least time between two notifications of one group that has changed."""
    repeat_interval: Duration = Duration(4 * 3600)
    """A notification of a group that still fires is repeated after this time."""
    history: Annotated[int, Meta(ge=100, le=1_000_000)] = 10_000
    """Number of changes that are kept."""
    url: Annotated[str, Meta(max_length=2048)] = ""
    """The address of this scheduler as people reach it, for links in notifications."""
    rules: dict[str, RuleEntry] = {}
    webhooks: list[WebhookEntry] = []
    mail: list[MailEntry] = []


HostPattern: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=253,
        pattern=r"^(\*|(\*\.)?[A-Za-z0-9:\[\]][A-Za-z0-9.:\[\]-]*)$(?!\n)",
        description="a host name such as chat.example.org, *.example.org for all names below, or * for any",
    ),
]


class NotificationsSection(Section, frozen=True):
    """Whom tasks may notify of their start, end and failure."""

    hosts: Annotated[list[HostPattern], Meta(max_length=1000)] = []
    """Hosts of web addresses; empty: none."""
    local: bool = False
    """Whether addresses of the scheduler's own machine and link are allowed, too."""
    mail: Annotated[str, Meta(max_length=64)] = ""
    """The name of an entry of `alerts.mail`, whose server and sender are used; empty: no mail."""
    mail_domains: Annotated[list[HostPattern], Meta(max_length=1000)] = []
    """Domains of mail addresses; empty: none."""
    commands: bool = True
    """Whether tasks may have commands run on their nodes, as their users."""


class TracingSection(Section, frozen=True):
    """Traces of tasks, for OpenTelemetry."""

    enabled: bool = False
    endpoint: Annotated[str, Meta(min_length=1, max_length=2048)] = "http://127.0.0.1:4318/v1/traces"
    """An address that accepts OTLP over HTTP."""


class ServerSettings(Section, frozen=True):
    """All settings of a scheduler. The fields have the names of the file; the properties below combine them."""

    server: ServerSection = ServerSection()
    system: SystemSection = SystemSection()
    scheduler: SchedulerSection = SchedulerSection()
    replication: ReplicationSection = ReplicationSection()
    quota: QuotaSection = QuotaSection()
    agent: AgentsSection = AgentsSection()
    storage: StorageSection = StorageSection()
    blobs: BlobsSection = BlobsSection()
    prediction: PredictionSection = PredictionSection()
    logging: LoggingSection = LoggingSection()
    auth: AuthSection = AuthSection()
    users: list[UserEntry] = []
    pools: dict[PoolName, PoolEntry] = {}
    tenants: dict[TenantName, TenantEntry] = {}
    gpu: ServerGpuSection = ServerGpuSection()
    monitor: MonitorSection = MonitorSection()
    alerts: AlertsSection | None = AlertsSection()
    notifications: NotificationsSection = NotificationsSection()
    """None, which older files contain, means the default."""
    tracing: TracingSection = TracingSection()

    @property
    def http_address(self) -> Address:
        """Return the address of REST."""
        if self.server.http_address is not None:
            return self.server.http_address
        if self.system.host is None and self.system.port is None:
            return DEFAULT_HTTP_ADDRESS
        host = DEFAULT_HTTP_ADDRESS.host if self.system.host is None else self.system.host
        port = DEFAULT_HTTP_ADDRESS.port if self.system.port is None else self.system.port
        return Address.read(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    @property
    def grpc_address(self) -> Address:
        """Return the address for agents."""
        return self.server.grpc_address

    @property
    def join_token(self) -> str:
        """Return the configured join token; empty if there is none."""
        return self.auth.join_token or self.agent.join_token

    @property
    def log_level(self) -> str:
        """Return debug, info, warning or error."""
        level = self.logging.level or self.system.log_level or "info"
        return "warning" if level == "warn" else level

    @property
    def log_output(self) -> str:
        """Return stdout, stderr or a path."""
        return self.logging.output or self.system.log_file or "stdout"

    @property
    def schedule_seconds(self) -> float:
        """Return the interval of the safety sweep."""
        return self.scheduler.schedule_interval or self.scheduler.interval or DEFAULT_SCHEDULE_SECONDS

    @property
    def task_timeout_seconds(self) -> float | None:
        """Return the timeout of tasks without one of their own; None: no limit."""
        return self.scheduler.task_timeout or None

    @property
    def grace_seconds(self) -> float | None:
        """Return the grace of tasks without one of their own; None: that of their node."""
        return self.scheduler.grace or None

    @property
    def monitor_address(self) -> Address | None:
        """Return the second HTTP address, or None."""
        port = self.monitor.http_port
        if port is None or port == self.http_address.port or not (self.monitor.enabled and self.monitor.http_api):
            return None
        host = self.http_address.host
        return Address(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    @property
    def data_dir(self) -> Path:
        """Return the folder of the journal."""
        return Path(self.storage.data_dir).absolute()

    @property
    def database(self) -> str:
        """Return the address of the database that several schedulers share; empty: the journal is in the data folder."""
        said = self.storage.shared_storage
        return said if said.startswith(DATABASE_SCHEMES) else ""

    @property
    def public_url(self) -> str:
        """Return where clients reach this scheduler."""
        if self.server.public_url:
            return self.server.public_url.rstrip("/")
        is_alone = not self.replication.enabled and not self.database  # otherwise it is the address of all schedulers
        if is_alone and self.alerts is not None and self.alerts.url:
            return self.alerts.url.rstrip("/")
        host, port = self.http_address.host, self.http_address.port
        if host in {"", "0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
            host = socket.gethostname()
        return f"{'https' if self.server.tls.cert else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    def client_url(self, port: int) -> str:
        """Return where tasks reach this scheduler, which listens on a port; each node puts its own name for all interfaces."""
        if self.server.public_url:
            return self.server.public_url.rstrip("/")
        host = self.http_address.host
        return f"{'https' if self.server.tls.cert else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def access_file(self) -> Path:
        """Return the file of users and tokens."""
        return self.data_dir / "access.sqlite"

    @property
    def snapshot_dir(self) -> Path:
        """Return the folder of the readable snapshots."""
        return Path(self.storage.snapshot_dir) if self.storage.snapshot_dir else self.data_dir / "snapshots"

    @property
    def blob_dir(self) -> Path:
        """Return the folder of the blobs."""
        return Path(self.blobs.dir).absolute() if self.blobs.dir else self.data_dir / "blobs"

    @property
    def retired_dir(self) -> Path | None:
        """Return the folder of retired events; None: they are deleted."""
        return Path(self.storage.retired_dir) if self.storage.retired_dir else None

    def tenant_entry(self, tenant: str) -> TenantEntry:
        """Return the file's entry of a tenant; for a tenant that it does not name, the entry of `default`."""
        return self.tenants.get(tenant) or self.tenants.get(DEFAULT_TENANT) or _NOT_NAMED


_NOT_NAMED = TenantEntry()


def load_server_settings(
    path: Path | None, env: Mapping[str, str], *, not_ours: Collection[str] = ()
) -> ServerSettings:
    """Read and check the settings; raise `WrongSettings` with a message if they are wrong."""
    return load(ServerSettings, path, env, check=_wrong_with, not_ours=not_ours, other_names=OTHER_NAMES)


# --- internal settings ------------------------------------------------------------------------------------------------


def engine_settings_of(settings: ServerSettings) -> Settings:
    """Return the settings of the engine."""
    said = settings.scheduler
    known = ALGORITHMS[said.algorithm]
    return replace(
        known,
        score=said.score or known.score,
        weight_time=said.weights.time,
        weight_energy=said.weights.energy,
        weight_balance=said.weights.balance,
        weight_fragmentation=said.weights.fragmentation,
        weights_follow_idle=said.weights.follow_idle,
        preemption=said.preemptive,
        preemption_min_run_seconds=float(said.preemption_min_run),
        preemption_limit=said.preemption_limit,
        backfill=said.backfill,
        reserve_after_seconds=float(said.reserve_after),
        aging_seconds=float(said.aging),
        level_seconds=float(said.level),
        defragment=said.defragment,
        model_affinity=said.model_affinity,
        queue_size=said.queue_size,
        max_open_tasks=MOST_OPEN_TASKS,
        longest_booking_seconds=float(said.longest_booking),
        book_ahead_seconds=float(said.book_ahead),
    )


def split_of(settings: ServerSettings, *, default_mode: QuotaMode | None = None) -> Split:
    """Return the split of the cluster; if only one share is given, the other follows from it.

    A `quota` section without a mode is strict; without the section there is no split; `gpuyard up` borrows.
    """
    online, batch = settings.quota.online_percent, settings.quota.batch_percent
    default_mode = default_mode or (QuotaMode.NONE if settings.quota == QuotaSection() else QuotaMode.STRICT)
    if online is None:
        online = Split().online_percent if batch is None else round(1 - batch, 9)
    return Split(online, round(1 - online, 9) if batch is None else batch, settings.quota.mode or default_mode)


def effective(settings: ServerSettings) -> ServerSettings:
    """Fill in the effective values of keys that were left out. A value that is still None means no limit, or absent."""
    http, split, seconds = settings.http_address, split_of(settings), settings.schedule_seconds
    quota = QuotaSection(mode=split.mode)
    if split.mode is not QuotaMode.NONE:
        quota = QuotaSection(online_percent=split.online_percent, batch_percent=split.batch_percent, mode=split.mode)
    level, output = settings.log_level, settings.log_output
    lease, alone_after = settings.replication.heartbeat_timeout, settings.replication.single_copy_after
    return replace(
        settings,
        replication=replace(settings.replication, single_copy_after=lease if alone_after is None else alone_after),
        server=replace(settings.server, http_address=http),
        system=replace(settings.system, host=http.host, port=http.port, log_level=level, log_file=output),
        scheduler=replace(
            settings.scheduler, schedule_interval=Duration(seconds), interval=DurationGivenInMilliseconds(seconds)
        ),
        quota=quota,
        storage=replace(settings.storage, snapshot_dir=str(settings.snapshot_dir)),
        logging=replace(settings.logging, level=level, output=output),
        alerts=settings.alerts or AlertsSection(),
    )


def pools_of(settings: ServerSettings) -> list[tuple[PoolSettings, NodeSpec, PoolEntry]]:
    """Return the elastic pools with the spec of their nodes, the cheapest first."""
    found = []
    for name, pool in settings.pools.items():
        count, model, gigabytes = pool.gpus.split(":")
        gpus = (Gpu(model, int(gigabytes) * 1024),) * int(count)
        kind = NodeSpec(NodeId(name), gpus, pool.cpus, pool.memory_mb, tuple(sorted(pool.labels.items())))
        rule = PoolSettings(
            pool.min,
            pool.max,
            float(pool.idle),
            float(pool.pressure),
            boot_limit_seconds=float(pool.boot_limit),
            lost_seconds=float(pool.lost_limit),
        )
        found.append((rule, kind, pool))
    return sorted(found, key=lambda each: each[2].price)


def alert_options_of(settings: ServerSettings) -> AlertOptions:
    """Return the rules and receivers of alerts."""
    said = settings.alerts or AlertsSection()
    receivers: list[Receiver] = [
        Webhook(each.name, each.url, each.token, each.send_resolved, said.url.rstrip("/")) for each in said.webhooks
    ]
    receivers += [_mail_of(each) for each in said.mail]
    return AlertOptions(
        enabled=said.enabled,
        rules={name: _rule_of(rule, said.rules.get(name, RuleEntry())) for name, rule in BUILT_IN.items()},
        receivers=tuple(receivers),
        interval_seconds=float(said.interval),
        group_seconds=float(said.group_interval),
        repeat_seconds=float(said.repeat_interval),
        history=said.history,
        file=settings.data_dir / "alerts.sqlite",
        disk=settings.data_dir,
    )


def _mail_of(said: MailEntry) -> Mail:
    return Mail(
        said.name,
        said.host,
        said.port,
        said.from_,
        tuple(said.to),
        said.security,
        said.username,
        said.password,
        said.ca,
        said.send_resolved,
    )


def notice_policy_of(settings: ServerSettings) -> NoticePolicy:
    """Return whom tasks may notify."""
    said = settings.notifications
    mail = next((one for one in (settings.alerts or AlertsSection()).mail if one.name == said.mail), None)
    return NoticePolicy(
        tuple(said.hosts),
        said.local,
        None if mail is None or not said.mail else _mail_of(mail),
        tuple(said.mail_domains),
        said.commands,
    )


def _rule_of(rule: Rule, said: RuleEntry) -> Rule:
    threshold = rule.threshold if said.threshold is None else said.threshold
    clear = threshold * rule.clear / rule.threshold if said.clear is None else said.clear
    return replace(
        rule,
        enabled=said.enabled,
        severity=said.severity or rule.severity,
        threshold=threshold,
        clear=clear,
        for_seconds=rule.for_seconds if said.for_ is None else float(said.for_),
        keep_firing_seconds=rule.keep_firing_seconds if said.keep_firing_for is None else float(said.keep_firing_for),
    )


def _wrong_alerts(settings: ServerSettings) -> Iterator[Complaint]:
    """Find unknown rules, thresholds that never clear, and addresses that cannot be used."""
    said = settings.alerts or AlertsSection()
    for name, entry in said.rules.items():
        known = BUILT_IN.get(name)
        if known is None:
            near = closest_word(name, BUILT_IN)
            hint = f'did you mean "{near}"?' if near else f"available rules: {', '.join(BUILT_IN)}."
            yield f"alerts.rules.{name}", f'Unknown rule "{name}" in alerts.rules; {hint}'
            continue
        rule = _rule_of(known, entry)
        if rule.clear > rule.threshold if rule.above else rule.clear < rule.threshold:
            side = "above" if rule.above else "below"
            sentence = (
                f"alerts.rules.{name}.clear ({rule.clear:g}) must not be {side} its threshold ({rule.threshold:g})."
            )
            yield f"alerts.rules.{name}.clear", sentence
    names = [hook.name for hook in said.webhooks] + [mail.name for mail in said.mail]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield "alerts", f"alerts: two receivers are called {name}; rename one of them."
    for place, hook in enumerate(said.webhooks):
        if wrong := wrong_address(hook.url):
            yield f"alerts.webhooks.{place}.url", f"alerts.webhooks: the url of {hook.name} cannot be used; {wrong}."
    by_mail = settings.notifications.mail
    if by_mail and by_mail not in {mail.name for mail in said.mail}:
        near = closest_word(by_mail, [mail.name for mail in said.mail])
        hint = f'did you mean "{near}"?' if near else "add it, with its server and sender."
        yield "notifications.mail", f'notifications.mail: alerts.mail has no entry "{by_mail}"; {hint}'
    if said.url and (wrong := wrong_address(said.url)):
        yield "alerts.url", f"alerts.url cannot be used; {wrong}."
    if wrong := wrong_address(settings.tracing.endpoint):
        yield "tracing.endpoint", f"tracing.endpoint cannot be used; {wrong}."
    for mail in said.mail:
        if mail.username and mail.security == "none" and mail.host not in LOOPBACK:
            sentence = f"alerts.mail: {mail.name} would send its password unencrypted; use security: starttls or tls."
            yield "alerts.mail", sentence


def tenants_of(settings: ServerSettings) -> list[Tenant]:
    """Return every tenant of the file, by name. `default` is included if the file names it."""
    return [tenant_of(settings, name) for name in sorted(settings.tenants)]


def tenant_of(settings: ServerSettings, name: str) -> Tenant:
    """Return a tenant's limits; those of `default` for a tenant that the file does not name."""
    entry = settings.tenant_entry(name)
    return Tenant(
        TenantId(name),
        max_gpus=entry.max_gpus,
        max_gpus_by_model=tuple(sorted(entry.max_gpus_by_model.items())),
        guaranteed_gpus=entry.guaranteed_gpus,
        max_open_tasks=entry.max_open_tasks,
        weight=entry.weight,
        budget=Budget(entry.gpu_hours, entry.gpu_hours_period) if entry.gpu_hours else None,
    )


# --- checks -----------------------------------------------------------------------------------------------------------


def _wrong_with(settings: ServerSettings) -> Iterator[Complaint]:
    wrong_address = False
    for key, sentence in _contradictions(settings):
        wrong_address = wrong_address or key == "system.host"
        yield key, sentence
    yield from _wrong_replication(settings)
    yield from _incomplete(settings)
    if not wrong_address:
        yield from _unsafe(settings)


def _contradictions(settings: ServerSettings) -> Iterator[Complaint]:
    """Find synonyms with different values, and unknown names."""
    server, system, scheduler, logging = settings.server, settings.system, settings.scheduler, settings.logging
    if system.host is not None or system.port is not None:
        try:
            said = ServerSettings(system=system).http_address
        except ValueError:
            sentence = f'system.host is "{system.host}"; it must be the name or address of this machine.'
            yield "system.host", sentence
        else:
            yield from _differ("server.http_address", server.http_address, "system.host and system.port", said)
    yield from _differ(
        "scheduler.schedule_interval", scheduler.schedule_interval, "scheduler.interval", scheduler.interval
    )
    yield from _differ("logging.level", logging.level, "system.log_level", system.log_level)
    yield from _differ("logging.output", logging.output, "system.log_file", system.log_file)
    tokens = settings.auth.join_token, settings.agent.join_token
    if all(tokens) and tokens[0] != tokens[1]:
        sentence = "auth.join_token and agent.join_token are the same setting but differ; remove one of them."
        yield "auth.join_token", sentence
    if scheduler.algorithm not in ALGORITHMS:
        near = closest_word(scheduler.algorithm, ALGORITHMS)
        hint = f'did you mean "{near}"?' if near else f"available algorithms: {', '.join(ALGORITHMS)}."
        yield "scheduler.algorithm", f'Unknown scheduler.algorithm "{scheduler.algorithm}"; {hint}'
    if scheduler.score and scheduler.score not in SCORES:
        near = closest_word(scheduler.score, SCORES)
        hint = f'did you mean "{near}"?' if near else f"available scores: {', '.join(SCORES)}."
        yield "scheduler.score", f'Unknown scheduler.score "{scheduler.score}"; {hint}'
    if scheduler.grace > scheduler.max_grace:
        sentence = (
            f"scheduler.grace is {scheduler.grace:g} s, longer than scheduler.max_grace, {scheduler.max_grace:g} s; "
            "shorten it or raise scheduler.max_grace."
        )
        yield "scheduler.grace", sentence


def _differ(one: str, value: object, other: str, other_value: object) -> Iterator[Complaint]:
    if value and other_value and value != other_value:
        sentence = f"{one} ({value}) and {other} ({other_value}) are the same setting but differ; remove one of them."
        yield one, sentence


def _wrong_replication(settings: ServerSettings) -> Iterator[Complaint]:
    """Find settings of several schedulers that contradict each other."""
    said = settings.replication
    if settings.scheduler.role == "standby" and not settings.database and not said.enabled:
        sentence = (
            "scheduler.role is standby, which needs another scheduler: set replication.enabled and "
            "replication.peer_address, or storage.shared_storage to the database of the other one "
            "(postgresql://USER@HOST/DATABASE)."
        )
        yield "scheduler.role", sentence
    if said.enabled and settings.database:
        sentence = (
            "replication.enabled and a database in storage.shared_storage are two ways to share a journal; remove one of "
            "them."
        )
        yield "replication.enabled", sentence
    elif said.enabled and not said.peer_address:
        yield "replication.peer_address", "replication.enabled needs replication.peer_address, the other scheduler."
    elif said.enabled and said.peer_address == said.address:
        sentence = f"replication.peer_address is {said.peer_address}, the address of this scheduler; write that of the other one."
        yield "replication.peer_address", sentence
    if settings.server.public_url and (wrong := wrong_address(settings.server.public_url)):
        yield "server.public_url", f"server.public_url cannot be used; {wrong}."
    if "://" in settings.storage.shared_storage and not settings.database:
        sentence = "storage.shared_storage is not the address of a database; write postgresql://USER@HOST/DATABASE."
        yield "storage.shared_storage", sentence
    if said.heartbeat_timeout > LONGEST_LEASE_SECONDS:
        sentence = (
            f"replication.heartbeat_timeout is {said.heartbeat_timeout:g} s; it is the time without a leader after a failure, "
            f"and may be {LONGEST_LEASE_SECONDS:g} s at most."
        )
        yield "replication.heartbeat_timeout", sentence
    http = settings.server.http_address
    for key, port, is_used in (
        ("server.http_address", http.port if http else settings.system.port, said.enabled or settings.database),
        ("replication.address", said.address.port, said.enabled),
    ):
        if is_used and port == 0:
            yield key, f"{key} has port 0, but the other scheduler must know the port; give it a number."
    for key, port in (
        ("server.http_address", http.port if http else settings.system.port),
        ("server.grpc_address", settings.grpc_address.port),
    ):
        if said.enabled and said.address.port == port != 0:
            yield (
                "replication.address",
                f"replication.address and {key} have the same port {port}; give each its own one.",
            )
    yield from wrong_authority("replication.ca", said.ca)
    if said.heartbeat_interval * BEATS_IN_A_LEASE > said.heartbeat_timeout:
        sentence = (
            f"replication.heartbeat_interval is {said.heartbeat_interval:g} s and replication.heartbeat_timeout "
            f"{said.heartbeat_timeout:g} s; the time-out must be at least {BEATS_IN_A_LEASE} intervals."
        )
        yield "replication.heartbeat_interval", sentence
    if said.single_copy_after and said.single_copy_after < said.heartbeat_timeout:
        sentence = (
            f"replication.single_copy_after is {said.single_copy_after:g} s; it must be 0 (never) or at least "
            f"replication.heartbeat_timeout, {said.heartbeat_timeout:g} s."
        )
        yield "replication.single_copy_after", sentence


def refuse_unsafe_addresses(settings: ServerSettings) -> str | None:
    """Return why a scheduler must not listen on the configured addresses, or None."""
    return next((sentence for _, sentence in _unsafe(settings)), None)


def _unsafe(settings: ServerSettings) -> Iterator[Complaint]:
    """Find addresses that other machines can reach without a login or without encryption."""
    key = "server.http_address" if settings.server.http_address is not None else "system.host"
    closed = settings.server.tls.cert or settings.server.plain
    sentence = refuse_unsafe_address(str(settings.http_address), settings.auth.enabled)
    if not sentence and not closed:
        sentence = refuse_plain_address(key, str(settings.http_address))
    if sentence:
        yield key, sentence
    if not closed and (sentence := refuse_plain_address("server.grpc_address", str(settings.grpc_address))):
        yield "server.grpc_address", sentence
    address = str(settings.replication.address)
    if (
        settings.replication.enabled
        and not closed
        and (sentence := refuse_plain_address("replication.address", address))
    ):
        yield "replication.address", sentence


def _incomplete(settings: ServerSettings) -> Iterator[Complaint]:
    """Find settings that require others, and impossible limits."""
    tls = settings.server.tls
    if bool(tls.cert) != bool(tls.key):
        yield "server.tls", "server.tls needs both cert and key; set the missing one."
    if tls.client_ca and not tls.cert:
        yield "server.tls.client_ca", "server.tls.client_ca also needs server.tls.cert and server.tls.key."
    yield from wrong_tls_files(tls)
    yield from _mapped_to_owner(settings)
    yield from too_short(settings, LEAST_SECONDS)
    yield from _wrong_alerts(settings)
    for name, entry in sorted(settings.tenants.items()):
        if entry.gpu_hours_period < LEAST_PERIOD_SECONDS:
            key = f"tenants.{name}.gpu_hours_period"
            yield key, f"{key} is {entry.gpu_hours_period:g} s; it must be at least {LEAST_PERIOD_SECONDS:g} s."
    if refusal := check_split(split_of(settings)):
        yield "quota", f"quota: {refusal.sentence()}"
    for name, pool in settings.pools.items():
        yield from _wrong_pool(f"pools.{name}", pool)
    for tenant in tenants_of(settings):
        if wrong := check_tenant(tenant):
            yield f"tenants.{tenant.id}", f"tenants.{tenant.id}: {wrong.sentence()}"
    names = [user.username for user in settings.users]
    for name in names:
        if names.count(name) > 1:
            yield "users", f"users: {name} occurs twice; remove one entry."
    if _lacks_an_admin(settings):
        sentence = (
            f"auth.enabled is true, but neither users nor {settings.data_dir} contains an "
            "administrator. Add a user with the role admin to users, or set auth.local_admin: true "
            "and run `gpuyard users add NAME --role admin` as root or as the user who runs the "
            "scheduler."
        )
        yield "auth.enabled", sentence


def mapped_to_scheduler(settings: ServerSettings, uid: int) -> Iterator[Complaint]:
    """Find users and tenants whose tasks would run under the scheduler's uid although login is on."""
    for user in settings.users:
        if sentence := refuse_own_account(f"users: system_user of {user.username}", user.system_user, uid):
            yield "users", sentence
    if not settings.auth.enabled:  # without login, this user's own tasks may belong to any tenant
        return
    for name, entry in sorted(settings.tenants.items()):
        key = f"tenants.{name}.user"
        if sentence := refuse_own_account(key, entry.user, uid):
            yield key, sentence


def _mapped_to_owner(settings: ServerSettings) -> Iterator[Complaint]:
    """Check the same for the owner of the data folder. Until it exists, only the server's start shows the uid."""
    with suppress(OSError):
        yield from mapped_to_scheduler(settings, settings.data_dir.stat().st_uid)


def wrong_tls_files(tls: ServerTlsSection) -> Iterator[Complaint]:
    """Find TLS files with which no port can be opened."""
    yield from wrong_pair("server.tls.cert", tls.cert, "server.tls.key", tls.key)
    if tls.cert:
        yield from wrong_authority("server.tls.client_ca", tls.client_ca)


def _lacks_an_admin(settings: ServerSettings) -> bool:
    """Whether the cluster would have no administrator. An existing store of users is checked when the server starts."""
    if not settings.auth.enabled or settings.auth.local_admin or any(user.role == "admin" for user in settings.users):
        return False
    try:
        settings.access_file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # a folder of another user: only the server can read it
        return False
    return False


def _wrong_pool(key: str, pool: PoolEntry) -> Iterator[Complaint]:
    for part in ("gpus", "boot_command", "release_command"):
        if not getattr(pool, part):
            yield f"{key}.{part}", f"{key}.{part} is missing; set it or remove the pool."
    if pool.min > pool.max:
        yield f"{key}.min", f"{key}.min ({pool.min}) is above {key}.max ({pool.max})."
    for label in pool.labels:
        if label.startswith(RESERVED_PREFIX):
            sentence = (
                f'{key}.labels contains "{label}"; labels that begin with {RESERVED_PREFIX} are reserved for agents.'
            )
            yield f"{key}.labels", sentence
    for part in ("idle", "boot_limit", "lost_limit"):
        if (seconds := getattr(pool, part)) < LEAST_POOL_SECONDS:
            yield f"{key}.{part}", f"{key}.{part} is {seconds:g} s; it must be at least {LEAST_POOL_SECONDS:g} s."
