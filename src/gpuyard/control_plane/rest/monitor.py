"""002's monitor: what the GPUs do now, and what they did in the last while."""

import asyncio
import time
from collections import defaultdict

from msgspec.structs import replace

from gpuyard.control_plane.access.who import Action, Who, may
from gpuyard.control_plane.rest.answer import Answer, say
from gpuyard.control_plane.rest.call import Call, Desk
from gpuyard.control_plane.rest.history import MOST_SAMPLES
from gpuyard.control_plane.rest.query import counted
from gpuyard.control_plane.slices import Turns
from gpuyard.control_plane.views import NodeView
from gpuyard.control_plane.yard import Yard
from gpuyard.domain.values import TaskStatus, TenantId
from gpuyard.wire import agents_pb2 as pb
from gpuyard.wire.dialect import DeviceMetrics, SystemMetrics, device_numbers
from gpuyard.wire.limits import instant_of
from gpuyard.wire.strict import WrongRequest
from gpuyard.wire.tasks import spoken_task_id

USUAL_SAMPLES = 720
"""An hour, one every five seconds."""
SAMPLES = counted("limit", f"So many of the newest samples, {USUAL_SAMPLES} if left out.", 1, MOST_SAMPLES)
_SILENT = pb.GpuUse()


async def keep_history(desk: Desk) -> None:
    """Take a sample every while, for ever; none if the monitor is off."""
    while desk.settings.monitor.enabled:
        desk.history.add(await metrics_of(desk.yard), time.monotonic())
        await asyncio.sleep(float(desk.settings.monitor.interval))


async def get_metrics(desk: Desk, call: Call) -> Answer:
    """Everything, now."""
    _check_served(desk)
    return say(_seen(await metrics_of(desk.yard), call.who))


async def get_device(desk: Desk, call: Call) -> Answer:
    """One device, now."""
    _check_served(desk)
    number = _number(call)
    device = _device(desk.yard, number)
    if device is None:
        raise _no_device(call)
    return say(_seen_device(device, call.who))


async def get_history(desk: Desk, call: Call) -> Answer:
    """All devices, for a while: the samples of each by its number, the oldest first."""
    _check_served(desk)
    found: dict[str, list[DeviceMetrics]] = {}
    for sample in desk.history.newest(call.asked.get("limit", USUAL_SAMPLES)):
        for device in _seen(sample, call.who).device_metrics:
            found.setdefault(str(device.device_id), []).append(device)
    return say(found)


async def get_device_history(desk: Desk, call: Call) -> Answer:
    """One device, for a while, the oldest sample first."""
    _check_served(desk)
    number = _number(call)
    found, turns = list[DeviceMetrics](), Turns()
    for sample in desk.history.newest(call.asked.get("limit", USUAL_SAMPLES)):
        found += [_seen_device(device, call.who) for device in sample.device_metrics if device.device_id == number]
        if turns.due():
            await turns.give()
    if not found and _device(desk.yard, number) is None:
        raise _no_device(call)
    return say(found)


def _check_served(desk: Desk) -> None:
    monitor = desk.settings.monitor
    if not (monitor.enabled and monitor.http_api):
        key = "monitor.http_api" if monitor.enabled else "monitor.enabled"
        message = f"The monitor is switched off by {key} in the scheduler's settings."
        raise WrongRequest("MonitorOff", message, status=404)


def _number(call: Call) -> int:
    text = call.named["id"]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise _no_device(call)
    return int(text)


def _no_device(call: Call) -> WrongRequest:
    shown = call.named["id"][:20]
    message = f"There is no device {shown}; they are numbered from 0, and GET /api/monitor/metrics lists them."
    return WrongRequest("UnknownDevice", message, "id", status=404)


