"""`gpuyard train`: train predictors and policies, and evaluate predictors. One file per command."""

import typer

from gpuyard.cli.input.repeated_options import MultiValueCommand
from gpuyard.cli.input.suggestions import CommandGroup
from gpuyard.cli.train.evaluate import evaluate
from gpuyard.cli.train.policy import policy
from gpuyard.cli.train.predictor import predictor
from gpuyard.cli.train.serving import serving

app = typer.Typer(cls=CommandGroup, rich_markup_mode=None)
app.command(cls=MultiValueCommand)(predictor)
app.command(cls=MultiValueCommand)(evaluate)
app.command(cls=MultiValueCommand)(serving)
app.command(cls=MultiValueCommand)(policy)


@app.callback(invoke_without_command=True)
def train(context: typer.Context) -> None:
    """Train and evaluate predictors of run time and memory, and train the advisor of a policy."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)
