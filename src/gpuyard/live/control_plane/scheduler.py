"""The running scheduler: connects its parts and runs them.

    submissions   accepts tasks                       queries      answers questions about tasks
    loop          the engine and the journal          agents       the nodes
    archiver      ended tasks to the archive          snapshots    snapshots and retention
    alerts        rules about the cluster, receivers  usage        sums of GPU-hours and waits
    live          the live stream                     history      samples of GPUs, nodes and the cluster

The parts learn of events in one way only: `_hear` passes them on after the commit. REST calls the part that it needs.
"""

import asyncio
import secrets as secrets_module
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import structlog

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.errors import EventsRetired, NotLeading, OutcomeUnknown, StorageUnavailable
from gpuyard.core.domain.events import AttemptEnded, AttemptStarted, TaskEnded, TaskSubmitted
from gpuyard.core.domain.values import TaskId
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.scheduling.advice import Advisor
from gpuyard.core.journal.port import FolderJournal, Journal
from gpuyard.core.journal.records import Record
from gpuyard.live.control_plane.alerts.commit_times import CommitTimes
from gpuyard.live.control_plane.alerts.observer import Observer
from gpuyard.live.control_plane.alerts.service import Alerts
from gpuyard.live.control_plane.clock import EngineClock, keep_note, read_note, save_note
from gpuyard.live.control_plane.history.recorder import HistoryRecorder
from gpuyard.live.control_plane.history.store import HistoryStore
from gpuyard.live.control_plane.jobs import BackgroundJobs
from gpuyard.live.control_plane.lifecycle_log import LifecycleLog
from gpuyard.live.control_plane.live_feed import LiveFeed, Sight
from gpuyard.live.control_plane.loop import EngineLoop
from gpuyard.live.control_plane.metrics import SchedulerMetrics
from gpuyard.live.control_plane.nodes.agents import AgentConnections
from gpuyard.live.control_plane.nodes.blob_transfer import BlobTransfer
from gpuyard.live.control_plane.options import SchedulerOptions
from gpuyard.live.control_plane.prediction.accuracy import NAMES as PREDICTION_NAMES
from gpuyard.live.control_plane.prediction.later_learning import LaterLearning
from gpuyard.live.control_plane.prediction.model_watch import watch_model
from gpuyard.live.control_plane.prediction.performance_predictor import PerformancePredictor
from gpuyard.live.control_plane.prediction.runtime_estimator import RuntimeEstimator
from gpuyard.live.control_plane.queries import TaskQueries
from gpuyard.live.control_plane.queue_pages import QueuePages
from gpuyard.live.control_plane.readings import Readings
from gpuyard.live.control_plane.recent_changes import RecentChanges
from gpuyard.live.control_plane.role import SchedulerRole
from gpuyard.live.control_plane.stores.archive import Archive
from gpuyard.live.control_plane.stores.archiver import Archiver
from gpuyard.live.control_plane.stores.blobs import BlobStore, blob_specs
from gpuyard.live.control_plane.stores.database import StoreError
from gpuyard.live.control_plane.stores.documents import Document
from gpuyard.live.control_plane.stores.idempotency import IdempotentRequests
from gpuyard.live.control_plane.stores.recovery import recover
from gpuyard.live.control_plane.stores.secrets import SecretStore
from gpuyard.live.control_plane.stores.snapshots import SnapshotSaver
from gpuyard.live.control_plane.stores.system_users import SystemUsers
from gpuyard.live.control_plane.stream import EventStream
from gpuyard.live.control_plane.submissions import Submissions
from gpuyard.live.control_plane.task_notices.service import TaskNotices
from gpuyard.live.control_plane.timelines import Timelines
from gpuyard.live.control_plane.tracing import TaskTracer
from gpuyard.live.control_plane.usage.query import UsageQueries
from gpuyard.live.control_plane.views import Views
from gpuyard.live.control_plane.worker_threads import WorkerPools
from gpuyard.live.wire.clock import SYSTEM_CLOCK, Clock
from gpuyard.live.wire.live_answers import AlertCounts

