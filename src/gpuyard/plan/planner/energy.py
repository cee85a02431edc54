"""The energy of a plan, and the choice of power levels for its calls.

    energy  =  idle power of all GPUs × makespan
             + for each call and GPU of its group: (power at the level - idle power) × duration of the call at the level

A GPU that loads a model is counted as idle: it waits for the bus.

**Levels.** At a lower level a call takes longer and usually needs less energy. Calls off the critical path have slack:
the plan keeps its GPUs and its order, and every call gets the level with the least energy that its slack allows. With
`slower` the whole plan may take longer by that fraction, which gives every call more slack. All GPUs draw idle power
until the last end, so the longer plan is used only if it saves more than that costs.

Watts depend on what a GPU computes, and so does the speed at a lower clock. A model may therefore have its own speed and
watts for the levels of the GPUs.

The power of GPUs comes from the file (`idle_watts`, `levels`), or from their type in `domain.board_power`, which has
one level.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from gpuyard.core.domain.board_power import IDLE_PART, known_watts
from gpuyard.plan.planner.compiled.power_levels import choose_power_levels, earliest_starts
from gpuyard.plan.planner.compiled.timing import order_of, timed
from gpuyard.plan.planner.plan import Plan, in_order, loads
from gpuyard.plan.planner.problem import Floats, Ints, Level, PlannerGpu, Problem

JOULES_A_KWH: Final = 3.6e6
STEPS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The fractions of the allowed slowdown that are tried."""


class Source(StrEnum):
    """The source of the power figures."""

    FILE = "file"
    DATA_SHEETS = "data sheets"


@dataclass(frozen=True, slots=True)
class Power:
    """Power and speed of the GPUs of a problem at each of their levels; NaN if a GPU has fewer levels."""

    idle: Floats
    watts: Floats
    """`watts[g, level]`."""
    speed: Floats
    """`speed[g, level]`, multiplied by the GPU's own speed."""
    source: Source


def power_of(problem: Problem) -> Power | None:
    """Return the power of all GPUs; None if the file does not give that of some GPU and its type is unknown."""
    known = [_known(gpu) for gpu in problem.gpus]
    if not known or None in known:
        return None
    levels = [levels for one in known if one is not None for levels in (one[1],)]
    watts = np.full((len(known), max(map(len, levels))), np.nan)
    speed = watts.copy()
    for g, of_gpu in enumerate(levels):
        watts[g, : len(of_gpu)] = [level.watts for level in of_gpu]
        speed[g, : len(of_gpu)] = [level.speed * problem.gpus[g].speed for level in of_gpu]
    said = all(gpu.levels for gpu in problem.gpus)
    idle = np.array([one[0] for one in known if one is not None])
    return Power(idle, watts, speed, Source.FILE if said else Source.DATA_SHEETS)


def energy_kwh(problem: Problem, plan: Plan, power: Power) -> float:
    """Return the energy of all GPUs until the last end."""
    _, joules = _choices(problem, plan, power)
    level = plan.level if plan.level is not None else np.zeros(len(plan.gpu), dtype=np.int32)
    at_work = float(joules[np.arange(len(level)), level].sum())
    return (float(power.idle.sum()) * plan.makespan_s + at_work) / JOULES_A_KWH


def with_power_levels(problem: Problem, plan: Plan, power: Power, slower: float = 0.0) -> Plan:
    """Return the plan with power levels that save energy; at most longer by the fraction `slower` (0.05: 5 %)."""
    seconds, joules = _choices(problem, plan, power)
    graph = _graph(problem, plan)
    best, least = plan, energy_kwh(problem, plan, power)
    for until in sorted({plan.makespan_s * (1 + slower * part) for part in STEPS}):
        level = _levels(graph, seconds, joules, until)
        took = seconds[np.arange(len(level)), level]
        if problem.preload:
            found = replace(timed(problem, plan.gpu, graph[0], took), level=level)
        else:
            start = earliest_starts(*graph, took)
            found = replace(plan, start=start, end=start + took, level=level)
        needs = energy_kwh(problem, found, power)
        if needs < least and (not problem.preload or found.makespan_s <= until + 1e-9):
            best, least = found, needs
    return best


def _known(gpu: PlannerGpu) -> tuple[float, tuple[Level, ...]] | None:
    """Return idle watts and levels of a GPU; None if they are unknown."""
    if gpu.levels:
        return gpu.idle_watts, gpu.levels
    watts = known_watts(gpu.type)
    return None if watts is None else (gpu.idle_watts or watts * IDLE_PART, (Level(1.0, watts),))


