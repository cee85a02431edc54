"""Operators of a language model on one of the GPUs that share it: products, and passes over memory."""

import numpy as np

from gpuyard.predictor.dataset import Floats, Rows
from gpuyard.predictor.rooflines.chips import Chips
from gpuyard.predictor.rooflines.matmul import product


def features(rows: Rows, chips: Chips, floor: Floats) -> tuple[Floats, dict[str, Floats]]:
    """In fp16; an operator without `n` is no product."""
    tokens, n, k, passes = (rows.shape[name] for name in ("tokens", "n", "k", "passes"))
    is_product = n > 0
    weight = 2.0 * np.where(is_product, n * k, 1.0)
    moved = 2.0 * tokens * passes + weight
    one = np.ones(len(rows))
    base, columns = product(
        one, tokens, np.where(is_product, n, 1.0), np.where(is_product, k, 1.0), moved, weight, chips, floor
    )
    return base, columns | {
        "width": np.log2(rows.shape["width"]),
        "parts": rows.shape["parts"],
        "passes": np.log2(passes),
        "threads": np.log2(tokens * passes / chips.sm / 2048.0),
    }
