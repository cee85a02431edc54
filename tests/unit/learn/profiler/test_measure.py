from functools import partial

import pytest

pytest.importorskip("torch")

from gpuyard.learn.performance.flops import count
from gpuyard.learn.profiler.measure import MeasurementSetup, measure
from gpuyard.learn.profiler.sweep import configurations
from gpuyard.learn.profiler.zoo import profiled_models

SMALL = "own/mlp-512x4"


@pytest.mark.slow
def test_each_configuration_of_a_model_becomes_a_row() -> None:
    subject = profiled_models()[SMALL]
    wanted = configurations(subject, precisions=["fp32"], batches=[1, 4])
    rows = list(measure(subject, wanted, MeasurementSetup.here("2026-11-15", "cpu"), seconds=0.0))
    assert [row.configuration for row in rows] == wanted
    assert all(0 < row.step_ms_p10 <= row.step_ms <= row.step_ms_p90 for row in rows)
    one, four = rows[-2:]
    assert four.flops == pytest.approx(4 * one.flops)
    assert four.parameter_bytes == one.parameter_bytes == pytest.approx(4 * one.parameters, rel=1e-3)


def test_a_sample_of_the_configurations_is_the_same_every_time() -> None:
    subject = profiled_models()[SMALL]
    half = configurations(subject, part=0.5)
    assert half == configurations(subject, part=0.5)
    assert 0 < len(half) < len(configurations(subject))
    assert set(configurations(subject, part=0.2)) <= set(half)


@pytest.mark.parametrize(
    "name", [name for name in profiled_models() if name.startswith("own/") and name.endswith(("x1", "x4", "x6", "128"))]
)
def test_our_own_models_can_be_counted_without_a_device(name: str) -> None:
    subject = profiled_models()[name]
    forward = count(subject.build, lambda: subject.inputs(2), training=False)
    both = count(subject.build, lambda: subject.inputs(2), training=True)
    assert forward.flops > 0
    assert 2.4 < both.flops / forward.flops < 3.3
    assert both.activation_bytes > 0 == forward.activation_bytes


def test_a_matrix_product_counts_two_operations_for_each_multiplication() -> None:
    import torch

    counted = count(lambda: torch.nn.Linear(64, 32, bias=False), lambda: (torch.randn(16, 64),), training=False)
    assert counted.flops == 2 * 16 * 64 * 32
    assert counted.bytes == 4 * (16 * 64 + 64 * 32 + 16 * 32)
    assert counted.kernels == 1


def test_a_model_that_reads_values_during_construction_is_counted() -> None:
    import torch

    def build() -> torch.nn.Module:
        return torch.nn.Linear(64, int(torch.tensor(32).item()), bias=False)

    assert count(build, lambda: (torch.randn(16, 64),), training=False).flops == 2 * 16 * 64 * 32


def test_attention_scores_never_reach_memory() -> None:
    import torch
    from torch.nn import functional

    class Attend(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(x, x, x)

    counted = count(Attend, lambda: (torch.randn(1, 4, 1000, 64),), training=False)
    assert counted.flops == 4 * 4 * 1000 * 1000 * 64
    assert counted.bytes == 4 * 4 * (4 * 1000 * 64)


def test_a_model_that_reads_values_during_its_run_is_counted_with_ordinary_values() -> None:
    import torch

    class Looks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if (x == 0).all() else x @ x

    assert count(Looks, lambda: (torch.randn(16, 16),), training=False).flops == 2 * 16**3


def test_the_largest_operation_of_a_sample_is_not_hidden_by_larger_parameters() -> None:
    import torch

    from gpuyard.learn.performance.operation_profile import OperationProfile

    def build() -> torch.nn.Module:
        wide, narrow = torch.nn.Linear(1000, 4000, bias=False), torch.nn.Linear(4000, 10, bias=False)
        return torch.nn.Sequential(torch.nn.ReLU(), wide, narrow)

    def given(batch: int) -> tuple[torch.Tensor]:
        return (torch.randn(batch, 1000),)

    few, many = (count(build, partial(given, batch), training=False) for batch in (2, 4))
    assert OperationProfile.counted(few, many, 2, 4).largest_bytes == 4 * (1000 + 4000)
