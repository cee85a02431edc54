"""`gpuyard hold`, `release`, `suspend`, `resume`, `priority`, `boost` and `extend`: change tasks that have not ended."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.dependencies import WrongDependency, open_task_meant
from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client, seconds_of
from gpuyard.cli.input.task_selection import (
    OPEN,
    MineFilter,
    NameFilter,
    ProjectFilter,
    SelectedBy,
    TaskArgument,
    TasksArgument,
    TenantFilter,
    UserFilter,
    YesOption,
    selected,
    task_named,
)
from gpuyard.cli.output.errors import complain

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client
    from gpuyard.live.sdk.values import Task


def hold(
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
    """Keep waiting tasks from starting until they are released."""
    cluster, filters = client(server, token), SelectedBy(name, user, mine, tenant, project)
    meant = selected(cluster, tasks, filters, status="pending", doing="Hold", yes=yes)
    _change(cluster, meant, cluster.hold, "is on hold", as_json=as_json)


def release(
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
    """Let tasks on hold start."""
    cluster, filters = client(server, token), SelectedBy(name, user, mine, tenant, project)
    meant = selected(cluster, tasks, filters, status="pending", doing="Release", yes=yes)
    _change(cluster, meant, cluster.release, "is released", as_json=as_json)


def suspend(
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
    """Suspend running tasks of `--preemption suspend` and give their GPUs to others."""
    cluster, filters = client(server, token), SelectedBy(name, user, mine, tenant, project)
    meant = selected(cluster, tasks, filters, status="running", doing="Suspend", yes=yes)
    _change(cluster, meant, cluster.suspend, "is being suspended", as_json=as_json)


def resume(
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
    """Let suspended tasks continue as soon as there are GPUs for them."""
    cluster, filters = client(server, token), SelectedBy(name, user, mine, tenant, project)
    meant = selected(cluster, tasks, filters, status="suspended", doing="Resume", yes=yes)
    _change(cluster, meant, cluster.resume, "continues as soon as its GPUs are free", as_json=as_json)


def priority(
    task: TaskArgument,
    value: Annotated[int, typer.Argument(metavar="VALUE", min=0, max=100, help="Priority from 0 to 100.")],
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Change the priority of a task within its class; tasks with a higher priority go first."""
    cluster = client(server, token)
    meant = [task_named(cluster, task)]
    _change(cluster, meant, lambda each: cluster.set_priority(each, value), f"has priority {value}", as_json=as_json)


def max_running(
    task: Annotated[
        str,
        typer.Argument(metavar="TASK", help="A task of the array or sweep: its id, or the name of the array or sweep."),
    ],
    value: Annotated[
        int, typer.Argument(metavar="N", min=0, help="How many of its tasks may run at once; 0: any number.")
    ],
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Change how many tasks of an array or sweep may run at the same time; running tasks continue."""
    cluster = client(server, token)
    try:
        meant = [open_task_meant(cluster, task)]
    except WrongDependency as wrong:
        raise typer.BadParameter(str(wrong), param_hint="'TASK'") from None
    said = (
        f"at most {value} tasks of its array or sweep run at the same time"
        if value
        else "its array or sweep has no limit"
    )
    _change(cluster, meant, lambda each: cluster.set_max_running(each, value), f"is changed: {said}", as_json=as_json)


def boost(
    tasks: TasksArgument = None,
    by: Annotated[int, typer.Option("--by", metavar="N", min=1, max=100, help="Points of priority to add.")] = 10,
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
    """Raise the priority of tasks within their class, at most to 100; `priority` sets it."""
    cluster, filters = client(server, token), SelectedBy(name, user, mine, tenant, project)
    meant = selected(cluster, tasks, filters, status=OPEN, doing="Boost", yes=yes)
    _change(cluster, meant, lambda each: cluster.boost(each, by), _has_priority, as_json=as_json)


def extend(
    tasks: TasksArgument = None,
    by: Annotated[
        str | None, typer.Option("--by", metavar="TIME", help="Time to add to the timeout, such as 2h.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="TIME", help="New timeout, instead of --by.")] = None,
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
    """Raise the timeout of waiting or running tasks and of leases."""
    if (by is None) == (to is None):
        raise typer.BadParameter("give the time to add with --by, or the new timeout with --to", param_hint="'--by'")
    added, whole = seconds_of(by, "--by"), seconds_of(to, "--to")
    cluster, filters = client(server, token), SelectedBy(name, user, mine, tenant, project)
    meant = selected(cluster, tasks, filters, status=OPEN, doing="Extend", yes=yes)
    _change(cluster, meant, lambda each: cluster.extend(each, by=added, timeout=whole), _has_timeout, as_json=as_json)


def _has_priority(task: "Task") -> str:
    return f"has priority {task.priority}"


def _has_timeout(task: "Task") -> str:
    """Return the new timeout, and when a running task reaches it."""
    from datetime import datetime, timedelta

    from gpuyard.cli.output.printing import format_seconds

    assert task.timeout is not None
    words = f"has a timeout of {format_seconds(task.timeout)}"
    if task.running_since is None:
        return words
    left = task.timeout - (task.ran_before_seconds or 0.0)
    ends_at = datetime.fromisoformat(task.running_since).astimezone() + timedelta(seconds=left)
    return f"{words} and is stopped at {ends_at.strftime('%Y-%m-%d %H:%M:%S')} if it has not ended"


def _change(
    cluster: "Client",
    tasks: list[str],
    change: Callable[[str], "Task"],
    said: "str | Callable[[Task], str]",
    *,
    as_json: bool,
) -> None:
    """Change each task and say so. A refusal for one of them does not keep the others from being changed."""
    from gpuyard.core.domain.errors import WrongInput
    from gpuyard.live.sdk import NotAllowed, Refused

    failed = False
    for task in tasks:
        try:
            changed = change(task)
        except NotAllowed:
            raise
        except Refused as refused:
            complain(refused.message, code=refused.code, field=refused.field, as_json=as_json)
            failed = True
            continue
        except WrongInput as wrong:  # such as a task without a timeout
            complain(str(wrong), code=wrong.code, field=None, as_json=as_json)
            failed = True
            continue
        if as_json:
            from gpuyard.cli.output.printing import print_answer

            print_answer(cluster)
        else:
            typer.echo(f"{changed.id} {said if isinstance(said, str) else said(changed)}.")
    if failed:
        raise typer.Exit(1)
