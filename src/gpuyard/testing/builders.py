"""Builders: short functions that make the tasks and nodes of a test."""

from dataclasses import dataclass
from typing import Any

from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.task import Estimate, Resources, Share, TaskSpec
from gpuyard.core.domain.values import NodeId, TaskClass, TenantId


@dataclass(frozen=True)
class TaskBuilder:
    """A task with a name in the story, and optionally a run time."""

    name: str
    spec: TaskSpec
    runs_for: float | None = None
    after: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()


_RESOURCES = set(Resources.__struct_fields__)


def task(
    name: str,
    *,
    gpus: int = 0,
    runs_for: float | None = None,
    estimate: float | Estimate | None = None,
    after: tuple[str, ...] = (),
    after_any: tuple[str, ...] = (),
    tenant: str = "team",
    online: bool = False,
    **more: Any,
) -> TaskBuilder:
    """Build a task, by default with one GPU on one node; `more` are fields of Resources or TaskSpec."""
    resources = {field: more.pop(field) for field in list(more) if field in _RESOURCES}
    if not gpus and not resources.get("share") and not resources.get("cpus"):
        gpus = 1
    if isinstance(estimate, float | int):
        estimate = Estimate(float(estimate), float(estimate), float(estimate))
    spec = TaskSpec(
        TenantId(tenant),
        Resources(gpus=gpus, **resources),
        name=name,
        command=more.pop("command", "true"),
        task_class=TaskClass.ONLINE if online else TaskClass.BATCH,
        estimate=estimate,
        **more,
    )
    return TaskBuilder(name, spec, runs_for, after, after_any)


def gang(name: str, *, members: int, gpus_each: int, **more: Any) -> TaskBuilder:
    """Build a task over several nodes."""
    return task(name, gpus=gpus_each, nodes=members, **more)


def share(name: str, *, fraction: float = 0.0, memory_mib: int = 0, **more: Any) -> TaskBuilder:
    """Build a task that needs part of a GPU."""
    return task(name, share=Share(round(fraction * 1000), memory_mib), **more)


def cpu_task(name: str, *, cpus: int, **more: Any) -> TaskBuilder:
    """Build a task without GPUs."""
    return task(name, cpus=cpus, **more)


def node(
    name: str,
    *,
    gpus: int = 8,
    model: str = "A100",
    gpu_memory_mib: int = 40_960,
    cpus: int = 64,
    memory_mib: int = 512_000,
    **labels: str,
) -> NodeSpec:
    """Build a node with identical GPUs: two NUMA domains, each with its own NVLink."""
    gpu_specs = tuple(
        Gpu(model, gpu_memory_mib, numa=place * 2 // max(gpus, 1), nvlink=place * 2 // max(gpus, 1))
        for place in range(gpus)
    )
    return NodeSpec(NodeId(name), gpu_specs, cpus, memory_mib, tuple(sorted(labels.items())))
