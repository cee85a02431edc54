"""Kinds of work: for each a file that says what a GPU needs for it at best, and what decides how near it comes to that.

Features are ratios, not sizes of GPUs: work over cache, tiles over processors, arithmetic over memory. A GPU that nobody
has measured has ratios that were seen on others.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuyard.learn.performance.dataset import Floats, Rows
from gpuyard.learn.performance.rooflines import (
    attention,
    convolution,
    jobs,
    layers,
    matmul,
    memory,
    network,
    utilization,
    vector,
)
from gpuyard.learn.performance.rooflines.chips import Chips

Features = tuple[Floats, dict[str, Floats]]
"""What it takes at best, in the unit of what is measured; and what decides how near to that it comes."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """How rows of a kind become numbers."""

    features: Callable[[Rows, Chips], Features]
    words: tuple[str, ...] = ()
    """Which words of a row are features."""
    gives_away: frozenset[str] = frozenset()
    """Features that together tell which GPU it is: trees would learn GPUs by heart, which helps nobody who has another."""
    is_committee: bool = True
    """Whether every GPU has enough of all sorts of rows to teach alone; then the middle of what each of them would say
    counts as much as what they say together."""
    is_shared: bool = False
    """Whether what is odd about one size is so on every GPU: then it is learnt in detail for GPUs nobody has measured, too."""
    knows_family: bool = False
    """Whether there are few enough families to learn each."""
    unit: str = "ms"


def _by_host(features: Callable[[Rows, Chips, Floats], Features], floor: float) -> Callable[[Rows, Chips], Features]:
    """Timed from the host: the smallest step takes `floor` milliseconds, whatever the GPU."""
    return lambda rows, chips: features(rows, chips, np.where(np.isnan(chips.launch), floor, chips.launch))


def _by_clock(features: Callable[[Rows, Chips, Floats], Features], floor: float) -> Callable[[Rows, Chips], Features]:
    """Timed on the GPU: the smallest kernel takes so many of its cycles, `floor` milliseconds at one GHz."""
    return lambda rows, chips: features(rows, chips, floor / chips.clock)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TILES = "b weight_cache memory_launch waves_256 waves_64 waves_128 cache sustained"

ROOFLINES = {
    "network": Roofline(
        network.features,
        ("mode", "compiled", "layout", "numbers", "source"),
        _names("kernel_cache largest_cache kernel_waves torch batch kernels fixed"),
        is_committee=False,
        knows_family=True,
    ),
    "neusight_matmul": Roofline(_by_host(matmul.features, 0.03), ("op",), _names(_TILES)),
    "neusight_vector": Roofline(
        _by_host(vector.features, 0.03), (), _names("rows waves balance last_wave threads"), knows_family=True
    ),
    "neusight_conv": Roofline(_by_host(convolution.features, 0.06), (), _names(f"{_TILES} batch"), is_shared=True),
    "aiconfigurator_gemm": Roofline(_by_clock(matmul.features, 0.0052), ("op",), _names(_TILES)),
    "aiconfigurator_attention": Roofline(
        _by_clock(attention.features, 0.02), ("op",), _names("batch heads kv_heads cache sustained")
    ),
    "vidur_layers": Roofline(
        _by_clock(layers.features, 0.005),
        ("op",),
        _names(f"{_TILES} m n k width passes threads parts"),
        knows_family=True,
    ),
    "gavel_jobs": Roofline(
        _by_host(jobs.features, 20.0),
        ("model", "consolidated", "company"),
        _names("balance"),
        is_committee=False,
        knows_family=True,
    ),
    "memory": Roofline(
        memory.features, ("source", "mode", "numbers"), _names("sm"), is_committee=False, knows_family=True, unit="MiB"
    ),
    "utilisation": Roofline(
        utilization.features,
        ("mode", "compiled", "numbers"),
        _names("kernel_cache largest_cache kernel_waves torch layout source"),
        is_committee=False,
        knows_family=True,
        unit="part",
    ),
}
