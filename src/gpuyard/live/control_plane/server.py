"""Assemble and run a scheduler: open the stores, recover the state, serve both ports until told to stop.

journal ─► recover ─► Scheduler ─┬─ gRPC  (agents)
access, secrets, archive ────────┴─ HTTP  (people and programs)
"""

import asyncio
import hmac
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, NamedTuple

import grpc
import grpc.aio
import msgspec
import structlog

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.errors import GpuyardError, WriterDeposed
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.tenant import QuotaMode, Split, Tenant
from gpuyard.core.domain.values import ENDED, TenantId
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.policies import POLICIES
from gpuyard.core.engine.scheduling.advice import FEATURES, Advisor
from gpuyard.core.journal.folders import FolderNotSafe, closed_folder, refuse_unsafe_folder
from gpuyard.core.journal.port import Journal
from gpuyard.live.control_plane.access.allowed_hosts import AllowedHosts
from gpuyard.live.control_plane.access.authenticator import Authenticator
from gpuyard.live.control_plane.access.principal import Role
from gpuyard.live.control_plane.access.store import AccessStore
from gpuyard.live.control_plane.alerts.shared import ALERTS_DOCUMENT
from gpuyard.live.control_plane.descriptors import for_agents, raise_limit
from gpuyard.live.control_plane.garbage_collection import collect_when_idle, freeze_recovered
from gpuyard.live.control_plane.history.store import HistoryStore
from gpuyard.live.control_plane.nodes.channels import ChannelLimits
from gpuyard.live.control_plane.nodes.outputs import WINDOW_BYTES
from gpuyard.live.control_plane.nodes.pool import ElasticPool, ElasticPools
from gpuyard.live.control_plane.nodes.registration import SchedulerSuperseded, refuse_unsafe_node
from gpuyard.live.control_plane.options import SchedulerOptions
from gpuyard.live.control_plane.prediction.performance_predictor import PerformancePredictor
from gpuyard.live.control_plane.prediction.runtime_estimator import MOST_REMEMBERED, RuntimeEstimator
from gpuyard.live.control_plane.replication.log_file import FILE as REPLICATION_FILE
from gpuyard.live.control_plane.rest.app import make_app
from gpuyard.live.control_plane.rest.serving import Limits, http_server
from gpuyard.live.control_plane.role import SchedulerRole
from gpuyard.live.control_plane.scheduler import Scheduler, Stores
from gpuyard.live.control_plane.settings import (
    ALGORITHMS,
    PoolEntry,
    ServerGpuSection,
    ServerSettings,
    alert_options_of,
    engine_settings_of,
    mapped_to_scheduler,
    notice_policy_of,
    pools_of,
    refuse_unsafe_addresses,
    split_of,
    tenants_of,
    wrong_tls_files,
)
from gpuyard.live.control_plane.stores.archive import Archive, SubmitKey
from gpuyard.live.control_plane.stores.archiver import archive_row
from gpuyard.live.control_plane.stores.blobs import BlobLimits, BlobStore
from gpuyard.live.control_plane.stores.database import StoreError
from gpuyard.live.control_plane.stores.documents import Document, Documents, FolderDocuments, drawn
from gpuyard.live.control_plane.stores.recovery import found_cluster, open_journal, recover
from gpuyard.live.control_plane.stores.secrets import SecretStore
from gpuyard.live.control_plane.stores.system_users import SystemUsers
from gpuyard.live.control_plane.tracing import is_installed as tracing_is_installed
from gpuyard.live.control_plane.views import Views
from gpuyard.live.pool.command import CommandProvider
from gpuyard.live.wire.config import Address
from gpuyard.live.wire.loopback_peer import shared_user_label, trusted_uids
from gpuyard.live.wire.rpc import agents_handler
from gpuyard.system.files import replace_file
from gpuyard.version import __version__

ANNOUNCED_ABSENCE_SECONDS = 60.0
"""How long nodes wait for a scheduler that stopped on purpose before they end fenced tasks."""
NOTE_USES_SECONDS = 60.0
SHORT_TOKEN = 16
"""In characters. A token shorter than this can be guessed offline: any client of the port gets a proof made with it."""
JOIN_TOKEN_FILE = "join_token"  # noqa: S105 - a file's name
GRPC_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),  # held in memory before the sender's proof is checked
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 3_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 3_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 20_000),  # an agent always has a call open
    ("grpc.max_concurrent_streams", 1_024),  # per agent: its session, and one stream for each followed log
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ("grpc.http2.bdp_probe", 0),  # it would raise the window of every stream to many MiB
)

