"""Stages and replicas: cuts are the best there are, and times are what the head of the file says."""

from itertools import combinations, pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.analysis.splitting.counts import Counts, in_half
from gpuyard.analysis.splitting.partition import Plan, Setting, best_cuts, plans
from gpuyard.analysis.splitting.roofline import GPUS, LAUNCH_SECONDS, Gpu, gpu_named, roofline
from gpuyard.domain.errors import WrongInput

GPU = Gpu("G", 1, 1, 1, 100, 1e6, 1e9)
"""A link so fast that it costs nothing but its beginning."""


def chain(blocks: list[float], *, batch: int = 8, crossing: float = 0.0, owned: float = 0.0) -> Counts:
    """Blocks of one operation each, with so many FLOPs."""
    nothing = [0.0] * len(blocks)
    names = [f"b{number}" for number in range(len(blocks))]
    return Counts("m", batch, names, blocks, nothing, nothing, [crossing] * len(blocks), nothing, [owned] * len(blocks))


def exactly(flops: float, _: float) -> float:
    return flops


def by_stages(counts: Counts, gpus: int, stages: int, **setting: object) -> Plan:
    found = plans(counts, exactly, Setting(GPU, gpus, **setting))  # type: ignore[arg-type]
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
def test_a_line_of_equal_stages_loses_what_it_takes_to_fill_it(micro: int, speedup: float) -> None:
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


def test_what_crosses_a_cut_is_sent_there_and_back() -> None:
    thin, wide = chain([100.0] * 4), chain([100.0] * 4, crossing=80e18)
    for counts, extra in ((thin, 0.0), (wide, 2 * 100.0)):
        plan = by_stages(counts, 2, 2, micro_batches=1)
        assert plan.seconds - 3 * 400 == pytest.approx(extra, abs=0.01)


def test_a_model_that_fits_on_no_gpu_alone_is_divided_into_stages_first() -> None:
    found = plans(chain([100.0] * 4, owned=10e9), exactly, Setting(GPU, 4))
    assert [(len(plan.stages), plan.fits) for plan in found] == [(2, True), (4, True), (1, False)]


def test_in_inference_nothing_runs_backward_and_nothing_is_kept() -> None:
    training, inference = (by_stages(chain([100.0] * 4, owned=1e9), 1, 1, training=kind) for kind in (True, False))
    assert inference.seconds == pytest.approx(400)
    assert training.seconds == pytest.approx(1200, rel=1e-3)
    assert inference.memory_bytes == pytest.approx(5e9)
    assert training.memory_bytes == pytest.approx(17e9)


def test_a_batch_that_can_not_be_divided_has_no_plan() -> None:
    assert plans(chain([1.0], batch=3), exactly, Setting(GPU, 2)) == []
    assert plans(chain([1.0, 1.0], batch=8), exactly, Setting(GPU, 2, micro_batches=3)) == []


def test_the_roofline_is_arithmetic_or_memory_whichever_takes_longer() -> None:
    cost = roofline(GPUS["A100"], "bf16")
    assert cost(312e12 * 0.6, 0) == pytest.approx(1 + LAUNCH_SECONDS)
    assert cost(0, 2039e9 * 0.8) == pytest.approx(1 + LAUNCH_SECONDS)
    assert roofline(GPUS["A100"], "fp32")(19.5e12 * 0.6, 0) == pytest.approx(1 + LAUNCH_SECONDS)


def test_half_of_the_bytes_move_in_sixteen_bits() -> None:
    halved = in_half(chain([1.0], crossing=8.0, owned=4.0))
    assert (halved.crossing_bytes, halved.owned_bytes) == ([4.0], [4.0])


def test_a_gpu_nobody_knows_gets_the_nearest_names() -> None:
    assert gpu_named("NVIDIA h100").name == "H100"
    with pytest.raises(WrongInput, match=r"There is no GPU 'H10' in the table; nearest: .*H100"):
        gpu_named("H10")
