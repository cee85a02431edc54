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
SEE_YARD, RUN_YARD = Action.SEE_YARD, Action.RUN_YARD
OWN_ACCESS, ALL_ACCESS = Action.OWN_ACCESS, Action.ALL_ACCESS

_TASK = partial(Route, section="Tasks")
_LEASE = partial(Route, section="Leases")
_YARD = partial(Route, section="GPUs, nodes, quota")
_ACCESS = partial(Route, section="Tenants, users, tokens")
_SERVER = partial(Route, section="The scheduler", action=None)

_V1 = "/api/v1"
_ID = f"{_V1}/tasks/{{id}}"
_NODE = f"{_V1}/nodes/{{id}}"
_A_TASK = {"priority": "high", "gpu_count": 1, "command": "python train.py"}

# fmt: off
TASKS = (
    _TASK(method="POST", path=f"{_V1}/tasks", handle=submit.post_task, action=SUBMIT, request=TaskRequest, answer=submit.SubmitAnswer, status=201, errors=(409, 429), idempotent=True, example=_A_TASK,
          summary="Submit a task. With `array` it is many, and `tasks` has them all."),
    _TASK(method="POST", path=f"{_V1}/tasks:batch", handle=submit.post_batch, action=SUBMIT, request=BatchRequest, answer=BatchAnswer, status=201, errors=(409, 429), idempotent=True, example={"tasks": [_A_TASK]},
          summary="Submit many tasks, all or none."),
    _TASK(method="GET", path=f"{_V1}/tasks", handle=tasks.list_tasks, action=SEE, answer=wire.TaskList, query=tasks.FILTERS,
          summary="Tasks, the newest first."),
    _TASK(method="GET", path=_ID, handle=tasks.get_task, action=SEE, answer=TaskAnswer, query=SAME, errors=(404,),
          summary="One task."),
    _TASK(method="PATCH", path=_ID, handle=tasks.change_task, action=STOP, request=tasks.TaskChange, answer=TaskAnswer, query=SAME, errors=(404, 409), example={"priority": 90},
          summary="Give a task another priority or a longer timeout."),
    _TASK(method="DELETE", path=_ID, handle=tasks.cancel_task, action=STOP, answer=wire.CancelAnswer, query=SAME, errors=(404,),
          summary="Cancel a task; one that has ended stays as it was."),
    _TASK(method="GET", path=f"{_ID}/logs", handle=logs.get_logs, action=SEE, query=logs.PARAMETERS, errors=(404, 409), media="text/plain",
          summary="A task's output, as it wrote it."),
    _TASK(method="GET", path=f"{_ID}/explain", handle=tasks.explain_task, action=SEE, answer=wire.ExplainAnswer, query=SAME, errors=(404,),
          summary="Why a task waits, and when it is likely to start."),
    _TASK(method="POST", path=f"{_ID}/suspend", handle=tasks.telling(command.SuspendTask), action=STOP, answer=TaskAnswer, query=SAME, errors=(404, 409),
          summary="Move a running task to host memory."),
    _TASK(method="POST", path=f"{_ID}/resume", handle=tasks.telling(command.ResumeTask), action=STOP, answer=TaskAnswer, query=SAME, errors=(404, 409),
          summary="Let a suspended task go on."),
    _TASK(method="POST", path=f"{_ID}/hold", handle=tasks.telling(command.HoldTask), action=STOP, answer=TaskAnswer, query=SAME, errors=(404, 409),
          summary="Keep a waiting task out of the queue."),
    _TASK(method="POST", path=f"{_ID}/release", handle=tasks.telling(command.ReleaseTask), action=STOP, answer=TaskAnswer, query=SAME, errors=(404, 409),
          summary="Let a held task go on."),
    _TASK(method="GET", path=f"{_V1}/events", handle=events.get_events, action=SEE, query=events.PARAMETERS, media="text/event-stream",
          summary="What happens, as it happens; Last-Event-ID goes on where one was."),
)

LEASES = (
    _LEASE(method="POST", path=f"{_V1}/leases", handle=leases.post_lease, action=SUBMIT, request=wire.LeaseRequest, answer=wire.LeaseAnswer, status=201, errors=(409, 429), idempotent=True, example={"gpu_count": 1, "timeout": 3600},
           summary="Ask for GPUs without a process."),
    _LEASE(method="GET", path=f"{_V1}/leases", handle=leases.list_leases, action=SEE, answer=wire.LeaseList,
           summary="Leases that are held or waited for."),
    _LEASE(method="GET", path=f"{_V1}/leases/{{id}}", handle=leases.get_lease, action=SEE, answer=wire.LeaseAnswer, query=SAME, errors=(404,),
           summary="One lease."),
    _LEASE(method="DELETE", path=f"{_V1}/leases/{{id}}", handle=leases.delete_lease, action=STOP, answer=wire.CancelAnswer, query=SAME, errors=(404,),
           summary="Give the GPUs back."),
)

