"""`exact`: an optimal plan with proof, for problems of about a dozen calls, by OR-Tools CP-SAT.

Choose it for a small plan that is made once, or to see how far other strategies are from the optimum. One or two dozen
calls are usually solved within seconds. Up to 60 calls (`MOST_CALLS`) it still tries to improve the initial plan and
reports a lower bound. Larger problems are refused.

The CP-SAT model: each call has a start and chooses a group of GPUs. On each GPU a circuit visits the calls that chose
it and skips the others:

    depot ── load(a) ──► call 3 ── 0 ──► call 1 ── switch(a, b) ──► call 7 ──► depot          call 2 ↺

An edge from i to j requires that j starts no sooner than the end of i plus the switch between their models. Redundant
constraints help the solver, which would take long to derive them: calls on one GPU do not overlap; the work and the
switches of a GPU fit into the makespan; each model that a GPU calls is loaded, and unloaded unless it is the last.
Symmetry is broken: if all GPUs are identical, they are numbered by their first calls; and calls of one model with the
same predecessors and successors follow each other in one order only.

The solver works in integer ticks, rounded down, so its bound also holds for the real times. The order it finds is then
timed with the real times.

With `preload` every call on a GPU also has an instant from which on the copy engine is free (`compiled/preloading`); it
grows along the circuit, and loads wait for it. Only the first load of a GPU and changes between models that do not fit
side by side count as switch time, and the redundant constraint on loaded models is left out.

With `multi_model` the CP-SAT model still counts a switch wherever the loaded model changes: the plan is timed by the
actual rule, and no bound is proven.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import floor, inf, isfinite
from typing import Any, Final

import numpy as np

from gpuyard.plan.planner.bounds import lower_bound
from gpuyard.plan.planner.compiled.timing import order_of, seconds_on, timed
from gpuyard.plan.planner.plan import Plan, in_order
from gpuyard.plan.planner.problem import EMPTY, Problem
from gpuyard.plan.planner.strategies import STRATEGIES, SearchBudget, can_plan, strategy

ROUND: Final = 0.01
"""One round of a budget in the solver's deterministic time, which is the same on every machine (about seconds)."""
BEGIN_WITH: Final = ("batch", "dynamic", "heft_affinity", "search")
FIRST_ROUNDS: Final = 100
FIRST_EFFORT: Final = 0.1
EFFORT: Final = 1.0
"""The solver's deterministic time in a second of work."""
WHOLE: Final = 1e-6
"""A number of ticks this close to an integer counts as an integer."""
DEPOT: Final = 0


def exact(problem: Problem, budget: SearchBudget) -> Plan:
    """Return the optimal plan, or the best one found in the time, with the proven lower bound."""
    can_plan("exact", problem)
    return improved(problem, _first(problem, budget), budget)


def _first(problem: Problem, budget: SearchBudget) -> Plan:
    """Return the shortest plan of the faster strategies; those that search do a fixed number of rounds."""
    some = replace(budget, rounds=FIRST_ROUNDS, better=lambda _: None)
    plans = [strategy(name)(problem, some) for name in BEGIN_WITH if name in STRATEGIES]
    return min(plans, key=lambda plan: plan.makespan_s)


def improved(problem: Problem, plan: Plan, budget: SearchBudget) -> Plan:
    """Return a plan that is not longer than the given one; its `proven_s` is the proven lower bound."""
    if not len(plan.end):
        return plan
    budget.better(plan)
    ticks = _ticks_a_second(problem, plan)
    best = plan if problem.multi_model else replace(plan, proven_s=lower_bound(problem).seconds)
    for effort in _efforts(budget):
        found, proven, settled = _attempt(problem, best, ticks, budget, effort)
        if found.makespan_s < best.makespan_s:
            best = replace(found, proven_s=best.proven_s)
            budget.better(best)
        if not problem.multi_model:
            best = replace(best, proven_s=max(best.proven_s, proven))
        if settled:
            break
    return best


def _efforts(budget: SearchBudget) -> Iterator[float]:
    """Yield the effort for the next attempt until the budget is spent; each attempt starts from the best plan so far.

    The efforts double, whatever the budget, and the last one is what is left. An attempt with more effort goes on where
    one with less ends, so a larger budget never gives a longer plan.
    """
    if budget.rounds is not None:
        yield budget.rounds * ROUND
        return
    left = inf if budget.work_s is None else budget.work_s * EFFORT
    effort = FIRST_EFFORT
    while left > 0 and budget.keep_going():
        yield min(effort, left)
        left -= effort
        effort *= 2


