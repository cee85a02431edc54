"""The route table: every endpoint with its permission, request type and response type.

Dispatch, the OpenAPI document and the documentation page are made from it, so they always agree.
"""

from functools import partial

from gpuyard.core.domain import commands as command
from gpuyard.live.control_plane.access.principal import Action
from gpuyard.live.control_plane.rest import (
    events,
    gpus,
    health,
    leases,
    logs,
    manual,
    nodes,
    predictions,
    submit,
    tasks,
    tenants,
    users,
)
from gpuyard.live.control_plane.rest.legacy.routes import LEGACY
from gpuyard.live.control_plane.rest.lookup import SAME
from gpuyard.live.control_plane.rest.route import Route
from gpuyard.live.wire import answers as wire
from gpuyard.live.wire.task_answers import BatchAnswer, TaskAnswer
from gpuyard.live.wire.tasks import BatchRequest, TaskRequest

SEE, SUBMIT, STOP = Action.SEE, Action.SUBMIT, Action.STOP
SEE_CLUSTER, RUN_CLUSTER = Action.SEE_CLUSTER, Action.RUN_CLUSTER
OWN_ACCESS, ALL_ACCESS = Action.OWN_ACCESS, Action.ALL_ACCESS

_TASK = partial(Route, section="Tasks")
_LEASE = partial(Route, section="Leases")
_CLUSTER = partial(Route, section="GPUs, nodes, quota")
_ACCESS = partial(Route, section="Tenants, users, tokens")
_SERVER = partial(Route, section="The scheduler", action=None)

_V1 = "/api/v1"
_ID = f"{_V1}/tasks/{{id}}"
_NODE = f"{_V1}/nodes/{{id}}"
_A_TASK = {"priority": "high", "gpu_count": 1, "command": "python train.py"}

# fmt: off
TASKS = (
    _TASK(method="POST", path=f"{_V1}/tasks", handle=submit.post_task, action=SUBMIT, request=TaskRequest, answer=submit.SubmitAnswer, status=201, errors=(409, 429), idempotent=True, example=_A_TASK,
          summary="Submit a task; with `array`, several tasks, which `tasks` lists."),
    _TASK(method="POST", path=f"{_V1}/tasks:batch", handle=submit.post_batch, action=SUBMIT, request=BatchRequest, answer=BatchAnswer, status=201, errors=(409, 429), idempotent=True, example={"tasks": [_A_TASK]},
          summary="Submit many tasks, all or none."),
    _TASK(method="GET", path=f"{_V1}/tasks", handle=tasks.list_tasks, action=SEE, answer=wire.TaskList, query=tasks.FILTERS,
          summary="List tasks, newest first."),
    _TASK(method="GET", path=_ID, handle=tasks.get_task, action=SEE, answer=TaskAnswer, query=SAME, errors=(404,),
          summary="One task."),
    _TASK(method="PATCH", path=_ID, handle=tasks.change_task, action=STOP, request=tasks.TaskChange, answer=TaskAnswer, query=SAME, errors=(404, 409), example={"priority": 90},
          summary="Change the priority or raise the timeout of a task."),
    _TASK(method="DELETE", path=_ID, handle=tasks.cancel_task, action=STOP, answer=wire.CancelAnswer, query=SAME, errors=(404,),
          summary="Cancel a task; a task that has ended is not changed."),
    _TASK(method="GET", path=f"{_ID}/logs", handle=logs.get_logs, action=SEE, query=logs.PARAMETERS, errors=(404, 409), media="text/plain",
          summary="Get the output of a task."),
    _TASK(method="GET", path=f"{_ID}/explain", handle=tasks.explain_task, action=SEE, answer=wire.ExplainAnswer, query=SAME, errors=(404,),
          summary="Explain why a task waits and when it is likely to start."),
    _TASK(method="POST", path=f"{_ID}/suspend", handle=tasks.command_handler(command.SuspendTask), action=STOP, answer=TaskAnswer, query=SAME, errors=(404, 409),
          summary="Suspend a running task: move it to host memory."),
    _TASK(method="POST", path=f"{_ID}/resume", handle=tasks.command_handler(command.ResumeTask), action=STOP, answer=TaskAnswer, query=SAME, errors=(404, 409),
          summary="Resume a suspended task."),
    _TASK(method="POST", path=f"{_ID}/hold", handle=tasks.command_handler(command.HoldTask), action=STOP, answer=TaskAnswer, query=SAME, errors=(404, 409),
          summary="Put a waiting task on hold."),
    _TASK(method="POST", path=f"{_ID}/release", handle=tasks.command_handler(command.ReleaseTask), action=STOP, answer=TaskAnswer, query=SAME, errors=(404, 409),
          summary="Release a task that is on hold."),
    _TASK(method="GET", path=f"{_V1}/events", handle=events.get_events, action=SEE, query=events.PARAMETERS, media="text/event-stream",
          summary="Stream events as they happen; Last-Event-ID continues an earlier stream."),
)

