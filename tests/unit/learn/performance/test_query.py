"""Queries: one workload on many GPUs, and many parts of a model on one."""

import pytest

from gpuyard.core.domain.workload import WorkloadSpec
from gpuyard.learn.performance.gpu_specs import shipped
from gpuyard.learn.performance.model import SHIPPED, load
from gpuyard.learn.performance.operation_profile import OperationProfile
from gpuyard.learn.performance.query import ask, profile_of, steps_ms


def test_many_steps_on_one_gpu_are_predicted_like_single_ones() -> None:
    model, specs, work = load(SHIPPED), shipped(), WorkloadSpec(model="resnet50", batch=16, precision="amp")
    made = profile_of(work)
    twice = OperationProfile.joined([made, made])
    alone = [ask(model, work, one, ["H200"], specs)[0].step_ms for one in (made, twice)]
    assert steps_ms(model, work, [(made, 16), (twice, 16)], "h200", specs) == pytest.approx(alone)
    assert alone[1] > 1.5 * alone[0]
