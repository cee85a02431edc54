"""The HTTP side of the scheduler as one ASGI application: the way of a request, from the door to its handler.

    Host, Origin ─► path and method ─► who ─► may they ─► query ─► handler ─► answer
       403             404, 405        401      403        400

There is no stack of middleware: the way is this one function, the same for the hottest route and the rarest.
"""

import asyncio
from contextlib import suppress

from gpuyard.input.nearest_name import nearest
from gpuyard.live.control_plane.access.gate import Gate
from gpuyard.live.control_plane.access.origin import Doorplate
from gpuyard.live.control_plane.access.store import AccessStore
from gpuyard.live.control_plane.access.who import TABLE, Denied, Reach, Who, forbidden
from gpuyard.live.control_plane.rest.answer import Answer, Flow, Unwelcome, gone
from gpuyard.live.control_plane.rest.asgi import HANG_UP, ASGIApp, Receive, Scope, Send
from gpuyard.live.control_plane.rest.body import ClientGone
from gpuyard.live.control_plane.rest.call import Call, Desk
from gpuyard.live.control_plane.rest.door import Door
from gpuyard.live.control_plane.rest.errors import Unavailable, answer_to, denial, error, in_dialect
from gpuyard.live.control_plane.rest.history import History
from gpuyard.live.control_plane.rest.monitor import keep_history
from gpuyard.live.control_plane.rest.query import read_query
from gpuyard.live.control_plane.rest.routes import ROUTES
from gpuyard.live.control_plane.rest.table import Methods, make_table
from gpuyard.live.control_plane.scheduler import Yard
from gpuyard.live.control_plane.settings import ServerSettings
from gpuyard.live.wire.dialect import is_dialect


def make_app(yard: Yard, access: AccessStore, gate: Gate, doorplate: Doorplate, settings: ServerSettings) -> ASGIApp:
    """The application; uvicorn may serve it on several sockets at once."""
    return _App(
        Desk(yard, access, settings, History(keep_seconds=float(settings.monitor.retention))), Door(gate, doorplate)
    )


class _App:
    """One yard, served."""

    def __init__(self, desk: Desk, door: Door) -> None:
        self._desk = desk
        self._door = door
        self._find = make_table(ROUTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._live(scope, receive, send)
            return
        try:
            answer = await self._answer(scope, receive)
            if isinstance(answer, Answer):
                if answer.status >= 400 and is_dialect(scope["path"]):
                    answer = in_dialect(answer)
                await answer.send(send)
            else:
                await self._flow(answer, scope, receive, send)
        except ClientGone:
            return

    async def _flow(self, flow: Flow, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await flow.send(receive, send, head_only=scope["method"] == "HEAD")
        except Exception as problem:
            if not isinstance(problem, Unwelcome):
                answer_to(problem)  # too late for the client; if it is a bug, the log has it
            scope["extensions"][HANG_UP]()
            await gone(receive)

    async def _answer(self, scope: Scope, receive: Receive) -> Answer | Flow:
        try:
            return await self._way(scope, receive)
        except ClientGone:
            raise
        except Exception as problem:  # whatever it is, the client gets a sentence and the others notice nothing
            return answer_to(problem)

    async def _way(self, scope: Scope, receive: Receive) -> Answer | Flow:
        headers, path, method = scope["headers"], scope["path"], scope["method"]
        if denied := self._door.turned_away(headers):
            return denial(denied)
        methods, named = self._find(path)
        if methods is None:
            return _nothing_at(path)
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            return _not_so(method, path, methods)
        somebody: Who | None = None
        if route.action is not None:
            who = self._door.who(scope)
            if isinstance(who, Denied):
                return denial(who)
            if TABLE[route.action][who.role] is Reach.NONE:
                return denial(forbidden(who, route.action))
            if not self._desk.yard.ready:
                raise Unavailable("NotReady", "The scheduler is starting or stopping; try again in a few seconds.")
            somebody = who
        query = scope["query_string"]
        asked = read_query(route.query, query) if query else {}
        address = somebody.address if somebody else self._door.connection(scope).peer[0]
        call = Call(headers, receive, address=address, somebody=somebody, named=named, asked=asked)
        answer = await route.handle(self._desk, call)
        if isinstance(answer, Flow):
            answer.is_welcome = lambda: self._door.who(scope) == somebody
        return answer

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The server begins: the monitor looks from time to time until the server ends."""
        assert scope["type"] == "lifespan", scope["type"]
        await receive()
        sampling = asyncio.create_task(keep_history(self._desk))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        sampling.cancel()
        with suppress(asyncio.CancelledError):
            await sampling
        await send({"type": "lifespan.shutdown.complete"})


def _nothing_at(path: str) -> Answer:
    near = nearest(path, [route.path for route in ROUTES if "{" not in route.path])
    shown = path if len(path) <= 100 and path.isprintable() else ascii(path[:100]) + "…"
    hint = f" Did you mean {near}?" if near else ""
    return error(404, "NotFound", f"There is nothing at {shown}.{hint} /docs has all there is.")


def _not_so(method: str, path: str, methods: Methods) -> Answer:
    known = sorted({*methods, *(["HEAD"] if "GET" in methods else [])})
    shown = method if method.isalpha() and len(method) <= 20 else "This method"
    message = f"{shown} can not be used at {path}; it takes {', '.join(known)}."
    return error(405, "MethodNotAllowed", message, None, ((b"allow", ", ".join(known).encode()),))
