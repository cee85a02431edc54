"""The running scheduler: the object that REST and the server's command line call.

It connects the parts (loop, views, agents, archive, secrets, idempotency keys) and does the work between them: it
moves ended tasks to the archive and takes snapshots.
"""

import asyncio
import secrets as secrets_module
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import structlog

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events as fact
from gpuyard.core.domain.errors import JournalError, StorageFull
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import NewTask, TaskRange, TaskSpec
from gpuyard.core.domain.values import ENDED, TaskId, TaskStatus, TenantId
from gpuyard.core.engine.advice import Advisor
from gpuyard.core.engine.engine import Engine, Facts
from gpuyard.core.engine.explain import Explanation, Revise, explain, why_all_wait, why_waits
from gpuyard.core.engine.state import State
from gpuyard.core.journal.folders import FolderNotSafe
from gpuyard.core.journal.port import AuditRetention
from gpuyard.core.journal.records import Position, Record
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.live.control_plane.access.principal import Principal, Via
from gpuyard.live.control_plane.clock import EngineClock, read_note, write_note
from gpuyard.live.control_plane.lifecycle_log import LifecycleLog
from gpuyard.live.control_plane.loop import HEAVY, EngineLoop
from gpuyard.live.control_plane.nodes.agents import CHECK_SECONDS, AgentConnections
from gpuyard.live.control_plane.prediction.performance_predictor import PerformancePredictor, gpu_memory_by_model
from gpuyard.live.control_plane.prediction.runtime_estimator import RuntimeEstimator
from gpuyard.live.control_plane.stores.archive import Archive, ArchiveRow, Filters, SubmitKey
from gpuyard.live.control_plane.stores.database import StoreDamaged, StoreError
from gpuyard.live.control_plane.stores.idempotency import IdempotentRequests, SubmitResult, keys_of
from gpuyard.live.control_plane.stores.recovery import recover, take_snapshot
from gpuyard.live.control_plane.stores.secrets import SecretStore
from gpuyard.live.control_plane.stores.snapshotter import write_in_process
from gpuyard.live.control_plane.stores.system_users import SystemUsers
from gpuyard.live.control_plane.stream import EventStream
from gpuyard.live.control_plane.time_slices import TimeSlicer
from gpuyard.live.control_plane.views import LOOKED_AT_ONCE, TaskView, Views
from gpuyard.live.control_plane.worker_threads import WorkerPools
from gpuyard.live.wire.clock import SYSTEM_CLOCK, Clock
from gpuyard.system.files import replacing

if TYPE_CHECKING:
    from gpuyard.learn.performance.ended_tasks import EndedRun

T = TypeVar("T")
ARCHIVE_SECONDS = 1.0
CLOCK_SECONDS = 5.0
MOST_ORIGIN = 2**53 - 1
"""The largest integer that every JSON reader represents exactly."""
KEEP_KEYS_SECONDS = 86_400.0
"""How long a repeated request is recognized by its key."""
MODEL_SECONDS = 5.0
"""Interval of the check for a new performance model."""
MOST_JUDGED = 10_000
"""Number of recent ended tasks searched for those that can judge a model."""
SMALL_CLUSTER = 1_000
"""Up to this many tasks, views and nodes, the loop makes the snapshot itself: about ten milliseconds."""
SNAPSHOT_FOLDER = "making"
"""Subfolder of the journal in which another process writes a snapshot."""
SNAPSHOT_PAUSES = 10.0
"""The pause after a slow snapshot, as a multiple of its duration."""
MOST_FAILED = 3
"""After this many failures in a row, the loop makes the snapshot itself; otherwise the journal would grow forever."""
STOP_SECONDS = 10.0
UNKNOWN_TASKS = 10_000
"""Minimum number of task numbers skipped at a takeover: an old copy does not know which were assigned."""
PATIENCE_MARGIN_SECONDS = 5.0
"""Nodes start counting patience when they hear of the stop, which is later than the fact."""
TIDY_STEP, TIDY_PAUSE_SECONDS = 500, 0.05
COUNT_SECONDS, MOST_COUNTS = 1.0, 64
"""How long a count of open tasks is reused in a large cluster, and how many such counts are kept."""
MOST_ENCODED = 10_000
"""Number of cached answers for lists: about 10 MB."""
REASONS_AT_MOST = 200
"""Maximum number of waiting tasks in one list for which the engine is asked for the reason."""

