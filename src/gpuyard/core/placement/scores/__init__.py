"""Scores: which of the fitting nodes is chosen. One file per score; `SCORES` lists all of them.

Most scores treat nodes with the same number of free GPUs as equal: they do not examine nodes, but order the possible
numbers of free GPUs by preference, so a decision needs no scan.
`fragmentation` computes the cost of room and has its own search (`fragmentation_search`).
"""

from collections.abc import Callable, Sequence

from gpuyard.core.placement.demand import Demand
from gpuyard.core.placement.index import Index
from gpuyard.core.placement.scores import best_fit, fragmentation, spread
from gpuyard.core.placement.scores.fragmentation import FragmentationCosts

NodeOrder = Sequence[int] | FragmentationCosts
"""Numbers of free GPUs in order of preference, or a table of costs."""
ScoreFunction = Callable[[int, Index, Demand], NodeOrder]
"""(GPUs wanted, index of free resources, demand of the open tasks) -> the order in which nodes are tried."""

SCORES: dict[str, ScoreFunction] = {
    "best_fit": best_fit.order,
    "fragmentation": fragmentation.order,
    "spread": spread.order,
}
