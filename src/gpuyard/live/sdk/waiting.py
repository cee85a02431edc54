"""Waits for changes of tasks.

The scheduler streams events as they happen (`/api/v1/events`); after an event about a task, that task is requested.
Without events, or if the connection breaks, tasks are polled, less and less often. A scheduler that is being restarted
is waited for, because tasks continue without it. The same holds if another process takes its address meanwhile,
provided the scheduler has answered there before.
"""

import threading
import time
from collections.abc import Callable, Collection

import msgspec

from gpuyard.live.sdk.connection import NOTICE_SECONDS, Connection, ResponseStream
from gpuyard.live.sdk.errors import (
    ClusterError,
    NotGpuyard,
    Refused,
    TemporarilyRefused,
    TookTooLong,
    Unreachable,
    UntrustedServer,
)
from gpuyard.live.sdk.paths import of_task
from gpuyard.live.sdk.steps import NOTHING, Inbox, MakeInbox, OnConnection, Steps, Wait
from gpuyard.live.sdk.values import Page, Task

EVENTS = "/api/v1/events"
RESTART_SECONDS = 120.0
"""How long a scheduler may be away before the error is raised."""
FIRST_LOOK_SECONDS = 0.05
LAST_LOOK_SECONDS = 2.0
LOOKED_AT_ONE_BY_ONE = 100
OVER = object()
"""What comes after the last change: the time limit of a wait has passed."""
STREAM_HEADERS = {"Accept": "text/event-stream"}
AWAY = (Unreachable, TemporarilyRefused, UntrustedServer, NotGpuyard)
"""The errors of a request while a scheduler is away."""
OutageWatch = Callable[[ClusterError], None]
"""Called for an outage that lasts longer than a second: once for each type of error."""


class _Said(msgspec.Struct):
    """The part of an event that is needed here."""

    task_id: str = ""


class TaskChanges:
    """The numbers of tasks that changed, for a method that waits; None: check all of them.

    The first is always None, and comes once no later event can be missed. If no event arrives, None comes every
    `idle_seconds`; without events, at short intervals. After `timeout`, None comes once more, then `OVER`.
    """

    def __init__(
        self,
        connection: Connection,
        tasks: Collection[int],
        *,
        timeout: float | None,
        idle_seconds: float = 15.0,
        grows: bool = False,
    ) -> None:
        """`grows`: tasks may be added later."""
        self._connection = connection
        self._tasks = tasks
        self._idle_seconds = idle_seconds
        self._over_at = None if timeout is None else time.monotonic() + timeout
        self._query = {"task": f"task-{next(iter(tasks))}"} if len(tasks) == 1 and not grows else {}
        self._pause = FIRST_LOOK_SECONDS
        self._inbox: Inbox | None = None
        self._stream: ResponseStream | None = None
        self._is_last = False

    def next(self) -> Steps[object]:
        """Wait for the next one."""
        if self._inbox is None:
            self._inbox = yield MakeInbox()
            yield from self._open()
            return None
        while self._over_at is None or time.monotonic() < self._over_at:
            listens = self._stream is not None
            seconds = self._idle_seconds if listens else self._pause
            if self._over_at is not None:
                seconds = max(0.0, min(seconds, self._over_at - time.monotonic()))
            told = yield Wait(self._inbox if listens else None, seconds)
            if not listens:
                yield from self._open()
            elif told is None:
                self._stream = None
            listens = self._stream is not None
            self._pause = FIRST_LOOK_SECONDS if listens else min(self._pause * 1.5, LAST_LOOK_SECONDS)
            if told is NOTHING or told is None:
                return None
            if told in self._tasks:
                return told
        if self._is_last:
            return OVER
        self._is_last = True
        return None

    def look_again(self, number: int) -> None:
        """Let a task be looked at, as if it had changed. May be called from any thread."""
        if self._inbox is not None:
            self._inbox.put(number)

    def close(self) -> None:
        """Stop listening."""
        if self._stream is not None:
            self._stream.hang_up()

    def _open(self) -> Steps[None]:
        try:
            stream = yield OnConnection(lambda _: self._connection.stream(EVENTS, self._query, **STREAM_HEADERS))
        except (Unreachable, UntrustedServer, NotGpuyard, Refused):
            return
        self._stream = stream
        assert self._inbox is not None
        listening = (stream, self._inbox)
        threading.Thread(target=_listen, args=listening, name="gpuyard-events", daemon=True).start()


def _listen(stream: ResponseStream, inbox: Inbox) -> None:
    """Leave the numbers of tasks with events; None at the end of the stream."""
    rest = b""
    try:
        for part in stream:
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line.startswith(b"data:") and (number := _task_of(line[5:])) is not None:
                    inbox.put(number)
    except Unreachable:
        rest = b""
    inbox.put(None)


