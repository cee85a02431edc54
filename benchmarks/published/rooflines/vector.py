"""A pass over memory: element by element, or along rows."""

import numpy as np

from gpuyard.learn.performance.arrays import FloatArray
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.rooflines.chips import GpuColumns

TWO_TENSORS = ("add", "mul", "div", "pow")
ALONG_ROWS = ("softmax", "ln")


def features(rows: ProfileRows, chips: GpuColumns, floor: FloatArray) -> tuple[FloatArray, dict[str, FloatArray]]:
    """`rows` × `width` elements in fp32."""
    op = rows.words["op"]
    passes = np.where(np.isin(op, TWO_TENSORS), 3.0, 2.0)
    base, columns = over(rows.shape["rows"], rows.shape["width"], 4.0 * passes, chips, floor)
    return base, columns | {"passes": passes, "along_rows": np.isin(op, ALONG_ROWS).astype(np.float64)}


def over(
    count: FloatArray, width: FloatArray, each: FloatArray, chips: GpuColumns, floor: FloatArray
) -> tuple[FloatArray, dict[str, FloatArray]]:
    """`each` is the bytes that are moved for an element."""
    moved = count * width * each
    memory = moved / chips.bytes
    waves = count / chips.sm
    return memory + floor, {
        "rows": np.log2(count),
        "width": np.log2(width),
        "cache": np.log2(moved / chips.cache),
        "launch": np.log2(memory / floor),
        "waves": np.log2(waves),
        "last_wave": waves / np.ceil(waves),
        "threads": np.log2(count * width / chips.sm / 2048.0),
        "balance": np.log2(chips.plain_flops / chips.bytes),
    }
