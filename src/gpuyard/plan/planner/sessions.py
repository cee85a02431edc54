"""A plan as work for somebody who decides himself where and when: sessions, and which has to wait for which.

A *session* is what one process does that loads a model once: calls of one model that follow each other on the same GPUs.
A session begins when all it waits for has ended, so it is a promise to begin late: what it needs in the middle it needs at
its beginning, and what it has done first is known when all is done. Long sessions load seldom and keep others waiting;
so one is closed when its calls take `LOADS` times as long as its load, and the load is a small part of it.

Two sessions must not wait for each other. Calls are dealt out in the order of the plan, and a call joins the last
session of its GPUs only if all that it waits for is in that session or in older ones. So every session waits for older
ones only, and their order is one in which they can be done.
"""

from dataclasses import dataclass, field

import numpy as np

from gpuyard.plan.planner.levels import levels
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem

LOADS = 10.0
"""Times its load that the calls of a session take, before it is closed."""


@dataclass(slots=True)
class Session:
    """Calls of one model, one after the other on the same GPUs."""

    model: int
    calls: list[int] = field(default_factory=list)
    work_s: float = 0.0
    """What its calls take by the plan, without the load."""
    after: set[int] = field(default_factory=set)
    """Sessions it waits for, by their places in the list: all of them stand before it."""


def sessions_of(problem: Problem, plan: Plan, *, loads: float = LOADS) -> list[Session]:
    """All calls of a valid plan in sessions, in an order in which they can be done. `loads` 0: every call is one."""
    found: list[Session] = []
    session_of = [-1] * len(problem.calls)
    last = [-1] * len(problem.gpus)
    before, before_at = problem.calls.before.tolist(), problem.calls.before_at.tolist()
    model_of, gpu_of = problem.calls.model.tolist(), plan.gpu.tolist()
    for call in np.lexsort((levels(problem), plan.start)).tolist():  # what takes no time begins with what waits for it
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
