"""The routes of the legacy API."""

from functools import partial

from gpuyard.live.control_plane.access.principal import Action
from gpuyard.live.control_plane.rest.legacy import messages, monitor, tasks, users
from gpuyard.live.control_plane.rest.route import Route
from gpuyard.live.control_plane.rest.tasks import FILTERS
from gpuyard.live.wire.answers import LoginRequest

SEE, SUBMIT, STOP, SEE_CLUSTER, OWN_ACCESS = (
    Action.SEE,
    Action.SUBMIT,
    Action.STOP,
    Action.SEE_CLUSTER,
    Action.OWN_ACCESS,
)

_LEGACY = partial(Route, section="Legacy API, below /api")

# fmt: off
LEGACY = (
    _LEGACY(method="POST", path="/api/tasks", handle=tasks.post_task, action=SUBMIT, request=messages.LegacyTaskRequest, answer=messages.LegacyTask, status=201, errors=(409, 429), idempotent=True, example={"tenant_id": "lab", "name": "train", "gpu_request": 1, "memory_mb": 8192, "priority": 50},
            summary="Request GPUs; with a command, run it."),
    _LEGACY(method="GET", path="/api/tasks", handle=tasks.list_tasks, action=SEE, answer=list[messages.LegacyTask], query=FILTERS,
            summary="List tasks, newest first."),
    _LEGACY(method="GET", path="/api/tasks/{id}", handle=tasks.get_task, action=SEE, answer=messages.LegacyTask, errors=(404,),
            summary="One task."),
    _LEGACY(method="DELETE", path="/api/tasks/{id}", handle=tasks.cancel_task, action=STOP, answer=messages.LegacyCancelled, errors=(404,),
            summary="Cancel a task."),
    _LEGACY(method="POST", path="/api/login", handle=users.login, action=None, request=LoginRequest, answer=messages.LegacyLogin, errors=(401, 429), example={"username": "alice", "password": "correct horse"},
            summary="Create a token for a username and a password."),
    _LEGACY(method="GET", path="/api/user", handle=users.current_user, action=OWN_ACCESS, answer=messages.CurrentUser,
            summary="Show the current user."),
    _LEGACY(method="GET", path="/api/tenant", handle=tasks.current_tenant, action=SEE, answer=messages.CurrentTenant,
            summary="Show the tenant of the current user."),
    _LEGACY(method="GET", path="/api/tenants/{id}", handle=tasks.list_tasks_of_tenant, action=SEE, answer=list[messages.LegacyTask], query=FILTERS, errors=(404,),
            summary="List the open tasks of a tenant."),
    _LEGACY(method="GET", path="/api/stats", handle=tasks.get_stats, action=SEE, answer=messages.StatsAnswer,
            summary="Count tasks by status."),
    _LEGACY(method="GET", path="/api/monitor/metrics", handle=monitor.get_metrics, action=SEE_CLUSTER, answer=messages.SystemMetrics,
            summary="Show the current metrics of all GPUs."),
    _LEGACY(method="GET", path="/api/monitor/device/{id}", handle=monitor.get_device, action=SEE_CLUSTER, answer=messages.DeviceMetrics, errors=(404,),
            summary="Show the current metrics of one GPU."),
    _LEGACY(method="GET", path="/api/monitor/history", handle=monitor.get_history, action=SEE_CLUSTER, answer=dict[str, list[messages.DeviceMetrics]], query=(monitor.SAMPLES,),
            summary="Show recent metrics of all GPUs, by number."),
    _LEGACY(method="GET", path="/api/monitor/history/{id}", handle=monitor.get_device_history, action=SEE_CLUSTER, answer=list[messages.DeviceMetrics], query=(monitor.SAMPLES,), errors=(404,),
            summary="Show recent metrics of one GPU."),
)
# fmt: on