MOST_ORIGIN = 2**53 - 1
"""The largest integer that every JSON reader represents exactly."""
STOP_SECONDS = 10.0
UNKNOWN_TASKS = 10_000
"""Minimum number of task numbers skipped at a takeover: an old copy does not know which were assigned."""
RECENT_EVENTS = 500
"""Events of the journal that are searched for recent changes at the start."""
SWEEP_BLOBS_SECONDS = 600.0
"""Maximum interval at which blobs that are no longer used are removed; at most a quarter of their retention."""
ABSENCE_MARGIN_SECONDS = 5.0
"""Nodes start counting the announced absence when they hear of the stop, which is later than its event."""

log = structlog.get_logger()


def _drawn_origin() -> int:
    return secrets_module.randbelow(MOST_ORIGIN) + 1


@dataclass(frozen=True, slots=True)
class Stores:
    """The open databases and files of a data folder. Their opener closes them."""

    journal: Journal
    archive: Archive
    secrets: SecretStore
    system_users: SystemUsers = field(default_factory=SystemUsers)
    history: HistoryStore | None = None
    """None: the monitor is off."""
    journal_folder: Path | None = None
    """The folder of the journal; None: it is in a database."""
    alerts: Document | None = None
    """Where the next scheduler finds silences and what was sent; None: there is only this one."""
    blobs: BlobStore | None = None
    """None: there are several schedulers without a common folder."""


