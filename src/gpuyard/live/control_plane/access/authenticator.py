"""The one door: who is this request from?

    a token that is right                       whoever it belongs to
    a token that is not                         401, always: a wrong token never becomes the implicit admin
    no token, loopback, our own uid or root     admin, via "local", while login is off or auth.local_admin is set
    no token, anything else                     401

Plain values in and out, so that REST and gRPC ask the same question. Tokens come in the Authorization header only: one
in an address would end up in logs and browser histories.
"""

from collections.abc import Iterable
from functools import cache
from pwd import getpwuid

from gpuyard.live.control_plane.access.principal import Denied, Principal, Role, Via
from gpuyard.live.control_plane.access.store import AccessStore
from gpuyard.live.wire.loopback_peer import LoopbackConnection, trusted_uids

_ASK = (("www-authenticate", 'Bearer realm="gpuyard"'),)
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"})
"""Somebody else's request, handed on by a process of this machine: that process has our uid, the sender has not."""

_NO_TOKEN = Denied(
    401,
    "LoginRequired",
    "Log in, or send a token as Authorization: Bearer (set GPUYARD_TOKEN). Without a login only root and the user who "
    "runs the server are admitted, only on the server's own machine, and only while login is off or auth.local_admin "
    "is set.",
    _ASK,
)
_NOT_BEARER = Denied(
    401,
    "BadAuthorization",
    "There must be one Authorization header, and it must be: Bearer, a space, the token.",
    (("www-authenticate", 'Bearer realm="gpuyard", error="invalid_request"'),),
)


class Authenticator:
    """Asks the store, or else the kernel."""

    def __init__(self, store: AccessStore, local_uids: frozenset[int] | None = None) -> None:
        """`local_uids` need no login on loopback: the server's own and root unless told otherwise.

        With login on this set is empty by default: a task that runs under one of these uids would be an admin.
        """
        self._store = store
        self._local_uids = trusted_uids() if local_uids is None else local_uids

    def authenticate(
        self, headers: Iterable[tuple[bytes, bytes]], connection: LoopbackConnection
    ) -> Principal | Denied:
        """Who this is. Names of headers are in small letters, as ASGI and gRPC give them."""
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
            return self._by_token(authorization, connection.peer[0])
        uid = None if forwarded else connection.peer_uid
        if uid is None or uid not in self._local_uids:
            return _NO_TOKEN
        return Principal(_name_of(uid), None, Role.ADMIN, Via.LOCAL, connection.peer[0])

    def _by_token(self, authorization: bytes, address: str) -> Principal | Denied:
        scheme, _, token = authorization.decode("latin-1").strip().partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return _NOT_BEARER
        return self._store.find(token, address)


@cache
def _name_of(uid: int) -> str:
    """The name of a user of this machine; one without a name goes by number."""
    try:
        return getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"
