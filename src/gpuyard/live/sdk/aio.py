"""The client for asyncio: the methods of `Client`, awaited.

Requests run on threads, because the connection code then stays one: who listens at an address on this machine, hints at
TLS, several schedulers, repetition of broken requests. A request ends after its timeout at the latest, so a few threads
are enough. What waits for long does not hold one of them: waits for tasks are awaited, and each stream has a thread of its
own that ends when the stream is closed.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from gpuyard.live.sdk.calls import AsyncRemoteCall, Raised
from gpuyard.live.sdk.client import (
    ONE_TASK,
    CallFields,
    ClusterOperations,
    Command,
    CommandFields,
    LeaseFields,
    R,
    TaskFields,
    check_call,
    check_command,
    connection_to,
)
from gpuyard.live.sdk.connection import TIMEOUT_SECONDS, Connection
from gpuyard.live.sdk.errors import ClusterError
from gpuyard.live.sdk.leases import RenewalPlan, check_renewal, devices_set
from gpuyard.live.sdk.steps import NOTHING, Awaiting, Inbox, Item, ItemSteps, OnConnection, Step, Steps, Wait
from gpuyard.live.sdk.values import Lease, Task, TaskRef

T = TypeVar("T")
REQUESTS_AT_ONCE = 8
_threads = ThreadPoolExecutor(REQUESTS_AT_ONCE, "gpuyard-requests")


def connect(
    server: str | None = None,
    *,
    token: str | None = None,
    ca: str | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    server_user: str | None = None,
    wait_for_scheduler: float = 0.0,
    on_wait: Callable[[ClusterError, float], None] | None = None,
) -> "AsyncClient":
    """Return a client whose methods are awaited. The arguments are those of `gpuyard.connect`; nothing is sent yet."""
    return AsyncClient(
        connection_to(
            server,
            token=token,
            ca=ca,
            timeout_seconds=timeout_seconds,
            server_user=server_user,
            wait_for_scheduler=wait_for_scheduler,
            on_wait=on_wait,
        )
    )


class AsyncClient(ClusterOperations, Awaiting):
    """One cluster, for asyncio. Create it with `gpuyard.aio.connect()`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def without_waiting(self) -> "AsyncClient":
        """Return a client with the same connections whose requests fail at once if nothing listens."""
        return AsyncClient(self.connection.without_waiting())

    def close(self) -> None:
        """Close the connection of this thread. Those of the request threads are kept for the next client."""
        self.connection.close()

    @overload
    async def submit(
        self, command: Command, *, idempotency_key: str | None = None, **fields: Unpack[CommandFields]
    ) -> Task: ...
    @overload
    async def submit(
        self, command: Callable[..., R], *args: Any, **fields: Unpack[CallFields]
    ) -> AsyncRemoteCall[R]: ...

    async def submit(self, command: Any, *args: Any, idempotency_key: str | None = None, **fields: Any) -> Any:
        """Submit a task: a command, or a function with its arguments; see `Client.submit`."""
        if not callable(command):
            check_command(args, fields)
            return await self._submit_command(command, idempotency_key=idempotency_key, **fields)
        check_call(fields, idempotency_key)
        return AsyncRemoteCall(self.connection, await self._submit_call(command, args, fields))  # type: ignore[arg-type]

    @overload
    def map(
        self,
        function: Callable[..., R],
        *iterables: Iterable[Any],
        max_running: int | None = None,
        ordered: bool = True,
        return_exceptions: Literal[False] = False,
        **fields: Unpack[TaskFields],
    ) -> "AsyncMapResults[R]": ...
    @overload
    def map(
        self,
        function: Callable[..., R],
        *iterables: Iterable[Any],
        max_running: int | None = None,
        ordered: bool = True,
        return_exceptions: Literal[True],
        **fields: Unpack[TaskFields],
    ) -> "AsyncMapResults[R | Exception]": ...

    def map(
        self,
        function: Callable[..., R],
        *iterables: Iterable[Any],
        max_running: int | None = None,
        ordered: bool = True,
        return_exceptions: bool = False,
        **fields: Unpack[TaskFields],
    ) -> "AsyncMapResults[Any]":
        """Run a function for each item as a task of its own, and yield the results; see `Client.map`."""
        return AsyncMapResults(
            self._iterate(self._mapped(function, iterables, max_running, ordered, return_exceptions, fields))
        )

    @overload  # a string is a task id, although it is also a sequence of strings
    async def wait(self, tasks: TaskRef, *, timeout: float | None = None, check: bool = False) -> Task: ...  # type: ignore[overload-overlap]
    @overload
    async def wait(
        self, tasks: Iterable[TaskRef], *, timeout: float | None = None, check: bool = False
    ) -> list[Task]: ...

    async def wait(
        self, tasks: TaskRef | Iterable[TaskRef], *, timeout: float | None = None, check: bool = False
    ) -> Task | list[Task]:
        """Wait until a task, or all of several, have ended; see `Client.wait`."""
        if isinstance(tasks, ONE_TASK):
            return (await self._wait_for_all([tasks], timeout, check))[0]
        return await self._wait_for_all(list(tasks), timeout, check)

    async def _renew(self, plan: RenewalPlan, lease: Lease) -> None:
        cluster = self.without_waiting()
        while True:
            await asyncio.sleep(plan.pause)
            try:
                await cluster.extend(lease, timeout=plan.limit())
            except ClusterError as error:
                if not plan.failed(error):
                    return
            else:
                plan.succeeded()

    @asynccontextmanager
    async def lease(
        self,
        gpus: int | None = None,
        *,
        timeout: float | None = None,
        wait_seconds: float | None = None,
        renew: bool = False,
        set_devices: bool = False,
        **fields: Unpack[LeaseFields],
    ) -> AsyncIterator[Lease]:
        """Hold GPUs for this program until the end of the `async with`; see `Client.lease`."""
        check_renewal(timeout, renew=renew)
        lease = await self.take_lease(gpus, timeout=timeout, wait_seconds=wait_seconds, **fields)
        renewing: asyncio.Task[None] | None = None
        try:
            if renew:
                renewing = asyncio.create_task(self._renew(RenewalPlan(timeout or 0.0), lease))
            with devices_set(lease) if set_devices else nullcontext():
                yield lease
        finally:
            if renewing is not None:
                renewing.cancel()
            await self.release_lease(lease)