def _ticks_a_second(problem: Problem, plan: Plan) -> int:
    """Return the smallest resolution that makes all times integers, or the finest that the solver handles well."""
    took = problem.calls.seconds / np.unique(problem.group_speed)[:, None]
    times = np.concatenate([took.ravel(), problem.switch.ravel(), problem.calls.earliest_s, problem.free_first])
    ticks = 1
    while plan.makespan_s * ticks < 1e7 and (np.abs(times * ticks - np.rint(times * ticks)) > WHOLE).any():
        ticks *= 10
    return ticks


@dataclass(frozen=True, slots=True)
class _Program:
    """The CP-SAT model, and the variables needed to read its solution."""

    model: Any
    start: list[Any]
    takes: dict[tuple[int, int], Any]
    """Whether a call uses the group that starts at a GPU."""
    edge: dict[tuple[int, int, int], Any]
    """Whether a GPU goes from one call to another; calls count from 1, the depot is 0."""
    makespan: Any


def _attempt(problem: Problem, plan: Plan, ticks: int, budget: SearchBudget, effort: float) -> tuple[Plan, float, bool]:
    """Improve this plan; return the plan found, the lower bound, and whether the search is complete."""
    from ortools.sat.python import cp_model

    plan = _identical_calls_in_order(problem, _renamed(plan) if _alike(problem) else plan)
    program = _program(problem, plan, ticks)
    _hint(problem, plan, program, ticks)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.interleave_search = True  # alternates two searches: one proves by propagation, one by relaxation
    solver.parameters.subsolvers.extend(["no_lp", "max_lp"])
    solver.parameters.random_seed = budget.seed % 2**31
    solver.parameters.max_deterministic_time = effort
    if isfinite(left_s := budget.left_s()):
        solver.parameters.max_time_in_seconds = left_s
    status = solver.solve(program.model)
    proven = max(0.0, solver.best_objective_bound) / ticks
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        return plan, proven, False
    gpu = np.zeros(len(problem.calls), dtype=np.int32)
    for (call, g), taken in program.takes.items():
        if solver.value(taken):
            gpu[call] = g
    start = np.array([solver.value(s) for s in program.start]) / ticks
    order = order_of(problem, Plan(gpu, start, start + seconds_on(problem, gpu)))
    return timed(problem, gpu, order), proven, status == cp_model.OPTIMAL


def _program(problem: Problem, plan: Plan, ticks: int) -> _Program:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    calls, many, gpus = problem.calls, len(problem.calls), len(problem.gpus)
    horizon = _whole(plan.makespan_s, ticks) + 1
    makespan = model.new_int_var(0 if problem.multi_model else _whole(plan.proven_s, ticks), horizon, "")
    start = [model.new_int_var(_whole(calls.earliest_s[i], ticks), horizon, "") for i in range(many)]
    end = [model.new_int_var(0, horizon, "") for _ in range(many)]
    takes: dict[tuple[int, int], Any] = {}
    on: list[dict[int, Any]] = [{} for _ in range(gpus)]
    """For each GPU, the calls it may run and whether it does."""
    intervals: list[list[Any]] = [[] for _ in range(gpus)]
    work: list[list[Any]] = [[] for _ in range(gpus)]
    for i in range(many):
        m = int(calls.model[i])
        for g in np.flatnonzero(problem.may_begin[m]).tolist():
            taken = takes[i, g] = model.new_bool_var("")
            took = _whole(calls.seconds[i] / problem.group_speed[m, g], ticks)
            here = model.new_optional_interval_var(start[i], took, end[i], taken, "")
            for h in range(g, g + problem.models[m].gpus):
                on[h].setdefault(i, []).append(taken)
                intervals[h].append(here)
                work[h].append(took * taken)
        model.add_exactly_one(takes[i, g] for g in range(gpus) if (i, g) in takes)
        model.add(end[i] <= makespan)
        for j in calls.before[calls.before_at[i] : calls.before_at[i + 1]].tolist():
            model.add(start[i] >= end[j])
    edge: dict[tuple[int, int, int], Any] = {}
    area: list[Any] = []
    switch = np.vectorize(lambda s: _whole(s, ticks))(problem.switch)
    for h in range(gpus):
        free, used = _whole(problem.free_first[h], ticks), model.new_bool_var("")
        paid = _trip(problem, model, h, on[h], start, end, edge, switch, free, used)
        model.add_no_overlap(intervals[h])
        busy = free * used  # an unused GPU may be busy beyond the end
        model.add(busy + sum(work[h]) + sum(paid) <= makespan)
        if problem.preload:
            _copies(problem, model, h, on[h], start, end, edge, free, horizon, ticks)
            area += [busy, *work[h], *paid]
            continue
        held = _held(problem, model, h, on[h], edge, ticks)
        model.add(busy + sum(work[h]) + sum(held) <= makespan)
        area += [busy, *work[h], *held]
    model.add(sum(area) <= gpus * makespan)
    if _alike(problem):
        _name_in_order(model, takes, many, gpus)
    model.minimize(makespan)
    return _Program(model, start, takes, edge, makespan)


