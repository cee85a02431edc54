"""The cookie of a browser's session, and which requests may use it.

Cookies ignore ports: a page of http://host:9000 sends the cookie of http://host:8080 with its requests, and SameSite does
not prevent that, because ports belong to one site. Another user's service on the same host also *receives* the cookie of
everyone who opens it. Therefore:

- the name contains the port that the browser addresses, so that two schedulers on one host do not replace each other's;
- a request that can change something needs an Origin, which AllowedHosts has compared with the host and port, and its
  body must be JSON, which a plain form cannot send;
- a read without an Origin must not be said by the browser (Sec-Fetch-Site) to come from another origin;
- a session that was begun over loopback is bound to the uid at the other end (access/store.py), so that another user
  of the machine who has received the cookie cannot use it.
"""

from collections.abc import Iterable

from gpuyard.live.control_plane.access.principal import Denied

_NAME = "gpuyard-session-"
_READS = frozenset({"GET", "HEAD"})
_OWN_PAGES = frozenset({b"same-origin", b"none"})
"""Values of Sec-Fetch-Site: a page of this server, or the address bar."""

_SEVERAL = Denied(
    401, "SessionEnded", "The request has several session cookies of this server; they are removed. Log in again."
)
_NO_ORIGIN = Denied(
    403, "OriginRequired", "A request with a session cookie that changes something needs the header Origin."
)
_FOREIGN = Denied(403, "WrongOrigin", "Only pages of this server may use its session; open its own page.")
_NOT_JSON = Denied(
    415, "JsonRequired", "A request with a session cookie needs the header Content-Type: application/json."
)

Headers = Iterable[tuple[bytes, bytes]]


def cookie_name(host: str, tls: bool) -> str:
    """Return the name of the cookie for a valid Host header; over TLS browsers enforce the rules of `__Host-`."""
    port = host.rpartition(":")[2] if not host.endswith("]") and ":" in host else ("443" if tls else "80")
    return f"{'__Host-' if tls else ''}{_NAME}{port}"


def set_cookie(name: str, secret: str, tls: bool) -> str:
    """Return the header that stores a session in the browser until it is closed; an empty secret removes it."""
    ends = "" if secret else "; Max-Age=0"
    return f"{name}={secret}; Path=/; HttpOnly; SameSite=Strict{'; Secure' if tls else ''}{ends}"


def read_cookie(headers: Headers, tls: bool) -> str | Denied | None:
    """Return the secret of the session that a request carries, None if it carries none."""
    sent, host = list[bytes](), b""
    for name, value in headers:
        if name == b"cookie":
            sent.append(value)
        elif name == b"host":
            host = value
    if not sent:
        return None
    wanted = cookie_name(host.decode("latin-1").strip(), tls).encode("latin-1")
    found = list[bytes]()
    for pair in b";".join(sent).split(b";"):
        name, equals, value = pair.strip().partition(b"=")
        if equals and name == wanted:
            found.append(value.strip(b'" '))
    if not found:
        return None
    return _SEVERAL if len(found) > 1 else found[0].decode("latin-1")


def check_use(method: str, headers: Headers) -> Denied | None:
    """Return why a request must not use its session cookie, or None. An Origin has been compared with Host before."""
    said = {name: value for name, value in headers if name in _LOOKED_AT}
    if method in _READS:
        site = said.get(b"sec-fetch-site")
        return _FOREIGN if b"origin" not in said and site is not None and site.lower() not in _OWN_PAGES else None
    if b"origin" not in said:
        return _NO_ORIGIN
    has_body = said.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in said
    media = said.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return _NOT_JSON if has_body and media != b"application/json" else None


_LOOKED_AT = frozenset({b"origin", b"sec-fetch-site", b"content-length", b"transfer-encoding", b"content-type"})
