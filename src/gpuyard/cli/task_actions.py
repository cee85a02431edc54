"""`gpuyard hold`, `release`, `suspend`, `resume` and `priority`: change tasks that have not ended."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client
from gpuyard.cli.output.errors import complain
from gpuyard.cli.show import TaskIdArgument

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client
    from gpuyard.live.sdk.values import Task

TaskIdsArgument = Annotated[list[str], typer.Argument(metavar="ID...", help="Tasks, such as task-7 or 7.")]


def hold(
    task_ids: TaskIdsArgument, as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None
) -> None:
    """Keep waiting tasks from starting until they are released."""
    _change(client(server, token), task_ids, lambda cluster, task: cluster.hold(task), "is on hold", as_json=as_json)


def release(
    task_ids: TaskIdsArgument, as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None
) -> None:
    """Let tasks on hold start."""
    _change(
        client(server, token), task_ids, lambda cluster, task: cluster.release(task), "is released", as_json=as_json
    )


def suspend(
    task_ids: TaskIdsArgument, as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None
) -> None:
    """Suspend running tasks of `--preemption suspend` and give their GPUs to others."""
    said = "is being suspended"
    _change(client(server, token), task_ids, lambda cluster, task: cluster.suspend(task), said, as_json=as_json)


def resume(
    task_ids: TaskIdsArgument, as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None
) -> None:
    """Let suspended tasks continue as soon as there are GPUs for them."""
    said = "continues as soon as its GPUs are free"
    _change(client(server, token), task_ids, lambda cluster, task: cluster.resume(task), said, as_json=as_json)


def priority(
    task_id: TaskIdArgument,
    value: Annotated[int, typer.Argument(metavar="VALUE", min=0, max=100, help="Priority from 0 to 100.")],
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Change the priority of a task within its class; tasks with a higher priority go first."""
    said = f"has priority {value}"
    _change(
        client(server, token), [task_id], lambda cluster, task: cluster.set_priority(task, value), said, as_json=as_json
    )


def _change(
    cluster: "Client", tasks: list[str], change: Callable[["Client", str], "Task"], said: str, *, as_json: bool
) -> None:
    """Change each task and say so. A refusal for one of them does not keep the others from being changed."""
    from gpuyard.live.sdk import NotAllowed, Refused

    failed = False
    for task in tasks:
        try:
            changed = change(cluster, task)
        except NotAllowed:
            raise
        except Refused as refused:
            complain(refused.message, code=refused.code, field=refused.field, as_json=as_json)
            failed = True
            continue
        if as_json:
            from gpuyard.cli.output.printing import print_answer

            print_answer(cluster)
        else:
            typer.echo(f"{changed.id} {said}.")
    if failed:
        raise typer.Exit(1)
