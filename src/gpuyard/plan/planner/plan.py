"""A plan: the first GPU, the start and the end of every call; and the measures of a plan."""

from dataclasses import dataclass

import numpy as np

from gpuyard.plan.planner.problem import EMPTY, Flags, Floats, Ints, Problem


@dataclass(frozen=True, slots=True)
class Loads:
    """Loads as they were measured, in columns."""

    model: Ints
    gpu: Ints
    """The first GPU of the group."""
    start: Floats
    end: Floats


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
    loads: Loads | None = None
    """In the record of an execution, when models were loaded; None: as early as the rules allow."""

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
    hidden_switch_s: float | None = None
    """The part of `switch_time_s` in which the GPU ran calls at the same time; None without `preload`."""

    @property
    def exposed_switch_s(self) -> float:
        """The GPU-seconds of loading and unloading in which the GPU ran no call."""
        return self.switch_time_s - (self.hidden_switch_s or 0.0)


def in_order(problem: Problem, plan: Plan) -> list[Ints]:
    """Return the calls of each GPU, by start, then by end. Calls without a GPU (below 0: they were not executed) are left out."""
    width = np.where(plan.gpu < 0, 0, problem.width[problem.calls.model])
    order = np.lexsort((plan.end, plan.start))
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


@dataclass(frozen=True, slots=True)
class Copy:
    """What the copy engine of a GPU does without a pause: it loads a model for a call, or unloads the one before it."""

    call: int
    begin: float
    end: float
    loads: bool


def copies(problem: Problem, gpu: int, calls: Ints, plan: Plan) -> list[Copy]:
    """With `preload`: the loads and unloads of one GPU, with its calls in this order, each as early as it can be."""
    models, size = problem.calls.model[calls], [model.memory_gb for model in problem.models]
    load, unload = [model.load_s for model in problem.models], [model.unload_s for model in problem.models]
    room = problem.gpus[gpu].memory_gb + 1e-9
    held = int(problem.held_first[gpu])
    order: dict[int, None] = {} if held == EMPTY else {held: None}
    """The models on the GPU, the least recently used first."""
    free = copied = float(problem.free_first[gpu])
    found: list[Copy] = []
    for i in np.flatnonzero(np.concatenate(([True], models[1:] != models[:-1]))) if len(models) else ():
        model, call = int(models[i]), int(calls[i])
        free = float(plan.end[calls[i - 1]]) if i else free
        if model == held:
            continue
        if model in order:
            copied = free
        else:
            at = copied if order else max(free, copied)
            used = sum(size[m] for m in order) + size[model]
            beside = used <= room
            begin = at
            while used > room and order:
                dropped = next(iter(order))
                if dropped == held:
                    if at > begin:
                        found.append(Copy(call, begin, at, loads=False))
                    begin = at = max(at, free)
                at += unload[dropped]
                used -= size[dropped]
                del order[dropped]
            found.append(Copy(call, begin, at + load[model], loads=True))
            copied = max(free, at + load[model])
            if beside and order and not problem.multi_model:
                found.append(Copy(call, copied, copied + unload[held], loads=False))
                copied += unload[held]
                order.clear()
        order.pop(model, None)
        order[model] = None
        held = model
    return found


def _hidden(plan: Plan, calls: Ints, done: list[Copy]) -> float:
    """Return the seconds of these loads and unloads in which the GPU runs its calls."""
    bounds = np.stack((plan.start[calls], plan.end[calls]), axis=1).ravel()
    busy = np.repeat(np.cumsum(plan.end[calls] - plan.start[calls]), 2)
    busy[2::2] = busy[1:-1:2]
    busy[0] = 0.0
    at = np.interp(np.array([(one.begin, one.end) for one in done]).reshape(-1, 2), bounds, busy)
    return float((at[:, 1] - at[:, 0]).sum())


def late_requests(problem: Problem, plan: Plan) -> int:
    """Count the requests whose last call ends after their deadline."""
    done = np.zeros(len(problem.requests.ids))
    np.maximum.at(done, problem.calls.request, plan.end)
    return int((done > problem.requests.deadline_s + 1e-6).sum())


def measure(problem: Problem, plan: Plan) -> Measures:
    """Measure a valid plan."""
    makespan = plan.makespan_s
    busy = np.zeros(len(problem.gpus))
    switches, switch_time, hidden = 0, 0.0, 0.0
    for g, calls in enumerate(in_order(problem, plan)):
        if not len(calls):
            continue
        busy[g] = float((plan.end[calls] - plan.start[calls]).sum())
        loaded, seconds = loads(problem, g, calls)
        switches += int(loaded.sum()) - int(loaded[0] and problem.held_first[g] == EMPTY)
        if problem.preload:
            done = copies(problem, g, calls, plan)
            switch_time += sum(one.end - one.begin for one in done)
            hidden += _hidden(plan, calls, done)
        else:
            switch_time += float(seconds.sum())
    part = busy / makespan if makespan else busy
    spread = float(part.max() - part.min())
    return Measures(makespan, switches, switch_time, float(part.mean()), spread, hidden if problem.preload else None)
