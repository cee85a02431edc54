"""Check that a request is addressed to this server and was not sent by a foreign web page.

A browser runs pages of other sites on the same machine as this server. Two attacks are stopped here:

- *DNS rebinding*: a page of evil.example makes its name resolve to 127.0.0.1 and talks to this server as if it were its
  own. The Host header then names evil.example, so Host must be one of this server's names.
- *Cross-site requests*: a page posts to http://localhost:8080. Browsers send an Origin header with every request that
  can change something, so Origin, if present, must equal the requested host, port included.

A Host that is an IP address cannot be DNS rebinding: only the owner of an address controls where it leads.
"""

import re
from collections.abc import Iterable
from ipaddress import ip_address
from socket import gethostname
from urllib.parse import urlsplit

from gpuyard.live.control_plane.access.principal import Denied
from gpuyard.live.wire.loopback_peer import is_loopback, is_loopback_address

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?")
_WILDCARDS = frozenset({"", "0.0.0.0", "::", "*"})  # noqa: S104 - compared with, not listened on
_PORTS = {"http": 80, "https": 443}


class AllowedHosts:
    """The names under which this server may be addressed."""

    def __init__(self, bound: str, names: Iterable[str] = ()) -> None:
        """`bound` is the host of the listening address, `names` are further names from the configuration.

        A server that listens beyond loopback also accepts the machine's own name.
        """
        bound = _bare(bound)
        self._everywhere = bound in _WILDCARDS
        only_loopback = _is_loopback_name(bound)
        self._loopback = self._everywhere or only_loopback
        own = () if only_loopback else (gethostname(),)
        self._names = frozenset(_bare(name) for name in (bound, *own, *names)) - _WILDCARDS

    def check(self, host: str | None, origin: str | None) -> Denied | None:
        """Check the raw headers Host and Origin of a request; return the denial, or None if both are right."""
        asked = _split(host) if host is not None else None
        if host is None or asked is None:
            return Denied(400, "BadHost", "The request has no valid Host header.")
        name, port = asked
        if not self._is_ours(name):
            return Denied(
                403,
                "WrongHost",
                f"{name} is not a name of this server. Use its address, or add the name to server.host_names.",
            )
        if origin is not None and not _same(origin, name, port):
            return Denied(403, "WrongOrigin", f"Pages of {origin[:100]} may not use this server; open its own page.")
        return None

    def _is_ours(self, name: str) -> bool:
        if name in self._names:
            return True
        if _is_loopback_name(name):
            return self._loopback
        return self._everywhere and _is_address(name) and name not in _WILDCARDS


def refuse_unsafe_address(address: str, auth_enabled: bool) -> str | None:
    """Return why the server must not listen there, or None. Of names, only localhost counts as loopback."""
    host = _bare(address.rpartition(":")[0])
    if auth_enabled or _is_loopback_name(host):
        return None
    where = "every address of this machine" if host in _WILDCARDS else host
    return (
        f"{address} would allow everyone who can reach {where} to use the cluster without a login. "
        "Set auth.enabled: true and add users, or listen on 127.0.0.1."
    )


def refuse_plain_address(key: str, address: str) -> str | None:
    """Return why the server must not listen there without TLS, or None."""
    if is_loopback_address(address):
        return None
    return (
        f"{key} {address} can be reached from other machines, and the connection would not be encrypted: passwords, "
        "tokens and secrets would cross the network in plain text. Set server.tls.cert and server.tls.key, or set "
        "server.plain: true to allow it."
    )


def _split(host: str) -> tuple[str, int | None] | None:
    found = _HOST.fullmatch(host.strip())
    if found is None:
        return None
    return _bare(found["name"]), int(found["port"]) if found["port"] else None


def _same(origin: str, name: str, port: int | None) -> bool:
    try:
        url = urlsplit(origin)
        from_name, from_port = _bare(url.hostname or ""), url.port
    except ValueError:
        return False
    usual = _PORTS.get(url.scheme)
    return usual is not None and from_name == name and (from_port or usual) == (port or usual)


def _bare(name: str) -> str:
    """Normalize a name for comparison: lowercase, no brackets, no final dot; an address in its shortest form."""
    name = name.strip().removeprefix("[").removesuffix("]").lower().removesuffix(".")
    try:
        return str(ip_address(name))
    except ValueError:
        return name


def _is_loopback_name(name: str) -> bool:
    return name == "localhost" or is_loopback(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
