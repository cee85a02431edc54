"""`batch`: calls of one model at the same or near levels run together, one after another on one group of GPUs.

1. The calls of a model on a level form a group. No two of them depend on each other. A call may move to a near level, up to
   `near` above its own, if it stays below all calls that depend on it and its model has more work there.
2. A group is divided into batches of equal work, as few as keep each below a size, urgent requests first. Small batches keep many GPUs busy,
   large ones switch rarely.
3. Batches are ordered by level, and within a level by work, largest first. Each goes to the group of GPUs that can begin
   it soonest, those that hold its model first. The model is loaded as soon as these are free, and each call starts when
   the previous one and all its dependencies have ended.

No size and no distance is best for every problem: about thirty combinations are tried, and the shortest plan is taken.

Good with few GPUs and as a baseline: few model switches, and plans that are easy to read. Deterministic.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from math import inf
from typing import Final

import numpy as np

from gpuyard.plan.planner.levels import levels_of, per_call
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Floats, Ints, Problem, Workflow
from gpuyard.plan.planner.strategies import SearchBudget
from gpuyard.plan.planner.strategies.multi_model import retimed

NEAR: Final = (0, 1, 3)
"""How far from its own a level may be."""
PASSES: Final = 3
SIZES: Final = (inf, 1.0, 0.5, 0.25, 0.125, 0.0625, 0.03, 0.015, 0.0075)
"""The most work of a batch: parts of the work of all calls divided by the GPUs. Infinite: groups are not divided."""
LOADS: Final = 0.5
"""A batch is not divided below this many times the load of its model."""
MOST_STEPS: Final = 3_000_000
"""Batches × GPUs over all combinations; later ones are left out. The undivided groups are always tried."""


def batch(problem: Problem, budget: SearchBudget) -> Plan:
    """Return the shortest plan of all sizes and distances."""
    from gpuyard.plan.planner.compiled.batches import place_batches

    calls = problem.calls
    if not len(calls):
        return Plan(np.zeros(0, dtype=np.int32), np.zeros(0), np.zeros(0))
    best: Plan | None = None
    steps = 0
    for order, batch_at in _divisions(problem):
        steps += len(batch_at) * len(problem.gpus) + len(calls)
        if best is not None and (steps > MOST_STEPS or not budget.keep_going()):
            break
        plan = Plan(
            *place_batches(
                order,
                batch_at,
                calls.model,
                calls.seconds,
                calls.earliest_s,
                calls.before_at,
                calls.before,
                problem.width,
                problem.switch,
                problem.may_begin,
                problem.group_speed,
                problem.free_first,
                problem.held_first,
            )
        )
        plan = retimed(problem, plan) if problem.preload else plan
        if best is None or plan.makespan_s < best.makespan_s:
            best = plan
    assert best is not None
    return retimed(problem, best)


def _divisions(problem: Problem) -> Iterator[tuple[Ints, Ints]]:
    """Yield the batches of each combination: the calls in their order, and where each batch begins; large ones first."""
    groups = {near: _Groups(problem, near) for near in NEAR}
    share_s = problem.work_s / max(1, len(problem.gpus))
    for size, near in product(SIZES, NEAR):
        yield groups[near].batches(problem, size * share_s)


class _Groups:
    """The calls of each model on each level."""

    def __init__(self, problem: Problem, near: int) -> None:
        calls = problem.calls
        level = near_levels(problem, near)
        urgency = -problem.requests.priority[calls.request]
        self._order = np.lexsort((urgency, calls.model, level)).astype(np.int32)
        changes = (np.diff(level[self._order]) != 0) | (np.diff(calls.model[self._order]) != 0)
        self._at = np.concatenate(([0], np.flatnonzero(changes) + 1, [len(calls)]))
        self._model = calls.model[self._order[self._at[:-1]]]
        self._done = np.concatenate(([0.0], np.cumsum(calls.seconds[self._order])))
        self._work = np.diff(self._done[self._at])
        self._turn = np.lexsort((-self._work, level[self._order[self._at[:-1]]]))

    def batches(self, problem: Problem, size_s: float) -> tuple[Ints, Ints]:
        """Return the calls in order and the start of each batch, if no batch has more work than `size_s`."""
        order: list[Ints] = []
        lengths: list[int] = []
        width = problem.width[self._model]
        least = LOADS * problem.load[self._model]
        for group in self._turn.tolist():
            a, b = int(self._at[group]), int(self._at[group + 1])
            most = max(size_s / width[group], least[group])
            many = int(min(b - a, max(1.0, np.ceil(self._work[group] / most)))) if most < inf and most > 0 else 1
            marks = self._done[a] + self._work[group] * np.arange(1, many) / many
            cuts = np.unique(np.concatenate(([a], np.searchsorted(self._done[a : b + 1], marks) + a, [b])))
            lengths += np.diff(cuts).tolist()
            order.append(self._order[a:b])
        return (
            np.concatenate(order) if order else np.zeros(0, dtype=np.int32),
            np.concatenate(([0], np.cumsum(lengths))).astype(np.int32),
        )


def near_levels(problem: Problem, near: int) -> Ints:
    """Return a level for each call, at most `near` above its lowest one, such that few models meet on a level.

    Every call stays above those it depends on. A node moves to the level where its model has most work; a few passes over
    all workflows are enough.
    """
    of_nodes = [levels_of(workflow) for workflow in problem.workflows]
    if near == 0:
        return per_call(problem, of_nodes)
    requests = np.bincount(problem.requests.workflow, minlength=len(problem.workflows))
    work: dict[tuple[int, int], float] = defaultdict(float)
    """The work of each model on each level."""
    weights = [requests[i] * np.array(workflow.seconds) for i, workflow in enumerate(problem.workflows)]
    highest = max((int(level.max(initial=0)) for level in of_nodes), default=0)
    lowest = [level.copy() for level in of_nodes]
    for workflow, level, weight in zip(problem.workflows, of_nodes, weights, strict=True):
        for node, model in enumerate(workflow.models):
            work[model, int(level[node])] += float(weight[node])
    for _ in range(PASSES):
        for workflow, level, low, weight in zip(problem.workflows, of_nodes, lowest, weights, strict=True):
            _gather(workflow, level, low + near, weight, work, highest)
    return per_call(problem, of_nodes)


def _gather(
    workflow: Workflow, level: Ints, most: Ints, weight: Floats, work: dict[tuple[int, int], float], highest: int
) -> None:
    """Move the nodes of a workflow, the last ones first, to the level where their model has most work."""
    latest = np.minimum(most, highest)
    for node in np.argsort(level, kind="stable")[::-1].tolist():
        model, here = workflow.models[node], int(level[node])
        work[model, here] -= float(weight[node])
        least = max((int(level[before]) + 1 for before in workflow.before[node]), default=0)
        there = max(range(least, int(latest[node]) + 1), key=lambda at: (work[model, at], -abs(at - here)))
        level[node] = there
        work[model, there] += float(weight[node])
        for before in workflow.before[node]:
            latest[before] = min(latest[before], there - 1)
