"""Functions that run on the cluster, as the caller holds them: one call, and the results of many."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from secrets import token_hex
from typing import Any, Generic, TypeVar

from gpuyard.core.domain.errors import WrongInput
from gpuyard.live.sdk.connection import Connection
from gpuyard.live.sdk.errors import NotAllowed
from gpuyard.live.sdk.functions import Arguments, PackedFunction, outcome_of, packed_arguments
from gpuyard.live.sdk.paths import of_task, same
from gpuyard.live.sdk.steps import Awaiting, Blocking, Item, ItemSteps, Steps, ask, operation
from gpuyard.live.sdk.uploads import name_of, upload
from gpuyard.live.sdk.values import Task, TaskHandle
from gpuyard.live.sdk.waiting import AwaitedEnds
from gpuyard.live.wire.answers import CancelAnswer, SessionAnswer

T = TypeVar("T")
USUAL_MAX_RUNNING = 1000
"""Calls of a map that are submitted and have not ended, unless the caller says otherwise."""
MOST_READY = 10
"""Results that wait for an earlier one before no more calls are submitted, in multiples of `max_running`."""
SubmitBodies = Callable[[list[dict[str, Any]]], Steps[list[Task]]]
"""Submits tasks from their fields."""


class CallSteps(TaskHandle, Generic[T]):
    """A call of a function: a task, and its result."""

    connection: Connection

    def __init__(self, connection: Connection, task: Task) -> None:
        self.connection = connection
        self.task = task
        """The task as it was submitted, or as it ended."""
        self._outcome: tuple[T, Exception | None] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.task.id} {self.task.name}: {self.task.status}>"

    @operation
    def result(self, timeout: float | None = None) -> Steps[T]:
        """Return the value of the function, or raise its exception. Raise `TookTooLong` after `timeout` seconds."""
        value, error = yield from self._ended(timeout)
        if error is not None:
            raise error
        return value

    @operation
    def exception(self, timeout: float | None = None) -> Steps[Exception | None]:
        """Return the exception of the function, or None if it returned a value."""
        return (yield from self._ended(timeout))[1]

    @operation
    def done(self) -> Steps[bool]:
        """Return whether it has ended."""
        if not self.task.ended:
            self.task = yield from ask("GET", of_task(self.task), Task, query=same(self.task))
        return self.task.ended

    @operation
    def cancel(self) -> Steps[CancelAnswer]:
        """Stop it, or take it out of the queue."""
        return ask("DELETE", of_task(self.task), CancelAnswer, query=same(self.task))

    def _ended(self, timeout: float | None) -> Steps[tuple[T, Exception | None]]:
        if self._outcome is None:
            self.task = yield from ended_task(self.connection, self.task, timeout)
            self._outcome = yield from outcome_of(self.task)
        return self._outcome


class RemoteCall(CallSteps[T], Blocking):
    """A call of a function on the cluster."""


class AsyncRemoteCall(CallSteps[T], Awaiting):
    """A call of a function on the cluster, for asyncio."""


def ended_task(connection: Connection, task: Task, timeout: float | None) -> Steps[Task]:
    """Return a task when it has ended."""
    if task.ended:
        return task
    waiting = AwaitedEnds(connection.without_waiting(), {task.number: task.created_at}, timeout)
    try:
        ended = yield from waiting.next()
    finally:
        waiting.close()
    assert ended is not None, "it waits for one task"
    return ended


def result_of(connection: Connection, task: Task, timeout: float | None) -> Steps[Any]:
    """Return the result of a task of this user, or raise its exception. Results of others are never loaded."""
    me = yield from ask("GET", "/api/v1/session", SessionAnswer)
    if task.user and task.user != me.username:
        message = f"{task.id} belongs to {task.user}; a result is loaded only for the user who submitted the function."
        raise NotAllowed(message, status=403, code="Forbidden")
    ended = yield from ended_task(connection, task, timeout)
    if not ended.store_result:
        raise WrongInput(f"{task.id} runs a command, which has no result; read its output with logs().")
    value, error = yield from outcome_of(ended)
    if error is not None:
        raise error
    return value


def group_of(function: PackedFunction, run: str) -> str:
    """Return the group of the calls that one map, or one executor, makes of a function."""
    return f"{function.name}-{run}"


def new_run() -> str:
    """Return what tells the calls of one map or executor from those of another."""
    return token_hex(4)


def submitted_calls(
    function: PackedFunction, calls: Sequence[Arguments], options: Mapping[str, Any], submit: SubmitBodies
) -> Steps[list[Task]]:
    """Upload what is missing and submit one task for each call, in order."""
    chunks = packed_arguments(calls)
    blobs = {name_of(content): content for content, _ in chunks}
    yield from upload({function.blob: function.payload, **blobs}, options.get("tenant_id"))
    places = ((content, index) for content, count in chunks for index in range(count))
    bodies = [
        function.fields(name_of(content), index, call, options)
        for (content, index), call in zip(places, calls, strict=True)
    ]
    return (yield from submit(bodies))


def mapped(
    connection: Connection,
    function: PackedFunction,
    calls: Iterator[Arguments],
    options: Mapping[str, Any],
    submit: SubmitBodies,
    *,
    max_running: int | None,
    ordered: bool,
    return_exceptions: bool,
) -> ItemSteps[Any]:
    """Yield the results of calls, of which at most `max_running` are submitted at a time."""
    most = USUAL_MAX_RUNNING if max_running is None else max_running
    if most < 1:
        raise WrongInput(f"max_running is {most}; it must be at least 1.")
    options = {"group": group_of(function, new_run()), **options}
    follower = AwaitedEnds(connection.without_waiting(), {}, None, grows=True)
    place_of: dict[int, int] = {}
    ready: dict[int, tuple[Any, Exception | None]] = {}
    submitted = yielded = 0
    more = True
    try:
        while more or place_of or ready:
            room = most - len(place_of)
            if more and room * 2 >= most and len(ready) < MOST_READY * most:
                chunk = list(islice(calls, room))
                more = len(chunk) == room
                for task in (yield from submitted_calls(function, chunk, options, submit)) if chunk else ():
                    place_of[task.number] = submitted
                    follower.add(task.number, task.created_at)
                    submitted += 1
            has_next = yielded in ready if ordered else bool(ready)
            if not has_next and (task_ended := (yield from follower.next())) is not None:
                ready[place_of.pop(task_ended.number)] = yield from outcome_of(task_ended)
            while (place := _next_place(ready, yielded, ordered)) is not None:
                value, error = ready.pop(place)
                yielded += 1
                if error is not None and not return_exceptions:
                    yield Item(Raised(error))
                else:
                    yield Item(value if error is None else error)
    finally:
        follower.close()


def _next_place(ready: Mapping[int, object], yielded: int, ordered: bool) -> int | None:
    """Return which result is next; None if it is not there yet."""
    if ordered:
        return yielded if yielded in ready else None
    return next(iter(ready), None)


class Raised:
    """In the items of a map: an exception that the iteration raises, and goes on behind it."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error