def _seen(metrics: SystemMetrics, who: Who) -> SystemMetrics:
    """What somebody may know: which tenant holds a device only if they see that tenant."""
    if may(who, Action.SEE):
        return metrics
    devices = [_seen_device(device, who) for device in metrics.device_metrics]
    own = {name: part for name, part in metrics.tenant_utilization.items() if may(who, Action.SEE, TenantId(name))}
    return replace(metrics, device_metrics=devices, tenant_utilization=own)


def _seen_device(device: DeviceMetrics, who: Who) -> DeviceMetrics:
    if may(who, Action.SEE, TenantId(device.tenant_id)):
        return device
    return replace(device, tenant_id="", task_id="")


def _device(yard: Yard, number: int) -> DeviceMetrics | None:
    """One device as it is now; none: there is no such number."""
    nodes = yard.views.nodes
    for name, first in device_numbers(view.spec for view in nodes.values()).items():
        if first <= number < first + len(nodes[name].spec.gpus):
            return _devices(yard, nodes[name], first, instant_of(time.time()))[number - first]
    return None


async def metrics_of(yard: Yard) -> SystemMetrics:
    """A sample of the yard as it is, taken in slices: with thousands of nodes the event loop goes on meanwhile."""
    at = instant_of(time.time())
    numbers = device_numbers(view.spec for view in yard.views.nodes.values())
    devices, turns = list[DeviceMetrics](), Turns()
    for name in sorted(yard.views.nodes):
        node = yard.views.nodes.get(name)
        if node is None:
            continue  # it was removed meanwhile
        devices += _devices(yard, node, numbers[name], at)
        if turns.due():
            await turns.give()
    counts = yard.views.counts.values()
    active = (TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.SUSPENDED)
    tasks = [sum(count.get(status, 0) for status in active) for count in counts]
    return SystemMetrics(
        timestamp=at,
        total_gpus=len(devices),
        allocated_gpus=sum(device.allocated for device in devices),
        avg_utilization=_mean([device.gpu_utilization for device in devices]),
        avg_memory_usage=_mean([100.0 * device.memory_used / (device.memory_total or 1) for device in devices]),
        avg_temperature=_mean([device.temperature for device in devices]),
        avg_power_usage=_mean([device.power_usage for device in devices]),
        device_metrics=devices,
        active_tenants=sum(count > 0 for count in tasks),
        active_tasks=sum(tasks),
        tenant_utilization=_busy_by_tenant(devices),
    )


def _devices(yard: Yard, node: NodeView, first: int, at: str) -> list[DeviceMetrics]:
    told = yard.agents.telemetry.get(node.spec.id)
    uses = {use.index: use for use in told.gpus} if told and not node.lost else {}
    found = []
    for index, card in enumerate(node.spec.gpus):
        use = uses.get(index, _SILENT)
        task = next(iter(node.on_gpu[index]), None)
        view = yard.views.tasks.get(task) if task is not None else None
        found.append(
            DeviceMetrics(
                device_id=first + index,
                timestamp=at,
                gpu_utilization=round(use.utilization_percent),
                memory_used=use.memory_used_mib,
                memory_total=card.memory_mib,
                temperature=round(use.temperature_c),
                power_usage=use.power_watts,
                power_limit=use.power_limit_watts,
                fan_speed=round(use.fan_percent),
                allocated=task is not None,
                tenant_id=view.spec.tenant if view else "",
                task_id=spoken_task_id(task) if task is not None else "",
                node_id=node.spec.id,
                device_index=index,
                model=card.model,
            )
        )
    return found


def _busy_by_tenant(devices: list[DeviceMetrics]) -> dict[str, float]:
    """How busy the devices are that each tenant holds, on average, in percent."""
    held: defaultdict[str, list[float]] = defaultdict(list)
    for device in devices:
        if device.tenant_id:
            held[device.tenant_id].append(device.gpu_utilization)
    return {tenant: _mean(busy) for tenant, busy in sorted(held.items())}


def _mean(values: list[float]) -> float:
    return round(sum(values) / len(values), 3) if values else 0.0
