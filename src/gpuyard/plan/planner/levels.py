"""The topological level of each call: 0 without dependencies, else one more than the highest level among them."""

import numpy as np

from gpuyard.plan.planner.problem import Ints, Problem, Workflow


def levels(problem: Problem) -> Ints:
    """Return the level of every call; each workflow is computed once."""
    return per_call(problem, [levels_of(workflow) for workflow in problem.workflows])


def per_call(problem: Problem, of_nodes: list[Ints]) -> Ints:
    """Return for each call the entry of its node, given those of the nodes of each workflow."""
    begins = np.cumsum([0, *map(len, of_nodes)])[problem.requests.workflow]
    found: Ints = np.concatenate([np.zeros(0, dtype=np.int32), *of_nodes])[
        begins[problem.calls.request] + problem.calls.position
    ]
    return found


def levels_of(workflow: Workflow) -> Ints:
    """Return the level of every node (Kahn's algorithm)."""
    level = np.zeros(len(workflow.nodes), dtype=np.int32)
    waits = [len(before) for before in workflow.before]
    after: list[list[int]] = [[] for _ in workflow.nodes]
    for node, before in enumerate(workflow.before):
        for earlier in before:
            after[earlier].append(node)
    ready = [node for node, count in enumerate(waits) if not count]
    for node in ready:
        for later in after[node]:
            level[later] = max(level[later], level[node] + 1)
            waits[later] -= 1
            if not waits[later]:
                ready.append(later)
    return level
