"""Sources of profiles: one file for each, recognized by its columns."""

from collections.abc import Callable
from dataclasses import dataclass

from gpuyard.learn.performance.dataset import CsvColumns, ProfileRows
from gpuyard.learn.performance.sources import neusight, own, schedtune, timm


@dataclass(frozen=True, slots=True)
class ProfileSource:
    """How a file of this source is recognized and read."""

    columns: frozenset[str]
    rows: Callable[[CsvColumns], list[ProfileRows]]


def source(columns: str, rows: Callable[[CsvColumns], list[ProfileRows]]) -> ProfileSource:
    """Return a source whose files have these columns."""
    return ProfileSource(frozenset(columns.split()), rows)


SOURCES = {
    "timm": source(
        "gpu mode precision model img_size batch_size gmacs_per_sample mactivations_per_sample params_m compiled layout step_time_ms",
        timm.rows,
    ),
    "neusight_e2e": source("gpu model mode seqlen batch option num_layer measured_ms", neusight.models),
    "schedtune_peak_memory": source(
        "model batch_size activations_mb parameters_mb input_mb peak_mem_mib sm_count mem_bw_gbs", schedtune.rows
    ),
    "gpuyard": source(
        "model family kind size mode batch precision compiled gpu torch step_ms memory_reserved_mib utilization",
        own.rows,
    ),
}
"""In the order in which they are tried: a source whose columns are a subset of another's comes after it."""
