"""`gpuyard predictions`: how right a yard's predictions were, and which model makes them."""

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client

NAMES = ("PREDICTED", "TASKS", "MEDIAN ERROR", "MEAN ERROR", "IN THE BAND")


def predictions(as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None) -> None:
    """Show how right predictions were over the tasks that ended last, and which model makes them."""
    cluster = client(server, token)
    told = cluster.predictions()
    from gpuyard.cli.output.printing import print_answer, print_table

    if as_json:
        print_answer(cluster)
        return
    if not told.enabled:
        typer.echo("This yard predicts nothing (prediction.enabled is false).")
        return
    rows = (
        (one.about, one.tasks, *(_part(value) for value in (one.median_ape, one.mape, one.band_coverage)))
        for one in told.scores
    )
    print_table(NAMES, rows, right=NAMES[1:])
    if told.model is not None:
        file = told.model.file or "the one that ships"
        typer.echo(f"\nModel: {file}. {told.model.why}")
        if told.model.refused_why:
            typer.echo(f"Files that were not taken: {told.model.refused}. The last one: {told.model.refused_why}")


def _part(value: float | None) -> str | None:
    return None if value is None else f"{value:.1%}"
