"""Converts events to the terms of the API for the event stream: `task-7`, and the field names and statuses of tasks.

One table defines the conversion of each field of an event. Fields that only the engine needs are left out.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec import Struct, to_builtins

from gpuyard.core.domain import events
from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.booking import BookedGpus, Booking
from gpuyard.core.domain.causes import Cause
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.task import Estimate
from gpuyard.core.domain.tenant import Tenant
from gpuyard.core.domain.values import NodeId, TaskId, TaskStatus
from gpuyard.live.wire.booking_answers import format_booking_id
from gpuyard.live.wire.limits import instant_of
from gpuyard.live.wire.task_answers import answer_of, gpu_ids
from gpuyard.live.wire.tasks import format_task_id

Fields: TypeAlias = dict[str, Any]

STATUSES: dict[type[events.Event], TaskStatus] = {
    events.TaskSubmitted: TaskStatus.PENDING,
    events.TaskRequeued: TaskStatus.PENDING,
    events.AttemptStarted: TaskStatus.RUNNING,
    events.AttemptResumed: TaskStatus.RUNNING,
    events.AttemptRecovered: TaskStatus.RUNNING,
    events.AttemptSuspended: TaskStatus.SUSPENDED,
}
"""The status of a task after an event; `TaskEnded` has its own."""


def event_answer(event: events.Event, at: float, by: str) -> Fields:
    """Return an event as the API represents it."""
    told: Fields = {"type": events.name_of(event)}
    if isinstance(event, events.TaskSubmitted):
        return told | {"task_id": format_task_id(event.task), "status": "pending", "task": _submitted(event, at, by)}
    if (status := STATUSES.get(type(event))) is not None:
        told["status"] = status
    for field, name in zip(event.__struct_fields__, event.__struct_encode_fields__, strict=True):
        value = getattr(event, field)
        told |= FIELDS[name](value) if name in FIELDS else {name: to_builtins(value)}
    if isinstance(event, events.GpuHealthChanged):
        told["gpu_id"] = f"{event.node}/{event.gpu}"
    return told


def _submitted(event: events.TaskSubmitted, at: float, by: str) -> Struct:
    return answer_of(
        event.task,
        event.spec,
        status=TaskStatus.PENDING,
        priority=event.spec.priority,
        submitted_at=at,
        started_at=None,
        finished_at=None,
        exit_code=None,
        signal=None,
        attempts=0,
        placement=None,
        reason=None,
        reason_code=None,
        created_by=by,
    )


def _task(task: TaskId) -> Fields:
    return {"task_id": format_task_id(task)}


def _node(node: NodeId | NodeSpec) -> Fields:
    if not isinstance(node, NodeSpec):
        return {"node_id": node}
    gpus = [{"model": gpu.model, "memory_mb": gpu.memory_mib, "virtual": gpu.virtual} for gpu in node.gpus]
    sizes = {"cpu_count": node.cpus, "memory_mb": node.memory_mib, "labels": dict(node.labels)}
    return {"node_id": node.id, "gpus": gpus, **sizes}


def _placement(placement: Placement) -> Fields:
    return {"node_ids": list(placement.nodes), "allocated_gpus": gpu_ids(placement)}


def _cause(cause: Cause) -> Fields:
    return {"reason": cause.sentence(), "reason_code": cause.why}


def _because(cause: Cause | None) -> Fields:
    """Return why it was decided; empty for older events, which do not record it."""
    return {} if cause is None else _cause(cause)


def _estimate(estimate: Estimate | None) -> Fields:
    return {
        "estimated_seconds": estimate.seconds if estimate else None,
        "estimated_low_seconds": estimate.low_seconds if estimate else None,
        "estimated_high_seconds": estimate.high_seconds if estimate else None,
        "predicted_from": (estimate.runs or None) if estimate else None,
    }


def _actual(actual: Actual | None) -> Fields:
    return {
        "gpu_memory_peak_mib": actual.gpu_memory_peak_mib if actual else None,
        "gpu_utilization": actual.gpu_utilization if actual else None,
        "gpu_idle_fraction": actual.gpu_idle_fraction if actual else None,
        "gpu_power_watts": actual.gpu_power_watts if actual else None,
    }


def _tenant(tenant: Tenant) -> Fields:
    limits: Fields = to_builtins(tenant)
    return {"tenant_id": limits.pop("id"), **limits}


def _remains(remains: tuple[Any, ...]) -> Fields:
    """Return what may still run: for an ended attempt the nodes, for a node that is back the tasks."""
    return {"remains": [format_task_id(one[0]) if isinstance(one, tuple) else one for one in remains]}


def _instant(name: str) -> Callable[[float | None], Fields]:
    return lambda value: {name: None if value is None else instant_of(value)}


def _nothing(value: object) -> Fields:  # noqa: ARG001
    return {}


def _booking(booking: int | Booking) -> Fields:
    if not isinstance(booking, Booking):
        return {"booking_id": format_booking_id(booking)}
    return {
        "booking_id": format_booking_id(booking.id),
        "tenant_id": booking.tenant,
        "user": booking.user,
        "begins_at": instant_of(booking.begins_at),
        "ends_at": instant_of(booking.ends_at),
        "gpu_count": booking.gpus,
        **_parts(booking.parts),
        "maintenance": booking.maintenance,
        "preempt": booking.preempt,
        "note": booking.note,
    }


def _parts(parts: tuple[BookedGpus, ...]) -> Fields:
    return {"parts": [{"node_id": part.node, "gpu_count": part.gpus} for part in parts]}


FIELDS: dict[str, Callable[[Any], Fields]] = {
    "task": _task,
    "node": _node,
    "booking": _booking,
    "parts": _parts,
    "late": lambda tasks: {"late_tasks": [format_task_id(task) for task in tasks]},
    "cordoned": lambda nodes: {"node_ids": list(nodes)},
    "nodes": lambda nodes: {"node_ids": list(nodes)},
    "placement": _placement,
    "cause": _cause,
    "because": _because,
    "estimate": _estimate,
    "actual": _actual,
    "result": lambda sha256: {"result": sha256 or None},
    "tenant": _tenant,
    "remains": _remains,
    "limit": lambda limit: {
        "first_id": format_task_id(limit.first),
        "last_id": format_task_id(limit.last),
        "max_running": limit.most or None,
    },
    "timeout_seconds": lambda seconds: {"timeout": seconds},
    "gpu_memory_mib": lambda mib: {"gpu_memory_mb": mib or None},
    "last_task": lambda task: {"last_task_id": format_task_id(task) if task else None},
    "split": to_builtins,
    "gpu": _nothing,
    "tenant_key": _nothing,
    "instance": _nothing,
    "boot": _nothing,
    "part": lambda part: {"allocated_gpus": gpu_ids(Placement((part,)))},
    "wanted": lambda part: {"wanted_gpus": gpu_ids(Placement((part,))) if part is not None else []},
    "back_by": _instant("back_by"),
    "started_at": _instant("started_at"),
    "ended_at": _instant("ended_at"),
    "deadline": _instant("deadline"),
    "not_before": _instant("not_before"),
    "starts_at": _instant("starts_at"),
    "patient_until": _instant("patient_until"),
}
