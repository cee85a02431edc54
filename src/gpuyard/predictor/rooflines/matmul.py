"""One matrix product: how well its tiles fill the GPU, and whether arithmetic or memory is what it waits for."""

import numpy as np

from gpuyard.predictor.dataset import Floats, Rows
from gpuyard.predictor.rooflines.chips import Chips, bytes_of

TILES = ((64, 64), (128, 128), (256, 128))


def features(rows: Rows, chips: Chips, floor: Floats) -> tuple[Floats, dict[str, Floats]]:
    """`b` products of `m`×`k` by `k`×`n`; `floor` is what the smallest one takes."""
    b, m, n, k = (rows.shape[name] for name in "bmnk")
    size = bytes_of(rows.precision)
    weight = b * k * n * size
    moved = b * m * k * size + weight + b * m * n * np.maximum(size, 2.0)
    return product(b, m, n, k, moved, chips.memory_ms(moved), weight, chips, floor)


def product(
    b: Floats,
    m: Floats,
    n: Floats,
    k: Floats,
    moved: Floats,
    memory: Floats,
    weight: Floats,
    chips: Chips,
    floor: Floats,
) -> tuple[Floats, dict[str, Floats]]:
    """The same for whatever becomes a product; `memory` is how long its bytes take."""
    arithmetic = slowed(2.0 * b * m * n * k / chips.flops, chips)
    base = np.maximum(arithmetic, memory)
    columns = {
        "ratio": np.log2(arithmetic / memory),
        "m": np.log2(m),
        "n": np.log2(n),
        "k": np.log2(k),
        "b": np.log2(b),
        "deep": np.log2(k / np.maximum(m, n)),
        "even_m": evenness(m),
        "even_n": evenness(n),
        "even_k": evenness(k),
        "cache": np.log2(moved / chips.cache),
        "weight_cache": np.log2(weight / chips.cache),
        "launch": np.log2(base / floor),
        "memory_launch": np.log2(memory / floor),
        "sustained": chips.sustained,
    }
    for tall, wide in TILES:
        tiles = b * np.ceil(m / tall) * np.ceil(n / wide)
        waves = tiles / chips.sm
        columns |= {
            f"waves_{tall}": np.log2(waves),
            f"last_wave_{tall}": waves / np.ceil(waves),
            f"filled_{tall}": b * m * n / (tiles * tall * wide),
        }
    return base + floor, columns


def slowed(arithmetic: Floats, chips: Chips) -> Floats:
    """A board with a power cap runs a short kernel at its peak and a long one at what its power keeps up."""
    long = 1.0 / (1.0 + 1.0 / np.maximum(arithmetic, 1e-9))
    return arithmetic * chips.sustained**-long


def evenness(x: Floats) -> Floats:
    """How often two divides it, up to 64: kernels are made for sizes that it does."""
    whole = x.astype(np.int64)
    return np.minimum(np.log2((whole & -whole).astype(np.float64)), 6.0)
