"""Measures steps of a model: build it once, run every configuration, return one row each.

A step is timed by events on the GPU, after a few warm-up steps (they load kernels and fill the allocator). On a CPU the
host clock is used. A configuration that runs out of memory has no row.

The time between two events includes the time in which the GPU waits for the host to launch kernels. The time of the GPU
alone is measured with a few more steps, each queued while the GPU is kept busy:

    host   delay  launch launch launch launch                   the delay lasts longer than all launches
    GPU    ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░ kernel kernel kernel kernel
                                             event             event
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import torch

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.profiler.counting import counted
from gpuyard.learn.profiler.rows import Configuration, ProfileRow
from gpuyard.learn.profiler.watch import GpuSamples, GpuWatch
from gpuyard.learn.profiler.zoo import ProfiledModel
from gpuyard.system.gpu_clocks import Clocks

WARM_UP = 3
LEAST_STEPS = 4
MOST_STEPS = 5000
ALONE_STEPS = 5
"""The number of steps that measure the GPU alone."""
DELAY_MARGIN = 2.0
"""How much longer than the launches of a step the GPU is kept busy."""
LONGEST_DELAY_S = 0.5
CYCLES_PER_S = 2e9
"""At least the clock of any GPU."""
COUNTED_S = 1.0
"""Shorter measurements do not use the driver's counter of energy, which advances in steps of up to a tenth of a second."""
LAUNCHING_S = 0.05
"""Duration of the launch-time measurement for each configuration: the speed of the host varies over time."""


@dataclass(frozen=True, slots=True)
class MeasurementSetup:
    """The machine and software of a measurement."""

    device: str
    gpu: str
    driver: str
    today: str
    watch: GpuWatch | None
    clocks: Clocks | None = None
    """Locks the GPU to the clocks of configurations that have one."""

    @classmethod
    def here(cls, today: str, device: str) -> "MeasurementSetup":
        """Return the setup for the first GPU or the CPU of this machine."""
        if device == "cpu":
            return cls("cpu", "cpu", "", today, None)
        watch = GpuWatch(torch.cuda.current_device())
        return cls("cuda", torch.cuda.get_device_name(), watch.driver, today, watch)

    def set_clock(self, mhz: int | None) -> None:
        """Lock the GPU to this clock; None: let it choose its own. Raise `WrongInput` if that is not possible."""
        gpu = str(torch.cuda.current_device()) if self.device == "cuda" else "0"
        if mhz is None:
            if self.clocks is not None:
                self.clocks.free(gpu)
            return
        why = "there is no GPU" if self.clocks is None else self.clocks.lock(gpu, mhz)
        if why is not None:
            raise WrongInput(f"--clocks: {why}")


def measure(
    subject: ProfiledModel, configurations: Iterable[Configuration], place: MeasurementSetup, seconds: float
) -> Iterator[ProfileRow]:
    """Yield a row for each configuration that fits into memory, in their order."""
    _tidy(place.device)
    with torch.device(place.device):
        built = subject.build()
    full: dict[str, Any] = {"model": built, "dtype": torch.float32}
    for wanted in configurations:
        place.set_clock(wanted.clock_mhz)
        dtype = torch.bfloat16 if wanted.precision == "bf16" else torch.float32
        if full["dtype"] != dtype:
            full = {"model": full["model"].to(dtype), "dtype": dtype}
            for part in full["model"].modules():
                if isinstance(part, torch.nn.RNNBase):
                    part.flatten_parameters()
        try:
            yield _row(subject, full["model"], wanted, place, seconds)
        except torch.OutOfMemoryError:
            continue
        finally:
            full["model"].zero_grad(set_to_none=True)
            _tidy(place.device)


def _tidy(device: str) -> None:
    """Release what the allocator caches, so that it is not counted for the next configuration."""
    gc.collect()
    if device == "cuda":
        torch._C._cuda_clearCublasWorkspaces()  # each would hold a segment of the last one's memory
        torch.cuda.empty_cache()