def _choices(problem: Problem, plan: Plan, power: Power) -> tuple[Floats, Floats]:
    """For each call and level: seconds, and joules beyond idling; infinite if the level does not exist."""
    width = problem.width[problem.calls.model]
    slowest = np.full((len(plan.gpu), power.speed.shape[1]), np.inf)
    extra = np.zeros_like(slowest)
    for offset in range(int(width.max(initial=1))):
        wide = np.flatnonzero(width > offset).astype(np.int32)
        g = plan.gpu[wide] + offset
        speed, watts = _of_models(problem, power, wide, g)
        slowest[wide] = np.minimum(slowest[wide], speed)
        extra[wide] += watts - power.idle[g, None]
    seconds = problem.calls.seconds[:, None] / slowest
    joules = seconds * extra
    return np.where(np.isnan(seconds), np.inf, seconds), np.where(np.isnan(joules), np.inf, joules)


def _of_models(problem: Problem, power: Power, calls: Ints, gpu: Ints) -> tuple[Floats, Floats]:
    """Speed and watts of these calls at each level of these GPUs: those of their models, otherwise those of the GPUs."""
    speed, watts = power.speed[gpu], power.watts[gpu]
    for number, model in enumerate(problem.models):
        chosen = np.flatnonzero(problem.calls.model[calls] == number) if model.levels else ()
        for at, level in enumerate(model.levels[: speed.shape[1]]):
            has = ~np.isnan(speed[chosen, at])
            speed[chosen, at] = np.where(has, problem.speed[gpu[chosen]] * level.speed, np.nan)
            watts[chosen, at] = np.where(has, level.watts, np.nan)
    return speed, watts


TimedGraph = tuple[Ints, Floats, Ints, Ints, Floats]
"""The calls by start, the earliest start of each on its own, and its predecessors (`before_at`, `before`, lag)."""


def _graph(problem: Problem, plan: Plan) -> TimedGraph:
    """Return the constraints with fixed GPUs and order: dependencies, the previous call on each GPU, and loading.

    With `preload` a load waits for the end of the session before the one beside which it runs. That loads also wait for
    each other is left out: the plan is timed again, and refused if that makes it too long.
    """
    calls = problem.calls
    at_least = np.maximum(calls.earliest_s, 0.0)
    later: list[Ints] = [np.repeat(np.arange(len(calls), dtype=np.int32), np.diff(calls.before_at))]
    earlier, lag = [calls.before], [np.zeros(len(calls.before))]
    for g, lane in enumerate(in_order(problem, plan)):
        if len(lane):
            _, seconds = loads(problem, g, lane)
            if problem.preload:
                seconds, some = _exposed(problem, g, lane, seconds)
                later.append(some[0])
                earlier.append(some[1])
                lag.append(problem.switch[problem.calls.model[some[1]], problem.calls.model[some[0]]])
            at_least[lane[0]] = max(at_least[lane[0]], problem.free_first[g] + seconds[0])
            later.append(lane[1:])
            earlier.append(lane[:-1])
            lag.append(seconds[1:])
    who = np.concatenate(later)
    by_call = np.argsort(who, kind="stable")
    at = np.searchsorted(who[by_call], np.arange(len(calls) + 1)).astype(np.int32)
    whom = np.concatenate(earlier)[by_call].astype(np.int32)
    return order_of(problem, plan), at_least, at, whom, np.concatenate(lag)[by_call]


def _exposed(problem: Problem, g: int, lane: Ints, seconds: Floats) -> tuple[Floats, tuple[Ints, Ints]]:
    """Return the switch times without those beside calls, and the first calls of sessions with the last but one before.

    A load beside session k begins after the unload of the model of session k - 1, so its model is ready `switch` after
    the last call of that session.
    """
    models, size = problem.calls.model[lane], np.array([m.memory_gb for m in problem.models])
    first = np.flatnonzero(np.concatenate(([False], models[1:] != models[:-1])))
    beside = first[size[models[first - 1]] + size[models[first]] <= problem.gpus[g].memory_gb + 1e-9]
    seconds = seconds.copy()
    seconds[beside] = 0.0
    before = np.searchsorted(first, beside) - 1
    some = beside[before >= 0], first[before[before >= 0]] - 1
    return seconds, (lane[some[0]], lane[some[1]])


def _levels(graph: TimedGraph, seconds: Floats, joules: Floats, until: float) -> Ints:
    """Lower all calls by up to one level first, then two, …: the first step down saves most, so slack is shared."""
    level = np.zeros(len(seconds), dtype=np.int32)
    for lowest in range(1, seconds.shape[1]):
        choose_power_levels(*graph, seconds, joules, until, lowest, level)
    return level
