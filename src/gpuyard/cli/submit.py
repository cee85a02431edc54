"""`gpuyard submit`: submit a task without waiting for it."""

import sys
from typing import TYPE_CHECKING

import typer

from gpuyard.cli.explain import fits_nowhere, next_step
from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client
from gpuyard.cli.input.task_options import RequestFields, task_options
from gpuyard.cli.output.progress import NO_NODES, NO_NODES_SENTENCE

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client, Task


@task_options
def submit(
    request: RequestFields, as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None
) -> None:
    """Submit a task and print its id, such as task-7."""
    cluster = client(server, token)
    tasks = submitted(cluster, request)
    if as_json:
        from gpuyard.cli.output.printing import print_answer

        print_answer(cluster)
    else:
        typer.echo("\n".join(task.id for task in tasks))
    warn_if_nothing_fits(cluster, tasks[0], alone=True)


def submitted(cluster: "Client", request: RequestFields) -> "list[Task]":
    """Submit the request and return all its tasks. If no answer arrives, say that the task may exist nevertheless."""
    from gpuyard.live.sdk import Unreachable

    try:
        return cluster.submit_all(**request)
    except Unreachable as error:
        if not error.may_have_arrived:
            raise
        message = f"{error} The task may have been accepted; check with `gpuyard ps` before you submit it again."
        raise Unreachable(message, may_have_arrived=True) from None


def warn_if_nothing_fits(cluster: "Client", task: "Task", *, alone: bool = False) -> None:
    """Print to standard error that no current node can hold a task that was accepted and waits.

    `alone`: also print the reason; otherwise `Progress` prints it.
    """
    from gpuyard.core.domain.errors import GpuyardError

    if task.status != "pending" or task.allocated_gpus:
        return
    try:
        told = cluster.explain(task.id)
    except GpuyardError:
        return  # the task is accepted; this was only a courtesy
    if told.status != "pending" or not fits_nowhere(told):
        return
    if told.reason_code == NO_NODES:
        words = f"{task.id} waits. {NO_NODES_SENTENCE}" if alone else ""
    else:
        step = next_step(told)
        words = f"{task.id} waits. {told.reason} {step}".rstrip() if alone else step and f"{task.id}: {step}"
    if words:
        print(f"gpuyard: {words}", file=sys.stderr)
