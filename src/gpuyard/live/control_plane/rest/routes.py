"""The route table: every endpoint with its permission, request type and response type.

Dispatch, the OpenAPI document and the documentation page are made from it, so they always agree.
"""

from functools import partial

from gpuyard.core.domain import commands as command
from gpuyard.live.control_plane.access.principal import Action
from gpuyard.live.control_plane.rest import (
    alerts,
    blobs,
    bookings,
    channels,
    completions,
    events,
    gpus,
    health,
    history,
    jobs,
    leases,
    live,
    logs,
    manual,
    metrics,
    nodes,
    overview,
    predictions,
    queue,
    sessions,
    stories,
    submit,
    tasks,
    tenants,
    timeline,
    usage,
    users,
)
from gpuyard.live.control_plane.rest.legacy.routes import LEGACY
from gpuyard.live.control_plane.rest.lookup import SAME
from gpuyard.live.control_plane.rest.route import Route
from gpuyard.live.wire import alert_answers, history_answers, live_answers
from gpuyard.live.wire import answers as wire
from gpuyard.live.wire.blobs import BatchStored, BlobAnswer, MissingAnswer, MissingRequest
from gpuyard.live.wire.booking_answers import BookingAnswer, BookingList, BookingRequest
from gpuyard.live.wire.job_answers import (
    JobRow,
    PlanAnswer,
    PlanList,
    PlanRequest,
    SimulationAnswer,
    SimulationList,
    SimulationRequest,
)
from gpuyard.live.wire.preview_answers import PreviewAnswer
from gpuyard.live.wire.queue_answers import EndedAnswer, QueueAnswer
from gpuyard.live.wire.search_answers import SearchAnswer
from gpuyard.live.wire.story_answers import StoryAnswer
from gpuyard.live.wire.task_answers import BatchAnswer, TaskAnswer
from gpuyard.live.wire.tasks import BatchRequest, TaskRequest
from gpuyard.live.wire.timeline_answers import TimelineAnswer
from gpuyard.live.wire.usage_answers import UsageAnswer

SEE, SUBMIT, STOP = Action.SEE, Action.SUBMIT, Action.STOP
SEE_CLUSTER, RUN_CLUSTER = Action.SEE_CLUSTER, Action.RUN_CLUSTER
OWN_ACCESS, ALL_ACCESS = Action.OWN_ACCESS, Action.ALL_ACCESS

_TASK = partial(Route, section="Tasks")
_LEASE = partial(Route, section="Leases")
_CLUSTER = partial(Route, section="GPUs, nodes, quota")
_BOOK = partial(Route, section="Bookings")
_ACCESS = partial(Route, section="Tenants, users, tokens")
_STATE = partial(Route, section="State and history")
_ALERT = partial(Route, section="Alerts and usage")
_BLOB = partial(Route, section="Blobs")
_JOB = partial(Route, section="Plans and simulations")
_SERVER = partial(Route, section="The scheduler", action=None)

_V1 = "/api/v1"
_ID = f"{_V1}/tasks/{{id}}"
_NODE = f"{_V1}/nodes/{{id}}"
_A_TASK = {"priority": "high", "gpu_count": 1, "command": "python train.py"}

