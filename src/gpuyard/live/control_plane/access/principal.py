"""Who asks, and what a role may do: one table, read from top to bottom.

A `Principal` is the answer to "who is this?", a `Denied` is the other answer. What may be done is asked of the table only, so
that REST, gRPC and whatever comes next can not differ in it.
"""

from enum import StrEnum

from gpuyard.core.domain.values import TenantId, Value


class Role(StrEnum):
    """What kind of user somebody is."""

    ADMIN = "admin"
    OPERATOR = "operator"
    MEMBER = "member"
    VIEWER = "viewer"


class Via(StrEnum):
    """How somebody showed who they are."""

    TOKEN = "token"  # noqa: S105 - a word
    LOGIN = "login"
    LOCAL = "local"
    """By owning the process at the other end of a loopback connection."""


class Principal(Value, frozen=True):
    """Somebody who was let in."""

    username: str
    tenant: TenantId | None
    """Theirs: where what they submit belongs unless they say otherwise. None: they have to say, or `default` is meant."""
    role: Role
    via: Via
    address: str
    """Where from, for the audit."""
    token: str | None = None
    """The id of the token they came with; never the token."""


class Denied(Value, frozen=True):
    """Somebody who was not let in, or not this far: an HTTP status, a code for programs, a sentence for people."""

    status: int
    code: str
    sentence: str
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers of the answer."""


class Action(StrEnum):
    """What somebody can want to do."""

    SEE = "see"
    """Tasks, logs, usage of a tenant."""
    SUBMIT = "submit"
    """Tasks and leases."""
    STOP = "stop"
    """Or suspend, resume, hold, release, or give another priority: all that changes a task that is there."""
    SEE_YARD = "see_yard"
    """Nodes, GPUs, the quota of the two classes."""
    RUN_YARD = "run_yard"
    """Cordon, drain, remove nodes; limits of tenants; the quota of the two classes."""
    OWN_ACCESS = "own_access"
    """One's own tokens and password."""
    ALL_ACCESS = "all_access"
    """Users, and the tokens of others."""
    SETTINGS = "settings"
    """What the scheduler decides by."""


class Scope(StrEnum):
    """Whose things an action may touch."""

    ALL = "all"
    OWN = "own"
    """Those of one's own tenant."""
    NONE = "none"


_ALL, _OWN, _NO = Scope.ALL, Scope.OWN, Scope.NONE

ROLE_SCOPES: dict[Action, dict[Role, Scope]] = {
    action: dict(zip((Role.ADMIN, Role.OPERATOR, Role.MEMBER, Role.VIEWER), scopes, strict=True))
    for action, scopes in {
        #                    admin  operator  member  viewer
        Action.SEE:         (_ALL,  _ALL,     _OWN,   _OWN),
        Action.SUBMIT:      (_ALL,  _ALL,     _OWN,   _NO),
        Action.STOP:        (_ALL,  _ALL,     _OWN,   _NO),
        Action.SEE_YARD:    (_ALL,  _ALL,     _ALL,   _ALL),
        Action.RUN_YARD:    (_ALL,  _ALL,     _NO,    _NO),
        Action.OWN_ACCESS:  (_ALL,  _ALL,     _ALL,   _ALL),
        Action.ALL_ACCESS:  (_ALL,  _NO,      _NO,    _NO),
        Action.SETTINGS:    (_ALL,  _NO,      _NO,    _NO),
    }.items()
}  # fmt: skip


def may(principal: Principal, action: Action, tenant: TenantId | None = None) -> bool:
    """Whether somebody may do this to a thing of that tenant; none: a thing of the yard, or of all tenants together."""
    scope = ROLE_SCOPES[action][principal.role]
    return scope is Scope.ALL or (scope is Scope.OWN and tenant is not None and tenant == principal.tenant)


def visible_tenant(principal: Principal) -> TenantId | None:
    """The one tenant whose tasks somebody sees; none: all."""
    if ROLE_SCOPES[Action.SEE][principal.role] is Scope.ALL:
        return None
    assert principal.tenant is not None, f"{principal.username} is a {principal.role} without a tenant"
    return principal.tenant


def forbidden(principal: Principal, action: Action) -> Denied:
    """The answer to somebody who may not: who could."""
    able = [role for role, scope in ROLE_SCOPES[action].items() if scope is not Scope.NONE]
    words = " or ".join(f"{'an' if role[0] in 'ao' else 'a'} {role}" for role in able)
    return Denied(
        403,
        "Forbidden",
        f"{principal.username} is {'an' if principal.role[0] in 'ao' else 'a'} {principal.role} and may not do this; it takes {words}.",
    )
