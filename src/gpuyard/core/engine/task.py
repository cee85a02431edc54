"""What the engine remembers of one task that is not over."""

from typing import TYPE_CHECKING, Literal

from gpuyard.core.domain.events import MemberEnded
from gpuyard.core.domain.task import Estimate, TaskSpec
from gpuyard.core.domain.values import NodeId, TaskClass, TaskId, TaskStatus
from gpuyard.core.engine.barriers import Barrier
from gpuyard.core.engine.phases import STATUS, Ended, Phase, Running, Waiting, WithPlacement
from gpuyard.core.engine.quota import BATCH, ONLINE, TenantUsage
from gpuyard.core.placement.model_cache_affinity import ModelKey

if TYPE_CHECKING:
    from gpuyard.core.engine.queue import Group

Side = Literal["low", "likely", "high", "said"]
"""Of an estimate: soonest, likely, latest; and latest with no guess for a task that has outrun it."""

UNKNOWN = float("inf")
"""The length of a run nobody has an idea of."""


class Task:
    """One open task."""

    __slots__ = (
        "attempt_seconds",
        "attempts",
        "avoid",
        "barriers",
        "class_index",
        "estimate",
        "failures",
        "gpu_seconds",
        "group",
        "held",
        "id",
        "key",
        "losses",
        "members",
        "model",
        "origin",
        "phase",
        "placed_at",
        "preemption",
        "preemptions",
        "presumed",
        "priority",
        "rank",
        "ready",
        "round",
        "served_seconds",
        "spec",
        "speed",
        "stuck",
        "submitted_at",
        "tenant_usage",
        "waits_for",
    )  # fmt: skip

    def __init__(self, task: TaskId, spec: TaskSpec, usage: TenantUsage, at: float) -> None:
        self.id = task
        self.spec = spec
        self.tenant_usage = usage
        """Its tenant's."""
        self.class_index = ONLINE if spec.task_class is TaskClass.ONLINE else BATCH
        self.model: ModelKey | None = f"{spec.tenant}/{spec.model_name}" if spec.model_name else None
        """The machine-learning model it is about."""
        self.submitted_at = at
        self.phase: Phase = Waiting(at)
        self.priority = spec.priority
        self.estimate: Estimate | None = spec.estimate
        self.attempts = 0
        self.origin = 0
        """Of the scheduler that placed the last attempt: two that use the same numbers have different ones."""
        self.placed_at = 0.0
        """When it was given the GPUs it has."""
        self.attempt_seconds = 0.0
        """How long the present attempt has run, not counting the run under way."""
        self.round = 0
        """How often the present attempt was asked to suspend."""
        self.failures = 0
        self.losses = 0
        """Attempts in a row that were lost."""
        self.avoid: NodeId | None = None
        """The node that could not start its last attempt: taken only if no other has room."""
        self.preemptions = 0
        self.preemption = spec.preemption
        """What may be done to it for others; never anything once its node could not do it."""
        self.stuck: str | None = None
        """What a node said when it could not suspend it."""
        self.held = False
        self.waits_for: set[Barrier] | None = None
        """Barriers that are not open yet."""
        self.barriers: list[Barrier] | None = None
        """Barriers at which others wait for it."""
        self.members: dict[NodeId, MemberEnded] | None = None
        """Parts of the present gang attempt that are over, in the order they ended."""
        self.ready: set[NodeId] | None = None
        """Parts of it that have started, are in host memory, or run again, while others have not."""
        self.presumed: set[NodeId] | None = None
        """Parts of it that count as over because their node is lost, and may run there still."""
        self.speed = 1.0
        """How fast it is where it is placed, where 1 is the fastest GPU model it names; 1 while it is placed nowhere."""
        self.served_seconds = 0.0
        """Work it has done, in seconds at speed 1: what its next attempt need not do again."""
        self.gpu_seconds = 0.0
        """All service it got, whatever came of it."""
        self.rank = 0.0
        """How weakly it holds on to its GPUs while it runs, under a policy whose ranks change in steps."""
        self.key = 0.0
        """Its place in the order of the queue, smallest first; set when it is queued."""
        self.group: Group | None = None
        """Where it is queued; none: it is not."""

    def __lt__(self, other: "Task") -> bool:
        return False  # heaps keep several entries for one task; they are equal

    @property
    def active(self) -> WithPlacement:
        """Its phase, which must be one with a placement."""
        assert isinstance(self.phase, WithPlacement), f"task {self.id} has no placement"
        return self.phase

    @property
    def status(self) -> TaskStatus:
        """What a user is told."""
        return self.phase.status if isinstance(self.phase, Ended) else STATUS[type(self.phase)]

    def served_at(self, now: float) -> float:
        """Work it has done, in seconds at speed 1, up to now."""
        phase = self.phase
        return self.served_seconds + (now - phase.since) * self.speed if type(phase) is Running else self.served_seconds

    def ran_at(self, now: float) -> float:
        """How long the present attempt has run, up to now: what its timeout counts."""
        if isinstance(self.phase, Waiting):
            return 0.0
        return self.attempt_seconds + (now - self.phase.since if isinstance(self.phase, Running) else 0.0)

    def gpu_seconds_at(self, now: float) -> float:
        """Service it got, up to now."""
        if isinstance(self.phase, Running):
            return self.gpu_seconds + (now - self.phase.since) * self.phase.placement.charge_milli / 1000
        return self.gpu_seconds

    def left_seconds(self, now: float, side: Side = "high") -> float:
        """How much longer it is thought to hold its GPUs, on one side of its estimate; never beyond its timeout.

        A task that is placed nowhere is thought to get the fastest GPU model it names (see `seconds_at`).

        A task that has outrun its estimate is thought to need a fifth of its age more, and at least a minute; but for
        the side `said`, on which nobody knows.
        """
        return self.seconds_at(self.speed, now, side)

    def seconds_at(self, speed: float, now: float, side: Side = "high") -> float:
        """How much longer it would hold GPUs on which it is so fast."""
        left = UNKNOWN
        if self.estimate is not None:
            served = self.served_at(now)
            left = _side(self.estimate, side) - served
            if left <= 0:
                left = UNKNOWN if side == "said" else 0.0 if side == "low" else max(60.0, served / 5)
            left /= speed
        if self.spec.timeout_seconds is not None:
            left = min(left, max(0.0, self.spec.timeout_seconds - self.ran_at(now)))
        return left


def _side(estimate: Estimate, side: Side) -> float:
    if side == "likely":
        return estimate.seconds
    return estimate.low_seconds if side == "low" else estimate.high_seconds
