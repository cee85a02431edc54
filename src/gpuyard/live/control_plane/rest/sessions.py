"""Sessions of browsers: begin one with a password, ask whose it is, end it."""

from gpuyard.live.control_plane.access.principal import ROLE_SCOPES, AuthMethod, Principal, Scope
from gpuyard.live.control_plane.access.session_cookie import cookie_name, set_cookie
from gpuyard.live.control_plane.access.store import NewToken
from gpuyard.live.control_plane.rest.context import AppContext, in_thread
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.rest.users import check_login, note
from gpuyard.live.wire.answers import MessageAnswer, SessionAnswer, read_login


async def post_session(context: AppContext, request: Request) -> Response:
    """Log in with a username and a password. The session is always a new one; that of an earlier cookie ends."""
    asked = read_login(await request.body())
    user = await check_login(context, request, asked.username, asked.password)
    await _end_present(context, request)
    made: NewToken = await in_thread(
        context,
        context.access.begin_session,
        user.username,
        float(context.settings.auth.token_lifetime),
        request.peer_uid,
    )
    principal = Principal(
        user.username, user.tenant, user.role, AuthMethod.SESSION, request.client_address, made.token.id
    )
    await note(context, request, "logged_in", principal, username=user.username, token=made.token.id)
    return json_response(_answer(principal), headers={"set-cookie": _cookie(request, made.secret)})


async def get_session(context: AppContext, request: Request) -> Response:  # noqa: ARG001
    """Return who the caller is and what it may do; without a login, that one is required."""
    return json_response(_answer(request.authenticated))


async def delete_session(context: AppContext, request: Request) -> Response:
    """End the session of the cookie on the server, and remove the cookie. Without a session nothing changes."""
    ended = await _end_present(context, request)
    message = "The session has ended." if ended else "There was no session."
    return json_response(MessageAnswer(message), headers={"set-cookie": _cookie(request, "")})


async def _end_present(context: AppContext, request: Request) -> bool:
    caller = request.authenticated
    if caller is None or caller.via is not AuthMethod.SESSION or caller.token is None:
        return False
    await in_thread(context, context.access.end_session, caller.token)
    await note(context, request, "logged_out", caller, username=caller.username, token=caller.token)
    return True


def _cookie(request: Request, secret: str) -> str:
    tls = request.scope["scheme"] == "https"
    return set_cookie(cookie_name(request.headers["host"].strip(), tls), secret, tls)


def _answer(caller: Principal | None) -> SessionAnswer:
    if caller is None:
        return SessionAnswer(login_required=True, username=None, tenant_id=None, role=None, via=None, actions=[])
    actions = [action.value for action, roles in ROLE_SCOPES.items() if roles[caller.role] is not Scope.NONE]
    return SessionAnswer(
        login_required=False,
        username=caller.username,
        tenant_id=caller.tenant,
        role=caller.role.value,
        via=caller.via.value,
        actions=actions,
    )
