"""An event loop with a virtual clock, and processes inside it.

Time passes only when nothing is ready: then it jumps to the next timer. Nothing sleeps, there are no threads, and the
order depends on nothing but the calls, so a run with the same seed is the same run.

A `Process` is everything that was started in its context. Callbacks, timers and tasks inherit the context (that is what
contextvars are for), so a whole process can be stopped (its callbacks wait, as under SIGSTOP) or killed (they are
dropped: no `finally`, no `except` runs, as under SIGKILL) although it shares the event loop with all others.
"""

import asyncio
import gc
import os
import random
import sys
import time
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")
_PROCESS: ContextVar["Process | None"] = ContextVar("process", default=None)
OUTSIDE = Context()
"""What belongs to no process: the network, the kernels, the driver of a test."""


class NumberedFuture(asyncio.Future[Any]):
    """Sets iterate in the order of hashes, and the default hash is an address: a number instead repeats."""

    def __init__(self, number: int, loop: "VirtualLoop") -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class NumberedTask(asyncio.Task[Any]):
    """The same for a task."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number  # before asyncio puts it into a set of its own
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(asyncio.AbstractEventLoop):
    """See the head of this file."""

    def __init__(self) -> None:
        self._now = 1_000.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count(1)
        self._kept: list[Any] = []
        """Started generators: if they were collected during a scenario, their `finally` would run then."""
        self.errors: list[dict[str, Any]] = []
        """Exceptions that were not caught."""
        self.steps = 0

    # --- the part that asyncio uses ---------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Asyncio tells of it; a cancelled timer is passed over when it is due."""

    def create_future(self) -> "asyncio.Future[Any]":
        return NumberedFuture(next(self._numbers), self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> "asyncio.Task[T]":
        task = NumberedTask(next(self._numbers), coro, loop=self, name=name or "task", context=context)
        self._kept.append(task)
        if len(self._kept) > 2_000:
            self._kept = [it for it in self._kept if not (isinstance(it, asyncio.Task) and it.done())]
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]  # noqa: ARG002
        """Done within the process, after as long as its disk takes."""
        process, future = _PROCESS.get(), self.create_future()
        job = _Job(process, future, func, args)
        if process is not None and process.disk_seconds:
            process.jobs.append(job)
            self.call_later(process.disk_seconds, job.run)
        else:
            self.call_soon(job.run)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    # --- the part that drives ---------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run until this has ended."""
        before, collects = sys.get_asyncgen_hooks(), gc.isenabled()
        gc.disable()  # a collection would take longer than the scenario it interrupts
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=self._kept.append, finalizer=lambda _: None)
        try:
            task = self.create_task(main, context=OUTSIDE.copy())
            while not task.done():
                self._step()
            return task.result()
        finally:
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*before)
            if collects:
                gc.enable()

    def _step(self) -> None:
        ready = self._ready
        if not ready:
            timers = self._timers
            assert timers, "everything waits for ever"
            self._now = max(self._now, timers[0][0])
            while timers and timers[0][0] <= self._now:
                ready.append(heappop(timers)[2])
        while ready:
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(_PROCESS)  # type: ignore[attr-defined]
            if process is not None and process.holds_back(handle):
                continue
            self.steps += 1
            handle._run()

    def bury(self) -> None:
        """Drop everything that is left. Code that would run during its collection is dropped silently."""
        before, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            self._ready.clear()
            self._timers.clear()
            self._kept.clear()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # coroutines that were never awaited: their process was killed
                gc.collect()
        finally:
            sys.unraisablehook = before


def virtual_loop() -> VirtualLoop:
    """A new one. Of what an event loop can do it has the part that schedulers and agents use."""
    return VirtualLoop()  # type: ignore[abstract]


