"""`gpuyard journal`: the record of everything that happened. One file per command."""

import typer

from gpuyard.cli.input.suggestions import CommandGroup
from gpuyard.cli.journal.copy import copy

app = typer.Typer(cls=CommandGroup, rich_markup_mode=None)
app.command()(copy)


@app.callback(invoke_without_command=True)
def journal(context: typer.Context) -> None:
    """Copy a cluster with its journal: the record of everything that happened."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)
