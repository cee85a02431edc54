"""`gpuyard shell`: another command in a terminal beside a running task, on the same GPUs, in the same folder."""

import sys
from typing import Annotated

import typer

from gpuyard.cli.console.options import EscapeOption, LingerOption, check_escape, escapes, linger_of
from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client
from gpuyard.cli.input.task_selection import TaskArgument, task_named

SIGNALLED = 128
USUAL_LINGER = "15m"


def shell(
    task_id: TaskArgument,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND...]", help="Program and its arguments (default: your shell)."),
    ] = None,
    escape: EscapeOption = "ctrl-]",
    linger: LingerOption = USUAL_LINGER,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Start a shell beside a running task: same GPUs, folder, user. It ends with the task. Ctrl-] three times leaves."""
    check_escape(escape)
    command = command[1:] if command and command[0] == "--" else command
    from gpuyard.cli.console.raw_terminal import traveling_variables
    from gpuyard.cli.console.session import TerminalSession, check_terminal, own_size

    seconds = linger_of(linger, keep=False)
    check_terminal("a shell needs one")
    cluster = client(server, token)
    task = cluster.task(task_named(cluster, task_id))
    cluster = cluster.without_waiting()
    console = cluster.shell(task, command or (), env=traveling_variables(), size=own_size(), linger_seconds=seconds)
    again = f"gpuyard shell {task.id}"
    end = TerminalSession(console, escape=escapes(escape), reads=True, again=again, types=True, logged=False).run()
    if as_json:
        from msgspec import json

        said = {"task_id": task.id, "ended": end.why, "exit_code": end.code, "signal": end.signal}
        typer.echo(json.encode(said).decode())
    elif end.why not in {"exit", "detached"}:
        words = "the shell has ended while there was no connection" if end.why == "over" else end.sentence
        print(f"gpuyard: {words}", file=sys.stderr)
    elif end.why == "detached":
        print(f"\ngpuyard: detached; the shell is closed after {linger}.", file=sys.stderr)
    if end.why in {"exit", "detached"}:
        raise typer.Exit(SIGNALLED + end.signal if end.signal else end.code or 0)
    raise typer.Exit(1)
