"""Measures of one simulation: completion and waiting times, utilization, fairness between users."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from math import floor, fsum, inf
from typing import Any

import msgspec

from gpuyard.simulator.recorder import Recorder, TaskTimeline

SHORT_SECONDS = 10.0
"""Lower bound of a job's length in slowdowns, so that short waits of very short jobs do not dominate."""


class SimulationMeasures(msgspec.Struct, frozen=True):
    """The figures by which runs are compared; times are in seconds."""

    jobs: int
    avg_jct_s: float
    p50_jct_s: float
    p99_jct_s: float
    p999_jct_s: float
    avg_queue_s: float
    p50_queue_s: float
    p99_queue_s: float
    p999_queue_s: float
    makespan_s: float
    """Time from the first submission to the last end."""
    preemptions: int
    """Stops of a task that continues later or elsewhere, moves included."""
    moves: int
    """Stops of a task that continues at once on other GPUs."""
    utilization: float
    """GPU-seconds in use, divided by the GPU-seconds until the last end; of elastic or sleeping nodes only while they are up."""
    avg_slowdown: float
    """Bounded slowdown: time from submission to end, divided by the time with GPUs (at least 10 s)."""
    worst_slowdown: float
    user_fairness: float
    """Jain's index over users' mean slowdowns: 1 means equal slowdowns; 1/n means that one of n users has all of it."""


def measure(recorder: Recorder, gpus: float) -> SimulationMeasures:
    """Return the measures of all tasks that have ended; `gpus` is the number of GPUs, on average if it changed."""
    jcts, queues, slowdowns = array("d"), array("d"), array("d")
    preemptions, began, ended = 0, inf, -inf
    for life in recorder.lives.over():
        assert life.ended is not None
        jcts.append(life.jct)
        queues.append(life.queued)
        slowdowns.append(slowdown(life))
        preemptions += life.preemptions
        began, ended = min(began, life.submitted), max(ended, life.ended)
    makespan = ended - began
    jcts, queues = array("d", sorted(jcts)), array("d", sorted(queues))
    return SimulationMeasures(
        jobs=len(jcts),
        avg_jct_s=fsum(jcts) / len(jcts),
        p50_jct_s=percentile(jcts, 0.5),
        p99_jct_s=percentile(jcts, 0.99),
        p999_jct_s=percentile(jcts, 0.999),
        avg_queue_s=fsum(queues) / len(queues),
        p50_queue_s=percentile(queues, 0.5),
        p99_queue_s=percentile(queues, 0.99),
        p999_queue_s=percentile(queues, 0.999),
        makespan_s=makespan,
        preemptions=preemptions,
        moves=recorder.moves,
        utilization=recorder.gpu_seconds / (gpus * makespan) if gpus and makespan else 0.0,
        avg_slowdown=fsum(slowdowns) / len(slowdowns),
        worst_slowdown=max(slowdowns),
        user_fairness=jain_index(list(by_user(recorder.lives.over()).values())),
    )


def slowdown(life: TaskTimeline) -> float:
    """Return the time from submission to end divided by the time with GPUs (bounded below)."""
    return max(1.0, life.jct / max(life.held, SHORT_SECONDS))


def by_user(lives: Iterable[TaskTimeline]) -> dict[str, float]:
    """Return the mean slowdown of each user's jobs."""
    found: dict[str, array[float]] = {}
    for life in lives:
        if (slowdowns := found.get(life.user)) is None:
            slowdowns = found[life.user] = array("d")
        slowdowns.append(slowdown(life))
    return {user: fsum(values) / len(values) for user, values in sorted(found.items())}


def jain_index(values: Sequence[float]) -> float:
    """Return Jain's fairness index."""
    return float(fsum(values) ** 2 / (len(values) * fsum(value * value for value in values)))


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return the quantile `part` of sorted values, with linear interpolation between neighbors."""
    place = part * (len(ordered) - 1)
    below = floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def as_json(measures: SimulationMeasures) -> dict[str, Any]:
    """Return the measures as a JSON object, rounded to three decimals."""
    plain: dict[str, Any] = msgspec.to_builtins(measures)
    return rounded(plain)


def rounded(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Round every figure to three decimals."""
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}