log = structlog.get_logger()
_encode = msgspec.json.Encoder().encode


def _drawn_origin() -> int:
    return secrets_module.randbelow(MOST_ORIGIN) + 1


@dataclass(frozen=True, slots=True)
class Submission:
    """The tasks of one request, which differ only in their array index, and the values of their secrets."""

    specs: Sequence[TaskSpec]
    secrets: Mapping[str, str]
    after_success: Sequence[int] = ()
    after_any: Sequence[int] = ()
    """Requests of the same batch, by position, that the tasks of this one wait for."""


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Part of a list: answers as JSON, newest first."""

    answers: list[msgspec.Raw]
    total: int
    next_cursor: TaskId | None


class Scheduler:
    """All parts of a running scheduler."""

    def __init__(
        self,
        journal: SqliteJournal,
        engine: Engine,
        views: Views,
        archive: Archive,
        secrets: SecretStore,
        *,
        join_token: str,
        run_as: Callable[[TenantId], str] = lambda _: "",
        system_users: SystemUsers | None = None,
        heartbeat_seconds: float = 5.0,
        offline_after_seconds: float = 15.0,
        check_seconds: float = CHECK_SECONDS,
        sweep_seconds: float = 5.0,
        snapshot_seconds: float = 30.0,
        snapshot_folder: Path | None = None,
        small_cluster: int = SMALL_CLUSTER,
        retired_folder: Path | None = None,
        audit_folder: Path | None = None,
        audit_seconds: float = 365 * 86_400.0,
        request_key: bytes = b"",
        keep_seconds: float = 30 * 86_400.0,
        runtime_estimator: RuntimeEstimator | None = None,
        performance_predictor: PerformancePredictor | None = None,
        advisor: Advisor | None = None,
        clock: Clock = SYSTEM_CLOCK,
        clock_file: Path | None = None,
        cluster_key: bytes = b"",
        take_over: bool = False,
        unsafe_labels: frozenset[tuple[str, str]] = frozenset(),
        origin: int | None = None,
    ) -> None:
        self.journal = journal
        self.views = views
        self.archive = archive
        self.secrets = secrets
        self._run_as = run_as
        self.system_users = system_users or SystemUsers()
        self.stream = EventStream()
        self.worker_pools = WorkerPools()
        self._lifecycle_log = LifecycleLog(views)
        self._clock = clock
        self._clock_file = clock_file
        note = read_note(clock_file) if clock_file is not None else None
        self.clock = EngineClock(engine.state.now, clock, note)
        self._origin = _drawn_origin() if origin is None else origin
        self._take_over = take_over
        self._offline_after_seconds = offline_after_seconds
        self.loop = EngineLoop(
            engine,
            journal,
            self._hear,
            clock=self.clock,
            rebuild=self._rebuild,
            sweep_seconds=sweep_seconds,
            stopwatch=clock.monotonic,
        )
        self.agents = AgentConnections(
            self.loop,
            views,
            join_token=join_token,
            secrets=secrets.get,
            run_as=self.account_of,
            heartbeat_seconds=heartbeat_seconds,
            offline_after_seconds=offline_after_seconds,
            check_seconds=check_seconds,
            cluster_key=cluster_key,
            take_over=take_over,
            draw_origin=_drawn_origin,
            unsafe_labels=unsafe_labels,
            position_at=journal.position_at,
        )
        self.ready = False
        self.stopping = False
        self._snapshot_seconds = snapshot_seconds
        self._snapshot_folder = snapshot_folder
        self._small_cluster = small_cluster
        self._retired_folder = retired_folder
        self._audit = None if audit_folder is None else AuditRetention(audit_folder, _is_of_somebody)
        self._audit_seconds = audit_seconds
        self._requests = IdempotentRequests(archive, request_key)
        self._keep_seconds = keep_seconds
        self.runtime_estimator = runtime_estimator
        self.performance_predictor = performance_predictor
        self._advisor = advisor
        self._snapshot_at = journal.head.seq
        self._counted: dict[Filters, tuple[asyncio.Future[int], float]] = {}
        """Number of matching open tasks, and until when it is reused."""
        self._archived_seq = 0
        """The archive holds every task that ended by a fact up to this one."""
        self._snapshots_failed = 0
        """Consecutive failures of the snapshot process."""
        self._copy: tuple[int, asyncio.Task[Engine]] | None = None
        """While the disk is full: an engine rebuilt from the journal, and the fact up to which it was built."""

    # --- running -----------------------------------------------------------------------------------------------------

    def account_of(self, tenant: TenantId, user: str) -> str:
        """Return the system account that a user's tasks map to, otherwise the tenant's; empty if there is none."""
        return self.system_users.of(user) or self._run_as(tenant)

    async def run(self, version: str) -> None:
        """Run until `stop` is called."""
        try:
            async with asyncio.TaskGroup() as group:
                works = (
                    self.agents.watch(),
                    self._requests.fill_filter(),
                    self._keep_archive(),
                    self._keep_snapshots(),
                    self._keep_model(),
                    self._keep_clock(),
                    self._begin(version),
                )
                self.agents.deposed = asyncio.get_running_loop().create_future()
                deposed = group.create_task(_failing(self.agents.deposed))
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
        order = command.BeginEpoch(version, origin=self._origin, offline_after_seconds=self._offline_after_seconds)
        await self.loop.tell(order)
        if self._take_over:  # the first node to register may not know the latest tasks
            left_out = UNKNOWN_TASKS + secrets_module.randbelow(
                9 * UNKNOWN_TASKS
            )  # random, because the same copy may be restored twice
            await self.loop.tell(command.SkipTaskNumbers(TaskId(self.loop.engine.state.last_task + left_out)))
        self.ready = True

    async def stop(self, patience_seconds: float) -> None:
        """Notify the nodes, write the archive and a snapshot, and end."""
        self.ready, self.stopping = False, True
        with suppress(StorageFull, TimeoutError):  # otherwise end as if killed: durable facts stay durable
            async with asyncio.timeout(STOP_SECONDS):
                await self.loop.tell(command.EndEpoch(patience_seconds))
                self.agents.be_patient(max(0.0, patience_seconds - PATIENCE_MARGIN_SECONDS))
                await asyncio.sleep(0.05)  # time for the nodes to hear of it; otherwise they wait as for any other loss
                await self._archive_now()
                await self._save_snapshot(at_once=True)
        self._note_clock()
        self.loop.stop()

    def _rebuild(self) -> Engine:
        return recover(self.journal, self._advisor)[0]

    def _hear(self, records: Sequence[Record]) -> None:
        """Pass on committed facts: the only way in which other parts learn of them."""
        views, agents = self.views, self.agents
        for record in records:
            views.apply(record)
            try:
                agents.hear(record)
            except Exception:  # the fact is durable: all nodes register again and are reconciled with the state
                log.exception("dispatch_failed", seq=record.seq)
                agents.reset_sessions()
            event = record.fact
            if isinstance(event, fact.TaskSubmitted) and event.key:
                self._requests.note(event, record.at)
            elif isinstance(event, fact.TaskEnded) and self.runtime_estimator is not None:
                self.runtime_estimator.ended(views.tasks[event.task], record.at)
        self.stream.publish(records)
        self._lifecycle_log.hear(records)

    # --- tasks -------------------------------------------------------------------------------------------------------

    async def submit(
        self,
        submissions: Sequence[Submission],
        who: Principal,
        *,
        key: str = "",
        body: bytes = b"",
        request_id: str = "",
    ) -> list[TaskView] | Refusal:
        """Accept all of these or none. A repeated request with the same key gets the tasks of the first one."""
        name = (submissions[0].specs[0].tenant, key)
        digest = self._requests.digest(body) if key else ""
        answer: SubmitResult = asyncio.get_running_loop().create_future()
        if key and (known := await self._sent_before(name, digest, answer)) is not None:
            numbers = await asyncio.shield(known)
            return numbers if isinstance(numbers, Refusal) else self._views_of(numbers)
        given: list[TaskId] = []

        def undo() -> None:
            """Drop the secrets: the next request gets these task numbers and must neither find nor drop them."""
            if given and any(submission.secrets for submission in submissions):
                try:
                    self.secrets.drop(given)
                except StoreError as error:
                    log.warning("secret_removal_failed", message=str(error))

        def make(state: State) -> command.Command:
            undo()  # called again if another request of the batch broke the engine
            given.clear()
            tasks = []
            secrets: dict[TaskId, Mapping[str, str]] = {}
            numbers = _numbers(submissions, state.last_task)
            for submission in submissions:
                waits = _in_the_batch(submission, numbers)
                for asked in submission.specs:
                    spec = asked if waits is None else waits.added_to(asked)
                    given.append(TaskId(state.last_task + 1 + len(given)))
                    tasks.append(NewTask(given[-1], spec))
                    if submission.secrets:
                        secrets[given[-1]] = submission.secrets
            if secrets:
                self.secrets.put(secrets)
            return command.SubmitTasks(tuple(tasks), key, digest)

        facts: Facts | Refusal
        try:
            seen = await self._predicted(submissions)
            if isinstance(seen, Refusal):
                facts = seen
            else:
                submissions = await self._forecast(seen)
                facts = await self.loop.tell(make, issuer_of(who), _weight(submissions), undo, request_id)
        except BaseException as error:
            self._requests.fail(name)
            answer.set_exception(error)
            answer.exception()  # mark it as retrieved: asyncio must not warn if no other request waits for it
            raise
        if isinstance(facts, Refusal):
            self._requests.fail(name)
            answer.set_result(facts)
            return facts
        answer.set_result(given)
        return [self.views.tasks[task] for task in given]

    async def _predicted(self, submissions: Sequence[Submission]) -> Sequence[Submission] | Refusal:
        """Add predictions to tasks that declare a workload; return a refusal if one cannot fit."""
        performance_predictor = self.performance_predictor
        if performance_predictor is None or not any(submission.specs[0].work for submission in submissions):
            return submissions
        cards = gpu_memory_by_model(view.spec for view in self.views.nodes.values())
        told = await asyncio.to_thread(performance_predictor.predict_all, [one.specs for one in submissions], cards)
        if isinstance(told, Refusal):
            return told
        return [replace(one, specs=specs) for one, specs in zip(submissions, told, strict=True)]

    async def _sent_before(self, name: tuple[TenantId, str], digest: str, answer: SubmitResult) -> SubmitResult | None:
        try:
            return await self._requests.known(name, digest, answer)
        except BaseException as error:
            if self._requests.is_first(name, answer):
                self._requests.fail(name)
                answer.set_exception(error)
                answer.exception()  # mark it as retrieved: asyncio must not warn if no other request waits for it
            raise

    async def _forecast(self, submissions: Sequence[Submission]) -> Sequence[Submission]:
        """Add run-time estimates. The tasks of an array share one estimate: they differ only in their index."""
        runtime_estimator, now = self.runtime_estimator, self.loop.clock()
        if runtime_estimator is None:
            return submissions
        estimated, turns = [], TimeSlicer()
        for submission in submissions:
            first = runtime_estimator.estimated(submission.specs[0], now)
            specs = [first]
            for spec in submission.specs[1:]:
                specs.append(msgspec.structs.replace(spec, estimate=first.estimate, outlook=first.outlook))
                if turns.due():
                    await turns.give()
            estimated.append(Submission(specs, submission.secrets, submission.after_success, submission.after_any))
            if turns.due():
                await turns.give()
        return estimated

    def _views_of(self, tasks: Sequence[TaskId]) -> list[TaskView]:
        return [view for task in tasks if (view := self.views.tasks.get(task)) is not None]

    async def tell(self, asked: command.Command, who: Principal, request_id: str = "") -> Facts | Refusal:
        """Handle any other command on behalf of a principal."""
        return await self.loop.tell(asked, issuer_of(who), request_id=request_id)

    async def look(self, question: Callable[[State, float], T], weight: int = 0) -> T:
        """Query the engine's state. If the disk is full, query the state of the journal: the engine is ahead of it."""
        try:
            answer = await self.loop.look(question, weight)
        except StorageFull:
            return question(await self._committed_state(), self.loop.clock())
        self._copy = None
        return answer

    async def _committed_state(self) -> State:
        """Return the state of the journal; read once until the journal changes."""
        seq = self.loop.committed
        if self._copy is None or self._copy[0] != seq:
            self._copy = (seq, asyncio.create_task(self.worker_pools.snapshots.run(self._rebuild)))
        try:
            engine = await asyncio.shield(self._copy[1])
        except Exception:
            self._copy = None
            raise
        return engine.state

    async def explain(self, task: TaskId) -> Explanation:
        """Return why a task waits and when it is expected to start."""
        weight = HEAVY  # takes tenths of a second behind 200 tasks with estimates: run it in a thread
        return await self.look(lambda state, now: explain(state, task, now, self._revise(now)), weight)

    def _revise(self, now: float) -> Revise | None:
        """Return a function that predicts the run time of a waiting task again, with the tasks that ended meanwhile."""
        runtime_estimator = self.runtime_estimator
        return None if runtime_estimator is None else lambda task: runtime_estimator.current_estimate(task.spec, now)

    async def answer(self, task: TaskId) -> tuple[TenantId, bytes] | None:
        """Return the tenant and the JSON answer of a task; None if the task is unknown."""
        view = self.views.tasks.get(task)
        if view is None:
            kept = await self.worker_pools.archive.run(self.archive.get, task)
            if kept is None:
                return None
            return TenantId(msgspec.json.decode(kept, type=_Tenant).tenant_id), kept
        return view.spec.tenant, await self.encoded(view)

    async def encoded(self, view: TaskView) -> bytes:
        """Return a task's answer as JSON, with the reason it waits."""
        if view.waits:
            reason = await self.look(lambda state, now: why_waits(state, view.id, now))
            if reason is not None:
                return _encode(view.answer(reason.sentence(), reason.code))
        return _encode(view.answer())

    async def newest(self, wanted: Callable[[TaskView], bool]) -> list[TaskView]:
        """Return all open tasks that are wanted, newest first."""
        return await self.views.newest(wanted)

    async def page(self, filters: Filters, before: TaskId | None, limit: int) -> TaskPage:
        """Return tasks newest first, open and ended."""
        wanted = _wanted(filters)
        here = await self.views.newest(wanted, before, limit + 1)
        reasons = await self._reasons(here)
        ended = not filters.statuses or any(status in ENDED for status in filters.statuses)
        matching = [view for view in self.views.over.values() if wanted(view)]
        kept, total = [], len(matching) + await self._count_open(filters, wanted)
        if ended:
            kept = await self.worker_pools.archive.run(self.archive.page, filters, before, limit + 1)
            total += await self.worker_pools.archive.run(self.archive.count, filters)
            over = [view.id for view in matching]
            double = await self.worker_pools.archive.run(self.archive.statuses, over) if over else {}
            kept = [(task, answer) for task, answer in kept if task not in double]
            total -= len(double)
        mine = ((view.id, self._row(view, *reasons.get(view.id, (None, None)))) for view in here)
        both = list(islice(merge(mine, kept, key=lambda pair: -pair[0]), limit + 1))
        cursor = both[limit - 1][0] if len(both) > limit else None
        return TaskPage([msgspec.Raw(answer) for _, answer in both[:limit]], total, cursor)

    async def reason_of_new(self, view: TaskView) -> tuple[str | None, str | None]:
        """Return why a new task waits; not computed where many tasks wait, because the time grows with their number."""
        waiting = sum(counts.get(TaskStatus.PENDING, 0) for counts in self.views.counts.values())
        if not view.waits or waiting > REASONS_AT_MOST:
            return None, None
        return (await self._reasons([view])).get(view.id, (None, None))

    async def _reasons(self, views: Sequence[TaskView]) -> dict[TaskId, tuple[str, str]]:
        waiting = [view.id for view in views if view.waits]
        if not waiting:
            return {}

        def ask(state: State, now: float) -> dict[TaskId, tuple[str, str]]:
            told: dict[Refusal, tuple[str, str]] = {}
            found = why_all_wait(state, waiting[:REASONS_AT_MOST], now)
            for reason in found.values():
                if reason not in told:
                    told[reason] = (reason.sentence(), reason.code)
            return {task: told[reason] for task, reason in found.items()}

        return await self.look(ask)

    def _row(self, view: TaskView, reason: str | None, code: str | None) -> bytes:
        """Encode a task for a list. The answer of a waiting task is cached until the task or its reason changes."""
        if not view.waits:
            return _encode(view.answer(reason, code))
        encoded = self.views.encoded
        before = encoded.get(view.id)
        if before is not None and before[0] == reason:
            return before[1]
        if len(encoded) >= MOST_ENCODED:
            encoded.clear()
        answer = _encode(view.answer(reason, code))
        encoded[view.id] = (reason, answer)
        return answer

    async def _count_open(self, filters: Filters, wanted: Callable[[TaskView], bool]) -> int:
        """Count matching open tasks: from counters by status and tenant, otherwise by a scan at most once a second."""
        if filters == Filters(statuses=filters.statuses, tenant=filters.tenant):
            return self.views.open_tasks(filters.statuses, filters.tenant)
        before = self._counted.get(filters)
        if before is not None and (before[1] > self._clock.monotonic() or not before[0].done()):
            return await asyncio.shield(before[0])
        if len(self._counted) >= MOST_COUNTS:
            self._counted.clear()
        keep_seconds = COUNT_SECONDS if len(self.views.tasks) > LOOKED_AT_ONCE else 0.0
        count = asyncio.create_task(self._count(wanted))
        self._counted[filters] = (count, self._clock.monotonic() + keep_seconds)
        return await asyncio.shield(count)

    async def _count(self, wanted: Callable[[TaskView], bool]) -> int:
        return len(await self.views.newest(lambda view: view.status not in ENDED and wanted(view)))

    # --- background work ---------------------------------------------------------------------------------------------

    async def _keep_archive(self) -> None:
        while True:
            await asyncio.sleep(ARCHIVE_SECONDS)
            await self._archive_now()

    async def _archive_now(self) -> None:
        """Move ended tasks and idempotency keys from memory to the archive."""
        while self.loop.hearing:
            await asyncio.sleep(0.001)  # a request's key must be archived with all of its tasks or with none
        views, seq = self.views, self.views.last_seq
        ended, views.just_ended = views.just_ended, []
        keys = self._requests.take_accepted()
        if not ended and not keys:
            self._archived_seq = seq
            return
        rows, turns = [], TimeSlicer()
        for view in ended:
            rows.append(archive_row(view))
            if turns.due():
                await turns.give()
        try:
            await self.worker_pools.archive_writer.run(self._write_archive, rows, keys_of(keys), seq)
        except StoreError as error:
            views.just_ended = ended + views.just_ended
            self._requests.put_back(keys)
            if isinstance(error, StoreDamaged):
                log.error("archive_replaced", message=self.archive.start_over(error))
            else:
                log.warning("archive_write_failed", message=str(error))
            return
        views.archived([view.id for view in ended])
        self._archived_seq = seq
        if with_secrets := [view.id for view in ended if view.spec.secrets]:
            try:
                await self.worker_pools.archive_writer.run(self.secrets.drop, with_secrets)
            except StoreError as error:
                log.warning("secret_removal_failed", message=str(error))  # the next start sweeps them
        self._requests.archived(keys)

    def _write_archive(self, rows: list[ArchiveRow], keys: list[SubmitKey], seq: int) -> None:
        if keys:
            self.archive.remember(keys)
        self.archive.add(rows, seq)

    async def _keep_model(self) -> None:
        """Load a new performance model when there is one."""
        models = None if self.performance_predictor is None else self.performance_predictor.models
        while models is not None and models.path is not None:
            await asyncio.to_thread(models.renew, self._ended_after)
            await asyncio.sleep(MODEL_SECONDS)

    def _ended_after(self, instant: float) -> "list[EndedRun]":
        """Return tasks that ended after an instant and can judge the accuracy of a model."""
        from gpuyard.learn.performance.ended_tasks import ended_runs

        try:
            return [one for one in ended_runs(self.archive.newest(MOST_JUDGED)) if one.ended_at > instant]
        except StoreError as error:
            log.warning("model_evaluation_failed", message=str(error))
            return []

    async def _keep_clock(self) -> None:
        """Save the engine's time periodically for the next scheduler on this machine."""
        while True:
            self._note_clock()
            await asyncio.sleep(CLOCK_SECONDS)

    def _note_clock(self) -> None:
        self.clock.ahead_seconds()
        if self._clock_file is not None:
            write_note(self._clock_file, self.clock.note())

    async def _keep_snapshots(self) -> None:
        took = 0.0
        while True:
            await asyncio.sleep(max(self._snapshot_seconds, SNAPSHOT_PAUSES * took))
            try:
                await self._archive_now()
                began = self._clock.monotonic()
                await self._save_snapshot()
                took = self._clock.monotonic() - began
                await self.worker_pools.snapshots.run(self._tidy)
            except Exception:  # a snapshot is only an optimization: the journal holds everything
                log.exception("snapshot_failed")

    async def _save_snapshot(self, *, at_once: bool = False) -> None:
        """Save a snapshot: of a small cluster within the loop, in milliseconds; of a large one in another process."""
        if self.loop.full or self.loop.committed == self._snapshot_at:
            return
        size = len(self.loop.engine.state.tasks) + len(self.views.tasks) + len(self.views.nodes)
        if at_once or size <= self._small_cluster or self._snapshots_failed >= MOST_FAILED:
            snapshot = await self.loop.agree(lambda: take_snapshot(self.journal, self.loop.engine, self.views))
            await self.worker_pools.snapshots.run(self.journal.save_snapshot, snapshot)
            position = snapshot.position
        else:
            position = await self._snapshot_by_process()
        self._snapshots_failed = 0
        await self.worker_pools.snapshots.run(self._show_snapshot, position)
        self._snapshot_at = position.seq

    async def _snapshot_by_process(self) -> Position:
        position, beside = self.journal.head, self.journal.folder / SNAPSHOT_FOLDER
        self._snapshots_failed += 1
        await self.worker_pools.snapshots.run(
            partial(shutil.rmtree, beside, ignore_errors=True)
        )  # left by a process that was stopped
        await write_in_process(self.journal.folder, position, self._archived_seq, beside)
        await self.worker_pools.snapshots.run(self.journal.adopt_snapshot, position, beside)
        return position

    def _show_snapshot(self, position: Position) -> None:
        """Copy the newest snapshot to a file with a stable name, for people to read."""
        if self._snapshot_folder is not None:
            shown = self._snapshot_folder / "state.json"
            with replacing(shown, durable=False) as new:
                shutil.copyfile(self.journal.snapshot_path(position.seq), new)

    def _tidy(self) -> None:
        try:
            self.journal.retire(into=self._retired_folder, audit=self._audit)
        except (JournalError, FolderNotSafe) as error:
            log.warning("event_retirement_failed", message=str(error))  # the journal grows until the next attempt
        now = self._clock.wall()
        self._thin_out_audit(now)
        while self.archive.retain(finished_since=now - self._keep_seconds, step=TIDY_STEP) >= TIDY_STEP:
            time.sleep(TIDY_PAUSE_SECONDS)  # sleeps in a worker thread, so that other work can run
        while self.archive.forget_keys(now - KEEP_KEYS_SECONDS, step=TIDY_STEP) >= TIDY_STEP:
            time.sleep(TIDY_PAUSE_SECONDS)

    def _thin_out_audit(self, now: float) -> None:
        """Remove audit records that are older than their retention."""
        if self._audit is None:
            return
        for path in self._audit.folder.glob("audit-*.jsonl.gz"):
            with suppress(OSError):
                if path.stat().st_mtime < now - self._audit_seconds:
                    path.unlink()


