"""Synthetic rows: what a GPU with given peaks would have measured.

The rows are matrix products, the simplest kind of work there is; their format is one that `benchmarks/published` adds.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from random import Random

from benchmarks.published import register
from gpuyard.learn.performance.gpu_specs import GpuSpec, GpuSpecs

register()


def gpu(name: str, *, tflops: float = 20.0, bandwidth: float = 1_000.0, sm: int = 100, watts: float = 400.0) -> GpuSpec:
    """A GPU with no power cap to speak of."""
    return GpuSpec(
        gpu=name,
        sm_count=sm,
        boost_clock_mhz=1_500,
        fp32_tflops=tflops,
        memory_gb=40,
        mem_bw_gbs=bandwidth,
        l2_mb=20,
        tdp_w=watts,
    )


SLOW, MIDDLE, FAST = (
    gpu("slow-1", tflops=8.0, bandwidth=400.0, sm=40),
    gpu("middle-1", tflops=16.0, bandwidth=700.0, sm=70),
    gpu("fast-1", tflops=30.0, bandwidth=1_500.0, sm=120),
)
SPECS = GpuSpecs([SLOW, MIDDLE, FAST])

COLUMNS = ("gpu", "op", "B", "M", "N", "K", "latency_ms")


def products(gpus: Sequence[GpuSpec], count: int, seed: int = 1, *, slower: float = 1.0) -> list[tuple[object, ...]]:
    """Products that reach a part of the roofline that grows with their size, within 5 %."""
    luck = Random(seed)
    rows: list[tuple[object, ...]] = []
    for one in gpus:
        for _ in range(count):
            m, n, k = (2 ** luck.randint(5, 12) for _ in range(3))
            arithmetic = 2.0 * m * n * k / (one.fp32_tflops * 1e9)
            memory = 4.0 * (m * k + k * n + m * n) / (one.mem_bw_gbs * 1e6)
            reached = 0.5 + 0.4 * min(1.0, m / 2_048)
            ms = slower * (max(arithmetic, memory) / reached + 0.03) * luck.uniform(0.95, 1.05)
            rows.append((one.gpu, "linear", 1, m, n, k, f"{ms:.6g}"))
    return rows


def write(path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    """As CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


SPEC_COLUMNS = ("gpu", "sm_count", "boost_clock_mhz", "fp32_tflops", "memory_gb", "mem_bw_gbs", "l2_mb", "tdp_w")


def write_specs(path: Path, gpus: Sequence[GpuSpec] = (SLOW, MIDDLE, FAST)) -> Path:
    """As a file of specs."""
    return write(path, SPEC_COLUMNS, [[getattr(one, name) for name in SPEC_COLUMNS] for one in gpus])
