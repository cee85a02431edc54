"""`gpuyard cancel`: end tasks."""

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client
from gpuyard.cli.input.task_selection import (
    OPEN,
    MineFilter,
    NameFilter,
    ProjectFilter,
    SelectedBy,
    TasksArgument,
    TenantFilter,
    UserFilter,
    YesOption,
    selected,
)
from gpuyard.cli.output.errors import complain
from gpuyard.cli.shell.messages import localized


def cancel(
    tasks: TasksArgument = None,
    name: NameFilter = None,
    user: UserFilter = None,
    mine: MineFilter = False,
    tenant: TenantFilter = None,
    project: ProjectFilter = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Cancel tasks: waiting ones leave the queue, running ones are stopped. A task that has ended is not changed."""
    from gpuyard.live.sdk import NotAllowed, Refused

    cluster = client(server, token)
    filters = SelectedBy(name, user, mine, tenant, project)
    failed = False
    for task in selected(cluster, tasks, filters, status=OPEN, doing="Cancel", yes=yes):
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
            typer.echo(localized(answer.message))
    if failed:
        raise typer.Exit(1)
