"""Run one of several schedulers that share a journal: a standby that takes over, and the one that leads.

                 nobody leads for a lease,
    follow ───── or the leader has released ─────► lead ──── the lease is over, or another one leads ───► follow, anew
      │ REST: reads, from events as they come        │ REST, nodes, decisions
      └ writes go to the leader                      └ `hand_over`, SIGTERM: release, so that a standby leads at once

One pass through this drawing is one `Scheduler` object. It is thrown away at the end, because its engine may be ahead of
what it could write; the next one is recovered from the journal. The HTTP port stays open all the time, the port of the
agents only while this scheduler leads: an agent that is refused there tries the next address.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import structlog
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from gpuyard.core.domain.errors import (
    GpuyardError,
    JournalError,
    StandbyOutdated,
    StorageFull,
    StorageUnreachable,
    WriterDeposed,
)
from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.core.journal.port import Leader, LeasedJournal
from gpuyard.live.control_plane import server
from gpuyard.live.control_plane.access.allowed_hosts import AllowedHosts
from gpuyard.live.control_plane.access.authenticator import Authenticator
from gpuyard.live.control_plane.descriptors import raise_limit
from gpuyard.live.control_plane.garbage_collection import collect_when_idle, freeze_recovered
from gpuyard.live.control_plane.loop import NO_DATABASE
from gpuyard.live.control_plane.nodes.pool import ElasticPools
from gpuyard.live.control_plane.nodes.registration import SchedulerSuperseded
from gpuyard.live.control_plane.rest.app import make_app
from gpuyard.live.control_plane.rest.errors import error
from gpuyard.live.control_plane.rest.serving import Limits, http_server
from gpuyard.live.control_plane.role import Replicating, SchedulerRole
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.control_plane.settings import ServerSettings
from gpuyard.live.control_plane.shared_storage import LeaderWatch, SharedStorage
from gpuyard.live.control_plane.stores.cluster_stores import ClusterStores
from gpuyard.live.control_plane.stores.database import StoreError, StoreFull, StoreUnreachable
from gpuyard.live.control_plane.stores.recovery import found_cluster, recover
from gpuyard.version import __version__

POLL_SECONDS = 0.05
"""How often a standby looks for new events, and who leads; at most a fifth of a lease.

Each look has a fixed price, and so has each fold, so a standby that folds often costs more.
"""
MANY = 1_000
"""After so many events it looks again at once: there may be more."""
REFRESH_SECONDS = 1.0
"""How often a standby looks for changes of users and tokens, and the leader for changes of the voters."""
RETRY_SECONDS = 1.0
"""Pause after the storage did not answer."""
FRESH_SECONDS = 1.0
"""Events that a standby lacked for at most this long tell what time it is for the leader."""
HAND_OVER_SECONDS = 10.0
"""How long a scheduler that has handed over leaves the lead to the others."""
MOST_FOLLOWED = 2_000_000
"""Events after which a standby recovers anew: timers of tasks that have ended stay in its state until then."""

log = structlog.get_logger()


class LeaseLost(GpuyardError):
    """The lease of this scheduler is over, because it was not renewed in time. It follows again."""


class _Door:
    """The ASGI application of the HTTP port: that of the present `Scheduler`."""

    def __init__(self) -> None:
        self.app: ASGIApp | None = None
        self.why, self.code = "The scheduler is starting; try again in a few seconds.", "NotReady"
        """What is answered while there is none."""

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer one request. The beginning and the end of the port are not those of one `Scheduler`."""
        if scope["type"] == "lifespan":
            for phase in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{phase}.complete"})
            return
        app = self.app or error(503, self.code, self.why, None, {"retry-after": "1"})
        await app(scope, receive, send)


@dataclass(slots=True)
class _Process:
    """What outlives the single `Scheduler` objects of a process."""

    settings: ServerSettings
    storage: SharedStorage
    default_mode: QuotaMode | None
    http: list[socket.socket]
    door: _Door
    told: asyncio.Event
    started: Callable[[str, int], None]
    take_over: bool
    """Whether it replaces a scheduler that the journal does not know, when it leads for the first time."""
    not_before: float = 0.0
    """When this scheduler may lead again, by the clock of the event loop."""
    has_started: bool = False


