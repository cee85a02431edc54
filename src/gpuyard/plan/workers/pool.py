"""The port to the workers: one worker for each GPU of a problem, wherever it runs."""

from collections.abc import Sequence
from typing import Any, Protocol

from gpuyard.plan.executor.messages import ExecutorEvent
from gpuyard.plan.workers.order import Order


class Pool(Protocol):
    """Workers by the number of their GPU. Replies and lost workers are returned as events, never raised as errors."""

    @property
    def hosts(self) -> Sequence[int]:
        """The machine of each GPU: a wide model stays on one machine."""

    def open(self, gpus: Sequence[int]) -> None:
        """Start a worker for each GPU; `Back` reports that it is ready, `Lost` that it failed."""

    def send(self, orders: Sequence[tuple[int, Order]]) -> None:
        """Send orders, each to the worker of a GPU."""

    def stop(self, gpus: Sequence[int], *, for_good: bool) -> None:
        """Kill workers at once, whatever they do. Unless `for_good`, new ones are started."""

    def wait(self, seconds: float) -> list[ExecutorEvent]:
        """Return the events since the last call; wait at most this long for the first one."""

    def fetch(self, result: Any) -> Any:
        """Return the value of a result, which is otherwise held by reference."""

    def forget(self, result: Any) -> None:
        """Release a result that is no longer needed."""

    @property
    def expects_workers(self) -> bool:
        """Whether a worker may still become ready by itself."""

    def close(self) -> None:
        """Stop all workers."""
