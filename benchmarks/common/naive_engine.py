"""The simplest engine: correct, and it scans everything for each decision.

It keeps the waiting tasks sorted and the nodes in a list. For each decision it walks through the waiting tasks in order
and, for each, through all nodes, until something fits. It obeys the same quotas and takes the same best fit, so it
is what the index and the queue are measured against.
"""

from bisect import insort

from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.task import NewTask
from gpuyard.core.domain.values import TaskClass


class NaiveEngine:
    """Waiting tasks in order, nodes in a list, and nothing else."""

    def __init__(self, online_gpus: int, batch_gpus: int, tenant_gpus: int, aging_seconds: float) -> None:
        self.limits = {TaskClass.ONLINE: online_gpus, TaskClass.BATCH: batch_gpus}
        self.used = {TaskClass.ONLINE: 0, TaskClass.BATCH: 0}
        self.tenant_gpus = tenant_gpus
        self.by_tenant: dict[str, int] = {}
        self.aging_seconds = aging_seconds
        self.nodes: list[tuple[NodeSpec, list[bool]]] = []
        self.waiting: list[tuple[float, int, NewTask]] = []
        self.running: dict[int, tuple[NewTask, list[bool], list[int]]] = {}

    def join(self, spec: NodeSpec) -> None:
        """Add a node."""
        self.nodes.append((spec, [False] * len(spec.gpus)))

    def submit(self, new: NewTask, now: float) -> None:
        """Add a waiting task."""
        points = new.spec.priority + (100 if new.spec.task_class is TaskClass.ONLINE else 0)
        insort(self.waiting, (now - points * self.aging_seconds, new.id, new))

    def end(self, task: int) -> None:
        """End a task."""
        new, busy, gpus = self.running.pop(task)
        for gpu in gpus:
            busy[gpu] = False
        self.used[new.spec.task_class] -= len(gpus)
        self.by_tenant[new.spec.tenant] -= len(gpus)

    def decide(self) -> int | None:
        """Place the first task that fits anywhere; its number, or nothing."""
        for place, (_, number, new) in enumerate(self.waiting):
            spec = new.spec
            wanted = spec.resources.gpus
            if self.used[spec.task_class] + wanted > self.limits[spec.task_class]:
                continue
            if self.by_tenant.get(spec.tenant, 0) + wanted > self.tenant_gpus:
                continue
            best: tuple[int, list[bool]] | None = None
            for node, busy in self.nodes:
                if spec.resources.models and node.gpus[0].model not in spec.resources.models:
                    continue
                free = busy.count(False)
                if free >= wanted and (best is None or free < best[0]):
                    best = (free, busy)
            if best is not None:
                self._start(new, best[1], wanted)
                del self.waiting[place]
                return number
        return None

    def _start(self, new: NewTask, busy: list[bool], wanted: int) -> None:
        gpus = [gpu for gpu, taken in enumerate(busy) if not taken][:wanted]
        for gpu in gpus:
            busy[gpu] = True
        self.running[new.id] = (new, busy, gpus)
        self.used[new.spec.task_class] += wanted
        self.by_tenant[new.spec.tenant] = self.by_tenant.get(new.spec.tenant, 0) + wanted
