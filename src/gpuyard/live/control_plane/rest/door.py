"""The one door: was the request meant for us, and who sent it? Asked before anything else is looked at.

The uid behind a connection is asked once for each connection. Which connection a request came over is told by the
identity of the address that the HTTP server puts into its scope: uvicorn makes one object when it accepts a connection
and hands the same one out with every request over it. Equal numbers alone would not do: a port that was closed may be
somebody else's next.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from gpuyard.live.control_plane.access.gate import Gate
from gpuyard.live.control_plane.access.origin import Doorplate
from gpuyard.live.control_plane.access.who import Denied, Who
from gpuyard.live.control_plane.rest.asgi import Scope
from gpuyard.live.wire.loopback_peer import Connection

MOST_CONNECTIONS = 10_000
"""Kept in mind; one that is forgotten is asked for again."""
_LONGEST_KEPT = 300
"""Characters of Host and Origin that are worth remembering the answer for."""
_NOWHERE = ("", 0)
_TWO_HOSTS = Denied(400, "BadHost", "There must be one Host header and at most one Origin header.")


class Door:
    """Host, Origin, and who."""

    def __init__(self, gate: Gate, doorplate: Doorplate) -> None:
        self._gate = gate
        self._doorplate = doorplate
        self._check = lru_cache(maxsize=1024)(doorplate.check)
        self._connections: dict[int, tuple[Any, Connection]] = {}

    def turned_away(self, headers: Iterable[tuple[bytes, bytes]]) -> Denied | None:
        """What is wrong with where the request says it goes to and comes from."""
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
        if len(host or "") + len(origin or "") > _LONGEST_KEPT:
            return self._doorplate.check(host, origin)
        return self._check(host, origin)

    def who(self, scope: Scope) -> Who | Denied:
        """Who this is."""
        return self._gate.authenticate(scope["headers"], self.connection(scope))

    def connection(self, scope: Scope) -> Connection:
        """The connection a request came over, always the same object for the same one."""
        client = scope.get("client") or _NOWHERE
        known = self._connections.get(id(client))
        if known is not None and known[0] is client:  # it is kept here, so no other object can have its number
            return known[1]
        ours = scope.get("server") or _NOWHERE
        connection = Connection((client[0], client[1] or 0), (ours[0], ours[1] or 0))
        if client is not _NOWHERE:
            self._connections[id(client)] = (client, connection)
            if len(self._connections) > MOST_CONNECTIONS:
                del self._connections[next(iter(self._connections))]
        return connection
