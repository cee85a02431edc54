"""The rest of a plan is a problem again, and the better of a new plan and the old one is followed."""

import numpy as np
import pytest

from gpuyard.plan.executor.executor import Executor, Rules
from gpuyard.plan.executor.work import RemainingWork
from gpuyard.plan.planner.checker import check
from gpuyard.plan.planner.compiled.timing import timed
from gpuyard.plan.planner.generate import generate
from gpuyard.plan.planner.instance import write_instance
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import read_problem
from gpuyard.plan.planner.strategies import SearchBudget, strategy
from gpuyard.plan.workers.plans import assignment_of, remaining_problem, replanner, work_of
from gpuyard.testing.rehearsal import rehearse
from tests.unit.plan.planner.problem_stories import ints, problem

FAMILIES = ("agentic", "multi_gpu", "switch_heavy")


def drawn(family: str) -> Problem:
    return read_problem(write_instance(generate(family, 200, 4, seed=5)))


def planned(it: Problem) -> Plan:
    return strategy("heft_affinity")(it, SearchBudget(rounds=4))


def test_the_remaining_work_begins_with_busy_gpus_that_hold_models_and_without_lost_ones() -> None:
    p = problem(
        [("a", "m", 3, []), ("b", "m", 4, ["a"]), ("c", "n", 5, ["a", "b"])],
        {"m": {"memory_gb": 1}, "n": {"memory_gb": 2}},
        gpus=3,
    )
    left = RemainingWork(
        now_s=10.0,
        call=[1, 2],
        seconds=[4.5, 5.5],
        earliest_s=[12.0, 0.0],
        gpu=[0, -1],
        order=[0, 1],
        usable=[True, False, True],
        holds=[0, -1, 1],
        busy_until_s=[12.0, 10.0, 10.0],
    )
    rest = remaining_problem(p, left)
    assert rest.calls.seconds.tolist() == [4.5, 5.5]
    assert rest.calls.earliest_s.tolist() == [2.0, 0.0]
    assert rest.calls.before.tolist() == [0]
    assert rest.calls.after.tolist() == [1]
    assert rest.may_begin[0].tolist() == [True, False, True]
    assert timed(rest, ints(0, 2), ints(0, 1)).start.tolist() == [2.0, 6.5]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plan_that_is_met_takes_the_planned_time(family: str) -> None:
    it = drawn(family)
    plan = planned(it)
    executor = Executor(work_of(it), assignment_of(it, plan), Rules(steals=False, replans=False))
    assert rehearse(executor) <= plan.makespan_s * 1.001


@pytest.mark.parametrize("family", FAMILIES)
def test_every_plan_of_the_remaining_work_keeps_the_rules(family: str) -> None:
    it = drawn(family)
    seen: list[list[str]] = []

    def again(rest: Problem) -> Plan:
        plan = planned(rest)
        seen.append(check(rest, plan))
        return plan

    executor = Executor(work_of(it), assignment_of(it, planned(it)))
    rehearse(executor, seconds=lambda call: call.seconds * (0.7 if call.call % 2 else 1.3), plan=replanner(it, again))
    assert executor.is_over
    assert len(seen) > 3
    assert all(not faults for faults in seen)


def test_a_new_plan_that_is_not_shorter_is_not_followed() -> None:
    it = drawn("agentic")
    plan = planned(it)
    executor = Executor(work_of(it), assignment_of(it, plan))

    def worse(rest: Problem) -> Plan:
        gpu = np.zeros(len(rest.calls), dtype=np.int32)
        return timed(rest, gpu, np.argsort(rest.calls.position, kind="stable").astype(np.int32))

    rehearse(executor, seconds=lambda call: call.seconds * 1.5, plan=replanner(it, worse))
    assert executor.counts.replanned == 0
