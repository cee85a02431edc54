"""A plan: the first GPU, the start and the end of every call; and the measures of a plan."""

from dataclasses import dataclass

import numpy as np

from gpuyard.plan.planner.problem import EMPTY, Flags, Floats, Ints, Problem


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan, in columns with one entry per call, in the order of `Problem.calls`."""

    gpu: Ints
    """The first GPU of the group; the call's model determines how many follow."""
    start: Floats
    end: Floats
    level: Ints | None = None
    """The power level of each call; None: full speed for all."""
    proven_s: float = 0.0
    """A lower bound on the makespan that the strategy proved during its search; 0 if it proved none."""

    @property
    def makespan_s(self) -> float:
        """The end of the last call."""
        return float(self.end.max()) if len(self.end) else 0.0


@dataclass(frozen=True, slots=True)
class Measures:
    """The measures of a plan."""

    makespan_s: float
    switches: int
    """Model changes on a GPU that held another model."""
    switch_time_s: float
    """GPU-seconds spent loading and unloading, including the first loads."""
    utilization_mean: float
    utilization_spread: float
    """Utilization of the busiest GPU minus that of the least busy one, as fractions of the makespan."""


def in_order(problem: Problem, plan: Plan) -> list[Ints]:
    """Return the calls of each GPU, by start. Calls without a GPU (below 0: they were not executed) are left out."""
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
    """For the calls of one GPU, in this order: whether the model must be loaded first, and the seconds that takes."""
    models = problem.calls.model[calls]
    before = np.concatenate((problem.held_first[gpu : gpu + 1], models[:-1])) if len(models) else models
    loaded, seconds = models != before, problem.switch[before, models]
    if problem.multi_model:
        _keep_while_memory_lasts(problem, gpu, models, loaded, seconds)
    return loaded, seconds


def _keep_while_memory_lasts(problem: Problem, gpu: int, models: Ints, loaded: Flags, seconds: Floats) -> None:
    """Correct the result of `loads` for GPUs that hold several models: the least recently used goes first."""
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
    """Count the requests whose last call ends after their deadline."""
    done = np.zeros(len(problem.requests.ids))
    np.maximum.at(done, problem.calls.request, plan.end)
    return int((done > problem.requests.deadline_s + 1e-6).sum())


def measure(problem: Problem, plan: Plan) -> Measures:
    """Measure a valid plan."""
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
