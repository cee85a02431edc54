"""`gpuyard cancel`: end tasks."""

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuyard.live.wire.answers import CancelAnswer

SINGLY = 5
"""Up to so many tasks, the result of each is printed; of more, only how many were cancelled."""


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
    from gpuyard.live.sdk import NotAllowed, NotFound, Refused

    cluster = client(server, token)
    filters = SelectedBy(name, user, mine, tenant, project)
    meant = selected(cluster, tasks, filters, status=OPEN, doing="Cancel", yes=yes)
    in_short = len(meant) > SINGLY and not as_json
    answers: list[CancelAnswer] = []
    unknown: list[str] = []
    failed = False
    for task in reversed(meant):  # the newest first: the oldest give up GPUs, and tasks that wait would start on them
        try:
            answer = cluster.cancel(task)
        except NotAllowed:
            raise
        except Refused as refused:  # the others are cancelled all the same
            failed = True
            if in_short and isinstance(refused, NotFound):
                unknown.append(task)
            else:
                complain(refused.message, code=refused.code, field=refused.field, as_json=as_json)
            continue
        answers.append(answer)
        if as_json:
            from gpuyard.cli.output.printing import print_answer

            print_answer(cluster)
        elif not in_short:
            typer.echo(localized(answer.message))
    if in_short and answers:
        typer.echo(localized(_summary(answers)))
    if unknown:
        shown = f"{unknown[-1]} to {unknown[0]}" if len(unknown) > 1 else unknown[0]
        complain(f"{len(unknown)} of these tasks do not exist ({shown}).", code="UnknownTask", as_json=as_json)
    if failed:
        raise typer.Exit(1)


def _summary(answers: "Sequence[CancelAnswer]") -> str:
    """Return how many tasks were cancelled, are being stopped, and had ended, such as `99 tasks cancelled, 3 had ended.`"""
    had_ended = sum(answer.had_ended for answer in answers)
    cancelled = sum(answer.status == "cancelled" and not answer.had_ended for answer in answers)
    stopping = len(answers) - had_ended - cancelled
    parts = [(cancelled, "cancelled"), (stopping, "being stopped"), (had_ended, "had ended")]
    (first, what), *others = [part for part in parts if part[0]]
    words = [f"{first:,} {'task' if first == 1 else 'tasks'} {what}", *(f"{count:,} {how}" for count, how in others)]
    return f"{', '.join(words)}."