async def serve_shared(
    settings: ServerSettings,
    open_storage: Callable[[ServerSettings, ExitStack], SharedStorage],
    *,
    default_mode: QuotaMode | None = None,
    take_over: bool = False,
    started: Callable[[str, int], None] = lambda _http, _grpc: None,
    until: asyncio.Event | None = None,
) -> None:
    """Run a scheduler on a shared journal until `until` is set: as a standby, or as the one that leads."""
    server.check_folders(settings)
    raise_limit()
    with ExitStack() as stack:
        with server.listen(settings.grpc_address, "agents"):
            pass  # the port is opened when this scheduler leads; one that is taken is reported now
        http = [stack.enter_context(server.listen(settings.http_address))]
        if settings.monitor_address is not None:
            http.append(stack.enter_context(server.listen(settings.monitor_address)))
        storage = open_storage(settings, stack)
        door = _Door()
        limits = Limits.within(
            raise_limit(), settings.server.max_connections, settings.server.max_connections_per_address
        )
        web = http_server(door, tls=settings.server.tls, limits=limits)
        serving = asyncio.create_task(web.serve(sockets=http))
        process = _Process(settings, storage, default_mode, http, door, until or asyncio.Event(), started, take_over)
        try:
            await _live(process, serving)
        finally:
            web.should_exit = True
            await serving
    log.info("scheduler_stopped")


async def _live(process: _Process, serving: "asyncio.Task[None]") -> None:
    """Follow and lead in turn, until told to stop."""
    told = asyncio.create_task(process.told.wait())
    first = True
    try:
        while not told.done() and not serving.done():
            try:
                with ExitStack() as stack:
                    await _one_life(process, stack, told)
            except (WriterDeposed, LeaseLost, SchedulerSuperseded) as ended:
                log.warning("role_changed", role="standby", message=str(ended))
            except StandbyOutdated as ended:
                log.warning("standby_outdated", message=str(ended))
            except (StorageUnreachable, StoreUnreachable) as away:
                if first:
                    raise
                process.door.app, process.door.why, process.door.code = None, NO_DATABASE, "StorageUnreachable"
                log.warning("storage_unreachable", message=str(away))
                await asyncio.wait([told], timeout=RETRY_SECONDS)
            except (StorageFull, StoreFull) as full:
                if first:
                    raise
                process.door.app, process.door.why = None, "The disk of this scheduler is full. Free some space."
                log.error("storage_full", message=str(full))
                await asyncio.wait([told], timeout=RETRY_SECONDS)
            first = False
    finally:
        told.cancel()


async def _one_life(process: _Process, stack: ExitStack, told: "asyncio.Task[bool]") -> None:
    """Recover, follow until nobody leads, then lead until that ends."""
    settings = process.settings

    def say(why: str) -> None:
        process.door.app, process.door.why, process.door.code = None, why, "NotReady"

    opened = await process.storage.open(told, say)
    if opened is None:
        return
    journal, stores = opened
    stack.callback(journal.close)
    stack.callback(stores.close)
    role = SchedulerRole(
        leads=False, shared=True, has_lease=lambda: journal.is_held, replicating=process.storage.replicating
    )
    scheduler = await asyncio.to_thread(_recover, process, stack, journal, role, stores)
    freeze_recovered()
    collecting = asyncio.create_task(collect_when_idle(lambda: len(scheduler.views.tasks)))
    stack.callback(collecting.cancel)
    process.door.app = make_app(
        scheduler,
        stores.access,
        Authenticator(stores.access, server.admitted_without_login(settings)),
        AllowedHosts(settings.http_address.host, settings.server.host_names),
        settings,
    )
    if not process.has_started:
        process.has_started = True
        process.started(process.settings.public_url, settings.grpc_address.port)
    if journal.is_held:
        await _lead(process, scheduler, stores, journal, told)
        return
    log.info("role_changed", role="standby", seq=journal.head.seq)
    if await _follow(process, scheduler, stores, journal, told):
        await asyncio.to_thread(stores.lead, journal.epoch)
        await _lead(process, scheduler, stores, journal, told)


def _recover(
    process: _Process, stack: ExitStack, journal: LeasedJournal, role: SchedulerRole, stores: ClusterStores
) -> Scheduler:
    settings = process.settings
    advisor = server.advisor_of(settings)
    engine, views = recover(journal, advisor)
    options = server.options_of(settings, server.keys_of(settings, stores.documents), take_over=process.take_over)
    return server.open_scheduler(
        settings, stack, journal, engine, views, stores.secrets, options, advisor, role, stores.documents
    )


# --- following ---------------------------------------------------------------------------------------------------------


