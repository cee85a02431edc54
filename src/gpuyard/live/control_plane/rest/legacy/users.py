"""Logging in and the current user in the legacy API."""

from gpuyard.live.control_plane.access.principal import AuthMethod
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.legacy.messages import PERMISSIONS, ROLE_WORDS, CurrentUser, LegacyLogin
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.rest.users import log_in
from gpuyard.live.wire.limits import instant_of


async def login(context: AppContext, request: Request) -> Response:
    """Return a token for a username and a password."""
    user, made, ends_at = await log_in(context, request)
    return json_response(
        LegacyLogin(
            token=made.secret,
            user_id=user.username,
            username=user.username,
            tenant_id=user.tenant or "",
            role=ROLE_WORDS.get(user.role, user.role),
            expires_at=int(ends_at),
        )
    )


async def current_user(context: AppContext, request: Request) -> Response:
    """Return the user of the request."""
    principal = request.principal
    user = None if principal.via is AuthMethod.LOCAL else context.access.user(principal.username)
    logins = (
        [token.created_at for token in context.access.tokens(principal.username) if token.via is not AuthMethod.TOKEN]
        if user
        else []
    )
    return json_response(
        CurrentUser(
            id=principal.username,
            username=principal.username,
            tenant_id=principal.tenant or "",
            role=ROLE_WORDS.get(principal.role, principal.role),
            permissions=list(PERMISSIONS[principal.role]),
            created_at=instant_of(user.created_at) if user else "",
            last_login=instant_of(max(logins)) if logins else "",
        )
    )
