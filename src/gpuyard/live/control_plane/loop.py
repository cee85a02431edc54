"""Drive one engine and one journal under the wall clock, with group commit.

Commands gather while the previous commit is written to disk. The loop then handles all of them, makes one scheduling
decision for the batch and writes the events together (group commit). Replies, views, streams and nodes see an event only
after it is durable. The engine is at most one batch ahead of the journal.

    tell, look ──► intake ──► handle… decide ──► append (a thread) ──► hear ──► answers
                                  ▲                    │
                                  └── the next batch gathers meanwhile

On a fast disk, a few events are appended without the thread: two thread switches would take longer than the write.

When the disk is full, or the database of the journal does not answer, the loop accepts nothing new, keeps the pending
events and retries the same append until it succeeds. Any other write failure ends the process, because the journal is authoritative and the engine is ahead of it.
Events are encoded command by command before the write, so an encoding failure is attributed to its command.

If a command breaks the engine (a bug), the command fails with `EngineCrashed`, the engine is rebuilt from the journal, and the
rest of the batch is handled again; if the decision failed, each command is handled alone with its own decision. A
question or a command factory that fails returns its error; it changes nothing, so the engine is kept.

A standby follows the journal of another scheduler: `follow` applies its events, questions are answered at once from the
state they give, and commands are refused with `NotLeading`. `run` begins to decide, from that state on.
"""

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import structlog

from gpuyard.core.domain.commands import Command
from gpuyard.core.domain.errors import (
    GpuyardError,
    NotLeading,
    OutcomeUnknown,
    StandbyUnreachable,
    StorageFull,
    StorageUnavailable,
    StorageUnreachable,
)
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import TaskId
from gpuyard.core.engine.apply import apply_recorded
from gpuyard.core.engine.engine import Engine, Events
from gpuyard.core.engine.state import State
from gpuyard.core.journal.port import Journal
from gpuyard.core.journal.records import JournalEntry, Position, Record

T = TypeVar("T")
TimeSource = Callable[[], float]
Observer = Callable[[float], None]
"""Is told how many seconds something took."""
CommandOrFactory = Command | Callable[[State], Command]
"""A command, or a factory called when its turn comes: task numbers are assigned at that moment."""

MOST_AT_ONCE = 5_000
"""Maximum number of commands in one batch. A client that sends more waits for two commits."""
LIGHT = 300
"""A batch expected to make more events than this is handled in a thread. Nothing else reads the engine meanwhile."""
HEAVY = LIGHT + 1
HEARD_AT_ONCE = 300
"""Number of committed events passed to the views, nodes and streams before the event loop runs other work."""
SWITCH_SECONDS = 0.001
"""Switch interval between a working thread and the event loop. Python's default of 5 ms would add up to a stall."""
FULL_RETRY_SECONDS = 1.0
UNDECIDED_SECONDS = 5.0
"""After so long an append that fails again and again does not keep people waiting."""
NO_DATABASE = "The database of the scheduler does not answer; running tasks continue. Try again in a few seconds."
"""For callers; the log has the reason with the address."""
FEW = 16
QUICK_SECONDS = 0.0005
"""Appends run without a thread while their average duration is below this."""

log = structlog.get_logger()


def _ignore(seconds: float) -> None:
    """Observe nothing."""


class EngineCrashed(GpuyardError):
    """Internal error; nothing was changed. Please report it with the log of the scheduler."""


class _Asked:
    """One command or question that waits for an answer."""

    __slots__ = ("answer", "by", "error", "future", "order", "question", "request_id", "undo", "weight")

    def __init__(
        self,
        future: "asyncio.Future[Any]",
        order: CommandOrFactory | None = None,
        by: str = "",
        question: Callable[[State, float], Any] | None = None,
        weight: int = 1,
        request_id: str = "",
    ) -> None:
        self.request_id = request_id
        self.weight = weight
        """Estimated number of events that it makes."""
        self.undo: Callable[[], None] | None = None
        """Called when the command is refused, before the next command is made."""
        self.future = future
        self.order = order
        self.by = by
        self.question = question
        self.answer: Any = None
        self.error: BaseException | None = None
        """Set instead of `answer` on failure."""


