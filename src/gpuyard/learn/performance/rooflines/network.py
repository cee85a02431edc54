"""Whole models: the sum over operations of the limiting resource's time, and the share of each kind in that sum."""

import numpy as np

from gpuyard.learn.performance.arrays import FloatArray
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.operation_profile import KINDS
from gpuyard.learn.performance.rooflines.chips import GpuColumns, bytes_of

LAUNCH_MS = {
    "infer": (0.017, 0.025, 0.025, 0.080, 0.030, 0.016),
    "train": (0.012, 0.040, 0.050, 0.200, 0.050, 0.033),
}
"""Host time to launch an operation of each kind, eagerly; in training it includes autograd. Measured with an H200."""
HOST_US = 6.6
"""The speed of that host: its time for the smallest kernel."""
HOST = 0.5
"""Exponent: a host half as fast takes 2 ** HOST as long for a step, because not all of the step is launching."""
CASTS = {"amp": 1.3, "bf16": 1.1}
"""Factor on the host time where numbers are cast."""
STEP_MS = {"infer": 0.1, "train": 1.4}
"""Additional host time of a step: loss, optimizer, gradients."""
COMPILED = 0.3
"""Share of operations that are still launched after compilation."""
HEAVY = 4
"""The first HEAVY kinds have arithmetic."""


def features(rows: ProfileRows, chips: GpuColumns) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Return the roofline in milliseconds, and the features that the reached share may depend on."""
    assert rows.works is not None
    groups, row = rows.works.flat()
    batch, first = rows.shape["batch"], np.flatnonzero(np.r_[True, row[1:] != row[:-1]])
    kind = groups[0].astype(np.intp)
    size = bytes_of(rows.precision) / 4.0
    many = batch[row]
    flops, fixed = groups[2] * many, groups[4] * size[row]
    moved = groups[3] * many * size[row] + fixed
    peak = (chips.flops * chips.sustained)[row]
    arithmetic = flops / np.where(kind == KINDS.index("grouped"), np.minimum(chips.plain_flops[row], peak), peak)
    memory = moved / chips.bytes[row]
    slower = np.maximum(arithmetic, memory)

    def total(values: FloatArray) -> FloatArray:
        return np.asarray(np.add.reduceat(values, first), dtype=np.float64)

    roofline, kernels = total(slower), total(groups[1])
    is_training = rows.words["mode"] == "train"
    each = np.where(is_training[row], np.array(LAUNCH_MS["train"])[kind], np.array(LAUNCH_MS["infer"])[kind])
    launch = total(groups[1] * each) + np.where(is_training, STEP_MS["train"], STEP_MS["infer"])
    launch *= np.where(rows.words["compiled"] == "yes", COMPILED, 1.0) * _host(rows, chips)
    base = np.hypot(roofline, launch)
    columns = {
        f"share_{name}": total(np.where(kind == place, slower, 0.0)) / roofline for place, name in enumerate(KINDS)
    }
    heavy = np.where(kind < HEAVY, slower, 0.0)
    bound = np.maximum(total(heavy), 1e-12)
    columns |= {
        "compute_bound": total(np.where(arithmetic > memory, slower, 0.0)) / roofline,
        "intensity": total(heavy * np.log2(np.maximum(arithmetic, 1e-12) / memory)) / bound,
        "whole_ratio": np.log2(np.maximum(total(arithmetic), 1e-12) / total(memory)),
        "launch": np.clip(np.log2(launch / roofline), -3.0, 5.0),
        "kernel_cache": np.log2(total(moved) / kernels / chips.cache),
        "largest_cache": np.log2(np.maximum.reduceat(moved, first) / chips.cache),
        "kernel_waves": np.log2(total(moved) / kernels / chips.sm / 8192.0),
        "fixed": total(fixed) / total(moved),
        "kernels": np.log2(kernels),
        "heavy_kernels": total(np.where(kind < HEAVY, groups[1], 0.0)) / kernels,
        "heavy_flops": np.log2(
            np.maximum(total(flops), 1.0) / np.maximum(total(np.where(kind < HEAVY, groups[1], 0.0)), 1.0) / batch
        ),
        "batch": np.log2(batch),
        "torch": rows.shape["torch"],
    }
    dense = np.log2(np.maximum(flops, 1.0) / moved)
    for place, name in enumerate(KINDS[:HEAVY]):
        weight = np.where(kind == place, slower, 0.0)
        columns[f"dense_{name}"] = total(weight * dense) / np.maximum(total(weight), 1e-12)
    return base, columns


def _host(rows: ProfileRows, chips: GpuColumns) -> FloatArray:
    """Return how much slower than `LAUNCH_MS` the host of a row launches: as measured with the row, otherwise on this
    GPU, otherwise 1.
    """
    here = np.where(np.isnan(rows.shape["launch_us"]), 1e3 * chips.launch, rows.shape["launch_us"])
    casts = np.array([CASTS.get(numbers, 1.0) for numbers in rows.words["numbers"].tolist()])
    return np.asarray(np.where(np.isnan(here), 1.0, (here / HOST_US) ** HOST) * casts, dtype=np.float64)
