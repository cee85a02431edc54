"""Names in the cluster, asked of the scheduler while someone types: 0.3 s at most, and no names on any error.

The request is written by hand: the client library takes longer to import than the answer takes to arrive. A token is
sent to a scheduler on this machine only if this user, root or an accepted user runs it, as the client library does.
"""

import json
import os
import socket
import time

SECONDS = 0.3
KEPT_SECONDS = 2.0
_LARGEST = 1 << 18


def live_names(kind: str, prefix: str) -> list[tuple[str, str]]:
    """Return names of this kind with a few words about each."""
    try:
        return _kept(kind, prefix)
    except Exception:
        return []


def _kept(kind: str, prefix: str) -> list[tuple[str, str]]:
    """Ask, or use an answer of the last seconds: a second TAB asks the same again."""
    server = os.environ.get("GPUYARD_SERVER") or "http://127.0.0.1:8080"
    folder = os.environ.get("XDG_RUNTIME_DIR")
    question = [server, os.environ.get("GPUYARD_TOKEN", "")[:8], kind, prefix]
    path = f"{folder}/gpuyard-completion.json" if folder else ""
    try:
        if path and 0 <= time.time() - os.stat(path).st_mtime < KEPT_SECONDS:  # noqa: PTH116
            with open(path, encoding="utf-8") as file:  # noqa: PTH123
                found = json.load(file)
            if found["question"] == question:
                return [(word, hint) for word, hint in found["names"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    names = _asked(server, kind, prefix)
    if path:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"question": question, "names": names}, file)
    return names


def _asked(server: str, kind: str, prefix: str) -> list[tuple[str, str]]:
    from urllib.parse import quote, urlsplit

    give_up_at = time.monotonic() + SECONDS
    url = urlsplit(_address(server))
    host, secure = url.hostname or "", url.scheme == "https"
    connection = socket.create_connection((host, url.port or (443 if secure else 80)), timeout=SECONDS)
    with connection:
        token = _token(server, connection)
        if secure:
            import ssl

            trust = ssl.create_default_context(cafile=os.environ.get("GPUYARD_CA") or None)
            connection = trust.wrap_socket(connection, server_hostname=host)
        query = f"kind={kind}&limit=50&prefix={quote(prefix)}"
        head = [
            f"GET {url.path.rstrip('/')}/api/v1/completions?{query} HTTP/1.0",
            f"Host: {url.netloc.rpartition('@')[2]}",
        ]
        head += [f"Authorization: Bearer {token}"] if token else []
        connection.sendall("\r\n".join([*head, "Accept: application/json", "", ""]).encode())
        answer = b""
        while len(answer) < _LARGEST:
            connection.settimeout(max(0.001, give_up_at - time.monotonic()))
            part = connection.recv(1 << 16)
            if not part:
                break
            answer += part
    status, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in status.split(b"\r\n")[0]:
        return []
    found = [(str(one["word"]), str(one.get("hint", ""))) for one in json.loads(body)["words"]]
    return [(word, "".join(letter if letter.isprintable() else " " for letter in hint)) for word, hint in found if word.isprintable()]  # fmt: skip


def _token(server: str, connection: socket.socket) -> str:
    """Return the token to send: none to a scheduler on this machine that another user runs."""
    token = os.environ.get("GPUYARD_TOKEN") or _stored("tokens", server)
    if not token:
        return ""
    from gpuyard.live.wire.loopback_peer import is_on_this_machine, owner_of_server, trusted_uids

    if not is_on_this_machine(connection):
        return token
    owner = owner_of_server(connection, SECONDS)
    accepted = os.environ.get("GPUYARD_SERVER_USER") or _stored("server_users", server)
    if owner in trusted_uids() or accepted == "any":
        return token
    from pwd import getpwuid

    if owner is not None and accepted and getpwuid(owner).pw_name == accepted:
        return token
    raise PermissionError


def _stored(name: str, server: str) -> str:
    """Return what `gpuyard login` has stored for a server."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    try:
        with open(f"{folder}/gpuyard/{name}", encoding="utf-8") as file:  # noqa: PTH123
            return str(json.load(file).get(_address(server).lower(), ""))
    except (OSError, ValueError, AttributeError):
        return ""


def _address(server: str) -> str:
    """Return the first address of a cluster."""
    first = server.split(",", maxsplit=1)[0].strip()
    return (first if "//" in first else f"http://{first}").rstrip("/")
