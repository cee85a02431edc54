"""Operators of a language model on one of the GPUs that share it: products, and passes over memory."""

import numpy as np

from benchmarks.published.rooflines.cache import cycles, memory_ms
from benchmarks.published.rooflines.matmul import product
from gpuyard.learn.performance.arrays import FloatArray
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.rooflines.chips import GpuColumns

BYTES_A_CYCLE = {
    "attn_rope": 6.4,
    "emb": 2.0,
    "input_layernorm": 5.0,
    "post_attention_layernorm": 5.0,
    "mlp_act": 7.9,
}
"""What a processor moves in a cycle, by operator: kernels that process single numbers are limited by their own cycles and not by the
memory. From large steps on an A100; the A40 has within a fifth the same, with a third of the bandwidth. Others wait for memory."""


def features(rows: ProfileRows, chips: GpuColumns, floor: FloatArray) -> tuple[FloatArray, dict[str, FloatArray]]:
    """In fp16; an operator without `n` is no product."""
    tokens, n, k, passes = (rows.shape[name] for name in ("tokens", "n", "k", "passes"))
    is_product = n > 0
    weight = 2.0 * np.where(is_product, n * k, 1.0)
    moved = 2.0 * tokens * passes + weight
    one = np.ones(len(rows))
    cycle = np.array([BYTES_A_CYCLE.get(op, np.inf) for op in rows.words["op"].tolist()])
    memory = np.hypot(memory_ms(chips, moved), moved / (cycle * cycles(chips)))
    base, columns = product(
        one,
        tokens,
        np.where(is_product, n, 1.0),
        np.where(is_product, k, 1.0),
        2.0 * one,
        moved,
        memory,
        weight,
        chips,
        floor,
    )
    return base, columns | {
        "width": np.log2(rows.shape["width"]),
        "parts": rows.shape["parts"],
        "passes": np.log2(passes),
        "threads": np.log2(tokens * passes / chips.sm / 2048.0),
    }
