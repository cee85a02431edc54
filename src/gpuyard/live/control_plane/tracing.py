"""Traces of tasks for OpenTelemetry, off unless `tracing.enabled`: where the time of a task goes, from submission to end.

    task ─┬─ submit   accepted until durable
          ├─ wait     in the queue, until a decision places it           ┐
          ├─ decide   the engine's work on the batch with the placement  │ once for each attempt
          ├─ commit   until the placement is durable                     │
          ├─ launch   until the process has started, by its node         │
          ├─ start    until the report of the start is durable           │
          ├─ run      until the process has ended, by its node           │
          └─ end      until the report of the end is durable             ┘

The scheduler only notes what happened, in a bounded buffer: when it is full, notes are dropped and counted. A thread of
its own makes spans of the notes and sends them (OTLP over HTTP). A receiver that is away or hangs delays that thread
only. The id of a trace follows from the cluster, the task and its submission, so a trace continues after a restart.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from importlib.util import find_spec
from typing import Any, NamedTuple

import structlog

from gpuyard.core.domain import events
from gpuyard.core.domain.values import TaskId
from gpuyard.core.journal.records import Record
from gpuyard.live.control_plane.usage.spans import WAITING
from gpuyard.live.control_plane.views import TaskView, Views
from gpuyard.version import __version__

MOST_NOTES = 20_000
"""Size of the buffer, in spans."""
SEND_SECONDS = 10.0
"""How long sending may take, retries included."""
PAUSE_SECONDS = 0.5
"""Spans are collected for this long before they are sent."""
AT_ONCE = 512
CLOSE_SECONDS = 2.0

log = structlog.get_logger()


def is_installed() -> bool:
    """Whether the libraries of the extra `tracing` are there."""
    try:
        return find_spec("opentelemetry.sdk.trace") is not None and find_spec("opentelemetry.exporter.otlp") is not None
    except ModuleNotFoundError:  # of a package above
        return False


class SpanNote(NamedTuple):
    """A span that is not made yet."""

    name: str
    task: TaskId
    submitted_at: float
    start: float
    end: float
    attributes: Mapping[str, str | int]
    failed: bool = False


class TaskTracer:
    """Notes the ways of tasks, and sends them from a thread of its own."""

    def __init__(self, views: Views, endpoint: str, *, cluster: Callable[[], str], clock: Callable[[], float]) -> None:
        self._views = views
        self._endpoint = endpoint
        self._cluster = cluster
        self._clock = clock
        self._notes: deque[SpanNote] = deque()
        self._durable_at: dict[tuple[TaskId, int], float] = {}
        """When the placement of an attempt was durable; until its start is reported."""
        self.dropped = 0
        """Number of notes that found no room."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="tracing", daemon=True)

    def start(self) -> None:
        """Start to send."""
        self._thread.start()

    def close(self) -> None:
        """Send what is there, for at most `CLOSE_SECONDS`."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    # --- noting; in the event loop ------------------------------------------------------------------------------------

    def hear(self, records: Sequence[Record], decided_at: float) -> None:
        """Note committed events that the views have applied. `decided_at`: when the engine had decided them."""
        now = self._clock()
        for record in records:
            note = _NOTED.get(type(record.event))
            if note is not None:
                view = self._views.tasks.get(record.event.task)  # type: ignore[attr-defined]
                if view is not None:
                    try:
                        note(self, record, view, max(record.at, decided_at), now)
                    except Exception:  # a trace must not end the scheduler
                        log.exception("trace_failed", seq=record.seq)

    def _note(
        self, span: str, view: TaskView, start: float, end: float, /, *, failed: bool = False, **more: Any
    ) -> None:
        if len(self._notes) >= MOST_NOTES:
            self.dropped += 1
            return
        attributes = {"gpuyard.task.id": f"task-{view.id}", "gpuyard.tenant": str(view.spec.tenant)}
        attributes |= {f"gpuyard.{key}": value for key, value in more.items() if value not in (None, "")}
        self._notes.append(SpanNote(span, view.id, view.submitted_at, start, max(start, end), attributes, failed))

    def _submitted(self, record: Record, view: TaskView, decided_at: float, now: float) -> None:  # noqa: ARG002
        self._note("submit", view, record.at, now, request_id=record.request_id)

    def _placed(self, record: Record, view: TaskView, decided_at: float, now: float) -> None:
        event = record.event
        assert isinstance(event, events.TaskPlaced)
        where: dict[str, Any] = {"attempt": event.attempt, "node": ",".join(event.placement.nodes)}
        waits = [span for span in view.spans if span.outcome == WAITING and span.end == record.at]
        self._note("wait", view, waits[-1].start if waits else record.at, record.at, **where)
        self._note("decide", view, record.at, decided_at, **where)
        self._note("commit", view, decided_at, now, **where)
        self._durable_at[view.id, event.attempt] = now

    def _started(self, record: Record, view: TaskView, decided_at: float, now: float) -> None:  # noqa: ARG002
        event = record.event
        assert isinstance(event, events.AttemptStarted)
        started_at = record.at if event.started_at is None else event.started_at
        placed_at = self._durable_at.pop((view.id, event.attempt), view.holds_since or record.at)
        self._note("launch", view, placed_at, started_at, attempt=event.attempt)
        self._note("start", view, started_at, now, attempt=event.attempt)

    def _attempt_ended(self, record: Record, view: TaskView, decided_at: float, now: float) -> None:  # noqa: ARG002
        event = record.event
        assert isinstance(event, events.AttemptEnded)
        self._durable_at.pop((view.id, event.attempt), None)
        ended_at = record.at if event.ended_at is None else event.ended_at
        more: dict[str, Any] = {"attempt": event.attempt, "outcome": str(event.outcome), "exit_code": event.exit_code}
        if view.started_at is not None:
            self._note("run", view, view.started_at, ended_at, failed=event.outcome != "succeeded", **more)
        self._note("end", view, ended_at, now, **more)

    def _ended(self, record: Record, view: TaskView, decided_at: float, now: float) -> None:  # noqa: ARG002
        event = record.event
        assert isinstance(event, events.TaskEnded)
        more: dict[str, Any] = {"status": str(event.status), "reason": str(event.cause.why), "attempts": view.attempts}
        failed = event.status in {"failed", "timeout"}
        self._note("task", view, view.submitted_at, now, failed=failed, name=view.spec.name, **more)

    # --- sending; in the thread ---------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        exporter = _exporter(self._endpoint)
        failing = False
        while True:
            closing = self._closing.wait(PAUSE_SECONDS)
            while self._notes:
                batch = [self._notes.popleft() for _ in range(min(AT_ONCE, len(self._notes)))]
                try:
                    delivered = exporter.export([self._span(note) for note in batch]).name == "SUCCESS"
                except Exception:  # the library raises what its HTTP client raises
                    delivered = False
                if not delivered:
                    self.dropped += len(batch)
                    if not failing:
                        log.warning("traces_not_delivered", endpoint=self._endpoint)
                failing = not delivered
                if failing and self._closing.is_set():
                    return
            if closing:
                exporter.shutdown()
                return

    def _span(self, note: SpanNote) -> Any:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        seed = f"{self._cluster()}/{note.task}/{note.submitted_at!r}".encode()
        trace = int.from_bytes(blake2b(seed, digest_size=16).digest())
        root = int.from_bytes(blake2b(seed + b"/task", digest_size=8).digest())
        flags = TraceFlags(TraceFlags.SAMPLED)
        own, parent = root, None
        if note.name != "task":
            kind = f"/{note.name}/{note.attributes.get('gpuyard.attempt', 0)}/{note.start!r}"
            own = int.from_bytes(blake2b(seed + kind.encode(), digest_size=8).digest())
            parent = SpanContext(trace, root, is_remote=False, trace_flags=flags)
        return ReadableSpan(
            name=note.name,
            context=SpanContext(trace, own, is_remote=False, trace_flags=flags),
            parent=parent,
            resource=_resource(),
            attributes=dict(note.attributes),
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR if note.failed else StatusCode.UNSET),
            start_time=round(note.start * 1e9),
            end_time=round(note.end * 1e9),
        )


def _exporter(endpoint: str) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint, timeout=SEND_SECONDS)


def _resource() -> Any:
    from opentelemetry.sdk.resources import Resource

    return Resource({"service.name": "gpuyard", "service.version": __version__})


_NOTED: dict[type[events.Event], Callable[[TaskTracer, Record, TaskView, float, float], None]] = {
    events.TaskSubmitted: TaskTracer._submitted,
    events.TaskPlaced: TaskTracer._placed,
    events.AttemptStarted: TaskTracer._started,
    events.AttemptEnded: TaskTracer._attempt_ended,
    events.TaskEnded: TaskTracer._ended,
}
