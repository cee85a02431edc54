"""What a scheduler is told before it starts: its file of settings, and what that means inside.

The keys are those of 003 and 002 and ours, in their own sections; configs/scheduler.yaml shows every one. Some say the
same thing twice (`system.port` and `server.http_address`, `scheduler.interval` and `scheduler.schedule_interval`): one
may be left out, or both must agree. A key whose feature does not exist yet is refused when it is set to anything that
would have an effect: a setting that is silently ignored is worse than none.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, field
from msgspec.structs import replace

from gpuyard.core.domain.node import RESERVED_PREFIX, Gpu, NodeSpec
from gpuyard.core.domain.pool import PoolSettings
from gpuyard.core.domain.settings import Backfill, Settings
from gpuyard.core.domain.tenant import Budget, QuotaMode, Split, Tenant
from gpuyard.core.domain.validation import MOST_REMEMBERED, check_split, check_tenant
from gpuyard.core.domain.values import NodeId, TaskClass, TenantId
from gpuyard.core.engine.policies import POLICIES
from gpuyard.input.nearest_name import closest_word
from gpuyard.live.control_plane.access.allowed_hosts import refuse_plain_address, refuse_unsafe_address
from gpuyard.live.control_plane.stores.system_users import refuse_own_account
from gpuyard.live.wire.certificates import wrong_authority, wrong_pair
from gpuyard.live.wire.config import (
    Address,
    Complaint,
    PeerAddress,
    Seconds,
    SecondsGivenInHours,
    SecondsGivenInMilliseconds,
    SecondsOrNone,
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
    NodeNameOrNone,
    Password,
    Percent,
    SystemUser,
    TenantName,
    Weight,
)
from gpuyard.live.wire.sections import FilePath, FolderPath, Section

DEFAULT_TENANT = "default"
"""Its limits are those of every tenant that is not named in the file."""
DEFAULT_HTTP_ADDRESS = Address("127.0.0.1:8080")
DEFAULT_SCHEDULE_SECONDS = 5.0

GpuKind: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^([1-9][0-9]{0,3}:[^:\u0000-\u001f\u007f]{1,128}:[1-9][0-9]{0,4})?$(?!\n)",
        description="COUNT:MODEL:GIGABYTES, such as 8:H100:80",
    ),
]
ShellLine: TypeAlias = Annotated[str, Meta(max_length=4096)]
LogLevel: TypeAlias = Literal["debug", "info", "warn", "warning", "error"]

ENGINE = Settings()
ALGORITHMS: dict[str, Settings] = {
    "round_robin": Settings(policy="fair_share"),
    "least_used": Settings(policy="priority", score="spread"),
    **{name: Settings(policy=name) for name in POLICIES},
}
"""What `scheduler.algorithm` means. 002's `round_robin` serves tenants in turn, which fair share does by what they used;
its `least_used` takes the emptiest device first, which is a choice of nodes (`spread`), in the order of priority."""

LEAST_TIMEOUT_SECONDS = 3.0
"""Nodes that send heartbeats three times as often would have little else to do below it."""
LEAST_SECONDS = {
    "scheduler.schedule_interval": 0.1,
    "scheduler.interval": 0.1,
    "scheduler.snapshot_interval": 1.0,
    "scheduler.ageing": 1.0,
    "scheduler.level": 1.0,
    "scheduler.task_timeout": 1.0,
    "replication.heartbeat_interval": 0.1,
    "replication.heartbeat_timeout": 1.0,
    "agent.heartbeat_timeout": LEAST_TIMEOUT_SECONDS,
    "storage.retention": 60.0,
    "storage.audit_retention": 60.0,
    "pool.idle": 1.0,
    "pool.boot_limit": 1.0,
    "pool.interval": 0.1,
    "auth.token_lifetime": 60.0,
    "gpu.check_interval": 0.1,
    "monitor.interval": 0.1,
    "monitor.retention": 60.0,
}
"""Shorter ones would keep the scheduler busy with nothing else, or make the feature useless."""
LEAST_PERIOD_SECONDS = 60.0
"""Of a tenant's budget."""
MOST_OPEN_TASKS = 100_000
"""Tasks that have not ended of a tenant whose file sets no max_open_tasks."""


OTHER_NAMES = (
    ("server.http_address", "system.host"),
    ("server.http_address", "system.port"),
    ("scheduler.schedule_interval", "scheduler.interval"),
    ("logging.level", "system.log_level"),
    ("logging.output", "system.log_file"),
    ("auth.join_token", "agent.join_token"),
)
"""Keys that say the same thing."""


