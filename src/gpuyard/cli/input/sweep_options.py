"""`gpuyard submit --sweep …`: the requests of a sweep, and the question before many tasks are submitted."""

import sys
from collections.abc import Sequence
from typing import Any

import typer

from gpuyard.cli.input.task_options import RequestFields
from gpuyard.cli.shell.messages import localized

MANY = 100
"""More tasks than this are submitted only after a question, or with `--yes`."""


def requests_of_sweep(
    request: RequestFields, sweep: Sequence[str], *, side_by_side: bool, read_by: str = ""
) -> list[RequestFields]:
    """Return one request for each point of a sweep. `read_by`: the text of the script that is run, if it is a file."""
    from gpuyard.input.sweep import parse_axes, points_of, swept_tasks

    if request["array"]:
        message = "a sweep cannot be an array, too; add the numbers to the sweep: --sweep i=0..9"
        raise typer.BadParameter(message, param_hint="'--array'")
    points = points_of(parse_axes(sweep), side_by_side=side_by_side)
    swept = swept_tasks(request["command"], points, name=request["name"], env=request["env"], read_by=read_by)
    return [{**request, "command": one.command, "env": one.env, "name": one.name} for one in swept]


def confirm(count: int, *, yes: bool) -> None:
    """Ask before more than `MANY` tasks are submitted. Without a terminal `--yes` is needed."""
    if yes or count <= MANY:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        message = f"this submits {count:,} tasks; confirm with --yes, or look at them with --dry-run"
        raise typer.BadParameter(message, param_hint="'--yes'")
    typer.confirm(localized(f"Submit {count:,} tasks?"), abort=True, err=True)


def shown_command(request: Any) -> str:
    """Return the command of a request as one line that a shell would understand."""
    from shlex import join

    command = request["command"]
    if "SBATCH_START" in (request.get("env") or {}):  # a job script: what starts it says nothing
        command = command[3:]
    return str(command) if isinstance(command, str) else join(command)
