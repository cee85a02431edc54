"""`gpuyard submit`: hand a task in and go on."""

import sys
from typing import TYPE_CHECKING

import typer

from gpuyard.cli.asking import Request, asking
from gpuyard.cli.explain import NOWHERE, fits_nowhere
from gpuyard.cli.options import Json, Server, Token, client

if TYPE_CHECKING:
    from gpuyard.sdk import Client, Task


@asking
def submit(request: Request, as_json: Json = False, server: Server = None, token: Token = None) -> None:
    """Submit a task and print its id, such as task-7."""
    yard = client(server, token)
    tasks = yard.submit_all(**request)
    if as_json:
        from gpuyard.cli.printing import print_answer

        print_answer(yard)
    else:
        typer.echo("\n".join(task.id for task in tasks))
    warn_if_nothing_fits(yard, tasks[0])


def warn_if_nothing_fits(yard: "Client", task: "Task") -> None:
    """Say on standard error, at once, that no present node can hold a task; it was accepted and waits."""
    from gpuyard.domain.errors import GpuyardError

    if task.status != "pending" or task.allocated_gpus:
        return
    try:
        told = yard.explain(task.id)
    except GpuyardError:
        return  # the task is accepted; this was only a courtesy
    if told.status == "pending" and fits_nowhere(told):
        print(f"gpuyard: {task.id} waits. {told.reason} {NOWHERE}", file=sys.stderr)
