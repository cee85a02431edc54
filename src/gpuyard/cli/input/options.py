"""Options that many commands share, and their combined meaning. Nothing heavy is imported here."""

import os
import sys
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperOption

from gpuyard.cli.output.errors import CallContext

if TYPE_CHECKING:
    from datetime import datetime

    from gpuyard.live.sdk import Client, ClusterError


T = TypeVar("T")
NO_PARTITIONS = "there are no partitions: -g A100:2 asks for GPUs of a model, --label K=V for nodes"
SMALLEST_PLAUSIBLE_MIB = 256
"""A plain number below this, as the memory of a GPU, was probably meant in GiB."""


class _Call:
    """Options of this call that functions without a typer context need."""

    as_json = False
    wait_for_scheduler: float | None = None


def _remember(context: typer.Context, value: bool) -> bool:
    """Store the value of `--json` for error messages."""
    _Call.as_json = value
    if value and isinstance(context.obj, CallContext):
        context.obj.as_json = True
    return value


def json_option(meaning: str) -> Any:
    """Return the `--json` option of a command; errors are then printed as JSON, too."""
    return typer.Option("--json", help=meaning, callback=_remember)


def finite(value: float | None) -> float | None:
    """Validate a number option: reject `nan` and `inf`, which pass other range checks."""
    if value is not None and not isfinite(value):
        raise typer.BadParameter(f"{value} is not a plausible number")
    return value


def _tenant(context: typer.Context, value: str | None) -> str | None:
    """Refuse a time after `-t`, which is the time limit in Slurm, and the `i` of docker's `-ti`; `--tenant` takes any name."""
    words = context.obj.words if isinstance(context.obj, CallContext) else ()
    if value is None or any(word.partition("=")[0] == "--tenant" for word in words):
        return value
    if value == "i":  # -ti
        raise typer.BadParameter("-t is the tenant; `gpuyard run --pty` gives a task your terminal", param_hint="'-t'")
    if not _reads_as_time(value):
        return value
    raise typer.BadParameter(
        f"-t is the tenant, and {value!r} reads as a time; a time limit is --timeout 30m, a tenant of this name is "
        f"--tenant {value}",
        param_hint="'-t'",
    )


def _reads_as_time(text: str) -> bool:
    from gpuyard.input.quantities import seconds_in

    try:
        seconds_in(text)
    except ValueError:
        return text != "" and not text.strip("0123456789:-")  # such as 0 and 2:00, which are no duration here
    return True


JsonOption = Annotated[bool, json_option("Print the answer of the scheduler as JSON.")]
QuietOption = Annotated[
    bool, typer.Option("-q", "--quiet", help="Do not report that the task waits and when it starts.")
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server", metavar="URL", help="Address of the scheduler (default: GPUYARD_SERVER, or http://127.0.0.1:8080)."
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token", metavar="TOKEN", help="Your token (default: GPUYARD_TOKEN, or the one that `gpuyard login` stored)."
    ),
]
TenantOption = Annotated[
    str | None,
    typer.Option(
        "-t", "--tenant", metavar="NAME", help="Tenant whose quota is used (default: yours).", callback=_tenant
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Data folder (default: ~/.local/share/gpuyard)."),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-config",
        metavar="FILE",
        help="Settings file; GPUYARD_SECTION__KEY in the environment takes precedence.",
    ),
]
SettingsJsonOption = Annotated[bool, json_option("With --check-config: print the settings as JSON, without secrets.")]
CheckConfigOption = Annotated[bool, typer.Option("--check-config", help="Only check the settings.")]

TakeOverOption = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help=(
            "After a restore: take over from a later scheduler of this cluster that nodes have obeyed. "
            "Stop that one first."
        ),
    ),
]
AcceptClusterOption = Annotated[
    str,
    typer.Option("--accept-cluster", metavar="ID", help="Move this node to another cluster: the one with this id."),
]


SERVICE_FOLDER = "/var/lib/gpuyard"
"""Default data folder of `gpuyard server` (`storage.data_dir`)."""
WAIT_OPTION = "--wait-for-scheduler"
WAIT_VARIABLE = "GPUYARD_WAIT_FOR_SCHEDULER"
WAIT_SECONDS = 10.0
"""How long to wait for a scheduler that is known to exist but does not listen, as during a restart."""
RECENTLY_SECONDS = 600.0
"""A scheduler of this machine that was stopped on purpose within this time may be restarting."""


def wait_option() -> TyperOption:
    """Return `--wait-for-scheduler`, for every command that calls a scheduler (see `suggestions.ApiCommand`)."""
    return TyperOption(
        param_decls=[WAIT_OPTION],
        type=float,
        metavar="SECONDS",
        expose_value=False,
        callback=_remember_wait,
        help=(
            "How long to wait for a scheduler that does not listen; 0: do not wait (default: "
            f"{WAIT_VARIABLE}, or {WAIT_SECONDS:.0f} where one is known)."
        ),
    )


def _remember_wait(context: typer.Context, parameter: object, value: float | None) -> None:  # noqa: ARG001
    nested = context.parent is not None and context.parent.parent is not None
    if value is not None or not nested:  # an option given before a subcommand applies to the subcommand as well
        _Call.wait_for_scheduler = None if value is None else _checked_wait(value, WAIT_OPTION)


def _checked_wait(seconds: float, name: str) -> float:
    if not isfinite(seconds) or seconds < 0:
        raise typer.BadParameter(f"{seconds} is not a number of seconds", param_hint=f"'{name}'")
    return seconds


