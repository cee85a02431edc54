"""Kinds of work that the performance model is evaluated on but that nobody can ask it for.

Others have published how long single operations take on many GPUs: matrix products, convolutions, attention, operators of
language models. They show how well the method predicts a GPU that was not measured. `register` adds their rooflines and
file formats to those of `gpuyard.learn.performance`; `benchmarks/performance.py` does so and prints the figures.
"""

from benchmarks.published.rooflines import PUBLISHED_ROOFLINES
from benchmarks.published.sources import PUBLISHED_SOURCES
from gpuyard.learn.performance.rooflines import ROOFLINES
from gpuyard.learn.performance.sources import SOURCES


def register() -> None:
    """Let this process read and learn the published tables."""
    ROOFLINES.update(PUBLISHED_ROOFLINES)
    SOURCES.update(PUBLISHED_SOURCES)