class ServerTlsSection(Section, frozen=True):
    """Files in PEM form. With a certificate and its key both ports speak TLS; with `client_ca` agents need one too."""

    cert: FilePath = ""
    key: FilePath = ""
    client_ca: FilePath = ""


class ServerSection(Section, frozen=True):
    """Where the scheduler listens."""

    http_address: Address | None = None
    grpc_address: Address = Address("127.0.0.1:9090")
    host_names: list[Annotated[str, Meta(min_length=1, max_length=253)]] = []
    """Further names under which people reach it, besides its address."""
    plain: bool = False
    """Listen beyond loopback without TLS, knowingly."""
    max_connections: Annotated[int, Meta(ge=16, le=1_000_000)] = 4096
    """HTTP connections at once; fewer where the limit of descriptors is lower."""
    max_connections_per_address: Annotated[int, Meta(ge=8, le=1_000_000)] = 1024
    tls: ServerTlsSection = ServerTlsSection()


class SystemSection(Section, frozen=True):
    """002's way to say the address and the log."""

    host: Annotated[str, Meta(max_length=253)] | None = None
    port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    log_level: LogLevel | None = None
    log_file: FilePath | None = None
    """Empty: standard output."""


class SchedulerSection(Section, frozen=True):
    """How and when it decides."""

    role: Literal["master", "standby"] = "master"
    schedule_interval: Seconds | None = None
    """Only a safety sweep: decisions are made when something happens."""
    interval: SecondsGivenInMilliseconds | None = None
    """002's way to say `schedule_interval`."""
    snapshot_interval: Seconds = Seconds(30)
    algorithm: str = "default"
    policy_model: FilePath = ""
    """What the algorithm `dqn` learnt; none: the model that ships."""
    preemptive: bool = True
    """Whether tasks may take GPUs from running ones that allow it."""
    preemption_min_run: SecondsOrNone = SecondsOrNone(ENGINE.preemption_min_run_seconds)
    preemption_limit: Annotated[int, Meta(ge=0, le=MOST_REMEMBERED)] = ENGINE.preemption_limit
    backfill: Backfill = ENGINE.backfill
    ageing: Seconds = Seconds(ENGINE.ageing_seconds)
    level: Seconds = Seconds(ENGINE.level_seconds)
    model_affinity: bool = ENGINE.model_affinity
    """What these six mean is said in gpuyard.core.domain.settings."""
    task_timeout: SecondsOrNone = SecondsOrNone(0)
    """For tasks that name none; 0: they may run for ever."""
    queue_size: Annotated[int, Meta(ge=0, le=MOST_REMEMBERED)] = 0
    """How many tasks may wait; 0: as many as there is memory for."""


class ReplicationSection(Section, frozen=True):
    """A second scheduler that takes over."""

    enabled: bool = False
    peer_address: PeerAddress = PeerAddress("")
    heartbeat_interval: Seconds = Seconds(2)
    heartbeat_timeout: Seconds = Seconds(6)


class QuotaSection(Section, frozen=True):
    """How the yard is split between online and batch work, until somebody changes it over the API."""

    online_percent: Percent | None = None
    batch_percent: Percent | None = None
    mode: QuotaMode | None = None
    """`strict`; `borrow`: idle GPUs of the other class may be used and are given back; `none`: there is no split."""


class AgentsSection(Section, frozen=True):
    """What agents must keep to."""

    heartbeat_timeout: Seconds = Seconds(15)
    join_token: str = ""
    """The same as `auth.join_token`."""


class StorageSection(Section, frozen=True):
    """Where facts are kept."""

    data_dir: FolderPath = "/var/lib/gpuyard"
    snapshot_dir: FilePath = ""
    """Empty: `snapshots` below the data folder."""
    retired_dir: FilePath = ""
    """Where facts go that no snapshot needs any more, compressed; empty: they are dropped."""
    shared_storage: FilePath = ""
    retention: Seconds = Seconds(30 * 86400)
    """How long ended tasks can be asked for."""
    audit_retention: Seconds = Seconds(365 * 86400)
    """How long the facts that carry a user's name are kept after their segment has left the journal."""


class PredictionSection(Section, frozen=True):
    """Run times of tasks that come without one."""

    enabled: bool = True
    model: str = ""
    """A file of `gpuyard train predictor`, taken whenever it is new and not worse; empty: the model that ships."""


