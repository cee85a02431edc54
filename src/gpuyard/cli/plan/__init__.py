"""`gpuyard plan`: workflows of model calls on GPUs, planned for the shortest makespan. One file per command."""

from importlib.util import find_spec

import typer

from gpuyard.cli.input.suggestions import CommandGroup
from gpuyard.cli.plan.check import check
from gpuyard.cli.plan.compare import compare
from gpuyard.cli.plan.draw import draw
from gpuyard.cli.plan.generate import generate
from gpuyard.cli.plan.pareto import pareto
from gpuyard.cli.plan.run import run
from gpuyard.cli.plan.solve import solve
from gpuyard.cli.plan.submit import submit
from gpuyard.core.domain.errors import WrongInput

app = typer.Typer(cls=CommandGroup, rich_markup_mode=None)
app.command()(solve)
app.command()(compare)
app.command()(pareto)
app.command()(check)
app.command()(draw)
app.command()(generate)
app.command()(run)
app.command()(submit)


@app.callback(invoke_without_command=True)
def plan(context: typer.Context) -> None:
    """Plan workflows of model calls on GPUs that have to load and unload models."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)
    if find_spec("numba") is None:
        raise WrongInput("Planning needs numpy and numba: pip install 'gpuyard[plan]'.")
