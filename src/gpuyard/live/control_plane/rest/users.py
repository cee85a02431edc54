"""Users, their tokens, and logging in. They live in a store of their own, outside the journal: what it holds is nobody's business."""

import asyncio
import os
import time
from typing import Annotated

import structlog
from msgspec import UNSET, Meta, Struct, UnsetType

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.values import TenantId
from gpuyard.input.strict import Strict, WrongRequest
from gpuyard.live.control_plane.access.refusals import UnknownToken, UnknownUser
from gpuyard.live.control_plane.access.store import NewToken, Token, User
from gpuyard.live.control_plane.access.who import TABLE, Action, Denied, Reach, Role, Via, Who, forbidden
from gpuyard.live.control_plane.rest.answer import Answer, say
from gpuyard.live.control_plane.rest.call import Call, Desk, in_thread
from gpuyard.live.control_plane.rest.errors import NotAllowed, Refused
from gpuyard.live.control_plane.rest.query import Parameter, text
from gpuyard.live.control_plane.scheduler import by
from gpuyard.live.control_plane.stores.system_users import refuse_own_account
from gpuyard.live.control_plane.worker_threads import LaneFull
from gpuyard.live.wire import answers as wire
from gpuyard.live.wire.dialect import PERMISSIONS, ROLE_WORDS, CurrentUser, DialectLogin, LoginAnswer, read_login
from gpuyard.live.wire.limits import Instant, Password, SystemUser, TenantName, instant_of

log = structlog.get_logger()


class UserChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be changed of a user. What is left out stays as it is."""

    password: Password | UnsetType = UNSET
    old_password: Annotated[str, Meta(min_length=1, max_length=1024)] | UnsetType = UNSET
    """Needed to change one's own password."""
    revoke_tokens: bool = False
    """With another password: also revoke all tokens of the user. Logins are over in any case."""
    tenant_id: TenantName | UnsetType = UNSET
    role: wire.Role | UnsetType = UNSET
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
    429, "TooManyLogins", "Too many logins wait already. Try again in a few seconds.", (("retry-after", "2"),)
)

USERNAME = Parameter("username", "Only this user's; an admin sees those of others.", text)


async def note(desk: Desk, what: str, who: Who, username: str, **about: object) -> None:
    """Users and tokens are not in the journal; that somebody changed them is, with who and from where."""
    log.info("access_changed", what=what, by=by(who), username=username, **about)
    subject = f"{username}, token {about['token']}" if "token" in about else username
    await desk.yard.tell(command.NoteAccess(what, subject), who)


# --- users ------------------------------------------------------------------------------------------------------------


async def list_users(desk: Desk, call: Call) -> Answer:  # noqa: ARG001
    """All of them."""
    users = [_user(desk, user) for user in desk.access.users()]
    return say(UsersAnswer(users, len(users)))


async def post_user(desk: Desk, call: Call) -> Answer:
    """A new one."""
    asked = wire.read_user(await call.body())
    if asked.password is None:
        raise WrongRequest("MissingField", "password is missing; a new user needs one.", "password")
    tenant, role = TenantId(asked.tenant_id), Role(asked.role)
    await _check_account(asked.system_user)
    user = await in_thread(desk, desk.access.add_user, asked.username, asked.password, tenant, role)
    await in_thread(desk, desk.yard.system_users.set, user.username, asked.system_user)
    await note(desk, "user_added", call.who, username=user.username, role=user.role, tenant=user.tenant)
    if not desk.settings.auth.enabled:
        message = "Login is off: root and the user who runs the scheduler are admins without one. Set auth.enabled."
        log.warning("login_is_off", message=message)
    return say(_user(desk, user), 201)


async def get_user(desk: Desk, call: Call) -> Answer:
    """One of them; everybody sees oneself."""
    return say(_user(desk, _find_user(desk, call)))