class PoolSection(Section, frozen=True):
    """Nodes that are booted while they are needed, by an administrator's commands."""

    kind: NodeNameOrNone = ""
    """How its nodes are called: kind-0001 and so on; empty: there is no pool."""
    gpus: GpuKind = ""
    """What each has."""
    cpus: CpuCount = 0
    memory_mb: Mebibytes = 0
    labels: Labels = {}
    min: Annotated[int, Meta(ge=0, le=10_000)] = 0
    max: Annotated[int, Meta(ge=1, le=10_000)] = 1
    boot_command: ShellLine = ""
    release_command: ShellLine = ""
    idle: Seconds = Seconds(600)
    """A node on which nothing has run for so long is given back."""
    pressure: SecondsOrNone = SecondsOrNone(0)
    """A task must have waited so long before a node is booted because of it."""
    boot_limit: Seconds = Seconds(900)
    """A node that has not joined by then has failed."""
    interval: Seconds = Seconds(10)
    """How often it is looked at."""


class LoggingSection(Section, frozen=True):
    """What is logged, how and where."""

    level: LogLevel | None = None
    format: Literal["json", "text"] = "json"
    output: FilePath | None = None
    """stdout, stderr or a path."""


class AuthSection(Section, frozen=True):
    """Who may do what."""

    enabled: bool = False
    """Without it only the server's own user and root can use it, and only over loopback."""
    local_admin: bool = False
    """With login on: also admit the server's own user and root without a login, over loopback, as admins."""
    token_lifetime: Seconds = Seconds(86400)
    """Of tokens that a login gives."""
    join_token: str = ""
    """Agents must show it. Empty: one is drawn and kept in the data folder."""


class UserEntry(Section, frozen=True):
    """A user that is there from the start."""

    username: TenantName
    password: Password
    """In plain text, or as a hash that begins with $argon2."""
    tenant_id: TenantName = DEFAULT_TENANT
    role: Literal["admin", "operator", "member", "viewer", "user"] = "member"
    """002's `user` is a member."""
    system_user: SystemUser = ""
    """The system account that the user's tasks run as; empty: that of the tenant."""


class TenantEntry(Section, frozen=True):
    """A tenant's limits, and what its tasks get that do not say it themselves."""

    max_gpus: GpuCount | None = None
    max_memory_per_gpu: Mebibytes = 0
    """The most GPU memory a task may ask for on one GPU, in MiB; 0: not limited."""
    priority: Annotated[int, Meta(ge=0, le=100)] = 50
    task_class: TaskClass = field(name="class", default=TaskClass.BATCH)
    weight: Weight = 1.0
    max_gpus_by_model: dict[ModelName, GpuCount] = {}
    guaranteed_gpus: GpuCount | None = None
    max_open_tasks: Annotated[int, Meta(ge=1, le=MOST_REMEMBERED)] | None = None
    """Tasks that have not ended; none: MOST_OPEN_TASKS."""
    gpu_hours: GpuHours | None = None
    gpu_hours_period: Seconds = Seconds(30 * 86400)
    user: SystemUser = ""
    """The system user its tasks run as; empty: whom the agent's own file names."""


class ServerGpuSection(Section, frozen=True):
    """002's keys for the cards of its one machine: for the agent of `gpuyard up`. Other agents have files of their own."""

    enabled: bool = True
    devices: GpuSelectors = []
    max_memory_percent: GpuPercent = 100
    max_compute_percent: GpuPercent = 100
    check_interval: Seconds = Seconds(5)


class MonitorSection(Section, frozen=True):
    """What the GPUs do, and did: /api/monitor."""

    enabled: bool = True
    """Whether samples are taken and told."""
    interval: Seconds = Seconds(5)
    """Between two samples."""
    retention: SecondsGivenInHours = SecondsGivenInHours(24 * 3600)
    """How long a sample is kept, as long as there is room."""
    http_api: bool = True
    """Whether /api/monitor is served."""
    http_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """A second port on which everything is served, too."""


