"""Output of `--check-config`: the settings as they would be used, without secrets."""

from pathlib import Path
from typing import Any

import typer

HIDDEN = frozenset({"password", "join_token", "token"})
HIDDEN_IN_PART = frozenset({"url", "endpoint"})
"""Addresses: many services take a secret in the path or the query."""


def show(settings: Any, config: Path | None, *, as_json: bool) -> None:
    """Print that the settings are valid, or print them as JSON."""
    from msgspec import json, to_builtins

    if as_json:
        plain = to_builtins(settings, str_keys=True, enc_hook=_plain)
        typer.echo(json.encode(_without_secrets(plain)).decode())
    else:
        typer.echo(f"{config or 'The environment'}: the settings are valid.")


def _plain(value: object) -> object:
    """Convert durations and addresses, which have types of their own, to plain values."""
    return float(value) if isinstance(value, float) else str(value)


def _shown(key: str, value: Any) -> Any:
    if key in HIDDEN and value:
        return "…"
    if key in HIDDEN_IN_PART and isinstance(value, str) and "://" in value:
        from urllib.parse import urlsplit

        parts = urlsplit(value)
        return f"{parts.scheme}://{parts.netloc}" + ("/…" if parts.path.strip("/") or parts.query else "")
    return _without_secrets(value)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shown(key, below) for key, below in value.items()}
    return [_without_secrets(item) for item in value] if isinstance(value, list) else value