def _row(
    subject: ProfiledModel, model: Any, wanted: Configuration, place: MeasurementSetup, seconds: float
) -> ProfileRow:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = wanted.precision == "tf32"
    quick_us = launch_us(place.device, LAUNCHING_S)
    if place.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step = _step(subject, model, wanted, place.device)
    for _ in range(WARM_UP):
        step()
    watched: AbstractContextManager[Any] = place.watch or nullcontext()
    gc.disable()  # a collection during a step would distort the measurement
    try:
        with watched:
            times_ms = timed(step, place.device, seconds)
    finally:
        gc.enable()
    seen: GpuSamples | None = place.watch.seen if place.watch else None
    low, *_, high = quantiles(times_ms, n=10, method="inclusive")
    on_gpu = place.device == "cuda"
    alone_ms = min(median(times_ms), median(gpu_times(step))) if on_gpu else None
    return ProfileRow(
        model=subject.name,
        family=subject.family,
        kind=subject.kind,
        size=subject.size,
        mode=wanted.mode,
        batch=wanted.batch,
        precision=wanted.precision,
        compiled=wanted.compiled,
        clock_mhz=wanted.clock_mhz,
        gpu=place.gpu,
        driver=place.driver,
        launch_us=quick_us,
        torch=str(torch.__version__),
        measured_on=place.today,
        steps=len(times_ms),
        step_ms=median(times_ms),
        step_ms_p10=low,
        step_ms_p90=high,
        gpu_ms=alone_ms,
        memory_allocated_mib=torch.cuda.max_memory_allocated() / 2**20 if on_gpu else 0.0,
        memory_reserved_mib=torch.cuda.max_memory_reserved() / 2**20 if on_gpu else 0.0,
        memory_nvml_mib=seen.memory_mib if seen else None,
        utilization=seen.utilization if seen else None,
        memory_utilization=seen.memory_utilization if seen else None,
        power_w=seen.power_w if seen else None,
        energy_j=None if seen is None else _energy_j(seen, times_ms),
        sm_clock_mhz=seen.sm_clock_mhz if seen else None,
        memory_clock_mhz=seen.memory_clock_mhz if seen else None,
        temperature_c=seen.temperature_c if seen else None,
        parameters=sum(p.numel() for p in model.parameters()),
        **counted(subject, wanted.mode).step(wanted.batch),
    )


def _step(subject: ProfiledModel, model: Any, wanted: Configuration, device: str) -> Callable[[], None]:
    with torch.device(device):
        inputs = subject.inputs(wanted.batch)
    if wanted.precision == "bf16":
        inputs = tuple(x.to(torch.bfloat16) if x.is_floating_point() else x for x in inputs)
    run = torch.compile(model) if wanted.compiled else model

    def cast() -> AbstractContextManager[Any]:
        return torch.autocast(device, torch.bfloat16) if wanted.precision == "amp" else nullcontext()

    if wanted.mode == "infer":
        model.eval()

        def infer() -> None:
            with torch.inference_mode(), cast():
                run(*inputs)

        return infer
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def train() -> None:
        with cast():
            loss = run(*inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return train


def timed(step: Callable[[], object], device: str, seconds: float) -> list[float]:
    """Return the milliseconds of each step, measured for about this number of seconds."""
    began = perf_counter()
    if device != "cuda":
        times: list[float] = []
        while len(times) < LEAST_STEPS or (perf_counter() - began < seconds and len(times) < MOST_STEPS):
            before = perf_counter()
            step()
            times.append((perf_counter() - before) * 1000)
        return times
    marks = [_mark()]
    marks[0].record()
    while len(marks) <= LEAST_STEPS or (perf_counter() - began < seconds and len(marks) <= MOST_STEPS):
        step()
        mark = _mark()
        mark.record()
        marks.append(mark)
        if len(marks) % 4 == 0:  # keeps the host at most a few steps ahead of the GPU
            marks[-2].synchronize()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in pairwise(marks)]


def _energy_j(seen: GpuSamples, times_ms: list[float]) -> float | None:
    """Return the joules of one step."""
    seconds = sum(times_ms) / 1000
    if seen.energy_j is not None and seconds >= COUNTED_S:
        return seen.energy_j / len(times_ms)
    return None if seen.power_w is None else seen.power_w * seconds / len(times_ms)


def gpu_times(step: Callable[[], object]) -> list[float]:
    """Return the milliseconds of a few steps on the GPU, without the time in which it would wait for the host."""
    torch.cuda.synchronize()
    began = perf_counter()
    step()
    launching_s = perf_counter() - began
    torch.cuda.synchronize()
    times = []
    for _ in range(ALONE_STEPS):
        first, last = _mark(), _mark()
        torch.cuda._sleep(int(min(LONGEST_DELAY_S, DELAY_MARGIN * launching_s) * CYCLES_PER_S))  # type: ignore[no-untyped-call]
        first.record()
        step()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last))
    return times


def launch_us(device: str, seconds: float) -> float:
    """Return the microseconds of the smallest kernel, launched one after the other."""
    x = torch.zeros(1, device=device)

    def thousand() -> None:
        for _ in range(1000):
            x.add_(1)

    return best_ms(thousand, device, seconds)


def best_ms(step: Callable[[], object], device: str, seconds: float) -> float:
    """Return the fastest tenth, which excludes disturbances."""
    for _ in range(WARM_UP):
        step()
    times = sorted(timed(step, device, seconds))
    return times[len(times) // 10]


def _mark() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
