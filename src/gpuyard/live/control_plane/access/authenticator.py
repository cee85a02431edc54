"""Authenticate every request.

    valid token                                 its owner
    invalid token                               401, always: a wrong token never becomes the implicit admin
    no token, loopback, our own uid or root     admin, via "local", while login is off or auth.local_admin is set
    no token, anything else                     401

It takes and returns plain values, so that REST and gRPC share it. Tokens are accepted in the Authorization header only:
a token in a URL would end up in logs and browser histories.
"""

from collections.abc import Iterable
from functools import cache
from pwd import getpwuid

from gpuyard.live.control_plane.access.principal import AuthMethod, Denied, Principal, Role
from gpuyard.live.control_plane.access.store import AccessStore
from gpuyard.live.wire.loopback_peer import LoopbackConnection, trusted_uids

_ASK = (("www-authenticate", 'Bearer realm="gpuyard"'),)
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"})
"""Headers of a proxy on this machine: the proxy has our uid, the original sender does not."""

_NO_TOKEN = Denied(
    401,
    "LoginRequired",
    (
        "Log in, or send a token as Authorization: Bearer (set GPUYARD_TOKEN). Without a login, the "
        "server admits only root and the user who runs it, only on its own machine, and only if login is "
        "off or auth.local_admin is set."
    ),
    _ASK,
)
_NOT_BEARER = Denied(
    401,
    "BadAuthorization",
    "Send exactly one Authorization header of the form: Bearer TOKEN.",
    (("www-authenticate", 'Bearer realm="gpuyard", error="invalid_request"'),),
)


class Authenticator:
    """Authenticates by token in the store, otherwise by the uid that the kernel reports."""

    def __init__(self, store: AccessStore, local_uids: frozenset[int] | None = None) -> None:
        """`local_uids` need no login on loopback; by default the server's own uid and root.

        With login on, this set is empty by default: a task that runs under one of these uids would be an admin.
        """
        self._store = store
        self._local_uids = trusted_uids() if local_uids is None else local_uids

    def authenticate(
        self, headers: Iterable[tuple[bytes, bytes]], connection: LoopbackConnection, *, note_use: bool = True
    ) -> Principal | Denied:
        """Return the principal, or a denial. Header names are lowercase, as ASGI and gRPC deliver them."""
        authorization: bytes | None = None
        forwarded = False
        for name, value in headers:
            if name == b"authorization":
                if authorization is not None:
                    return _NOT_BEARER
                authorization = value
            elif name in _FORWARDED:
                forwarded = True
        if authorization is not None:
            return self._by_token(authorization, connection.peer[0], note_use=note_use)
        uid = None if forwarded else connection.peer_uid
        if uid is None or uid not in self._local_uids:
            return _NO_TOKEN
        return Principal(_name_of(uid), None, Role.ADMIN, AuthMethod.LOCAL, connection.peer[0])

    def _by_token(self, authorization: bytes, address: str, *, note_use: bool) -> Principal | Denied:
        scheme, _, token = authorization.decode("latin-1").strip().partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return _NOT_BEARER
        return self._store.find(token, address, note_use=note_use)


@cache
def _name_of(uid: int) -> str:
    """Return the name of a user of this machine, or the uid if it has no name."""
    try:
        return getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"