class AsyncMapResults(AsyncIterator[T]):
    """The results of a map. After an exception that it raises, the next result follows."""

    def __init__(self, items: AsyncIterator[Any]) -> None:
        self._items = items

    async def __anext__(self) -> T:
        item = await anext(self._items)
        if isinstance(item, Raised):
            raise item.error
        value: T = item
        return value


# --- the driver -------------------------------------------------------------------------------------------------------


class _AsyncInbox:
    """Numbers of tasks, left by a thread for a coroutine."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.numbers: asyncio.Queue[int | None] = asyncio.Queue()

    def put(self, number: int | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.numbers.put_nowait, number)


async def run_steps(connection: Connection, steps: Steps[T]) -> T:
    """Carry out a method that returns one value."""
    answer: Any = None
    error: BaseException | None = None
    try:
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                value: T = end.value
                return value
            answer, error = await _do_step(connection, step)
    finally:
        steps.close()


async def iterate_steps(connection: Connection, steps: ItemSteps[T]) -> AsyncIterator[T]:
    """Carry out a method that returns several values."""
    answer: Any = None
    error: BaseException | None = None
    try:
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration:
                return
            if isinstance(step, Item):
                yield step.value
                answer, error = None, None
            else:
                answer, error = await _do_step(connection, step)
    finally:
        steps.close()


async def _do_step(connection: Connection, step: Step) -> tuple[Any, BaseException | None]:
    """Return the answer, or the error for the generator, which cleans up. It is raised again; so is a cancellation."""
    try:
        match step:
            case OnConnection():
                return await _in_thread(step, connection), None
            case Wait():
                return await _wait(step), None
            case _:
                return _AsyncInbox(), None
    except BaseException as error:
        return None, error


async def _in_thread(step: OnConnection, connection: Connection) -> Any:
    if not step.endless:
        return await asyncio.get_running_loop().run_in_executor(_threads, step.work, connection)
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def tell(value: Any, error: Exception | None) -> None:
        if not done.done():
            done.set_exception(error) if error is not None else done.set_result(value)

    def work() -> None:
        value, failed = None, None
        try:
            value = step.work(connection)
        except Exception as error:  # the coroutine raises it
            failed = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, value, failed)

    threading.Thread(target=work, name="gpuyard-stream", daemon=True).start()
    return await done


async def _wait(step: Wait) -> object:
    inbox: Inbox | None = step.inbox
    if inbox is None:
        await asyncio.sleep(step.seconds)
        return NOTHING
    assert isinstance(inbox, _AsyncInbox)
    try:
        async with asyncio.timeout(max(0.0, step.seconds)):
            return await inbox.numbers.get()
    except TimeoutError:
        return NOTHING
