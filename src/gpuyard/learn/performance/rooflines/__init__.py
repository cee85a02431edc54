"""Kinds of work: for each a file that says what a GPU needs for it at best, and what decides how near it comes to that.

Features are ratios, not sizes of GPUs: work over cache, tiles over processors, arithmetic over memory. A GPU that nobody
has measured has ratios that were seen on others.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpuyard.learn.performance.arrays import Floats
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.rooflines import memory, network, utilization
from gpuyard.learn.performance.rooflines.chips import GpuColumns

Features = tuple[Floats, dict[str, Floats]]
"""What it takes at best, in the unit of what is measured; and what decides how near to that it comes."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """How rows of a kind become numbers."""

    features: Callable[[ProfileRows, GpuColumns], Features]
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


def names(text: str) -> frozenset[str]:
    """Names of features, from words."""
    return frozenset(text.split())


ROOFLINES = {
    "network": Roofline(
        network.features,
        ("mode", "compiled", "layout", "numbers", "source"),
        names("kernel_cache largest_cache kernel_waves torch batch kernels fixed"),
        is_committee=False,
        knows_family=True,
    ),
    "memory": Roofline(
        memory.features, ("source", "mode", "numbers"), names("sm"), is_committee=False, knows_family=True, unit="MiB"
    ),
    "utilisation": Roofline(
        utilization.features,
        ("mode", "compiled", "numbers"),
        names("kernel_cache largest_cache kernel_waves torch layout source"),
        is_committee=False,
        knows_family=True,
        unit="part",
    ),
}
"""The kinds of work that users can ask for. `benchmarks/published` adds single operations, for evaluation only."""
