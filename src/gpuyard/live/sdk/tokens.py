"""What `gpuyard login` keeps for each server: the token, and the system user who may run it on this machine.

A token is never sent to a server it is not of.
"""

import os
from pathlib import Path

import msgspec

from gpuyard.system.files import replace_file


def tokens_file() -> Path:
    """Where they are: `gpuyard/tokens` in the folder of one's settings."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "gpuyard" / "tokens"


def stored_token(server: str) -> str | None:
    """The token kept for this server, if any. A file that can not be read counts as none: it is a convenience."""
    return _read(tokens_file()).get(_named(server))


def store_token(server: str, token: str | None) -> Path:
    """Keep a token, readable by its owner only; none: forget it."""
    return _keep(tokens_file(), server, token)


def stored_server_user(server: str) -> str | None:
    """The system user who was accepted for this server."""
    return _read(_server_users_file()).get(_named(server))


def store_server_user(server: str, user: str | None) -> Path:
    """Accept that this system user runs the server, besides ourselves and root; none: forget it."""
    return _keep(_server_users_file(), server, user)


def _server_users_file() -> Path:
    return tokens_file().with_name("server_users")


def _keep(path: Path, server: str, value: str | None) -> Path:
    known = _read(path)
    if value is None:
        known.pop(_named(server), None)
    else:
        known[_named(server)] = value
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n", durable=False)
    return path


def _read(path: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, RuntimeError, msgspec.MsgspecError):
        return {}


def _named(server: str) -> str:
    return (server if "//" in server else f"http://{server}").rstrip("/").lower()
