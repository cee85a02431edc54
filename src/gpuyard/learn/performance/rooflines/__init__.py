"""Rooflines: for each kind of work a file with the least time a GPU needs and the features that affect the rest.

Features are ratios, not sizes of GPUs: work over cache, tiles over processors, arithmetic over memory. A GPU without
measurements then has ratios that were seen on others.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpuyard.learn.performance.arrays import FloatArray
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.rooflines import memory, network, utilization
from gpuyard.learn.performance.rooflines.chips import GpuColumns

Features = tuple[FloatArray, dict[str, FloatArray]]
"""The lower bound in the unit of the measurement, and the features that determine how close a GPU comes to it."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """How rows of a kind become features."""

    features: Callable[[ProfileRows, GpuColumns], Features]
    words: tuple[str, ...] = ()
    """Categorical columns that are features."""
    gives_away: frozenset[str] = frozenset()
    """Features that together identify the GPU: trees would memorize GPUs, which does not help for a new one."""
    is_committee: bool = True
    """Whether every GPU has enough rows of all sorts for a model of its own; the median of those models then has the
    same weight as the common model."""
    is_shared: bool = False
    """Whether irregularities of one size occur on every GPU: then they are learned in detail for new GPUs, too."""
    knows_family: bool = False
    """Whether there are few enough families to learn each."""
    launch_share: str = ""
    """The feature with the share of launching in a step, as a logarithm; empty if it plays no part."""
    unit: str = "ms"


def names(text: str) -> frozenset[str]:
    """Split a text into feature names."""
    return frozenset(text.split())


ROOFLINES = {
    "network": Roofline(
        network.features,
        ("mode", "compiled", "layout", "numbers", "source"),
        names("kernel_cache largest_cache kernel_waves torch batch kernels fixed"),
        is_committee=False,
        knows_family=True,
        launch_share="launch",
    ),
    "memory": Roofline(
        memory.features, ("source", "mode", "numbers"), names("sm"), is_committee=False, knows_family=True, unit="MiB"
    ),
    "utilization": Roofline(
        utilization.features,
        ("mode", "compiled", "numbers"),
        names("kernel_cache largest_cache kernel_waves torch layout source"),
        is_committee=False,
        knows_family=True,
        launch_share="launch",
        unit="part",
    ),
}
"""The kinds of work that users can ask for. `benchmarks/published` adds single operations, for evaluation only."""
