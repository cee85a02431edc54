"""The running scheduler: connects its parts and runs them.

    submissions   accepts tasks                       queries      answers questions about tasks
    loop          the engine and the journal          agents       the nodes
    archiver      ended tasks to the archive          snapshots    snapshots and retention

The parts learn of events in one way only: `_hear` passes them on after the commit. REST calls the part that it needs.
"""

import asyncio
import secrets as secrets_module
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import structlog

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.errors import StorageFull
from gpuyard.core.domain.events import AttemptEnded, AttemptStarted, TaskEnded, TaskSubmitted
from gpuyard.core.domain.values import TaskId
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.scheduling.advice import Advisor
from gpuyard.core.journal.records import Record
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.live.control_plane.clock import EngineClock, keep_note, read_note, save_note
from gpuyard.live.control_plane.lifecycle_log import LifecycleLog
from gpuyard.live.control_plane.loop import EngineLoop
from gpuyard.live.control_plane.nodes.agents import AgentConnections
from gpuyard.live.control_plane.options import SchedulerOptions
from gpuyard.live.control_plane.prediction.model_watch import watch_model
from gpuyard.live.control_plane.prediction.performance_predictor import PerformancePredictor
from gpuyard.live.control_plane.prediction.runtime_estimator import RuntimeEstimator
from gpuyard.live.control_plane.queries import TaskQueries
from gpuyard.live.control_plane.stores.archive import Archive
from gpuyard.live.control_plane.stores.archiver import Archiver
from gpuyard.live.control_plane.stores.idempotency import IdempotentRequests
from gpuyard.live.control_plane.stores.recovery import recover
from gpuyard.live.control_plane.stores.secrets import SecretStore
from gpuyard.live.control_plane.stores.snapshots import SnapshotSaver
from gpuyard.live.control_plane.stores.system_users import SystemUsers
from gpuyard.live.control_plane.stream import EventStream
from gpuyard.live.control_plane.submissions import Submissions
from gpuyard.live.control_plane.views import Views
from gpuyard.live.control_plane.worker_threads import WorkerPools
from gpuyard.live.wire.clock import SYSTEM_CLOCK, Clock

MOST_ORIGIN = 2**53 - 1
"""The largest integer that every JSON reader represents exactly."""
STOP_SECONDS = 10.0
UNKNOWN_TASKS = 10_000
"""Minimum number of task numbers skipped at a takeover: an old copy does not know which were assigned."""
ABSENCE_MARGIN_SECONDS = 5.0
"""Nodes start counting the announced absence when they hear of the stop, which is later than its event."""

log = structlog.get_logger()


def _drawn_origin() -> int:
    return secrets_module.randbelow(MOST_ORIGIN) + 1


@dataclass(frozen=True, slots=True)
class Stores:
    """The open databases and files of a data folder. Their opener closes them."""

    journal: SqliteJournal
    archive: Archive
    secrets: SecretStore
    system_users: SystemUsers = field(default_factory=SystemUsers)


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
    ) -> None:
        self.stores = stores
        self.views = views
        self.runtime_estimator = runtime_estimator
        if runtime_estimator is not None:
            runtime_estimator.remember_running(views.tasks.values())
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
        self._lifecycle_log = LifecycleLog(views)
        self._requests = IdempotentRequests(stores.archive, options.request_key)
        self.loop = EngineLoop(
            engine,
            stores.journal,
            self._hear,
            clock=self.clock,
            rebuild=self._rebuild,
            sweep_seconds=options.sweep_seconds,
            stopwatch=clock.monotonic,
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
        self.archiver = Archiver(self.loop, views, stores.archive, stores.secrets, self._requests, self.worker_pools)
        self.snapshots = SnapshotSaver(
            stores.journal, self.loop, views, stores.archive, self.archiver, self.worker_pools, options, clock
        )

    async def run(self, version: str) -> None:
        """Run until `stop` is called."""
        try:
            async with asyncio.TaskGroup() as group:
                works = (
                    self.agents.watch(),
                    self._requests.fill_filter(),
                    self.archiver.run(),
                    self.snapshots.run(),
                    watch_model(self.performance_predictor, self.stores.archive),
                    keep_note(self.clock, self._options.clock_file),
                    self._begin(version),
                )
                self.agents.registration.deposed = asyncio.get_running_loop().create_future()
                deposed = group.create_task(_failing(self.agents.registration.deposed))
                beside = [group.create_task(work) for work in works]
                with suppress(StorageFull):  # it was told to stop while the disk was full
                    await self.loop.run()
                for task in (*beside, deposed):
                    task.cancel()
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            self.ready, self.stopping = False, True
            self._lifecycle_log.write_all()

    async def _begin(self, version: str) -> None:
        order = command.BeginEpoch(
            version, origin=self._origin, offline_after_seconds=self._options.offline_after_seconds
        )
        await self.loop.tell(order)
        if self._options.take_over:  # the first node to register may not know the latest tasks
            left_out = UNKNOWN_TASKS + secrets_module.randbelow(
                9 * UNKNOWN_TASKS
            )  # random, because the same copy may be restored twice
            await self.loop.tell(command.SkipTaskNumbers(TaskId(self.loop.engine.state.last_task + left_out)))
        self.ready = True

    async def stop(self, absence_seconds: float) -> None:
        """Notify the nodes, write the archive and a snapshot, and end."""
        self.ready, self.stopping = False, True
        with suppress(StorageFull, TimeoutError):  # otherwise end as if killed: durable events stay durable
            async with asyncio.timeout(STOP_SECONDS):
                await self.loop.tell(command.EndEpoch(absence_seconds))
                self.agents.extend_liveness(max(0.0, absence_seconds - ABSENCE_MARGIN_SECONDS))
                await asyncio.sleep(0.05)  # time for the nodes to hear of it; otherwise they wait as for any other loss
                await self.archiver.archive_now()
                await self.snapshots.save(at_once=True)
        save_note(self.clock, self._options.clock_file)
        self.loop.stop()

    def _rebuild(self) -> Engine:
        return recover(self.stores.journal, self._advisor)[0]

    def _hear(self, records: Sequence[Record]) -> None:
        """Pass on committed events: the only way in which other parts learn of them."""
        views, agents = self.views, self.agents
        for record in records:
            views.apply(record)
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
                if isinstance(event, TaskEnded):
                    self.runtime_estimator.ended(view, record.at)
                else:
                    self.runtime_estimator.hear(event, view, record.at)
        self.stream.publish(records)
        self._lifecycle_log.hear(records)


async def _failing(future: "asyncio.Future[None]") -> None:
    """Wait until the future fails, and raise its error."""
    await future