class _Job:
    """A call that a thread of a process does."""

    def __init__(
        self, process: "Process | None", future: "asyncio.Future[Any]", func: Callable[..., Any], args: Any
    ) -> None:
        self._process, self._future, self._func, self._args = process, future, func, args

    def run(self) -> None:
        process = self._process
        if process is not None:
            if self in process.jobs:
                process.jobs.remove(self)
            process.in_job = True
        try:
            result = self._func(*self._args)
        except Exception as error:
            if not self._future.done():
                self._future.set_exception(error)
        else:
            if not self._future.done():
                self._future.set_result(result)
        finally:
            if process is not None:
                process.in_job, process.lead = False, 0.0

    def finish_alone(self) -> None:
        """The process was killed in the middle, and the disk has it all the same."""
        try:
            self._func(*self._args)
        except Exception:
            return


class Process:
    """What is started in its context."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self.stopped = False
        self.stops = 0
        """How often it was stopped: a later check sees whether it is still the same stop."""
        self.disk_seconds = 0.0
        """How long a call takes that a thread does."""
        self.jobs: list[_Job] = []
        self.in_job = False
        self.lead = 0.0
        """How far its clock is ahead of the loop's, in the middle of a call that takes time."""
        self.on_kill: list[Callable[[], None]] = []
        self.on_stop: list[Callable[[], None]] = []
        self.context = OUTSIDE.copy()
        self.context.run(_PROCESS.set, self)
        self._loop = loop
        self._held_back: list[asyncio.Handle] = []

    def start(self, main: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run something inside."""
        return self._loop.create_task(main, context=self.context.copy())

    def soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Call something inside."""
        self._loop.call_soon(callback, *args, context=self.context)

    def holds_back(self, handle: asyncio.Handle) -> bool:
        """Whether a callback must not run now."""
        if not self.alive:
            return True
        if self.stopped:
            self._held_back.append(handle)
        return self.stopped

    def stop(self) -> None:
        """SIGSTOP."""
        if self.alive and not self.stopped:
            self.stopped = True
            self.stops += 1
            for callback in list(self.on_stop):
                callback()

    def go_on(self) -> None:
        """SIGCONT."""
        self.stopped = False
        self.lead = 0.0
        handles, self._held_back = self._held_back, []
        self._loop._ready.extend(handles)

    def pause(self, seconds: float) -> None:
        """It does nothing for a while."""
        if self.alive and not self.stopped:
            self.stop()
            self._loop.call_later(seconds, self.go_on, context=OUTSIDE)

    def kill(self, finished: Callable[[], bool] = lambda: True) -> None:
        """SIGKILL. Of what its threads were doing, some was finished."""
        if not self.alive:
            return
        self.alive = False
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            if finished():
                job.finish_alone()
        callbacks, self.on_kill = self.on_kill, []
        for callback in callbacks:
            callback()

    def blocks(self, seconds: float) -> None:
        """A call inside takes so long: the whole process waits for it, or only the thread that makes it."""
        self.lead += seconds
        if not self.in_job:
            self.pause(seconds)


@contextmanager
def clocks_watched() -> Iterator[set[str]]:
    """Detect code that uses the machine's time, or sleeps, instead of the clock it was given."""
    found: set[str] = set()
    before = {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter", "sleep")}

    def watched(name: str) -> Callable[..., Any]:
        def ask(*args: Any) -> Any:
            caller = sys._getframe(1)
            if (module := caller.f_globals.get("__name__", "")).startswith("gpuyard."):
                found.add(f"{module}:{caller.f_lineno} calls time.{name}")
            return before[name](*args)

        return ask

    for name in before:
        setattr(time, name, watched(name))
    try:
        yield found
    finally:
        for name, real in before.items():
            setattr(time, name, real)


@contextmanager
def one_seed(seed: int) -> Iterator[random.Random]:
    """Let all randomness of the process come from a seed, also that of `secrets` and `uuid`."""
    drawn = random.Random(f"system {seed}")
    state, before = random.getstate(), (os.urandom, random._urandom)  # type: ignore[attr-defined]
    os.urandom = random._urandom = drawn.randbytes  # type: ignore[attr-defined]
    random.seed(seed)
    try:
        yield random.Random(seed)
    finally:
        os.urandom, random._urandom = before  # type: ignore[attr-defined]
        random.setstate(state)
