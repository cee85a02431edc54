"""`gpuyard trace`: native traces of public GPU clusters. One file per command."""

import typer

from gpuyard.cli.input.suggestions import CommandGroup
from gpuyard.cli.trace.convert import convert
from gpuyard.cli.trace.nodes import nodes

app = typer.Typer(cls=CommandGroup, rich_markup_mode=None)
app.command()(convert)
app.command()(nodes)


@app.callback(invoke_without_command=True)
def trace(context: typer.Context) -> None:
    """Convert native traces of public GPU clusters for the simulator."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)
