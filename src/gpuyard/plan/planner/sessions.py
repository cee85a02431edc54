"""Splits a plan into sessions with dependencies, for a scheduler that decides itself where and when each runs.

A *session* is the work of one process that loads a model once: consecutive calls of one model on the same GPUs. A
session starts when all sessions it depends on have ended. That delays its calls: the inputs of any of its calls must
exist at its start, and the results of its first call are available only at its end. Long sessions load rarely but keep
others waiting; so a session is closed once its calls take `LOADS` times as long as its load, which is then a small part
of it.

Two sessions must not wait for each other. Calls are assigned in the order of the plan, and a call joins the last
session of its GPUs only if all calls it depends on are in that session or in older ones. So every session depends on
older ones only, and the list is a valid order.
"""

from dataclasses import dataclass, field

import numpy as np

from gpuyard.plan.planner.levels import levels
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem

LOADS = 10.0
"""A session is closed when its calls take this many times as long as its load."""


@dataclass(slots=True)
class Session:
    """Calls of one model that run one after another on the same GPUs."""

    model: int
    calls: list[int] = field(default_factory=list)
    work_s: float = 0.0
    """The planned seconds of its calls, without the load."""
    after: set[int] = field(default_factory=set)
    """The sessions it depends on, as positions in the list; all of them are before it."""


def sessions_of(problem: Problem, plan: Plan, *, loads: float = LOADS) -> list[Session]:
    """Split all calls of a valid plan into sessions, in a valid order. `loads` 0: every call is its own session."""
    found: list[Session] = []
    session_of = [-1] * len(problem.calls)
    last = [-1] * len(problem.gpus)
    before, before_at = problem.calls.before.tolist(), problem.calls.before_at.tolist()
    model_of, gpu_of = problem.calls.model.tolist(), plan.gpu.tolist()
    # By start, then by level: a call of zero duration starts at the same instant as the calls that wait for it.
    for call in np.lexsort((levels(problem), plan.start)).tolist():
        model = problem.models[model_of[call]]
        group = range(gpu_of[call], gpu_of[call] + model.gpus)
        waits_for = {session_of[other] for other in before[before_at[call] : before_at[call + 1]]}
        place = last[group[0]]
        if not (
            all(last[gpu] == place >= 0 for gpu in group)
            and found[place].model == model_of[call]
            and found[place].work_s < loads * model.load_s
            and max(waits_for, default=-1) <= place
        ):
            place = len(found)
            found.append(Session(model_of[call]))
        session = found[place]
        session.calls.append(call)
        session.work_s += float(plan.end[call] - plan.start[call])
        session.after |= waits_for - {place}
        session_of[call] = place
        for gpu in group:
            last[gpu] = place
    return found
