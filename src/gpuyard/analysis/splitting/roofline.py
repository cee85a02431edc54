"""GPUs by their data sheets, and the time of an operation on paper: arithmetic or memory, whichever takes longer.

What a real kernel reaches of the peaks is taken to be the same for all: six tenths of the arithmetic, eight of the bandwidth, and
a few microseconds to start it. Speed-ups are ratios, so the exact part matters little; how arithmetic, memory and links compare
matters much.
"""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Final, Literal

from msgspec import Struct

from gpuyard.domain.errors import WrongInput

Cost = Callable[[float, float], float]
"""Seconds of one operation, from its FLOPs and the bytes it moves."""
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
OF_PEAK, OF_BANDWIDTH, OF_LINK = 0.6, 0.8, 0.8
LAUNCH_SECONDS = 5e-6
LINK_SECONDS = 1e-5
"""Before the first byte of a message arrives."""


class Gpu(Struct, frozen=True):
    """From the data sheet; without sparsity."""

    name: str
    fp32_tflops: float
    tf32_tflops: float
    half_tflops: float
    """bf16, or fp16 where there is no bf16, with sums in fp32."""
    memory_gb: float
    bandwidth_gbs: float
    link_gbs: float
    """One way between two GPUs of a node: NVLink, else PCIe."""


GPUS: Final = {
    gpu.name: gpu
    for gpu in (
        Gpu("P100", 9.3, 9.3, 18.7, 16, 732, 12),
        Gpu("V100", 15.7, 15.7, 125, 32, 900, 150),
        Gpu("T4", 8.1, 8.1, 65, 16, 320, 12),
        Gpu("RTX3090", 35.6, 35.6, 71, 24, 936, 25),
        Gpu("RTX4090", 82.6, 82.6, 165.2, 24, 1008, 25),
        Gpu("RTX5090", 104.8, 104.8, 209.5, 32, 1792, 50),
        Gpu("A10", 31.2, 62.5, 125, 24, 600, 25),
        Gpu("A30", 10.3, 82, 165, 24, 933, 100),
        Gpu("A40", 37.4, 74.8, 149.7, 48, 696, 56),
        Gpu("A100-40GB", 19.5, 156, 312, 40, 1555, 300),
        Gpu("A100", 19.5, 156, 312, 80, 2039, 300),
        Gpu("L4", 30.3, 60, 121, 24, 300, 25),
        Gpu("L40S", 91.6, 183, 362, 48, 864, 25),
        Gpu("H100", 66.9, 494.7, 989.4, 80, 3352, 450),
        Gpu("H200", 66.9, 494.7, 989.4, 141, 4800, 450),
        Gpu("B200", 75, 1125, 2250, 180, 7700, 900),
        Gpu("MI300X", 163.4, 653.7, 1307.4, 192, 5300, 448),
    )
}


def gpu_named(name: str) -> Gpu:
    """One of the table, whatever its letters' case."""
    by_name = {known.lower(): gpu for known, gpu in GPUS.items()}
    found = by_name.get(name.lower().removeprefix("nvidia").strip(" -_"))
    if found is None:
        near = [by_name[one].name for one in get_close_matches(name.lower(), by_name, 3, 0.3)] or sorted(GPUS)
        raise WrongInput(f"There is no GPU {name!r} in the table; nearest: {', '.join(near)}.")
    return found


def roofline(gpu: Gpu, precision: Precision) -> Cost:
    """The cost of an operation on this GPU."""
    tflops = {"fp32": gpu.fp32_tflops, "tf32": gpu.tf32_tflops}.get(precision, gpu.half_tflops)
    flops, moved = tflops * 1e12 * OF_PEAK, gpu.bandwidth_gbs * 1e9 * OF_BANDWIDTH

    def seconds(work: float, size: float) -> float:
        return max(work / flops, size / moved) + LAUNCH_SECONDS

    return seconds
