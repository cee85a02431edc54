"""The answers of the history: values of a range of time in equal steps. Times are seconds since 1970."""

from msgspec import Struct, field


class HistoryAnswer(Struct, frozen=True, kw_only=True):
    """Series of the cluster, a node or a GPU."""

    since: float = field(name="from")
    to: float
    step: int
    """Seconds from one time to the next."""
    times: list[float]
    """The start of each step."""
    series: dict[str, list[float | None]]
    """One value a step: the mean of its samples, with `_max` the highest; null: nothing is known."""


class GpuHistory(Struct, frozen=True):
    """Series of one GPU of a task."""

    gpu_id: str
    series: dict[str, list[float | None]]


class TaskHistoryAnswer(Struct, frozen=True, kw_only=True):
    """Series of the GPUs of the last attempt of a task, from its start to its end."""

    since: float | None = field(name="from")
    """Null: no attempt has started."""
    to: float | None
    step: int
    times: list[float]
    gpus: list[GpuHistory]
    gpus_total: int
    """More than the list has: only the first ones are listed."""
