"""The time of one operation of a served language model: a formula with a few coefficients for each kind and GPU.

Inference engines run few kinds of operations, and each follows its roofline closely, so formulas suffice where whole
models need trees; a formula also extrapolates, and its file is small. A matrix product takes the time of its arithmetic
and of its memory traffic, combined by a norm, and a floor; the last, partly filled round of tiles costs part of a whole
one. Prefill attention is the same with blocks instead of tiles. Decode attention reads the cache of keys and values, and
each block of it, one for a request and head of keys, takes some time however short the context is; everything else passes over activations.

Floors and the time of a block are latencies: they are numbers of cycles, so a GPU with a faster clock has shorter ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpuyard.learn.performance.arrays import FloatArray
from gpuyard.learn.performance.gpu_specs import GpuSpec

Shape = Mapping[str, FloatArray]
"""Columns of operations: m, n and k of products; batch, tokens, past, heads, kv_heads and width of attention; bytes."""
TILE = 128.0
CLOCK_MHZ = 2_000.0
"""Latencies are stated for this clock."""
NUMBER_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0}


@dataclass(frozen=True, slots=True)
class OperationKind:
    """A kind of operation: its coefficients with the values from which fitting starts."""

    start: tuple[float, ...]
    chunk: int
    """Number of operations of the kind that a layer has: errors are judged in sums of so many."""


KINDS = {
    "product_bf16": OperationKind((0.9, 0.8, 0.004, 2.0, 0.3), 4),
    "product_fp8": OperationKind((0.9, 0.8, 0.004, 2.0, 0.3), 4),
    "prefill_attention": OperationKind((0.5, 0.8, 0.01, 1.5, 0.3), 1),
    "decode_attention": OperationKind((0.8, 0.01, 4.0, 2.0), 1),
    "passes": OperationKind((0.8, 0.004), 4),
}
"""Products and prefill: shares of the arithmetic and of the bandwidth that are reached, floor in ms, exponent of the norm,
cost of a partly filled round. Decode: share of the bandwidth, floor in ms, microseconds for each doubling of the context
above 1024, microseconds of a block. Passes: share of the bandwidth, floor in ms. Floors and microseconds at `CLOCK_MHZ`."""


def moved_bytes(kind: str, shape: Shape) -> FloatArray:
    """Return the bytes that operations read and write."""
    if kind == "passes":
        return shape["bytes"]
    if kind.startswith("product"):
        size = NUMBER_BYTES[kind.partition("_")[2]]
        m, n, k = shape["m"], shape["n"], shape["k"]
        return size * (m * k + n * k) + 2.0 * m * n
    seen = shape["past"] + shape["tokens"]
    own, kept = 2 * shape["tokens"] * shape["heads"], 2 * shape["kv_heads"] * seen
    return 2.0 * shape["batch"] * shape["width"] * (own + kept)


def milliseconds(kind: str, coefficients: FloatArray, shape: Shape, chip: GpuSpec) -> FloatArray:
    """Return the time of operations of one kind on a GPU."""
    share = coefficients[0] if kind in {"passes", "decode_attention"} else coefficients[1]
    memory = moved_bytes(kind, shape) / (chip.mem_bw_gbs * 1e6 * share)
    cycles = CLOCK_MHZ / chip.boost_clock_mhz
    if kind == "passes":
        return np.asarray(memory + cycles * coefficients[1], dtype=np.float64)
    if kind == "decode_attention":
        longer = np.log2(1.0 + (shape["past"] + shape["tokens"]) / 1024.0)
        blocks = shape["batch"] * shape["kv_heads"] / chip.sm_count
        latency = coefficients[1] + 1e-3 * (coefficients[2] * longer + coefficients[3] * blocks)
        return np.asarray(memory + cycles * latency, dtype=np.float64)
    reached, _, floor, norm, partly = coefficients
    if kind == "prefill_attention":
        pairs = shape["tokens"] * (shape["past"] + shape["tokens"] / 2.0)
        flops = 4.0 * shape["batch"] * shape["heads"] * shape["width"] * pairs
        rounds = shape["batch"] * shape["heads"] * np.ceil(shape["tokens"] / TILE) / chip.sm_count
        slower = 1.0 + partly / np.maximum(rounds, 0.05)
        peak = chip.tflops("bf16")
    else:
        m, n, k = shape["m"], shape["n"], shape["k"]
        flops = 2.0 * np.maximum(m, 16.0) * n * k
        rounds = np.ceil(m / np.where(m <= TILE / 2, TILE / 2, TILE)) * np.ceil(n / TILE) / chip.sm_count
        slower = np.where(rounds > 1.0, np.ceil(rounds) / rounds, 1.0) ** partly
        peak = chip.sustained_tflops(kind.partition("_")[2])
    arithmetic = flops * slower / (peak * 1e9 * reached)
    most = np.maximum(arithmetic, memory)
    joined = most * ((arithmetic / most) ** norm + (memory / most) ** norm) ** (1.0 / norm)
    return np.asarray(joined + cycles * floor, dtype=np.float64)
