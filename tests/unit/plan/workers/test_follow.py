"""A plan is followed on worker processes with virtual models, a hundred times as fast."""

import os
import signal

from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.strategies import SearchBudget, strategy
from gpuyard.plan.workers.follow import FollowOptions, FollowResult, OwnGpus, follow
from gpuyard.plan.workers.local import LocalPool
from gpuyard.plan.workers.settings import all_virtual
from tests.unit.plan.planner.problem_stories import problem

SIX = problem(
    [(f"n{number}", "m", 10.0, []) for number in range(6)], {"m": {"memory_gb": 1, "load_time_s": 5.0}}, gpus=2
)


def dynamic(it: Problem) -> Plan:
    return strategy("dynamic")(it, SearchBudget())


def test_a_failed_replanning_does_not_lose_the_work() -> None:
    pool = LocalPool(["0", "1"])
    killed: list[int] = []

    def kill_one(state: FollowResult) -> None:
        if state.executor.done >= 1 and not killed and (pid := pool.pid(1)) is not None:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    def broken(_rest: Problem) -> Plan:
        raise ZeroDivisionError("a bug in a strategy")

    try:
        followed = follow(
            FollowOptions(SIX, dynamic(SIX), all_virtual(SIX), pool, OwnGpus(2), broken, speed_up=50.0, watch=kill_one)
        )
    finally:
        pool.close()
    assert followed.executor.done == 6
    assert followed.executor.counts.lost == 1
    assert "the remaining calls could not be planned again: ZeroDivisionError: a bug in a strategy" in followed.losses
    assert "the worker of GPU 1 ended with signal 9" in followed.losses


def test_an_interrupted_plan_stops_where_it_is() -> None:
    pool = LocalPool(["0", "1"])
    seen: list[int] = []
    following = FollowOptions(
        SIX,
        dynamic(SIX),
        all_virtual(SIX),
        pool,
        OwnGpus(2),
        dynamic,
        speed_up=50.0,
        watch=lambda state: seen.append(state.executor.done),
        ended=lambda: max(seen, default=0) >= 2,
    )
    try:
        followed = follow(following)
    finally:
        pool.close()
    assert followed.ended
    assert 2 <= followed.executor.done < 6
