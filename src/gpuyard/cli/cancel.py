"""`gpuyard cancel`: end tasks."""

from typing import Annotated

import typer

from gpuyard.cli.input.options import Json, Server, Token, client
from gpuyard.cli.output.errors import complain


def cancel(
    task_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Tasks, such as task-7 or 7.")],
    as_json: Json = False,
    server: Server = None,
    token: Token = None,
) -> None:
    """Cancel tasks: those that wait leave the queue, those that run are stopped. One that ended stays as it was."""
    from gpuyard.live.sdk import NotAllowed, Refused

    yard = client(server, token)
    failed = False
    for task in task_ids:
        try:
            answer = yard.cancel(task)
        except NotAllowed:
            raise
        except Refused as refused:  # the others are cancelled all the same
            complain(refused.message, code=refused.code, field=refused.field, as_json=as_json)
            failed = True
            continue
        if as_json:
            from gpuyard.cli.output.printing import print_answer

            print_answer(yard)
        else:
            typer.echo(answer.message)
    if failed:
        raise typer.Exit(1)