def _task_of(data: bytes) -> int | None:
    try:
        said = msgspec.json.decode(data, type=_Said)
    except msgspec.MsgspecError:
        return None  # a newer scheduler sends something else; polling still works
    number = said.task_id.removeprefix("task-")
    return int(number) if number.isdigit() else None


def look_at(connection: Connection, number: int, created_at: str | None) -> Steps[Task]:
    """Return the current state of one task; with `created_at`, exactly the task created then."""
    query = {"created_at": created_at}
    task: Task = yield OnConnection(lambda _: connection.ask("GET", of_task(number), Task, query=query))
    return task


class AwaitedEnds:
    """Tasks whose ends are awaited, and which is next."""

    def __init__(
        self,
        connection: Connection,
        waiting: dict[int, str | None],
        timeout: float | None,
        on_outage: OutageWatch | None = None,
        *,
        grows: bool = False,
    ) -> None:
        """`waiting`: the numbers of the tasks, and when they were created, if known. `grows`: some may be added."""
        self._connection = connection
        self._waiting = waiting
        self._timeout = timeout
        self._tolerance = OutageTolerance(connection, on_outage)
        self._changes = TaskChanges(connection, waiting, timeout=timeout, grows=grows)
        self._found: list[Task] = []

    def add(self, number: int, created_at: str | None) -> None:
        """Wait for the end of this task, too. May be called from any thread."""
        self._waiting[number] = created_at
        self._changes.look_again(number)

    def next(self) -> Steps[Task | None]:
        """Return the next task that has ended; None if there is no other. Raise `TookTooLong` after the time limit."""
        while self._waiting:
            while self._found:
                task = self._found.pop(0)
                self._waiting[task.number] = task.created_at
                if task.ended:
                    del self._waiting[task.number]
                    return task
            told = yield from self._changes.next()
            if told is OVER:
                break
            try:
                if told is None:
                    self._found = yield from self._look()
                elif isinstance(told, int) and told in self._waiting:
                    self._found = [(yield from look_at(self._connection, told, self._waiting[told]))]
            except AWAY as error:
                self._tolerance.tolerate(error)
                continue
            self._tolerance.answered()
        if self._waiting:
            waiting = self._waiting
            words = f"task-{next(iter(waiting))} has" if len(waiting) == 1 else f"{len(waiting)} tasks have"
            raise TookTooLong(f"{words} not ended within {self._timeout:g} s.")
        return None

    def close(self) -> None:
        """Stop listening."""
        self._changes.close()

    def _look(self) -> Steps[list[Task]]:
        """Return the current state of tasks: a few one by one, many from the list, which is newest first."""
        wanted = dict(self._waiting)
        found: list[Task] = []
        cursor: str | None = None
        oldest = min(wanted)
        is_complete = len(wanted) <= LOOKED_AT_ONE_BY_ONE
        while not is_complete:
            query = {"limit": 1000, "cursor": cursor}
            page: Page = yield OnConnection(lambda _, query=query: self._page(query))  # type: ignore[misc]
            for task in page.tasks:
                if task.number in wanted and wanted[task.number] in {None, task.created_at}:
                    del wanted[task.number]
                    found.append(task)
            cursor = page.next_cursor
            is_complete = cursor is None or (bool(page.tasks) and page.tasks[-1].number < oldest)
        # For a task that the list lacks, or has as a different task, a single request raises the proper error.
        for number, created_at in sorted(wanted.items()):
            found.append((yield from look_at(self._connection, number, created_at)))
        return found

    def _page(self, query: dict[str, object]) -> Page:
        return self._connection.ask("GET", "/api/v1/tasks", Page, query=query)


class OutageTolerance:
    """Tolerates the absence of a scheduler for a while."""

    def __init__(self, connection: Connection, watch: OutageWatch | None = None) -> None:
        self._connection = connection
        self._watch = watch
        self._away_since: float | None = None
        self._told: set[type[ClusterError]] = set()

    def tolerate(self, error: ClusterError) -> None:
        """Return if the outage is still tolerable, else raise the error.

        A foreign server where no scheduler has ever answered is not an outage and is raised at once.
        """
        if isinstance(error, UntrustedServer | NotGpuyard) and not self._connection.has_answered:
            raise error
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        seconds = now - self._away_since
        if seconds > RESTART_SECONDS:
            raise error
        if self._watch is not None and seconds >= NOTICE_SECONDS and type(error) not in self._told:
            self._told.add(type(error))
            self._watch(error)

    def answered(self) -> None:
        """Record that the scheduler has answered."""
        self._away_since = None
        self._told.clear()