async def _follow(
    process: _Process,
    scheduler: Scheduler,
    stores: ClusterStores,
    journal: LeasedJournal,
    told: "asyncio.Task[bool]",
) -> bool:
    """Apply events as they come; return True when this scheduler leads, False to begin anew or to stop."""
    loop, role, watch = asyncio.get_running_loop(), scheduler.role, LeaderWatch()
    poll_seconds = min(POLL_SECONDS, journal.lease_seconds / 5)
    role.level_at = time.monotonic()
    followed, refreshed_at, wait_seconds = 0, loop.time(), 0.0
    beside = asyncio.create_task(scheduler.follow())
    scheduler.ready = True

    async def ask_for_lead() -> bool:
        seen = watch.seen
        if seen is None or watch.is_free(loop.time(), journal.lease_seconds):
            return False
        return await asyncio.to_thread(journal.ask_for_lead, seen, process.settings.public_url)

    role.ask_for_lead = ask_for_lead
    try:
        while not told.done():
            was_fresh = journal.behind_seconds < FRESH_SECONDS
            try:
                leader, records = await asyncio.to_thread(journal.follow, wait_seconds)
            except StorageUnreachable as away:
                if scheduler.loop.unwritable is None:
                    log.warning("storage_unreachable", message=str(away))
                scheduler.loop.unwritable = StorageUnreachable(NO_DATABASE)
                watch = LeaderWatch()  # what was not seen for a while says nothing about a lease
                role.leader_url = ""
                await asyncio.wait([told], timeout=RETRY_SECONDS)
                continue
            looked_at = loop.time()
            if scheduler.loop.unwritable is not None:
                scheduler.loop.unwritable = None
                log.info("storage_recovered", seq=journal.head.seq)
            watch.look(leader, looked_at)
            if loop.time() - refreshed_at >= REFRESH_SECONDS:
                refreshed_at = loop.time()
                with suppress(StoreError):  # the next round tries it again
                    await asyncio.to_thread(stores.refresh)
                    scheduler.stores.system_users.refresh()
            if records:
                await scheduler.loop.follow(records, journal.head)
                followed += len(records)
                if was_fresh:
                    scheduler.clock.keep_up(records[-1].at)
            is_free = watch.is_free(loop.time(), journal.lease_seconds)
            role.level_at = max(role.level_at, time.monotonic() - journal.behind_seconds)
            role.epoch, role.leader_url = leader.epoch, "" if is_free else leader.url
            if (
                is_free
                and _is_its_turn(process, leader, watch, journal)
                and await _take(process, scheduler, journal, leader)
            ):
                return True
            if followed >= MOST_FOLLOWED:
                return False
            wait_seconds = 0.0 if len(records) >= MANY else max(0.0, poll_seconds - (loop.time() - looked_at))
    finally:
        beside.cancel()
        with suppress(asyncio.CancelledError):
            await beside
    return False


def _is_its_turn(process: _Process, leader: Leader, watch: LeaderWatch, journal: LeasedJournal) -> bool:
    """Whether this scheduler may lead now that nobody does. The one that was asked for comes first."""
    if journal.is_elected:
        return True
    now = asyncio.get_running_loop().time()
    if leader.wanted:
        return leader.wanted == process.settings.public_url or now - watch.since >= 2 * journal.lease_seconds
    # Another scheduler has led since this one handed over, and has failed: it is not waited for.
    has_led = not leader.released and leader.url != process.settings.public_url
    return has_led or now >= process.not_before


async def _take(process: _Process, scheduler: Scheduler, journal: LeasedJournal, seen: Leader) -> bool:
    """Take over if nobody else did meanwhile; apply the events that were not followed yet."""
    missed = await asyncio.to_thread(journal.take_over, seen, process.settings.public_url)
    if missed is None:
        return False
    if missed:
        await scheduler.loop.follow(missed, journal.head)
    return True


# --- leading -----------------------------------------------------------------------------------------------------------


def _client_urls(settings: ServerSettings, role: SchedulerRole) -> list[str]:
    """Return where clients reach this scheduler, and the other one as far as it is known."""
    urls = [settings.client_url(settings.http_address.port)]
    if role.replicating is not None and (other := role.replicating.peer_url()):
        urls.append(other)
    return urls


