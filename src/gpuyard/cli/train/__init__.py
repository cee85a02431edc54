"""`gpuyard train`: learn from what was measured, and say how right that is. A verb a file."""

import typer

from gpuyard.cli.input.repeated_options import ManyWords
from gpuyard.cli.input.suggestions import Verbs
from gpuyard.cli.train.evaluate import evaluate
from gpuyard.cli.train.policy import policy
from gpuyard.cli.train.predictor import predictor

app = typer.Typer(cls=Verbs, rich_markup_mode=None)
app.command(cls=ManyWords)(predictor)
app.command(cls=ManyWords)(evaluate)
app.command(cls=ManyWords)(policy)


@app.callback(invoke_without_command=True)
def train(context: typer.Context) -> None:
    """Learn how long tasks take and how much memory they need, see how right that is, and learn to decide better."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)
