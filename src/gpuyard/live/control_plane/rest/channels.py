"""Terminals of tasks, shells beside them and their TCP ports, each as a WebSocket.

Reading needs the same permission as the output of the task. Typing, a shell and a port are code that runs as the user of
the task, so they need its owner or an administrator.
"""

import re
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
import structlog

from gpuyard.core.domain.values import ENDED, AttemptRef, NodeId, TaskId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import AuthMethod, Denied, Principal, Role
from gpuyard.live.control_plane.nodes.channels import TaskChannel
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.errors import AccessDenied
from gpuyard.live.control_plane.rest.lookup import SAME, find_answer, read_answer
from gpuyard.live.control_plane.rest.query import Parameter, counted, switch
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.rest.upgraded import UpgradedResponse
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.answers import PortAnswer, PortList
from gpuyard.live.wire.channel_frames import PORT_SUBPROTOCOL, SUBPROTOCOL
from gpuyard.live.wire.task_answers import TaskAnswer, origin_of

UPGRADED = "gpuyard.upgraded"
"""In the ASGI scope of a request that asks for a WebSocket."""
MOST_SIZE = 9999
MOST_LINGER_SECONDS = 7 * 86_400.0
_SESSION = re.compile(r"[A-Za-z0-9]{8,64}")
_READ_PORTS = msgspec.json.Decoder(list[PortAnswer]).decode
HIGHEST_PORT = 65_535

log = structlog.get_logger()


def _session(value: str) -> str:
    if not _SESSION.fullmatch(value):
        raise ValueError("it must be 8 to 64 letters and digits")
    return value


