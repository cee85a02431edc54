"""`gpuyard show`: print all details of a task."""

from typing import Annotated

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client

TaskIdArgument = Annotated[str, typer.Argument(metavar="ID", help="A task, such as task-7 or 7.")]
INSTANTS = frozenset({"created_at", "started_at", "finished_at"})
TWICE = frozenset({"task_id", "assigned_gpus", "node_id"})
"""Fields that are left out, because another field has the same information."""


def show(
    task_id: TaskIdArgument, as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None
) -> None:
    """Show all details of a task."""
    cluster = client(server, token)
    task = cluster.task(task_id)
    from gpuyard.cli.output.printing import format_instant, print_answer, print_pairs

    if as_json:
        print_answer(cluster)
        return
    from msgspec import to_builtins

    fields = {name: value for name, value in to_builtins(task).items() if name not in TWICE}
    print_pairs((name, format_instant(value) if name in INSTANTS else value) for name, value in fields.items())