def _trip(
    problem: Problem, model: Any, h: int, on: dict[int, Any], start: list[Any], end: list[Any],
    edge: dict[tuple[int, int, int], Any], switch: Any, free: int, used: Any,
) -> list[Any]:  # fmt: skip
    """Add the circuit of GPU h, if it is used; return the durations of its switches."""
    before, identical = _ancestors(problem), _identical_calls(problem)
    arcs: list[Any] = []
    paid: list[Any] = []
    arcs.append((DEPOT, DEPOT, ~used))
    for i, takes in on.items():
        here = takes[0] if len(takes) == 1 else model.new_bool_var("")
        if len(takes) > 1:
            model.add(sum(takes) == here)
        arcs.append((i + 1, i + 1, ~here))
        model.add_implication(here, used)
        first, last = model.new_bool_var(""), model.new_bool_var("")
        arcs += [(DEPOT, i + 1, first), (i + 1, DEPOT, last)]
        edge[h, DEPOT, i + 1], edge[h, i + 1, DEPOT] = first, last
        load = int(switch[problem.held_first[h], problem.calls.model[i]])
        if _beside(problem, h, int(problem.held_first[h]), int(problem.calls.model[i])):
            load = int(switch[EMPTY, problem.calls.model[i]])
        model.add(start[i] >= free + load).only_enforce_if(first)
        paid.append(load * first)
        for j in on:
            if j == i or j in before[i] or (j < i and identical[j] == identical[i]):
                continue
            follows = edge[h, i + 1, j + 1] = model.new_bool_var("")
            arcs.append((i + 1, j + 1, follows))
            pair = int(problem.calls.model[i]), int(problem.calls.model[j])
            takes_s = 0 if _beside(problem, h, *pair) else int(switch[pair])
            model.add(start[j] >= end[i] + takes_s).only_enforce_if(follows)
            paid.append(takes_s * follows)
    model.add_circuit(arcs)
    return paid


def _beside(problem: Problem, h: int, a: int, b: int) -> bool:
    """Whether GPU h may load model b while it holds a."""
    if not problem.preload or EMPTY in (a, b) or a == b:
        return False
    return problem.models[a].memory_gb + problem.models[b].memory_gb <= problem.gpus[h].memory_gb + 1e-9


def _copies(
    problem: Problem, model: Any, h: int, on: dict[int, Any], start: list[Any], end: list[Any],
    edge: dict[tuple[int, int, int], Any], free: int, horizon: int, ticks: int,
) -> None:  # fmt: skip
    """Add the instants from which on the copy engine of GPU h is free after each of its calls has its model."""
    load = [_whole(m.load_s, ticks) for m in problem.models]
    unload = [_whole(m.unload_s, ticks) for m in problem.models]
    most = horizon + max(load) + max(unload)
    copied = {i: model.new_int_var(0, most, "") for i in on}
    at_first = int(problem.held_first[h])
    for j in on:
        m = int(problem.calls.model[j])
        change = 0 if at_first == m else load[m] + (unload[at_first] if at_first != EMPTY else 0)
        model.add(copied[j] >= free + change).only_enforce_if(edge[h, DEPOT, j + 1])
        for i in on:
            follows = edge.get((h, i + 1, j + 1))
            if follows is None:
                continue
            a = int(problem.calls.model[i])
            if a == m:
                model.add(copied[j] >= copied[i]).only_enforce_if(follows)
            elif _beside(problem, h, a, m):
                model.add(start[j] >= copied[i] + load[m]).only_enforce_if(follows)
                model.add(copied[j] >= copied[i] + load[m] + unload[a]).only_enforce_if(follows)
                model.add(copied[j] >= end[i] + unload[a]).only_enforce_if(follows)
            else:
                model.add(start[j] >= copied[i] + unload[a] + load[m]).only_enforce_if(follows)
                model.add(copied[j] >= end[i] + unload[a] + load[m]).only_enforce_if(follows)
                model.add(copied[j] >= copied[i] + unload[a] + load[m]).only_enforce_if(follows)