def _is_of_somebody(record: Record) -> bool:
    """Whether a fact comes from a user or the settings. Reports of nodes are many and are not user actions."""
    return bool(record.by) and not record.by.startswith("agent:")


class _Tenant(msgspec.Struct):
    tenant_id: str


def _weight(submissions: Sequence[Submission]) -> int:
    """Estimate the work of a request: its tasks, their dependencies, and each dependency range counted once."""
    weight = 0
    for submission in submissions:
        spec = submission.specs[0]
        ranges = (*spec.after_success_ranges, *spec.after_any_ranges)
        waits = len(spec.after_success) + len(spec.after_any) + len(ranges)
        waits += len(submission.after_success) + len(submission.after_any)
        weight += len(submission.specs) * (1 + waits) + sum(last - first + 1 for first, last in ranges)
    return weight


async def _failing(future: "asyncio.Future[None]") -> None:
    """Wait until the future fails, and raise its error."""
    await future


def issuer_of(who: Principal) -> str:
    """Return the user and address of a principal as facts carry them."""
    prefix = "local:" if who.via is Via.LOCAL else ""
    return f"{prefix}{who.username}@{who.address}"


def archive_row(view: TaskView) -> ArchiveRow:
    """Return the archive row of an ended task."""
    spec = view.spec
    assert view.finished_at is not None
    return ArchiveRow(
        view.id,
        spec.tenant,
        view.status,
        spec.task_class,
        view.priority,
        spec.user,
        spec.project,
        spec.name,
        view.submitted_at,
        view.finished_at,
        _encode(view.answer()),
    )


