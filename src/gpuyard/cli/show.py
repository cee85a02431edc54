"""`gpuyard show`: all about one task."""

from typing import Annotated

import typer

from gpuyard.cli.input.options import Json, Server, Token, client

TaskId = Annotated[str, typer.Argument(metavar="ID", help="A task, such as task-7 or 7.")]
INSTANTS = frozenset({"created_at", "started_at", "finished_at"})
TWICE = frozenset({"task_id", "assigned_gpus", "node_id"})
"""Said by another field too."""


def show(task_id: TaskId, as_json: Json = False, server: Server = None, token: Token = None) -> None:
    """Show everything there is to know about a task."""
    yard = client(server, token)
    task = yard.task(task_id)
    from gpuyard.cli.output.printing import print_answer, print_pairs, spoken_instant

    if as_json:
        print_answer(yard)
        return
    from msgspec import to_builtins

    fields = {name: value for name, value in to_builtins(task).items() if name not in TWICE}
    print_pairs((name, spoken_instant(value) if name in INSTANTS else value) for name, value in fields.items())
