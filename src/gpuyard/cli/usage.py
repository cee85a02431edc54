"""`gpuyard usage`: GPU-hours, idle and lost time, energy and waits."""

from typing import Annotated

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client, past_instant_of

COLUMNS = {
    "TASKS": "tasks",
    "GPU HOURS": "gpu_hours",
    "USED": "used_gpu_hours",
    "IDLE": "idle_gpu_hours",
    "FAILED": "failed_gpu_hours",
    "PREEMPTED": "preempted_gpu_hours",
    "OUT OF MEMORY": "out_of_memory_gpu_hours",
    "KWH": "energy_kwh",
    "WAIT HOURS": "wait_hours",
}

RANKS = {"OUT OF MEMORY": 8, "PREEMPTED": 7, "KWH": 6, "FAILED": 5, "WAIT HOURS": 4, "TASKS": 3, "IDLE": 2, "USED": 1}
"""What a narrow terminal leaves out first."""


def usage(
    by: Annotated[
        str, typer.Option("--by", metavar="KEYS", help="tenant, user, project, model, day, hour, with commas.")
    ] = "tenant",
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Beginning: how long ago, such as 24h, or yesterday, 'fri 18:00' or a date (default: 7d).",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="End, in the same forms (default: now).")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.")] = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Show who used GPUs in a time: GPU-hours, idle, failed and preempted ones, energy, and waits."""
    cluster = client(server, token)
    if as_csv and as_json:
        raise typer.BadParameter("choose one of --csv and --json", param_hint="'--csv'")
    begin, end = past_instant_of(since, "--since"), past_instant_of(until, "--until", may_be_later=True)
    window = {"since": None if begin is None else begin.isoformat(), "until": None if end is None else end.isoformat()}
    from gpuyard.cli.output.printing import print_answer, print_lines

    if as_csv:
        print_lines(cluster.usage_csv(by=by, **window))
        return
    told = cluster.usage(by=by, **window)
    if as_json:
        print_answer(cluster)
        return
    rows = [(*(getattr(row, key) for key in told.by), *_figures(row)) for row in told.rows]
    if len(rows) != 1:
        rows.append(("total", *("" for _ in told.by[1:]), *_figures(told.total)))
    _print(told.by, rows)


def _print(by: list[str], rows: list[tuple[str, ...]]) -> None:
    """Print a table that fits the terminal."""
    import sys

    from gpuyard.cli.output.fitted_table import TableColumn, table_lines
    from gpuyard.cli.output.printing import one_line
    from gpuyard.cli.output.screen import screen_of

    columns = [TableColumn(key.upper(), least=8) for key in by]
    columns += [TableColumn(name, right=True, rank=RANKS.get(name, 0)) for name in COLUMNS]
    texts = [[one_line(cell) or "–" for cell in row] for row in rows]
    sys.stdout.write("".join(f"{line}\n" for line in table_lines(columns, texts, screen_of())))


def _figures(row: object) -> tuple[str, ...]:
    values = (getattr(row, name) for name in COLUMNS.values())
    return tuple(str(value) if isinstance(value, int) else f"{value:.2f}" for value in values)
