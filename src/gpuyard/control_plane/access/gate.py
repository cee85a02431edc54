"""The one door: who is this request from?

    a token that is right                       whoever it belongs to
    a token that is not                         401, always: a wrong token never becomes the implicit admin
    no token, loopback, our own uid or root     admin, via "local"
    no token, anything else                     401

Plain values in and out, so that REST and gRPC ask the same question. Tokens come in the Authorization header only: one
in an address would end up in logs and browser histories.
"""

import hmac
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from pwd import getpwuid

from msgspec.structs import replace

from gpuyard.control_plane.access.local import Connection, trusted_uids
from gpuyard.control_plane.access.store import AccessStore
from gpuyard.control_plane.access.who import Denied, Role, Via, Who

_ASK = (("www-authenticate", 'Bearer realm="gpuyard"'),)
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"})
"""Somebody else's request, handed on by a process of this machine: that process has our uid, the sender has not."""

_NO_TOKEN = Denied(
    401,
    "LoginRequired",
    "Log in, or send a token as Authorization: Bearer (set GPUYARD_TOKEN). "
    "Only the user who runs the server, and root, need none, and only on the server's own machine.",
    _ASK,
)
_NOT_BEARER = Denied(
    401,
    "BadAuthorization",
    "There must be one Authorization header, and it must be: Bearer, a space, the token.",
    (("www-authenticate", 'Bearer realm="gpuyard", error="invalid_request"'),),
)
_NOT_JOINED = Denied(
    401,
    "WrongJoinToken",
    "The join token is wrong or missing. Give the agent as agent.join_token what the scheduler's auth.join_token says.",
)
_NO_JOIN_TOKEN = Denied(
    401, "NoJoinToken", "This scheduler has no join token, so no agent can join. Set auth.join_token and restart it."
)


class Gate:
    """Asks the store, or else the kernel."""

    def __init__(self, store: AccessStore, local_uids: frozenset[int] | None = None) -> None:
        """`local_uids` need no login on loopback: the server's own and root unless told otherwise."""
        self._store = store
        self._local_uids = trusted_uids() if local_uids is None else local_uids

    def authenticate(self, headers: Iterable[tuple[bytes, bytes]], connection: Connection) -> Who | Denied:
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
        return Who(_name_of(uid), None, Role.ADMIN, Via.LOCAL, connection.peer[0])

    def _by_token(self, authorization: bytes, address: str) -> Who | Denied:
        scheme, _, token = authorization.decode("latin-1").strip().partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return _NOT_BEARER
        return self._store.find(token, address)


def check_join_token(given: str, expected: str, file: str = "") -> Denied | None:
    """Whether an agent may join; takes the same time however much of the token is right.

    `file` is where the scheduler keeps the token that it has drawn: the agent's administrator is told.
    """
    if not expected:
        return _NO_JOIN_TOKEN
    same = hmac.compare_digest(_digest(given), _digest(expected))
    if same or not file:
        return None if same else _NOT_JOINED
    where = f"The one that the scheduler has drawn is in the file {file} on its machine; set agent.join_token to it."
    return replace(_NOT_JOINED, sentence=f"The join token is wrong or missing. {where}")


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


@cache
def _name_of(uid: int) -> str:
    """The name of a user of this machine; one without a name goes by number."""
    try:
        return getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"
