"""One implementation of every method for programs that block and for programs that await.

A method is written once, as a generator that yields what it needs next: a request, a change of a task, an item for the
caller. A *driver* carries that out and sends the answer back into the generator:

    ClusterOperations.submit  ─ yields OnConnection ─►  Blocking: on this thread             Client
    (a generator)             ◄─ its answer ──────────  Awaiting: in a thread, awaited       AsyncClient

`operation` makes a method of such a generator. Read from a `Blocking` object it is a function, from an `Awaiting` one a
coroutine function, with the same parameters and documentation; type checkers see both. So there are no twins to keep equal.
asyncio is imported by `aio.py` only.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeAlias, TypeVar, cast, overload

from gpuyard.live.sdk.connection import Connection

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class OnConnection:
    """Do something with the connection that may block for as long as a request takes; its result is the answer."""

    __slots__ = ("endless", "work")

    def __init__(self, work: Callable[[Connection], Any], *, endless: bool = False) -> None:
        self.work = work
        self.endless = endless
        """It may block until something happens, such as the next part of a stream."""


class Inbox(Protocol):
    """Where a listening thread leaves numbers of tasks for a generator that waits."""

    def put(self, number: int | None) -> None:
        """Leave the number of a task; None: the stream has ended. Called from any thread."""
        ...


class MakeInbox:
    """Make an inbox that this driver can wait at."""


class Wait:
    """Wait for the next number at an inbox, at most this long; `NOTHING` if none came. Without an inbox, sleep."""

    __slots__ = ("inbox", "seconds")

    def __init__(self, inbox: Inbox | None, seconds: float) -> None:
        self.inbox = inbox
        self.seconds = seconds


NOTHING = object()
"""The answer to `Wait` when the time is over."""


class Item(Generic[T]):
    """A value for the caller, of a method that returns several."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


Step: TypeAlias = OnConnection | MakeInbox | Wait
Steps: TypeAlias = Generator[Step, Any, T]
"""A method that returns one value, as a generator of steps."""
ItemSteps: TypeAlias = Generator[Step | Item[T], Any, None]
"""A method that returns several values, as a generator of steps and items."""


def ask(
    method: str,
    path: str,
    type_: type[T],
    *,
    query: Mapping[str, object] | None = None,
    body: object = None,
    key: str | None = None,
) -> Steps[T]:
    """Send a request and return its answer as this type; see `Connection.ask`."""
    answer = yield OnConnection(lambda it: it.ask(method, path, type_, query=query, body=body, key=key))
    return cast("T", answer)


def send(
    method: str,
    path: str,
    *,
    query: Mapping[str, object] | None = None,
    body: object = None,
    content: bytes | None = None,
    key: str | None = None,
) -> Steps[bytes]:
    """Send a request and return the body of the answer; see `Connection.send`."""
    answer = yield OnConnection(lambda it: it.send(method, path, query=query, body=body, content=content, key=key))
    return cast("bytes", answer)


class Blocking:
    """An object whose methods block."""

    connection: Connection

    def _run(self, steps: Steps[T]) -> T:
        """Carry out a method."""
        answer, error = None, None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                return cast("T", end.value)
            answer, error = self._do_step(step)

    def _iterate(self, steps: ItemSteps[T]) -> Iterator[T]:
        """Carry out a method that returns several values."""
        answer, error = None, None
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
                    answer, error = self._do_step(step)
        finally:
            steps.close()

    def _do_step(self, step: Step) -> tuple[Any, BaseException | None]:
        try:
            match step:
                case OnConnection():
                    return step.work(self.connection), None
                case MakeInbox():
                    return _BlockingInbox(), None
                case Wait():
                    return _wait(step), None
        except BaseException as error:  # the generator decides what becomes of it
            return None, error


class _BlockingInbox:
    def __init__(self) -> None:
        from queue import SimpleQueue

        self.numbers: SimpleQueue[int | None] = SimpleQueue()

    def put(self, number: int | None) -> None:
        self.numbers.put(number)


def _wait(step: Wait) -> object:
    from queue import Empty

    if step.inbox is None:
        import time

        time.sleep(step.seconds)
        return NOTHING
    assert isinstance(step.inbox, _BlockingInbox)
    try:
        return step.inbox.numbers.get(timeout=max(0.0, step.seconds))
    except Empty:
        return NOTHING


class Awaiting:
    """An object whose methods are awaited. Its driver is in `aio.py`."""

    connection: Connection

    async def _run(self, steps: Steps[T]) -> T:
        """Carry out a method."""
        from gpuyard.live.sdk.aio import run_steps

        return await run_steps(self.connection, steps)

    def _iterate(self, steps: ItemSteps[T]) -> AsyncIterator[T]:
        """Carry out a method that returns several values."""
        from gpuyard.live.sdk.aio import iterate_steps

        return iterate_steps(self.connection, steps)


class operation(Generic[P, R]):  # noqa: N801 - used as a decorator
    """A method that returns one value."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[R]]) -> None:
        self.steps = steps
        update_wrapper(cast("Any", self), steps)

    def __call__(self, target: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call it as a function of its class: `Client.cancel(client, task)`."""
        return self.__get__(target, type(target))(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Blocking, owner: type) -> Callable[P, R]: ...
    @overload
    def __get__(self, instance: Awaiting, owner: type) -> Callable[P, Coroutine[Any, Any, R]]: ...

    def __get__(self, instance: Blocking | Awaiting | None, owner: type) -> Any:
        if instance is None:
            return self
        target: Any = instance

        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return target._run(self.steps(target, *args, **kwargs))

        return update_wrapper(method, self.steps)


class listing(Generic[P, T]):  # noqa: N801 - used as a decorator
    """A method that returns several values, one after the other: its steps yield them as items."""

    def __init__(self, steps: Callable[Concatenate[Any, P], ItemSteps[T]]) -> None:
        self.steps = steps
        update_wrapper(cast("Any", self), steps)

    def __call__(self, target: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call it as a function of its class: `Client.cancel(client, task)`."""
        return self.__get__(target, type(target))(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Blocking, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, instance: Awaiting, owner: type) -> Callable[P, AsyncIterator[T]]: ...

    def __get__(self, instance: Blocking | Awaiting | None, owner: type) -> Any:
        if instance is None:
            return self
        target: Any = instance

        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return target._iterate(self.steps(target, *args, **kwargs))

        return update_wrapper(method, self.steps)
