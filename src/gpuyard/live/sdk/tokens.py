"""What `gpuyard login` stores for each server: the token, and the system user that may run it on this machine.

A token is never sent to a different server. Several addresses of one cluster, as in A,B, each have their own entry, so that
their order does not matter.
"""

import os
from pathlib import Path

import msgspec

from gpuyard.system.files import replace_file


def tokens_file() -> Path:
    """Return the path: `gpuyard/tokens` in the user's configuration folder."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "gpuyard" / "tokens"


def stored_token(server: str) -> str | None:
    """Return the token stored for a server, or None. An unreadable file counts as empty: it is only a convenience."""
    return _find(tokens_file(), server)


def store_token(server: str, token: str | None) -> Path:
    """Store a token, readable by its owner only; None removes it."""
    return _keep(tokens_file(), server, token)


def stored_server_user(server: str) -> str | None:
    """Return the system user that was accepted for a server, or None."""
    return _find(_server_users_file(), server)


def store_server_user(server: str, user: str | None) -> Path:
    """Accept that this system user runs the server, besides this user and root; None removes it."""
    return _keep(_server_users_file(), server, user)


def _server_users_file() -> Path:
    return tokens_file().with_name("server_users")


def _keep(path: Path, server: str, value: str | None) -> Path:
    known = _read(path)
    for name in _names(server):
        if value is None:
            known.pop(name, None)
        else:
            known[name] = value
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n", durable=False)
    return path


def _read(path: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, RuntimeError, msgspec.MsgspecError):
        return {}


def _find(path: Path, server: str) -> str | None:
    known = _read(path)
    return next((known[name] for name in _names(server) if name in known), None)


def _names(server: str) -> list[str]:
    """Return the names of the entries of one or several addresses, separated by commas."""
    addresses = (each.strip() for each in server.split(","))
    return [(each if "//" in each else f"http://{each}").rstrip("/").lower() for each in addresses if each]
