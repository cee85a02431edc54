"""For any problem and any settings, the plan of the list scheduler is valid and deterministic."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.plan.planner.checker import check
from gpuyard.plan.planner.compiled.decoding import ListSettings
from gpuyard.plan.planner.compiled.list_scheduler import ListScheduler
from gpuyard.plan.planner.generate import FAMILIES, generate
from gpuyard.plan.planner.instance import Instance
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import problem_of

few = st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0, 8.0])
chosen_settings = st.builds(ListSettings, *[few] * 11, st.booleans())


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Every family and every option: memory, speeds, arrivals, deadlines, residents, GPUs that hold models and are busy."""
    said: Instance = generate(
        draw(st.sampled_from(list(FAMILIES))),
        draw(st.integers(1, 60)),
        draw(st.integers(1, 17)),
        seed=draw(st.integers(0, 9)),
        mixed=draw(st.booleans()),
        pcie_gb_s=draw(st.sampled_from([25.0, 1.0])),
    )
    said.multi_model, said.preload = draw(st.booleans()), draw(st.booleans())
    for gpu in said.gpus:
        gpu.speed = draw(st.sampled_from([1.0, 1.0, 0.5]))
    for request in said.requests:
        request.arrival_s = draw(st.sampled_from([0.0, 0.0, 7.0, 100.0]))
        request.priority = draw(st.sampled_from([50, 0, 100]))
        request.deadline_s = draw(st.sampled_from([np.inf, 20.0]))
    asked = problem_of(said)
    if draw(st.booleans()):
        return asked
    gpus = range(len(asked.gpus))
    return replace(
        asked,
        holding=np.array([draw(st.sampled_from([-1, *np.flatnonzero(asked.may_begin[:, g])])) for g in gpus], dtype=np.int32),
        busy_until_s=np.array([draw(st.sampled_from([0.0, 0.0, 5.0])) for _ in gpus]),
    )  # fmt: skip


@settings(max_examples=200, deadline=None)  # the first one compiles
@given(problems(), chosen_settings)
def test_every_plan_keeps_every_rule(asked: Problem, chosen: ListSettings) -> None:
    assert check(asked, ListScheduler(asked).plan(chosen)) == []


@settings(max_examples=40, deadline=None)
@given(problems(), chosen_settings)
def test_the_same_settings_make_the_same_plan(asked: Problem, chosen: ListSettings) -> None:
    one, other = (ListScheduler(asked).plan(chosen) for _ in range(2))
    assert np.array_equal(one.start, other.start)
    assert np.array_equal(one.gpu, other.gpu)
