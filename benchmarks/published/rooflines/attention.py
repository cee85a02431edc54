"""Attention as one kernel: prefill has arithmetic, decode reads what was kept of the past.

Its peak is the sheet's: between its products it computes exponentials, and so no board comes to the limit of its power.
"""

import numpy as np

from benchmarks.published.rooflines.cache import memory_ms
from gpuyard.learn.performance.arrays import FloatArray
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.rooflines.chips import GpuColumns


def features(rows: ProfileRows, chips: GpuColumns, floor: FloatArray) -> tuple[FloatArray, dict[str, FloatArray]]:
    """In bf16."""
    batch, tokens, past, heads, kv, width, window = (
        rows.shape[name] for name in ("batch", "tokens", "past", "heads", "kv_heads", "width", "window")
    )
    seen = past + tokens
    looked_at = np.where(window > 0, np.minimum(seen, window), seen)
    pairs = np.where(
        tokens > 1, tokens * np.minimum(looked_at, seen) - np.where(seen <= looked_at, tokens**2 / 2, 0), looked_at
    )
    flops = 4.0 * batch * heads * np.maximum(pairs, 1.0) * width
    moved = 2.0 * batch * width * (2 * tokens * heads + 2 * kv * looked_at)
    arithmetic, memory = flops / chips.flops, memory_ms(chips, moved)
    base = np.maximum(arithmetic, memory)
    blocks = batch * heads * np.ceil(tokens / 128)
    return base + floor, {
        "ratio": np.log2(arithmetic / memory),
        "batch": np.log2(batch),
        "tokens": np.log2(tokens),
        "seen": np.log2(looked_at),
        "heads": np.log2(heads),
        "kv_heads": np.log2(kv),
        "group": np.log2(heads / kv),
        "width": width,
        "window": np.log2(1.0 + window),
        "cache": np.log2(moved / chips.cache),
        "waves": np.log2(blocks / chips.sm),
        "last_wave": blocks / chips.sm / np.ceil(blocks / chips.sm),
        "kv_waves": np.log2(batch * kv / chips.sm),
        "launch": np.log2(base / floor),
        "sustained": chips.sustained,
    }
