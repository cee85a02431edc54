"""The monitor of the legacy API: current and recent use of the GPUs."""

import time

from msgspec.structs import replace

from gpuyard.core.domain.values import TaskId, TaskStatus, TenantId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import Action, Principal, may
from gpuyard.live.control_plane.history.recent import PastSample, newest_samples
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.history import store_of
from gpuyard.live.control_plane.rest.legacy.messages import DeviceMetrics, SystemMetrics, device_numbers
from gpuyard.live.control_plane.rest.lookup import tenant_of_task
from gpuyard.live.control_plane.rest.query import counted
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import LargeResponse, Response, encode, encoded, json_response, separated
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.control_plane.time_slices import TimeSlicer
from gpuyard.live.control_plane.views import NodeView
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.limits import instant_of
from gpuyard.live.wire.tasks import format_task_id

USUAL_SAMPLES = 720
"""Twelve minutes at one sample a second."""
MOST_SAMPLES = 86_400
MOST_GPU_SAMPLES = 50_000
"""Samples of all devices in one answer: about 15 MB."""
SAMPLES = counted("limit", f"Number of newest samples (default: {USUAL_SAMPLES}).", 1, MOST_SAMPLES)
_SILENT = pb.GpuUse()


async def get_metrics(context: AppContext, request: Request) -> Response:
    """Return the current metrics of all devices."""
    _check_served(context)
    metrics = await metrics_of(context.scheduler)
    devices = await encoded(_seen_device(device, request.principal) for device in metrics.device_metrics)
    own = {
        name: part
        for name, part in metrics.tenant_utilization.items()
        if may(request.principal, Action.SEE, TenantId(name))
    }
    rest = encode(replace(metrics, device_metrics=[], tenant_utilization=own))
    before, key, after = rest.partition(b'"device_metrics":[')
    return LargeResponse([before, key, *separated(devices), after])


async def get_device(context: AppContext, request: Request) -> Response:
    """Return the current metrics of one device."""
    _check_served(context)
    number = _number(request)
    device = _device(context.scheduler, number)
    if device is None:
        raise _no_device(request)
    return json_response(_seen_device(device, request.principal))


async def get_history(context: AppContext, request: Request) -> Response:
    """Return recent samples of all devices by device number, oldest first."""
    _check_served(context)
    devices = _numbered(context.scheduler)
    found = await _past(context, request, devices)
    lists, turns = list[bytes](), TimeSlicer()
    for number in sorted(devices):
        samples = [encode(sample) for sample in found[number]]
        if samples:
            lists.append(b'"%d":[%s]' % (number, b",".join(samples)))
        if turns.due():
            await turns.give()
    return LargeResponse([b"{", *separated(lists), b"}"])


async def get_device_history(context: AppContext, request: Request) -> Response:
    """Return recent samples of one device, oldest first."""
    _check_served(context)
    number, devices = _number(request), _numbered(context.scheduler)
    if number not in devices:
        raise _no_device(request)
    found = await _past(context, request, {number: devices[number]})
    return LargeResponse([b"[", *separated(await encoded(found[number])), b"]"])


def _numbered(scheduler: Scheduler) -> dict[int, tuple[NodeView, int]]:
    """Return the node and the index of every device, by number."""
    nodes = scheduler.views.nodes
    numbers = device_numbers(view.spec for view in nodes.values())
    return {
        first + index: (nodes[name], index)
        for name, first in numbers.items()
        for index in range(len(nodes[name].spec.gpus))
    }


