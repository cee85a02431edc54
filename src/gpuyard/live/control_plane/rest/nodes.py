"""Nodes: their state, and the operations of an operator."""

from collections import Counter
from collections.abc import Callable

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.refusals import UnknownNode
from gpuyard.core.domain.values import NodeId, TenantId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import visible_tenant
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.errors import CommandRefused
from gpuyard.live.control_plane.rest.gpus import gpus_of
from gpuyard.live.control_plane.rest.query import Parameter, switch, text
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import LargeResponse, Response, encoded, json_response, separated
from gpuyard.live.control_plane.rest.route import Handler
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.control_plane.views import NodeView
from gpuyard.live.wire.answers import MessageAnswer, NodeAnswer, UnknownAttemptAnswer
from gpuyard.live.wire.limits import instant_of
from gpuyard.live.wire.tasks import format_task_id, parse_task_id

MOST_SILENT_SECONDS = 1e9
"""A longer silence of a supervisor cannot be right and is not shown."""
LONGEST_REASON = 200


def _read_reason(value: str) -> str:
    if len(text(value)) > LONGEST_REASON or not value.isprintable():
        raise ValueError(f"it must be one line of at most {LONGEST_REASON} characters")
    return value


REASON = Parameter("reason", "Why, for other people; it is shown with the node.", _read_reason)
CORDON = (REASON,)
DRAIN = (
    switch("force", "Also move suspended tasks away: they restart from the beginning and lose their progress."),
    REASON,
)


async def list_nodes(context: AppContext, request: Request) -> Response:
    """List all nodes."""
    scheduler, views, seen = context.scheduler, context.scheduler.views.nodes, visible_tenant(request.principal)
    nodes = await encoded(
        node_of(scheduler, view, seen) for name in sorted(views) if (view := views.get(name)) is not None
    )
    return LargeResponse([b'{"nodes":[', *separated(nodes), b'],"total":%d}' % len(nodes)])


async def get_node(context: AppContext, request: Request) -> Response:
    """Return one node."""
    node = NodeId(request.path_params["id"])
    view = context.scheduler.views.nodes.get(node)
    if view is None:
        raise CommandRefused(UnknownNode(node))
    return json_response(node_of(context.scheduler, view, visible_tenant(request.principal)))


def command_handler(make: Callable[[NodeId], command.Command]) -> Handler:
    """Make a handler that sends one command to the engine and returns the node afterwards."""

    async def handle(context: AppContext, request: Request) -> Response:
        await context.tell(request, make(NodeId(request.path_params["id"])))
        return await get_node(context, request)

    return handle


async def cordon_node(context: AppContext, request: Request) -> Response:
    """Place no new tasks on the node."""
    node, reason = NodeId(request.path_params["id"]), request.query.get("reason", "")
    await context.tell(request, command.CordonNode(node, reason=reason))
    return await get_node(context, request)


async def drain_node(context: AppContext, request: Request) -> Response:
    """Place no new tasks on the node, and move tasks that allow it."""
    force, reason = request.query.get("force", False), request.query.get("reason", "")
    node = NodeId(request.path_params["id"])
    await context.tell(request, command.CordonNode(node, drain=True, force=force, reason=reason))
    return await get_node(context, request)


async def delete_node(context: AppContext, request: Request) -> Response:
    """Remove the node from the cluster."""
    node = request.path_params["id"]
    await context.tell(request, command.RemoveNode(NodeId(node)))
    return json_response(MessageAnswer(f"Node {node} was removed from the cluster."))


async def stop_unknown_attempt(context: AppContext, request: Request) -> Response:
    """Stop an attempt that the scheduler does not know."""
    node, task = request.path_params["id"], parse_task_id(request.path_params["task"])
    attempt = request.path_params["attempt"]
    name = f"Attempt {attempt[:20]} of {format_task_id(task)}"
    known = attempt.isascii() and attempt.isdigit() and len(attempt) < 10
    if not known or not context.scheduler.agents.stop_unknown_attempt(NodeId(node), task, int(attempt)):
        message = (
            f"{name} is not an unknown attempt on node {node}, or the node is not connected; GET the node "
            "to list its unknown attempts."
        )
        raise WrongRequest("NoSuchAttempt", message, "attempt", status=404)
    return json_response(MessageAnswer(f"{name} on node {node} is being stopped."))


def node_of(scheduler: Scheduler, view: NodeView, seen: TenantId | None) -> NodeAnswer:
    """Return a node's properties and the values of its last heartbeat; `seen` as for `gpus_of`."""
    spec = view.spec
    told = scheduler.agents.telemetry.get(spec.id)
    session = scheduler.agents.sessions.get(spec.id)
    host = told.host if told is not None and told.HasField("host") else None
    silent = told.supervisor_silent_seconds if told is not None else 0.0
    gpus = gpus_of(scheduler, view, seen)
    return NodeAnswer(
        id=spec.id,
        status=view.status,  # type: ignore[arg-type]
        reason=view.cordon_reason or None,
        gpus=len(gpus),
        gpus_idle=sum(gpu.status == "idle" for gpu in gpus),
        gpu_models=dict(Counter(gpu.model for gpu in gpus)),
        cpus=spec.cpus,
        memory_mb=spec.memory_mib,
        labels=dict(spec.labels),
        tasks=[format_task_id(task) for task in view.tasks],
        last_seen=instant_of(told.at) if told and told.at else None,
        version=session.version if session else None,
        address=session.address if session else None,
        cpu_percent=host.cpu_percent if host else None,
        memory_used_mb=host.memory_used_mib if host else None,
        load=host.load if host else None,
        disk_free_mb=host.disk_free_mib if host else None,
        supervisor_silent_seconds=round(silent, 1) if 0 < silent < MOST_SILENT_SECONDS else None,
        devices=gpus,
        unknown_attempts=[
            UnknownAttemptAnswer(format_task_id(it.task), it.attempt)
            for it in (session.unknown_attempts if session else ())
        ],
    )
