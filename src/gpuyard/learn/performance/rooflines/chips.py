"""Properties of the GPU of each row, as columns."""

from dataclasses import dataclass

import numpy as np

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance.arrays import FloatArray, TextArray
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.gpu_specs import GpuSpecs

BYTES = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
"""Bytes of a number, by its type."""


def bytes_of(precision: TextArray) -> FloatArray:
    """Return the bytes of a number for each row."""
    unknown = sorted(set(precision.tolist()) - BYTES.keys())
    if unknown:
        raise WrongInput(f"Unknown number type {unknown[0]!r}; known types: {', '.join(BYTES)}")
    return np.array([BYTES[name] for name in precision.tolist()])


@dataclass(frozen=True, slots=True)
class GpuColumns:
    """Capabilities of the GPU of each row, per millisecond."""

    flops: FloatArray
    """FLOPs at the row's number type."""
    plain_flops: FloatArray
    """FLOPs in fp32 without tensor cores."""
    bytes: FloatArray
    sm: FloatArray
    cache: FloatArray
    """Bytes of L2."""
    sustained: FloatArray
    """Share of its arithmetic that its power limit sustains."""
    clock: FloatArray
    """Clock in GHz."""
    launch: FloatArray
    """Time of the smallest kernel in milliseconds; NaN if it was not measured."""

    @staticmethod
    def of(rows: ProfileRows, specs: GpuSpecs) -> "GpuColumns":
        """Look up the GPU of each row; each pair of GPU and precision is looked up once."""
        names, place = np.unique(np.char.add(np.char.add(rows.gpu, "|"), rows.precision), return_inverse=True)
        found = []
        for name in names.tolist():
            gpu, _, precision = name.rpartition("|")
            chip = specs.find(gpu)
            found.append(
                (
                    chip.tflops(precision) * 1e9,
                    chip.fp32_tflops * 1e9,
                    chip.mem_bw_gbs * 1e6,
                    chip.sm_count,
                    chip.l2_mb * 1e6,
                    chip.sustained_tflops(precision) / chip.tflops(precision),
                    chip.boost_clock_mhz / 1e3,
                    np.nan if chip.launch_us is None else chip.launch_us / 1e3,
                )
            )
        return GpuColumns(*np.array(found).T[:, place])