log = structlog.get_logger()


class SchedulerStartError(GpuyardError):
    """The scheduler cannot start. Correct what the sentence names and start it again."""


class Applied(msgspec.Struct, frozen=True):
    """The settings that were last applied as events. They are applied again only when the file changes."""

    settings: Settings
    split: Split
    tenants: list[Tenant]
    cluster_id: str = msgspec.field(default="", name="yard")
    """Id of the cluster whose journal holds them. Another journal does not, so they are applied again."""


async def serve(
    settings: ServerSettings,
    *,
    default_mode: QuotaMode | None = None,
    take_over: bool = False,
    started: Callable[[str, int], None] = lambda _http, _grpc: None,
    until: asyncio.Event | None = None,
) -> None:
    """Run a scheduler until `stop` is set. `started` is called with the HTTP address and the gRPC port."""
    if sentence := refuse_unsafe_addresses(settings):
        raise SchedulerStartError(sentence)
    for _, sentence in (*wrong_tls_files(settings.server.tls), *mapped_to_scheduler(settings, os.geteuid())):
        raise SchedulerStartError(sentence)
    if settings.database:
        from gpuyard.live.control_plane.database_storage import DatabaseStorage  # needs psycopg
        from gpuyard.live.control_plane.shared_server import serve_shared

        await serve_shared(
            settings, DatabaseStorage, default_mode=default_mode, take_over=take_over, started=started, until=until
        )
        return
    if settings.replication.enabled:
        from gpuyard.live.control_plane.replication.storage import ReplicatedStorage
        from gpuyard.live.control_plane.shared_server import serve_shared

        await serve_shared(
            settings,
            partial(ReplicatedStorage, take_over=take_over),
            default_mode=default_mode,
            take_over=take_over,
            started=started,
            until=until,
        )
        return
    _refuse_replica(settings.data_dir)
    raise_limit()
    told = asyncio.create_task((until or asyncio.Event()).wait())
    with ExitStack() as stack:
        scheduler, access = _open(settings, stack, take_over=take_over)
        deposed = _deposed_file(settings)
        elastic = pools_in(scheduler, settings)
        http = [stack.enter_context(listen(settings.http_address))]
        if settings.monitor_address is not None:
            http.append(stack.enter_context(listen(settings.monitor_address)))
        agents = grpc_server(scheduler)
        port = bind(agents, settings)
        running = asyncio.create_task(scheduler.run(__version__))
        try:
            ready = asyncio.create_task(until_ready(scheduler))
            await first_of(ready, running, told)
            ready.cancel()
            if scheduler.ready and not told.done():
                await while_it_runs(running, apply(scheduler, settings, default_mode))
                await asyncio.to_thread(add_users, access, scheduler.stores.system_users, settings)
                refuse_without_admin(access, settings)
                freeze_recovered()
                async with _served(scheduler, running, access, settings, agents, http, elastic) as serving:
                    address = address_of(http[0])
                    log.info(
                        "scheduler_started",
                        http=address,
                        grpc_port=port,
                        cluster=scheduler.loop.engine.state.cluster_id,
                    )
                    started(f"{'https' if settings.server.tls.cert else 'http'}://{address}", port)
                    await first_of(running, serving, told)
        except SchedulerSuperseded as error:
            replace_file(
                deposed, str(error).encode()
            )  # the next start has a higher epoch, which must not admit it again
            raise
        finally:
            told.cancel()
            await _stop(scheduler, running)
    log.info("scheduler_stopped")


def _refuse_replica(folder: Path) -> None:
    """Raise an error if the data folder is that of a scheduler that replicates: the other one could lead, too."""
    if (folder / REPLICATION_FILE).exists():
        raise SchedulerStartError(
            f"The data folder {folder} belongs to a scheduler that replicates. Set replication.enabled and "
            "replication.peer_address. To run one scheduler from now on, stop both and copy it: gpuyard journal copy --from "
            f"{folder} --to NEW_FOLDER."
        )


def _deposed_file(settings: ServerSettings) -> Path:
    return settings.data_dir / "scheduler_superseded"