async def _past(
    context: AppContext, request: Request, devices: dict[int, tuple[NodeView, int]]
) -> dict[int, list[DeviceMetrics]]:
    """Return the newest samples of these devices; fewer of each if there are many devices."""
    scheduler, store = context.scheduler, store_of(context)
    limit = min(request.query.get("limit", USUAL_SAMPLES), max(1, MOST_GPU_SAMPLES // max(1, len(devices))))
    names = {number: f"{node.spec.id}/{index}" for number, (node, index) in devices.items()}
    interval = float(context.settings.monitor.interval)
    samples = await scheduler.worker_pools.history_reader.run(
        newest_samples, store, list(names.values()), limit, scheduler.clock(), interval
    )
    tenants: dict[TaskId, TenantId | None] = {}
    found, turns = dict[int, list[DeviceMetrics]](), TimeSlicer()
    for number, (node, index) in devices.items():
        found[number], name = [], names[number]
        now = _devices(scheduler, node, number - index, "")[index]
        for sample in samples[name]:
            task = TaskId(sample.task)
            if task and task not in tenants:
                tenants[task] = await tenant_of_task(scheduler, task)
            found[number].append(_seen_device(_past_device(now, sample, tenants.get(task) or ""), request.principal))
            if turns.due():
                await turns.give()
    return found


def _past_device(now: DeviceMetrics, sample: PastSample, tenant: str) -> DeviceMetrics:
    """Return a sample in the legacy form. Fan speeds are not kept; the limit is the present one."""
    return replace(
        now,
        timestamp=instant_of(sample.at),
        gpu_utilization=round(sample.utilization or 0),
        memory_used=round(sample.memory_mib or 0),
        temperature=round(sample.temperature or 0),
        power_usage=round(sample.power_watts or 0.0, 1),
        fan_speed=0,
        allocated=sample.allocated,
        tenant_id=tenant,
        task_id=format_task_id(TaskId(sample.task)) if sample.task else "",
    )


def _check_served(context: AppContext) -> None:
    monitor = context.settings.monitor
    if not (monitor.enabled and monitor.http_api):
        key = "monitor.http_api" if monitor.enabled else "monitor.enabled"
        message = f"The monitor is disabled by {key} in the settings of the scheduler."
        raise WrongRequest("MonitorOff", message, status=404)


def _number(request: Request) -> int:
    text = request.path_params["id"]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise _no_device(request)
    return int(text)


def _no_device(request: Request) -> WrongRequest:
    shown = request.path_params["id"][:20]
    message = f"Device {shown} does not exist. Devices are numbered from 0; GET /api/monitor/metrics lists them."
    return WrongRequest("UnknownDevice", message, "id", status=404)


def _seen_device(device: DeviceMetrics, principal: Principal) -> DeviceMetrics:
    """Hide the tenant that holds a device unless the caller may see that tenant."""
    if may(principal, Action.SEE, TenantId(device.tenant_id)):
        return device
    return replace(device, tenant_id="", task_id="")


def _device(scheduler: Scheduler, number: int) -> DeviceMetrics | None:
    """Return the current metrics of a device; None if there is no such number."""
    nodes = scheduler.views.nodes
    for name, first in device_numbers(view.spec for view in nodes.values()).items():
        if first <= number < first + len(nodes[name].spec.gpus):
            return _devices(scheduler, nodes[name], first, instant_of(time.time()))[number - first]
    return None


async def metrics_of(scheduler: Scheduler) -> SystemMetrics:
    """Take a sample of the cluster, in slices: with thousands of nodes the event loop must continue meanwhile."""
    at = instant_of(time.time())
    numbers = device_numbers(view.spec for view in scheduler.views.nodes.values())
    devices, sums, turns = list[DeviceMetrics](), _Sums(), TimeSlicer()
    for name in sorted(scheduler.views.nodes):
        node = scheduler.views.nodes.get(name)
        if node is None:
            continue  # the node was removed meanwhile
        found = _devices(scheduler, node, numbers[name], at)
        devices += found
        sums.add(found)
        if turns.due():
            await turns.give()
    counts = scheduler.views.counts.values()
    active = (TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.SUSPENDED)
    tasks = [sum(count.get(status, 0) for status in active) for count in counts]
    return SystemMetrics(
        timestamp=at,
        total_gpus=len(devices),
        allocated_gpus=sums.allocated,
        avg_utilization=_mean(sums.utilization, len(devices)),
        avg_memory_usage=_mean(sums.memory, len(devices)),
        avg_temperature=_mean(sums.temperature, len(devices)),
        avg_power_usage=_mean(sums.power, len(devices)),
        device_metrics=devices,
        active_tenants=sum(count > 0 for count in tasks),
        active_tasks=sum(tasks),
        tenant_utilization={tenant: _mean(*busy) for tenant, busy in sorted(sums.busy.items())},
    )


class _Sums:
    """The sums from which the averages of a sample are computed, added node by node."""

    def __init__(self) -> None:
        self.allocated = 0
        self.utilization = self.memory = self.temperature = self.power = 0.0
        self.busy: dict[str, tuple[float, int]] = {}
        """Per tenant: total utilization and number of the devices it holds."""

    def add(self, devices: list[DeviceMetrics]) -> None:
        """Add the devices of one node."""
        for device in devices:
            self.allocated += device.allocated
            self.utilization += device.gpu_utilization
            self.memory += 100.0 * device.memory_used / (device.memory_total or 1)
            self.temperature += device.temperature
            self.power += device.power_usage
            if device.tenant_id:
                total, count = self.busy.get(device.tenant_id, (0.0, 0))
                self.busy[device.tenant_id] = (total + device.gpu_utilization, count + 1)


def _devices(scheduler: Scheduler, node: NodeView, first: int, at: str) -> list[DeviceMetrics]:
    told = scheduler.agents.telemetry.get(node.spec.id)
    uses = {use.index: use for use in told.gpus} if told and not node.is_silent else {}
    found = []
    for index, gpu in enumerate(node.spec.gpus):
        use = uses.get(index, _SILENT)
        task = next(iter(node.on_gpu[index]), None)
        view = scheduler.views.tasks.get(task) if task is not None else None
        found.append(
            DeviceMetrics(
                device_id=first + index,
                timestamp=at,
                gpu_utilization=round(use.utilization_percent),
                memory_used=use.memory_used_mib,
                memory_total=gpu.memory_mib,
                temperature=round(use.temperature_c),
                power_usage=use.power_watts,
                power_limit=use.power_limit_watts,
                fan_speed=round(use.fan_percent),
                allocated=task is not None,
                tenant_id=view.spec.tenant if view else "",
                task_id=format_task_id(task) if task is not None else "",
                node_id=node.spec.id,
                device_index=index,
                model=gpu.model,
            )
        )
    return found


def _mean(total: float, count: int) -> float:
    return round(total / count, 3) if count else 0.0
