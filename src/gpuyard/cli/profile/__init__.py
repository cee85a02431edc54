"""`gpuyard profile`: measure models and commands on the GPU of this machine. One file per command."""

import typer

from gpuyard.cli.input.suggestions import CommandGroup
from gpuyard.cli.profile.calibrate import calibrate
from gpuyard.cli.profile.command import command
from gpuyard.cli.profile.run import run

app = typer.Typer(cls=CommandGroup, rich_markup_mode=None)
app.command()(run)
app.command()(calibrate)
app.command(context_settings={"allow_interspersed_args": False})(command)


@app.callback(invoke_without_command=True)
def profile(context: typer.Context) -> None:
    """Measure models, commands and the peak performance of the GPU of this machine."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)