LEASES = (
    _LEASE(method="POST", path=f"{_V1}/leases", handle=leases.post_lease, action=SUBMIT, request=wire.LeaseRequest, answer=wire.LeaseAnswer, status=201, errors=(409, 429), idempotent=True, example={"gpu_count": 1, "timeout": 3600},
           summary="Request GPUs without a process."),
    _LEASE(method="GET", path=f"{_V1}/leases", handle=leases.list_leases, action=SEE, answer=wire.LeaseList,
           summary="List leases that are granted or waiting."),
    _LEASE(method="GET", path=f"{_V1}/leases/{{id}}", handle=leases.get_lease, action=SEE, answer=wire.LeaseAnswer, query=SAME, errors=(404,),
           summary="One lease."),
    _LEASE(method="DELETE", path=f"{_V1}/leases/{{id}}", handle=leases.delete_lease, action=STOP, answer=wire.CancelAnswer, query=SAME, errors=(404,),
           summary="Release a lease."),
)

CLUSTER = (
    _CLUSTER(method="GET", path=f"{_V1}/gpus", handle=gpus.get_gpus, action=SEE_CLUSTER, answer=wire.GpusAnswer,
          summary="All GPUs."),
    _CLUSTER(method="GET", path=f"{_V1}/quota", handle=gpus.get_quota, action=SEE_CLUSTER, answer=wire.QuotaAnswer,
          summary="Show how GPUs are split between online and batch tasks."),
    _CLUSTER(method="PUT", path=f"{_V1}/quota", handle=gpus.put_quota, action=RUN_CLUSTER, request=wire.QuotaRequest, answer=wire.QuotaAnswer, example={"online_percent": 0.7},
          summary="Change the split, effective at once."),
    _CLUSTER(method="GET", path=f"{_V1}/predictions", handle=predictions.get_predictions, action=SEE_CLUSTER, answer=wire.PredictionsAnswer,
          summary="Show the accuracy of recent predictions and the model in use."),
    _CLUSTER(method="GET", path="/metrics", handle=predictions.get_metrics, action=SEE_CLUSTER, media="text/plain",
          summary="Show the same in the Prometheus format."),
    _CLUSTER(method="GET", path=f"{_V1}/nodes", handle=nodes.list_nodes, action=SEE_CLUSTER, answer=wire.NodeList,
          summary="All nodes."),
    _CLUSTER(method="GET", path=_NODE, handle=nodes.get_node, action=SEE_CLUSTER, answer=wire.NodeAnswer, errors=(404,),
          summary="One node."),
    _CLUSTER(method="DELETE", path=_NODE, handle=nodes.delete_node, action=RUN_CLUSTER, answer=wire.MessageAnswer, errors=(404, 409),
          summary="Remove a node from the cluster; it must be idle or lost."),
    _CLUSTER(method="POST", path=f"{_NODE}/cordon", handle=nodes.command_handler(command.CordonNode), action=RUN_CLUSTER, answer=wire.NodeAnswer, errors=(404,),
          summary="Cordon a node: place no new tasks on it."),
    _CLUSTER(method="POST", path=f"{_NODE}/drain", handle=nodes.drain_node, action=RUN_CLUSTER, answer=wire.NodeAnswer, query=nodes.DRAIN, errors=(404,),
          summary="Drain a node: place no new tasks on it, and move away tasks that allow it."),
    _CLUSTER(method="POST", path=f"{_NODE}/uncordon", handle=nodes.command_handler(command.UncordonNode), action=RUN_CLUSTER, answer=wire.NodeAnswer, errors=(404,),
          summary="Uncordon a node: place tasks on it again."),
    _CLUSTER(method="POST", path=f"{_NODE}/unknown_attempts/{{task}}/{{attempt}}/stop", handle=nodes.stop_unknown_attempt, action=RUN_CLUSTER, answer=wire.MessageAnswer, errors=(404,),
          summary="Stop an attempt on a node that the scheduler does not know."),
)

