"""The topological level of each call: 0 where nothing has to end before, else one more than the highest of those."""

import numpy as np

from gpuyard.plan.planner.problem import Ints, Problem, Workflow


def levels(problem: Problem) -> Ints:
    """Of all calls; each workflow is looked at once."""
    of_nodes = [_levels(workflow) for workflow in problem.workflows]
    begins = np.cumsum([0, *map(len, of_nodes)])[problem.requests.workflow]
    found: Ints = np.concatenate([np.zeros(0, dtype=np.int32), *of_nodes])[
        begins[problem.calls.request] + problem.calls.position
    ]
    return found


def _levels(workflow: Workflow) -> Ints:
    """By Kahn: whoever waits for nobody any more is next."""
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