def _check_deposed(settings: ServerSettings, *, take_over: bool) -> None:
    """Refuse to start a scheduler that was deposed, unless it takes over."""
    path = _deposed_file(settings)
    if take_over:
        path.unlink(missing_ok=True)
    elif path.exists():
        raise SchedulerStartError(f"This data folder is no longer in use: {path.read_text(errors='replace')}")


@asynccontextmanager
async def _served(
    scheduler: Scheduler,
    running: "asyncio.Task[None]",
    access: AccessStore,
    settings: ServerSettings,
    agents: "grpc.aio.Server",
    http: Sequence[socket.socket],
    pools: ElasticPools | None,
) -> AsyncIterator["asyncio.Task[None]"]:
    """Serve both ports; they stay open while the scheduler notifies the nodes that it stops."""
    allowed_hosts = AllowedHosts(settings.http_address.host, settings.server.host_names)
    authenticator = Authenticator(access, admitted_without_login(settings))
    limits = Limits.within(raise_limit(), settings.server.max_connections, settings.server.max_connections_per_address)
    web = http_server(
        make_app(scheduler, access, authenticator, allowed_hosts, settings), tls=settings.server.tls, limits=limits
    )
    url = settings.client_url(http[0].getsockname()[1])
    scheduler.agents.clients_at = lambda: [url]
    await agents.start()
    serving = asyncio.create_task(web.serve(sockets=list(http)))
    beside = [
        asyncio.create_task(note_uses(access)),
        asyncio.create_task(collect_when_idle(lambda: len(scheduler.views.tasks))),
    ]
    if pools is not None:
        beside.append(asyncio.create_task(pools.run()))
    try:
        yield serving
    finally:
        for task in beside:
            task.cancel()
        try:
            await _stop(scheduler, running)
        finally:
            web.should_exit = True
            await agents.stop(1.0)
            await serving


def pools_in(scheduler: Scheduler, settings: ServerSettings, documents: Documents | None = None) -> ElasticPools | None:
    """Return the elastic pools, or None if none is configured. `documents`: where their nodes are kept, if not in files."""

    def provider(kind: str, said: PoolEntry) -> CommandProvider:
        nodes = None if documents is None else Document(documents, f"pools/{kind}/nodes.json")
        folder = settings.data_dir / "pools" / kind
        return CommandProvider(folder, kind, said.boot_command, said.release_command, document=nodes)

    found = [ElasticPool(provider(kind.id, said), rule, kind) for rule, kind, said in pools_of(settings)]
    return ElasticPools(scheduler.loop, found, float(settings.scheduler.pool_interval)) if found else None


async def while_it_runs(running: "asyncio.Task[None]", work: Coroutine[Any, Any, None]) -> None:
    """Do work that needs the loop. If the loop ends first, raise its error instead of waiting forever."""
    doing = asyncio.create_task(work)
    try:
        await first_of(doing, running)
        if not doing.done():
            await ended(running)
            raise SchedulerStartError("The scheduler was stopped during its start.")
        await doing
    finally:
        doing.cancel()


async def _stop(scheduler: Scheduler, running: "asyncio.Task[None]") -> None:
    """Stop a running scheduler. If it failed, raise its error."""
    if not running.done():
        await scheduler.stop(ANNOUNCED_ABSENCE_SECONDS)
    await ended(running)


async def ended(running: "asyncio.Task[None]") -> None:
    """Wait for the loop to end. Of several failures at once, raise the one with a message for users."""
    try:
        await running
    except BaseExceptionGroup as group:
        said = group.subgroup(GpuyardError)
        if said is None:
            raise
        first: BaseException = said
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from group


