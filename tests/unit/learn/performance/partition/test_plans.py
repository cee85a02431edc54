"""Stages and replicas: the cuts are optimal, and the times follow the formulas of the module."""

from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance import gpu_specs as table
from gpuyard.learn.performance.operation_profile import OperationProfile
from gpuyard.learn.performance.partition.counts import Counts, ModelPart, ModelUnit, parts
from gpuyard.learn.performance.partition.plans import Cost, PartitionPlan, Setting, best_cuts, omitted_ways, plans

GPU = replace(table.shipped().find("H100"), memory_gb=100.0, mem_bw_gbs=1e6, nvlink_gbs=2e9)
"""A link so fast that it costs nothing but its beginning."""
BATCH = 8


def chain(blocks: list[float], *, crossing: float = 0.0, owned: float = 0.0) -> list[ModelPart]:
    """Blocks of one operation each, with so many FLOPs for the whole batch."""
    return [
        ModelPart(
            f"b{number}",
            OperationProfile.of([("matmul", 1, flops / BATCH, 0, 0)], parameters=owned),
            0.0,
            crossing / BATCH,
        )
        for number, flops in enumerate(blocks)
    ]


def exactly(steps: Sequence[tuple[OperationProfile, int]]) -> list[float]:
    """A second for each operation."""
    return [float(made.groups[:, 2].sum()) * samples for made, samples in steps]


def with_a_start(steps: Sequence[tuple[OperationProfile, int]]) -> list[float]:
    """A second for each operation, and ten for each step."""
    return [10.0 + seconds for seconds in exactly(steps)]


def by_stages(model: list[ModelPart], gpus: int, stages: int, cost: Cost = exactly, **setting: object) -> PartitionPlan:
    found = plans(model, BATCH, cost, Setting(GPU, gpus, precision="fp32", **setting))  # type: ignore[arg-type]
    return next(plan for plan in found if len(plan.stages) == stages)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine draws slowly
@given(st.lists(st.tuples(st.floats(0.1, 9), st.floats(0, 3)), min_size=1, max_size=7), st.integers(1, 7))
def test_no_other_cuts_have_a_faster_slowest_stage(drawn: list[tuple[float, float]], most: int) -> None:
    times, stages = [time for time, _ in drawn], min(most, len(drawn))
    sends = [0.0, *(send for _, send in drawn)]
    sums = [sum(times[:place]) for place in range(len(times) + 1)]

    def slowest(cuts: tuple[int, ...]) -> float:
        return max(sums[last] - sums[first] + sends[first] for first, last in pairwise(cuts))

    chosen = tuple(best_cuts(sums, sends, stages))
    every = [(0, *inner, len(times)) for inner in combinations(range(1, len(times)), stages - 1)]
    assert chosen in every
    assert slowest(chosen) == pytest.approx(min(map(slowest, every)))


@pytest.mark.parametrize(("micro", "speedup"), [(1, 1.0), (2, 1.6), (4, 16 / 7), (8, 32 / 11)])
def test_a_pipeline_of_equal_stages_loses_the_time_to_fill_it(micro: int, speedup: float) -> None:
    plan = by_stages(chain([100.0] * 8), 4, 4, micro_batches=micro)
    assert [(stage.first, stage.last) for stage in plan.stages] == [
        ("b0", "b1"),
        ("b2", "b3"),
        ("b4", "b5"),
        ("b6", "b7"),
    ]
    assert plan.speedup == pytest.approx(speedup, rel=1e-4)
    assert plan.bubble == pytest.approx(1 - micro / (micro + 3), rel=1e-3)


def test_stages_are_balanced_by_time_and_not_by_number() -> None:
    plan = by_stages(chain([500.0, 100, 100, 100, 100, 100]), 2, 2)
    assert (plan.stages[0].last, plan.stages[1].first) == ("b0", "b1")


def test_replicas_divide_the_batch_and_wait_for_gradients_that_are_large() -> None:
    small = by_stages(chain([100.0] * 4), 4, 1)
    assert (small.replicas, small.micro_batches) == (4, 1)
    assert small.speedup == pytest.approx(4.0, rel=1e-3)
    large = by_stages(chain([1e-3] * 4, owned=1e9), 4, 1, link_gbs=1.0)
    assert large.seconds == pytest.approx(2 * 3 / 4 * 4e9 / 0.8e9, rel=0.01)  # a ring of four, over a link of 0.8 GB/s
    assert large.communication > 0.9
    assert large.speedup < 1


def test_traffic_across_a_cut_is_sent_in_both_directions() -> None:
    thin, wide = chain([100.0] * 4), chain([100.0] * 4, crossing=80e18)
    for counts, extra in ((thin, 0.0), (wide, 2 * 100.0)):
        plan = by_stages(counts, 2, 2, micro_batches=1)
        assert plan.seconds - 400 == pytest.approx(extra, abs=0.01)


