"""Converts between planner and executor: problems to work, plans to assignments, remaining work to problems.

The executor and the planner do not depend on each other. Here `RemainingWork` becomes a `Problem` whose GPUs hold
models and are busy for a while, a strategy plans it, and the better of the new plan and the current queues is followed.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
from msgspec import UNSET

from gpuyard.plan.executor.executor import LoadRun, Run
from gpuyard.plan.executor.work import Assignment, RemainingWork, Work
from gpuyard.plan.planner.compiled.timing import order_of, timed
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.plan_file import ACTUAL, FORMAT, WrittenLoad, WrittenPlan, WrittenTask
from gpuyard.plan.planner.problem import Calls, Ints, Problem, Requests

NOT_HERE_GB = -1.0
"""The memory of a GPU that is gone: no model fits."""
WORTH_IT = 0.998
"""A new plan is used only if it is shorter than this fraction of the old one."""


def work_of(
    problem: Problem,
    host: Sequence[int] | None = None,
    plan: Plan | None = None,
    preloads: Sequence[bool] | None = None,
) -> Work:
    """Convert a problem for the executor. `host`: the machine of each GPU, if there are several.

    `preloads`: which models may be loaded beside calls, if the problem allows it; None: all. Calls that a plan slows down by a power level are expected to take as long as the plan says.
    """
    calls = problem.calls
    seconds = calls.seconds
    if plan is not None and plan.level is not None:
        seconds = (plan.end - plan.start) * problem.group_speed[calls.model, plan.gpu]
    positions = max((len(w.nodes) for w in problem.workflows), default=0)
    return Work(
        model=calls.model.tolist(),
        seconds=seconds.tolist(),
        earliest_s=calls.earliest_s.tolist(),
        before=_lists(calls.before_at, calls.before),
        after=_lists(calls.after_at, calls.after),
        kind=(problem.requests.workflow[calls.request] * positions + calls.position).tolist(),
        width=problem.width.tolist(),
        load_s=problem.load.tolist(),
        unload_s=[model.unload_s for model in problem.models],
        memory_gb=[model.memory_gb for model in problem.models],
        gpu_memory_gb=[gpu.memory_gb for gpu in problem.gpus],
        speed=problem.speed.tolist(),
        host=[0] * len(problem.gpus) if host is None else host,
        multi_model=problem.multi_model,
        preloads=() if not problem.preload else [True] * len(problem.models) if preloads is None else preloads,
        priority=problem.requests.priority[calls.request].tolist(),
    )


def at_levels(problem: Problem, plan: Plan) -> Problem:
    """Return the problem with the durations of calls at the power levels of a plan, wherever they run."""
    if plan.level is None:
        return problem
    speed = problem.group_speed[problem.calls.model, plan.gpu]
    return replace(problem, calls=replace(problem.calls, seconds=(plan.end - plan.start) * speed))


def assignment_of(problem: Problem, plan: Plan) -> Assignment:
    """Convert a plan for the executor."""
    order = order_of(problem, plan)
    return Assignment(order.tolist(), plan.gpu[order].tolist(), plan.start[order].tolist(), plan.end[order].tolist())


def actual_plan(
    problem: Problem, runs: Sequence[Run], loads: Sequence[LoadRun] = (), *, ended_by_hand: bool = False
) -> bytes:
    """Return the actual runs as a plan file; calls that were not done are left out. Loads are included if given."""
    calls = sorted(runs, key=lambda run: run.call)
    tasks = []
    for run in calls:
        request = problem.calls.request[run.call]
        node = problem.workflows[problem.requests.workflow[request]].nodes[problem.calls.position[run.call]]
        gpus = list(range(run.gpu, run.gpu + problem.models[problem.calls.model[run.call]].gpus))
        tasks.append(WrittenTask(problem.requests.ids[request], node, gpus, run.start_s, run.end_s))
    ended = True if ended_by_hand else UNSET
    loaded = []
    for load in loads:
        model = problem.models[load.model]
        loaded.append(WrittenLoad(model.name, list(range(load.gpu, load.gpu + model.gpus)), load.start_s, load.end_s))
    return msgspec.json.encode(
        WrittenPlan(FORMAT, problem.name, tasks, ACTUAL, loads=loaded or UNSET, ended_by_hand=ended)
    )


def replanner(problem: Problem, strategy: Callable[[Problem], Plan]) -> Callable[[RemainingWork], Assignment | None]:
    """Return a function that plans the remaining work, and returns None if the current queues are as good."""

    def plan(remaining: RemainingWork) -> Assignment | None:
        rest = remaining_problem(problem, remaining)
        chosen = strategy(rest)
        queued = _as_queued(rest, remaining)
        if queued is not None and chosen.makespan_s > WORTH_IT * queued.makespan_s:
            return None
        order = order_of(rest, chosen)
        at = remaining.now_s
        return Assignment(
            [remaining.call[i] for i in order],
            chosen.gpu[order].tolist(),
            (chosen.start[order] + at).tolist(),
            (chosen.end[order] + at).tolist(),
        )

    return plan


def remaining_problem(problem: Problem, remaining: RemainingWork) -> Problem:
    """Return the problem of the remaining work. Its time starts now; its calls are in the order of `RemainingWork`."""
    calls, left = problem.calls, np.array(remaining.call, dtype=np.int32)
    number = np.full(len(calls), -1, dtype=np.int32)
    number[left] = np.arange(len(left))
    before = [
        [int(number[b]) for b in calls.before[calls.before_at[c] : calls.before_at[c + 1]] if number[b] >= 0]
        for c in left
    ]
    after: list[list[int]] = [[] for _ in left]
    for call, some in enumerate(before):
        for earlier in some:
            after[earlier].append(call)
    before_at, before_flat = _columns(before)
    after_at, after_flat = _columns(after)
    now = remaining.now_s
    rest = Calls(
        calls.request[left],
        calls.position[left],
        calls.model[left],
        np.array(remaining.seconds),
        np.maximum(0.0, np.array(remaining.earliest_s) - now),
        before_at,
        before_flat,
        after_at,
        after_flat,
    )
    gpus = tuple(
        gpu if usable else replace(gpu, memory_gb=NOT_HERE_GB)
        for gpu, usable in zip(problem.gpus, remaining.usable, strict=True)
    )
    asked = problem.requests
    requests = Requests(
        asked.ids, asked.workflow, np.maximum(0.0, asked.arrival_s - now), asked.priority, asked.deadline_s - now
    )
    return replace(
        problem,
        gpus=gpus,
        requests=requests,
        calls=rest,
        holding=np.array(remaining.holds, dtype=np.int32),
        busy_until_s=np.maximum(0.0, np.array(remaining.busy_until_s) - now),
    )


def _as_queued(rest: Problem, remaining: RemainingWork) -> Plan | None:
    """Return the plan that results from keeping the queues; None if a call is in no queue."""
    gpu = np.array(remaining.gpu, dtype=np.int32)
    return None if (gpu < 0).any() else timed(rest, gpu, np.array(remaining.order, dtype=np.int32))


def _lists(at: Ints, flat: Ints) -> list[list[int]]:
    ends, values = at.tolist(), flat.tolist()
    return [values[begin:end] for begin, end in pairwise(ends)]


def _columns(lists: list[list[int]]) -> tuple[Ints, Ints]:
    at = np.concatenate(([0], np.cumsum([len(some) for some in lists]))).astype(np.int32)
    return at, np.array([x for some in lists for x in some], dtype=np.int32)
