"""Plans of strategies that think of one model on a GPU, where GPUs may keep several."""

from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem


def by_the_rules(problem: Problem, plan: Plan) -> Plan:
    """The same assignment and order, timed by what GPUs really hold; the plan itself where that is one model."""
    if not problem.many_residents:
        return plan
    from gpuyard.plan.planner.compiled.timing import order_of, timed

    return timed(problem, plan.gpu, order_of(problem, plan))
