"""`gpuyard bench`: how fast gpuyard is on this machine, ours and a naive twin in the same run.

Figures go to standard output (a table, or JSON), what is going on at the moment to standard error, so that
`gpuyard bench engine --json > figures.json` can be watched and parsed.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.hints import Verbs
from gpuyard.cli.options import json_option

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(cls=Verbs, rich_markup_mode=None)

GPUS = "200,1600,16000,100000"
SMALLEST = 200

Json = Annotated[bool, json_option("Print the figures as one JSON object.")]
Out = Annotated[Path | None, typer.Option("--out", help="Write the figures to this file too, as JSON.")]


@app.callback(invoke_without_command=True)
def bench(context: typer.Context) -> None:
    """Measure how fast gpuyard is on this machine."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command()
def engine(
    gpus: Annotated[str, typer.Option(help="Sizes of the yards, in GPUs, with commas between them.")] = GPUS,
    events: Annotated[int, typer.Option(min=1000, help="Decisions measured for each size.")] = 20_000,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Time of a decision and lifecycles a second, from small yards to large ones."""
    sizes = _sizes(gpus)
    from gpuyard.cli.bench.engine import run

    figures = run(gpus=sizes, events=events, progress=_say)
    _hand_over(figures, as_json=as_json, out=out)


@app.command()
def journal(
    facts: Annotated[int, typer.Option(min=1, help="Facts in the journal that is recovered.")] = 1_000_000,
    folder: Annotated[Path | None, typer.Option(help="Measure the disk under this folder (default: of /tmp).")] = None,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Durable facts a second, one by one and grouped, and how long recovery takes."""
    from gpuyard.cli.bench.journal import run

    figures = run(records=facts, progress=_say, folder=folder)
    _hand_over(figures, as_json=as_json, out=out)


def _sizes(text: str) -> tuple[int, ...]:
    """The numbers in `200,1600`."""
    try:
        sizes = tuple(int(word) for word in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise typer.BadParameter(f"{text!r} is not a list of GPU counts such as 200,1600", param_hint="'--gpus'")
    if min(sizes) < SMALLEST:
        raise typer.BadParameter(
            f"{min(sizes)} GPUs are too few to measure; take {SMALLEST} or more", param_hint="'--gpus'"
        )
    return sizes


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _hand_over(figures: dict[str, Any], *, as_json: bool, out: Path | None) -> None:
    """Print the figures and perhaps keep them."""
    from msgspec import json

    text = json.format(json.encode(figures), indent=2).decode()
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
    if as_json:
        print(text)
        return
    from rich.console import Console

    Console().print(table(figures))


def table(figures: dict[str, Any]) -> "Table":
    """Figures as a table: one line a figure; where there are several runs, one column a run."""
    from rich.table import Table

    drawn = Table(box=None, header_style="bold", pad_edge=False)
    drawn.add_column("figure")
    runs = figures.get("runs")
    columns = runs if isinstance(runs, list) and runs else [figures]
    for _ in columns:
        drawn.add_column(justify="right")
    names = list(dict.fromkeys(name for column in columns for name in column))
    for name in names:
        drawn.add_row(name, *(_shown(column.get(name)) for column in columns))
    if columns is runs:
        for name, value in figures.items():
            if name != "runs":
                drawn.add_row(name, _shown(value))
    return drawn


def _shown(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}"
