"""Rooflines of single operations, and of jobs of which only the name is known."""

from collections.abc import Callable

import numpy as np

from benchmarks.published.rooflines import attention, convolution, jobs, layers, matmul, vector
from gpuyard.learn.performance.arrays import FloatArray
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.rooflines import Features, Roofline, names
from gpuyard.learn.performance.rooflines.chips import GpuColumns


def _by_host(
    features: Callable[[ProfileRows, GpuColumns, FloatArray], Features], floor: float
) -> Callable[[ProfileRows, GpuColumns], Features]:
    """Timed from the host: the smallest step takes `floor` milliseconds, whatever the GPU."""
    return lambda rows, chips: features(rows, chips, np.where(np.isnan(chips.launch), floor, chips.launch))


def _by_clock(
    features: Callable[[ProfileRows, GpuColumns, FloatArray], Features], floor: float
) -> Callable[[ProfileRows, GpuColumns], Features]:
    """Timed on the GPU: the smallest kernel takes so many of its cycles, `floor` milliseconds at one GHz."""
    return lambda rows, chips: features(rows, chips, floor / chips.clock)


_TILES = "b weight_cache memory_launch waves_256 waves_64 waves_128 cache sustained"

PUBLISHED_ROOFLINES = {
    "neusight_matmul": Roofline(_by_host(matmul.features, 0.03), ("op",), names(_TILES)),
    "neusight_vector": Roofline(
        _by_host(vector.features, 0.03), (), names("rows waves balance last_wave threads"), knows_family=True
    ),
    "neusight_conv": Roofline(_by_host(convolution.features, 0.06), (), names(f"{_TILES} batch"), is_shared=True),
    "aiconfigurator_gemm": Roofline(_by_clock(matmul.features, 0.0052), ("op",), names(_TILES)),
    "aiconfigurator_attention": Roofline(
        _by_clock(attention.features, 0.02), ("op",), names("batch heads kv_heads cache sustained")
    ),
    "vidur_layers": Roofline(
        _by_clock(layers.features, 0.005),
        ("op",),
        names(f"{_TILES} m n k width passes threads parts"),
        knows_family=True,
    ),
    "gavel_jobs": Roofline(
        _by_host(jobs.features, 20.0),
        ("model", "consolidated", "company"),
        names("balance"),
        is_committee=False,
        knows_family=True,
    ),
}
