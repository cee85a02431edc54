"""What a task computes, as far as its user says it, and what is foreseen of it on the GPUs of the yard."""

from collections.abc import Iterable

from gpuyard.core.domain.values import Value


class WorkloadSpec(Value, frozen=True, kw_only=True):
    """Steps of a machine-learning model. Totals are of one sample, for a model nobody has counted."""

    model: str
    mode: str = "train"
    batch: int = 32
    """Samples in a step, on each GPU."""
    precision: str = "fp32"
    compiled: bool = False
    size: int = 224
    """Of the input: pixels a side, or tokens."""
    family: str = ""
    steps: int = 1
    flops: float | None = None
    """In inference."""
    activations: float | None = None
    """Numbers that layers hand on."""
    parameters: float | None = None
    torch: float = 211.0
    """Its version, in hundredths."""


class Forecast(Value, frozen=True, kw_only=True):
    """What work is foreseen to take on one model of GPU."""

    gpu_model: str
    """As the yard calls it."""
    seconds: float
    """Of all its steps; with the band that four of five stay in."""
    low_seconds: float
    high_seconds: float
    memory_mib: float | None = None
    """On each GPU, with what CUDA itself takes; with a band like that. None: nobody can say."""
    memory_low_mib: float | None = None
    memory_high_mib: float | None = None
    utilization: float | None = None
    """In percent."""
    by: str = ""
    """Which model said so: what it was wrong by says nothing of another one."""


def forecast_for(forecasts: Iterable[Forecast], gpu_model: str) -> Forecast | None:
    """That for one model of GPU."""
    return next((one for one in forecasts if one.gpu_model == gpu_model), None)