class ServerSettings(Section, frozen=True):
    """Everything a scheduler is told. The names are the file's; the properties below are what they mean together."""

    server: ServerSection = ServerSection()
    system: SystemSection = SystemSection()
    scheduler: SchedulerSection = SchedulerSection()
    replication: ReplicationSection = ReplicationSection()
    quota: QuotaSection = QuotaSection()
    agent: AgentsSection = AgentsSection()
    storage: StorageSection = StorageSection()
    prediction: PredictionSection = PredictionSection()
    pool: PoolSection = PoolSection()
    logging: LoggingSection = LoggingSection()
    auth: AuthSection = AuthSection()
    users: list[UserEntry] = []
    tenants: dict[TenantName, TenantEntry] = {}
    gpu: ServerGpuSection = ServerGpuSection()
    monitor: MonitorSection = MonitorSection()
    alerts: dict[str, Any] | list[Any] | None = None

    @property
    def http_address(self) -> Address:
        """Where REST is served."""
        if self.server.http_address is not None:
            return self.server.http_address
        if self.system.host is None and self.system.port is None:
            return DEFAULT_HTTP_ADDRESS
        host = DEFAULT_HTTP_ADDRESS.host if self.system.host is None else self.system.host
        port = DEFAULT_HTTP_ADDRESS.port if self.system.port is None else self.system.port
        return Address.read(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    @property
    def grpc_address(self) -> Address:
        """Where agents are served."""
        return self.server.grpc_address

    @property
    def join_token(self) -> str:
        """What agents must show; empty: nothing."""
        return self.auth.join_token or self.agent.join_token

    @property
    def log_level(self) -> str:
        """debug, info, warning or error."""
        level = self.logging.level or self.system.log_level or "info"
        return "warning" if level == "warn" else level

    @property
    def log_output(self) -> str:
        """stdout, stderr or a path."""
        return self.logging.output or self.system.log_file or "stdout"

    @property
    def schedule_seconds(self) -> float:
        """How often it looks although nothing happened."""
        return self.scheduler.schedule_interval or self.scheduler.interval or DEFAULT_SCHEDULE_SECONDS

    @property
    def task_timeout_seconds(self) -> float | None:
        """For tasks that name none."""
        return self.scheduler.task_timeout or None

    @property
    def monitor_address(self) -> Address | None:
        """A second address of HTTP; none: there is none."""
        port = self.monitor.http_port
        if port is None or port == self.http_address.port or not (self.monitor.enabled and self.monitor.http_api):
            return None
        host = self.http_address.host
        return Address(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    @property
    def data_dir(self) -> Path:
        """The folder of the journal."""
        return Path(self.storage.data_dir).absolute()

    @property
    def access_file(self) -> Path:
        """Where users and tokens are kept."""
        return self.data_dir / "access.sqlite"

    @property
    def snapshot_dir(self) -> Path:
        """The folder of the readable snapshots."""
        return Path(self.storage.snapshot_dir) if self.storage.snapshot_dir else self.data_dir / "snapshots"

    @property
    def retired_dir(self) -> Path | None:
        """The folder of retired facts; none: they are dropped."""
        return Path(self.storage.retired_dir) if self.storage.retired_dir else None

    def tenant_entry(self, tenant: str) -> TenantEntry:
        """What the file says of a tenant; of one it does not name, what it says of `default`."""
        return self.tenants.get(tenant) or self.tenants.get(DEFAULT_TENANT) or _NOT_NAMED


_NOT_NAMED = TenantEntry()


def load_server_settings(
    path: Path | None, env: Mapping[str, str], *, not_ours: Collection[str] = ()
) -> ServerSettings:
    """Read and check. Whatever is wrong is one sentence (`WrongSettings`)."""
    return load(ServerSettings, path, env, check=_wrong_with, not_ours=not_ours, other_names=OTHER_NAMES)


# --- what it means inside -----------------------------------------------------------------------------------------------


def engine_settings_of(settings: ServerSettings) -> Settings:
    """How the engine is to decide."""
    said = settings.scheduler
    return replace(
        ALGORITHMS[said.algorithm],
        preemption=said.preemptive,
        preemption_min_run_seconds=float(said.preemption_min_run),
        preemption_limit=said.preemption_limit,
        backfill=said.backfill,
        ageing_seconds=float(said.ageing),
        level_seconds=float(said.level),
        model_affinity=said.model_affinity,
        queue_size=said.queue_size,
        max_open_tasks=MOST_OPEN_TASKS,
    )


def split_of(settings: ServerSettings, *, default_mode: QuotaMode | None = None) -> Split:
    """How the yard is split; one part alone says the other.

    A `quota` section without a mode is strict, and without the section there is no split; `gpuyard up` borrows.
    """
    online, batch = settings.quota.online_percent, settings.quota.batch_percent
    default_mode = default_mode or (QuotaMode.NONE if settings.quota == QuotaSection() else QuotaMode.STRICT)
    if online is None:
        online = Split().online_percent if batch is None else round(1 - batch, 9)
    return Split(online, round(1 - online, 9) if batch is None else batch, settings.quota.mode or default_mode)


def effective(settings: ServerSettings) -> ServerSettings:
    """The same settings with the values that hold where a key was left out; what is still none is not limited or absent."""
    http, split, seconds = settings.http_address, split_of(settings), settings.schedule_seconds
    quota = QuotaSection(mode=split.mode)
    if split.mode is not QuotaMode.NONE:
        quota = QuotaSection(online_percent=split.online_percent, batch_percent=split.batch_percent, mode=split.mode)
    level, output = settings.log_level, settings.log_output
    return replace(
        settings,
        server=replace(settings.server, http_address=http),
        system=replace(settings.system, host=http.host, port=http.port, log_level=level, log_file=output),
        scheduler=replace(
            settings.scheduler, schedule_interval=Seconds(seconds), interval=SecondsGivenInMilliseconds(seconds)
        ),
        quota=quota,
        storage=replace(settings.storage, snapshot_dir=str(settings.snapshot_dir)),
        logging=replace(settings.logging, level=level, output=output),
    )


def pool_of(settings: ServerSettings) -> tuple[PoolSettings, NodeSpec] | None:
    """The elastic pool and what a node of it is; none: there is none."""
    pool = settings.pool
    if not pool.kind:
        return None
    count, model, gigabytes = pool.gpus.split(":")
    gpus = (Gpu(model, int(gigabytes) * 1024),) * int(count)
    kind = NodeSpec(NodeId(pool.kind), gpus, pool.cpus, pool.memory_mb, tuple(sorted(pool.labels.items())))
    rule = PoolSettings(
        pool.min, pool.max, float(pool.idle), float(pool.pressure), boot_limit_seconds=float(pool.boot_limit)
    )
    return rule, kind


def tenants_of(settings: ServerSettings) -> list[Tenant]:
    """Every tenant of the file, by name. `default` is among them if the file names it."""
    return [tenant_of(settings, name) for name in sorted(settings.tenants)]


def tenant_of(settings: ServerSettings, name: str) -> Tenant:
    """A tenant's limits; those of `default` for one the file does not name."""
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


# --- what can not be ----------------------------------------------------------------------------------------------------


def _wrong_with(settings: ServerSettings) -> Iterator[Complaint]:
    wrong_address = False
    for key, sentence in _contradictions(settings):
        wrong_address = wrong_address or key == "system.host"
        yield key, sentence
    yield from _not_yet(settings)
    yield from _incomplete(settings)
    if not wrong_address:
        yield from _unsafe(settings)


def _contradictions(settings: ServerSettings) -> Iterator[Complaint]:
    """Two keys for one thing that say different things, and names that are none."""
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
        sentence = "auth.join_token and agent.join_token are the same setting and differ; keep one of them."
        yield "auth.join_token", sentence
    if scheduler.algorithm not in ALGORITHMS:
        near = closest_word(scheduler.algorithm, ALGORITHMS)
        hint = f'did you mean "{near}"?' if near else f"known are {', '.join(ALGORITHMS)}."
        yield "scheduler.algorithm", f'There is no scheduler.algorithm "{scheduler.algorithm}"; {hint}'


def _differ(one: str, value: object, other: str, other_value: object) -> Iterator[Complaint]:
    if value and other_value and value != other_value:
        sentence = f"{one} ({value}) and {other} ({other_value}) are the same setting and differ; keep one of them."
        yield one, sentence


def _not_yet(settings: ServerSettings) -> Iterator[Complaint]:
    """Keys whose feature does not exist yet, set to something that would have an effect."""
    asked = {
        "scheduler.role": settings.scheduler.role != "master",
        "replication.enabled": settings.replication.enabled,
        "alerts": bool(settings.alerts),
    }
    for key, wanted in asked.items():
        if wanted:
            yield key, f"what {key} asks for here is not supported yet; take it out of the settings."


def refuse_unsafe_addresses(settings: ServerSettings) -> str | None:
    """Why a scheduler must not listen where it is told to, or nothing."""
    return next((sentence for _, sentence in _unsafe(settings)), None)


def _unsafe(settings: ServerSettings) -> Iterator[Complaint]:
    """An address that strangers reach, without a login or without encryption."""
    key = "server.http_address" if settings.server.http_address is not None else "system.host"
    closed = settings.server.tls.cert or settings.server.plain
    sentence = refuse_unsafe_address(str(settings.http_address), settings.auth.enabled)
    if not sentence and not closed:
        sentence = refuse_plain_address(key, str(settings.http_address))
    if sentence:
        yield key, sentence
    if not closed and (sentence := refuse_plain_address("server.grpc_address", str(settings.grpc_address))):
        yield "server.grpc_address", sentence


def _incomplete(settings: ServerSettings) -> Iterator[Complaint]:
    """Things that need each other, and limits that can not be."""
    tls = settings.server.tls
    if bool(tls.cert) != bool(tls.key):
        yield "server.tls", "server.tls needs both cert and key; give the one that is missing."
    if tls.client_ca and not tls.cert:
        yield "server.tls.client_ca", "server.tls.client_ca needs server.tls.cert and server.tls.key too."
    yield from wrong_tls_files(tls)
    yield from _mapped_to_owner(settings)
    yield from too_short(settings, LEAST_SECONDS)
    for label in settings.pool.labels:
        if label.startswith(RESERVED_PREFIX):
            sentence = (
                f'pool.labels has "{label}"; labels that begin with {RESERVED_PREFIX} are made by agents themselves.'
            )
            yield "pool.labels", sentence
    for name, entry in sorted(settings.tenants.items()):
        if entry.gpu_hours_period < LEAST_PERIOD_SECONDS:
            key = f"tenants.{name}.gpu_hours_period"
            yield key, f"{key} is {entry.gpu_hours_period:g} s; it must be at least {LEAST_PERIOD_SECONDS:g} s."
    if refusal := check_split(split_of(settings)):
        yield "quota", f"quota: {refusal.sentence()}"
    yield from _pool_incomplete(settings.pool)
    for tenant in tenants_of(settings):
        if wrong := check_tenant(tenant):
            yield f"tenants.{tenant.id}", f"tenants.{tenant.id}: {wrong.sentence()}"
    names = [user.username for user in settings.users]
    for name in names:
        if names.count(name) > 1:
            yield "users", f"users: {name} stands there twice; keep one of them."
    if _lacks_an_admin(settings):
        sentence = (
            f"auth.enabled is true, users has no admin, and {settings.data_dir} holds no other users, so the scheduler "
            "could not be administered. Add a user with the role admin to users, or set auth.local_admin: true and run "
            "`gpuyard users add NAME --role admin` as root or as the user who runs the scheduler."
        )
        yield "auth.enabled", sentence


def mapped_to_scheduler(settings: ServerSettings, uid: int) -> Iterator[Complaint]:
    """Users and tenants whose tasks would run as the scheduler does, although they log in."""
    for user in settings.users:
        if sentence := refuse_own_account(f"users: system_user of {user.username}", user.system_user, uid):
            yield "users", sentence
    if not settings.auth.enabled:  # tasks that this user submits without a login may belong to any tenant
        return
    for name, entry in sorted(settings.tenants.items()):
        key = f"tenants.{name}.user"
        if sentence := refuse_own_account(key, entry.user, uid):
            yield key, sentence


def _mapped_to_owner(settings: ServerSettings) -> Iterator[Complaint]:
    """The same for whoever owns the data folder. While there is none, only the start shows who runs the scheduler."""
    with suppress(OSError):
        yield from mapped_to_scheduler(settings, settings.data_dir.stat().st_uid)


def wrong_tls_files(tls: ServerTlsSection) -> Iterator[Complaint]:
    """Files that no port can be opened with."""
    yield from wrong_pair("server.tls.cert", tls.cert, "server.tls.key", tls.key)
    if tls.cert:
        yield from wrong_authority("server.tls.client_ca", tls.client_ca)


def _lacks_an_admin(settings: ServerSettings) -> bool:
    """Whether nobody could administer the yard. Where users are kept already, the server looks at them at its start."""
    if not settings.auth.enabled or settings.auth.local_admin or any(user.role == "admin" for user in settings.users):
        return False
    try:
        settings.access_file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # another user's folder: only the server can look
        return False
    return False


def _pool_incomplete(pool: PoolSection) -> Iterator[Complaint]:
    if not pool.kind:
        if pool != PoolSection():
            yield "pool.kind", "pool.kind says how the nodes of the pool are called; give it, or take the pool out."
        return
    for key in ("gpus", "boot_command", "release_command"):
        if not getattr(pool, key):
            yield f"pool.{key}", f"pool.{key} is needed for a pool; give it, or take pool.kind out."
    if pool.min > pool.max:
        yield "pool.min", f"pool.min ({pool.min}) is above pool.max ({pool.max})."
