"""`gpuyard attach`: the terminal of a running task, as after a lost connection or from another machine."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.console.options import EscapeOption, check_escape, ends_with, escapes
from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client
from gpuyard.cli.input.task_selection import TaskArgument, task_named

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client, Task


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
    from gpuyard.cli.console.session import SessionEnd, TerminalSession, check_terminal, own_size

    if not read_only:
        check_terminal("use --read-only to watch, or `gpuyard logs -f` to read the output")
    cluster = client(server, token)
    task = cluster.task(task_named(cluster, task_id))
    cluster = cluster.without_waiting()
    waited = task.console is not None and task.status in {"pending", "running"} and not task.running_since
    if waited:
        task = _started(cluster, task, server, as_json=as_json)
    console = cluster.console(task, read_only=read_only, steal=steal, size=own_size() if sys.stdin.isatty() else None)
    again = f"gpuyard attach {task.id}"
    session = TerminalSession(
        console, escape=escapes(escape), reads=sys.stdin.isatty(), again=again, types=not read_only
    )
    end = SessionEnd("over") if task.ended and waited else session.run()
    ends_with(end, cluster, task, console, as_json=as_json, again=again)


def _started(cluster: "Client", task: "Task", server: str | None, *, as_json: bool) -> "Task":
    """Wait until a task with a terminal runs, and say what it waits for; Ctrl-C leaves it alone."""
    from gpuyard.cli.output.progress import WaitProgress
    from gpuyard.cli.output.task_output import gave_up, gone, is_gone
    from gpuyard.cli.run import until_started
    from gpuyard.core.domain.errors import GpuyardError

    with WaitProgress(quiet=as_json) as progress:
        try:
            return until_started(cluster, task, progress)
        except GpuyardError as error:
            progress.clear()
            if is_gone(error):
                raise gone(error, task.id, cluster, as_json=as_json) from None
            raise gave_up(error, task.id, server, as_json=as_json) from None
