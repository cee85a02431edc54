"""`gpuyard top`: the command. Without a terminal that can be drawn on, it prints the state once."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import ServerOption, TokenOption, client, json_option

if TYPE_CHECKING:
    from gpuyard.cli.top.readers import QueueView
    from gpuyard.live.sdk import Client

SHOWN_ONCE = 20


def top(
    mine: Annotated[bool, typer.Option("--mine", help="Only your tasks.")] = False,
    user: Annotated[str | None, typer.Option("-u", "--user", metavar="NAME", help="Only tasks of this user.")] = None,
    tenant: Annotated[
        str | None, typer.Option("-t", "--tenant", metavar="NAME", help="Only tasks of this tenant.")
    ] = None,
    search: Annotated[
        str | None,
        typer.Option("-q", "--search", metavar="TEXT", help="Only tasks with this text in name, command, id or user."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the state once, as in a pipe.")] = False,
    as_json: Annotated[bool, json_option("Print the overview of the scheduler as JSON.")] = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Show GPUs, queue and tasks, live; press ? there for the keys. In a pipe or a dumb terminal, print them once."""
    cluster = client(server, token)
    if mine:
        from gpuyard.cli.input.task_selection import own_name

        own = own_name(cluster)
        if user not in {None, own}:
            raise typer.BadParameter(f"--mine means {own}; use one of the two", param_hint="'--user'")
        user = own
    from gpuyard.cli.output.screen import screen_of
    from gpuyard.cli.top.readers import QueueView

    if as_json:
        from gpuyard.cli.output.printing import print_answer

        cluster.overview()
        print_answer(cluster)
        return
    view = QueueView(query=search, user=user, tenant=tenant)
    if once or not screen_of().moves or not sys.stdin.isatty():
        _print_once(cluster, view)
        return
    cluster.health()  # a wrong address or token is a sentence, not an empty screen
    from gpuyard.cli.top.app import TopApp

    TopApp(cluster, view).run()


def _print_once(cluster: "Client", view: "QueueView") -> None:
    from gpuyard.cli.output.fitted_table import table_lines
    from gpuyard.cli.output.gpu_map import total_lines, user_lines
    from gpuyard.cli.output.screen import screen_of
    from gpuyard.cli.output.task_rows import COLUMNS, TaskRow, cells_of, usual_columns

    screen = screen_of()
    gpus = cluster.gpus().gpus
    queue = view.ask(cluster, 0, SHOWN_ONCE)
    rows: list[TaskRow] = list(queue.rows)
    columns = usual_columns(rows)
    texts, colors = cells_of(rows, columns)
    lines = [
        *total_lines(gpus, screen),
        *user_lines(gpus, screen),
        "",
        f"{queue.running:,} running, {queue.pending:,} waiting, {queue.suspended:,} suspended",
        *table_lines([COLUMNS[name][0] for name in columns], texts, screen, colors),
    ]
    if len(rows) < queue.total:
        lines.append(f"{len(rows)} of {queue.total:,} lines; gpuyard ps shows more.")
    sys.stdout.write("".join(f"{line}\n" for line in lines))
