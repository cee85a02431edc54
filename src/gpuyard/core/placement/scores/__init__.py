"""Scores: which of the fitting nodes is taken. One score a file, all of them in this dictionary.

To most scores, nodes with the same number of free GPUs are alike: such a score does not look at nodes at all, it puts the
possible numbers of free GPUs in the order in which they are to be tried, and a decision is free of scans.
`fragmentation` knows what room costs and has a search of its own (`fragmentation_search`).
"""

from collections.abc import Callable, Sequence

from gpuyard.core.placement.demand import Demand
from gpuyard.core.placement.index import Index
from gpuyard.core.placement.scores import best_fit, fragmentation, spread
from gpuyard.core.placement.scores.fragmentation import FragmentationCosts

NodeOrder = Sequence[int] | FragmentationCosts
"""Numbers of free GPUs, first choice first; or what room costs."""
ScoreFunction = Callable[[int, Index, Demand], NodeOrder]
"""(GPUs wanted, what is free where, what the open tasks ask for) -> in which order room is tried."""

SCORES: dict[str, ScoreFunction] = {
    "best_fit": best_fit.order,
    "fragmentation": fragmentation.order,
    "spread": spread.order,
}