YARD = (
    _YARD(method="GET", path=f"{_V1}/gpus", handle=gpus.get_gpus, action=SEE_YARD, answer=wire.GpusAnswer,
          summary="All GPUs."),
    _YARD(method="GET", path=f"{_V1}/quota", handle=gpus.get_quota, action=SEE_YARD, answer=wire.QuotaAnswer,
          summary="How the GPUs are split between online and batch work."),
    _YARD(method="PUT", path=f"{_V1}/quota", handle=gpus.put_quota, action=RUN_YARD, request=wire.QuotaRequest, answer=wire.QuotaAnswer, example={"online_percent": 0.7},
          summary="Split them anew, at once."),
    _YARD(method="GET", path=f"{_V1}/predictions", handle=predictions.get_predictions, action=SEE_YARD, answer=wire.PredictionsAnswer,
          summary="How right predictions were lately, and which model makes them."),
    _YARD(method="GET", path="/metrics", handle=predictions.get_metrics, action=SEE_YARD, media="text/plain",
          summary="The same for Prometheus."),
    _YARD(method="GET", path=f"{_V1}/nodes", handle=nodes.list_nodes, action=SEE_YARD, answer=wire.NodeList,
          summary="All nodes."),
    _YARD(method="GET", path=_NODE, handle=nodes.get_node, action=SEE_YARD, answer=wire.NodeAnswer, errors=(404,),
          summary="One node."),
    _YARD(method="DELETE", path=_NODE, handle=nodes.delete_node, action=RUN_YARD, answer=wire.MessageAnswer, errors=(404, 409),
          summary="Take a node out of the yard: one that runs nothing, or a lost one."),
    _YARD(method="POST", path=f"{_NODE}/cordon", handle=nodes.telling(command.CordonNode), action=RUN_YARD, answer=wire.NodeAnswer, errors=(404,),
          summary="Place nothing new on a node."),
    _YARD(method="POST", path=f"{_NODE}/drain", handle=nodes.drain_node, action=RUN_YARD, answer=wire.NodeAnswer, query=nodes.DRAIN, errors=(404,),
          summary="Place nothing new on a node, and move away what allows it."),
    _YARD(method="POST", path=f"{_NODE}/uncordon", handle=nodes.telling(command.UncordonNode), action=RUN_YARD, answer=wire.NodeAnswer, errors=(404,),
          summary="Open a node again."),
    _YARD(method="POST", path=f"{_NODE}/strays/{{task}}/{{attempt}}/stop", handle=nodes.stop_stray, action=RUN_YARD, answer=wire.MessageAnswer, errors=(404,),
          summary="End an attempt that a node runs and the scheduler never heard of."),
)

ACCESS = (
    _ACCESS(method="GET", path=f"{_V1}/tenants", handle=tenants.list_tenants, action=SEE, answer=wire.TenantList,
            summary="Tenants, their limits and what they use."),
    _ACCESS(method="GET", path=f"{_V1}/tenants/{{id}}", handle=tenants.get_tenant, action=SEE, answer=wire.TenantAnswer, errors=(404,),
            summary="One tenant."),
    _ACCESS(method="PUT", path=f"{_V1}/tenants/{{id}}", handle=tenants.put_tenant, action=RUN_YARD, request=wire.TenantRequest, answer=wire.TenantAnswer, example={"max_gpus": 8},
            summary="Give a tenant these limits, at once."),
    _ACCESS(method="POST", path=f"{_V1}/login", handle=users.login, action=None, request=wire.LoginRequest, answer=wire.LoginAnswer, errors=(401, 429), example={"username": "alice", "password": "correct horse"},
            summary="A token for a username and a password."),
    _ACCESS(method="GET", path=f"{_V1}/users", handle=users.list_users, action=ALL_ACCESS, answer=users.UsersAnswer,
            summary="All users."),
    _ACCESS(method="POST", path=f"{_V1}/users", handle=users.post_user, action=ALL_ACCESS, request=wire.UserRequest, answer=users.UserDetail, status=201, errors=(409,), example={"username": "alice", "password": "correct horse", "tenant_id": "lab"},
            summary="Add a user."),
    _ACCESS(method="GET", path=f"{_V1}/users/{{username}}", handle=users.get_user, action=OWN_ACCESS, answer=users.UserDetail, errors=(404,),
            summary="One user; everybody sees oneself."),
    _ACCESS(method="PATCH", path=f"{_V1}/users/{{username}}", handle=users.patch_user, action=OWN_ACCESS, request=users.UserChange, answer=users.UserDetail, errors=(404,), example={"password": "battery staple"},
            summary="Change one's own password, or as an admin anything of anybody."),
    _ACCESS(method="DELETE", path=f"{_V1}/users/{{username}}", handle=users.delete_user, action=ALL_ACCESS, answer=wire.MessageAnswer, errors=(404,),
            summary="Remove a user with all tokens."),
    _ACCESS(method="GET", path=f"{_V1}/tokens", handle=users.list_tokens, action=OWN_ACCESS, answer=wire.TokenList, query=(users.USERNAME,),
            summary="One's own tokens; all of them for an admin."),
    _ACCESS(method="POST", path=f"{_V1}/tokens", handle=users.post_token, action=OWN_ACCESS, request=wire.TokenRequest, answer=wire.TokenCreated, status=201, errors=(404,), example={"name": "laptop"},
            summary="Make a token; it is shown this once."),
    _ACCESS(method="DELETE", path=f"{_V1}/tokens/{{id}}", handle=users.delete_token, action=OWN_ACCESS, answer=wire.MessageAnswer, errors=(404,),
            summary="Revoke a token."),
)

_get_document, _get_page = manual.documented(lambda: ROUTES)

SERVER = (
    _SERVER(method="GET", path="/health", handle=health.get_health, answer=wire.HealthAnswer,
            summary="Whether the scheduler works."),
    _SERVER(method="GET", path="/healthz", handle=health.get_health, answer=wire.HealthAnswer,
            summary="The same."),
    _SERVER(method="GET", path="/readyz", handle=health.get_ready, answer=wire.HealthAnswer, errors=(503,),
            summary="Whether it accepts work."),
    _SERVER(method="GET", path="/openapi.json", handle=_get_document, answer=dict,
            summary="This document, for programs."),
    _SERVER(method="GET", path="/docs", handle=_get_page, media="text/html",
            summary="This document, for people."),
)
# fmt: on

ROUTES: tuple[Route, ...] = (*TASKS, *LEASES, *YARD, *ACCESS, *LEGACY, *SERVER)
