"""The settings of the engine. A change of the settings is an event, so a replay uses the settings of each instant."""

from enum import StrEnum

import msgspec

from gpuyard.core.domain.values import Value


class Backfill(StrEnum):
    """Which tasks may overtake a task that waits for free GPUs."""

    NONE = "none"
    """No task that could use the same nodes."""
    GREEDY = "greedy"
    """Every task that fits. A large task can wait indefinitely."""
    EASY = "easy"
    """Tasks that do not delay the first task of the queue that has waited long enough for a reservation."""
    CONSERVATIVE = "conservative"
    """Tasks that delay none of the first `reservations` tasks that have waited long enough for a reservation."""


class Moves(StrEnum):
    """Whether running tasks that state their GPU speeds and can be checkpointed are moved to faster GPUs."""

    NONE = "none"
    """Tasks stay where they were placed."""
    FREE = "free"
    """A task moves to faster GPUs that are free and that no waiting task can use."""
    EXCHANGE = "exchange"
    """As `free`; a task may also exchange GPUs with another such task that loses less than the first one gains."""


class Settings(Value, frozen=True):
    """All settings that affect the decisions of the engine."""

    policy: str = "default"
    """The queue policy: a name from gpuyard.core.engine.policies."""
    score: str = "best_fit"
    """The score that chooses among suitable nodes: a name from gpuyard.core.placement.scores."""
    weight_time: float = 1.0
    """The weight of the run time under the score `weighted`, and so on for energy, balance and fragmentation."""
    weight_energy: float = 1.0
    weight_balance: float = 1.0
    weight_fragmentation: float = 1.0
    weights_follow_idle: bool = True
    """Whether the weights of energy and balance are multiplied by the part of the GPUs that are free, and that of
    fragmentation by the part that is not."""
    backfill: Backfill = Backfill.EASY
    reserve_after_seconds: float = 6 * 3600.0
    """The time that a task waits before it may have a reservation; until then every task that fits may overtake it."""
    reservations: int = 16
    """The number of tasks that have reservations under `conservative`."""
    preemption: bool = True
    """Whether tasks may preempt running tasks that allow it, in the cases that the policy defines."""
    preemption_min_run_seconds: float = 60.0
    """The time after its start during which a task is not preempted; it prevents thrashing."""
    preemption_limit: int = 20
    """The number of preemptions after which a task is not preempted again; it also prevents thrashing."""
    moves: Moves = Moves.EXCHANGE
    """Whether tasks with speeds are moved to faster GPUs; requires `preemption`."""
    defragment: bool = False
    """Whether running tasks are moved to other nodes to make room for a waiting task; requires `preemption`."""
    model_affinity: bool = True
    """Whether, among equally good places, a task gets one where its machine-learning model ran last."""
    search_depth: int = 64
    """The number of nodes that expensive searches examine (reservations, victims); placement on one node examines all."""
    aging_seconds: float = msgspec.field(default=600.0, name="ageing_seconds")
    """The waiting time that is worth one point of priority; under `small_first`, six times this is worth one GPU."""
    level_seconds: float = 7 * 86400.0
    """The waiting time that is worth one level under `default`. A smaller value is fairer, but the mean wait is longer."""
    fair_share_half_life_seconds: float = 7 * 86400.0
    """The time after which past usage counts half under `fair_share`."""
    tiresias_threshold_gpu_seconds: float = 3600.0
    """The GPU-seconds after which a task leaves the first queue of `tiresias`."""
    retry_delay_seconds: float = 2.0
    """The delay before the first retry of a failed task; it doubles with each retry."""
    retry_delay_max_seconds: float = 300.0
    """The maximum delay before a retry."""
    queue_size: int = 0
    """The maximum number of waiting tasks; submissions that exceed it are refused. 0: no limit."""
    max_open_tasks: int = 0
    """The maximum number of tasks that have not ended, for a tenant without a limit of its own; 0: no limit."""
    longest_booking_seconds: float = 90 * 86400.0
    """The maximum length of a booking or a maintenance window."""
    book_ahead_seconds: float = 400 * 86400.0
    """How far in the future a booking may begin: the same hours in 52 weeks are possible."""
    remember_ended: int = 10_000
    """The number of ended tasks that are kept, so that new tasks can name them as dependencies."""
