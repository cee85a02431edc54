"""How the engine decides. A change of the settings is an event, so a replay has the settings of each instant."""

from enum import StrEnum

from gpuyard.core.domain.values import Value


class Backfill(StrEnum):
    """What may overtake a task that waits for room."""

    NONE = "none"
    """Nothing that could use the same nodes."""
    GREEDY = "greedy"
    """Everything that fits. A large task can wait for ever."""
    EASY = "easy"
    """What does not delay the first task in line, which holds a reservation."""
    CONSERVATIVE = "conservative"
    """What delays none of the first `reservations` tasks, which all hold one."""


class Moves(StrEnum):
    """Whether a running task that says how fast it is where, and saves itself when asked to stop, is moved to other GPUs."""

    NONE = "none"
    """It stays where it was placed."""
    FREE = "free"
    """When faster ones are free that nobody who waits can use."""
    EXCHANGE = "exchange"
    """Then, and in place of such tasks that lose less by it than it gains."""


class Settings(Value, frozen=True):
    """Everything that changes how the engine decides."""

    policy: str = "default"
    """The order of the queue: a name from gpuyard.core.engine.policies."""
    score: str = "best_fit"
    """Which of the fitting nodes is taken: a name from gpuyard.core.placement.scores."""
    backfill: Backfill = Backfill.EASY
    reservations: int = 16
    """How many tasks hold reservations under `conservative`."""
    preemption: bool = True
    """Whether tasks may take GPUs from running ones that allow it, in the cases the policy names."""
    preemption_min_run_seconds: float = 60.0
    """A task that has just been started is left alone for so long: the first guard against thrashing."""
    preemption_limit: int = 20
    """A task that was stopped so often for others is left alone from then on: the second guard."""
    moves: Moves = Moves.EXCHANGE
    """Whether tasks with speeds are moved to faster GPUs; only where `preemption` is on."""
    model_affinity: bool = True
    """Whether a task goes where its model ran last, of places that are equally good."""
    search_depth: int = 64
    """How many nodes the expensive searches look at (reservations, victims); one-node placement always looks at all."""
    ageing_seconds: float = 600.0
    """Waiting so long is worth one point of priority; six times as long makes up for a GPU under `small_first`."""
    level_seconds: float = 7 * 86400.0
    """Under `default`, one level counts as so much waiting. The smaller, the fairer, and the longer all wait on average."""
    fair_share_half_life_seconds: float = 7 * 86400.0
    """After so long, past use counts half."""
    tiresias_threshold_gpu_seconds: float = 3600.0
    """Attained service above which a task leaves the first queue."""
    retry_delay_seconds: float = 2.0
    """Wait before the first retry of a failed task; doubled each time."""
    retry_delay_max_seconds: float = 300.0
    """Never more than this."""
    queue_size: int = 0
    """How many tasks may wait; a submission that would bring more is refused. 0: not limited."""
    max_open_tasks: int = 0
    """Tasks that have not ended of a tenant that has no limit of its own; 0: not limited."""
    remember_ended: int = 10_000
    """How many ended tasks are remembered, so that new tasks can name them as dependencies."""
