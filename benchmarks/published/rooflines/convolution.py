"""One convolution, as the product that it is: pixels out by channels out, over channels in times the window.

Kernels take pixels in squares and channels in packs. What is left over of the last square or pack is computed all the same,
so the features say how much more that is: with squares of 2 to 6 pixels, which is what Winograd's method takes, and packs
of 8 to 64 channels.
"""

import numpy as np

from benchmarks.published.rooflines.cache import memory_ms
from benchmarks.published.rooflines.matmul import product
from gpuyard.learn.performance.arrays import FloatArray
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.rooflines.chips import GpuColumns

SQUARES = (2, 4, 6)
PACKS = (8, 16, 32, 64)


def features(rows: ProfileRows, chips: GpuColumns, floor: FloatArray) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Forward, in fp32."""
    b, into, out, kernel, size, stride, padding = (
        rows.shape[name] for name in ("b", "into", "out", "kernel", "size", "stride", "padding")
    )
    after = np.maximum(np.floor((size + 2 * padding - kernel) / stride) + 1, 1.0)
    weight = 4.0 * into * out * kernel**2
    moved = 4.0 * b * (into * size**2 + out * after**2) + weight
    one, memory = np.ones(len(rows)), memory_ms(chips, moved)
    base, columns = product(one, b * after**2, out, into * kernel**2, 4.0 * one, moved, memory, weight, chips, floor)
    columns |= {f"square_{side}": _rounded(after, side) ** 2 for side in SQUARES}
    columns |= {f"into_{pack}": _rounded(into, pack) for pack in PACKS}
    columns |= {f"out_{pack}": _rounded(out, pack) for pack in PACKS}
    return base, columns | {
        "kernel": kernel,
        "stride": stride,
        "size": np.log2(size),
        "batch": np.log2(b),
        "into": np.log2(into),
        "unfolded": np.log2(b * after**2 * into * kernel**2 * 4.0 / moved),
    }


def _rounded(count: FloatArray, pack: int) -> FloatArray:
    """How much more it is in whole packs."""
    return np.asarray(np.ceil(count / pack) * pack / count, dtype=np.float64)
