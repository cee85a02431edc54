"""What pools of worker processes have in common, on this machine and on others: restarts, and packed results."""

from typing import Any

from gpuyard.plan.executor.messages import Done, ExecutorEvent, Failed
from gpuyard.plan.workers.order import Reply
from gpuyard.plan.workers.restarts import Restarts


class ProcessPool:
    """The part of a `Pool` that does not depend on where its workers are."""

    def __init__(self) -> None:
        self._coming: set[int] = set()
        """GPUs whose worker was started and is not ready yet."""
        self._restarts = Restarts()
        self._happened: list[ExecutorEvent] = []

    @property
    def expects_workers(self) -> bool:
        """Whether a worker may still become ready."""
        return bool(self._restarts or self._coming)

    def fetch(self, result: Any) -> Any:
        """Unpickle a result."""
        return None if result is None else result.unpack()

    def forget(self, result: Any) -> None:
        """Delete the file of a result, if it has one."""
        if result is not None:
            result.drop()


def event_of(reply: Reply) -> ExecutorEvent:
    """Return the event that a reply means."""
    if reply.why is not None:
        return Failed(reply.operation, reply.why)
    return Done(reply.operation, reply.seconds, reply.result)
