"""The loop: one engine, one journal, and everybody who asks.

Commands gather while the last commit is on its way to the disk; then all of them are handled, one decision is made for
all, and the facts are written together (group commit). Nobody is answered, and no view, stream or node learns of a
fact, before it is durable; the engine may be one batch ahead, never more.

    tell, look ──► intake ──► handle… decide ──► append (a thread) ──► hear ──► answers
                                  ▲                    │
                                  └── the next batch gathers meanwhile

A few facts on a disk that is quick are appended without the thread: two changes of thread would take longer than the disk.

When there is no space left, nothing new is accepted, what was decided waits, and the same append is tried until it
works. Any other failure to write ends the process: what the journal holds is the truth, and the engine is ahead of it.
Facts are encoded before anything is written, order by order, so what can not be written has an author.

A command that breaks the engine (a bug) is answered as such; the engine is built anew from the journal, and the others
of its batch are handled again, one by one with a decision after each if it was the decision that broke. A question that
fails is answered with its error: it changes nothing, so the engine stays. So does it when a command can not be made.
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
from gpuyard.core.domain.errors import GpuyardError, StorageFull
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import TaskId
from gpuyard.core.engine.engine import Engine, Facts
from gpuyard.core.engine.state import State
from gpuyard.core.journal.port import Journal
from gpuyard.core.journal.records import JournalEntry, Position, Record

T = TypeVar("T")
TimeSource = Callable[[], float]
CommandOrFactory = Command | Callable[[State], Command]
"""A command, or how to make it once it is its turn: task numbers are given out then."""

MOST_AT_ONCE = 5_000
"""Orders in one batch: a client that sends more than this waits for two commits."""
LIGHT = 300
"""A batch that makes more facts than this is handled in a thread. Nobody else looks at the engine meanwhile."""
HEAVY = LIGHT + 1
HEARD_AT_ONCE = 300
"""Committed facts that are told to the views, the nodes and the streams in one go."""
SWITCH_SECONDS = 0.001
"""How soon a thread that works gives way to the event loop. Python's own 5 ms would add up to a stall."""
FULL_RETRY_SECONDS = 1.0
FEW = 16
QUICK_SECONDS = 0.0005
"""An append that takes less than this, as the last ones did, is not worth a thread."""

log = structlog.get_logger()


class Broken(GpuyardError):
    """This request broke the scheduler, which mended itself; nothing was changed. Please report it with the log."""


class _Asked:
    """One who waits for an answer."""

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
        """About how many facts it makes."""
        self.undo: Callable[[], None] | None = None
        """What to do when the order is refused, before the next one is made."""
        self.future = future
        self.order = order
        self.by = by
        self.question = question
        self.answer: Any = None
        self.error: BaseException | None = None
        """Instead of an answer."""


