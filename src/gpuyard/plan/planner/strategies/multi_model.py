"""Adapts plans of strategies that assume one model per GPU to problems where GPUs hold several."""

from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem


def retimed(problem: Problem, plan: Plan) -> Plan:
    """Return the same assignment and order, timed with several resident models; the plan itself if GPUs hold one."""
    if not problem.multi_model:
        return plan
    from gpuyard.plan.planner.compiled.timing import order_of, timed

    return timed(problem, plan.gpu, order_of(problem, plan))
