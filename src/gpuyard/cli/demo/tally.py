"""What the demonstration comes to: counted from the facts, as anybody could who reads a journal."""

from collections import Counter
from collections.abc import Sequence

from gpuyard.core.domain import events as fact
from gpuyard.core.domain.causes import Why
from gpuyard.core.domain.values import MILLI, TaskId, TaskStatus
from gpuyard.core.engine.state import State

_PREEMPTING = (Why.PREEMPTED, Why.RECLAIMED)


class Tally:
    """Counts of tasks, waits, and GPU time given out."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._ended: Counter[TaskStatus] = Counter()
        self._submitted_at: dict[TaskId, float] = {}
        self._waits: dict[TaskId, float] = {}
        self._preempted = 0
        self._since = 0.0
        self._used = self._up = 0.0
        """GPUs in use, and GPUs there are, since then."""
        self._used_seconds = self._up_seconds = 0.0

    def hear(self, at: float, facts: Sequence[fact.Event]) -> None:
        """Count facts that have just been folded."""
        self.pass_time(at)
        for event in facts:
            if isinstance(event, fact.TaskSubmitted):
                self._submitted_at[event.task] = at
            elif isinstance(event, fact.TaskPlaced):
                self._waits.setdefault(event.task, at - self._submitted_at[event.task])
            elif isinstance(event, fact.TaskEnded):
                self._ended[event.status] += 1
            elif isinstance(event, fact.AttemptSuspending | fact.AttemptStopping):
                self._preempted += event.cause.why in _PREEMPTING

    def pass_time(self, at: float) -> None:
        """Add up GPU time until now; what is in use changes with facts only."""
        self._used_seconds += self._used * (at - self._since)
        self._up_seconds += self._up * (at - self._since)
        self._since = at
        self._used = sum(book.used for book in self._state.classes) / MILLI
        self._up = self._state.index.gpus_up

    def summary(self) -> dict[str, float]:
        """The counts by name. What was submitted is over in one of four ways, or open."""
        ended = self._ended
        return {
            "submitted": len(self._submitted_at),
            "succeeded": ended[TaskStatus.SUCCESS],
            "failed": ended[TaskStatus.FAILED],
            "cancelled": ended[TaskStatus.CANCELLED],
            "timed_out": ended[TaskStatus.TIMEOUT],
            "open": len(self._submitted_at) - ended.total(),
            "preempted": self._preempted,
            "mean_wait_seconds": round(sum(self._waits.values()) / max(1, len(self._waits)), 1),
            "utilisation": round(self._used_seconds / self._up_seconds, 3) if self._up_seconds else 0.0,
            "virtual_seconds": round(self._since, 1),
        }
