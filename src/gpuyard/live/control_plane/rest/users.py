"""Users, tokens and login. They are kept in a store outside the journal, because they are confidential."""

import asyncio
import os
import time
from typing import Annotated

import structlog
from msgspec import UNSET, Meta, Struct, UnsetType

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.values import TenantId
from gpuyard.input.strict import Strict, WrongRequest
from gpuyard.live.control_plane.access.principal import (
    ROLE_SCOPES,
    Action,
    AuthMethod,
    Denied,
    Principal,
    Role,
    Scope,
    forbidden,
    issuer_of,
)
from gpuyard.live.control_plane.access.refusals import UnknownToken, UnknownUser
from gpuyard.live.control_plane.access.store import NewToken, Token, User
from gpuyard.live.control_plane.rest.context import AppContext, in_thread
from gpuyard.live.control_plane.rest.errors import AccessDenied, CommandRefused
from gpuyard.live.control_plane.rest.query import Parameter, text
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.stores.system_users import refuse_own_account
from gpuyard.live.control_plane.worker_threads import WorkerPoolFull
from gpuyard.live.wire import answers as wire
from gpuyard.live.wire.limits import Instant, Password, SystemUser, TenantName, instant_of

log = structlog.get_logger()


class UserChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of a user. Omitted fields stay unchanged."""

    password: Password | UnsetType = UNSET
    old_password: Annotated[str, Meta(min_length=1, max_length=1024)] | UnsetType = UNSET
    """Needed to change one's own password."""
    revoke_tokens: bool = False
    """With another password: also revoke all tokens of the user. Logins end in any case."""
    tenant_id: TenantName | UnsetType = UNSET
    role: wire.RoleName | UnsetType = UNSET
    disabled: bool | UnsetType = UNSET
    system_user: SystemUser | UnsetType = UNSET
    """The system account that the user's tasks run as; empty: that of the tenant."""


class UserDetail(wire.UserAnswer, frozen=True, kw_only=True):
    """A user, without the password."""

    disabled: bool
    created_at: Instant


class UsersAnswer(Struct, frozen=True):
    """All users, by name."""

    users: list[UserDetail]
    total: int


_read_change = Strict(UserChange).json

_TOO_MANY = Denied(
    429, "TooManyLogins", "Too many logins are waiting. Try again in a few seconds.", (("retry-after", "2"),)
)

USERNAME = Parameter("username", "Only tokens of this user; administrators may see those of others.", text)


async def note(
    context: AppContext, request: Request, what: str, principal: Principal, username: str, **about: object
) -> None:
    """Record a change of users or tokens in the journal, with its author and address, but without the data."""
    log.info("access_changed", what=what, by=issuer_of(principal), username=username, **about)
    subject = f"{username}, token {about['token']}" if "token" in about else username
    await context.scheduler.loop.tell(
        command.RecordAccessChange(what, subject), issuer_of(principal), request_id=request.request_id
    )


# --- users ------------------------------------------------------------------------------------------------------------


async def list_users(context: AppContext, request: Request) -> Response:  # noqa: ARG001
    """List all users."""
    users = [_user(context, user) for user in context.access.users()]
    return json_response(UsersAnswer(users, len(users)))


async def post_user(context: AppContext, request: Request) -> Response:
    """Add a user."""
    asked = wire.read_user(await request.body())
    if asked.password is None:
        raise WrongRequest("MissingField", "password is missing; a new user needs one.", "password")
    tenant, role = TenantId(asked.tenant_id), Role(asked.role)
    await _check_account(asked.system_user)
    user = await in_thread(context, context.access.add_user, asked.username, asked.password, tenant, role)
    await in_thread(context, context.scheduler.stores.system_users.set, user.username, asked.system_user)
    await note(
        context, request, "user_added", request.principal, username=user.username, role=user.role, tenant=user.tenant
    )
    if not context.settings.auth.enabled:
        message = (
            "Login is off: root and the user who runs the scheduler are administrators without a login. "
            "Set auth.enabled to require logins."
        )
        log.warning("login_disabled", message=message)
    return json_response(_user(context, user), 201)


async def get_user(context: AppContext, request: Request) -> Response:
    """Return one user; users without further permissions see only themselves."""
    return json_response(_user(context, _find_user(context, request)))