def test_a_model_that_fits_on_no_single_gpu_is_split_into_stages_first() -> None:
    found = plans(chain([100.0] * 4, owned=10e9), BATCH, exactly, Setting(GPU, 4))
    assert [(len(plan.stages), plan.fits) for plan in found] == [(2, True), (4, True), (1, False)]


def test_training_holds_gradients_and_both_moments_of_each_parameter() -> None:
    training, inference = (by_stages(chain([100.0] * 4, owned=1e9), 1, 1, training=kind) for kind in (True, False))
    assert training.memory_bytes - inference.memory_bytes == pytest.approx(12e9)


def test_the_optimizer_runs_once_however_many_micro_batches_there_are() -> None:
    model, update = chain([100.0] * 4, owned=1e15 / 7), 1.0  # of a GPU that moves 1e15 bytes a second
    once, often = (by_stages(model, 1, 1, micro_batches=number) for number in (1, 8))
    assert once.seconds == pytest.approx(400.0)
    assert often.seconds == pytest.approx(400.0 - 4 * update + 4 * update)
    assert by_stages(chain([100.0] * 4), 1, 1, micro_batches=8).seconds == pytest.approx(400.0)


def test_the_fixed_cost_of_a_step_makes_many_micro_batches_expensive() -> None:
    few, many = (by_stages(chain([100.0] * 8), 2, 2, with_a_start, micro_batches=number) for number in (2, 8))
    assert few.seconds == pytest.approx(3 * (200 + 10), rel=1e-4)
    assert many.seconds == pytest.approx(9 * (50 + 10), rel=1e-4)


def test_stages_are_balanced_by_their_own_prediction_and_not_by_the_sum_of_their_units() -> None:
    def mixed(steps: Sequence[tuple[OperationProfile, int]]) -> list[float]:
        """A stage with a block of 100 takes three times as long as its blocks do alone."""
        small = [bool((made.groups[:, 2] == 100 / BATCH).any()) and len(made.groups) > 1 for made, _ in steps]
        return [seconds * (3 if slow else 1) for slow, seconds in zip(small, exactly(steps), strict=True)]

    plan = by_stages(chain([100.0, *[101.0] * 5]), 2, 2, mixed, micro_batches=1)
    assert [(stage.first, stage.last) for stage in plan.stages] == [("b0", "b1"), ("b2", "b5")]


def test_a_batch_that_cannot_be_divided_has_no_plan() -> None:
    assert plans(chain([1.0]), 3, exactly, Setting(GPU, 2)) == []
    assert plans(chain([1.0, 1.0]), 8, exactly, Setting(GPU, 2, micro_batches=3)) == []


def test_sixteen_bit_traffic_halves_and_weights_shrink_without_autocast() -> None:
    model = chain([1.0, 1.0], crossing=64.0, owned=8e9)

    def told(precision: str) -> tuple[float, float]:
        plan = next(
            p
            for p in plans(model, BATCH, exactly, Setting(GPU, 2, precision=precision, micro_batches=1))
            if len(p.stages) == 2
        )
        return plan.stages[1].crossing_bytes, plan.stages[1].parameter_bytes

    assert (told("fp32"), told("amp"), told("bf16")) == ((64.0, 8e9), (32.0, 8e9), (32.0, 4e9))


def test_memory_that_grows_with_the_batch_is_distinguished_from_the_rest() -> None:
    def counts(batch: int) -> Counts:
        return Counts(
            (ModelUnit("a", (("matmul", 1, 10.0 * batch, 4.0 * batch + 100),), 6.0 * batch, 50, 3.0 * batch + 7),)
        )

    (part,) = parts(counts(4), counts(8), 4, 8)
    assert part.profile.groups.tolist() == [[0, 1, 10, 4, 100]]
    assert (part.profile.kept_bytes, part.profile.parameter_bytes, part.crossing(100)) == (6, 50, 307)
    with pytest.raises(WrongInput, match="runs other operations for a batch of 8 than for 4"):
        parts(counts(4), Counts(()), 4, 8)


def test_ways_that_are_not_possible_are_named_with_the_reason() -> None:
    assert omitted_ways(8, 8, Setting(GPU, 4)) == []
    assert omitted_ways(2, 8, Setting(GPU, 3)) == [
        "3 × 1 stage: 3 replicas do not divide a batch of 8",
        "1 × 3 stages: the model has 2 parts",
    ]
    assert omitted_ways(2, 8, Setting(GPU, 2, micro_batches=8)) == [
        "2 × 1 stage: 8 micro-batches do not divide the 4 samples of a replica"
    ]
