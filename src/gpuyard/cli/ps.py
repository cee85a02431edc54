"""`gpuyard ps`: list tasks."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client

if TYPE_CHECKING:
    from gpuyard.live.sdk import Task

OPEN = "pending,running,suspended"
NAMES = ("ID", "NAME", "STATUS", "TENANT", "GPUS", "NODE", "AGE", "RAN", "REASON")


def ps(
    every: Annotated[bool, typer.Option("-a", "--all", help="Include ended tasks.")] = False,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "-s", "--status", metavar="STATUS", help="Only tasks with this status: pending, running, success, …"
        ),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("-t", "--tenant", metavar="NAME", help="Only tasks of this tenant.")
    ] = None,
    user: Annotated[str | None, typer.Option("-u", "--user", metavar="NAME", help="Only tasks of this user.")] = None,
    project: Annotated[
        str | None, typer.Option("--project", metavar="NAME", help="Only tasks of this project.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Only tasks with exactly this name.")
    ] = None,
    priority: Annotated[
        str | None, typer.Option("-p", "--priority", metavar="high|low|N", help="Only tasks with this priority.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Only tasks submitted in the last 30m, 2h, 1d; or since 2026-01-31T12:00:00Z.",
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            "-n", "--limit", metavar="N", min=1, max=1000, help="Maximum number of tasks; the newest are shown."
        ),
    ] = 100,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="CURSOR", help="Continue a list where --json ended.")
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """List waiting and running tasks, newest first."""
    filters: dict[str, Any] = {
        "status": ",".join(status) if status else None if every else OPEN,
        "tenant": tenant,
        "user": user,
        "project": project,
        "name": name,
        "priority": priority,
        "since": _instant(since),
    }
    cluster = client(server, token)
    page = cluster.page(limit=limit, cursor=cursor, **filters)
    from gpuyard.cli.output.printing import print_answer, print_table

    if as_json:
        print_answer(cluster)
        return
    print_table(NAMES, map(_row, page.tasks), right=("GPUS", "AGE", "RAN"))
    if page.next_cursor is not None:
        typer.echo(f"{len(page.tasks)} of {page.total} tasks; -n shows more.", err=True)


def _instant(since: str | None) -> str | float | None:
    """Parse an instant; a duration is subtracted from the current time."""
    if since is None or "T" in since or since.count("-") > 1:
        return since
    import time

    from gpuyard.cli.input.options import seconds_of

    try:
        return time.time() - (seconds_of(since, "--since") or 0)
    except typer.BadParameter:
        words = "is neither a duration such as 30m, 2h or 1d nor an instant such as 2026-01-31T12:00:00Z"
        raise typer.BadParameter(f"{since!r} {words}", param_hint="'--since'") from None


def _row(task: "Task") -> tuple[object, ...]:
    from gpuyard.cli.output.printing import asked_gpus, format_seconds, seconds_since

    nodes = task.node_ids
    return (
        task.id,
        task.name or _command(task.command),
        task.status,
        task.tenant_id,
        asked_gpus(task),
        nodes[0] if len(nodes) == 1 else f"{nodes[0]} +{len(nodes) - 1}" if nodes else None,
        format_seconds(seconds_since(task.created_at)),
        format_seconds(_ran(task), fine=True),
        task.reason,
    )


def _ran(task: "Task") -> float | None:
    """Return how long a task has run. The scheduler says so unless it runs now; archives of old versions may not."""
    from gpuyard.cli.output.printing import seconds_since
    from gpuyard.core.domain.values import TaskStatus

    if task.run_seconds is not None:
        return task.run_seconds
    if task.running_since is not None:
        return (task.ran_before_seconds or 0.0) + (seconds_since(task.running_since) or 0.0)
    return seconds_since(task.started_at, task.finished_at) if task.status is not TaskStatus.PENDING else None


def _command(command: str | list[str] | None, longest: int = 30) -> str:
    """Return a shortened command, which is shown for a task without a name."""
    if command is None:
        return "(lease)"
    words = command if isinstance(command, str) else " ".join(command)
    return words if len(words) <= longest else words[: longest - 1] + "…"
