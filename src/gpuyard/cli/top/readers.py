"""What `top` knows: the live stream of the scheduler, and the page of the queue that is on the screen.

Each reader is a thread that keeps its newest result; the screen looks at them a few times a second. Nothing here knows how
it is drawn.
"""

from base64 import b64decode
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import NamedTuple

import msgspec

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.live.sdk import Client
from gpuyard.live.wire.live_answers import GpuCounts, LiveCard, LiveMessage
from gpuyard.live.wire.queue_answers import QueueAnswer

BYTES_A_GPU = 6
UNKNOWN = 255
STATES = ("idle", "busy", "external", "offline")
HISTORY = 240
"""Samples that are kept, one a second."""
REFRESH_SECONDS = 2.0
"""How often the page of the queue is read again although nothing seems to have changed."""
LEAST_SECONDS = 0.5
"""The shortest time between two pages because something has changed."""
PAUSES = (0.5, 1.0, 2.0, 5.0)
"""Before the live stream is opened again."""


class QueueView(NamedTuple):
    """Which part of the queue, in which order."""

    query: str | None = None
    user: str | None = None
    tenant: str | None = None
    sort: str = "queue"
    descending: bool = False
    fold: bool = True

    def ask(self, cluster: Client, first: int, count: int) -> QueueAnswer:
        """Ask for rows."""
        sort = f"-{self.sort}" if self.descending else self.sort
        return cluster.queue(
            limit=max(1, min(count, 1000)), offset=first or None, sort=sort, fold=self.fold, query=self.query,
            user=self.user, tenant=self.tenant,
        )  # fmt: skip


class HistoryPoint(NamedTuple):
    """The cluster at one second: shares from 0 to 1, and the number of waiting tasks."""

    busy: float
    used: float
    waiting: int


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """The newest state of the cluster."""

    message: LiveMessage
    cards: tuple[LiveCard, ...]
    samples: bytes
    holders: tuple[str | None, ...]

    def state(self, place: int) -> str:
        """Return idle, busy, external or offline."""
        number = self.samples[place * BYTES_A_GPU]
        return STATES[number] if number < len(STATES) else "offline"

    def utilization(self, place: int) -> float | None:
        """Return the utilization in percent, if it is known."""
        value = self.samples[place * BYTES_A_GPU + 1]
        return None if value == UNKNOWN else float(value)

    def used(self) -> float:
        """Return the mean utilization of busy GPUs as a share; 0 if none is known."""
        known = [
            value
            for place in range(len(self.samples) // BYTES_A_GPU)
            if self.samples[place * BYTES_A_GPU] == 1 and (value := self.samples[place * BYTES_A_GPU + 1]) != UNKNOWN
        ]
        return sum(known) / len(known) / 100 if known else 0.0


def events_in(parts: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield name and data of each event in a stream of server-sent events."""
    rest = b""
    for part in parts:
        rest += part
        *blocks, rest = rest.split(b"\n\n")
        for block in blocks:
            name, data = "", b""
            for line in block.split(b"\n"):
                if line.startswith(b"event: "):
                    name = line[7:].decode()
                elif line.startswith(b"data: "):
                    data += line[6:]
            if data:
                yield name, data


@dataclass
class LiveReader:
    """Reads the live stream, and opens it again when it breaks."""

    cluster: Client
    changed: Event = field(default_factory=Event)
    """Set when tasks have changed, for whoever shows them."""
    look: ClusterLook | None = None
    trouble: str = ""
    """Why there is no stream now."""
    version: int = 0
    """Counts the looks."""
    history: deque[HistoryPoint] = field(default_factory=lambda: deque(maxlen=HISTORY))
    _stop: Event = field(default_factory=Event)

    def start(self) -> None:
        """Begin to read, in a thread that ends with the program."""
        Thread(target=self._run, name="live stream", daemon=True).start()

    def stop(self) -> None:
        """Read no more."""
        self._stop.set()

    def _run(self) -> None:
        failures = 0
        cluster = self.cluster.without_waiting()
        while not self._stop.is_set():
            try:
                for _, data in events_in(cluster.live()):
                    self.take(msgspec.json.decode(data, type=LiveMessage))
                    failures = 0
                    if self._stop.is_set():
                        return
                self.trouble = "The scheduler has closed the stream"
            except GpuyardError as error:
                self.trouble = str(error).split(". ")[0].rstrip(".")
            self.version += 1
            self._stop.wait(PAUSES[min(failures, len(PAUSES) - 1)])
            failures += 1

    def take(self, message: LiveMessage) -> None:
        """Take a message of the stream: a sample has no cards, and holders only if they have changed."""
        before = self.look
        cards = tuple(message.cards) if message.cards is not msgspec.UNSET else before.cards if before else ()
        holders = tuple(message.holders) if message.holders is not msgspec.UNSET else before.holders if before else ()
        look = ClusterLook(message, cards, b64decode(message.samples), holders)
        self.look, self.trouble = look, ""
        counts: GpuCounts = message.gpus
        busy = counts.busy / counts.total if counts.total else 0.0
        self.history.append(HistoryPoint(busy, look.used(), message.tasks.pending))
        self.version += 1
        if before is None or message.changed_tasks is not msgspec.UNSET or message.changed_more is not msgspec.UNSET:
            self.changed.set()


class QueuePage(NamedTuple):
    """Rows of the queue, and what they were read for."""

    view: QueueView
    first: int
    answer: QueueAnswer


@dataclass
class QueueReader:
    """Keeps the rows that are on the screen up to date; only those are ever read."""

    cluster: Client
    wanted: tuple[QueueView, int, int]
    """View, first row, number of rows."""
    changed: Event = field(default_factory=Event)
    page: QueuePage | None = None
    trouble: str = ""
    version: int = 0
    requests: int = 0
    _lock: Lock = field(default_factory=Lock)
    _at_once: Event = field(default_factory=Event)
    _stop: Event = field(default_factory=Event)

    def start(self) -> None:
        """Begin to read, in a thread that ends with the program."""
        Thread(target=self._run, name="queue", daemon=True).start()

    def stop(self) -> None:
        """Read no more."""
        self._stop.set()
        self._at_once.set()
        self.changed.set()

    def want(self, view: QueueView, first: int, count: int) -> None:
        """Ask for other rows; they are read at once."""
        with self._lock:
            if self.wanted == (view, first, count):
                return
            self.wanted = (view, first, count)
        self._at_once.set()
        self.changed.set()

    def again(self) -> None:
        """Read the same rows again, as after a change made here."""
        self._at_once.set()
        self.changed.set()

    def _run(self) -> None:
        cluster = self.cluster.without_waiting()
        while not self._stop.is_set():
            self._at_once.clear()
            self.changed.clear()
            with self._lock:
                view, first, count = self.wanted
            try:
                self.requests += 1
                self.page = QueuePage(view, first, view.ask(cluster, first, count))
                self.trouble = ""
            except GpuyardError as error:
                self.trouble = str(error).rstrip(".")
            self.version += 1
            self._at_once.wait(LEAST_SECONDS)
            if not self._at_once.is_set():
                self.changed.wait(REFRESH_SECONDS - LEAST_SECONDS)
