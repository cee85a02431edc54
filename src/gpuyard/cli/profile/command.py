"""`gpuyard profile command`: run a command and measure its resource usage."""

from pathlib import Path
from shutil import which
from typing import Annotated

import typer

from gpuyard.cli.input.options import json_option
from gpuyard.cli.profile.checks import room_for
from gpuyard.core.domain.errors import WrongInput


def command(
    words: Annotated[list[str], typer.Argument(metavar="COMMAND…", help="Program and its arguments.")],
    gpu: Annotated[int | None, typer.Option("--gpu", min=0, metavar="N", help="GPU to watch (default: the first, if there is one).")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.jsonl", help="Append the row to this file.")] = None,
    as_json: Annotated[bool, json_option("Print the row as one JSON object, after the output of the command.")] = False,
) -> None:  # fmt: skip
    """Run a command and measure its time, memory and GPU usage."""
    import msgspec

    from gpuyard.cli.output.printing import print_json, print_pairs
    from gpuyard.learn.profiler.command import watch_command
    from gpuyard.learn.profiler.watch import GpuWatch, gpus_here

    if which(words[0]) is None:
        raise WrongInput(f"{words[0]} is not an executable program on this machine.")
    room_for(out)
    here = gpus_here()
    if gpu is not None and gpu >= here:
        raise WrongInput(f"This machine has no GPU {gpu}; NVML reports {here or 'none'}.")
    row = watch_command(words, GpuWatch(gpu or 0) if here else None)
    if out is not None:
        with out.open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")
    if as_json:
        print_json(row)
    else:
        print_pairs(msgspec.structs.asdict(row).items())
    raise typer.Exit(row.exit_code if row.exit_code >= 0 else 128 - row.exit_code)
