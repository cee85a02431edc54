"""An assignment and an order become a plan that begins everything as early as the rules allow."""

from dataclasses import replace

import numpy as np

from gpuyard.plan.planner.compiled.timing import order_of, switching, timed
from gpuyard.plan.planner.plan import Plan
from tests.unit.plan.planner.problem_stories import Node, ints, problem

SMALL = {"memory_gb": 1, "load_time_s": 10}
OTHER = {"memory_gb": 2, "load_time_s": 20}


def starts(plan: Plan) -> list[float]:
    return [float(s) for s in plan.start]


def test_the_first_load_is_paid_and_the_same_model_stays() -> None:
    p = problem([("a", "m", 3, []), ("b", "m", 4, [])], {"m": SMALL}, gpus=1)
    plan = timed(p, ints(0, 0), ints(1, 0))
    assert starts(plan) == [14, 10]
    assert plan.makespan_s == 17


def test_a_switch_pays_the_unload_of_the_old_and_the_load_of_the_new_model() -> None:
    p = problem([("a", "m", 3, []), ("b", "n", 4, [])], {"m": SMALL, "n": OTHER}, gpus=1)
    assert starts(timed(p, ints(0, 0), ints(0, 1))) == [10, 10 + 3 + 1 + 20]


def test_a_switch_runs_while_the_call_waits_for_its_dependencies() -> None:
    p = problem([("a", "m", 50, []), ("b", "n", 4, ["a"])], {"m": SMALL, "n": OTHER}, gpus=2)
    assert starts(timed(p, ints(0, 1), ints(0, 1))) == [10, 60]


def test_a_group_starts_together_when_its_slowest_gpu_is_ready() -> None:
    models = {"m": SMALL, "pair": OTHER | {"gpus": 2}}
    p = problem([("a", "m", 3, []), ("b", "pair", 4, []), ("c", "m", 1, [])], models, gpus=2)
    assert starts(timed(p, ints(1, 0, 0), ints(0, 1, 2))) == [10, 34, 34 + 4 + 2 + 10]


def test_slow_gpus_take_longer_and_later_requests_begin_later() -> None:
    p = problem(
        [("a", "m", 3, [])],
        {"m": SMALL},
        gpus=[{"speed": 0.5}],
        requests=[{"id": "r", "workflow": "w", "arrival_s": 25.0}],
    )
    plan = timed(p, ints(0), ints(0))
    assert (starts(plan), plan.makespan_s) == ([25], 31)


def test_residents_stay_while_memory_lasts_and_the_least_recently_used_goes_first() -> None:
    models = {name: {"memory_gb": 4, "load_time_s": 10} for name in "xyz"}
    nodes: list[Node] = [
        ("a", "x", 1, []),
        ("b", "y", 1, []),
        ("c", "x", 1, []),
        ("d", "z", 1, []),
        ("e", "x", 1, []),
        ("f", "y", 1, []),
    ]
    p = problem(nodes, models, gpus=[{"memory_gb": 8}], multi_model=True)
    plan = timed(p, ints(0, 0, 0, 0, 0, 0), ints(0, 1, 2, 3, 4, 5))
    assert starts(plan) == [10, 21, 22, 37, 38, 53]


def test_calls_that_begin_together_are_ordered_by_their_dependencies() -> None:
    p = problem([("late", "m", 0, ["soon"]), ("soon", "m", 0, [])], {"m": SMALL}, gpus=1)
    plan = timed(p, ints(0, 0), ints(1, 0))
    assert starts(plan) == [10, 10]
    assert list(order_of(p, plan)) == [1, 0]


def test_initially_loaded_models_are_not_loaded_and_busy_gpus_are_waited_for() -> None:
    p = problem([("a", "m", 3, []), ("b", "n", 4, [])], {"m": SMALL, "n": OTHER}, gpus=2)
    later = replace(p, holding=ints(0, 0), busy_until_s=np.array([5.0, 7.0]))
    assert starts(timed(later, ints(0, 1), ints(0, 1))) == [5, 7 + 1 + 20]


def test_timing_uses_one_number_type_however_sizes_were_written() -> None:
    """Code is compiled again for every combination of types: whole numbers must not lead to another one."""
    small = problem([("a", "m", 3, [])], {"m": SMALL}, gpus=1)
    whole, real = (
        replace(small, models=tuple(replace(m, memory_gb=kind(1), unload_s=kind(1)) for m in small.models))
        for kind in (int, float)
    )
    assert [part.dtype for part in switching(whole)[:-1]] == [part.dtype for part in switching(real)[:-1]]
