"""Requests of higher priority end sooner in a plan, as far as that costs no time.

Strategies look for short plans; which of many requests comes first in them is often of no account for the makespan. So a
finished plan is improved for the urgent requests, in two steps:

1. *Exchange.* Requests that are alike in everything but their priority (workflow, durations, arrival, deadline) can change
   places: the most urgent one gets the calls of the one that ends first, and so on. No time and no GPU changes.
2. *Order.* Calls of one model that follow each other on a GPU are ordered by priority, and the plan is timed again. That
   is kept if the plan does not become longer and no more requests are late. If it is not, the two halves of the plan are
   tried on their own, and so on.

A plan for requests of equal priority stays as it is.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from gpuyard.plan.planner.compiled.jit import INTERPRETED
from gpuyard.plan.planner.compiled.keys import topological_keys
from gpuyard.plan.planner.compiled.timing import ranks, timed
from gpuyard.plan.planner.plan import Plan, in_order, late_requests
from gpuyard.plan.planner.problem import Floats, Ints, Problem

MOST_CALLS: Final = 20_000 if INTERPRETED else 5_000_000
"""Calls that are timed in all; plans with more are timed once."""
MOST_TRIES: Final = 64
SLACK: Final = 1 + 1e-9


def has_priorities(problem: Problem) -> bool:
    """Whether some requests are more urgent than others."""
    return len(np.unique(problem.requests.priority[problem.calls.request])) > 1


def urgent_first(problem: Problem, plan: Plan, *, reorder: bool = True) -> Plan:
    """Return a plan of the same length in which urgent requests end sooner. `reorder`: do both steps, not only the first."""
    if not has_priorities(problem):
        return plan
    plan = _exchanged(problem, plan)
    return _Ordering(problem, plan).best() if reorder and plan.level is None else plan


def weighted_end_s(problem: Problem, plan: Plan) -> float:
    """Return the mean end of the requests, weighted by priority."""
    weight = problem.requests.priority.astype(np.float64)
    return float((weight * ends(problem, plan)).sum() / max(1.0, weight.sum()))


def ends(problem: Problem, plan: Plan) -> Floats:
    """Return when each request ends; 0 for one without calls."""
    end = np.zeros(len(problem.requests.ids))
    np.maximum.at(end, problem.calls.request, plan.end)
    return end


def _exchanged(problem: Problem, plan: Plan) -> Plan:
    """Give the calls of the request that ends first to the most urgent one of those that are alike, and so on."""
    calls, asked, first = problem.calls, problem.requests, problem.first_call
    alike: dict[tuple[object, ...], list[int]] = {}
    for request in np.unique(calls.request).tolist():
        mine = slice(first[request], first[request + 1])
        what = (
            int(asked.workflow[request]),
            float(asked.deadline_s[request]),
            calls.position[mine].tobytes(),
            calls.seconds[mine].tobytes(),
            calls.earliest_s[mine].tobytes(),
        )
        alike.setdefault(what, []).append(request)
    end = ends(problem, plan)
    taken = np.arange(len(calls))
    for group in alike.values():
        if len(group) > 1 and len(set(asked.priority[group].tolist())) > 1:
            urgent = sorted(group, key=lambda request: (-asked.priority[request], end[request], request))
            soonest = sorted(group, key=lambda request: (end[request], request))
            for request, other in zip(urgent, soonest, strict=True):
                taken[first[request] : first[request + 1]] = np.arange(first[other], first[other + 1])
    level = None if plan.level is None else plan.level[taken]
    return replace(plan, gpu=plan.gpu[taken], start=plan.start[taken], end=plan.end[taken], level=level)


class _Ordering:
    """The second step."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        calls = problem.calls
        self._problem, self._plan = problem, plan
        self._key: Floats = plan.start.copy()
        """The place of each call in the order of the plan so far."""
        self._rank = ranks(calls.before_at, calls.after_at, calls.after)
        self._late = late_requests(problem, plan)
        self._worth = weighted_end_s(problem, plan)
        self._tries = max(1, min(MOST_TRIES, MOST_CALLS // max(1, len(calls))))

    def best(self) -> Plan:
        """Return the plan after all orders that were kept."""
        self._try(sorted(self._sessions(), key=lambda session: self._plan.start[session[0]]))
        return self._plan

    def _sessions(self) -> list[Ints]:
        """Return the calls of each session with several priorities: one model, one group of GPUs, one after another."""
        model, priority = self._problem.calls.model, self._problem.requests.priority[self._problem.calls.request]
        found = []
        for gpu, calls in enumerate(in_order(self._problem, self._plan)):
            cuts = np.flatnonzero(np.diff(model[calls])) + 1
            for session in np.split(calls, cuts):
                here = session[self._plan.gpu[session] == gpu]
                if len(here) > 1 and len(np.unique(priority[here])) > 1:
                    found.append(here)
        return found

    def _try(self, sessions: list[Ints]) -> None:
        """Order these sessions; if the plan does not get better, each half of them on its own."""
        if not sessions or not self._tries:
            return
        self._tries -= 1
        calls, priority = self._problem.calls, self._problem.requests.priority[self._problem.calls.request]
        key = self._key.copy()
        for session in sessions:
            urgent = session[np.lexsort((self._key[session], -priority[session]))]
            key[urgent] = np.sort(self._key[session])
        key = topological_keys(self._rank, calls.before_at, calls.before, key)
        made = timed(self._problem, self._plan.gpu, np.lexsort((self._rank, key)).astype(np.int32))
        if self._is_better(made):
            self._plan, self._key = replace(made, proven_s=self._plan.proven_s), key
            self._worth = weighted_end_s(self._problem, made)
        elif len(sessions) > 1:
            middle = len(sessions) // 2
            self._try(sessions[:middle])
            self._try(sessions[middle:])

    def _is_better(self, made: Plan) -> bool:
        return (
            made.makespan_s <= self._plan.makespan_s * SLACK
            and weighted_end_s(self._problem, made) < self._worth
            and late_requests(self._problem, made) <= self._late
        )
