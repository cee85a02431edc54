"""`search`: improves good plans as far as the time allows, usually close to the optimum.

There are three searches, each starting from the best plan so far:

    lists      which settings, which calls first?   changes the settings of the list scheduler and shifts the priority
               of requests and nodes; good for the overall structure and for large problems
    sessions   which GPU holds which model when?     changes the list of sessions (`compiled/session_search.py`); good
               if loading takes as long as calling. Abandoned early if it does not help
    moves      which call where, in which order?     changes the plan call by call and session by session, timing
               only what changes (`compiled/moves.py`); good for the last percent and for the tail

Worse plans are accepted at first, then less and less as the time runs out: the search cools down by `used` or by
`rounds`. One round is one list, two lists of sessions or a hundred moves, about a millisecond at a thousand calls. If
requests have deadlines, the plan with the fewest late requests is best (weighted by priority: a request of priority 100
counts as two of priority 0); the makespan breaks ties.

Good at any size up to a few hundred thousand calls; above that only lists are tried.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gpuyard.plan.planner.compiled import moves, session_search, session_sim
from gpuyard.plan.planner.compiled.decoding import ListSettings
from gpuyard.plan.planner.compiled.draws import below, source_of, threshold_draw
from gpuyard.plan.planner.compiled.list_scheduler import ListScheduler
from gpuyard.plan.planner.compiled.plan_buffer import make_buffer
from gpuyard.plan.planner.compiled.timing import order_of, seconds_on, timed
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.strategies import SearchBudget
from gpuyard.plan.planner.strategies.heft_affinity import PORTFOLIO

LISTS_UNTIL: Final = 0.35
SESSIONS_UNTIL: Final = 0.65
"""The searches run in turn; these are the fractions of the budget used when the next one begins."""
MOST_CALLS: Final = 200_000
"""Above this a round of sessions or moves takes too long."""
MOST_FOR_SESSIONS: Final = 20_000
UNTIMED_ROUNDS: Final = 4_000
"""The number of rounds that the cooling assumes if there is no limit."""

CHOICES: Final[dict[str, tuple[Any, ...]]] = {
    "wait": (0.0, 0.25, 0.5, 1.0, 2.0),
    "cost": (0.5, 1.0, 1.5, 2.0, 3.0),
    "soon": (0.0, 0.5, 1.0),
    "later": (0.0, 0.0, 0.02, 0.1, 0.3, 1.0),
    "first": (1.0, 2.0, 4.0, 8.0),
    "urgent": (0.0, 0.0, 0.5, 1.0, 2.0),
    "calm": (0.5, 0.8, 1.0),
    "least": (0.0, 0.5, 1.0, 1.5, 2.0),
    "flow": (0.0, 0.0, 0.3, 0.7, 1.0),
    "level": (0.0, 0.0, 0.5, 1.0),
    "loads": (0.0, 0.5, 1.0),
    "backwards": (False, True),
}
"""The values that each setting of the list scheduler may take, in order."""

# How often each change is tried, in the order of the changes in `proposals` and `sessions`.
MOVES: Final = np.cumsum([30, 5, 15, 10, 10, 5, 3, 5])
SESSIONS: Final = np.cumsum([30, 10, 20, 10, 10, 5, 10])


def search(problem: Problem, budget: SearchBudget) -> Plan:
    """Return the best plan found within the budget."""
    return improved(problem, budget, [])


def improved(problem: Problem, budget: SearchBudget, known: list[Plan]) -> Plan:
    """Return a plan at least as good as any of the known plans, usually better."""
    best = _Best(problem, budget)
    for plan in known:
        best.offer(plan)
    clock = _Clock(budget)
    _lists(problem, best, clock, source_of(3 * budget.seed))
    if 0 < len(problem.calls) <= MOST_CALLS:
        if len(problem.calls) <= MOST_FOR_SESSIONS and not (best.has_deadlines or problem.multi_model):
            _sessions(problem, best, clock, source_of(3 * budget.seed + 1))
        _moves(problem, best, clock, source_of(3 * budget.seed + 2))
    return best.plan


@dataclass(frozen=True, order=True, slots=True)
class Objective:
    """The order of plans; less is better."""

    late: float
    makespan_s: float


def objective(problem: Problem, plan: Plan) -> Objective:
    """Return the weighted number of late requests, then the makespan."""
    deadline = problem.requests.deadline_s
    if not np.isfinite(deadline).any():
        return Objective(0.0, plan.makespan_s)
    end = np.zeros(len(deadline))
    np.maximum.at(end, problem.calls.request, plan.end)
    late = (end > deadline) * (1.0 + problem.requests.priority / 100.0)
    return Objective(float(late.sum()), plan.makespan_s)


class _Best:
    """The best plan so far; reports each improvement to the caller."""

    def __init__(self, problem: Problem, budget: SearchBudget) -> None:
        self._problem, self._budget = problem, budget
        self.has_deadlines = bool(np.isfinite(problem.requests.deadline_s).any())
        self._plan: Plan | None = None
        self.worth = Objective(np.inf, np.inf)

    @property
    def plan(self) -> Plan:
        """The best plan. Valid only after the first `offer`."""
        assert self._plan is not None
        return self._plan

    def offer(self, plan: Plan) -> Objective:
        """Take the plan if it is better; its calls then start as early as possible, unless that makes it worse."""
        said = objective(self._problem, plan)
        if said < self.worth:
            timely = timed(self._problem, plan.gpu, order_of(self._problem, plan))
            self._plan, self.worth = min(
                ((plan, said), (timely, objective(self._problem, timely))), key=lambda one: one[1]
            )
            self._budget.better(self._plan)
        return said


class _Clock:
    """The progress of the search, 0 to 1, by rounds or by time."""

    def __init__(self, budget: SearchBudget) -> None:
        self._budget, self._done = budget, 0
        self._rounds = budget.rounds if budget.rounds is not None else UNTIMED_ROUNDS

    def until(self, part: float) -> Iterator[float]:
        """Yield the progress until it reaches that fraction or the caller stops the search."""
        while self._budget.keep_going():
            if self._budget.rounds is None and self._budget.used is not None:
                at = self._budget.used()
            else:
                at = self._done / self._rounds
            if at >= part:
                return
            yield at
            self._done += 1


def _cooled(hot: float, steps: float, cold_steps: int = 64) -> float:
    """Cool from hot to a hundredth of it in steps of 7 %. Only products are used: they are the same on any machine."""
    for _ in range(int(min(steps, 1.0) * cold_steps)):
        hot *= 0.93
    return hot


# --- lists ------------------------------------------------------------------------------------------------------------


def _lists(problem: Problem, best: _Best, clock: _Clock, source: Any) -> None:
    """Try the portfolio and random settings first, then small changes of the best."""
    scheduler = ListScheduler(problem)
    node = _nodes(problem)
    requests, nodes = len(problem.requests.ids), int(node.max(initial=0)) + 1
    reach = 0.1 * problem.work_s / max(1, requests)
    current, current_worth = (PORTFOLIO[0], np.zeros(requests), np.zeros(nodes)), Objective(np.inf, np.inf)
    tried = 0
    for at in clock.until(LISTS_UNTIL):
        part = at / LISTS_UNTIL
        settings, of_request, of_node = current
        if tried < len(PORTFOLIO):
            settings = PORTFOLIO[tried]
        elif part < 0.3:
            settings = ListSettings(*[some[below(source, len(some))] for some in CHOICES.values()])
        elif below(source, 5) < 2:
            settings = _another(settings, source)
        elif below(source, 2) == 0:
            of_node = of_node.copy()
            of_node[below(source, nodes)] += _between(source) * reach
        else:
            of_request = of_request.copy()
            share = (50, 10, 3)[below(source, 3)]
            for _ in range(max(1, requests // share)):
                of_request[below(source, requests)] += _between(source) * reach
        tried += 1
        nudge = of_request[problem.calls.request] + of_node[node]
        said = best.offer(scheduler.plan(settings, nudge))
        allowed = current_worth.makespan_s * (1.0 + _cooled(2e-3, part) * threshold_draw(source) * (part >= 0.3))
        if said.late < current_worth.late or (said.late == current_worth.late and said.makespan_s <= allowed):
            current, current_worth = (settings, of_request, of_node), said
    if tried == 0:
        best.offer(scheduler.plan(PORTFOLIO[0]))


def _nodes(problem: Problem) -> Any:
    """For each call, the index of its node among the nodes of all workflows."""
    first = np.concatenate(([0], np.cumsum([len(w.nodes) for w in problem.workflows]))).astype(np.int64)
    return first[problem.requests.workflow[problem.calls.request]] + problem.calls.position


def _another(settings: ListSettings, source: Any) -> ListSettings:
    """Draw one or two of the settings again."""
    said: list[Any] = list(settings)
    for _ in range(1 + (below(source, 5) < 2)):
        place = below(source, len(CHOICES))
        some = list(CHOICES.values())[place]
        said[place] = some[below(source, len(some))]
    return ListSettings(*said)


def _between(source: Any) -> float:
    """Return a random number from -1 to 1."""
    return (below(source, 2001) - 1000) / 1000.0


# --- sessions ---------------------------------------------------------------------------------------------------------


def _sessions(problem: Problem, best: _Best, clock: _Clock, source: Any) -> None:
    """Search from the sessions of the best plan; give up if not within 2 % of it after 30 % of the turn."""
    rank = ListScheduler(problem).rank(1.0)
    plan, order = best.plan, order_of(problem, best.plan)
    count = session_search.count_of(problem, plan.gpu, order)
    most = 2 * count + 4 * len(problem.gpus) + 64
    sim = session_sim.allocate_sim(problem, rank, most)
    listed = session_sim.allocate_sessions(sim)
    trial = session_sim.allocate_sessions(sim)
    count = session_search.sessions_from_plan(sim, order, plan.gpu, listed)
    tie_break = np.zeros(int(sim.kind.max(initial=0)) + 2)
    tie_break[-1] = 4.0
    figures = session_search.first_figures(sim, listed, count, tie_break, plan.makespan_s)
    best_start, best_gpu = sim.start.copy(), sim.gpu.copy()
    known = figures[session_search.BEST]

    def rearranged(count: int, rounds: int) -> int:
        return session_search.rearrange(
            sim, listed, trial, count, most, tie_break, 0.3 * float(rank.max()), rounds, SESSIONS, figures,
            best_start, best_gpu, source,
        )  # fmt: skip

    rearranged(count, 0)  # compiles even if there is no time, so that the next search does not wait
    for at in clock.until(SESSIONS_UNTIL):
        part = (at - LISTS_UNTIL) / (SESSIONS_UNTIL - LISTS_UNTIL)
        if part > 0.3 and figures[session_search.BEST] > 1.02 * plan.makespan_s:
            return
        figures[session_search.TEMPERATURE] = _cooled(1e-3, part)
        count = rearranged(count, 2)
        if figures[session_search.BEST] < min(known, best.worth.makespan_s):
            known = figures[session_search.BEST]
            best.offer(Plan(best_gpu.copy(), best_start.copy(), best_start + seconds_on(problem, best_gpu)))


# --- moves ------------------------------------------------------------------------------------------------------------


def _moves(problem: Problem, best: _Best, clock: _Clock, source: Any) -> None:
    """Search from the best plan."""
    plan = best.plan
    buffer = make_buffer(problem, plan.gpu, order_of(problem, plan), source)
    moves.begin(buffer)
    moves.improve(buffer, 0, MOVES)  # compiles even if there is no time, so that the next search does not wait
    begun: float | None = None
    for at in clock.until(1.0):
        begun = at if begun is None else begun
        buffer.figures[moves.TEMPERATURE] = _cooled(3e-5, (at - begun) / (1.0 - begun))
        if moves.improve(buffer, 100, MOVES):
            best.offer(timed(problem, buffer.best_gpu, buffer.best_order))
