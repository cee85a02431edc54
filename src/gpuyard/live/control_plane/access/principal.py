"""Principals, and one table of the permissions of each role.

Authentication returns a `Principal` or a `Denied`. Permissions are looked up in the table only, so that REST, gRPC and
any later interface cannot differ.
"""

from enum import StrEnum

from gpuyard.core.domain.values import TenantId, Value


class Role(StrEnum):
    """The role of a user."""

    ADMIN = "admin"
    OPERATOR = "operator"
    MEMBER = "member"
    VIEWER = "viewer"


class AuthMethod(StrEnum):
    """How a principal was authenticated."""

    TOKEN = "token"  # noqa: S105 - not a password
    LOGIN = "login"
    SESSION = "session"
    """By the cookie of a browser."""
    LOCAL = "local"
    """By owning the process at the other end of a loopback connection."""


class Principal(Value, frozen=True):
    """An authenticated caller."""

    username: str
    tenant: TenantId | None
    """Tenant of its submissions unless a request names another. None: the request names one, or `default` is used."""
    role: Role
    via: AuthMethod
    address: str
    """The client address, for the audit."""
    token: str | None = None
    """The id of the token used; never the token itself."""


class Denied(Value, frozen=True):
    """A failed authentication or missing permission: an HTTP status, a code for programs, a message for people."""

    status: int
    code: str
    sentence: str
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers of the response."""


class Action(StrEnum):
    """An operation that needs permission."""

    SEE = "see"
    """See the tasks, logs and usage of a tenant."""
    SUBMIT = "submit"
    """Submit tasks and leases."""
    STOP = "stop"
    """Stop, suspend, resume, hold, release or reprioritize: any change of an existing task."""
    SEE_CLUSTER = "see_cluster"
    """See nodes, GPUs and the quota of the two classes."""
    RUN_CLUSTER = "run_cluster"
    """Cordon, drain and remove nodes; set limits of tenants and the quota of the two classes."""
    OWN_ACCESS = "own_access"
    """Manage one's own tokens and password."""
    ALL_ACCESS = "all_access"
    """Manage users, and the tokens of others."""
    SETTINGS = "settings"
    """Change the settings of scheduling."""


class Scope(StrEnum):
    """The tenants whose objects an action may touch."""

    ALL = "all"
    OWN = "own"
    """Objects of the principal's own tenant."""
    NONE = "none"


_ALL, _OWN, _NO = Scope.ALL, Scope.OWN, Scope.NONE

ROLE_SCOPES: dict[Action, dict[Role, Scope]] = {
    action: dict(zip((Role.ADMIN, Role.OPERATOR, Role.MEMBER, Role.VIEWER), scopes, strict=True))
    for action, scopes in {
        #                    admin  operator  member  viewer
        Action.SEE:         (_ALL,  _ALL,     _OWN,   _OWN),
        Action.SUBMIT:      (_ALL,  _ALL,     _OWN,   _NO),
        Action.STOP:        (_ALL,  _ALL,     _OWN,   _NO),
        Action.SEE_CLUSTER:    (_ALL,  _ALL,     _ALL,   _ALL),
        Action.RUN_CLUSTER:    (_ALL,  _ALL,     _NO,    _NO),
        Action.OWN_ACCESS:  (_ALL,  _ALL,     _ALL,   _ALL),
        Action.ALL_ACCESS:  (_ALL,  _NO,      _NO,    _NO),
        Action.SETTINGS:    (_ALL,  _NO,      _NO,    _NO),
    }.items()
}  # fmt: skip


def may(principal: Principal, action: Action, tenant: TenantId | None = None) -> bool:
    """Whether a principal may do this to an object of that tenant; None: an object of the cluster or of all tenants."""
    scope = ROLE_SCOPES[action][principal.role]
    return scope is Scope.ALL or (scope is Scope.OWN and tenant is not None and tenant == principal.tenant)


def visible_tenant(principal: Principal) -> TenantId | None:
    """Return the only tenant whose tasks a principal sees; None: it sees all."""
    if ROLE_SCOPES[Action.SEE][principal.role] is Scope.ALL:
        return None
    assert principal.tenant is not None, f"{principal.username} is a {principal.role} without a tenant"
    return principal.tenant


def forbidden(principal: Principal, action: Action) -> Denied:
    """Return the denial for a missing permission; it names the roles that have it."""
    able = [role for role, scope in ROLE_SCOPES[action].items() if scope is not Scope.NONE]
    words = " or ".join(f"{'an' if role[0] in 'ao' else 'a'} {role}" for role in able)
    return Denied(
        403,
        "Forbidden",
        (
            f"{principal.username} is {('an' if principal.role[0] in 'ao' else 'a')} {principal.role}; "
            f"this requires {words}."
        ),
    )


def issuer_of(who: Principal) -> str:
    """Return the user and address of a principal as events carry them."""
    prefix = "local:" if who.via is AuthMethod.LOCAL else ""
    return f"{prefix}{who.username}@{who.address}"


def is_owner(by: str) -> bool:
    """Whether an issuer is the owner of the scheduler's process."""
    return by.startswith("local:")
