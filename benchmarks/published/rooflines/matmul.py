"""One matrix product: how well its tiles fill the GPU, and whether arithmetic or memory is what it waits for.

A kernel cuts the result into tiles, and each processor takes one at a time. So a product takes as many rounds as it has tiles
over processors, rounded up, and each round as long as a whole tile, however little of it is of use. Large tiles reach more of
the peak, since less is loaded for an operation; small ones leave less over. Where tiles are fewer than processors, several
share one and each sums up a part of the depth. Libraries choose well, so the roofline is the best of all these.
"""

import numpy as np

from benchmarks.published.rooflines.cache import memory_ms
from gpuyard.learn.performance.arrays import FloatArray
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.rooflines.chips import GpuColumns, bytes_of

TILES = ((64, 64), (128, 128), (256, 128))
"""Of those that the features tell about."""
SIDES = ((32, 32), (32, 64), (64, 32), (64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128))
PARTS = (1, 2, 4, 8, 16)
"""Tiles, and parts of the depth, that libraries choose from."""
LOADED = 12.0
"""Operations that could be done while a number is loaded into a tile."""
STARTED = 64.0
"""Steps along the depth that a tile costs besides: it is begun, and written."""
JOINED_MS = 0.004
"""What it takes to launch a second kernel that adds up parts."""
THINNEST = 64
"""Steps along the depth that a part has at least."""


def features(rows: ProfileRows, chips: GpuColumns, floor: FloatArray) -> tuple[FloatArray, dict[str, FloatArray]]:
    """`b` products of `m`×`k` by `k`×`n`; `floor` is what the smallest one takes."""
    b, m, n, k = (rows.shape[name] for name in "bmnk")
    size = bytes_of(rows.precision)
    weight = b * k * n * size
    moved = b * m * k * size + weight + b * m * n * np.maximum(size, 2.0)
    return product(b, m, n, k, size, moved, memory_ms(chips, moved), weight, chips, floor)


def product(
    b: FloatArray,
    m: FloatArray,
    n: FloatArray,
    k: FloatArray,
    size: FloatArray,
    moved: FloatArray,
    memory: FloatArray,
    weight: FloatArray,
    chips: GpuColumns,
    floor: FloatArray,
) -> tuple[FloatArray, dict[str, FloatArray]]:
    """The same for whatever becomes a product; `size` is the bytes of a number, `memory` how long all take."""
    cut = in_tiles(b, m, n, k, size, chips)
    arithmetic = slowed(cut, chips)
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
        "left_over": np.log2(cut * chips.flops / (2.0 * b * m * n * k)),
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


def in_tiles(
    b: FloatArray, m: FloatArray, n: FloatArray, k: FloatArray, size: FloatArray, chips: GpuColumns
) -> FloatArray:
    """Milliseconds of arithmetic with the best of all tiles and parts, at the sheet's peak; numbers of `size` bytes."""
    best = np.full(len(m), np.inf)
    for tall, wide in SIDES:
        tiles = b * np.ceil(m / tall) * np.ceil(n / wide)
        step = 2.0 * (tall * wide + LOADED * (tall + wide)) * chips.sm / chips.flops
        for parts in PARTS:
            taken = np.ceil(tiles * parts / chips.sm) * (np.ceil(k / parts) + STARTED) * step
            if parts > 1:
                taken += 2.0 * parts * b * m * n * size / chips.bytes + JOINED_MS
                taken[k < parts * THINNEST] = np.inf
            best = np.minimum(best, taken)
    return best


def slowed(arithmetic: FloatArray, chips: GpuColumns) -> FloatArray:
    """A board with a power cap runs a short kernel at its peak and a long one at what its power keeps up."""
    long = 1.0 / (1.0 + 1.0 / np.maximum(arithmetic, 1e-9))
    return arithmetic * chips.sustained**-long


def evenness(x: FloatArray) -> FloatArray:
    """How often two divides it, up to 64: kernels are made for sizes that it does."""
    whole = x.astype(np.int64)
    return np.minimum(np.log2((whole & -whole).astype(np.float64)), 6.0)
