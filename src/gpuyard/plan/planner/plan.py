"""A plan: for every call the first GPU of its group, and when it begins and ends. What a plan is worth, in figures."""

from dataclasses import dataclass

import numpy as np

from gpuyard.plan.planner.problem import EMPTY, Flags, Floats, Ints, Problem


@dataclass(frozen=True, slots=True)
class Plan:
    """Columns, one entry a call, in the order of `Problem.calls`."""

    gpu: Ints
    """The first GPU of the group; its model says how many."""
    start: Floats
    end: Floats
    level: Ints | None = None
    """The power level of each call; None: full speed."""
    proven_s: float = 0.0
    """No plan can be shorter: what the strategy proved while it looked; 0 if it proved nothing."""

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
    """The calls of each GPU, by start; those that are nowhere (a GPU below 0: they were not done) are left out."""
    width = np.where(plan.gpu < 0, 0, problem.width[problem.calls.model])
    order = np.lexsort((np.arange(len(plan.start)), plan.start))
    call = np.repeat(order, width[order])
    first = np.concatenate(([0], np.cumsum(width[order])[:-1])) if len(order) else np.zeros(0, dtype=np.int64)
    offset = np.arange(len(call)) - np.repeat(first, width[order])
    gpu = plan.gpu[call] + offset
    by_gpu = np.argsort(gpu, kind="stable")
    cuts = np.searchsorted(gpu[by_gpu], np.arange(1, len(problem.gpus)))
    return [part.astype(np.int32) for part in np.split(call[by_gpu], cuts)]


def loads(problem: Problem, gpu: int, calls: Ints) -> tuple[Flags, Floats]:
    """For each call of one GPU, in this order: whether its model has to be loaded first, and how long that takes."""
    models = problem.calls.model[calls]
    before = np.concatenate((problem.held_first[gpu : gpu + 1], models[:-1])) if len(models) else models
    loaded, seconds = models != before, problem.switch[before, models]
    if problem.many_residents:
        _keep_while_memory_lasts(problem, gpu, models, loaded, seconds)
    return loaded, seconds


def _keep_while_memory_lasts(problem: Problem, gpu: int, models: Ints, loaded: Flags, seconds: Floats) -> None:
    """Mend what `loads` found where a GPU holds several models: the one not used for longest is dropped first."""
    held: dict[int, None] = {} if problem.held_first[gpu] == EMPTY else {int(problem.held_first[gpu]): None}
    for i in np.flatnonzero(loaded):
        model = int(models[i])
        loaded[i], seconds[i] = model not in held, 0.0
        held.pop(model, None)
        if loaded[i]:
            used = sum(problem.models[m].memory_gb for m in held)
            while held and used + problem.models[model].memory_gb > problem.gpus[gpu].memory_gb + 1e-9:
                dropped = next(iter(held))
                del held[dropped]
                used -= problem.models[dropped].memory_gb
                seconds[i] += problem.models[dropped].unload_s
            seconds[i] += problem.models[model].load_s
        held[model] = None


def late_requests(problem: Problem, plan: Plan) -> int:
    """Requests whose last call ends after their deadline."""
    done = np.zeros(len(problem.requests.ids))
    np.maximum.at(done, problem.calls.request, plan.end)
    return int((done > problem.requests.deadline_s + 1e-6).sum())


def measure(problem: Problem, plan: Plan) -> Measures:
    """Look at a valid plan."""
    makespan = plan.makespan_s
    busy = np.zeros(len(problem.gpus))
    switches, switch_time = 0, 0.0
    for g, calls in enumerate(in_order(problem, plan)):
        if not len(calls):
            continue
        busy[g] = float((plan.end[calls] - plan.start[calls]).sum())
        loaded, seconds = loads(problem, g, calls)
        switches += int(loaded.sum()) - int(loaded[0] and problem.held_first[g] == EMPTY)
        switch_time += float(seconds.sum())
    part = busy / makespan if makespan else busy
    return Measures(makespan, switches, switch_time, float(part.mean()), float(part.max() - part.min()))
