"""What `--check-config` answers: the settings as they would be used, without what nobody should read."""

from pathlib import Path
from typing import Any

import typer

HIDDEN = frozenset({"password", "join_token"})


def show(settings: Any, config: Path | None, *, as_json: bool) -> None:
    """Say that the settings are right."""
    from msgspec import json, to_builtins

    if as_json:
        plain = to_builtins(settings, str_keys=True, enc_hook=_plain)
        typer.echo(json.encode(_without_secrets(plain)).decode())
    else:
        typer.echo(f"{config or 'The environment'}: these settings are right.")


def _plain(value: object) -> object:
    """Durations and addresses have types of their own."""
    return float(value) if isinstance(value, float) else str(value)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: "…" if key in HIDDEN and below else _without_secrets(below) for key, below in value.items()}
    return [_without_secrets(item) for item in value] if isinstance(value, list) else value
