"""The answer of /api/v1 about a task that was not submitted: where and when it would start."""

from typing import Literal

from msgspec import Struct

from gpuyard.live.wire.limits import Instant


class StartRange(Struct, frozen=True):
    """When a task would start; null: unknown, because tasks ahead of it have no estimate."""

    earliest: Instant | None
    likely: Instant | None
    latest: Instant | None


class SecondsRange(Struct, frozen=True):
    """A predicted run time; the range holds for nine of ten tasks."""

    low: float
    likely: float
    high: float


class PredictedUse(Struct, frozen=True):
    """What is predicted for the task; null: unknown."""

    seconds: SecondsRange | None
    memory_mb: int | None
    """Memory on each GPU, on the GPU model where the task would start."""
    predicted_from: int | None
    """Number of similar runs from which the run time was predicted."""


class QuotaFigures(Struct, frozen=True):
    """Use of the quotas of a task, in GPUs; a limit is null if there is none."""

    class_limit: float | None
    class_used: float
    tenant_limit: float | None
    tenant_used: float


class QuotaEffect(Struct, frozen=True):
    """Use of the quotas now, and while the task runs."""

    before: QuotaFigures
    after: QuotaFigures


class PreviewAnswer(Struct, frozen=True, kw_only=True):
    """What would happen to a task. Nothing was submitted or recorded."""

    would_start: Literal["now", "later", "never"]
    node_id: str | None
    """The node, or the first node of a gang; null unless it would start now on free GPUs."""
    gpus: list[str]
    """As `NODE/INDEX`."""
    expected_start: StartRange
    reason: str | None
    """Why it would wait, or would never start; null: it would start now on free GPUs."""
    reason_code: str | None
    ahead: int
    """Number of waiting tasks that would go before it."""
    preempts: list[str]
    """Tasks that would be stopped for it."""
    predicted: PredictedUse
    quota: QuotaEffect
