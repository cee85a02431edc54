"""The HTTP side of the scheduler: Starlette's router over the route table, and the steps every request goes through.

    path ─► Host, Origin ─► method ─► authenticate ─► authorize ─► query ─► handler ─► response
     404         403          405         401            403        400

The steps stand in one function instead of a stack of middleware: they are the same for every route, and a middleware
costs time on each request.
"""

from collections.abc import Mapping
from functools import partial
from typing import TypeAlias

import starlette.routing
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope
from structlog.contextvars import bind_contextvars

from gpuyard.input.nearest_name import closest_word
from gpuyard.live.control_plane.access.allowed_hosts import AllowedHosts
from gpuyard.live.control_plane.access.authenticator import Authenticator
from gpuyard.live.control_plane.access.principal import ROLE_SCOPES, Denied, Principal, Scope, forbidden
from gpuyard.live.control_plane.access.store import AccessStore
from gpuyard.live.control_plane.rest.channels import UPGRADED
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.errors import Unavailable, denial, error, error_response
from gpuyard.live.control_plane.rest.legacy.errors import is_legacy, legacy_error
from gpuyard.live.control_plane.rest.open_streams import TooManyStreams
from gpuyard.live.control_plane.rest.page import PageApp, build_of, page_files
from gpuyard.live.control_plane.rest.query import read_query
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.request_guard import RequestGuard
from gpuyard.live.control_plane.rest.request_id import request_id_of
from gpuyard.live.control_plane.rest.responses import HANG_UP, AccessLost, ClientEnded, Response, StreamingResponse
from gpuyard.live.control_plane.rest.route import Route
from gpuyard.live.control_plane.rest.routes import ROUTES
from gpuyard.live.control_plane.rest.upgraded import UpgradedResponse
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.control_plane.settings import ServerSettings
from gpuyard.live.control_plane.worker_threads import calling_user

MAX_PATH_LENGTH = 2048
_PLAIN = {"ws": "http", "wss": "https"}

Methods: TypeAlias = Mapping[str, Route]
"""The routes of one path, by method."""


def make_app(
    scheduler: Scheduler,
    access: AccessStore,
    authenticator: Authenticator,
    allowed_hosts: AllowedHosts,
    settings: ServerSettings,
) -> ASGIApp:
    """Return the ASGI application; uvicorn may serve it on several sockets at once."""
    context = AppContext(scheduler, access, settings)
    guard = RequestGuard(authenticator, allowed_hosts, access, float(settings.auth.session_idle))
    by_path: dict[str, dict[str, Route]] = {}
    for route in ROUTES:
        by_path.setdefault(route.path, {})[route.method] = route

    routes: list[starlette.routing.BaseRoute] = [
        starlette.routing.Route(path, _Endpoint(context, guard, methods)) for path, methods in by_path.items()
    ]
    upgrades = [path for path, methods in by_path.items() if any(route.upgrades for route in methods.values())]
    routes += [starlette.routing.WebSocketRoute(path, _Endpoint(context, guard, by_path[path])) for path in upgrades]
    files = page_files()
    routes += [starlette.routing.Route(path, PageApp(guard, file)) for path, file in files.items()]
    if files:
        scheduler.live.build = build_of(files)
    else:
        routes.append(starlette.routing.Route("/", PageApp(guard, None)))
    return starlette.routing.Router(routes, redirect_slashes=False, default=_Endpoint(context, guard, {}))