async def patch_user(context: AppContext, request: Request) -> Response:
    """Change password, tenant or role. Users may change only their own password; the rest needs an admin."""
    user = _find_user(context, request)
    change = _read_change(await request.body())
    tenant = UNSET if change.tenant_id is UNSET else TenantId(change.tenant_id)
    role = UNSET if change.role is UNSET else Role(change.role)
    given = {"tenant": tenant, "role": role, "disabled": change.disabled}
    given = {name: value for name, value in given.items() if value is not UNSET}
    maps = change.system_user is not UNSET
    if (given or maps) and not _sees_all(request.principal):
        raise AccessDenied(forbidden(request.principal, Action.ALL_ACCESS))
    if change.system_user is not UNSET:
        await _check_account(change.system_user)
    if change.password is not UNSET:
        if _is(request.principal, user.username):  # otherwise a stolen login could take over the user for good
            if change.old_password is UNSET:
                message = "old_password is missing; it is required to change your own password."
                raise WrongRequest("MissingField", message, "old_password")
            await check_login(context, request, user.username, change.old_password)
        await in_thread(context, context.access.set_password, user.username, change.password, change.revoke_tokens)
        what = "password_set_and_tokens_revoked" if change.revoke_tokens else "password_set"
        await note(context, request, what, request.principal, username=user.username)
    if given:
        change_user = context.access.change_user
        await in_thread(context, lambda: change_user(user.username, tenant=tenant, role=role, disabled=change.disabled))
        await note(context, request, "user_changed", request.principal, username=user.username, **given)
    if maps:
        await in_thread(context, context.scheduler.stores.system_users.set, user.username, change.system_user)
        await note(
            context, request, "user_changed", request.principal, username=user.username, system_user=change.system_user
        )
    return await get_user(context, request)


async def _check_account(account: str) -> None:
    """Check the account in a separate thread: a directory service that hangs must not block other changes of users."""
    if sentence := await asyncio.to_thread(refuse_own_account, "system_user", account, os.geteuid()):
        raise WrongRequest("WrongText", sentence, "system_user")


async def delete_user(context: AppContext, request: Request) -> Response:
    """Remove a user and all tokens of the user."""
    username = request.path_params["username"]
    await in_thread(context, context.access.remove_user, username)
    await in_thread(context, context.scheduler.stores.system_users.set, username, "")
    await note(context, request, "user_removed", request.principal, username=username)
    return json_response(wire.MessageAnswer(f"User {username} and all tokens of the user were removed."))


def _find_user(context: AppContext, request: Request) -> User:
    username = request.path_params["username"]
    user = context.access.user(username)
    if user is None or not (_sees_all(request.principal) or _is(request.principal, username)):
        raise CommandRefused(UnknownUser(username[:64]))
    return user


def _sees_all(principal: Principal) -> bool:
    return ROLE_SCOPES[Action.ALL_ACCESS][principal.role] is Scope.ALL


def _is(principal: Principal, username: str) -> bool:
    """Whether the caller is this user. A caller admitted as owner of a process is not the user of the same name."""
    return principal.via is not AuthMethod.LOCAL and principal.username == username


def _user(context: AppContext, user: User) -> UserDetail:
    return UserDetail(
        username=user.username,
        tenant_id=user.tenant or "",
        role=user.role.value,
        system_user=context.scheduler.stores.system_users.of(user.username),
        disabled=user.disabled,
        created_at=instant_of(user.created_at),
    )


# --- tokens -----------------------------------------------------------------------------------------------------------


async def list_tokens(context: AppContext, request: Request) -> Response:
    """List the caller's tokens; an admin sees all."""
    asked: str | None = request.query.get("username")
    if not _sees_all(request.principal):
        if asked not in {None, request.principal.username}:
            raise AccessDenied(forbidden(request.principal, Action.ALL_ACCESS))
        asked = request.principal.username
    tokens = [_token(token) for token in context.access.tokens(asked) if token.revoked_at is None]
    return json_response(wire.TokenList(tokens, len(tokens)))


