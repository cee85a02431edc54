"""Check every request before its route is used: is it addressed to this server, and which principal sent it?

The uid behind a loopback connection is looked up once per connection. The connection of a request is recognized by the
identity of the address object in its scope: uvicorn makes one object when it accepts a connection and passes the same
one with every request. Equal numbers alone are not enough, because another process may get a port that was closed.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from starlette.types import Scope as AsgiScope

from gpuyard.live.control_plane.access.allowed_hosts import AllowedHosts
from gpuyard.live.control_plane.access.authenticator import Authenticator
from gpuyard.live.control_plane.access.principal import Denied, Principal
from gpuyard.live.control_plane.access.session_cookie import check_use, cookie_name, read_cookie, set_cookie
from gpuyard.live.control_plane.access.store import AccessStore
from gpuyard.live.wire.loopback_peer import LoopbackConnection

MAX_CONNECTIONS = 10_000
"""Number of connections that are remembered; a forgotten one is looked up again."""
_LONGEST_CACHED = 300
"""Maximum length of Host and Origin in characters for which the result is cached."""
_NOWHERE = ("", 0)
_TWO_HOSTS = Denied(400, "BadHost", "Send exactly one Host header and at most one Origin header.")


class RequestGuard:
    """Checks Host and Origin, and authenticates."""

    def __init__(
        self,
        authenticator: Authenticator,
        allowed_hosts: AllowedHosts,
        access: AccessStore,
        session_idle_seconds: float,
    ) -> None:
        self._authenticator = authenticator
        self._access = access
        self._session_idle_seconds = session_idle_seconds
        self._allowed_hosts = allowed_hosts
        self._check = lru_cache(maxsize=1024)(allowed_hosts.check)
        self._connections: dict[int, tuple[Any, LoopbackConnection]] = {}

    def check_host(self, headers: Iterable[tuple[bytes, bytes]]) -> Denied | None:
        """Return what is wrong with the headers Host and Origin, or None."""
        host = origin = None
        for name, value in headers:
            if name == b"host":
                if host is not None:
                    return _TWO_HOSTS
                host = value.decode("latin-1")
            elif name == b"origin":
                if origin is not None:
                    return _TWO_HOSTS
                origin = value.decode("latin-1")
        if len(host or "") + len(origin or "") > _LONGEST_CACHED:
            return self._allowed_hosts.check(host, origin)
        return self._check(host, origin)

    def authenticate(self, scope: AsgiScope, *, note_use: bool = True) -> Principal | Denied:
        """Return the principal that sent the request, or a denial.

        A token takes precedence over the cookie of a session, and both over the uid: a request with a session that has
        ended never becomes the implicit admin. Without `note_use`, the check of a stream that is open, this is not a
        use of the token or session.
        """
        headers, connection = scope["headers"], self.connection(scope)
        session = None if _has_token(headers) else read_cookie(headers, scope.get("scheme") == "https")
        if session is None:
            return self._authenticator.authenticate(headers, connection, note_use=note_use)
        if isinstance(session, Denied):
            return session
        if denied := check_use(scope["method"], headers):
            return denied
        return self._access.find_session(
            session, connection.peer[0], connection.peer_uid, self._session_idle_seconds, note_use=note_use
        )

    def removed_cookie(self, scope: AsgiScope) -> bytes | None:
        """Return the header that removes the session of a request from the browser; None if the request has none."""
        headers, tls = scope["headers"], scope.get("scheme") == "https"
        if _has_token(headers) or read_cookie(headers, tls) is None:
            return None
        host = next(value for name, value in headers if name == b"host").decode("latin-1").strip()
        return set_cookie(cookie_name(host, tls), "", tls).encode("latin-1")

    def connection(self, scope: AsgiScope) -> LoopbackConnection:
        """Return the connection a request came over, always the same object for the same connection."""
        client = scope.get("client") or _NOWHERE
        known = self._connections.get(id(client))
        if known is not None and known[0] is client:  # it is referenced here, so no other object can have its id
            return known[1]
        ours = scope.get("server") or _NOWHERE
        connection = LoopbackConnection((client[0], client[1] or 0), (ours[0], ours[1] or 0))
        if client is not _NOWHERE:
            self._connections[id(client)] = (client, connection)
            if len(self._connections) > MAX_CONNECTIONS:
                del self._connections[next(iter(self._connections))]
        return connection


def _has_token(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"authorization" for name, _ in headers)
