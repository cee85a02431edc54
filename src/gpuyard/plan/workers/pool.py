"""The port to the workers: one for each GPU of a problem, wherever it lives."""

from collections.abc import Sequence
from typing import Any, Protocol

from gpuyard.plan.executor.messages import ExecutorEvent
from gpuyard.plan.workers.order import Order


class Pool(Protocol):
    """Workers by the number of their GPU. Replies, and workers that are gone, come as events, never as errors."""

    @property
    def hosts(self) -> Sequence[int]:
        """The machine of each GPU: a wide model stays on one."""

    def open(self, gpus: Sequence[int]) -> None:
        """Begin a worker for each of these; `Back` says when it is there, `Lost` that it can not be."""

    def send(self, orders: Sequence[tuple[int, Order]]) -> None:
        """Orders, each for the worker of a GPU."""

    def stop(self, gpus: Sequence[int], *, for_good: bool) -> None:
        """End workers at once, whatever they do. If not for good, new ones begin in their place."""

    def wait(self, seconds: float) -> list[ExecutorEvent]:
        """What happened; at the latest after so long."""

    def fetch(self, result: Any) -> Any:
        """A result of a call, which is held by reference until somebody wants to see it."""

    def forget(self, result: Any) -> None:
        """Nobody needs a result any more."""

    @property
    def expects_workers(self) -> bool:
        """Whether some worker may still come (back) by itself."""

    def close(self) -> None:
        """End all workers."""
