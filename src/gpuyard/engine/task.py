"""What the engine remembers of one task that is not over."""

from typing import TYPE_CHECKING

from gpuyard.domain.task import Estimate, TaskSpec
from gpuyard.domain.values import NodeId, Outcome, TaskId, TaskStatus
from gpuyard.engine.phases import STATUS, Ended, Phase, Running, Waiting

if TYPE_CHECKING:
    from gpuyard.engine.queue import Group

UNKNOWN = float("inf")
"""The length of a run nobody has an idea of."""


class Task:
    """One open task."""

    __slots__ = (
        "attempts", "dependents", "estimate", "failures", "gpu_seconds", "group", "held", "id", "key", "members",
        "phase", "preemptions", "priority", "served_seconds", "spec", "submitted_at", "waits_for",
    )  # fmt: skip

    def __init__(self, task: TaskId, spec: TaskSpec, at: float) -> None:
        self.id = task
        self.spec = spec
        self.submitted_at = at
        self.phase: Phase = Waiting(at)
        self.priority = spec.priority
        self.estimate: Estimate | None = spec.estimate
        self.attempts = 0
        self.failures = 0
        self.preemptions = 0
        self.held = False
        self.waits_for: set[TaskId] | None = None
        self.dependents: list[TaskId] | None = None
        self.members: dict[NodeId, Outcome] | None = None
        """Parts of the present gang attempt that are over."""
        self.served_seconds = 0.0
        """Run time that brought it forward: what its next attempt need not do again."""
        self.gpu_seconds = 0.0
        """All service it got, whatever came of it."""
        self.key = 0.0
        """Its place in the order of the queue, smallest first; set when it is queued."""
        self.group: Group | None = None
        """Where it is queued; none: it is not."""

    @property
    def status(self) -> TaskStatus:
        """What a user is told."""
        return self.phase.status if isinstance(self.phase, Ended) else STATUS[type(self.phase)]

    def served_at(self, now: float) -> float:
        """Run time that brought it forward, up to now."""
        return self.served_seconds + (now - self.phase.since if isinstance(self.phase, Running) else 0.0)

    def gpu_seconds_at(self, now: float) -> float:
        """Service it got, up to now."""
        if isinstance(self.phase, Running):
            return self.gpu_seconds + (now - self.phase.since) * self.phase.placement.charge_milli / 1000
        return self.gpu_seconds

    def remaining_seconds(self, now: float) -> float:
        """How much longer it is thought to run; a task that overran is thought to need a fifth of its age more."""
        if self.estimate is None:
            return UNKNOWN
        served = self.served_at(now)
        left = self.estimate.seconds - served
        return left if left > 0 else max(60.0, served / 5)

    def longest_seconds(self, now: float) -> float:
        """How much longer it may hold its GPUs, for those who plan around it: the timeout, or the high estimate."""
        longest = UNKNOWN
        served = self.served_at(now)
        if self.estimate is not None:
            left = self.estimate.high_seconds - served
            longest = left if left > 0 else max(60.0, served / 5)
        if self.spec.timeout_seconds is not None:
            running = now - self.phase.since if isinstance(self.phase, Running) else 0.0
            longest = min(longest, max(0.0, self.spec.timeout_seconds - running))
        return longest
