"""Adapts plans of strategies that assume one model per GPU, loaded when it runs no call, to problems that allow more."""

from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem


def retimed(problem: Problem, plan: Plan) -> Plan:
    """Return the same assignment and order, timed with several resident models and preloading, as the problem allows.

    The plan itself if it allows neither.
    """
    if not problem.multi_model and not problem.preload:
        return plan
    from gpuyard.plan.planner.compiled.timing import order_of, timed

    return timed(problem, plan.gpu, order_of(problem, plan))
