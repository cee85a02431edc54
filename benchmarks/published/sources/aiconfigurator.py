"""Products and attention of language models as SGLang runs them (ai-dynamo/aiconfigurator, Apache-2.0)."""

import numpy as np

from benchmarks.published.sources.buckets import buckets
from gpuyard.learn.performance.dataset import CsvColumns, ProfileRows, constant_column

PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "float32": "fp32"}


def products(columns: CsvColumns) -> list[ProfileRows]:
    """`m` tokens through a weight of `k` by `n`: a family is a layer, which is to say a weight."""
    m, n, k = (columns.numbers(name, above=0) for name in "mnk")
    dtype = columns.texts("dtype")
    return [
        ProfileRows(
            "aiconfigurator_gemm",
            columns.texts("gpu"),
            buckets(dtype, n, k),
            np.array([PRECISIONS.get(d, d) for d in dtype.tolist()]),
            columns.numbers("latency_ms", above=0),
            {"b": np.ones(len(m)), "m": m, "n": n, "k": k},
            {"op": dtype},
        )
    ]


def attention(columns: CsvColumns) -> list[ProfileRows]:
    """Prefill and decode."""
    heads, kv = columns.numbers("num_heads", above=0), columns.numbers("num_key_value_heads", above=0)
    phase = columns.texts("phase")
    return [
        ProfileRows(
            "aiconfigurator_attention",
            columns.texts("gpu"),
            buckets(phase, heads, kv),
            constant_column("bf16", len(columns)),
            columns.numbers("latency_ms", above=0),
            {
                "batch": columns.numbers("batch_size", above=0),
                "tokens": columns.numbers("isl", above=0),
                "past": columns.numbers("step"),
                "heads": heads,
                "kv_heads": kv,
                "width": columns.numbers("head_dim", above=0),
                "window": columns.numbers("window_size"),
            },
            {"op": phase},
        )
    ]
