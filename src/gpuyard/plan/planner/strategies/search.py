"""`search`: improves good plans as far as the time allows, usually close to the optimum.

There are three searches, each starting from the best plan so far:

    lists      which settings, which calls first?   changes the settings of the list scheduler and shifts the priority
               of requests and nodes; good for the overall structure and for large problems
    sessions   which GPU holds which model when?     changes the list of sessions (`compiled/session_search.py`); good
               if loading takes as long as calling. Abandoned early if it does not help
    moves      which call where, in which order?     changes the plan call by call and session by session, timing
               only what changes (`compiled/moves.py`); good for the last percent and for the tail

Each runs in *episodes*: annealing from a start, where worse plans are accepted at first, then less and less. The next
episode of a search is twice as long, up to a limit, beyond which another start gains more than a longer episode:

    lists      L   L L      L   L            goes on from its last schedule
    sessions    S     SS        SSSS         from the best schedule of a list, each time differently; or the best plan
    moves        M       MM         MMMM     from the best plan; or the last plan of sessions, if it is nearly as good
                                             work, not time ─►

The search with the least work behind it is next. Work in episodes without a better plan counts twice, four times and so
on, so searches that suit the problem get more of the time.

Nothing depends on the clock or on how much time there will be: the sequence is the same for every time limit, and a
limit says where it ends. More time continues the same sequence, and the best plan so far is never given up (any-time
search).

Work is counted in seconds of the core on which the steps were measured (`WORK`). If requests have deadlines, the plan
with the fewest late requests is best (weighted by priority: a request of priority 100 counts as two of priority 0); the
makespan breaks ties.

Good at any size up to a few hundred thousand calls; above that only lists are tried.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

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


@dataclass(frozen=True, slots=True)
class _Episodes:
    """The work of the episodes of a search, in rounds: of the first, and the most; each is twice as long as the last."""

    first: int
    most: int


LISTS: Final = _Episodes(32, 512)
OF_SESSIONS: Final = _Episodes(256, 1024)
OF_MOVES: Final = _Episodes(32, 512)
LEAST_WEIGHT: Final = 1 / 8
"""What a search gets at least, beside one that finds better plans."""
FROM_BEST: Final = 3
"""Of so many episodes of sessions, one starts from the best plan, the others from the best schedule of a list."""
WORTH_MOVES: Final = 1.03
"""A plan of sessions that is longer than the best by less than this is improved by moves."""
UNLIMITED_ROUNDS: Final = 12_000
"""The rounds if there is no limit at all."""
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
    """A list of sessions: the second for each call until the simulation ends."""
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


def improved(problem: Problem, budget: SearchBudget, known: list[Plan], *, at_least: int = 1) -> Plan:
    """Return a plan at least as good as any of the known plans, usually better.

    `at_least`: schedules of heft_affinity that are made even if that is more work than the budget allows.
    """
    best = _Best(problem, budget)
    for plan in known:
        best.offer(plan)
    effort = _Effort(problem, budget)
    lists = _Lists(problem, best, effort, source_of(3 * budget.seed))
    lists.first(1 if INTERPRETED else at_least)
    searches: list[_Search] = [lists]
    few = 0 < len(problem.calls) <= MOST_CALLS
    if few:
        others = _Others()
        if len(problem.calls) <= MOST_FOR_SESSIONS and not (best.has_deadlines or problem.multi_model):
            searches.append(_Sessions(problem, best, lists, others, effort, source_of(3 * budget.seed + 1)))
        searches.append(_Moves(problem, best, others, effort, source_of(3 * budget.seed + 2)))
    if len(problem.calls):
        _take_turns(searches, effort, best)
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
            offers = [(timely, objective(self._problem, timely))]
            if (plan.end > plan.start).all():  # otherwise only the starts of `timed` state the order of its calls
                offers.insert(0, (plan, said))
            better, worth = min(offers, key=lambda one: one[1])
            if worth < self.worth:
                self._plan, self.worth = better, worth
                self._budget.better(better)
        return said


# --- effort -----------------------------------------------------------------------------------------------------------


class _Effort:
    """The work done so far, and the limits of the budget."""

    def __init__(self, problem: Problem, budget: SearchBudget) -> None:
        self._budget = budget
        self.round_s = work_of_a_list(problem)
        limits_s = [] if budget.rounds is None else [budget.rounds * self.round_s]
        if budget.work_s is not None:
            limits_s.append(min(budget.work_s, PLAIN_S) / PLAIN_SLOWER if INTERPRETED else budget.work_s)
        self._limit_s = min(limits_s, default=UNLIMITED_ROUNDS * self.round_s)
        self.done_s = 0.0

    def has_more(self) -> bool:
        """Whether the budget allows another step."""
        # Half a step of the smallest kind: sums of steps are not exact.
        return self.done_s < self._limit_s * (1 - 1e-9) and self.has_time()

    def has_time(self) -> bool:
        """Whether the clock and the user allow another step."""
        return self._budget.keep_going()

    def did(self, seconds: float) -> None:
        """Count the work of a step."""
        self.done_s += seconds

    def steps(self, rounds: float) -> Iterator[float]:
        """Yield the progress of an episode of this many rounds, 0 to 1, before each of its steps."""
        began_s, size_s = self.done_s, rounds * self.round_s
        while self.done_s < began_s + size_s and self.has_more():
            yield (self.done_s - began_s) / size_s


class _Search(Protocol):
    """One of the three searches."""

    episodes: _Episodes

    def episode(self, rounds: int) -> bool:
        """Search for so many rounds, or until the budget ends; offer better plans. Return whether it paid."""


def _take_turns(searches: list[_Search], effort: _Effort, best: _Best) -> None:
    """Run an episode of the search with the least weighted work so far, until the budget ends (stride scheduling).

    A plan that takes no time is the best one; the costs of the searches are relative to the makespan.
    """
    passed, weight = [0.0] * len(searches), [1.0] * len(searches)
    rounds = [search.episodes.first for search in searches]
    while best.worth.makespan_s > 0 and effort.has_more():
        turn = passed.index(min(passed))
        began_s = effort.done_s
        weight[turn] = 1.0 if searches[turn].episode(rounds[turn]) else max(LEAST_WEIGHT, weight[turn] / 2)
        # At least a round, even if an episode ended at once.
        passed[turn] += max(effort.done_s - began_s, effort.round_s) / weight[turn]
        rounds[turn] = min(2 * rounds[turn], searches[turn].episodes.most)


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
        self._shortest: Plan | None = None
        self.episodes = LISTS

    @property
    def plan(self) -> Plan:
        """The shortest schedule so far. Valid only after `first`."""
        assert self._shortest is not None
        return self._shortest

    def first(self, at_least: int) -> None:
        """Try the portfolio; one schedule is made even if there is no time, and `at_least` if there is too little work."""
        for made, settings in enumerate(PORTFOLIO, start=1):
            plan = self._try((settings, *self._current[1:]), 0.0)
            self._best.offer(timed(self._problem, plan.gpu, order_of(self._problem, plan)))
            if not (self._effort.has_more() or (made < at_least and self._effort.has_time())):
                return

    def episode(self, rounds: int) -> bool:
        """Try random settings first, then small changes of the best; a better schedule is a better start for sessions."""
        before = self.plan.makespan_s
        source, nodes, requests, reach = self._source, self._nodes, self._requests, self._reach
        for part in self._effort.steps(rounds):
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
        return self.plan.makespan_s < before

    def _try(self, candidate: tuple[ListSettings, Any, Any], slack: float) -> Plan:
        """Return the schedule, and go on from it unless it is longer by more than the fraction `slack`."""
        settings, of_request, of_node = candidate
        nudge = of_request[self._problem.calls.request] + of_node[self._node]
        plan = self._scheduler.plan(settings, nudge)
        said = self._best.offer(plan)
        if self._shortest is None or plan.makespan_s < self._shortest.makespan_s:
            self._shortest = plan
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


class _Others:
    """The last plan that sessions made, if it is not the best: moves may still make it the best."""

    def __init__(self) -> None:
        self._plan: Plan | None = None

    def keep(self, plan: Plan) -> None:
        self._plan = plan

    def take(self, best: "_Best") -> Plan | None:
        """Return the plan, once, unless it is much longer than the best."""
        plan, self._plan = self._plan, None
        return plan if plan and best.worth.makespan_s < plan.makespan_s < WORTH_MOVES * best.worth.makespan_s else None


class _Sessions:
    """The search over lists of sessions.

    From the same start, several short episodes are better than a long one: which sessions there are is decided early,
    and differently each time. An episode from a plan of an earlier one hardly improves it.
    """

    def __init__(
        self, problem: Problem, best: _Best, lists: _Lists, others: _Others, effort: _Effort, source: Any
    ) -> None:
        self._problem, self._best, self._lists, self._others = problem, best, lists, others
        self._effort, self._source = effort, source
        self._rank = ListScheduler(problem).rank(1.0)
        self._count = 0
        self.episodes = OF_SESSIONS

    def episode(self, rounds: int) -> bool:
        """Search from the sessions of a plan; give up if 2 % longer than that after 30 % of the episode."""
        problem, best, rank = self._problem, self._best, self._rank
        before = best.worth
        self._count += 1
        plan = self._lists.plan if self._count % FROM_BEST else best.plan
        order = order_of(problem, plan)
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
        at_once = max(2, AT_ONCE // len(problem.calls))
        simulated = 0.0

        def found() -> Plan:
            return Plan(best_gpu.copy(), best_start.copy(), best_start + seconds_on(problem, best_gpu))

        for part in self._effort.steps(rounds):
            if part > 0.3 and figures[session_search.BEST] > 1.02 * plan.makespan_s:
                return False
            figures[session_search.TEMPERATURE] = _cooled(1e-3, part)
            count = session_search.rearrange(
                sim, listed, trial, count, most, tie_break, 0.3 * float(rank.max()), at_once, SESSIONS, figures,
                best_start, best_gpu, self._source,
            )  # fmt: skip
            self._effort.did(
                at_once * WORK.a_simulation[0]
                + WORK.a_simulation[1] * float(figures[session_search.SIMULATED] - simulated)
            )
            simulated = figures[session_search.SIMULATED]
            if figures[session_search.BEST] < best.worth.makespan_s:
                best.offer(found())
        self._others.keep(found())
        return best.worth < before


# --- moves ------------------------------------------------------------------------------------------------------------


class _Moves:
    """The search over single calls and sessions of a plan."""

    def __init__(self, problem: Problem, best: _Best, others: _Others, effort: _Effort, source: Any) -> None:
        self._problem, self._best, self._others, self._effort, self._source = problem, best, others, effort, source
        self.episodes = OF_MOVES

    def episode(self, rounds: int) -> bool:
        """Search from the last plan of sessions, if it is worth it, otherwise from the best plan."""
        problem, best = self._problem, self._best
        before = best.worth
        plan = self._others.take(best) or best.plan
        buffer = make_buffer(problem, plan.gpu, order_of(problem, plan), self._source)
        moves.begin(buffer)
        step_s = WORK.hundred_moves[0] + WORK.hundred_moves[1] * len(problem.calls)
        whole_s = WORK.a_full_timing * len(problem.calls) if problem.multi_model else 0.0
        timings = tried = 0
        for part in self._effort.steps(rounds):
            buffer.figures[moves.TEMPERATURE] = _cooled(3e-5, part)
            if moves.improve(buffer, 100, MOVES):
                best.offer(timed(problem, buffer.best_gpu, buffer.best_order))
            self._effort.did(
                step_s
                + WORK.a_timing * int(buffer.counts[moves.TIMED] - timings)
                + whole_s * int(buffer.counts[moves.TRIED] - tried)
            )
            timings, tried = buffer.counts[moves.TIMED], buffer.counts[moves.TRIED]
        return best.worth < before