class Scheduler:
    """All parts of a running scheduler."""

    def __init__(
        self,
        stores: Stores,
        engine: Engine,
        views: Views,
        options: SchedulerOptions,
        *,
        runtime_estimator: RuntimeEstimator | None = None,
        performance_predictor: PerformancePredictor | None = None,
        advisor: Advisor | None = None,
        clock: Clock = SYSTEM_CLOCK,
        role: SchedulerRole | None = None,
    ) -> None:
        self.role = role or SchedulerRole()
        self.stores = stores
        self.views = views
        self.runtime_estimator = runtime_estimator
        self._later: LaterLearning | None = None
        """What the estimator has to learn when this standby leads; None: it learns from each event."""
        if runtime_estimator is not None and self.role.leads:
            runtime_estimator.remember_running(views.tasks.values())
        elif runtime_estimator is not None:
            self._later = LaterLearning(runtime_estimator)
        self.performance_predictor = performance_predictor
        self.ready = False
        self.stopping = False
        self._options = options
        self._origin = _drawn_origin() if options.origin is None else options.origin
        self._advisor = advisor

        note = read_note(options.clock_file) if options.clock_file is not None else None
        self.clock = EngineClock(engine.state.now, clock, note)
        self.worker_pools = WorkerPools()
        self.stream = EventStream()
        self.metrics = SchedulerMetrics(views)
        self._lifecycle_log = LifecycleLog(views)
        commits = CommitTimes(clock.monotonic)

        def observe_commit(seconds: float) -> None:
            self.metrics.commit.observe(seconds)
            commits.observe(seconds)

        self._requests = IdempotentRequests(stores.archive, options.request_key)
        self.loop = EngineLoop(
            engine,
            stores.journal,
            self._hear,
            clock=self.clock,
            rebuild=self._rebuild,
            sweep_seconds=options.sweep_seconds,
            stopwatch=clock.monotonic,
            observe_decision=self.metrics.decision.observe,
            observe_commit=observe_commit,
            follows=not self.role.leads,
            is_remote=self.role.shared,
        )
        self.agents = AgentConnections(
            self.loop,
            views,
            options,
            secrets=stores.secrets.get,
            run_as=stores.system_users.account_of,
            draw_origin=_drawn_origin,
            position_at=stores.journal.position_at,
            spans=partial(self.worker_pools.archive.run, stores.archive.spans),
            may_send=lambda: self.role.may_answer,
            blobs=BlobTransfer(views, stores.blobs, self.worker_pools.blobs.run),
        )
        self.started_at = self.clock()
        self.changes = RecentChanges(views)
        self.readings = Readings(views, self.agents.telemetry, self.agents.latencies)
        self.live = LiveFeed(
            views,
            self.readings,
            self.clock,
            self.alert_counts,
        )
        self.submissions = Submissions(
            self.loop,
            views,
            stores.secrets,
            self._requests,
            runtime_estimator=runtime_estimator,
            performance_predictor=performance_predictor,
        )
        self.queries = TaskQueries(
            self.loop,
            views,
            stores.archive,
            self.worker_pools,
            rebuild=self._rebuild,
            runtime_estimator=runtime_estimator,
            clock=clock,
        )
        self.queue_pages = QueuePages(self.queries, views, stores.archive, self.worker_pools, clock=clock)
        self.notice_policy = options.notices
        self.notices = TaskNotices(
            self.loop,
            self.queries,
            views,
            options.notices,
            clock=self.clock,
            run_beside=self.agents.run_beside,
            external_url=options.external_url,
        )
        self.jobs = BackgroundJobs()
        self.timelines = Timelines(views, stores.archive, self.worker_pools)
        self.archiver = Archiver(self.loop, views, stores.archive, stores.secrets, self._requests, self.worker_pools)
        self.alerts = Alerts(
            Observer(
                views,
                self.agents.telemetry,
                self.loop,
                commits,
                scores=self._prediction_scores,
                disk=options.alerts.disk,
            ),
            options.alerts,
            clock=self.clock,
            registry=self.metrics.registry,
            document=stores.alerts,
        )
        self.tracer = (
            TaskTracer(views, options.trace_endpoint, cluster=lambda: engine.state.cluster_id, clock=self.clock)
            if options.trace_endpoint
            else None
        )
        self.usage = UsageQueries(views, stores.archive, self.worker_pools.archive, self.clock)
        self.snapshots = SnapshotSaver(
            stores.journal, self.loop, views, stores.archive, self.archiver, self.worker_pools, options, clock
        )

    async def run(self, version: str) -> None:
        """Run until `stop` is called."""
        if self.tracer is not None:
            self.tracer.start()
        try:
            async with asyncio.TaskGroup() as group:
                works = (
                    self.agents.watch(),
                    self._requests.fill_filter(),
                    self.archiver.run(),
                    self.snapshots.run(),
                    watch_model(self.performance_predictor, self.stores.archive),
                    keep_note(self.clock, self._options.clock_file),
                    self.alerts.run(),
                    self.notices.run(),
                    self._record_history(),
                    self._sweep_blobs(),
                    self._learn_the_rest(),
                    self._begin(version),
                )
                self.agents.registration.deposed = asyncio.get_running_loop().create_future()
                deposed = group.create_task(_failing(self.agents.registration.deposed))
                beside = [group.create_task(work) for work in works]
                with suppress(StorageUnavailable):  # it was told to stop while nothing could be written
                    await self.loop.run()
                for task in (*beside, deposed):
                    task.cancel()
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            self.ready, self.stopping = False, True
            self._lifecycle_log.write_all()
            if self.tracer is not None:
                await asyncio.to_thread(self.tracer.close)

    async def follow(self) -> None:
        """Do what a standby does beside following the journal, until cancelled: keep its own files complete and short."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._requests.fill_filter())
            group.create_task(self.archiver.run())
            if self._later is not None:
                group.create_task(self._later.run())
            if isinstance(self.stores.journal, FolderJournal):  # a journal that only this scheduler stores
                group.create_task(self.snapshots.run())

    def lead(self) -> None:
        """Begin to decide: the standby has taken over."""
        self.clock.continue_from(self.loop.engine.state.now)
        self.loop.lead(Engine(self.loop.engine.state, self._advisor))

    def alert_counts(self, sight: Sight) -> AlertCounts:
        """Return how many alerts fire and how many are pending, of those that a sight shows."""
        return AlertCounts(*self.alerts.counts(sight))

    async def _record_history(self) -> None:
        if self.stores.history is not None:
            recorder = HistoryRecorder(
                self.stores.history,
                self.views,
                self.readings,
                self.clock,
                self.worker_pools.history_writer,
                self._options.history_seconds,
            )
            await recorder.run()

    async def _learn_the_rest(self) -> None:
        """Learn what this scheduler has put off while it followed."""
        later, self._later = self._later, None
        if later is not None:
            await later.finish(self.views)

    async def _sweep_blobs(self) -> None:
        """Remove blobs that no open task refers to and that were not used for a while."""
        blobs = self.stores.blobs
        while blobs is not None:
            specs = blob_specs(view.spec for view in self.views.tasks.values() if view.finished_at is None)
            try:
                freed = await self.worker_pools.blobs.run(blobs.sweep, specs)
            except (OSError, StoreError) as error:  # a shared folder may be away; nothing is lost by waiting
                log.warning("blobs_not_swept", message=str(error))
            else:
                if freed:
                    log.info("blobs_removed", bytes=freed)
            await asyncio.sleep(min(SWEEP_BLOBS_SECONDS, blobs.limits.keep_seconds / 4))

    async def _begin(self, version: str) -> None:
        await self._remember_changes()
        order = command.BeginEpoch(
            version,
            above=self.role.epoch - 1 if self.role.epoch else 0,
            origin=self._origin,
            offline_after_seconds=self._options.offline_after_seconds,
        )
        await self.loop.tell(order)
        if self._options.take_over:  # the first node to register may not know the latest tasks
            left_out = UNKNOWN_TASKS + secrets_module.randbelow(
                9 * UNKNOWN_TASKS
            )  # random, because the same copy may be restored twice
            await self.loop.tell(command.SkipTaskNumbers(TaskId(self.loop.engine.state.last_task + left_out)))
        self.ready = True

    async def _remember_changes(self) -> None:
        """Read the newest events of the journal, so that recent changes are shown after a restart, too."""
        after = max(0, self.loop.committed - RECENT_EVENTS)
        with suppress(EventsRetired):  # only the newest ones are left: there is nothing recent to show
            self.changes.hear(
                await self.worker_pools.journal.run(
                    lambda: list(islice(self.stores.journal.read(after), RECENT_EVENTS))
                )
            )

    async def stop(self, absence_seconds: float) -> None:
        """Notify the nodes, write the archive and a snapshot, and end.

        A journal that is shared is released as soon as nothing more is written, so that a standby takes over at once.
        """
        self.ready, self.stopping = False, True
        self.live.close()
        await self.jobs.close()
        with suppress(
            StorageUnavailable, NotLeading, OutcomeUnknown, TimeoutError
        ):  # otherwise end as if killed: durable events stay durable
            async with asyncio.timeout(STOP_SECONDS):
                await self.loop.tell(command.EndEpoch(absence_seconds))
                self.agents.extend_liveness(max(0.0, absence_seconds - ABSENCE_MARGIN_SECONDS))
                if self.role.shared:
                    self.role.released = True
                    self.loop.stop()
                    return
                await asyncio.sleep(0.05)  # time for the nodes to hear of it; otherwise they wait as for any other loss
                await self.archiver.archive_now()
                await self.snapshots.save(at_once=True)
        save_note(self.clock, self._options.clock_file)
        self.loop.stop()

    def _prediction_scores(self) -> list[tuple[str, int, float | None]]:
        if self.runtime_estimator is None:
            return []
        scores = {name: self.runtime_estimator.scores.of(name) for name in PREDICTION_NAMES}
        return [(name, score.tasks, score.median_ape) for name, score in scores.items()]

    def _rebuild(self) -> Engine:
        return recover(self.stores.journal, self._advisor)[0]

    def _hear(self, records: Sequence[Record]) -> None:
        """Pass on committed events: the only way in which other parts learn of them."""
        views, agents, leads = self.views, self.agents, self.role.leads
        for record in records:
            views.apply(record)
            if leads:
                try:
                    agents.hear(record)
                except Exception:  # the event is durable: all nodes register again and are reconciled with the state
                    log.exception("dispatch_failed", seq=record.seq)
                    agents.sessions.close_all()
            event = record.event
            if isinstance(event, TaskSubmitted) and event.key:
                self._requests.note(event, record.at)
            elif self.runtime_estimator is not None and isinstance(event, AttemptStarted | AttemptEnded | TaskEnded):
                view = views.tasks[event.task]
                if self._later is not None:
                    if isinstance(event, TaskEnded):
                        self._later.ended(view, record.at)
                elif isinstance(event, TaskEnded):
                    self.runtime_estimator.ended(view, record.at)
                else:
                    self.runtime_estimator.hear(event, view, record.at)
        self.stream.publish(records)
        self.live.hear(records)
        self.changes.hear(records)
        self.metrics.hear(records)
        if leads:
            self.alerts.hear(records)
            self.notices.hear(records)
        if self.tracer is not None and leads:
            self.tracer.hear(records, self.loop.decided_at)
        if leads:  # a standby would repeat every line of the leader
            self._lifecycle_log.hear(records)


async def _failing(future: "asyncio.Future[None]") -> None:
    """Wait until the future fails, and raise its error."""
    await future