def _held(problem: Problem, model: Any, h: int, on: dict[int, Any], edge: Any, ticks: int) -> list[Any]:
    """Return the least switch time of GPU h: every model it calls is loaded, and unloaded unless it is the last."""
    spent: list[Any] = []
    for m in sorted({int(problem.calls.model[i]) for i in on}):
        unload = _whole(problem.models[m].unload_s, ticks)
        load = _whole(problem.models[m].load_s, ticks) if problem.held_first[h] != m else 0
        held = model.new_bool_var("")
        of_this = [i for i in on if problem.calls.model[i] == m]
        for i in of_this:
            for takes in on[i]:
                model.add_implication(takes, held)
        spent += [(load + unload) * held, *(-unload * edge[h, i + 1, DEPOT] for i in of_this)]
    return spent


def _ancestors(problem: Problem) -> list[set[int]]:
    """For each call, all calls that must end before it starts, directly or transitively."""
    calls = problem.calls
    found: list[set[int]] = [set() for _ in range(len(calls))]
    for i in order_of(problem, Plan(calls.model, calls.earliest_s, calls.earliest_s)).tolist():
        for j in calls.before[calls.before_at[i] : calls.before_at[i + 1]].tolist():
            found[i] |= {j} | found[j]
    return found


def _identical_calls(problem: Problem) -> list[Any]:
    """Return a key for each call; two calls with equal keys can be swapped when they follow each other on one GPU."""
    calls = problem.calls
    return [
        (
            int(calls.model[i]) if problem.width[calls.model[i]] == 1 else (i,),
            float(calls.earliest_s[i]),
            tuple(sorted(calls.before[calls.before_at[i] : calls.before_at[i + 1]].tolist())),
            tuple(sorted(calls.after[calls.after_at[i] : calls.after_at[i + 1]].tolist())),
        )
        for i in range(len(calls))
    ]


def _identical_calls_in_order(problem: Problem, plan: Plan) -> Plan:
    """Return the same plan with interchangeable consecutive calls in the order of their numbers."""
    identical, order = _identical_calls(problem), order_of(problem, plan)
    place = np.argsort(order)
    for lane in in_order(problem, plan):
        for _, run in groupby(lane.tolist(), key=lambda call: identical[call]):
            some = list(run)
            order[np.sort(place[some])] = sorted(some)
    return timed(problem, plan.gpu, order)


def _alike(problem: Problem) -> bool:
    """Whether the GPUs are identical, so that renumbering them changes nothing."""
    one = problem.gpus[0]
    return (
        bool((problem.width == 1).all())
        and all(g.speed == one.speed and g.memory_gb == one.memory_gb for g in problem.gpus)
        and bool((problem.held_first == EMPTY).all() and (problem.free_first == 0).all())
    )


def _renamed(plan: Plan) -> Plan:
    """Return the same plan with GPUs numbered by their first calls."""
    _, first, which = np.unique(plan.gpu, return_index=True, return_inverse=True)
    return replace(plan, gpu=np.argsort(np.argsort(first))[which].astype(np.int32))


def _name_in_order(model: Any, takes: dict[tuple[int, int], Any], many: int, gpus: int) -> None:
    """Break symmetry: a call may take a GPU only if a call with a lower number took the GPU before it."""
    for i in range(many):
        for g in range(1, gpus):
            model.add_bool_or([~takes[i, g], *(takes[j, g - 1] for j in range(i))])


def _hint(problem: Problem, plan: Plan, program: _Program, ticks: int) -> None:
    model = program.model
    for (i, g), taken in program.takes.items():
        model.add_hint(taken, int(plan.gpu[i]) == g)
    used = {
        (h, a, b)
        for h, lane in enumerate(in_order(problem, plan))
        for a, b in pairwise([DEPOT, *(lane + 1).tolist(), DEPOT])
    }
    for key, follows in program.edge.items():
        model.add_hint(follows, key in used)
    for i, start in enumerate(program.start):
        model.add_hint(start, _whole(plan.start[i], ticks))
    model.add_hint(program.makespan, _whole(plan.makespan_s, ticks))


def _whole(seconds: float, ticks: int) -> int:
    return floor(seconds * ticks + WHOLE)
