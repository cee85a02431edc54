"""`gpuyard clone` and `retry`: submit tasks again, as they are or with changes."""

from typing import TYPE_CHECKING, Any

import typer

from gpuyard.cli.input.dependencies import with_dependencies
from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client
from gpuyard.cli.input.task_options import RequestFields, change_options, secret_values
from gpuyard.cli.input.task_selection import (
    MineFilter,
    SelectedBy,
    TasksArgument,
    UserFilter,
    YesOption,
    selected,
)
from gpuyard.cli.output.errors import complain

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client
    from gpuyard.live.sdk.values import Task

ALL = "pending,running,suspended,success,failed,cancelled,timeout"
RETRIED = "failed,cancelled,timeout"


@change_options
def clone(
    changes: RequestFields,
    tasks: TasksArgument = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Submit tasks again, ended or not, as they are or with the changes of these options. They are new tasks."""
    cluster = client(server, token)
    meant = selected(cluster, tasks, SelectedBy(), status=ALL, doing="Clone", yes=True)
    _again(cluster, [cluster.task(task) for task in meant], changes, as_json=as_json)


@change_options
def retry(
    changes: RequestFields,
    tasks: TasksArgument = None,
    user: UserFilter = None,
    mine: MineFilter = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Submit tasks again that did not succeed, as they are or with the changes of these options. They are new tasks.

    --mine and --user select commands that failed, ran too long or were lost, not leases, terminals and cancelled tasks.
    """
    cluster = client(server, token)
    filters = SelectedBy(user=user, mine=mine)
    meant = selected(cluster, tasks, filters, status=RETRIED, doing="Retry", yes=yes, unfit=_not_retried)
    known, wrong = [cluster.task(task) for task in meant], False
    for task in known:
        if not task.ended or task.succeeded:
            how = "succeeded" if task.succeeded else f"is {task.status}"
            complain(
                f"{task.id} {how}; `gpuyard clone {task.id}` submits it again.", code="WrongStatus", as_json=as_json
            )
            wrong = True
    if wrong:  # nothing is submitted
        raise typer.Exit(1)
    _again(cluster, known, changes, as_json=as_json)


def _not_retried(task: "Task") -> tuple[str, str] | None:
    """Return what a task is, one and several, that `retry` takes only by its id; None: it is retried."""
    if task.command is None:
        return "lease", "leases"
    if task.console is not None:
        if task.console.terminal:
            return "terminal", "terminals"
        return "command with standard input", "commands with standard input"
    return ("cancelled task", "cancelled tasks") if task.status == "cancelled" else None


def _again(cluster: "Client", tasks: "list[Task]", changes: dict[str, Any], *, as_json: bool) -> None:
    """Submit each task again; a refusal for one of them does not keep the others from being submitted."""
    from gpuyard.core.domain.errors import WrongInput
    from gpuyard.live.sdk import NotAllowed, Refused
    from gpuyard.live.wire.tasks import STEPS_SECRET

    (changes,) = with_dependencies(cluster, [changes])
    given = {name: value for name, value in changes.items() if value is not None}
    failed = False
    for task in tasks:
        asked_for = [name for name in task.secrets if name != STEPS_SECRET]
        secrets = {**secret_values(asked_for, known=given.get("secrets") or {}), **(given.get("secrets") or {})}
        try:
            made = cluster.clone(task, **{**given, "secrets": secrets or None})
        except NotAllowed:
            raise
        except (Refused, WrongInput) as refused:
            complain(str(refused), code=refused.code, field=getattr(refused, "field", None), as_json=as_json)
            failed = True
            continue
        if as_json:
            from gpuyard.cli.output.printing import print_answer

            print_answer(cluster)
        else:
            typer.echo(f"{made.id} is {task.id} again.")
    if failed:
        raise typer.Exit(1)
