"""The declared computation of a task, and its predictions on the GPUs of the cluster."""

from collections.abc import Iterable

from gpuyard.core.domain.values import Value


class WorkloadSpec(Value, frozen=True, kw_only=True):
    """Steps of a machine-learning model.

    `flops`, `activations` and `parameters` are totals for one sample; they are needed only for an unknown model.
    """

    model: str
    mode: str = "train"
    batch: int = 32
    """Samples per step on each GPU."""
    precision: str = "fp32"
    compiled: bool = False
    size: int = 224
    """Input size: pixels per side, or tokens."""
    family: str = ""
    steps: int = 1
    flops: float | None = None
    """Floating-point operations of one sample in inference."""
    activations: float | None = None
    """The count of values that layers output for one sample."""
    parameters: float | None = None
    torch: float = 211.0
    """The version of PyTorch as a number: 211 is 2.11."""


class Forecast(Value, frozen=True, kw_only=True):
    """The predicted time and memory of a workload on one GPU model."""

    gpu_model: str
    """The name of the GPU model in the cluster."""
    seconds: float
    """Run time of all steps; `low_seconds` and `high_seconds` are an 80 % interval."""
    low_seconds: float
    high_seconds: float
    memory_mib: float | None = None
    """Memory per GPU, including that of CUDA itself; the low and high values are an 80 % interval. None: unknown."""
    memory_low_mib: float | None = None
    memory_high_mib: float | None = None
    utilization: float | None = None
    """GPU utilization, in percent; None: unknown."""
    by: str = ""
    """The performance model that made the prediction; errors are corrected separately for each one."""


def forecast_for(forecasts: Iterable[Forecast], gpu_model: str) -> Forecast | None:
    """Return the forecast for one GPU model, or None."""
    return next((one for one in forecasts if one.gpu_model == gpu_model), None)