class _Batch(list[_Asked]):
    """Those who are answered together."""

    def __init__(self, asked: Iterable[_Asked] = ()) -> None:
        super().__init__(asked)
        self.entries: list[JournalEntry] = []
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
    ) -> None:
        self.engine = engine
        self.full = ""
        """A sentence while there is no space left for the journal."""
        self.committed = journal.head.seq
        self.hearing = False
        """Facts of one batch are being told, and not all of them have been."""
        self.committed_hash = journal.head.hash
        """Of all facts up to that one."""
        self._journal = journal
        self._hear = hear
        self.clock = clock
        self._stopwatch = stopwatch
        self._rebuild = rebuild
        self._sweep_seconds = sweep_seconds
        self._intake: deque[_Asked] = deque()
        self._looking: set[asyncio.Future[Any]] = set()
        """Questions that have no answer yet."""
        self._agreements: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []
        self._woken = asyncio.Event()
        self._stopping = False
        self._append_seconds = 0.0
        """How long appends have taken lately."""
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
    ) -> "asyncio.Future[Facts | Refusal]":
        """Have a command handled; the answer comes when its facts are durable. `weight`: about how many facts it makes."""
        future: asyncio.Future[Facts | Refusal] = asyncio.get_running_loop().create_future()
        if self.full:
            future.set_exception(StorageFull(self.full))
            return future
        asked = _Asked(future, order, by, weight=weight, request_id=request_id)
        asked.undo = undo
        self._intake.append(asked)
        self._woken.set()
        return future

    def look(self, question: Callable[[State, float], T], weight: int = 0) -> "asyncio.Future[T]":
        """Ask the engine's state; the answer comes when everything it rests on is durable, `StorageFull` if it can not be."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self.full:
            future.set_exception(StorageFull(self.full))
            return future
        self._looking.add(future)
        future.add_done_callback(self._looking.discard)
        self._intake.append(_Asked(future, question=question, weight=weight))
        self._woken.set()
        return future

    def agree(self, do: Callable[[], T]) -> "asyncio.Future[T]":
        """Do something while engine, journal and views are at the same fact: it must be quick."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._agreements.append((future, do))
        self._woken.set()
        return future

    def stop(self) -> None:
        """Finish what was asked, then end. Without space left there is nothing to wait for."""
        self._stopping = True
        self._woken.set()

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is stopped."""
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
                        await commit  # only then does the journal hold everything the engine has told
                        commit = None
                    await self._mend(batch, broken)
                    continue
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
            self._writer.shutdown(wait=True)
            self._worker.shutdown(wait=True)
            sys.setswitchinterval(switch_seconds)

    def _is_light(self, batch: list[_Asked]) -> bool:
        """Whether a batch is handled at once. A large one is handled in a thread, and the event loop goes on meanwhile."""
        if sum(asked.weight for asked in batch) > LIGHT:
            return False
        tasks = self.engine.state.tasks
        for asked in batch:
            task = tasks.get(getattr(asked.order, "task", TaskId(0)))
            if task and task.barriers and any(len(barrier.dependents) > LIGHT for barrier in task.barriers):
                return False
        return True

    def _agree(self) -> None:
        agreements, self._agreements = self._agreements, []
        for future, do in agreements:
            if future.done():
                continue  # whoever asked has given up
            try:
                future.set_result(do())
            except Exception as error:  # the asker's
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
        await asyncio.sleep(0)  # let whoever is about to ask do so: one commit for all of them

    async def _mend(self, batch: _Batch, broken: "_BrokenBy") -> None:
        """Build the engine anew from the journal, and handle the batch without the one that broke it."""
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
        """The decision for all of them broke: each gets one of its own, and the one after which it breaks is refused."""
        if not batch:
            raise broken.error  # it breaks by what is durable already: another start is as good as this one
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
                    raise always.error from None  # not by this one: even without it there is no decision
                await self._commit(nobody)
            else:
                await self._commit(alone)

    def _throw_away(self, broken: "_BrokenBy") -> None:
        log.error("engine_broken", by=repr(broken.asked and broken.asked.order)[:500], exc_info=broken.error)
        self.engine = self._rebuild()

    def _work(self, batch: _Batch) -> None:
        """Handle what was asked, decide once for all of it, and answer the questions from what is so then."""
        engine, state, now = self.engine, self.engine.state, self.clock()
        entries, payloads, encode = batch.entries, batch.payloads, self._journal.encode
        entries.clear()
        payloads.clear()
        asked: _Asked | None = None
        try:
            for asked in batch:
                order = asked.order
                if order is None:
                    continue
                asked.error = None
                if not isinstance(order, Command):
                    try:
                        order = order(state)
                    except Exception as error:  # it could not be made: the engine has not heard of it
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
        except Exception as error:  # the engine is in an unknown state, whatever it was
            raise _BrokenBy(asked, error) from error
        for asked in batch:
            if asked.question is not None:
                try:
                    asked.answer = asked.question(state, now)
                except Exception as error:  # a question changes nothing
                    asked.error = _for_the_asker(error)

    async def _commit(self, batch: _Batch) -> None:
        entries = batch.entries
        if entries:
            first = self.committed + 1
            await self._append(batch.payloads)
            self.committed = first + len(entries) - 1
            self.hearing = len(entries) > HEARD_AT_ONCE
            for start in range(0, len(entries), HEARD_AT_ONCE):
                if start:
                    await asyncio.sleep(0)  # between two parts of a large batch others get their turn
                part = enumerate(entries[start : start + HEARD_AT_ONCE], start=first + start)
                self._hear([Record(seq, it.at, it.fact, it.by, it.request_id) for seq, it in part])
            self.hearing = False
        for asked in batch:
            if asked.future.done():
                continue
            if asked.error is not None:
                asked.future.set_exception(asked.error)
            else:
                asked.future.set_result(asked.answer)

    async def _append(self, payloads: list[bytes]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                if self._is_quick(payloads):
                    head = self._append_timed(payloads)
                else:
                    head = await loop.run_in_executor(self._writer, self._append_timed, payloads)
            except StorageFull as error:
                if not self.full:
                    log.error("storage_full", message=str(error))
                self.full = str(error)
                for future in list(self._looking):
                    if not future.done():
                        future.set_exception(StorageFull(self.full))
                if self._stopping:
                    raise
                await asyncio.sleep(FULL_RETRY_SECONDS)
            else:
                assert head.seq == self.committed + len(payloads), "somebody else writes this journal"
                self.committed_hash = head.hash
                if self.full:
                    log.info("storage_has_room", seq=head.seq)
                self.full = ""
                return

    def _is_quick(self, payloads: list[bytes]) -> bool:
        return len(payloads) <= FEW and self._append_seconds < QUICK_SECONDS

    def _append_timed(self, payloads: list[bytes]) -> Position:
        began = self._stopwatch()
        head = self._journal.append_encoded(payloads)
        self._append_seconds += (self._stopwatch() - began - self._append_seconds) / 8
        return head


def _for_the_asker(error: Exception) -> Exception:
    """What went wrong beside the engine: said as it is where it is said in words of ours."""
    if isinstance(error, GpuyardError):
        return error
    log.error("request_broken", exc_info=error)
    return Broken()


def _refuse(asked: _Asked) -> None:
    if asked.undo is not None:
        asked.undo()
    if not asked.future.done():
        asked.future.set_exception(Broken())


class _BrokenBy(Exception):
    """Internal to the loop: the engine raised an exception."""

    def __init__(self, asked: _Asked | None, error: Exception) -> None:
        super().__init__()
        self.asked = asked
        """Who asked for it; none: the engine broke while it decided."""
        self.error = error
