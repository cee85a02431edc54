"""Answers of /api/v1/usage."""

from msgspec import UNSET, Struct, UnsetType

from gpuyard.live.wire.limits import Instant


class UsageFigures(Struct, frozen=True, kw_only=True):
    """Sums over the window. GPU-hours that were not measured are neither used nor idle."""

    tasks: int
    """Tasks that waited or held GPUs in the window."""
    gpu_hours: float
    used_gpu_hours: float
    idle_gpu_hours: float
    failed_gpu_hours: float
    preempted_gpu_hours: float
    out_of_memory_gpu_hours: float
    energy_kwh: float
    wait_hours: float


class UsageRow(UsageFigures, frozen=True, kw_only=True):
    """The sums of one combination of the keys that were asked for; other keys are left out."""

    tenant: str | UnsetType = UNSET
    user: str | UnsetType = UNSET
    project: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    day: str | UnsetType = UNSET
    """The date in UTC."""
    hour: Instant | UnsetType = UNSET
    """The beginning of the hour."""


class UsageAnswer(Struct, frozen=True):
    """Usage of a window, by the keys in `by`."""

    since: Instant
    until: Instant
    by: list[str]
    rows: list[UsageRow]
    total: UsageFigures
