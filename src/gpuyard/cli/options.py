"""Options that many verbs have, and what they mean together. Nothing heavy is imported here."""

import os
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.complaints import Asked

if TYPE_CHECKING:
    from gpuyard.sdk import Client


def _remember(context: typer.Context, value: bool) -> bool:
    """For whoever says what went wrong."""
    if value and isinstance(context.obj, Asked):
        context.obj.as_json = True
    return value


def json_option(meaning: str) -> Any:
    """`--json` of a verb; what goes wrong is told as JSON then, too."""
    return typer.Option("--json", help=meaning, callback=_remember)


def finite(value: float | None) -> float | None:
    """For options that are numbers: `nan` and `inf` can not be meant, and pass every comparison."""
    if value is not None and not isfinite(value):
        raise typer.BadParameter(f"{value} is not a number that can be meant")
    return value


Json = Annotated[bool, json_option("Print what the scheduler answered, as JSON.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Do not say that it waits and when it starts.")]
Server = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help="The scheduler (default: GPUYARD_SERVER, or http://127.0.0.1:8080)."),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token", metavar="TOKEN", help="Who you are (default: GPUYARD_TOKEN, or what `gpuyard login` kept)."
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Where everything is kept (default: ~/.local/share/gpuyard)."),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-config", metavar="FILE", help="File of settings; GPUYARD_SECTION__KEY in the environment wins."
    ),
]
SettingsAsJson = Annotated[bool, json_option("With --check-config: print the settings as JSON, without secrets.")]
CheckConfig = Annotated[bool, typer.Option("--check-config", help="Only say whether the settings are right.")]

TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Go before a later scheduler of this yard that nodes have obeyed, after a restore. Stop that one first.",
    ),
]
AcceptYard = Annotated[
    str,
    typer.Option("--accept-yard", metavar="ID", help="Move this node to another yard: the one with this id."),
]


def client(server: str | None, token: str | None) -> "Client":
    """The yard these options speak of."""
    from gpuyard.sdk import connect

    return connect(server, token=token)


def is_for_a_verb_below(context: typer.Context, as_json: bool, server: str | None, token: str | None) -> bool:
    """Whether a verb of the group was called; what was said before it counts for it as well."""
    if context.invoked_subcommand is None:
        return False
    if as_json:
        raise typer.BadParameter(f"put it behind {context.invoked_subcommand!r}", param_hint="'--json'")
    for name, value in (("GPUYARD_SERVER", server), ("GPUYARD_TOKEN", token)):
        if value is not None:
            os.environ[name] = value
    return True


def seconds_of(text: str | None, option: str) -> float | None:
    """A duration such as 90, 30m or 1h30m."""
    if text is None:
        return None
    from gpuyard.wire.config import Seconds

    try:
        return float(Seconds.read(float(text) if text.replace(".", "", 1).isdigit() else text))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not {Seconds.words}", param_hint=f"'{option}'") from None


def priority_of(text: str | None) -> str | int | None:
    """A number, or one of the words the scheduler knows."""
    return int(text) if text and text.isdigit() else text
