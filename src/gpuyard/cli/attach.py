"""`gpuyard attach`: the terminal of a running task, as after a lost connection or from another machine."""

import sys
from typing import Annotated

import typer

from gpuyard.cli.console.options import EscapeOption, check_escape, ends_with, escapes
from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client
from gpuyard.cli.input.task_selection import TaskArgument, task_named


def attach(
    task_id: TaskArgument,
    read_only: Annotated[bool, typer.Option("--read-only", help="Only watch; what you type is not sent.")] = False,
    steal: Annotated[bool, typer.Option("--steal", help="Take over from another client that types.")] = False,
    escape: EscapeOption = "ctrl-]",
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Attach to the terminal of a task; return its exit code. Ctrl-] three times leaves; the task continues."""
    check_escape(escape)
    if read_only and steal:
        raise typer.BadParameter(
            "a client that only watches takes nothing over; give one of the two", param_hint="'--steal'"
        )
    from gpuyard.cli.console.session import TerminalSession, check_terminal, own_size

    if not read_only:
        check_terminal("use --read-only to watch, or `gpuyard logs -f` to read the output")
    cluster = client(server, token)
    task = cluster.task(task_named(cluster, task_id))
    cluster = cluster.without_waiting()
    console = cluster.console(task, read_only=read_only, steal=steal, size=own_size() if sys.stdin.isatty() else None)
    again = f"gpuyard attach {task.id}"
    session = TerminalSession(
        console, escape=escapes(escape), reads=sys.stdin.isatty(), again=again, types=not read_only
    )
    ends_with(session.run(), cluster, task, console, as_json=as_json, again=again)