async def post_token(context: AppContext, request: Request) -> Response:
    """Create a token; its secret is shown only in this response."""
    asked = wire.read_token(await request.body())
    username = asked.username or ("" if request.principal.via is AuthMethod.LOCAL else request.principal.username)
    if not username:
        message = "username is missing. You use the server without a login, so specify the user of the token."
        raise WrongRequest("MissingField", message, "username")
    if not _sees_all(request.principal) and not _is(request.principal, username):
        raise AccessDenied(forbidden(request.principal, Action.ALL_ACCESS))
    ends_at = None if asked.lifetime is None else time.time() + asked.lifetime
    if asked.password is not None and request.principal.via is not AuthMethod.LOCAL:
        await check_login(context, request, request.principal.username, asked.password)
    elif (until := _end_of(context, request.principal)) is not None:  # a token must not outlive its maker's credential
        if ends_at is not None and ends_at > until:
            message = (
                "lifetime is longer than that of your login or token, which ends at "
                f"{instant_of(until)}. Use a shorter lifetime, or give your password again (`gpuyard "
                "tokens create --password`)."
            )
            raise WrongRequest("LifetimeTooLong", message, "lifetime")
        ends_at = until if ends_at is None else ends_at
    made: NewToken = await in_thread(context, context.access.make_token, username, asked.name, ends_at)
    await note(context, request, "token_made", request.principal, username=username, token=made.token.id)
    return json_response(
        wire.TokenCreated(
            id=made.token.id,
            token=made.secret,
            name=made.token.name,
            username=username,
            expires_at=None if ends_at is None else instant_of(ends_at),
        ),
        201,
    )


def _end_of(context: AppContext, principal: Principal) -> float | None:
    """Return when the login or token of the caller expires; None if never."""
    token = None if principal.token is None else context.access.token(principal.token)
    return None if token is None else token.expires_at


async def delete_token(context: AppContext, request: Request) -> Response:
    """Revoke a token."""
    token = context.access.token(request.path_params["id"])
    if token is None or not (_sees_all(request.principal) or _is(request.principal, token.username)):
        raise CommandRefused(UnknownToken(request.path_params["id"][:64]))
    await in_thread(context, context.access.revoke_token, token.id)
    await note(context, request, "token_revoked", request.principal, username=token.username, token=token.id)
    return json_response(wire.MessageAnswer(f"Token {token.id} of {token.username} was revoked."))


def _token(token: Token) -> wire.TokenAnswer:
    return wire.TokenAnswer(
        id=token.id,
        name=token.name,
        username=token.username,
        created_at=instant_of(token.created_at),
        expires_at=None if token.expires_at is None else instant_of(token.expires_at),
        last_used_at=None if token.last_used_at is None else instant_of(token.last_used_at),
    )


# --- logging in -------------------------------------------------------------------------------------------------------


async def login(context: AppContext, request: Request) -> Response:
    """Return a token for a username and a password."""
    user, made, ends_at = await log_in(context, request)
    return json_response(
        wire.LoginAnswer(
            token=made.secret,
            user_id=user.username,
            username=user.username,
            tenant_id=user.tenant or "",
            role=user.role,
            expires_at=instant_of(ends_at),
        )
    )


async def check_login(context: AppContext, request: Request, username: str, password: str) -> User:
    """Return the user if the password is right, otherwise refuse; refuse every login while too many are queued."""
    try:
        user = await context.scheduler.worker_pools.logins.run_for(
            request.client_address, context.access.check_login, username, password, request.client_address
        )
    except WorkerPoolFull:
        user = _TOO_MANY
    if isinstance(user, Denied):
        if user is not _TOO_MANY:  # a flood must not fill the log
            log.warning("login_failed", username=username[:64], address=request.client_address, why=user.code)
        raise AccessDenied(user)
    return user


async def log_in(context: AppContext, request: Request) -> tuple[User, NewToken, float]:
    """Log in, and return the user, the token and the time at which it expires."""
    asked = wire.read_login(await request.body())
    user = await check_login(context, request, asked.username, asked.password)
    lifetime_seconds = float(context.settings.auth.token_lifetime)
    made: NewToken = await in_thread(context, context.access.log_in, user.username, lifetime_seconds)
    ends_at = made.token.expires_at
    assert ends_at is not None
    principal = Principal(
        user.username, user.tenant, user.role, AuthMethod.LOGIN, request.client_address, made.token.id
    )
    await note(context, request, "logged_in", principal, username=user.username, token=made.token.id)
    return user, made, ends_at
