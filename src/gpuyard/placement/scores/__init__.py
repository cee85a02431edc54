"""Scores: which of the fitting nodes is taken. One score a file, all of them in this dictionary.

Nodes with the same number of free GPUs are alike to a score, so it does not look at nodes at all: it puts the possible
numbers of free GPUs in the order in which they are to be tried. That keeps a decision free of scans, whatever the score.
`demand` says how many GPUs the tasks of the yard ask for on one node: its item n counts tasks that ask for n.
"""

from collections.abc import Callable, Sequence

from gpuyard.placement.scores import best_fit, fragmentation, spread

Score = Callable[[int, int, Sequence[int]], Sequence[int]]
"""(GPUs wanted, most GPUs any node has, demand) -> numbers of free GPUs, first choice first."""

SCORES: dict[str, Score] = {
    "best_fit": best_fit.order,
    "fragmentation": fragmentation.order,
    "spread": spread.order,
}
