"""How steps are timed, and what happens when a model cannot be measured."""

import gc
from collections.abc import Callable
from dataclasses import replace
from itertools import count, groupby
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.profiler import measure as measuring
from gpuyard.learn.profiler.measure import (
    ALONE_STEPS,
    LEAST_STEPS,
    MOST_STEPS,
    WARM_UP,
    MeasurementSetup,
    best_ms,
    gpu_times,
    measure,
    timed,
)
from gpuyard.learn.profiler.rows import Configuration
from gpuyard.learn.profiler.watch import GpuSamples
from gpuyard.learn.profiler.zoo import ProfiledModel
from gpuyard.system.gpu_clocks import Clocks
from tests.unit.system.test_gpu_clocks import FakeNvml

pytestmark = pytest.mark.slow  # left out of `make quick`

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


def test_each_configuration_is_measured_at_its_clock_and_one_without_at_the_clock_of_the_gpu() -> None:
    nvml = FakeNvml()
    seen: list[dict[str, tuple[int, int]]] = []
    place = replace(HERE, clocks=Clocks(nvml))
    some = [Configuration("test/body", "infer", 1, "fp32", False, clock) for clock in (1500, 900, None)]
    rows = list(measure(subject(lambda _: seen.append(dict(nvml.clocks))), some, place, seconds=0.0))
    assert [row.clock_mhz for row in rows] == [1500, 900, None]
    assert [clocks for clocks, _ in groupby(seen)] == [{"GPU-a": (1500, 1500)}, {"GPU-a": (900, 900)}, {}]


def test_a_clock_that_cannot_be_set_is_an_error_and_not_a_row_at_another_clock() -> None:
    place = replace(HERE, clocks=Clocks(FakeNvml()))
    some = [Configuration("test/body", "infer", 1, "fp32", False, 5)]
    with pytest.raises(WrongInput, match="its clock cannot be locked to 5 MHz: Invalid Argument"):
        list(measure(subject(), some, place, seconds=0.0))


def test_the_time_of_the_gpu_alone_is_taken_while_all_launches_of_a_step_are_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The GPU is kept busy for twice the time of the launches; the events enclose the kernels only."""
    now, done = 0.0, []

    class Mark:
        def record(self) -> None:
            done.append("mark")

        def elapsed_time(self, _: object) -> float:
            return 1.5

    def step() -> None:
        nonlocal now
        now += 0.01
        done.append("step")

    monkeypatch.setattr(measuring, "perf_counter", lambda: now)
    monkeypatch.setattr(measuring, "_mark", Mark)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: done.append(str(cycles)))
    assert gpu_times(step) == [1.5] * ALONE_STEPS
    assert done == ["step", *["40000000", "mark", "step", "mark"] * ALONE_STEPS]


@pytest.mark.parametrize(
    ("counted", "times_ms", "joules"),
    [(300.0, [500.0, 1000.0], 150.0), (300.0, [10.0, 20.0], 6.0), (None, [500.0, 1000.0], 300.0)],
)
def test_the_energy_of_a_step_is_counted_if_the_measurement_was_long_enough(
    counted: float | None, times_ms: list[float], joules: float
) -> None:
    seen = GpuSamples(400.0, counted, None, None, 1980, 3201, 40, 0.0)
    assert measuring._energy_j(seen, times_ms) == pytest.approx(joules)
