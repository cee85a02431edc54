"""Spans: the times in which a task waited or held GPUs. Pure; the views make them from committed events.

A task holds GPUs from its placement to the end of its attempt, except while it is suspended: exactly as long as the
engine charges them to its tenant. It waits from its submission, or from the end of an attempt that is repeated, to
the next placement. How an attempt ended, and what its node measured, is known at its end and then holds for all of it.
"""

from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.values import Outcome, Value
from gpuyard.core.engine.state import PREEMPTING

WAITING = "waiting"
"""Instead of an outcome: the task waited."""
UNFINISHED = ""
SUCCESS, FAILED, PREEMPTED, OUT_OF_MEMORY, STOPPED = "success", "failed", "preempted", "out_of_memory", "stopped"

Holding = tuple[tuple[str, int], ...]
"""Pairs of GPU model and thousandths of GPUs."""


class UsageSpan(Value, frozen=True):
    """A time in which a task waited, or held GPUs of one model."""

    start: float
    end: float
    outcome: str
    attempt: int = 0
    model: str = ""
    milli: int = 0
    idle: float | None = None
    """Part of the readings in which its GPUs were idle, from 0 to 1; None: not measured."""
    watts: float | None = None
    """Mean power of one of its GPUs; None: not measured."""


def outcome_of(outcome: Outcome, cause: Cause | None) -> str:
    """Return how the GPU time of an attempt was spent. `cause` is why the scheduler stopped it, if it did."""
    if outcome is Outcome.SUCCEEDED:
        return SUCCESS
    if outcome is Outcome.OUT_OF_MEMORY:
        return OUT_OF_MEMORY
    if outcome is not Outcome.STOPPED:
        return FAILED
    if cause is not None and cause.why in PREEMPTING:
        return PREEMPTED
    return FAILED if cause is not None and cause.why in {CauseKind.TIMEOUT, CauseKind.MEMBER_FAILED} else STOPPED


def held(holding: Holding, start: float, end: float, attempt: int) -> tuple[UsageSpan, ...]:
    """Return the spans of GPUs that were held; none if no time has passed."""
    if end <= start:
        return ()
    return tuple(UsageSpan(start, end, UNFINISHED, attempt, model, milli) for model, milli in holding)


def waited(start: float, end: float) -> tuple[UsageSpan, ...]:
    """Return the span of a wait; none if no time has passed."""
    return (UsageSpan(start, end, WAITING),) if end > start else ()


def judged(spans: tuple[UsageSpan, ...], attempt: int, outcome: str, actual: Actual | None) -> tuple[UsageSpan, ...]:
    """Return the spans with the outcome and the measurements of an attempt."""
    idle = actual.gpu_idle_fraction if actual else None
    watts = actual.gpu_power_watts if actual else None
    return tuple(
        UsageSpan(one.start, one.end, outcome, one.attempt, one.model, one.milli, idle, watts)
        if one.attempt == attempt and one.outcome != WAITING
        else one
        for one in spans
    )