# fmt: off
TASKS = (
    _TASK(method="POST", path=f"{_V1}/tasks", handle=submit.post_task, action=SUBMIT, request=TaskRequest, answer=submit.SubmitAnswer, status=201, other=(200, PreviewAnswer), query=submit.DRY_RUN, errors=(409, 429), idempotent=True, example=_A_TASK,
          summary="Submit a task; with `array`, several tasks, which `tasks` lists."),
    _TASK(method="POST", path=f"{_V1}/tasks:batch", handle=submit.post_batch, action=SUBMIT, request=BatchRequest, answer=BatchAnswer, status=201, errors=(409, 429), idempotent=True, example={"tasks": [_A_TASK]},
          summary="Submit many tasks, all or none."),
    _TASK(method="GET", path=f"{_V1}/tasks", handle=tasks.list_tasks, action=SEE, answer=wire.TaskList, other=(200, tasks.TaskSummaryList), query=tasks.LIST,
          summary="List and search tasks, newest first or in another order."),
    _TASK(method="GET", path=_ID, handle=tasks.get_task, action=SEE, answer=TaskAnswer, query=SAME, errors=(404,),
          summary="One task."),
    _TASK(method="PATCH", path=_ID, handle=tasks.change_task, action=STOP, request=tasks.TaskChange, answer=TaskAnswer, query=SAME, errors=(404, 409), example={"priority": 90},
          summary="Change the priority of a task, raise its timeout, or limit the running tasks of its array or sweep."),
    _TASK(method="DELETE", path=_ID, handle=tasks.cancel_task, action=STOP, answer=wire.CancelAnswer, query=SAME, errors=(404,),
          summary="Cancel a task; a task that has ended is not changed."),
    _TASK(method="GET", path=f"{_ID}/logs", handle=logs.get_logs, action=SEE, asks_nodes=True, query=logs.PARAMETERS, other=(200, SearchAnswer), errors=(404, 409), media="text/plain",
          summary="Get the output of a task, or search it."),
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

_CHANNEL = partial(Route, section="Terminals and ports", method="GET", action=SEE, asks_nodes=True)
CHANNELS = (
    _CHANNEL(path=f"{_ID}/console", handle=channels.open_console, upgrades=True, query=channels.CONSOLE, errors=(404, 409, 426), media="application/octet-stream",
          summary="WebSocket: attach to the terminal of a task, or to its standard input."),
    _CHANNEL(path=f"{_ID}/shell", handle=channels.open_shell, upgrades=True, query=channels.SHELL, errors=(404, 409, 426), media="application/octet-stream",
          summary="WebSocket: a shell beside a running task."),
    _CHANNEL(path=f"{_ID}/ports", handle=channels.list_ports, answer=wire.PortList, query=SAME, errors=(404, 409),
          summary="List the TCP ports on which a task listens."),
    _CHANNEL(path=f"{_ID}/ports/{{port}}", handle=channels.open_port, upgrades=True, query=channels.PORT, errors=(404, 409, 426), media="application/octet-stream",
          summary="WebSocket: one connection to a TCP port of a task."),
)

STORIES = (
    _TASK(method="GET", path=f"{_ID}/events", handle=stories.get_story, action=SEE, answer=StoryAnswer, query=stories.PARAMETERS, errors=(404,),
          summary="List the events of a task from its submission to its end."),
)

QUEUE = (
    _TASK(method="GET", path=f"{_V1}/queue", handle=queue.get_queue, action=SEE, answer=QueueAnswer, query=queue.PARAMETERS,
          summary="Show open tasks as a queue: running ones, then waiting ones in the order in which they go."),
    _TASK(method="GET", path=f"{_V1}/queue/ended", handle=queue.get_ended, action=SEE, answer=EndedAnswer, query=queue.ENDED_PARAMETERS,
          summary="Show the tasks that ended last, those of an array, sweep or group on one row."),
)

TIMELINE = (
    _TASK(method="GET", path=f"{_V1}/timeline", handle=timeline.get_timeline, action=SEE, answer=TimelineAnswer, query=timeline.PARAMETERS, errors=(404,),
          summary="Show which task held which GPU when."),
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
    _CLUSTER(method="GET", path="/metrics", handle=metrics.get_metrics, action=SEE_CLUSTER, media="text/plain",
          summary="Show metrics of the cluster in the Prometheus format."),
    _CLUSTER(method="GET", path=f"{_V1}/nodes", handle=nodes.list_nodes, action=SEE_CLUSTER, answer=wire.NodeList,
          summary="All nodes."),
    _CLUSTER(method="GET", path=_NODE, handle=nodes.get_node, action=SEE_CLUSTER, answer=wire.NodeAnswer, errors=(404,),
          summary="One node."),
    _CLUSTER(method="DELETE", path=_NODE, handle=nodes.delete_node, action=RUN_CLUSTER, answer=wire.MessageAnswer, errors=(404, 409),
          summary="Remove a node from the cluster; it must be idle or lost."),
    _CLUSTER(method="POST", path=f"{_NODE}/cordon", handle=nodes.cordon_node, action=RUN_CLUSTER, answer=wire.NodeAnswer, query=nodes.CORDON, errors=(404,),
          summary="Cordon a node: place no new tasks on it."),
    _CLUSTER(method="POST", path=f"{_NODE}/drain", handle=nodes.drain_node, action=RUN_CLUSTER, answer=wire.NodeAnswer, query=nodes.DRAIN, errors=(404,),
          summary="Drain a node: place no new tasks on it, and move away tasks that allow it."),
    _CLUSTER(method="POST", path=f"{_NODE}/uncordon", handle=nodes.command_handler(command.UncordonNode), action=RUN_CLUSTER, answer=wire.NodeAnswer, errors=(404,),
          summary="Uncordon a node: place tasks on it again."),
    _CLUSTER(method="POST", path=f"{_NODE}/unknown_attempts/{{task}}/{{attempt}}/stop", handle=nodes.stop_unknown_attempt, action=RUN_CLUSTER, answer=wire.MessageAnswer, errors=(404,),
          summary="Stop an attempt on a node that the scheduler does not know."),
)

_BOOKING = f"{_V1}/bookings"
BOOKINGS = (
    _BOOK(method="POST", path=_BOOKING, handle=bookings.post_booking, action=SUBMIT, request=BookingRequest, answer=BookingAnswer, status=201, errors=(409,), example={"gpu_count": 4, "begins_at": "2099-01-02T18:00:00Z", "seconds": 43200},
          summary="Book GPUs for a tenant, or close nodes for maintenance."),
    _BOOK(method="GET", path=_BOOKING, handle=bookings.list_bookings, action=SEE_CLUSTER, answer=BookingList,
          summary="List bookings that have not ended."),
    _BOOK(method="GET", path=f"{_BOOKING}/{{id}}", handle=bookings.get_booking, action=SEE_CLUSTER, answer=BookingAnswer, errors=(404,),
          summary="One booking."),
    _BOOK(method="DELETE", path=f"{_BOOKING}/{{id}}", handle=bookings.delete_booking, action=STOP, answer=wire.MessageAnswer, errors=(404,),
          summary="Cancel a booking, or end it early."),
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

STATE = (
    _STATE(method="GET", path=f"{_V1}/overview", handle=overview.get_overview, action=SEE, answer=live_answers.OverviewAnswer,
           summary="Show the state of the cluster in one answer."),
    _STATE(method="GET", path=f"{_V1}/completions", handle=completions.get_completions, action=SEE, answer=wire.CompletionList, query=completions.PARAMETERS,
           summary="List names of tasks, nodes, tenants or GPU models that begin with a prefix, for the completion of a shell."),
    _STATE(method="GET", path=f"{_V1}/live", handle=live.get_live, action=SEE, media="text/event-stream",
           summary="Stream the state of the cluster and all GPUs once a second."),
    _STATE(method="GET", path=f"{_V1}/history", handle=history.get_history, action=SEE_CLUSTER, answer=history_answers.HistoryAnswer, query=history.OF_CLUSTER, errors=(404,),
           summary="Show the history of the cluster."),
    _STATE(method="GET", path=f"{_V1}/gpus/{{node}}/{{index}}/history", handle=history.get_gpu_history, action=SEE_CLUSTER, answer=history_answers.HistoryAnswer, query=history.OF_GPU, errors=(404,),
           summary="Show the history of a GPU; its id is NODE/INDEX."),
    _STATE(method="GET", path=f"{_NODE}/history", handle=history.get_node_history, action=SEE_CLUSTER, answer=history_answers.HistoryAnswer, query=history.OF_NODE, errors=(404,),
           summary="Show the history of a node: processors, memory, latency."),
    _STATE(method="GET", path=f"{_ID}/history", handle=history.get_task_history, action=SEE, answer=history_answers.TaskHistoryAnswer, query=(*SAME, *history.OF_TASK), errors=(404,),
           summary="Show the history of the GPUs of a task, from its start to its end."),
)

_PLAN, _SIMULATION = f"{_V1}/plans", f"{_V1}/simulations"
JOBS = (
    _JOB(method="POST", path=_PLAN, handle=jobs.post_plan, action=SUBMIT, request=PlanRequest, answer=JobRow, status=202, errors=(429,), example={"problem": "gpus: 2", "strategies": ["search"], "seconds": 5},
         summary="Plan workflows of model calls, as a background job."),
    _JOB(method="GET", path=_PLAN, handle=jobs.list_plans, action=SEE, answer=PlanList,
         summary="List recent plans."),
    _JOB(method="GET", path=f"{_PLAN}/{{id}}", handle=jobs.get_plan, action=SEE, answer=PlanAnswer, errors=(404,),
         summary="One plan with its results."),
    _JOB(method="DELETE", path=f"{_PLAN}/{{id}}", handle=jobs.remover("plan"), action=SUBMIT, answer=wire.MessageAnswer, errors=(404,),
         summary="Cancel a plan, or remove one that has ended."),
    _JOB(method="POST", path=_SIMULATION, handle=jobs.post_simulation, action=SUBMIT, request=SimulationRequest, answer=JobRow, status=202, errors=(429,), example={"source": {"generate": 100}, "policies": ["fifo", "default"], "nodes": "2x8"},
         summary="Simulate scheduling policies, as a background job."),
    _JOB(method="GET", path=_SIMULATION, handle=jobs.list_simulations, action=SEE, answer=SimulationList,
         summary="List recent simulations."),
    _JOB(method="GET", path=f"{_SIMULATION}/{{id}}", handle=jobs.get_simulation, action=SEE, answer=SimulationAnswer, errors=(404,),
         summary="One simulation with its results."),
    _JOB(method="DELETE", path=f"{_SIMULATION}/{{id}}", handle=jobs.remover("simulation"), action=SUBMIT, answer=wire.MessageAnswer, errors=(404,),
         summary="Cancel a simulation, or remove one that has ended."),
)

SESSIONS = (
    _ACCESS(method="POST", path=f"{_V1}/session", handle=sessions.post_session, action=None, names_caller=True, request=wire.LoginRequest, answer=wire.SessionAnswer, errors=(401, 429), example={"username": "alice", "password": "correct horse"},
            summary="Log in from a browser: set the cookie of a new session."),
    _ACCESS(method="GET", path=f"{_V1}/session", handle=sessions.get_session, action=None, names_caller=True, answer=wire.SessionAnswer,
            summary="Show who you are and what you may do; also without a login."),
    _ACCESS(method="DELETE", path=f"{_V1}/session", handle=sessions.delete_session, action=None, names_caller=True, answer=wire.MessageAnswer,
            summary="Log out: end the session of the cookie."),
)

ALERTS = (
    _ALERT(method="GET", path=f"{_V1}/alerts", handle=alerts.list_alerts, action=SEE_CLUSTER, answer=alert_answers.AlertList, query=alerts.LIST,
           summary="List alerts, firing ones first."),
    _ALERT(method="GET", path=f"{_V1}/alerts/rules", handle=alerts.list_rules, action=SEE_CLUSTER, answer=alert_answers.AlertRuleList,
           summary="List the rules of alerts."),
    _ALERT(method="GET", path=f"{_V1}/alerts/history", handle=alerts.get_history, action=SEE_CLUSTER, answer=alert_answers.AlertHistory, query=alerts.HISTORY,
           summary="List changes of alerts, newest first."),
    _ALERT(method="GET", path=f"{_V1}/alerts/silences", handle=alerts.list_silences, action=SEE_CLUSTER, answer=alert_answers.SilenceList,
           summary="List silences that have not ended."),
    _ALERT(method="POST", path=f"{_V1}/alerts/silences", handle=alerts.post_silence, action=RUN_CLUSTER, request=alert_answers.SilenceRequest, answer=alert_answers.SilenceAnswer, status=201, errors=(409,), example={"matchers": {"node": "n1"}, "seconds": 3600},
           summary="Silence alerts: they are not sent until the silence ends."),
    _ALERT(method="DELETE", path=f"{_V1}/alerts/silences/{{id}}", handle=alerts.delete_silence, action=RUN_CLUSTER, answer=wire.MessageAnswer, errors=(404,),
           summary="End a silence."),
    _ALERT(method="GET", path=f"{_V1}/usage", handle=usage.get_usage, action=SEE, answer=UsageAnswer, query=usage.PARAMETERS,
           summary="GPU-hours, idle and lost time, energy and waits of a window; as CSV with format=csv."),
)

_SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
BLOBS = (
    _BLOB(method="POST", path=f"{_V1}/blobs:missing", handle=blobs.post_missing, action=SUBMIT, request=MissingRequest, answer=MissingAnswer, errors=(409,), example={"blobs": [_SHA256]},
          summary="Return which of these blobs are not stored and have to be uploaded."),
    _BLOB(method="POST", path=f"{_V1}/blobs:batch", handle=blobs.post_batch, action=SUBMIT, takes=blobs.BINARY, answer=BatchStored, query=blobs.TENANT, errors=(409,),
          summary="Store many small contents: each is preceded by its length in eight bytes, most significant first."),
    _BLOB(method="PUT", path=f"{_V1}/blobs/{{sha256}}", handle=blobs.put_blob, action=SUBMIT, takes=blobs.BINARY, answer=BlobAnswer, query=blobs.TENANT, errors=(409,),
          summary="Store a content, the body of the request, under its SHA-256; repeating it has no effect."),
    _BLOB(method="GET", path=f"{_V1}/blobs/{{sha256}}", handle=blobs.get_blob, action=SEE, query=blobs.TENANT, errors=(404, 409), media=blobs.BINARY,
          summary="Get a stored content."),
)

_get_document, _get_page = manual.documented(lambda: ROUTES)

SERVER = (
    _SERVER(method="GET", path="/health", handle=health.get_health, answer=wire.HealthAnswer,
            summary="Check that the scheduler works."),
    _SERVER(method="GET", path="/healthz", handle=health.get_health, answer=wire.HealthAnswer,
            summary="The same."),
    _SERVER(method="GET", path="/readyz", handle=health.get_ready, answer=wire.HealthAnswer, errors=(503,),
            summary="Check that the scheduler accepts work."),
    _SERVER(method="POST", path=f"{_V1}/promote", handle=health.promote, action=RUN_CLUSTER, answer=wire.HealthAnswer, errors=(409,), here=True,
            summary="Let this standby lead; the scheduler that leads hands over to it."),
    _SERVER(method="GET", path=f"{_V1}/replication", handle=health.get_replication, action=SEE_CLUSTER, answer=wire.ReplicationAnswer, errors=(409,),
            summary="How two schedulers replicate the journal: which copies are complete, who votes, what is missing."),
    _SERVER(method="POST", path=f"{_V1}/replication/detach", handle=health.detach_standby, action=RUN_CLUSTER, answer=wire.ReplicationAnswer, errors=(409,),
            summary="Go on without the standby until it has caught up; new events are then on one disk only."),
    _SERVER(method="GET", path="/openapi.json", handle=_get_document, answer=dict,
            summary="This document, for programs (OpenAPI)."),
    _SERVER(method="GET", path="/docs", handle=_get_page, media="text/html",
            summary="This document, for people."),
)
# fmt: on

ROUTES: tuple[Route, ...] = (
    *TASKS,
    *CHANNELS,
    *STORIES,
    *QUEUE,
    *LEASES,
    *CLUSTER,
    *BOOKINGS,
    *STATE,
    *ACCESS,
    *SESSIONS,
    *ALERTS,
    *TIMELINE,
    *JOBS,
    *BLOBS,
    *LEGACY,
    *SERVER,
)
