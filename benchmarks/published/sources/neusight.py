"""Single operations in fp32 (sitar-lab/NeuSight, MIT)."""

import numpy as np

from benchmarks.published.sources.buckets import buckets
from gpuyard.learn.performance.dataset import CsvColumns, ProfileRows, constant_column


def products(columns: CsvColumns) -> list[ProfileRows]:
    """`bmm` and `linear`."""
    b, m, n, k = (columns.numbers(name, above=0) for name in "BMNK")
    op = columns.texts("op")
    return [
        ProfileRows(
            "neusight_matmul",
            columns.texts("gpu"),
            buckets(op, n, k),
            constant_column("fp32", len(columns)),
            columns.numbers("latency_ms", above=0),
            {"b": b, "m": m, "n": n, "k": k},
            {"op": op},
        )
    ]


def vectors(columns: CsvColumns) -> list[ProfileRows]:
    """Element by element, and along rows: softmax, layer norm."""
    op = columns.texts("op")
    return [
        ProfileRows(
            "neusight_vector",
            columns.texts("gpu"),
            op,
            constant_column("fp32", len(columns)),
            columns.numbers("latency_ms", above=0),
            {"rows": columns.numbers("B", above=0), "width": columns.numbers("H", above=0)},
            {"op": op},
        )
    ]


def convolutions(columns: CsvColumns) -> list[ProfileRows]:
    """Forward, square images."""
    into, out = columns.numbers("Input_Channel", above=0), columns.numbers("Output_Channel", above=0)
    kernel, stride = columns.numbers("Kernel_Size", above=0), columns.numbers("Stride", above=0)
    return [
        ProfileRows(
            "neusight_conv",
            columns.texts("gpu"),
            buckets(np.char.add(kernel.astype(np.int64).astype(np.str_), "x"), into, out),
            constant_column("fp32", len(columns)),
            columns.numbers("latency_ms", above=0),
            {
                "b": columns.numbers("B", above=0),
                "into": into,
                "out": out,
                "kernel": kernel,
                "size": columns.numbers("Input_Size", above=0),
                "stride": stride,
                "padding": columns.numbers("Padding"),
            },
        )
    ]
