"""One convolution, as the product that it is: pixels out by channels out, over channels in times the window."""

import numpy as np

from gpuyard.predictor.dataset import Floats, Rows
from gpuyard.predictor.rooflines.chips import Chips
from gpuyard.predictor.rooflines.matmul import product


def features(rows: Rows, chips: Chips, floor: Floats) -> tuple[Floats, dict[str, Floats]]:
    """Forward, in fp32."""
    b, into, out, kernel, size, stride, padding = (
        rows.shape[name] for name in ("b", "into", "out", "kernel", "size", "stride", "padding")
    )
    after = np.maximum(np.floor((size + 2 * padding - kernel) / stride) + 1, 1.0)
    weight = 4.0 * into * out * kernel**2
    moved = 4.0 * b * (into * size**2 + out * after**2) + weight
    one, memory = np.ones(len(rows)), chips.memory_ms(moved)
    base, columns = product(one, b * after**2, out, into * kernel**2, moved, memory, weight, chips, floor)
    return base, columns | {
        "kernel": kernel,
        "stride": stride,
        "size": np.log2(size),
        "batch": np.log2(b),
        "into": np.log2(into),
        "unfolded": np.log2(b * after**2 * into * kernel**2 * 4.0 / moved),
    }