async def patch_user(desk: Desk, call: Call) -> Answer:
    """Another password, tenant or role. Of oneself everybody may change the password, nobody else the rest."""
    user = _find_user(desk, call)
    change = _read_change(await call.body())
    tenant = UNSET if change.tenant_id is UNSET else TenantId(change.tenant_id)
    role = UNSET if change.role is UNSET else Role(change.role)
    given = {"tenant": tenant, "role": role, "disabled": change.disabled}
    given = {name: value for name, value in given.items() if value is not UNSET}
    maps = change.system_user is not UNSET
    if (given or maps) and not _sees_all(call.who):
        raise NotAllowed(forbidden(call.who, Action.ALL_ACCESS))
    if change.system_user is not UNSET:
        await _check_account(change.system_user)
    if change.password is not UNSET:
        if _is(call.who, user.username):  # a stolen login must not become the user for good
            if change.old_password is UNSET:
                message = "old_password is missing; to change your own password give the present one, too."
                raise WrongRequest("MissingField", message, "old_password")
            await check_login(desk, call, user.username, change.old_password)
        await in_thread(desk, desk.access.set_password, user.username, change.password, change.revoke_tokens)
        what = "password_set_and_tokens_revoked" if change.revoke_tokens else "password_set"
        await note(desk, what, call.who, username=user.username)
    if given:
        change_user = desk.access.change_user
        await in_thread(desk, lambda: change_user(user.username, tenant=tenant, role=role, disabled=change.disabled))
        await note(desk, "user_changed", call.who, username=user.username, **given)
    if maps:
        await in_thread(desk, desk.yard.system_users.set, user.username, change.system_user)
        await note(desk, "user_changed", call.who, username=user.username, system_user=change.system_user)
    return await get_user(desk, call)


async def _check_account(account: str) -> None:
    """In a thread of its own: a directory service that hangs must not hold up other changes of users."""
    if sentence := await asyncio.to_thread(refuse_own_account, "system_user", account, os.geteuid()):
        raise WrongRequest("WrongText", sentence, "system_user")


async def delete_user(desk: Desk, call: Call) -> Answer:
    """Away with a user and all tokens of that user."""
    username = call.named["username"]
    await in_thread(desk, desk.access.remove_user, username)
    await in_thread(desk, desk.yard.system_users.set, username, "")
    await note(desk, "user_removed", call.who, username=username)
    return say(wire.MessageAnswer(f"User {username} and all tokens of that user are gone."))


def _find_user(desk: Desk, call: Call) -> User:
    username = call.named["username"]
    user = desk.access.user(username)
    if user is None or not (_sees_all(call.who) or _is(call.who, username)):
        raise Refused(UnknownUser(username[:64]))
    return user


def _sees_all(who: Who) -> bool:
    return TABLE[Action.ALL_ACCESS][who.role] is Reach.ALL


def _is(who: Who, username: str) -> bool:
    """Whoever came in as the owner of a process is not the user of the same name."""
    return who.via is not Via.LOCAL and who.username == username


def _user(desk: Desk, user: User) -> UserDetail:
    return UserDetail(
        username=user.username,
        tenant_id=user.tenant or "",
        role=user.role.value,
        system_user=desk.yard.system_users.of(user.username),
        disabled=user.disabled,
        created_at=instant_of(user.created_at),
    )


# --- tokens -----------------------------------------------------------------------------------------------------------


async def list_tokens(desk: Desk, call: Call) -> Answer:
    """One's own; an admin sees all."""
    asked: str | None = call.asked.get("username")
    if not _sees_all(call.who):
        if asked not in {None, call.who.username}:
            raise NotAllowed(forbidden(call.who, Action.ALL_ACCESS))
        asked = call.who.username
    tokens = [_token(token) for token in desk.access.tokens(asked) if token.revoked_at is None]
    return say(wire.TokenList(tokens, len(tokens)))


async def post_token(desk: Desk, call: Call) -> Answer:
    """A new one, shown this once."""
    asked = wire.read_token(await call.body())
    username = asked.username or ("" if call.who.via is Via.LOCAL else call.who.username)
    if not username:
        message = "username is missing: whoever comes without a login is no user, so say whose token it is to be."
        raise WrongRequest("MissingField", message, "username")
    if not _sees_all(call.who) and not _is(call.who, username):
        raise NotAllowed(forbidden(call.who, Action.ALL_ACCESS))
    ends_at = None if asked.lifetime is None else time.time() + asked.lifetime
    if asked.password is not None and call.who.via is not Via.LOCAL:
        await check_login(desk, call, call.who.username, asked.password)
    elif (until := _end_of(desk, call.who)) is not None:  # it must not outlive what it is made with
        if ends_at is not None and ends_at > until:
            message = (
                f"lifetime is longer than the login or token you come with, which ends at {instant_of(until)}. "
                "Ask for less, or give your password again (`gpuyard tokens create --password`)."
            )
            raise WrongRequest("LifetimeTooLong", message, "lifetime")
        ends_at = until if ends_at is None else ends_at
    made: NewToken = await in_thread(desk, desk.access.make_token, username, asked.name, ends_at)
    await note(desk, "token_made", call.who, username=username, token=made.token.id)
    return say(
        wire.TokenCreated(
            id=made.token.id,
            token=made.secret,
            name=made.token.name,
            username=username,
            expires_at=None if ends_at is None else instant_of(ends_at),
        ),
        201,
    )


