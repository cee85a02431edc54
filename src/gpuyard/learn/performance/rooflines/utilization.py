"""GPU utilization during a step: the longer its kernels take, the less the GPU waits for the next launch."""

import numpy as np

from gpuyard.learn.performance.arrays import FloatArray
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.rooflines import network
from gpuyard.learn.performance.rooflines.chips import GpuColumns


def features(rows: ProfileRows, chips: GpuColumns) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Return a fraction. The features are those of the step's time, plus the share of it that is not launching."""
    base, columns = network.features(rows, chips)
    launching = np.exp2(columns["launch"])
    return np.clip(1.0 / (1.0 + launching), 0.01, 1.0), columns | {"step": np.log2(base)}
