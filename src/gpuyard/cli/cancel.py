"""`gpuyard cancel`: end tasks."""

from typing import Annotated

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client
from gpuyard.cli.output.errors import complain


def cancel(
    task_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Tasks, such as task-7 or 7.")],
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Cancel tasks: waiting ones leave the queue, running ones are stopped. A task that has ended is not changed."""
    from gpuyard.live.sdk import NotAllowed, Refused

    cluster = client(server, token)
    failed = False
    for task in task_ids:
        try:
            answer = cluster.cancel(task)
        except NotAllowed:
            raise
        except Refused as refused:  # the others are cancelled all the same
            complain(refused.message, code=refused.code, field=refused.field, as_json=as_json)
            failed = True
            continue
        if as_json:
            from gpuyard.cli.output.printing import print_answer

            print_answer(cluster)
        else:
            typer.echo(answer.message)
    if failed:
        raise typer.Exit(1)
