"""The routes of the legacy API."""

from functools import partial

from gpuyard.live.control_plane.access.principal import Action
from gpuyard.live.control_plane.rest.legacy import messages, monitor, tasks, users
from gpuyard.live.control_plane.rest.route import Route
from gpuyard.live.control_plane.rest.tasks import FILTERS
from gpuyard.live.wire.answers import LoginRequest

SEE, SUBMIT, STOP, SEE_YARD, OWN_ACCESS = (
    Action.SEE,
    Action.SUBMIT,
    Action.STOP,
    Action.SEE_YARD,
    Action.OWN_ACCESS,
)

_LEGACY = partial(Route, section="Legacy API, below /api")

# fmt: off
LEGACY = (
    _LEGACY(method="POST", path="/api/tasks", handle=tasks.post_task, action=SUBMIT, request=messages.LegacyTaskRequest, answer=messages.LegacyTask, status=201, errors=(409, 429), idempotent=True, example={"tenant_id": "lab", "name": "train", "gpu_request": 1, "memory_mb": 8192, "priority": 50},
            summary="Ask for GPUs; with a command, run it."),
    _LEGACY(method="GET", path="/api/tasks", handle=tasks.list_tasks, action=SEE, answer=list[messages.LegacyTask], query=FILTERS,
            summary="Tasks, the newest first."),
    _LEGACY(method="GET", path="/api/tasks/{id}", handle=tasks.get_task, action=SEE, answer=messages.LegacyTask, errors=(404,),
            summary="One task."),
    _LEGACY(method="DELETE", path="/api/tasks/{id}", handle=tasks.cancel_task, action=STOP, answer=messages.LegacyCancelled, errors=(404,),
            summary="Cancel a task."),
    _LEGACY(method="POST", path="/api/login", handle=users.login, action=None, request=LoginRequest, answer=messages.LegacyLogin, errors=(401, 429), example={"username": "alice", "password": "correct horse"},
            summary="A token for a username and a password."),
    _LEGACY(method="GET", path="/api/user", handle=users.current_user, action=OWN_ACCESS, answer=messages.CurrentUser,
            summary="Who one is."),
    _LEGACY(method="GET", path="/api/tenant", handle=tasks.current_tenant, action=SEE, answer=messages.CurrentTenant,
            summary="One's own tenant."),
    _LEGACY(method="GET", path="/api/tenants/{id}", handle=tasks.list_tasks_of_tenant, action=SEE, answer=list[messages.LegacyTask], query=FILTERS, errors=(404,),
            summary="A tenant's tasks that are not over."),
    _LEGACY(method="GET", path="/api/stats", handle=tasks.get_stats, action=SEE, answer=messages.StatsAnswer,
            summary="How many tasks there are."),
    _LEGACY(method="GET", path="/api/monitor/metrics", handle=monitor.get_metrics, action=SEE_YARD, answer=messages.SystemMetrics,
            summary="What all GPUs do now."),
    _LEGACY(method="GET", path="/api/monitor/device/{id}", handle=monitor.get_device, action=SEE_YARD, answer=messages.DeviceMetrics, errors=(404,),
            summary="What one GPU does now."),
    _LEGACY(method="GET", path="/api/monitor/history", handle=monitor.get_history, action=SEE_YARD, answer=dict[str, list[messages.DeviceMetrics]], query=(monitor.SAMPLES,),
            summary="What the GPUs did in the last while, by their numbers."),
    _LEGACY(method="GET", path="/api/monitor/history/{id}", handle=monitor.get_device_history, action=SEE_YARD, answer=list[messages.DeviceMetrics], query=(monitor.SAMPLES,), errors=(404,),
            summary="What one GPU did in the last while."),
)
# fmt: on
