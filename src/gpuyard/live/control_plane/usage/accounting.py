"""Sum spans over a window, by any combination of keys. Pure.

Only the part of a span inside [since, until) counts. By day or hour a span is divided at the borders, in UTC.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import fsum

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.values import MILLI, Value
from gpuyard.live.control_plane.usage.spans import FAILED, OUT_OF_MEMORY, PREEMPTED, WAITING, UsageSpan

DAY, HOUR = 86_400.0, 3_600.0
BUCKETS = {"day": DAY, "hour": HOUR}
KEYS = ("tenant", "user", "project", "model", "day", "hour")
JOULES_PER_KWH = 3_600_000.0
MOST_ROWS = 20_000


class TooManyUsageRows(GpuyardError):
    """Usage by these keys has too many rows. Leave out a key, or give a shorter window."""


class OwnedSpan(Value, frozen=True):
    """A span and the task that it belongs to."""

    task: int
    tenant: str
    user: str
    project: str
    span: UsageSpan


class UsageSums:
    """The sums of one row. Terms are kept until the end and summed without rounding errors."""

    __slots__ = ("_gpu_seconds", "_joules", "_kinds", "_tasks", "_waits")

    def __init__(self) -> None:
        self._tasks: set[int] = set()
        self._gpu_seconds: list[float] = []
        self._waits: list[float] = []
        self._joules: list[float] = []
        self._kinds: dict[str, list[float]] = {}

    def add(self, task: int, span: UsageSpan, seconds: float) -> None:
        """Add a part of a span."""
        self._tasks.add(task)
        if span.outcome == WAITING:
            self._add(self._waits, seconds)
            return
        gpu_seconds = seconds * span.milli / MILLI
        self._add(self._gpu_seconds, gpu_seconds)
        if span.outcome in {FAILED, PREEMPTED, OUT_OF_MEMORY}:
            self._add(self._kinds.setdefault(span.outcome, []), gpu_seconds)
        if span.idle is not None:
            self._add(self._kinds.setdefault("idle", []), gpu_seconds * span.idle)
            self._add(self._kinds.setdefault("used", []), gpu_seconds * (1.0 - span.idle))
        if span.watts is not None:
            self._add(self._joules, gpu_seconds * span.watts)

    @staticmethod
    def _add(terms: list[float], value: float) -> None:
        terms.append(value)
        if len(terms) > 4096:  # so that memory does not grow with the number of spans
            terms[:] = [fsum(terms)]

    def figures(self) -> dict[str, float]:
        """Return the figures of a row."""
        kinds = {name: fsum(terms) / HOUR for name, terms in self._kinds.items()}
        return {
            "tasks": len(self._tasks),
            "gpu_hours": fsum(self._gpu_seconds) / HOUR,
            "used_gpu_hours": kinds.get("used", 0.0),
            "idle_gpu_hours": kinds.get("idle", 0.0),
            "failed_gpu_hours": kinds.get(FAILED, 0.0),
            "preempted_gpu_hours": kinds.get(PREEMPTED, 0.0),
            "out_of_memory_gpu_hours": kinds.get(OUT_OF_MEMORY, 0.0),
            "energy_kwh": fsum(self._joules) / JOULES_PER_KWH,
            "wait_hours": fsum(self._waits) / HOUR,
        }


class WindowSums:
    """The sums of a window."""

    def __init__(self, since: float, until: float, by: Sequence[str]) -> None:
        self._since = since
        self._until = until
        self._by = tuple(by)
        self._bucket = min((BUCKETS[key] for key in by if key in BUCKETS), default=None)
        self._rows: dict[tuple[str | float, ...], UsageSums] = {}
        self._total = UsageSums()

    def add(self, spans: Iterable[OwnedSpan]) -> None:
        """Add spans; those outside the window count nothing."""
        for owned in spans:
            span = owned.span
            start, end = max(span.start, self._since), min(span.end, self._until)
            if start >= end:
                continue
            self._total.add(owned.task, span, end - start)
            for piece_start, piece_end in self._pieces(start, end):
                key = tuple(self._value(name, owned, piece_start) for name in self._by)
                sums = self._rows.get(key)
                if sums is None:
                    if len(self._rows) >= MOST_ROWS:
                        raise TooManyUsageRows
                    sums = self._rows[key] = UsageSums()
                sums.add(owned.task, span, piece_end - piece_start)

    def _pieces(self, start: float, end: float) -> Iterator[tuple[float, float]]:
        if self._bucket is None:
            yield start, end
            return
        while start < end:
            border = min(end, (start // self._bucket + 1) * self._bucket)
            yield start, border
            start = border

    @staticmethod
    def _value(name: str, owned: OwnedSpan, start: float) -> str | float:
        if name in BUCKETS:
            return start // BUCKETS[name] * BUCKETS[name]
        return owned.span.model if name == "model" else str(getattr(owned, name))

    def rows(self) -> list[tuple[tuple[str | float, ...], dict[str, float]]]:
        """Return keys and figures of every row, in the order of the keys."""
        return [(key, self._rows[key].figures()) for key in sorted(self._rows)]

    def total(self) -> dict[str, float]:
        """Return the figures of all rows together; a task counts once."""
        return self._total.figures()
