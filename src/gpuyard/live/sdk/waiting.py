"""Waits for changes of tasks.

The scheduler streams events as they happen (`/api/v1/events`); after an event about a task, that task is requested.
Without events, or if the connection breaks, tasks are polled, less and less often. A scheduler that is being restarted
is waited for, because tasks continue without it. The same holds if another process takes its address meanwhile,
provided the scheduler has answered there before.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from queue import Empty, SimpleQueue

import msgspec

from gpuyard.live.sdk.connection import NOTICE_SECONDS, Connection, ResponseStream
from gpuyard.live.sdk.errors import ClusterError, NotGpuyard, Refused, TemporarilyRefused, Unreachable, UntrustedServer

EVENTS = "/api/v1/events"
RESTART_SECONDS = 120.0
"""How long a scheduler may be away before the error is raised."""
FIRST_LOOK_SECONDS = 0.05
LAST_LOOK_SECONDS = 2.0
AWAY = (Unreachable, TemporarilyRefused, UntrustedServer, NotGpuyard)
"""The errors of a request while a scheduler is away."""
OutageWatch = Callable[[ClusterError], None]
"""Called for an outage that lasts longer than a second: once for each type of error."""


class _Said(msgspec.Struct):
    """The part of an event that is needed here."""

    task_id: str = ""


class EventListener:
    """Listens for events in a separate thread, so that the waiting thread can also watch the time."""

    def __init__(self, connection: Connection, tasks: Collection[int]) -> None:
        self._connection = connection
        self._query = {"task": f"task-{next(iter(tasks))}"} if len(tasks) == 1 else {}
        self._heard: SimpleQueue[int | None] = SimpleQueue()
        self._stream: ResponseStream | None = None
        self._open()

    def _open(self) -> None:
        try:
            self._stream = self._connection.stream(EVENTS, self._query, Accept="text/event-stream")
        except (Unreachable, UntrustedServer, NotGpuyard, Refused):
            self._stream = None
            return
        threading.Thread(target=self._listen, args=(self._stream,), name="gpuyard-events", daemon=True).start()

    def _listen(self, stream: ResponseStream) -> None:
        rest = b""
        try:
            for part in stream:
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    if line.startswith(b"data:"):
                        self._hear(line[5:])
        except Unreachable:
            rest = b""
        self._heard.put(None)

    def _hear(self, data: bytes) -> None:
        try:
            said = msgspec.json.decode(data, type=_Said)
        except msgspec.MsgspecError:
            return  # a newer scheduler sends something else; polling still works
        number = said.task_id.removeprefix("task-")
        if number.isdigit():
            self._heard.put(int(number))

    @property
    def listens(self) -> bool:
        """Whether the event stream is open; otherwise tasks must be polled."""
        return self._stream is not None

    def next(self, seconds: float) -> int | None:
        """Return the number of a task with a new event; None after `seconds` without one, or if the connection broke."""
        if not self.listens:
            time.sleep(seconds)
            self._open()
            return None
        try:
            task = self._heard.get(timeout=seconds)
        except Empty:
            return None
        if task is None:
            self._stream = None
        return task

    def close(self) -> None:
        """Stop listening."""
        if self._stream is not None:
            self._stream.hang_up()


def changed_tasks(
    connection: Connection, tasks: Collection[int], *, timeout: float | None, idle_seconds: float = 15.0
) -> Iterator[int | None]:
    """Yield the numbers of tasks that changed; None: check all of them. End after `timeout`.

    The first is always None, and comes once no later event can be missed. If no event arrives, None comes every
    `idle_seconds`; without events, at short intervals.
    """
    over_at = None if timeout is None else time.monotonic() + timeout
    listener = EventListener(connection, tasks)
    pause = FIRST_LOOK_SECONDS
    try:
        yield None
        while over_at is None or time.monotonic() < over_at:
            seconds = idle_seconds if listener.listens else pause
            if over_at is not None:
                seconds = max(0.0, min(seconds, over_at - time.monotonic()))
            task = listener.next(seconds)
            pause = FIRST_LOOK_SECONDS if listener.listens else min(pause * 1.5, LAST_LOOK_SECONDS)
            if task is None or task in tasks:
                yield task
        yield None
    finally:
        listener.close()


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
