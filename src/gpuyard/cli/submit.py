"""`gpuyard submit`: hand a task in and go on."""

import typer

from gpuyard.cli.asking import Request, asking
from gpuyard.cli.options import Json, Server, Token, client


@asking
def submit(request: Request, as_json: Json = False, server: Server = None, token: Token = None) -> None:
    """Submit a task and print its id, such as task-7."""
    yard = client(server, token)
    tasks = yard.submit_all(**request)
    if not as_json:
        typer.echo("\n".join(task.id for task in tasks))
        return
    from gpuyard.cli.printing import print_answer

    print_answer(yard)
