"""`search`: improves good plans as far as the time allows, usually close to the optimum.

There are three searches, each starting from the best plan so far:

    lists      which settings, which calls first?   changes the settings of the list scheduler and shifts the priority
               of requests and nodes; good for the overall structure and for large problems
    sessions   which GPU holds which model when?     changes the list of sessions (`compiled/session_search.py`); good
               if loading takes as long as calling. Abandoned early if it does not help
    moves      which call where, in which order?     changes the plan call by call and session by session, timing
               only what changes (`compiled/moves.py`); good for the last percent and for the tail

They take turns, and each turn has twice the work of the one before:

    turn 1        turn 2                turn 3
    L  S  M   |   L    S    M      |    L        S        M           |  …      work, not time
    └ cools ┘     └── cools ──┘         └─────── cools ───────┘

In a turn, worse plans are accepted at first, then less and less. Nothing depends on the clock or on how much time there
will be: the sequence is the same for every time limit, and a limit says where it ends. More time continues the same
sequence, and the best plan so far is never given up (any-time search; doubling costs at most what a search that knows
its end would have reached in half the time).

Work is counted in seconds of the core on which the steps were measured (`WORK`). If requests have deadlines, the plan
with the fewest late requests is best (weighted by priority: a request of priority 100 counts as two of priority 0); the
makespan breaks ties.

Good at any size up to a few hundred thousand calls; above that only lists are tried.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import numpy as np

from gpuyard.plan.planner.compiled import moves, session_search, session_sim
from gpuyard.plan.planner.compiled.decoding import ListSettings
from gpuyard.plan.planner.compiled.draws import below, source_of, threshold_draw
from gpuyard.plan.planner.compiled.jit import INTERPRETED
from gpuyard.plan.planner.compiled.list_scheduler import ListScheduler
from gpuyard.plan.planner.compiled.plan_buffer import make_buffer
from gpuyard.plan.planner.compiled.timing import order_of, seconds_on, timed
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.strategies import SearchBudget
from gpuyard.plan.planner.strategies.heft_affinity import PORTFOLIO

FIRST_TURN: Final = 96
"""The rounds of the first turn: the portfolio of list schedules, and a look at sessions and moves."""
LISTS_UNTIL: Final = 0.35
SESSIONS_UNTIL: Final = 0.65
"""The part of a turn after which the next search begins."""
GROWTH: Final = 2.0
UNLIMITED_TURNS: Final = 6
"""The number of turns if there is no limit at all."""
MOST_CALLS: Final = 200_000
"""Above this a round of sessions or moves takes too long."""
MOST_FOR_SESSIONS: Final = 20_000
PLAIN_SLOWER: Final = 2_000
"""How many times as long the steps take if they are not compiled."""
PLAIN_S: Final = 2.0
"""The most seconds of such a search: a first plan should come soon."""
AT_ONCE: Final = 2_000
"""Calls that are simulated between two looks at the clock: at least two lists of sessions."""


@dataclass(frozen=True, slots=True)
class _Work:
    """Seconds of work of the steps, measured on one core (a step's own cost, then that of each call of the problem)."""

    a_list: tuple[float, float] = (30e-6, 0.45e-6)
    a_simulation: tuple[float, float] = (3e-6, 0.20e-6)
    hundred_moves: tuple[float, float] = (60e-6, 0.12e-6)
    a_timing: float = 0.05e-6
    """For each call that a move makes earlier or later."""
    a_full_timing: float = 0.05e-6
    """For each call, if a move times the whole plan again."""


WORK: Final = _Work()

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
    effort = _Effort(problem, budget)
    lists = _Lists(problem, best, effort, source_of(3 * budget.seed))
    of_sessions, of_moves = source_of(3 * budget.seed + 1), source_of(3 * budget.seed + 2)
    lists.first()
    few = 0 < len(problem.calls) <= MOST_CALLS
    with_sessions = len(problem.calls) <= MOST_FOR_SESSIONS and not (best.has_deadlines or problem.multi_model)
    while effort.has_more() and len(problem.calls):
        turn = effort.next_turn()
        lists.search(turn.until(LISTS_UNTIL if few else 1.0))
        if few and with_sessions:
            _sessions(problem, best, turn.until(SESSIONS_UNTIL), of_sessions)
        if few:
            _moves(problem, best, turn.until(1.0), of_moves)
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


# --- effort -----------------------------------------------------------------------------------------------------------


class _Effort:
    """The work done so far, the limits of the budget, and the turns."""

    def __init__(self, problem: Problem, budget: SearchBudget) -> None:
        self._budget = budget
        self.round_s = work_of_a_list(problem)
        self._limit_s = inf if budget.rounds is None else budget.rounds * self.round_s
        if budget.work_s is not None:
            work_s = min(budget.work_s, PLAIN_S) / PLAIN_SLOWER if INTERPRETED else budget.work_s
            self._limit_s = min(self._limit_s, work_s)
        self.done_s = 0.0
        self._turns = 0

    def has_more(self) -> bool:
        """Whether the budget allows another step."""
        if self._limit_s == inf and self._turns > UNLIMITED_TURNS:
            return False
        # Half a step of the smallest kind: sums of steps are not exact.
        return self.done_s < self._limit_s * (1 - 1e-9) and self._budget.keep_going()

    def did(self, seconds: float) -> None:
        """Count the work of a step."""
        self.done_s += seconds

    def next_turn(self) -> "_Turn":
        """Return the next turn."""
        size_s = FIRST_TURN * self.round_s * GROWTH**self._turns
        self._turns += 1
        return _Turn(self, size_s)


class _Turn:
    """One turn of the three searches."""

    def __init__(self, effort: _Effort, size_s: float) -> None:
        self._effort, self._size_s, self._began_s = effort, size_s, effort.done_s

    def until(self, part: float) -> "_Share":
        """Return the share of a search that ends when this part of the turn is done."""
        return _Share(self._effort, self._began_s + part * self._size_s)


class _Share:
    """What one of the searches may do in a turn."""

    def __init__(self, effort: _Effort, end_s: float) -> None:
        self.effort = effort
        self._end_s = end_s

    def steps(self) -> Iterator[float]:
        """Yield the progress of this search, 0 to 1, before each of its steps."""
        began_s = self.effort.done_s
        while self.effort.done_s < self._end_s and self.effort.has_more():
            yield (self.effort.done_s - began_s) / (self._end_s - began_s)


def work_of_a_list(problem: Problem) -> float:
    """Return the work of one list schedule of a problem: a round."""
    return WORK.a_list[0] + WORK.a_list[1] * len(problem.calls)


def _cooled(hot: float, steps: float, cold_steps: int = 64) -> float:
    """Cool from hot to a hundredth of it in steps of 7 %. Only products are used: they are the same on any machine."""
    for _ in range(int(min(steps, 1.0) * cold_steps)):
        hot *= 0.93
    return hot


# --- lists ------------------------------------------------------------------------------------------------------------


class _Lists:
    """The search over settings and priorities of the list scheduler; a turn goes on from the last one."""

    def __init__(self, problem: Problem, best: _Best, effort: _Effort, source: Any) -> None:
        self._problem, self._best, self._effort, self._source = problem, best, effort, source
        self._scheduler = ListScheduler(problem)
        self._node = _nodes(problem)
        self._requests, self._nodes = len(problem.requests.ids), int(self._node.max(initial=0)) + 1
        self._reach = 0.1 * problem.work_s / max(1, self._requests)
        self._current = (PORTFOLIO[0], np.zeros(self._requests), np.zeros(self._nodes))
        self._worth = Objective(np.inf, np.inf)

    def first(self) -> None:
        """Try the portfolio; one schedule is made even if there is no time."""
        for settings in PORTFOLIO:
            plan = self._try((settings, *self._current[1:]), 0.0)
            self._best.offer(timed(self._problem, plan.gpu, order_of(self._problem, plan)))
            if not self._effort.has_more():
                return

    def search(self, share: "_Share") -> None:
        """Try random settings first, then small changes of the best."""
        source, nodes, requests, reach = self._source, self._nodes, self._requests, self._reach
        for part in share.steps():
            settings, of_request, of_node = self._current
            if part < 0.3:
                settings = ListSettings(*[some[below(source, len(some))] for some in CHOICES.values()])
            elif below(source, 5) < 2:
                settings = _another(settings, source)
            elif below(source, 2) == 0:
                of_node = of_node.copy()
                of_node[below(source, nodes)] += _between(source) * reach
            else:
                of_request = of_request.copy()
                share_of = (50, 10, 3)[below(source, 3)]
                for _ in range(max(1, requests // share_of)):
                    of_request[below(source, requests)] += _between(source) * reach
            self._try((settings, of_request, of_node), _cooled(2e-3, part) * threshold_draw(source) * (part >= 0.3))

    def _try(self, candidate: tuple[ListSettings, Any, Any], slack: float) -> Plan:
        """Return the schedule, and go on from it unless it is longer by more than the fraction `slack`."""
        settings, of_request, of_node = candidate
        nudge = of_request[self._problem.calls.request] + of_node[self._node]
        plan = self._scheduler.plan(settings, nudge)
        said = self._best.offer(plan)
        self._effort.did(self._effort.round_s)
        allowed = self._worth.makespan_s * (1.0 + slack)
        if said.late < self._worth.late or (said.late == self._worth.late and said.makespan_s <= allowed):
            self._current, self._worth = candidate, said
        return plan


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


def _sessions(problem: Problem, best: _Best, share: _Share, source: Any) -> None:
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
    at_once = max(2, AT_ONCE // len(problem.calls))
    step_s = at_once * (WORK.a_simulation[0] + WORK.a_simulation[1] * len(problem.calls))

    def rearranged(count: int, rounds: int) -> int:
        return session_search.rearrange(
            sim, listed, trial, count, most, tie_break, 0.3 * float(rank.max()), rounds, SESSIONS, figures,
            best_start, best_gpu, source,
        )  # fmt: skip

    rearranged(count, 0)  # compiles even if there is no time, so that the next search does not wait
    for part in share.steps():
        if part > 0.3 and figures[session_search.BEST] > 1.02 * plan.makespan_s:
            return
        figures[session_search.TEMPERATURE] = _cooled(1e-3, part)
        count = rearranged(count, at_once)
        share.effort.did(step_s)
        if figures[session_search.BEST] < min(known, best.worth.makespan_s):
            known = figures[session_search.BEST]
            best.offer(Plan(best_gpu.copy(), best_start.copy(), best_start + seconds_on(problem, best_gpu)))


# --- moves ------------------------------------------------------------------------------------------------------------


def _moves(problem: Problem, best: _Best, share: _Share, source: Any) -> None:
    """Search from the best plan."""
    plan = best.plan
    buffer = make_buffer(problem, plan.gpu, order_of(problem, plan), source)
    moves.begin(buffer)
    moves.improve(buffer, 0, MOVES)  # compiles even if there is no time, so that the next search does not wait
    step_s = WORK.hundred_moves[0] + WORK.hundred_moves[1] * len(problem.calls)
    whole_s = WORK.a_full_timing * len(problem.calls) if problem.multi_model else 0.0
    timings = tried = 0
    for part in share.steps():
        buffer.figures[moves.TEMPERATURE] = _cooled(3e-5, part)
        if moves.improve(buffer, 100, MOVES):
            best.offer(timed(problem, buffer.best_gpu, buffer.best_order))
        share.effort.did(
            step_s
            + WORK.a_timing * int(buffer.counts[moves.TIMED] - timings)
            + whole_s * int(buffer.counts[moves.TRIED] - tried)
        )
        timings, tried = buffer.counts[moves.TIMED], buffer.counts[moves.TRIED]
