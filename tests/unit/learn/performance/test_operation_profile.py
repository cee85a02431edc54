"""The operations of a step."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from gpuyard.learn.performance.flops import StepCounts, count
from gpuyard.learn.performance.operation_profile import KINDS, OperationProfile, OperationProfiles, find_profile


def counted(build: Callable[[], nn.Module], *shape: int, training: bool = False) -> OperationProfile:
    def of(batch: int) -> StepCounts:
        return count(build, lambda: (torch.empty(batch, *shape),), training=training)

    return OperationProfile.counted(of(2), of(4), 2, 4)


@pytest.mark.slow
def test_work_that_grows_with_the_batch_belongs_to_a_sample_and_the_rest_to_the_model() -> None:
    made = counted(lambda: nn.Linear(64, 32), 64)
    (kind, kernels, flops, moved, fixed) = made.groups[0].tolist()
    assert (KINDS[int(kind)], kernels) == ("matmul", 1)
    assert flops == 2 * 64 * 32
    assert moved == 4 * (64 + 32)
    assert fixed == 4 * (64 * 32 + 32)
    assert made.parameter_bytes == 4 * (64 * 32 + 32)


def test_training_takes_about_three_times_the_arithmetic_and_keeps_activations() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))

    infer, train = counted(model, 64), counted(model, 64, training=True)
    assert train.groups[:, 2].sum() == pytest.approx(2.5 * infer.groups[:, 2].sum(), rel=0.25)
    assert infer.kept_bytes == 0
    assert train.kept_bytes >= 2 * 64 * 4


def test_convolutions_of_few_channels_are_a_separate_kind() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8), nn.ReLU())

    kinds = {KINDS[int(kind)] for kind in counted(model, 8, 16, 16).groups[:, 0]}
    assert kinds == {"grouped", "norm", "light"}


def test_groups_of_many_profiles_are_flattened_with_the_row_they_belong_to() -> None:
    one = OperationProfile.of([("matmul", 1, 2.0, 3.0, 4.0), ("light", 2, 0.0, 5.0, 0.0)])
    two = OperationProfile.of([("norm", 7, 0.0, 1.0, 0.0)])
    works = OperationProfiles.of([one, two, one])
    groups, row = works.take(np.array([2, 1])).flat()
    assert row.tolist() == [0, 0, 1]
    assert groups[1].tolist() == [1.0, 2.0, 7.0]


def test_an_uncounted_size_is_scaled_by_the_number_of_pixels() -> None:
    library = {("net", "infer"): {100: OperationProfile.of([("matmul", 1, 10.0, 20.0, 30.0)])}}
    found = find_profile(library, "net", "infer", 200)
    assert found is not None
    assert found.groups.tolist() == [[0.0, 1.0, 40.0, 80.0, 30.0]]
    assert find_profile(library, "other", "infer", 200) is None