class _Endpoint:
    """The ASGI application of one path. One path has one endpoint, so that a 405 can name all methods of the path."""

    def __init__(self, context: AppContext, guard: RequestGuard, methods: Methods) -> None:
        self._context = context
        self._guard = guard
        self._methods = methods
        """Empty if there is no such path."""

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        asked = scope
        if scope["type"] == "websocket":  # the request is checked as any other, before it becomes a WebSocket
            asked = {**scope, "type": "http", "method": "GET", "scheme": _PLAIN[scope["scheme"]], UPGRADED: True}
        request_id = request_id_of(scope["headers"])
        bind_contextvars(request_id=request_id)
        try:
            response = await self._respond(asked, receive, request_id)
        except ClientDisconnect:
            return
        except Exception as problem:  # the client gets a message, and other requests are not affected
            response = error_response(problem, request_id)
        response.raw_headers.append((b"x-request-id", request_id.encode()))
        if response.status_code == 401 and (stale := self._guard.removed_cookie(asked)) and self._is_over(asked):
            response.raw_headers.append((b"set-cookie", stale))
        if response.status_code >= 400 and is_legacy(scope["path"]):
            response = legacy_error(response)
        if isinstance(response, StreamingResponse):
            await _stream(response, scope, receive, send, request_id)
        else:
            await response(scope, receive, send)

    def _is_over(self, scope: AsgiScope) -> bool:
        """Whether the session itself was refused; a valid one outlives a wrong password within a request."""
        return isinstance(self._guard.authenticate(scope, note_use=False), Denied)

    async def _respond(self, scope: AsgiScope, receive: Receive, request_id: str) -> Response:
        if denied := self._guard.check_host(scope["headers"]):
            return denial(denied)
        path, method = scope["path"], scope["method"]
        if not self._methods or len(path) > MAX_PATH_LENGTH or path.endswith("\n"):  # the router ignores a line break
            return _not_found(path)
        route = self._methods.get("GET" if method == "HEAD" else method)
        if route is None:
            return _method_not_allowed(method, path, self._methods)
        principal: Principal | None = None
        if route.names_caller:
            found = self._guard.authenticate(scope)
            if isinstance(found, Principal):
                principal = found
            elif found.status != 401:
                return denial(found)
        elif route.action is not None:
            found = self._guard.authenticate(scope)
            if isinstance(found, Denied):
                return denial(found)
            if ROLE_SCOPES[route.action][found.role] is Scope.NONE:
                return denial(forbidden(found, route.action))
            if not self._context.scheduler.ready:
                raise Unavailable("NotReady", "The scheduler is starting or stopping; try again in a few seconds.")
            principal = found
        if elsewhere := _for_the_leader(scheduler := self._context.scheduler, route, scope):
            return elsewhere
        if principal is not None:
            calling_user.set(principal.username)
        connection = self._guard.connection(scope)
        request = Request(
            scope,
            receive,
            client_address=connection.peer[0],
            authenticated=principal,
            query=read_query(route.query, QueryParams(scope["query_string"])) if scope["query_string"] else {},
            request_id=request_id,
            connection=connection,
        )
        response = await route.handle(self._context, request)
        if scheduler.role.shared:
            _mark(response, scheduler)
        if isinstance(response, StreamingResponse | UpgradedResponse):
            response.has_access = lambda: self._guard.authenticate(scope, note_use=False) == principal
            if isinstance(response, UpgradedResponse):
                return response
            if principal is not None and response.endless:
                await self._count(response, principal.username)
        return response

    async def _count(self, response: StreamingResponse, user: str) -> None:
        """Count an endless stream as one of its user until it has ended."""
        streams = self._context.streams
        try:
            streams.opened(user)
        except TooManyStreams:
            await response.body_iterator.aclose()
            raise
        response.closed = partial(streams.closed, user)


def _for_the_leader(scheduler: Scheduler, route: Route, scope: AsgiScope) -> Response | None:
    """Return the answer of a scheduler that may not carry out a request; None: it may."""
    role = scheduler.role
    if not role.shared or (route.action is None and route.method == "GET"):
        return None
    if role.leads:
        if role.may_answer:
            return None
        raise Unavailable("NotReady", "Another scheduler may have taken over; try again in a few seconds.")
    if route.here or (route.method == "GET" and not route.asks_nodes):
        return None
    if not role.leader_url:
        why_not = role.replicating.why_not_leading() if role.replicating is not None else ""
        raise Unavailable("NotReady", f"No scheduler leads at present; try again in a few seconds. {why_not}".rstrip())
    query = f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
    target = f"{role.leader_url}{scope['raw_path'].decode('latin-1').partition('?')[0]}{query}"
    message = f"This scheduler is a standby. Send the request to {role.leader_url}, which leads."
    return error(307, "NotLeading", message, None, {"location": target})


def _mark(response: Response, scheduler: Scheduler) -> None:
    """Say which role answered, how far a standby is behind, and where the leader is."""
    role = scheduler.role
    response.raw_headers.append((b"x-gpuyard-role", role.name.encode()))
    if not role.leads:
        response.raw_headers.append((b"x-gpuyard-behind-seconds", b"%.3f" % role.behind_seconds))
        response.raw_headers.append((b"x-gpuyard-leader", role.leader_url.encode()))


async def _stream(response: StreamingResponse, scope: AsgiScope, receive: Receive, send: Send, request_id: str) -> None:
    """Send a stream; if it cannot be completed, abort the connection so that the client notices."""
    try:
        await response(scope, receive, send)
    except Exception as problem:
        if not isinstance(problem, AccessLost | ClientEnded):
            error_response(problem, request_id)  # too late for the client; an unexpected error is logged
        scope["extensions"][HANG_UP]()
        await response.listen_for_disconnect(receive)
    finally:
        response.closed()


def _not_found(path: str) -> Response:
    near = closest_word(path, [route.path for route in ROUTES if "{" not in route.path])
    shown = path if len(path) <= 100 and path.isprintable() else ascii(path[:100]) + "…"
    hint = f" Did you mean {near}?" if near else ""
    return error(404, "NotFound", f"No endpoint {shown}.{hint} See /docs for the list.")


def _method_not_allowed(method: str, path: str, methods: Methods) -> Response:
    known = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
    shown = method if method.isalpha() and len(method) <= 20 else "This method"
    return error(405, "MethodNotAllowed", f"{path} does not accept {shown}; use {known}.", None, {"allow": known})
