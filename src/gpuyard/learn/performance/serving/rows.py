"""Measured operations of served language models, from public tables.

`aiconfigurator` (NVIDIA, Apache-2.0) has matrix products and attention, Vidur (Microsoft, MIT) the operators of layers.
Rows that fit into the cache of a GPU are left out: such tables repeat one operation, so its data stays in the cache, but
a model has read all its other layers before it runs the same operation again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance.arrays import FloatArray, TextArray
from gpuyard.learn.performance.dataset import CsvColumns
from gpuyard.learn.performance.gpu_specs import GpuSpecs
from gpuyard.learn.performance.serving.operations import moved_bytes

IN_CACHE = (3e6, 1.5)
"""Operations with more bytes than the first, and fewer than so many times the cache, may run from the cache."""
LARGEST_TOKENS = 16_384
LEAST_WEIGHT = 512
"""Smallest side of a weight of a language model."""
HEADS_PER_KV = 16
HEAD_WIDTH = 128
PRODUCTS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
PASSES = ("add", "attn_rope", "mlp_act", "input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True, slots=True)
class OperationRows:
    """Measured operations of one kind."""

    kind: str
    gpu: TextArray
    group: TextArray
    """The model that operations belong to; empty if they belong to none."""
    shape: dict[str, FloatArray]
    measured: FloatArray
    """Milliseconds."""

    def __len__(self) -> int:
        return len(self.gpu)

    def take(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> "OperationRows":
        """Return some of the rows."""
        shape = {name: values[which] for name, values in self.shape.items()}
        return OperationRows(self.kind, self.gpu[which], self.group[which], shape, self.measured[which])


def read(path: Path, specs: GpuSpecs) -> list[OperationRows]:
    """Read a table, which is recognized by its columns."""
    columns = CsvColumns(path)
    names = set(columns.names)
    if {"dtype", "m", "n", "k", "latency_ms"} <= names:
        found = list(_products(columns))
    elif {"phase", "batch_size", "isl", "step", "num_heads", "latency_ms"} <= names:
        found = list(_attention(columns))
    elif {"op", "n_embd", "num_tokens", "num_tensor_parallel_workers", "latency_ms"} <= names:
        found = list(_layers(columns))
    else:
        raise WrongInput(f"{path} has the columns of no known table of operations: aiconfigurator, Vidur")
    return [_from_memory(rows, specs) for rows in found]


def _from_memory(rows: OperationRows, specs: GpuSpecs) -> OperationRows:
    """Leave out rows that may run from the cache."""
    if rows.kind == "passes":
        return rows
    cache = np.array([specs.find(gpu).l2_mb * 1e6 for gpu in rows.gpu.tolist()])
    moved = moved_bytes(rows.kind, rows.shape)
    return rows.take((moved < IN_CACHE[0]) | (moved > IN_CACHE[1] * cache))


def _products(columns: CsvColumns) -> Iterator[OperationRows]:
    m, n, k = (columns.numbers(name, above=0) for name in "mnk")
    dtype = columns.texts("dtype")
    for said, kind in (("bfloat16", "product_bf16"), ("fp8", "product_fp8")):
        rows = OperationRows(kind, columns.texts("gpu"), np.full(len(m), ""), {"m": m, "n": n, "k": k}, columns.numbers("latency_ms", above=0))  # fmt: skip
        yield rows.take((dtype == said) & (np.minimum(n, k) >= LEAST_WEIGHT) & (m <= LARGEST_TOKENS))


def _attention(columns: CsvColumns) -> Iterator[OperationRows]:
    named = {
        "batch": "batch_size", "tokens": "isl", "past": "step", "heads": "num_heads",
        "kv_heads": "num_key_value_heads", "width": "head_dim",
    }  # fmt: skip
    shape = {name: columns.numbers(column) for name, column in named.items()}
    usual = (shape["heads"] <= HEADS_PER_KV * shape["kv_heads"]) & (shape["width"] == HEAD_WIDTH)
    usual &= columns.numbers("window_size") == 0
    phase, gpu = columns.texts("phase"), columns.texts("gpu")
    for said, kind in (("context", "prefill_attention"), ("generation", "decode_attention")):
        rows = OperationRows(kind, gpu, np.full(len(gpu), ""), shape, columns.numbers("latency_ms", above=0))
        yield rows.take(usual & (phase == said))


def _layers(columns: CsvColumns) -> Iterator[OperationRows]:
    op, model, gpu = columns.texts("op"), columns.texts("model"), columns.texts("gpu")
    tokens, parts = columns.numbers("num_tokens", above=0), columns.numbers("num_tensor_parallel_workers", above=0)
    width, heads, kv_heads, wide = (columns.numbers(name, above=0) for name in ("n_embd", "n_head", "n_kv_head", "n_expanded_embd"))  # fmt: skip
    gated = np.where(np.char.lower(columns.texts("use_gated_mlp")) == "true", 2.0, 1.0)
    inner, kv = width / parts, np.maximum(kv_heads / parts, 1.0) * width / heads
    wide = wide / parts
    chosen = [op == name for name in PRODUCTS]
    n = np.select(chosen, [inner + 2 * kv, width, gated * wide, width], 1.0)
    k = np.select(chosen, [width, inner, width, wide], 1.0)
    measured = columns.numbers("latency_ms", above=0)
    yield OperationRows(
        "product_bf16", gpu, model, {"m": tokens, "n": n, "k": k, "tokens": tokens, "parts": parts}, measured
    ).take(np.isin(op, PRODUCTS))
    passed = np.select(
        [op == "add", op == "attn_rope", op == "mlp_act"],
        [3 * width, 2 * (inner + kv), (gated + 1) * wide],
        2 * width,
    )
    yield OperationRows(
        "passes", gpu, model, {"bytes": 2.0 * tokens * passed, "tokens": tokens, "parts": parts}, measured
    ).take(np.isin(op, PASSES))
