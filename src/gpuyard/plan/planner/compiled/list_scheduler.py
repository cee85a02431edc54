"""The list scheduler: calls in the order in which they are due, and each free GPU takes the next (`decoding`).

Calls are ordered by their due time minus the longest path from them to the end of their request (upward rank), in which
loads are multiplied by `loads`. All requests are due at the end of the plan, sooner with priority, and at the latest at
their deadline. `flow` staggers them instead of treating all at once, `level` puts calls at the same depth together.

`backwards` plans from the end to the start: the successors of a call come before it, a switch from b to a costs what
one from a to b does, and the first model of a GPU, which is its last in the plan, costs nothing. Only the order is
kept, and timed forward. Decisions at the start of a plan are easy, since every call waits; at the end they are hard,
since few do. Planning backwards reverses that, which often gains more than all other settings together.
"""

import numpy as np

from gpuyard.plan.planner.compiled.decoding import ListSettings, decode
from gpuyard.plan.planner.compiled.decoding_state import NONE
from gpuyard.plan.planner.compiled.jit import compiled
from gpuyard.plan.planner.compiled.timing import order_of, switching, timed
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Floats, Ints, Problem


class ListScheduler:
    """Makes plans of one problem, one for each settings.

    `preload`: if the problem allows it, choose as if loads overlap with calls; otherwise only the times use it.
    """

    def __init__(self, problem: Problem, *, preload: bool = True) -> None:
        self.problem = problem
        self._preload = preload and problem.preload
        kinds: dict[tuple[float, float], int] = {}
        self._kind = np.array([kinds.setdefault((g.speed, g.memory_gb), len(kinds)) for g in problem.gpus])
        self._ranks: dict[tuple[float, bool], Floats] = {}

    def plan(self, settings: ListSettings, nudge: Floats | None = None) -> Plan:
        """Return the plan for these settings; `nudge` is added to the due time of each call."""
        made = self._backwards(settings, nudge) if settings.backwards else self._forwards(settings, nudge)
        again = settings.backwards or self.problem.multi_model or self.problem.preload
        return timed(self.problem, made.gpu, order_of(self.problem, made)) if again else made

    def _forwards(self, settings: ListSettings, nudge: Floats | None) -> Plan:
        problem, calls = self.problem, self.problem.calls
        rank = self.rank(settings.loads)
        key = self._due(settings, rank) - rank
        gpu, start = decode(
            calls.model,
            calls.seconds,
            calls.earliest_s,
            calls.before_at,
            calls.after_at,
            calls.after,
            problem.width,
            problem.switch,
            problem.may_begin,
            problem.group_speed,
            self._copying(backwards=False),
            self._kind,
            problem.held_first,
            problem.free_first,
            rank,
            key if nudge is None else key + nudge,
            settings,
        )
        return Plan(gpu, start, start + calls.seconds / problem.group_speed[calls.model, gpu])

    def _backwards(self, settings: ListSettings, nudge: Floats | None) -> Plan:
        """Plan in reversed time from the last end; arrival times and what GPUs hold at first are ignored."""
        problem, calls = self.problem, self.problem.calls
        models, gpus = len(problem.models), len(problem.gpus)
        switch = np.zeros((models + 1, models))
        switch[:models] = problem.switch[:models].T
        rank = self.rank(settings.loads, backwards=True)
        key = self._due(settings, rank) - rank
        gpu, start = decode(
            calls.model,
            calls.seconds,
            np.zeros(len(calls)),
            calls.after_at,
            calls.before_at,
            calls.before,
            problem.width,
            switch,
            problem.may_begin,
            problem.group_speed,
            self._copying(backwards=True),
            self._kind,
            np.full(gpus, NONE, dtype=np.int32),
            np.zeros(gpus),
            rank,
            key if nudge is None else key - nudge,
            settings,
        )
        end = start + calls.seconds / problem.group_speed[calls.model, gpu]
        last = end.max(initial=0.0)
        return Plan(gpu, last - end, last - start)

    def _copying(self, *, backwards: bool) -> tuple[Floats, Floats, Floats, Floats]:
        """Return what the copy engine does before and after a switch; in reversed time it loads the old model after."""
        if not self._preload:
            nothing = np.zeros(0)
            return nothing, nothing, nothing, nothing
        _, load, unload, size, room, _ = switching(self.problem)
        return (np.zeros(len(load)), load, size, room) if backwards else (load, unload, size, room)

    def rank(self, loads: float, *, backwards: bool = False) -> Floats:
        """The longest path from each call to the end of its request, including itself and `loads` × the loads on the
        path.

        Backwards: to the start.
        """
        if (loads, backwards) not in self._ranks:
            calls, load = self.problem.calls, self.problem.load
            before, after = (calls.before_at, calls.before), (calls.after_at, calls.after)
            (behind_at, _), ahead = (before, after) if backwards else (after, before)
            self._ranks[loads, backwards] = _upward_rank(calls.model, calls.seconds, *ahead, behind_at, load, loads)
        return self._ranks[loads, backwards]

    def _due(self, settings: ListSettings, rank: Floats) -> Floats:
        """For each call, when its request should have ended; only differences matter."""
        problem, of = self.problem, self.problem.requests
        if not len(rank):
            return rank
        length = max(problem.work_s / len(problem.gpus), float(rank.max()))
        due = np.minimum(length * (1.5 - of.priority / 100), of.deadline_s)
        if settings.backwards:
            due = -due
        if settings.flow:
            due += settings.flow * length * np.arange(len(due)) / len(due)
        if settings.level:
            longest = np.zeros(len(due))
            np.maximum.at(longest, problem.calls.request, rank)
            due += settings.level * longest
        return due[problem.calls.request]


@compiled
def _upward_rank(
    model: Ints, seconds: Floats, before_at: Ints, before: Ints, after_at: Ints, load: Floats, loads: float
) -> Floats:
    """Compute the ranks from the ends of the requests back, each call after all its successors."""
    calls = len(model)
    rank = np.zeros(calls)
    follow = after_at[1:] - after_at[:-1]
    queue = np.zeros(calls, dtype=np.int32)
    many = 0
    for call in range(calls - 1, -1, -1):
        if follow[call] == 0:
            queue[many] = call
            many += 1
    for turn in range(calls):
        call = queue[turn]
        rank[call] += seconds[call]
        for e in range(before_at[call], before_at[call + 1]):
            earlier = before[e]
            way = rank[call]
            if model[earlier] != model[call]:
                way += loads * load[model[call]]
            rank[earlier] = max(rank[earlier], way)
            follow[earlier] -= 1
            if follow[earlier] == 0:
                queue[many] = earlier
                many += 1
    return rank
