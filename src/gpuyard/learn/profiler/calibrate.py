"""Measures the peaks of a GPU: its fastest matrix product for each number type, and its fastest copy.

Data sheets mislead for boards with a power cap; a measurement of one minute is more reliable.
"""

from dataclasses import dataclass

import torch

from gpuyard.learn.profiler.measure import best_ms, launch_us


@dataclass(frozen=True, slots=True)
class Peaks:
    """The measured peaks of one GPU."""

    gpu: str
    fp32_tflops: float
    tf32_tflops: float | None
    bf16_tflops: float | None
    fp16_tflops: float | None
    """None on a CPU: some CPUs that offer these types crash on them."""
    copy_gb_s: float
    """Bytes read plus bytes written."""
    launch_us: float
    """Time of the smallest kernel, launched one after the other."""


_SHORT = ((torch.float32, True), (torch.bfloat16, False), (torch.float16, False))


def calibrate(device: str, seconds: float = 3.0) -> Peaks:
    """Measure each peak for about this number of seconds."""
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    fp32 = _product(device, torch.float32, seconds, tf32=False)
    tf32, bf16, fp16 = (
        _product(device, dtype, seconds, tf32=tf32) if device == "cuda" else None for dtype, tf32 in _SHORT
    )
    return Peaks(name, fp32, tf32, bf16, fp16, _copy(device, seconds), launch_us(device, seconds))


def _product(device: str, dtype: torch.dtype, seconds: float, *, tf32: bool) -> float:
    torch.backends.cuda.matmul.allow_tf32 = tf32
    n = 8192 if device == "cuda" else 512
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * n**3 / (best_ms(lambda: torch.mm(a, b, out=out), device, seconds) / 1000) / 1e12


def _copy(device: str, seconds: float) -> float:
    n = 2**30 if device == "cuda" else 2**24
    a = torch.zeros(n, device=device, dtype=torch.uint8)
    b = torch.empty_like(a)
    return 2 * n / (best_ms(lambda: b.copy_(a), device, seconds) / 1000) / 1e9
