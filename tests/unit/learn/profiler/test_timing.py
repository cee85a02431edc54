"""How steps are timed, and what happens when a model cannot be measured."""

import gc
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from gpuyard.learn.profiler import measure as measuring
from gpuyard.learn.profiler.measure import LEAST_STEPS, MOST_STEPS, WARM_UP, MeasurementSetup, best_ms, measure, timed
from gpuyard.learn.profiler.rows import Configuration
from gpuyard.learn.profiler.zoo import ProfiledModel

HERE = MeasurementSetup.here("2026-11-16", "cpu")


class Body(torch.nn.Module):
    """One layer, and something that happens in front of it."""

    def __init__(self, before: Callable[[Any], object]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self._before = before

    def forward(self, x: Any) -> Any:
        self._before(x)
        return self.layer(x)


def subject(before: Callable[[Any], object] = lambda _: None) -> ProfiledModel:
    return ProfiledModel("test/body", "mlp", "vector", 4, lambda: Body(before), lambda batch: (torch.randn(batch, 4),))


def wanted(*batches: int, mode: str = "infer", precision: str = "fp32") -> list[Configuration]:
    return [Configuration("test/body", mode, batch, precision) for batch in batches]


@pytest.mark.parametrize("seconds", [0.0, 1e-9])
def test_even_in_a_very_short_time_some_steps_are_timed(seconds: float) -> None:
    assert len(timed(lambda: None, "cpu", seconds)) == LEAST_STEPS


def test_even_in_a_very_long_time_quick_steps_come_to_an_end() -> None:
    assert len(timed(lambda: None, "cpu", 3600.0)) == MOST_STEPS


def test_the_best_time_excludes_warm_up_and_disturbed_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    seconds = iter([9.0] * WARM_UP + [0.5] + [0.002] * 100)
    monkeypatch.setattr(measuring, "perf_counter", lambda: now)

    def step() -> None:
        nonlocal now
        now += next(seconds)

    assert best_ms(step, "cpu", 0.1) == pytest.approx(2.0)


def test_a_configuration_that_does_not_fit_into_memory_has_no_row_and_the_next_one_has() -> None:
    def before(x: Any) -> None:
        if x.shape[0] == 7:
            raise torch.OutOfMemoryError

    rows = list(measure(subject(before), wanted(1, 7, 8), HERE, seconds=0.0))
    assert [row.batch for row in rows] == [1, 8]


def test_another_error_is_not_taken_for_a_lack_of_memory_and_restores_python() -> None:
    steps = count()

    def before(_: Any) -> None:
        if next(steps) > 2 * WARM_UP:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(measure(subject(before), wanted(1), HERE, seconds=60.0))
    assert gc.isenabled()


@pytest.mark.parametrize(("mode", "grows"), [("train", True), ("infer", False)])
def test_training_computes_gradients_and_inference_does_not(mode: str, grows: bool) -> None:
    seen: set[bool] = set()
    rows = list(measure(subject(lambda _: seen.add(torch.is_grad_enabled())), wanted(2, mode=mode), HERE, seconds=0.0))
    assert len(rows) == 1
    assert grows in seen
    assert (rows[0].activation_bytes > 0) is grows


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_model_and_its_input_have_the_requested_precision(precision: str) -> None:
    seen: list[Any] = []
    measured = measure(subject(lambda x: seen.append(x.dtype)), wanted(1, precision=precision), HERE, seconds=0.0)
    assert len(list(measured)) == 1
    assert (torch.bfloat16 if precision == "bf16" else torch.float32) in seen


def test_a_row_records_where_when_and_with_what_it_was_measured() -> None:
    (row,) = measure(subject(), wanted(2), HERE, seconds=0.0)
    assert (row.model, row.family, row.kind, row.size, row.gpu) == ("test/body", "mlp", "vector", 4, "cpu")
    assert (row.measured_on, row.torch, row.parameters, row.steps) == ("2026-11-16", torch.__version__, 20, LEAST_STEPS)
    assert (row.power_w, row.energy_j, row.memory_nvml_mib, row.utilization) == (None, None, None, None)
    assert row.flops == 2 * 2 * 4 * 4
