"""The engine's record of one open task."""

from typing import TYPE_CHECKING, Literal

from gpuyard.core.domain.events import MemberEnded
from gpuyard.core.domain.kind_name import kind_name
from gpuyard.core.domain.task import Estimate, TaskSpec
from gpuyard.core.domain.values import NodeId, TaskClass, TaskId, TaskStatus
from gpuyard.core.engine.lifecycle.barriers import Barrier
from gpuyard.core.engine.lifecycle.run_limits import LimitedTasks, Shelf
from gpuyard.core.engine.phases import STATUS, Ended, Phase, Running, Waiting, WithPlacement
from gpuyard.core.engine.quota import BATCH, ONLINE, TenantUsage
from gpuyard.core.placement.model_cache_affinity import ModelKey

if TYPE_CHECKING:
    from gpuyard.core.engine.waiting.queue import Group

Side = Literal["low", "likely", "high", "said", "known"]
"""Side of an estimate: soonest, likely, latest; `said` is latest without a guess for a task that has outrun its
estimate; `known` is latest if the estimate comes from tasks of its kind or from its user, otherwise unknown."""

UNKNOWN = float("inf")
"""Length of a run that is not known."""


class OpenTask:
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
        "has_place",
        "held",
        "id",
        "key",
        "kind",
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
        "run_limit",
        "served_seconds",
        "shelf",
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
        """Usage record of its tenant."""
        self.class_index = ONLINE if spec.task_class is TaskClass.ONLINE else BATCH
        self.model: ModelKey | None = f"{spec.tenant}/{spec.model_name}" if spec.model_name else None
        """The machine-learning model it uses, qualified by tenant."""
        self.kind = kind_name(spec.name, spec.command)
        """What the tasks of its sweep have in common, whether or not they share a name; empty: it has no kind."""
        self.submitted_at = at
        self.phase: Phase = Waiting(at)
        self.priority = spec.priority
        self.estimate: Estimate | None = spec.estimate
        self.attempts = 0
        self.origin = 0
        """Origin of the scheduler that placed the last attempt; distinguishes schedulers that use the same task
        numbers."""
        self.placed_at = 0.0
        """When it was given its present GPUs."""
        self.attempt_seconds = 0.0
        """Run time of the present attempt in seconds, without the run in progress."""
        self.round = 0
        """Number of times the present attempt was asked to suspend."""
        self.failures = 0
        self.losses = 0
        """Consecutive attempts that were lost."""
        self.avoid: NodeId | None = None
        """The node that could not launch its last attempt; used only if no other node has room."""
        self.preemptions = 0
        self.preemption = spec.preemption
        """How it may be preempted; NEVER once its node has failed to suspend it."""
        self.stuck: str | None = None
        """Message of the node that failed to suspend it."""
        self.held = False
        self.waits_for: set[Barrier] | None = None
        """Barriers it waits for."""
        self.barriers: list[Barrier] | None = None
        """Barriers at which other tasks wait for it."""
        self.members: dict[NodeId, MemberEnded] | None = None
        """Parts of the present gang attempt that have ended, in the order they ended."""
        self.ready: set[NodeId] | None = None
        """Parts of the present gang attempt that have started, been suspended or resumed, while others have not."""
        self.presumed: set[NodeId] | None = None
        """Parts that count as ended because their node is lost, and may still run there."""
        self.speed = 1.0
        """Its speed where it is placed, relative to the fastest GPU model it names (1); 1 while it is not placed."""
        self.served_seconds = 0.0
        """Work done, in seconds at speed 1, that its next attempt need not repeat."""
        self.gpu_seconds = 0.0
        """GPU-seconds of all its attempts, whether their work was kept or not."""
        self.rank = 0.0
        """How weakly it holds its GPUs while it runs, under a policy whose ranks change in steps."""
        self.key = 0.0
        """Its key in the queue order, smallest first; set when it is queued."""
        self.group: Group | None = None
        """The group it is queued in; None: it is not queued."""
        self.run_limit: LimitedTasks | None = None
        """The limit on running tasks of its array or sweep; None: there is none."""
        self.has_place = False
        """Whether it counts against that limit: it has an attempt, or GPUs are being cleared for it."""
        self.shelf: Shelf | None = None
        """Where it is kept while it has no place and lacks nothing but that and GPUs; None: it is not such a task."""

    def __lt__(self, other: "OpenTask") -> bool:
        return False  # heaps may hold several entries for one task; they are equal

    @property
    def is_parked(self) -> bool:
        """Whether only the limit on running tasks of its array or sweep keeps it out of the queue."""
        return self.shelf is not None and self.group is None

    @property
    def active(self) -> WithPlacement:
        """Its phase, which must be one with a placement."""
        assert isinstance(self.phase, WithPlacement), f"task {self.id} has no placement"
        return self.phase

    @property
    def status(self) -> TaskStatus:
        """The status that users see."""
        return self.phase.status if isinstance(self.phase, Ended) else STATUS[type(self.phase)]

    def served_at(self, now: float) -> float:
        """Return the work done up to `now`, in seconds at speed 1."""
        phase = self.phase
        return self.served_seconds + (now - phase.since) * self.speed if type(phase) is Running else self.served_seconds

    def ran_at(self, now: float) -> float:
        """Return the run time of the present attempt up to `now`, in seconds, as counted by its timeout."""
        if isinstance(self.phase, Waiting):
            return 0.0
        return self.attempt_seconds + (now - self.phase.since if isinstance(self.phase, Running) else 0.0)

    def gpu_seconds_at(self, now: float) -> float:
        """Return the GPU-seconds of all its attempts up to `now`."""
        if isinstance(self.phase, Running):
            return self.gpu_seconds + (now - self.phase.since) * self.phase.placement.charge_milli / 1000
        return self.gpu_seconds

    def left_seconds(self, now: float, side: Side = "high") -> float:
        """Return how much longer it is expected to hold its GPUs, on one side of its estimate, up to its timeout.

        A task that is not placed is assumed to get the fastest GPU model it names (see `seconds_at`).

        A task that has outrun its estimate is assumed to need a fifth of its age more, and at least a minute; on the
        side `low` nothing more, and on the side `said` the rest is UNKNOWN.
        """
        return self.seconds_at(self.speed, now, side)

    @property
    def has_known_end(self) -> bool:
        """Whether bookings know when it would end: from a timeout, or an estimate that is not from other work."""
        estimate = self.estimate
        return self.spec.timeout_seconds is not None or (estimate is not None and not estimate.from_other_work)

    def seconds_at(self, speed: float, now: float, side: Side = "high") -> float:
        """Return how much longer it would hold GPUs on which it has this speed."""
        left = UNKNOWN
        if self.estimate is not None and not (side == "known" and self.estimate.from_other_work):
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
