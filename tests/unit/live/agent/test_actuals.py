"""The measured GPU usage of attempts."""

from pathlib import Path

import pytest

from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.values import GpuHealth
from gpuyard.live.agent.actuals import LAST_BYTES, Actuals, ran_out_of_memory
from gpuyard.live.agent.inventory import GpuUsage
from gpuyard.live.agent.supervisor.messages import AttemptKey
from gpuyard.live.agent.telemetry import GpuReading, GpuUser, Occupant

ONE, TWO = AttemptKey(1, 1), AttemptKey(2, 1)


def gpu(index: int, busy: float | None = None, **memory_mib: int) -> GpuReading:
    keys = {"one": ONE, "two": TWO, "other": None}
    users = tuple(GpuUser(10, mib, "ann", False, keys[name.split("_")[0]]) for name, mib in memory_mib.items())
    return GpuReading(GpuUsage(index, busy), GpuHealth.OK, "", users)


def test_the_peak_memory_on_any_of_its_gpus_is_recorded() -> None:
    actuals, holder = Actuals(), Occupant(ONE, 10, (0, 1))
    actuals.look([gpu(0, one=300, one_child=200), gpu(1, one=400, other=9000)], [holder])
    actuals.look([gpu(0, one=100), gpu(1, one=450)], [holder])
    assert actuals.of(ONE) == Actual(500)
    actuals.forget(ONE)
    assert actuals.of(ONE) is None


def test_the_utilization_of_its_gpus_is_an_average_over_all_samples() -> None:
    actuals, holder = Actuals(), Occupant(ONE, 10, (0, 1))
    actuals.look([gpu(0, 100.0), gpu(1, 50.0), gpu(2, 7.0)], [holder])
    actuals.look([gpu(0, 0.0), gpu(1, 50.0), gpu(2, 7.0)], [holder])
    assert actuals.of(ONE) == Actual(None, 50.0, 0.25)


def test_a_task_that_shares_a_gpu_has_its_own_memory_and_no_known_utilization() -> None:
    actuals = Actuals()
    holders = [Occupant(ONE, 10, (0,), whole=False), Occupant(TWO, 11, (0,), whole=False)]
    actuals.look([gpu(0, 90.0, one=300, two=700)], holders)
    assert (actuals.of(ONE), actuals.of(TWO)) == (Actual(300), Actual(700))


def test_memory_on_a_gpu_that_it_does_not_hold_is_not_counted() -> None:
    actuals = Actuals()
    actuals.look([gpu(0, one=300), gpu(1, one=900)], [Occupant(ONE, 10, (0,))])
    assert actuals.of(ONE) == Actual(300)


@pytest.mark.parametrize(("said", "peak"), [("1200", 1200), ("", None), ("much", None), ("-5", None)])
def test_on_virtual_gpus_a_task_states_its_memory(said: str, peak: int | None) -> None:
    actuals = Actuals()
    actuals.said(ONE, {"VIRTUAL_GPU_MEMORY_MIB": said})
    assert actuals.of(ONE) == (None if peak is None else Actual(peak))
    assert actuals.declared_mib(ONE) == (peak or 0)


@pytest.mark.parametrize(
    ("words", "full"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.", True),
        ("RuntimeError: CUDA error: out of memory (cudaErrorMemoryAllocation)", True),
        ("torch.cuda.OutOfMemoryError", True),
        ("MemoryError", False),
        ("Killed", False),
    ],
)
def test_running_out_of_gpu_memory_is_detected_from_the_end_of_the_output(
    tmp_path: Path, words: str, full: bool
) -> None:
    output = tmp_path / "1.1.log"
    output.write_text(f"epoch 1\nTraceback\n{words}\n")
    assert ran_out_of_memory(output) is full
    output.write_text(words + "\n" + "it was caught, and this is something else\n" * (LAST_BYTES // 40))
    assert not ran_out_of_memory(output)
    assert not ran_out_of_memory(tmp_path / "none.log")
