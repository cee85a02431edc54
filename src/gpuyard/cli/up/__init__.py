"""`gpuyard up`: a complete cluster on this machine, with one command.

The scheduler runs in this process, the agent in a child process that is restarted if it dies. Both write their logs
below the data folder; the terminal shows only the few lines a user needs. `gpuyard down` finds this process by `lock_file`.
"""

import os
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from gpuyard.cli.input.options import ConfigOption, DataDirOption, TakeOverOption, json_option

LOCK_FILE = "up.json"
"""Identifies the process that is up on a data folder; empty after a stop on purpose (see `lock_file`)."""

HTTP = Annotated[
    str | None,
    typer.Option("--http-address", metavar="HOST:PORT", help="Address for clients (default: 127.0.0.1:8080)."),
]
GRPC = Annotated[
    str | None,
    typer.Option("--grpc-address", metavar="HOST:PORT", help="Address for agents (default: 127.0.0.1:9090)."),
]
VIRTUAL = Annotated[
    str | None,
    typer.Option(
        "--virtual-gpus",
        metavar="N[:MODEL[:GB]]",
        help="Use virtual GPUs, such as 4:RTX4090:24 (default: the real GPUs, or 4 virtual ones if there are none).",
    ),
]


def up(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    http_address: HTTP = None,
    grpc_address: GRPC = None,
    virtual_gpus: VIRTUAL = None,
    take_over: TakeOverOption = False,
    as_json: Annotated[bool, json_option("Print the addresses as one JSON object.")] = False,
) -> None:
    """Run a cluster on this machine: scheduler and agent. Ctrl-C stops both; tasks continue and are managed again after the next start."""
    from gpuyard.cli.service.event_loop import run_in_loop, silence_grpc

    silence_grpc()
    from gpuyard.cli.up.lock_file import InstanceLock
    from gpuyard.cli.up.running import UpPlan, run

    folder = data_folder(data_dir, config)
    plan = UpPlan.of(
        os.environ,
        folder,
        http_address,
        grpc_address,
        virtual_gpus,
        config=config,
        take_over=take_over,
        as_json=as_json,
        again=command_on(folder, "up", *_options(config, http_address, grpc_address, virtual_gpus)),
    )
    with InstanceLock.take(folder) as lock:
        run_in_loop(lambda: run(plan, lock))


def _options(config: Path | None, http: str | None, grpc: str | None, virtual_gpus: str | None) -> list[str]:
    """Return the options of `up` for the command that starts it again."""
    said = {
        "--config": None if config is None else str(config.absolute()),
        "--http-address": http,
        "--grpc-address": grpc,
        "--virtual-gpus": virtual_gpus,
    }
    return [word for name, value in said.items() if value is not None for word in (name, value)]


def data_folder(given: Path | None, config: Path | None = None) -> Path:
    """Return the data folder of a one-machine cluster: from the option, the environment or the settings file."""
    if given is not None:
        return given.absolute()
    said = os.environ.get("GPUYARD_STORAGE__DATA_DIR") or (_said_in(config) if config is not None else "")
    if said:
        return Path(said).absolute()
    shared = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(shared) / "gpuyard"


def command_on(folder: Path, command: str, *options: str) -> str:
    """Return `gpuyard up` or `gpuyard down` for this data folder, as it can be typed in the same environment."""
    where = () if folder == data_folder(None) else ("--data-dir", str(folder))
    return shlex.join(["gpuyard", command, *where, *options])


def was_up(folder: Path, seconds: float) -> bool:
    """Return whether the cluster may be restarting: it runs, was killed, or was stopped within `seconds`."""
    try:
        found = (folder / LOCK_FILE).stat()
    except OSError:
        return False
    return found.st_size > 0 or abs(time.time() - found.st_mtime) < seconds


def _said_in(config: Path) -> str:
    """Return storage.data_dir of a file; empty if it is not set. Errors in the file are reported later."""
    from gpuyard.live.control_plane.settings import ServerSettings, StorageSection, load_server_settings
    from gpuyard.live.wire.config import WrongSettings, variables

    try:
        settings = load_server_settings(config, {}, not_ours=variables(ServerSettings))
    except WrongSettings:
        return ""
    return "" if settings.storage.data_dir == StorageSection().data_dir else settings.storage.data_dir
