"""`gpuyard wait`: wait until tasks have ended, and return their exit code."""

import sys
from typing import Annotated

import typer

from gpuyard.cli.input.options import JsonOption, QuietOption, ServerOption, TokenOption, client, seconds_of
from gpuyard.cli.input.task_selection import (
    OPEN,
    MineFilter,
    NameFilter,
    ProjectFilter,
    SelectedBy,
    TasksArgument,
    TenantFilter,
    UserFilter,
    selected,
)

TOOK_TOO_LONG = 124


def wait(
    tasks: TasksArgument = None,
    any_: Annotated[bool, typer.Option("--any", help="Return when the first of them has ended.")] = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Give up after this time, with exit code 124.")
    ] = None,
    name: NameFilter = None,
    user: UserFilter = None,
    mine: MineFilter = False,
    tenant: TenantFilter = None,
    project: ProjectFilter = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Wait until tasks have ended. The exit code is that of the first task that failed, in the order given, else 0."""
    from gpuyard.cli.run import exit_code_of
    from gpuyard.live.sdk import TookTooLong

    seconds = seconds_of(timeout, "--timeout")
    cluster, filters = client(server, token), SelectedBy(name, user, mine, tenant, project)
    meant = selected(cluster, tasks, filters, status=OPEN, doing="Wait for", yes=True)
    codes: dict[str, int] = {}
    try:
        for task in cluster.ends(meant, timeout=seconds):
            codes[task.id] = exit_code_of(task, silent=True)
            if as_json:
                from gpuyard.cli.output.printing import print_json

                print_json(task)
            elif not quiet:
                typer.echo(f"{task.id} ended as {task.status}{_why(task.reason)}")
                sys.stdout.flush()
            if any_:
                break
    except TookTooLong as error:
        print(f"gpuyard: {error}", file=sys.stderr)
        raise typer.Exit(TOOK_TOO_LONG) from None
    raise typer.Exit(next((codes[task] for task in meant if codes.get(task)), 0))


def _why(reason: str | None) -> str:
    return f": {reason}" if reason else "."