ACCESS = (
    _ACCESS(method="GET", path=f"{_V1}/tenants", handle=tenants.list_tenants, action=SEE, answer=wire.TenantList,
            summary="List tenants with their limits and usage."),
    _ACCESS(method="GET", path=f"{_V1}/tenants/{{id}}", handle=tenants.get_tenant, action=SEE, answer=wire.TenantAnswer, errors=(404,),
            summary="One tenant."),
    _ACCESS(method="PUT", path=f"{_V1}/tenants/{{id}}", handle=tenants.put_tenant, action=RUN_CLUSTER, request=wire.TenantRequest, answer=wire.TenantAnswer, example={"max_gpus": 8},
            summary="Set the limits of a tenant, effective at once."),
    _ACCESS(method="POST", path=f"{_V1}/login", handle=users.login, action=None, request=wire.LoginRequest, answer=wire.LoginAnswer, errors=(401, 429), example={"username": "alice", "password": "correct horse"},
            summary="Create a token for a username and a password."),
    _ACCESS(method="GET", path=f"{_V1}/users", handle=users.list_users, action=ALL_ACCESS, answer=users.UsersAnswer,
            summary="All users."),
    _ACCESS(method="POST", path=f"{_V1}/users", handle=users.post_user, action=ALL_ACCESS, request=wire.UserRequest, answer=users.UserDetail, status=201, errors=(409,), example={"username": "alice", "password": "correct horse", "tenant_id": "lab"},
            summary="Add a user."),
    _ACCESS(method="GET", path=f"{_V1}/users/{{username}}", handle=users.get_user, action=OWN_ACCESS, answer=users.UserDetail, errors=(404,),
            summary="Show a user; users may see themselves."),
    _ACCESS(method="PATCH", path=f"{_V1}/users/{{username}}", handle=users.patch_user, action=OWN_ACCESS, request=users.UserChange, answer=users.UserDetail, errors=(404,), example={"password": "battery staple"},
            summary="Change your password; an administrator may change everything of any user."),
    _ACCESS(method="DELETE", path=f"{_V1}/users/{{username}}", handle=users.delete_user, action=ALL_ACCESS, answer=wire.MessageAnswer, errors=(404,),
            summary="Remove a user and all tokens of the user."),
    _ACCESS(method="GET", path=f"{_V1}/tokens", handle=users.list_tokens, action=OWN_ACCESS, answer=wire.TokenList, query=(users.USERNAME,),
            summary="List your tokens; administrators see all."),
    _ACCESS(method="POST", path=f"{_V1}/tokens", handle=users.post_token, action=OWN_ACCESS, request=wire.TokenRequest, answer=wire.TokenCreated, status=201, errors=(404,), example={"name": "laptop"},
            summary="Create a token; it is shown only once."),
    _ACCESS(method="DELETE", path=f"{_V1}/tokens/{{id}}", handle=users.delete_token, action=OWN_ACCESS, answer=wire.MessageAnswer, errors=(404,),
            summary="Revoke a token."),
)

_get_document, _get_page = manual.documented(lambda: ROUTES)

SERVER = (
    _SERVER(method="GET", path="/health", handle=health.get_health, answer=wire.HealthAnswer,
            summary="Check that the scheduler works."),
    _SERVER(method="GET", path="/healthz", handle=health.get_health, answer=wire.HealthAnswer,
            summary="The same."),
    _SERVER(method="GET", path="/readyz", handle=health.get_ready, answer=wire.HealthAnswer, errors=(503,),
            summary="Check that the scheduler accepts work."),
    _SERVER(method="GET", path="/openapi.json", handle=_get_document, answer=dict,
            summary="This document, for programs (OpenAPI)."),
    _SERVER(method="GET", path="/docs", handle=_get_page, media="text/html",
            summary="This document, for people."),
)
# fmt: on

ROUTES: tuple[Route, ...] = (*TASKS, *LEASES, *CLUSTER, *ACCESS, *LEGACY, *SERVER)
