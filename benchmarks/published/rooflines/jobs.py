"""Jobs of which only the name is known, alone or sharing a GPU."""

import numpy as np

from gpuyard.learn.performance.arrays import FloatArray
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.rooflines.chips import GpuColumns


def features(rows: ProfileRows, chips: GpuColumns, floor: FloatArray) -> tuple[FloatArray, dict[str, FloatArray]]:
    """A guess at their arithmetic, and what is said of them."""
    batch, gpus, gflops, company = (rows.shape[name] for name in ("batch", "gpus", "gflops", "company_batch"))
    arithmetic = batch * gflops * 1e9 / chips.flops
    return arithmetic + floor, {
        "batch": np.log2(batch),
        "gpus": np.log2(gpus),
        "launch": np.log2(arithmetic / floor),
        "company": np.log2(1.0 + company),
        "balance": np.log2(chips.flops / chips.bytes),
    }