def client(server: str | None, token: str | None) -> "Client":
    """Return a client for the scheduler that these options select."""
    from gpuyard.live.sdk import connect

    return connect(server, token=token, wait_for_scheduler=_wait_seconds(server), on_wait=_tell_of_wait)


def _wait_seconds(server: str | None) -> float:
    """Return the requested waiting time; the default is 0 if no scheduler is known, so a first call does not wait."""
    if _Call.wait_for_scheduler is not None:
        return _Call.wait_for_scheduler
    if said := os.environ.get(WAIT_VARIABLE):
        try:
            return _checked_wait(float(said), WAIT_VARIABLE)
        except ValueError:
            raise typer.BadParameter(f"{said!r} is not a number of seconds", param_hint=f"'{WAIT_VARIABLE}'") from None
    return WAIT_SECONDS if _is_known(server or os.environ.get("GPUYARD_SERVER")) else 0.0


def _is_known(server: str | None) -> bool:
    """Return whether an option, the environment, an earlier login or a data folder indicates a scheduler."""
    if server:
        return True
    from gpuyard.cli.up import data_folder, was_up
    from gpuyard.live.sdk.client import DEFAULT_SERVER
    from gpuyard.live.sdk.tokens import stored_server_user, stored_token

    if stored_token(DEFAULT_SERVER) or stored_server_user(DEFAULT_SERVER):
        return True
    return was_up(data_folder(None), RECENTLY_SECONDS) or Path(SERVICE_FOLDER).is_dir()


def _tell_of_wait(error: "ClusterError", seconds: float) -> None:
    if not _Call.as_json:
        seen = str(error).split(". ")[0].rstrip(".")
        words = f"{seen}. Waiting for the scheduler for up to {seconds:g} s ({WAIT_OPTION})."
        print(f"gpuyard: {words}", file=sys.stderr, flush=True)


def is_for_subcommand(context: typer.Context, as_json: bool, server: str | None, token: str | None) -> bool:
    """Return whether a subcommand was called; --server and --token apply to it, --json before it is an error."""
    if context.invoked_subcommand is None:
        return False
    if as_json:
        raise typer.BadParameter(f"put it after {context.invoked_subcommand!r}", param_hint="'--json'")
    for name, value in (("GPUYARD_SERVER", server), ("GPUYARD_TOKEN", token)):
        if value is not None:
            os.environ[name] = value
    return True


def seconds_of(text: str | None, option: str) -> float | None:
    """Parse a duration such as 90, 30m, 1h30m or 2:00:00."""
    from gpuyard.input.quantities import seconds_in

    return _read(seconds_in, text, option)


def past_instant_of(text: str | None, option: str, *, may_be_later: bool = False) -> "datetime | None":
    """Parse an instant of the past, as of `--since`: 10m (ago), 14:30, yesterday or a date, in local time."""
    if text is None:
        return None
    from datetime import datetime

    from gpuyard.cli.input.instants import past_instant_in

    try:
        return past_instant_in(text, datetime.now(), may_be_later=may_be_later)  # noqa: DTZ005 - local time is meant
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not such a time: {error}", param_hint=f"'{option}'") from None


def mebibytes_of(text: str | None, option: str) -> int | None:
    """Parse a size such as 8G or 8192, in MiB."""
    from gpuyard.input.quantities import mebibytes_in

    return _read(mebibytes_in, text, option)


def gpu_memory_of(text: str | None, *, share: bool) -> int | None:
    """Parse the value of `--gpu-memory`: of each whole GPU, or with `share` of a part of one."""
    from gpuyard.input.quantities import gpu_mebibytes_in, mebibytes_in

    size = _read(mebibytes_in if share else gpu_mebibytes_in, text, "--gpu-memory")
    if text and text.strip().isdigit() and size and size < SMALLEST_PLAUSIBLE_MIB:
        print(f"gpuyard: --gpu-memory {text} is {size} MiB; write {text}G for GiB.", file=sys.stderr)
    return size


def gpus_of(text: str | None, models: Sequence[str] | None, any_of: str | None) -> tuple[int | None, list[str] | None]:
    """Return the number of GPUs and the allowed models of `--gpus`, `--gpu-model` and `--any-of`."""
    from gpuyard.input.quantities import gpus_in

    count, model = (None, None) if text is None else _read(gpus_in, text, "--gpus") or (None, None)
    given = [
        (option, names)
        for option, names in (
            ("--gpus", [model] if model else []),
            ("--gpu-model", list(models or ())),
            ("--any-of", [name.strip() for name in (any_of or "").split(",") if name.strip()]),
        )
        if names
    ]
    if any_of is not None and not any(option == "--any-of" for option, _ in given):
        raise typer.BadParameter("it names no model; list those that will do: H100,A100", param_hint="'--any-of'")
    if len(given) > 1:
        message = f"{given[0][0]} names a model, too; use one of the two"
        raise typer.BadParameter(message, param_hint=f"'{given[1][0]}'")
    return count, given[0][1] if given else None


def _read(reader: Callable[[str], T], text: str | None, option: str) -> T | None:
    if text is None:
        return None
    try:
        return reader(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}", param_hint=f"'{option}'") from None


def priority_of(text: str | None) -> str | int | None:
    """Parse a priority: a number, or one of the words the scheduler knows. In Slurm -p is the partition."""
    if text and text[0].isalpha() and text not in {"high", "low"}:
        message = f"{text!r} is not high, low or a number from 0 to 100; {NO_PARTITIONS}"
        raise typer.BadParameter(message, param_hint="'--priority'")
    return int(text) if text and text.isdigit() else text
