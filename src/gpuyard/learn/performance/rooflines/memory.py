"""Peak memory: the bytes needed at once are computed; allocator, workspaces and context are learned on top."""

import numpy as np

from gpuyard.learn.performance.arrays import FloatArray
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.operation_profile import OPERATION_MIX
from gpuyard.learn.performance.rooflines.chips import GpuColumns

OWN_MIB = 40.0
CONTEXT_MIB = {"schedtune": 450.0, "gpuyard": OWN_MIB}
"""Memory that a source counts before the first tensor: the driver's context, or workspaces of libraries."""
COPIES = {"train": 4.0, "infer": 1.0}
"""Copies of the parameters: in training also gradients and two moments of Adam."""


def features(rows: ProfileRows, chips: GpuColumns) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Return the features in MiB. The GPU matters little: workspaces depend on its cores."""
    activations, parameters, given = (rows.shape[name] for name in ("activations", "parameters", "input"))
    context = np.array([CONTEXT_MIB.get(source, OWN_MIB) for source in rows.words["source"].tolist()])
    weights = parameters * np.array([COPIES.get(mode, 1.0) for mode in rows.words["mode"].tolist()])
    base = activations + weights + 0.5 * given + context
    return base, {
        "activations": activations / base,
        "weights": weights / base,
        "input": np.log2(np.maximum(given, 1e-3) / np.maximum(activations, 1e-3)),
        "deep": np.log2(np.maximum(activations, 1e-3) / np.maximum(parameters, 1e-3)),
        "context": np.log2(base / context),
        "batch": np.log2(rows.shape["batch"]),
        "sm": np.log2(chips.sm),
        **{name: rows.shape[name] for name in OPERATION_MIX},
    }