class _Batch(list[_Asked]):
    """Commands and questions that are handled and answered together."""

    def __init__(self, asked: Iterable[_Asked] = ()) -> None:
        super().__init__(asked)
        self.entries: list[JournalEntry] = []
        self.decided_at = 0.0
        """When the engine had decided them, in its own time."""
        self.payloads: list[bytes] = []


class EngineLoop:
    """Drives an engine under the wall clock."""

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        hear: Callable[[Sequence[Record]], None],
        *,
        clock: TimeSource,
        rebuild: Callable[[], Engine],
        sweep_seconds: float = 5.0,
        stopwatch: TimeSource = time.perf_counter,
        observe_decision: Observer = _ignore,
        observe_commit: Observer = _ignore,
        follows: bool = False,
        is_remote: bool = False,
    ) -> None:
        """`follows`: begin as a standby. `is_remote`: the journal is behind a network, so every append has a thread."""
        self.engine = engine
        self.follows = follows
        self._is_remote = is_remote
        self.unwritable: StorageUnavailable | None = None
        """What callers are told while the journal cannot be written."""
        self.committed = journal.head.seq
        self.hearing = False
        """True while the events of a large batch are being passed on in parts."""
        self.decided_at = 0.0
        """When the engine had decided the events that are being passed on."""
        self.committed_hash = journal.head.hash
        """Hash of the journal up to `committed`."""
        self._journal = journal
        self._hear = hear
        self.clock = clock
        self._stopwatch = stopwatch
        self._observe_decision = observe_decision
        self._observe_commit = observe_commit
        self._rebuild = rebuild
        self._sweep_seconds = sweep_seconds
        self._intake: deque[_Asked] = deque()
        self._looking: set[asyncio.Future[Any]] = set()
        """Questions without an answer yet."""
        self._under_way: list[_Batch] = []
        """Batches that were handled and are not answered yet."""
        self._agreements: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []
        self._woken = asyncio.Event()
        self._stopping = False
        self._has_ended = False
        self._append_seconds = 0.0
        """Moving average of the duration of appends."""
        self._append_began: float | None = None
        """Start of the append in progress, by the stopwatch."""
        self._writer = ThreadPoolExecutor(1, "journal")
        self._worker = ThreadPoolExecutor(1, "engine")

    # --- asking ------------------------------------------------------------------------------------------------------

    def tell(
        self,
        order: CommandOrFactory,
        by: str = "",
        weight: int = 1,
        undo: Callable[[], None] | None = None,
        request_id: str = "",
    ) -> "asyncio.Future[Events | Refusal]":
        """Queue a command; the future resolves when its events are durable. `weight`: the estimated number of events."""
        future: asyncio.Future[Events | Refusal] = asyncio.get_running_loop().create_future()
        if self.follows or self._has_ended:
            future.set_exception(NotLeading())
            return future
        if self.unwritable is not None:
            future.set_exception(_again(self.unwritable))
            return future
        asked = _Asked(future, order, by, weight=weight, request_id=request_id)
        asked.undo = undo
        self._intake.append(asked)
        self._woken.set()
        return future

    def look(self, question: Callable[[State, float], T], weight: int = 0) -> "asyncio.Future[T]":
        """Query the engine's state; resolves when its events are durable, or raises `StorageUnavailable`."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self.follows:
            try:
                future.set_result(question(self.engine.state, self.clock()))
            except Exception as error:  # a question changes nothing
                future.set_exception(_for_the_asker(error))
            return future
        if self._has_ended:
            future.set_exception(NotLeading())
            return future
        if self.unwritable is not None:
            future.set_exception(_again(self.unwritable))
            return future
        self._looking.add(future)
        future.add_done_callback(self._looking.discard)
        self._intake.append(_Asked(future, question=question, weight=weight))
        self._woken.set()
        return future

    def agree(self, do: Callable[[], T]) -> "asyncio.Future[T]":
        """Call `do` while engine, journal and views are at the same event. It blocks the loop and must be quick."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._agreements.append((future, do))
        if self.follows and not self.hearing:
            self._agree()
        self._woken.set()
        return future

    def stop(self) -> None:
        """Finish the queued work, then end. If nothing can be written, end without waiting for it."""
        self._stopping = True
        self._woken.set()

    # --- following ----------------------------------------------------------------------------------------------------

    async def follow(self, records: Sequence[Record], head: Position) -> None:
        """Apply events that another scheduler has committed; `head` is the position of the last one."""
        state = self.engine.state
        self.hearing = True
        for start in range(0, len(records), HEARD_AT_ONCE):
            if start:
                await asyncio.sleep(0)  # let other work run between two parts of a large batch
            part = records[start : start + HEARD_AT_ONCE]
            for record in part:
                apply_recorded(state, record.event, record.at)
            self.committed = part[-1].seq
            self._hear(part)
        self.hearing = False
        self.committed_hash = head.hash
        self._agree()

    @property
    def position(self) -> Position:
        """Where the engine is while nothing is handled, as within `agree`."""
        return Position(self.committed, self.committed_hash)

    def lead(self, engine: Engine) -> None:
        """Begin to accept commands; `engine` has the state that the followed events gave."""
        self.engine, self.follows = engine, False

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until `stop` is called."""
        commit: asyncio.Task[None] | None = None
        switch_seconds = sys.getswitchinterval()
        sys.setswitchinterval(min(switch_seconds, SWITCH_SECONDS))
        try:
            while not (self._stopping and not self._intake):
                await self._wait_for_work()
                if self._agreements:
                    if commit is not None:
                        await commit
                        commit = None
                    self._agree()
                batch = _Batch(self._intake.popleft() for _ in range(min(len(self._intake), MOST_AT_ONCE)))
                try:
                    if self._is_light(batch):
                        self._work(batch)
                    else:
                        await asyncio.get_running_loop().run_in_executor(self._worker, self._work, batch)
                except _BrokenBy as broken:
                    if commit is not None:
                        await commit  # only now does the journal hold every event that the engine has returned
                        commit = None
                    await self._mend(batch, broken)
                    continue
                # Commits are in order: the engine handled this batch while the previous one was written.
                if commit is not None:
                    await commit
                    commit = None
                if self._is_quick(batch.payloads):
                    await self._commit(batch)
                elif batch or batch.entries:
                    commit = asyncio.create_task(self._commit(batch))
            if commit is not None:
                await commit
        finally:
            if commit is not None:  # this loop was cancelled; the commit must not go on without it
                commit.cancel()
                await asyncio.gather(commit, return_exceptions=True)
            self._writer.shutdown(wait=not self._is_remote)  # a database may keep its thread waiting
            self._worker.shutdown(wait=True)
            self._abandon()
            sys.setswitchinterval(switch_seconds)

    def _abandon(self) -> None:
        """Answer everything that is left when the loop ends early: nobody else will."""
        self._has_ended = True
        for asked in self._intake:
            if not asked.future.done():
                asked.future.set_exception(NotLeading())  # it was not looked at
        for asked in (asked for batch in self._under_way for asked in batch):
            if not asked.future.done():
                asked.future.set_exception(OutcomeUnknown())
        for future, _ in self._agreements:
            future.cancel()

    def _is_light(self, batch: list[_Asked]) -> bool:
        """Return whether to handle a batch in place. A large one runs in a thread so that the event loop continues."""
        if sum(asked.weight for asked in batch) > LIGHT:
            return False
        tasks = self.engine.state.tasks
        for asked in batch:  # the end of a task may release many dependents, which its weight does not show
            task = tasks.get(getattr(asked.order, "task", TaskId(0)))
            if task and task.barriers and any(len(barrier.dependents) > LIGHT for barrier in task.barriers):
                return False
        return True

    def _agree(self) -> None:
        agreements, self._agreements = self._agreements, []
        for future, do in agreements:
            if future.done():
                continue  # the caller has given up
            try:
                future.set_result(do())
            except Exception as error:  # passed to the caller
                future.set_exception(error)

    async def _wait_for_work(self) -> None:
        if not self._intake and not self._agreements:
            self._woken.clear()
            due = self.engine.next_wakeup()
            seconds = self._sweep_seconds if due is None else min(self._sweep_seconds, due - self.clock())
            if seconds > 0 and not self._stopping:
                try:
                    async with asyncio.timeout(seconds):
                        await self._woken.wait()
                except TimeoutError:
                    return
        await asyncio.sleep(0)  # let other callers enqueue first, so that one commit serves all of them

    async def _mend(self, batch: _Batch, broken: "_BrokenBy") -> None:
        """Rebuild the engine from the journal and handle the batch without the command that broke it."""
        culprit = broken.asked
        while True:
            self._throw_away(broken)
            if culprit is None:
                return await self._one_by_one(batch, broken)
            batch.remove(culprit)
            _refuse(culprit)
            try:
                self._work(batch)
            except _BrokenBy as again:
                broken, culprit = again, again.asked
            else:
                return await self._commit(batch)

    async def _one_by_one(self, batch: _Batch, broken: "_BrokenBy") -> None:
        """Handle each command with its own decision after the common one failed; refuse those that break it."""
        if not batch:
            raise broken.error  # durable events alone break the decision: only a restart is left
        for asked in batch:
            alone = _Batch([asked])
            try:
                self._work(alone)
            except _BrokenBy as again:
                self._throw_away(again)
                _refuse(asked)
                try:
                    self._work(nobody := _Batch())
                except _BrokenBy as always:
                    raise always.error from None  # the decision fails even without this command
                await self._commit(nobody)
            else:
                await self._commit(alone)

    def _throw_away(self, broken: "_BrokenBy") -> None:
        log.error("engine_crashed", by=repr(broken.asked and broken.asked.order)[:500], exc_info=broken.error)
        self.engine = self._rebuild()

    def _work(self, batch: _Batch) -> None:
        """Handle the commands, make one decision for the batch, then answer the questions from the resulting state."""
        engine, state, now = self.engine, self.engine.state, self.clock()
        entries, payloads, encode = batch.entries, batch.payloads, self._journal.encode
        entries.clear()
        payloads.clear()
        asked: _Asked | None = None
        began = self._stopwatch()
        try:
            for asked in batch:
                order = asked.order
                if order is None:
                    continue
                asked.error = None
                if not isinstance(order, Command):
                    try:
                        order = order(state)
                    except Exception as error:  # the factory failed before the engine was called
                        asked.error = _for_the_asker(error)
                        continue
                answer = asked.answer = engine.handle(order, now)
                if isinstance(answer, Refusal):
                    if asked.undo is not None:
                        asked.undo()
                else:
                    at, by, request_id = state.now, asked.by, asked.request_id
                    for event in answer:
                        entry = JournalEntry(at, event, by, request_id)
                        entries.append(entry)
                        payloads.append(encode(entry))
            asked = None
            for event in engine.decide(now):
                entry = JournalEntry(state.now, event)
                entries.append(entry)
                payloads.append(encode(entry))
        except Exception as error:  # the engine may be partly changed: its state is unknown
            raise _BrokenBy(asked, error) from error
        if entries:
            batch.decided_at = self.clock()
            self._observe_decision(self._stopwatch() - began)
        for asked in batch:
            if asked.question is not None:
                try:
                    asked.answer = asked.question(state, now)
                except Exception as error:  # a question changes nothing, so the engine is kept
                    asked.error = _for_the_asker(error)

    async def _commit(self, batch: _Batch) -> None:
        entries = batch.entries
        self._under_way.append(batch)
        if entries:
            first = self.committed + 1
            await self._append(batch.payloads)
            self.committed = first + len(entries) - 1
            self.decided_at = batch.decided_at
            self.hearing = len(entries) > HEARD_AT_ONCE
            for start in range(0, len(entries), HEARD_AT_ONCE):
                if start:
                    await asyncio.sleep(0)  # let other work run between two parts of a large batch
                part = enumerate(entries[start : start + HEARD_AT_ONCE], start=first + start)
                self._hear([Record(seq, it.at, it.event, it.by, it.request_id) for seq, it in part])
            self.hearing = False
        for asked in batch:
            if asked.future.done():
                continue
            if asked.error is not None:
                asked.future.set_exception(asked.error)
            else:
                asked.future.set_result(asked.answer)
        self._under_way.remove(batch)

    @property
    def append_age(self) -> float:
        """Return for how long the events that the engine has returned have not been durable yet; 0: all are."""
        began = self._append_began
        return 0.0 if began is None else self._stopwatch() - began

    async def _append(self, payloads: list[bytes]) -> None:
        self._append_began = self._stopwatch()
        try:
            await self._append_until_written(payloads)
        finally:
            self._append_began = None

    async def _append_until_written(self, payloads: list[bytes]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                if self._is_quick(payloads):
                    head = self._append_timed(payloads)
                else:
                    head = await loop.run_in_executor(self._writer, self._append_timed, payloads)
            except StorageUnavailable as error:
                if self.unwritable is None:
                    _log_unwritable(error)
                self.unwritable = _for_callers(error)
                for future in list(self._looking):
                    if not future.done():
                        future.set_exception(_again(self.unwritable))
                if self._stopping:
                    raise
                if self.append_age > UNDECIDED_SECONDS:
                    self._answer_undecided(self.unwritable)
                await asyncio.sleep(FULL_RETRY_SECONDS)
            else:
                assert head.seq == self.committed + len(payloads), "another process writes this journal"
                self.committed_hash = head.hash
                if self.unwritable is not None:
                    log.info("storage_recovered", seq=head.seq)
                self.unwritable = None
                return

    def _answer_undecided(self, why: StorageUnavailable) -> None:
        """Tell people who wait for the append under way that it may succeed later. Nodes wait for it."""
        for asked in (asked for batch in self._under_way for asked in batch):
            if asked.request_id and not asked.future.done():
                asked.future.set_exception(
                    OutcomeUnknown(f"{why} The request may be carried out later; repeat it with its key.")
                )

    def _is_quick(self, payloads: list[bytes]) -> bool:
        return len(payloads) <= FEW and self._append_seconds < QUICK_SECONDS and not (self._is_remote and payloads)

    def _append_timed(self, payloads: list[bytes]) -> Position:
        began = self._stopwatch()
        head = self._journal.append_encoded(payloads)
        took = self._stopwatch() - began
        self._observe_commit(took)
        # An exponential moving average, so that a single slow append does not decide alone.
        self._append_seconds += (took - self._append_seconds) / 8
        return head


def _log_unwritable(problem: StorageUnavailable) -> None:
    match problem:
        case StorageFull():
            log.error("storage_full", message=str(problem))
        case StandbyUnreachable():
            log.error("standby_unreachable", message=str(problem))
        case _:
            log.error("storage_unreachable", message=str(problem))


def _for_callers(error: StorageUnavailable) -> StorageUnavailable:
    """Return what callers are told. The address of a database is for the log only."""
    return StorageUnreachable(NO_DATABASE) if type(error) is StorageUnreachable else error


def _again(problem: StorageUnavailable) -> StorageUnavailable:
    """Return a copy: an exception that is raised several times would collect the tracebacks of all."""
    return type(problem)(str(problem))


def _for_the_asker(error: Exception) -> Exception:
    """Return the error to report for a failure outside the engine: a `GpuyardError` as is, others as `EngineCrashed`."""
    if isinstance(error, GpuyardError):
        return error
    log.error("command_crashed", exc_info=error)
    return EngineCrashed()


def _refuse(asked: _Asked) -> None:
    if asked.undo is not None:
        asked.undo()
    if not asked.future.done():
        asked.future.set_exception(EngineCrashed())


class _BrokenBy(Exception):
    """Internal to the loop: the engine raised an exception."""

    def __init__(self, asked: _Asked | None, error: Exception) -> None:
        super().__init__()
        self.asked = asked
        """The command that broke the engine. None: the engine broke while deciding."""
        self.error = error