async def first_of(*tasks: "asyncio.Task[Any]") -> None:
    """Wait until one of these has ended."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def until_ready(scheduler: Scheduler) -> None:
    """Wait until a scheduler accepts requests."""
    while not scheduler.ready:
        await asyncio.sleep(0.001)


def address_of(http: socket.socket) -> str:
    """Return host and port of a listening socket."""
    host, port = http.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def note_uses(access: AccessStore) -> None:
    """Write the last-use times of tokens to disk periodically."""
    while True:
        await asyncio.sleep(NOTE_USES_SECONDS)
        try:
            await asyncio.to_thread(access.write_uses)
        except (StoreError, WriterDeposed) as error:
            log.warning(
                "token_use_write_failed", message=str(error)
            )  # they stay in memory and are written the next time


def note_ignored_settings(settings: ServerSettings) -> None:
    """Log settings that have no effect here."""
    if settings.storage.shared_storage and not settings.database:
        message = (
            "storage.shared_storage is a folder, which has no effect: several schedulers share a database "
            "(postgresql://USER@HOST/DATABASE), or set replication.enabled."
        )
        log.warning("shared_storage_ignored", message=message)
    if settings.gpu != ServerGpuSection():
        message = "The section gpu is only for the agent of `gpuyard up`; put it in the settings files of other agents."
        log.warning("gpu_settings_ignored", message=message)


def stop_on_signals(stop: asyncio.Event) -> None:
    """Stop cleanly on SIGINT (Ctrl-C) or SIGTERM, at once on the second. Ignore SIGHUP, which would end the process."""
    loop = asyncio.get_running_loop()

    def told() -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told)
    loop.add_signal_handler(signal.SIGHUP, _ignored)


def _ignored() -> None:
    message = "Settings are only read at start. Restart the scheduler to read them again; tasks continue."
    log.info("signal_ignored", signal="SIGHUP", message=message)


# --- opening ----------------------------------------------------------------------------------------------------------


def _open(settings: ServerSettings, stack: ExitStack, *, take_over: bool = False) -> tuple[Scheduler, AccessStore]:
    advisor = advisor_of(settings)
    check_folders(settings)
    _check_deposed(settings, take_over=take_over)
    journal = open_journal(settings.data_dir / "journal")
    stack.callback(journal.close)
    engine, views = recover(journal, advisor)
    _refuse_tasks_as_admins(engine, settings)
    found_cluster(engine, journal, views, time.time())
    secrets = SecretStore.open(settings.data_dir / "secrets.sqlite")
    stack.callback(secrets.close)
    secrets.sweep(engine.state.tasks.keys())
    access = AccessStore.open(settings.access_file)
    stack.callback(access.close)
    options = options_of(settings, keys_of(settings, FolderDocuments(settings.data_dir)), take_over=take_over)
    return open_scheduler(settings, stack, journal, engine, views, secrets, options, advisor), access


def check_folders(settings: ServerSettings) -> None:
    """Create the folders of a scheduler, closed to other users, or raise an error that says why this is impossible."""
    folder = settings.data_dir
    if not Path(settings.storage.data_dir).is_absolute():
        message = (
            "storage.data_dir is relative to the current folder of the scheduler; it is now "
            f"{folder}. A scheduler that is started in another folder begins with an empty journal. "
            "Use an absolute path."
        )
        log.warning("relative_data_dir_used", message=message)
    folders = (
        (folder, "data folder", "storage.data_dir"),
        (settings.snapshot_dir, "folder of snapshots", "storage.snapshot_dir"),
    )
    for check in (refuse_unsafe_folder, closed_folder):  # two passes: a start that is refused must not create a folder
        for each in folders:
            _close(check, *each)


def open_scheduler(
    settings: ServerSettings,
    stack: ExitStack,
    journal: Journal,
    engine: Engine,
    views: Views,
    secrets: SecretStore,
    options: SchedulerOptions,
    advisor: Advisor | None,
    role: SchedulerRole | None = None,
    documents: Documents | None = None,
) -> Scheduler:
    """Open what a scheduler has of its own in its data folder, and connect its parts."""
    folder = settings.data_dir
    archive = Archive.open(folder / "archive.sqlite")
    stack.callback(archive.close)
    if archive.note:
        log.warning("archive_checked", message=archive.note)
    _catch_up(archive, views)
    kept = Document(documents or FolderDocuments(folder), "system_users.json")
    system_users = SystemUsers.over(kept, lambda tenant: settings.tenant_entry(tenant).user)
    history = _history(settings)
    if history is not None:
        stack.callback(history.close)
    journal_folder = None if settings.database else folder / "journal"
    alerts = (
        Document(documents, ALERTS_DOCUMENT) if documents is not None and role is not None and role.shared else None
    )
    scheduler = Scheduler(
        Stores(journal, archive, secrets, system_users, history, journal_folder, alerts, _blobs(settings, role)),
        engine,
        views,
        options,
        runtime_estimator=_runtime_estimator(archive) if settings.prediction.enabled else None,
        performance_predictor=_performance_predictor(settings) if settings.prediction.enabled else None,
        advisor=advisor,
        role=role,
    )
    stack.callback(scheduler.alerts.close)
    return scheduler


def _blobs(settings: ServerSettings, role: SchedulerRole | None) -> BlobStore | None:
    """Open the blobs; None if several schedulers have no common folder for them."""
    if role is not None and role.shared and not settings.blobs.dir:
        return None
    said = settings.blobs
    limits = BlobLimits(said.max_blob_mb << 20, said.max_tenant_mb << 20, float(said.retention))
    return BlobStore.open(settings.blob_dir, limits)


class ClusterKeys(NamedTuple):
    """The secrets that all schedulers of a cluster have in common."""

    join_token: str
    request_key: bytes
    yard_key: bytes


def keys_of(settings: ServerSettings, documents: Documents) -> ClusterKeys:
    """Return the keys of a cluster; those that are missing are drawn."""
    token = join_token(settings) if settings.join_token else drawn(documents, JOIN_TOKEN_FILE)
    return ClusterKeys(token, drawn(documents, "request_key").encode(), drawn(documents, "yard_key").encode())


def options_of(settings: ServerSettings, keys: ClusterKeys, *, take_over: bool = False) -> SchedulerOptions:
    """Return the fixed values of a scheduler."""
    folder = settings.data_dir
    return SchedulerOptions(
        join_token=keys.join_token,
        request_key=keys.request_key,
        yard_key=keys.yard_key,
        take_over=take_over,
        unsafe_labels=unsafe_labels(settings),
        offline_after_seconds=float(settings.agent.heartbeat_timeout),
        sweep_seconds=float(settings.schedule_seconds),
        snapshot_seconds=float(settings.scheduler.snapshot_interval),
        snapshot_folder=settings.snapshot_dir,
        database=settings.database,
        database_snapshots=folder,
        retired_folder=settings.retired_dir,
        audit_folder=folder / "audit",
        audit_seconds=float(settings.storage.audit_retention),
        keep_seconds=float(settings.storage.retention),
        checkpoint_seconds=float(settings.storage.checkpoint_retention),
        channels=ChannelLimits(
            settings.server.max_channels,
            settings.server.max_channels_per_user,
            settings.server.max_channels_per_task,
            settings.server.max_channels_per_node,
        ),
        clock_file=folder / "clock.json",
        alerts=alert_options_of(settings),
        notices=notice_policy_of(settings),
        external_url=(settings.alerts.url if settings.alerts is not None else "").rstrip("/"),
        trace_endpoint=_trace_endpoint(settings),
        history_seconds=float(settings.monitor.interval),
    )


def _history(settings: ServerSettings) -> HistoryStore | None:
    """Open the history; None if the monitor is off, or if the file cannot be used: the scheduler works without it."""
    if not settings.monitor.enabled:
        return None
    try:
        return HistoryStore.open(settings.data_dir / "history.sqlite", float(settings.monitor.retention))
    except StoreError as error:
        log.warning("history_unavailable", message=str(error))
        return None


def _trace_endpoint(settings: ServerSettings) -> str:
    """Return where traces are sent; empty: nowhere."""
    if not settings.tracing.enabled:
        return ""
    if not tracing_is_installed():
        raise SchedulerStartError("tracing.enabled needs OpenTelemetry: pip install 'gpuyard[tracing]'.")
    return settings.tracing.endpoint


def _close(check: Callable[[Path, str, str], str | None], folder: Path, name: str, setting: str) -> None:
    """Restrict a folder to its owner, or raise an error that says why this failed."""
    try:
        if note := check(folder, name, setting):
            log.warning("folder_permissions_corrected", message=note)
    except OSError as error:
        raise SchedulerStartError(
            f"Cannot create the {name} {folder}: {error.strerror}. Choose another one."
        ) from error
    except FolderNotSafe as error:
        raise SchedulerStartError(str(error)) from error


def advisor_of(settings: ServerSettings) -> Advisor | None:
    """Return the advisor that the policy consults, or None if it needs none."""
    said = settings.scheduler
    if not POLICIES[ALGORITHMS[said.algorithm].policy].advised:
        return None
    if find_spec("numpy") is None:
        raise SchedulerStartError(f"scheduler.algorithm {said.algorithm} needs numpy: pip install 'gpuyard[learn]'.")
    from gpuyard.learn.policy_network import DEFAULT, AdvantageAdvisor, load

    return AdvantageAdvisor(load(Path(said.policy_model) if said.policy_model else DEFAULT, FEATURES))


def _runtime_estimator(archive: Archive) -> RuntimeEstimator:
    """Return an estimator trained on the ended tasks in the archive."""
    runtime_estimator = RuntimeEstimator()
    try:
        runtime_estimator.remember(archive.newest(MOST_REMEMBERED))
    except StoreError as error:
        log.warning("estimates_reset", message=str(error))
    return runtime_estimator


def _performance_predictor(settings: ServerSettings) -> PerformancePredictor:
    """Return the predictor of run time and memory from declared workloads."""
    return PerformancePredictor(Path(settings.prediction.model).expanduser() if settings.prediction.model else None)


def _catch_up(archive: Archive, views: Views) -> None:
    """Archive tasks that ended since the snapshot; the archive already holds some of them."""
    ended = [view for view in views.just_ended if view.status in ENDED]
    views.just_ended = []
    known = archive.statuses([view.id for view in ended])
    archive.remember(_missing_keys(archive, views))
    rows = [archive_row(view, views.stories) for view in ended if view.id not in known]
    archive.add(rows, max(archive.seq, views.last_seq))
    views.archived([view.id for view in ended])


def _missing_keys(archive: Archive, views: Views) -> list[SubmitKey]:
    """Return the idempotency keys that the archive did not hold when the scheduler ended."""
    found: dict[tuple[TenantId, str], SubmitKey] = {}
    for view in views.tasks.values():
        if view.key:
            name = (view.spec.tenant, view.key)
            new = SubmitKey(*name, bytes.fromhex(view.digest), (), view.submitted_at)
            kept = found.get(name) or archive.lookup(*name) or new
            if view.id not in kept.tasks:
                found[name] = msgspec.structs.replace(kept, tasks=(*kept.tasks, view.id))
    return list(found.values())


def join_token(settings: ServerSettings) -> str:
    """Return the join token: from the settings, or generated once and kept next to the journal for local agents."""
    if settings.join_token:
        if len(settings.join_token) < SHORT_TOKEN:
            message = (
                "auth.join_token is short, so it can be guessed from the proof that the scheduler sends. "
                "Use 24 random characters."
            )
            log.warning("short_join_token_used", message=message)
        return settings.join_token
    return _drawn(settings.data_dir / JOIN_TOKEN_FILE)


def _drawn(path: Path) -> str:
    """Return a secret of this cluster; generated at the first call, readable by its owner only."""
    drawn = path.read_text().strip() if path.exists() else ""
    if drawn:
        path.chmod(0o600)
    else:
        drawn = token_urlsafe(24)
        replace_file(path, f"{drawn}\n".encode())
    return drawn


def admitted_without_login(settings: ServerSettings) -> frozenset[int]:
    """Return the uids that are admins over loopback without a login."""
    return frozenset() if settings.auth.enabled and not settings.auth.local_admin else trusted_uids()


def unsafe_labels(settings: ServerSettings) -> frozenset[tuple[str, str]]:
    """Return labels of local nodes whose tasks would run as admins although login is required."""
    if not settings.auth.enabled:
        return frozenset()
    return frozenset(shared_user_label(uid) for uid in admitted_without_login(settings))


def _refuse_tasks_as_admins(engine: Engine, settings: ServerSettings) -> None:
    unsafe = unsafe_labels(settings)
    for host in engine.state.index.hosts.values():
        if sentence := refuse_unsafe_node(host.spec, unsafe):
            raise SchedulerStartError(sentence)


def refuse_without_admin(access: AccessStore, settings: ServerSettings) -> None:
    """Raise an error if nobody could administer this scheduler."""
    if admitted_without_login(settings) or any(
        user.role is Role.ADMIN and not user.disabled for user in access.users()
    ):
        return
    raise SchedulerStartError(
        "auth.enabled is true but no user is an administrator. Add an admin to users in the "
        "settings, or set auth.local_admin: true and run `gpuyard users add NAME --role admin` as "
        "root or as the user who runs the scheduler."
    )


def add_users(
    access: AccessStore, system_users: SystemUsers, settings: ServerSettings, documents: Documents | None = None
) -> None:
    """Add or change users where the file has changed since the last start. Changes made over the API are kept."""
    documents = documents or FolderDocuments(settings.data_dir)
    key = drawn(documents, "request_key").encode()
    try:
        before = msgspec.json.decode(documents.read("applied_users.json") or b"{}", type=dict[str, str])
    except msgspec.MsgspecError:
        before = {}
    if not access.users():  # the store is new: earlier users, including those of the file, are lost
        before = {}
    said = {entry.username: hmac.new(key, msgspec.json.encode(entry), sha256).hexdigest() for entry in settings.users}
    for entry in settings.users:
        if before.get(entry.username) == said[entry.username]:
            continue
        role = Role.MEMBER if entry.role == "user" else Role(entry.role)
        answer = access.ensure_user(entry.username, entry.password, TenantId(entry.tenant_id), role)
        if isinstance(answer, Refusal):
            raise SchedulerStartError(f"users: {entry.username}: {answer.sentence()}")
        if entry.system_user:
            system_users.set(entry.username, entry.system_user)
    if said != before:
        documents.write("applied_users.json", msgspec.json.encode(said))


async def apply(
    scheduler: Scheduler,
    settings: ServerSettings,
    default_mode: QuotaMode | None,
    documents: Documents | None = None,
) -> None:
    """Apply the file's settings as events where the file has changed. Changes made over the API are kept."""
    split, name = split_of(settings, default_mode=default_mode), scheduler.loop.engine.state.cluster_id
    wanted = Applied(engine_settings_of(settings), split, tenants_of(settings), name)
    documents = documents or FolderDocuments(settings.data_dir)
    try:
        before = msgspec.json.decode(documents.read("applied.json") or b"", type=Applied)
    except msgspec.MsgspecError:
        before = None
    if before is not None and before.cluster_id != name:
        before = None
    orders: list[command.Command] = []
    if before is None or before.settings != wanted.settings:
        orders.append(command.ChangeSettings(wanted.settings))
    if before is None or before.split != wanted.split:
        orders.append(command.SetSplit(wanted.split))
    known = before.tenants if before else []
    orders += [command.SetTenant(tenant) for tenant in wanted.tenants if tenant not in known]
    for order in orders:
        answer = await scheduler.loop.tell(order, "settings")
        if isinstance(answer, Refusal):
            raise SchedulerStartError(answer.sentence())
    if orders:
        content = msgspec.json.format(msgspec.json.encode(wanted), indent=2)
        await asyncio.to_thread(documents.write, "applied.json", content)