def _linger(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MOST_LINGER_SECONDS:
        raise ValueError(f"it must be a number of seconds up to {MOST_LINGER_SECONDS:.0f}")
    return seconds


def _words(value: str) -> list[str]:
    try:
        return msgspec.json.decode(value, type=list[str])
    except msgspec.MsgspecError:
        raise ValueError('it must be a JSON list of texts, such as ["python", "-i"]') from None


def _variables(value: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(value, type=dict[str, str])
    except msgspec.MsgspecError:
        raise ValueError('it must be a JSON object of texts, such as {"TERM": "xterm"}') from None


CONSOLE = (switch("read_only", "Only watch; typing needs the owner of the task or an administrator."), *SAME)
SHELL = (
    Parameter("session", "Id of the shell, drawn by the client; one that runs already is attached to again.", _session),
    Parameter("command", "The command as a JSON list (default: the shell of the user).", _words),
    Parameter("env", "Environment variables as a JSON object, in addition to those of the task.", _variables),
    counted("columns", "Width of the terminal.", 1, MOST_SIZE),
    counted("rows", "Height of the terminal.", 1, MOST_SIZE),
    Parameter("linger", "Seconds that it goes on without a client (default: 900).", _linger),
    *SAME,
)
PORT = SAME
USUAL_LINGER_SECONDS = 900.0


async def open_console(context: AppContext, request: Request) -> Response:
    """Attach to the terminal of a running task."""
    told, ref, node = await _running(context, request)
    write = not request.query.get("read_only", False)
    if write:
        _check_typing(request.principal, told)
    if told.console is None:
        message = (
            f"{told.id} was submitted without a terminal. `gpuyard shell {told.id}` starts a shell beside it; "
            f"`gpuyard logs -f {told.id}` follows its output."
        )
        raise WrongRequest("NoConsole", message, "task_id", status=409)
    return await _opened(context, request, node, ref, pb.OpenChannel(kind=pb.OpenChannel.CONSOLE, write=write))


async def open_shell(context: AppContext, request: Request) -> Response:
    """Start a shell beside a running task, or attach to it again."""
    told, ref, node = await _running(context, request)
    _check_typing(request.principal, told)
    asked = request.query
    if "session" not in asked:
        raise WrongRequest(
            "MissingParameter", "Give session: 8 to 64 letters and digits, drawn for this shell.", "session"
        )
    console = pb.Console(
        terminal=True,
        columns=asked.get("columns", 80),
        rows=asked.get("rows", 24),
        linger_seconds=asked.get("linger", USUAL_LINGER_SECONDS),
    )
    wanted = pb.OpenChannel(
        kind=pb.OpenChannel.SHELL,
        write=True,
        session=asked["session"],
        argv=asked.get("command", []),
        env=asked.get("env", {}),
        console=console,
    )
    return await _opened(context, request, node, ref, wanted)


async def open_port(context: AppContext, request: Request) -> Response:
    """Connect to a port on which a running task listens."""
    told, ref, node = await _running(context, request)
    _check_typing(request.principal, told)
    named = request.path_params["port"]
    if not named.isascii() or not named.isdigit() or not 1 <= int(named) <= HIGHEST_PORT:
        raise WrongRequest("WrongPort", f"{named[:20]!r} is not a port; give a number from 1 to 65535.", "port")
    return await _opened(context, request, node, ref, pb.OpenChannel(kind=pb.OpenChannel.PORT, port=int(named)))


async def list_ports(context: AppContext, request: Request) -> Response:
    """List the ports on which a running task listens."""
    told, ref, node = await _running(context, request, upgraded=False)
    _check_typing(request.principal, told)
    channels = context.scheduler.agents.channels
    channel, first = await channels.open(
        node, ref, pb.OpenChannel(kind=pb.OpenChannel.PORTS), request.principal.username
    )
    channels.close(channel)
    return json_response(PortList(_READ_PORTS(first.frame)))


async def _running(
    context: AppContext, request: Request, *, upgraded: bool = True
) -> tuple[TaskAnswer, AttemptRef, NodeId]:
    """Return a task that runs, its attempt and its node."""
    task, encoded = await find_answer(context, request)
    if upgraded and UPGRADED not in request.scope:
        message = "This path is a WebSocket; use `gpuyard attach`, `shell` or `forward`, or ask for an upgrade."
        raise WrongRequest("UpgradeRequired", message, status=426)
    told = read_answer(encoded)
    if told.command is None:
        message = f"{told.id} is a lease: it has no process."
        raise WrongRequest("NoOutput", message, "task_id", status=409)
    view = context.scheduler.views.tasks.get(task)
    if view is None or view.status in ENDED:
        raise WrongRequest("TaskEnded", f"{told.id} has ended ({told.status}).", "task_id", status=409)
    if view.placement is None or view.started_at is None:
        raise WrongRequest(
            "NotRunning", f"{told.id} does not run at the moment ({told.status}).", "task_id", status=409
        )
    return told, AttemptRef(TaskId(task), told.attempts, origin_of(told, told.attempts)), NodeId(told.node_ids[0])


def _check_typing(principal: Principal, told: TaskAnswer) -> None:
    """Refuse callers that may not run code as the user of the task."""
    if principal.role is Role.ADMIN or principal.via is AuthMethod.LOCAL:
        return
    if principal.role is not Role.VIEWER and principal.username == told.user:
        return
    owner = f"{told.user}, who submitted it," if told.user else "its owner"
    sentence = f"Only {owner} and administrators may type in {told.id}; its output is open to you (--read-only, logs)."
    raise AccessDenied(Denied(403, "NotOwner", sentence))


async def _opened(
    context: AppContext, request: Request, node: NodeId, ref: AttemptRef, wanted: pb.OpenChannel
) -> Response:
    channels = context.scheduler.agents.channels
    channel, _ = await channels.open(node, ref, wanted, request.principal.username)
    kind = pb.OpenChannel.Kind.Name(wanted.kind).lower()
    about = {"task_id": f"task-{ref.task}", "kind": kind, "user": request.principal.username}
    log.info("channel_opened", **about, client=request.client_address)
    is_port = wanted.kind == pb.OpenChannel.PORT
    response = UpgradedResponse(channel, PORT_SUBPROTOCOL if is_port else SUBPROTOCOL, plain=is_port)
    response.closed = partial(_closed, context, channel, about, time.monotonic())
    return response


def _closed(context: AppContext, channel: TaskChannel, about: Mapping[str, Any], began: float) -> None:
    context.scheduler.agents.channels.close(channel)
    seconds = round(time.monotonic() - began, 1)
    log.info("channel_closed", **about, seconds=seconds, bytes_out=channel.bytes_read, bytes_in=channel.bytes_written)
