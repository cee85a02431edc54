"""A plan: for every call the first GPU of its group, and when it begins and ends. What a plan is worth, in figures."""

from dataclasses import dataclass

import numpy as np

from gpuyard.planner.problem import Floats, Ints, Problem


@dataclass(frozen=True, slots=True)
class Plan:
    """Columns, one entry a call, in the order of `Problem.calls`."""

    gpu: Ints
    """The first GPU of the group; its model says how many."""
    start: Floats
    end: Floats
    level: Ints | None = None
    """The power level of each call; None: full speed."""

    @property
    def makespan_s(self) -> float:
        """The last end."""
        return float(self.end.max()) if len(self.end) else 0.0


@dataclass(frozen=True, slots=True)
class Measures:
    """What a plan is worth."""

    makespan_s: float
    switches: int
    """Model changes on a GPU that held another one."""
    switch_time_s: float
    """GPU-seconds of loading and unloading, the first loads included."""
    utilisation_mean: float
    utilisation_spread: float
    """The busiest GPU less the idlest, as parts of the makespan."""


def in_order(problem: Problem, plan: Plan) -> list[Ints]:
    """The calls of each GPU, by start."""
    width = problem.width[problem.calls.model]
    order = np.lexsort((np.arange(len(plan.start)), plan.start))
    call = np.repeat(order, width[order])
    first = np.concatenate(([0], np.cumsum(width[order])[:-1])) if len(order) else np.zeros(0, dtype=np.int64)
    offset = np.arange(len(call)) - np.repeat(first, width[order])
    gpu = plan.gpu[call] + offset
    by_gpu = np.argsort(gpu, kind="stable")
    cuts = np.searchsorted(gpu[by_gpu], np.arange(1, len(problem.gpus)))
    return [part.astype(np.int32) for part in np.split(call[by_gpu], cuts)]


def measure(problem: Problem, plan: Plan) -> Measures:
    """Look at a valid plan."""
    makespan = plan.makespan_s
    busy = np.zeros(len(problem.gpus))
    switches, switch_time = 0, 0.0
    for g, calls in enumerate(in_order(problem, plan)):
        if not len(calls):
            continue
        busy[g] = float((plan.end[calls] - plan.start[calls]).sum())
        models = problem.calls.model[calls]
        changes = models[1:] != models[:-1]
        switches += int(changes.sum())
        switch_time += float(problem.switch[models[:-1], models[1:]].sum() + problem.load[models[0]])
    part = busy / makespan if makespan else busy
    return Measures(makespan, switches, switch_time, float(part.mean()), float(part.max() - part.min()))
