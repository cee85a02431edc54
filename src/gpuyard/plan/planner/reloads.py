"""A lower bound on the reloads of models if there are more models than GPUs, derived from caching.

At any instant G GPUs hold at most G models. A request goes through its graph in order, and each call needs its model on
some GPU. So, whatever the times, the loads of a plan are those of a cache with G places that serves every workflow to
its end, all of them at once:

    GPUs hold {a, b}      w0: a b [c] a …      w1: b a b [d] …          All are blocked: load c or d, and drop a or b?

Every call that can run with the held models runs at once, since that only helps. What remains is the choice of loads
and drops; the cheapest choice is a shortest path (A*; the heuristic counts every needed model that is not held once).
If the search takes too long, the smallest open estimate is also a bound, and so is the bound of a few of the workflows.

A model that spans several GPUs counts as one place here, which underestimates; when it is reloaded, all its GPUs load,
which is exact.
"""

from heapq import heappop, heappush
from typing import Final

from gpuyard.plan.planner.problem import Problem

MOST_STATES: Final = 4_000
MOST_WORKFLOWS: Final = 12
FEW_WORKFLOWS: Final = 3
LARGEST_WORKFLOW: Final = 200

CallGraph = tuple[tuple[int, ...], tuple[int, ...]]
"""The models of the nodes, and the nodes before each as a bit set."""


def reload_seconds(problem: Problem, cost: list[float], *, most_states: int = MOST_STATES) -> float:
    """Return the least GPU-seconds of loading beyond one load of every model, at `cost` for each model."""
    places = len(problem.gpus)
    graphs = _graphs(problem)
    used = {model for models, _ in graphs for model in models}
    if problem.multi_model or problem.holding is not None or len(used) <= places:
        return 0.0
    once = sum(cost[model] for model in used)
    few = graphs[:FEW_WORKFLOWS]
    missed = sum(cost[model] for model in used - {model for models, _ in few for model in models})
    return (
        max(_least_cost(graphs, cost, places, most_states), _least_cost(few, cost, places, most_states) + missed) - once
    )


def _graphs(problem: Problem) -> list[CallGraph]:
    """Return the graphs of the requested workflows, largest first, without duplicates and very large ones."""
    if len(problem.calls) != sum(len(problem.workflows[w].nodes) for w in problem.requests.workflow.tolist()):
        return []  # the remainder of a plan: requests are partly done
    found = {
        (workflow.models, tuple(sum(1 << other for other in before) for before in workflow.before))
        for workflow in (problem.workflows[w] for w in sorted(set(problem.requests.workflow.tolist())))
        if len(workflow.nodes) <= LARGEST_WORKFLOW
    }
    return sorted(found, key=lambda graph: (-len(graph[0]), graph))[:MOST_WORKFLOWS]


def _least_cost(graphs: list[CallGraph], cost: list[float], places: int, most_states: int) -> float:
    """Return the least cost of loads that complete every graph (A*), or a bound on it after `most_states` states."""
    served = _Served(graphs, cost)
    done, ready, rest = served.go_on((0,) * len(graphs), 0)
    waiting: list[tuple[float, int, float, tuple[int, ...], int, int]] = [(rest, 0, 0.0, done, 0, ready)]
    paid_for: dict[tuple[tuple[int, ...], int], float] = {}
    while waiting:
        least, _, paid, done, held, ready = heappop(waiting)
        if not ready or len(paid_for) >= most_states:
            return least
        if paid_for.get((done, held), float("inf")) <= paid:
            continue
        paid_for[done, held] = paid
        for model in _bits(ready):
            for dropped in _bits(held) if held.bit_count() >= places else [None]:
                then = (held if dropped is None else held ^ 1 << dropped) | 1 << model
                after, runnable, rest = served.go_on(done, then)
                so_far = paid + cost[model]
                if paid_for.get((after, then), float("inf")) > so_far:
                    far = sum(nodes.bit_count() for nodes in after)
                    heappush(waiting, (so_far + rest, -far, so_far, after, then, runnable))
    return 0.0


class _Served:
    """Runs every node that can run with the held models; caches the results."""

    def __init__(self, graphs: list[CallGraph], cost: list[float]) -> None:
        self._graphs, self._cost = graphs, cost
        self._known: list[dict[tuple[int, int], tuple[int, int, int]]] = [{} for _ in graphs]
        self._sums: dict[int, float] = {}

    def go_on(self, done: tuple[int, ...], held: int) -> tuple[tuple[int, ...], int, float]:
        """Return the nodes done then, the models that unblocked nodes wait for, and the cost of all missing models."""
        then, ready, needed = [], 0, 0
        for graph, nodes in enumerate(done):
            known = self._known[graph]
            found = known.get((nodes, held))
            if found is None:
                found = known[nodes, held] = self._run(graph, nodes, held)
            then.append(found[0])
            ready |= found[1]
            needed |= found[2]
        missing = needed & ~held
        if missing not in self._sums:
            self._sums[missing] = sum(self._cost[model] for model in _bits(missing))
        return tuple(then), ready, self._sums[missing]

    def _run(self, graph: int, done: int, held: int) -> tuple[int, int, int]:
        models, before = self._graphs[graph]
        ready = needed = 0
        while True:
            ran = 0
            for node, model in enumerate(models):
                if held >> model & 1 and not done >> node & 1 and not before[node] & ~done:
                    ran |= 1 << node
            if not ran:
                break
            done |= ran
        for node, model in enumerate(models):
            if not done >> node & 1:
                needed |= 1 << model
                ready |= 0 if before[node] & ~done else 1 << model
        return done, ready, needed


def _bits(number: int) -> list[int]:
    return [place for place in range(number.bit_length()) if number >> place & 1]
