"""Queries: one workload on many GPUs, and many parts of a model on one."""

import pytest
from msgspec.structs import replace

from gpuyard.core.domain.workload import WorkloadSpec
from gpuyard.learn.performance.gpu_specs import shipped
from gpuyard.learn.performance.model import SHIPPED, load
from gpuyard.learn.performance.operation_profile import OperationProfile
from gpuyard.learn.performance.query import TRAINING_COST_RATIO, predict_on_gpus, predict_steps_ms, profile_of


def test_a_model_known_only_by_its_totals_is_predicted_in_the_mode_that_was_asked_for() -> None:
    train = WorkloadSpec(model="own_net", flops=4e9, activations=1e7, parameters=2.5e7)
    training, inference = profile_of(train), profile_of(replace(train, mode="infer"))
    assert inference.kept_bytes == 0.0
    assert training.step(1)["flops"] == pytest.approx(TRAINING_COST_RATIO * inference.step(1)["flops"])


def test_many_steps_on_one_gpu_are_predicted_like_single_ones() -> None:
    model, specs, work = load(SHIPPED), shipped(), WorkloadSpec(model="resnet50", batch=16, precision="amp")
    made = profile_of(work)
    twice = OperationProfile.joined([made, made])
    alone = [predict_on_gpus(model, work, one, ["H200"], specs)[0].step_ms for one in (made, twice)]
    assert predict_steps_ms(model, work, [(made, 16), (twice, 16)], "h200", specs) == pytest.approx(alone)
    assert alone[1] > 1.5 * alone[0]
