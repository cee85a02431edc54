"""Hearing of what happens to tasks.

The scheduler tells facts as they happen (`/api/v1/events`); a fact about a task one waits for is the sign to ask for
that task. Where events can not be had, or the connection breaks, one looks again by oneself, less and less often. A
scheduler that is being restarted is waited for: tasks go on without it. So is one whose address is taken by another
process meanwhile, once it has answered there.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from queue import Empty, SimpleQueue

import msgspec

from gpuyard.live.sdk.connection import NOTICE_SECONDS, Connection, ResponseStream
from gpuyard.live.sdk.errors import ClusterError, NotAYard, NotNow, Refused, Unreachable, UntrustedServer

EVENTS = "/api/v1/events"
RESTART_SECONDS = 120.0
"""How long a scheduler may be away before whoever waits is told."""
FIRST_LOOK_SECONDS = 0.05
LAST_LOOK_SECONDS = 2.0
AWAY = (Unreachable, NotNow, UntrustedServer, NotAYard)
"""What a request can meet while a scheduler that was there is away."""
OutageWatch = Callable[[ClusterError], None]
"""Told of an outage that lasts longer than a second: once for each kind of error that is met."""


class _Said(msgspec.Struct):
    """As much of an event as is needed here."""

    task_id: str = ""


class EventListener:
    """Listens for facts in a thread of its own, so that whoever waits can also look at the clock."""

    def __init__(self, connection: Connection, tasks: Collection[int]) -> None:
        self._connection = connection
        self._query = {"task": f"task-{next(iter(tasks))}"} if len(tasks) == 1 else {}
        self._heard: SimpleQueue[int | None] = SimpleQueue()
        self._stream: ResponseStream | None = None
        self._open()

    def _open(self) -> None:
        try:
            self._stream = self._connection.stream(EVENTS, self._query, Accept="text/event-stream")
        except (Unreachable, UntrustedServer, NotAYard, Refused):
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
            return  # a newer scheduler says something else here; looking now and then has to do
        number = said.task_id.removeprefix("task-")
        if number.isdigit():
            self._heard.put(int(number))

    @property
    def listens(self) -> bool:
        """Whether facts are heard; otherwise one has to look by oneself."""
        return self._stream is not None

    def next(self, seconds: float) -> int | None:
        """The number of a task something was said of; none: nothing was said so long, or the connection broke."""
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
    """Numbers of tasks something happened to; none: look at all of them yourself. It ends when the time is over.

    The first is always none, and comes when it is certain that nothing will be missed from then on. With nothing heard,
    none comes every `idle_seconds`; without events, every moment.
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
    """Lets a scheduler be away for a while."""

    def __init__(self, connection: Connection, watch: OutageWatch | None = None) -> None:
        self._connection = connection
        self._watch = watch
        self._away_since: float | None = None
        self._told: set[type[ClusterError]] = set()

    def tolerate(self, error: ClusterError) -> None:
        """Go on, or say that it has been away for too long. A stranger where no scheduler ever answered is no outage."""
        if isinstance(error, UntrustedServer | NotAYard) and not self._connection.has_answered:
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
        """It is there."""
        self._away_since = None
        self._told.clear()