# --- ports ------------------------------------------------------------------------------------------------------------


@contextmanager
def listen(address: Address, what: str = "HTTP") -> Iterator[socket.socket]:
    """Return a listening socket, or raise an error that says why the address cannot be used for `what`."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(2048)
    except OSError as error:
        raise SchedulerStartError(
            f"Cannot serve {what} on {address}: {error.strerror or error}. Another scheduler may be running there."
        ) from None
    with listener:
        yield listener


def grpc_server(scheduler: Scheduler) -> "grpc.aio.Server":
    """Return the server for agents, without a port."""
    most = ("grpc.max_allowed_incoming_connections", for_agents(raise_limit()))
    server = grpc.aio.server(options=(*GRPC_OPTIONS, most))
    server.add_generic_rpc_handlers((agents_handler(scheduler.agents),))
    return server


def bind(server: "grpc.aio.Server", settings: ServerSettings) -> int:
    """Open the port for agents and return its number, or raise an error that says why it cannot be opened."""
    where = settings.grpc_address
    host = where.host or "0.0.0.0"  # noqa: S104 - ":9090" means every interface
    address = f"[{host}]:{where.port}" if ":" in host else f"{host}:{where.port}"
    credentials = _credentials(settings)
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise SchedulerStartError(
            f"Cannot serve agents on {address}: {error}. Another scheduler may be running there."
        ) from None


def _credentials(settings: ServerSettings) -> "grpc.ServerCredentials | None":
    tls = settings.server.tls
    if not tls.cert:
        return None
    try:
        pair = (Path(tls.key).read_bytes(), Path(tls.cert).read_bytes())
        ca = Path(tls.client_ca).read_bytes() if tls.client_ca else None
    except OSError as error:
        raise SchedulerStartError(f"server.tls: cannot read {error.filename}: {error.strerror}.") from None
    return grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)
