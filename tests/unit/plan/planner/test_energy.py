"""The energy of plans, and the choice of power levels."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.plan.planner.checker import check
from gpuyard.plan.planner.compiled.timing import order_of, timed
from gpuyard.plan.planner.energy import Power, Source, energy_kwh, power_of, with_power_levels
from gpuyard.plan.planner.generate import FAMILIES, generate
from gpuyard.plan.planner.instance import Instance, WrittenLevel, WrittenModelLevel
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import problem_of
from gpuyard.plan.planner.strategies import SearchBudget
from gpuyard.plan.planner.strategies.dynamic import dynamic
from tests.unit.plan.planner.problem_stories import problem
from tests.unit.plan.planner.small_problems import instance, plan

LEVELS = (WrittenLevel(1.0, 500.0), WrittenLevel(0.8, 300.0), WrittenLevel(0.5, 150.0))
KWH = 3.6e6


def with_levels(said: Instance, idle_watts: float = 100.0) -> Problem:
    for gpu in said.gpus:
        gpu.idle_watts, gpu.levels = idle_watts, LEVELS
    return problem_of(said)


def known(asked: Problem) -> Power:
    power = power_of(asked)
    assert power is not None
    return power


def test_all_gpus_draw_power_until_the_end_and_calls_draw_more() -> None:
    asked = with_levels(instance(("a", "A", 10.0, ""), ("b", "B2", 5.0, "a"), gpus=3))
    two_calls = plan((0, 3, 13), (1, 13, 18))
    assert energy_kwh(asked, two_calls, known(asked)) == pytest.approx((3 * 18 * 100 + 10 * 400 + 2 * 5 * 400) / KWH)
    slow = replace(plan((0, 3, 13), (1, 13, 23)), level=np.array([0, 2], dtype=np.int32))
    assert energy_kwh(asked, slow, known(asked)) == pytest.approx((3 * 23 * 100 + 10 * 400 + 2 * 10 * 50) / KWH)


def test_gpus_are_known_by_their_type_and_energy_is_omitted_if_one_is_not() -> None:
    said = instance(("a", "A", 10.0, ""), gpus=2)
    said.gpus[0].type = "NVIDIA H100 80GB HBM3"
    assert power_of(problem_of(said)) is None
    said.gpus[1].type = "A100"
    power = known(problem_of(said))
    assert power.source is Source.DATA_SHEETS
    assert power.watts[:, 0].tolist() == [700.0, 400.0]
    assert known(with_levels(said)).source is Source.FILE


def test_a_call_with_slack_runs_at_the_lowest_power_level() -> None:
    """b ends 6 s before a and c: it has time for the lowest level, and a and c have none."""
    asked = with_levels(instance(("a", "A", 10.0, ""), ("b", "B", 4.0, ""), ("c", "C", 2.0, "a")))
    first = plan((0, 3, 13), (1, 3, 7), (0, 17, 19))
    slow = with_power_levels(asked, first, known(asked))
    assert slow.level is not None
    assert slow.level.tolist() == [0, 2, 0]
    assert slow.makespan_s == 19.0
    assert check(asked, slow) == []


def test_slack_is_shared_because_the_first_step_down_saves_most() -> None:
    """4.5 s of slack are enough for one call at the lowest level, or for both at the middle one, which saves more."""
    asked = with_levels(instance(("a", "A", 8.0, ""), ("b", "A", 8.0, "a"), ("c", "B", 20.5, "")))
    slow = with_power_levels(asked, plan((0, 3, 11), (0, 11, 19), (1, 3, 23.5)), known(asked))
    assert slow.level is not None
    assert slow.level.tolist() == [1, 1, 0]


@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize("slower", [0.0, 0.05])
@pytest.mark.parametrize("family", FAMILIES)
def test_levels_save_energy_and_keep_every_rule_and_the_given_time(family: str, slower: float, preload: bool) -> None:
    asked = replace(with_levels(generate(family, 150, 4, seed=4, mixed=True)), preload=preload)
    first = dynamic(asked, SearchBudget())
    slow = with_power_levels(asked, first, known(asked), slower)
    assert check(asked, slow) == []
    assert slow.makespan_s <= first.makespan_s * (1 + slower) + 1e-9
    assert energy_kwh(asked, slow, known(asked)) <= energy_kwh(asked, first, known(asked))
    if slower:
        none_slower = with_power_levels(asked, first, known(asked))
        assert energy_kwh(asked, slow, known(asked)) <= energy_kwh(asked, none_slower, known(asked))


def test_more_time_is_not_used_if_idling_would_cost_more_than_is_saved() -> None:
    asked = with_levels(instance(("a", "A", 10.0, ""), gpus=2), idle_watts=149.0)
    asked = replace(asked, gpus=(asked.gpus[0], *(replace(asked.gpus[1], id=i) for i in range(1, 9))))
    first = plan((0, 3, 13))
    assert with_power_levels(asked, first, known(asked), 1.0) is first


def test_levels_are_near_the_optimum() -> None:
    """Every choice of levels for six calls, in the same order on the same GPUs."""
    asked = with_levels(instance(("a", "A", 7.0, ""), ("b", "B", 9.0, "a"), ("c", "A", 4.0, "a"), requests=2))
    first = dynamic(asked, SearchBudget())
    until, power = first.makespan_s * 1.1, known(asked)

    def at(levels: tuple[int, ...]) -> Plan:
        seconds = asked.calls.seconds / np.array([level.speed for level in LEVELS])[list(levels)]
        slow = timed(asked, first.gpu, order_of(asked, first), seconds)
        return replace(slow, level=np.array(levels, dtype=np.int32))

    plans = (at(levels) for levels in product(range(3), repeat=len(asked.calls)))
    best = min(energy_kwh(asked, slow, power) for slow in plans if slow.makespan_s <= until)
    whole = energy_kwh(asked, first, power)
    saved = whole - energy_kwh(asked, with_power_levels(asked, first, power, 0.1), power)
    assert saved >= 0.8 * (whole - best)


def test_a_model_has_its_own_speed_and_watts_at_the_levels_of_the_gpus() -> None:
    """A waits for memory: it hardly slows down at a lower clock. B keeps the figures of the GPUs."""
    said = instance(("a", "A", 10.0, ""), ("b", "B", 10.0, ""), gpus=2)
    said.models["A"].levels = (WrittenModelLevel(1.0, 250.0), WrittenModelLevel(0.95, 200.0))
    asked = with_levels(said)
    slow = replace(plan((0, 3, 3 + 10 / 0.95), (1, 3, 3 + 10 / 0.8)), level=np.array([1, 1], dtype=np.int32))
    assert check(asked, slow) == []
    end = 3 + 10 / 0.8
    joules = 2 * end * 100 + 10 / 0.95 * 100 + 10 / 0.8 * 200
    assert energy_kwh(asked, slow, known(asked)) == pytest.approx(joules / KWH)
    fast = plan((0, 3, 13), (1, 3, 13))
    assert energy_kwh(asked, fast, known(asked)) == pytest.approx((2 * 13 * 100 + 10 * 150 + 10 * 400) / KWH)
    wrong = replace(slow, end=np.array([3 + 10 / 0.8, 3 + 10 / 0.8]))
    assert check(asked, wrong) == ["r0/a takes 10.526316 s there, but is planned for 12.500000 s."]


def test_the_model_that_loses_least_is_slowed_down() -> None:
    said = instance(("a", "A", 10.0, ""), ("b", "B", 10.0, ""), gpus=2)
    said.models["A"].levels = (WrittenModelLevel(1.0, 500.0), WrittenModelLevel(0.97, 250.0))
    asked = with_levels(said)
    chosen = with_power_levels(asked, plan((0, 3, 13), (1, 3, 13)), known(asked), slower=0.05)
    assert chosen.level is not None
    assert chosen.level.tolist() == [1, 0]
    assert check(asked, chosen) == []


def test_the_watts_of_a_model_replace_those_of_the_data_sheet() -> None:
    said = instance(("a", "A", 10.0, ""), gpus=1)
    said.gpus[0].type = "H200"
    said.gpus[0].idle_watts = 100.0
    said.models["A"].levels = (WrittenModelLevel(1.0, 220.0),)
    asked = problem_of(said)
    assert energy_kwh(asked, plan((0, 3, 13)), known(asked)) == pytest.approx((13 * 100 + 10 * 120) / KWH)


@pytest.mark.parametrize(
    ("levels", "sentence"),
    [
        ([{"speed": 0.9, "watts": 100}], r"models\.A\.levels\[0\]\.speed: this is 0\.9; the first level is full speed"),
        ([{"speed": 1, "watts": 9}] * 2, r"models\.A\.levels: there are 2 power levels, and the GPUs have 1"),
    ],
)
def test_levels_of_a_model_that_no_gpu_can_have_are_refused(levels: list[object], sentence: str) -> None:
    with pytest.raises(WrongInput, match=sentence):
        problem([("a", "A", 1.0, [])], {"A": {"memory_gb": 1, "levels": levels}}, gpus=1)  # type: ignore[dict-item]
