"""`gpuyard predictions`: accuracy of the predictions of a cluster, and the model in use."""

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client

NAMES = ("PREDICTED", "TASKS", "MEDIAN ERROR", "MEAN ERROR", "IN THE RANGE")

SHIPPED = "the one that is shipped with gpuyard"


def predictions(as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None) -> None:
    """Show the accuracy of predictions for recently ended tasks, and the model in use."""
    cluster = client(server, token)
    told = cluster.predictions()
    from gpuyard.cli.output.printing import print_answer, print_table

    if as_json:
        print_answer(cluster)
        return
    if not told.enabled:
        typer.echo("This cluster makes no predictions (prediction.enabled is false).")
        return
    rows = (
        (one.about, one.tasks, *(_part(value) for value in (one.median_ape, one.mape, one.band_coverage)))
        for one in told.scores
    )
    print_table(NAMES, rows, right=NAMES[1:])
    if any(one.tasks and one.median_ape is None for one in told.scores):
        typer.echo("\nErrors are shown once 10 tasks with a prediction have ended.")
    if told.model is not None:
        typer.echo(f"\nModel: {told.model.file}. {told.model.why}" if told.model.file else f"\nModel: {SHIPPED}.")
        if told.model.refused_why:
            typer.echo(f"Rejected files: {told.model.refused}. The last one: {told.model.refused_why}")


def _part(value: float | None) -> str | None:
    return None if value is None else f"{value:.1%}"