def _end_of(desk: Desk, who: Who) -> float | None:
    """When the login or token ends that somebody came with."""
    token = None if who.token is None else desk.access.token(who.token)
    return None if token is None else token.expires_at


async def delete_token(desk: Desk, call: Call) -> Answer:
    """Let nobody in with it from now on."""
    token = desk.access.token(call.named["id"])
    if token is None or not (_sees_all(call.who) or _is(call.who, token.username)):
        raise Refused(UnknownToken(call.named["id"][:64]))
    await in_thread(desk, desk.access.revoke_token, token.id)
    await note(desk, "token_revoked", call.who, username=token.username, token=token.id)
    return say(wire.MessageAnswer(f"Token {token.id} of {token.username} is revoked."))


def _token(token: Token) -> wire.TokenAnswer:
    return wire.TokenAnswer(
        id=token.id,
        name=token.name,
        username=token.username,
        created_at=instant_of(token.created_at),
        expires_at=None if token.expires_at is None else instant_of(token.expires_at),
        last_used_at=None if token.last_used_at is None else instant_of(token.last_used_at),
    )


# --- 002's words ------------------------------------------------------------------------------------------------------


async def login(desk: Desk, call: Call) -> Answer:
    """A token for a username and a password."""
    user, made, ends_at = await _logged_in(desk, call)
    return say(
        LoginAnswer(
            token=made.secret,
            user_id=user.username,
            username=user.username,
            tenant_id=user.tenant or "",
            role=user.role,
            expires_at=instant_of(ends_at),
        )
    )


async def check_login(desk: Desk, call: Call, username: str, password: str) -> User:
    """The user whose password this is; anybody else is refused, and so is everybody while too many wait."""
    try:
        user = await desk.yard.lanes.logins.run_for(
            call.address, desk.access.check_login, username, password, call.address
        )
    except LaneFull:
        user = _TOO_MANY
    if isinstance(user, Denied):
        if user is not _TOO_MANY:  # a flood does not fill the log
            log.warning("login_failed", username=username[:64], address=call.address, why=user.code)
        raise NotAllowed(user)
    return user


async def login_of_002(desk: Desk, call: Call) -> Answer:
    """The same in 002's words."""
    user, made, ends_at = await _logged_in(desk, call)
    return say(
        DialectLogin(
            token=made.secret,
            user_id=user.username,
            username=user.username,
            tenant_id=user.tenant or "",
            role=ROLE_WORDS.get(user.role, user.role),
            expires_at=int(ends_at),
        )
    )


async def _logged_in(desk: Desk, call: Call) -> tuple[User, NewToken, float]:
    """Who it is, the token, and when that runs out."""
    asked = read_login(await call.body())
    user = await check_login(desk, call, asked.username, asked.password)
    lifetime_seconds = float(desk.settings.auth.token_lifetime)
    made: NewToken = await in_thread(desk, desk.access.log_in, user.username, lifetime_seconds)
    ends_at = made.token.expires_at
    assert ends_at is not None
    who = Who(user.username, user.tenant, user.role, Via.LOGIN, call.address, made.token.id)
    await note(desk, "logged_in", who, username=user.username, token=made.token.id)
    return user, made, ends_at


async def current_user(desk: Desk, call: Call) -> Answer:
    """Who one is."""
    who = call.who
    user = None if who.via is Via.LOCAL else desk.access.user(who.username)
    logins = [token.created_at for token in desk.access.tokens(who.username) if token.via is Via.LOGIN] if user else []
    return say(
        CurrentUser(
            id=who.username,
            username=who.username,
            tenant_id=who.tenant or "",
            role=ROLE_WORDS.get(who.role, who.role),
            permissions=list(PERMISSIONS[who.role]),
            created_at=instant_of(user.created_at) if user else "",
            last_login=instant_of(max(logins)) if logins else "",
        )
    )
