"""Scores: which of the fitting nodes is chosen. One file per score; `SCORES` lists all of them.

Most scores treat nodes with the same number of free GPUs as equal: they do not examine nodes, but order the possible
numbers of free GPUs by preference, so a decision needs no scan.
`fragmentation` and `weighted` compute the cost of room and have their own searches (`fragmentation_search`,
`weighted_search`).
"""

from collections.abc import Callable

from gpuyard.core.domain.settings import Settings
from gpuyard.core.placement.demand import Demand
from gpuyard.core.placement.index import Index
from gpuyard.core.placement.scores import best_fit, fragmentation, spread, weighted
from gpuyard.core.placement.scores.fragmentation import FragmentationCosts
from gpuyard.core.placement.scores.weighted import WeightedCosts

NodeOrder = range | FragmentationCosts | WeightedCosts
"""Numbers of free GPUs in order of preference, or a table of costs, which holds for all numbers of GPUs."""
ScoreFunction = Callable[[int, Index, Demand, Settings], NodeOrder]
"""(GPUs wanted, index of free resources, demand of the open tasks, settings) -> the order in which nodes are tried."""

SCORES: dict[str, ScoreFunction] = {
    "best_fit": best_fit.order,
    "fragmentation": fragmentation.order,
    "spread": spread.order,
    "weighted": weighted.order,
}