async def _lead(
    process: _Process,
    scheduler: Scheduler,
    stores: ClusterStores,
    journal: LeasedJournal,
    told: "asyncio.Task[bool]",
) -> None:
    access, documents = stores.access, stores.documents
    settings, role = process.settings, scheduler.role
    wanted = asyncio.Event()
    role.leads, role.epoch, role.leader_url = True, journal.epoch, settings.public_url
    if role.replicating is not None:
        scheduler.agents.registration.voting_for = role.replicating.voting_for
    scheduler.agents.clients_at = lambda: _client_urls(settings, role)
    scheduler.ready = False
    scheduler.lead()
    keeping = asyncio.create_task(_keep_lease(journal, settings, wanted))
    handing_over = asyncio.create_task(wanted.wait())
    tasks: list[asyncio.Task[Any]] = [keeping, handing_over]
    try:
        await asyncio.to_thread(found_cluster, scheduler.loop.engine, journal, scheduler.views, time.time())
        with suppress(StoreUnreachable):  # otherwise the next one that leads does it
            await asyncio.to_thread(stores.secrets.sweep, list(scheduler.loop.engine.state.tasks))
        scheduler.stores.system_users.refresh()
        scheduler.loop.committed, scheduler.loop.committed_hash = journal.head.seq, journal.head.hash
        running = asyncio.create_task(scheduler.run(__version__))
        tasks.append(running)
        await _while_leading(keeping, running, server.until_ready(scheduler))
        async with _served(scheduler, stores, settings) as port:
            log.info("role_changed", role="master", epoch=journal.epoch, seq=journal.head.seq)
            await _while_leading(keeping, running, server.apply(scheduler, settings, process.default_mode, documents))
            await asyncio.to_thread(server.add_users, access, scheduler.stores.system_users, settings, documents)
            server.refuse_without_admin(access, settings)
            log.info("scheduler_started", http=settings.public_url, grpc_port=port, epoch=journal.epoch)
            process.take_over = False
            await server.first_of(running, keeping, told, handing_over)
            if keeping.done():
                await keeping
            if not running.done():
                await _release(scheduler, journal, running)
                process.not_before = asyncio.get_running_loop().time() + HAND_OVER_SECONDS
        await server.ended(running)
    finally:
        role.leads, role.leader_url = False, ""
        scheduler.ready, scheduler.stopping = False, True
        scheduler.live.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _while_leading(
    keeping: "asyncio.Task[None]", running: "asyncio.Task[None]", work: Coroutine[Any, Any, None]
) -> None:
    """Do work that needs the loop. If the loop or the lease ends first, raise the reason."""
    doing = asyncio.create_task(work)
    try:
        await server.first_of(doing, keeping, running)
        if keeping.done():
            await keeping
        if not doing.done():
            await server.ended(running)
            raise LeaseLost
        await doing
    finally:
        doing.cancel()


@asynccontextmanager
async def _served(scheduler: Scheduler, stores: ClusterStores, settings: ServerSettings) -> AsyncIterator[int]:
    """Serve the agents, and do what only the leader does."""
    agents = server.grpc_server(scheduler)
    port = server.bind(agents, settings)
    await agents.start()
    beside = [asyncio.create_task(server.note_uses(stores.access))]
    pools = server.pools_in(scheduler, settings, stores.documents)
    if scheduler.role.replicating is not None:
        beside.append(asyncio.create_task(_register_voters(scheduler, scheduler.role.replicating, pools)))
    if pools is not None:
        beside.append(asyncio.create_task(pools.run()))
    try:
        yield port
    finally:
        for task in beside:
            task.cancel()
        await agents.stop(0.1)


async def _register_voters(scheduler: Scheduler, replicating: Replicating, pools: ElasticPools | None) -> None:
    """Let the agents of the nodes vote; those of pools only if there are no others, because pools return their nodes."""
    while True:
        nodes = set(scheduler.views.nodes)
        replicating.register_voters(list(nodes - (pools.nodes if pools is not None else set())) or list(nodes))
        await asyncio.sleep(REFRESH_SECONDS)


async def _release(scheduler: Scheduler, journal: LeasedJournal, running: "asyncio.Task[None]") -> None:
    """Stop to lead on purpose: the nodes are told to wait, and a standby may take over at once."""
    await scheduler.stop(server.ANNOUNCED_ABSENCE_SECONDS)
    await server.ended(running)
    with suppress(JournalError):  # otherwise the lease ends by itself
        await asyncio.to_thread(journal.release)


async def _keep_lease(journal: LeasedJournal, settings: ServerSettings, wanted: asyncio.Event) -> None:
    """Renew the lease until it is lost; then raise the reason. `wanted` is set when another scheduler asks to lead."""
    pause_seconds = float(settings.replication.heartbeat_interval)
    while True:
        renewing = asyncio.create_task(asyncio.to_thread(journal.renew))
        try:
            while not renewing.done() and journal.is_held:
                await asyncio.wait([renewing], timeout=max(0.01, journal.held_seconds))
            if renewing.done() and await renewing not in {"", settings.public_url}:
                wanted.set()
        except StorageUnreachable as away:
            log.warning("storage_unreachable", message=str(away))
        if not journal.is_held:
            renewing.cancel()
            raise LeaseLost
        await asyncio.sleep(min(pause_seconds, max(0.0, journal.held_seconds)))