def _wanted(filters: Filters) -> Callable[[TaskView], bool]:
    def wanted(view: TaskView) -> bool:
        spec = view.spec
        return (
            (not filters.statuses or view.status in filters.statuses)
            and (filters.tenant is None or spec.tenant == filters.tenant)
            and (filters.priority is None or view.priority == filters.priority)
            and (filters.user is None or spec.user == filters.user)
            and (filters.project is None or spec.project == filters.project)
            and (filters.name is None or spec.name == filters.name)
            and (filters.since is None or view.submitted_at >= filters.since)
        )

    return wanted


def _numbers(submissions: Sequence[Submission], last: TaskId) -> list[range]:
    """Return the numbers that the tasks of each request will get."""
    numbers, first = [], last + 1
    for submission in submissions:
        numbers.append(range(first, first + len(submission.specs)))
        first += len(submission.specs)
    return numbers


@dataclass(frozen=True, slots=True)
class _Waits:
    """Dependencies of a request on its own batch, as task numbers. All tasks of the request share it."""

    after_success: tuple[TaskId, ...]
    after_any: tuple[TaskId, ...]
    after_success_ranges: tuple[TaskRange, ...]
    after_any_ranges: tuple[TaskRange, ...]

    def added_to(self, spec: TaskSpec) -> TaskSpec:
        return msgspec.structs.replace(
            spec,
            after_success=spec.after_success + self.after_success,
            after_any=spec.after_any + self.after_any,
            after_success_ranges=spec.after_success_ranges + self.after_success_ranges,
            after_any_ranges=spec.after_any_ranges + self.after_any_ranges,
        )


def _in_the_batch(submission: Submission, numbers: Sequence[range]) -> _Waits | None:
    if not submission.after_success and not submission.after_any:
        return None
    success, ended = (
        [numbers[place] for place in places] for places in (submission.after_success, submission.after_any)
    )
    return _Waits(_single(success), _single(ended), _ranges(success), _ranges(ended))


def _single(numbers: Sequence[range]) -> tuple[TaskId, ...]:
    return tuple(TaskId(each[0]) for each in numbers if len(each) == 1)


def _ranges(numbers: Sequence[range]) -> tuple[TaskRange, ...]:
    return tuple((TaskId(each[0]), TaskId(each[-1])) for each in numbers if len(each) > 1)
