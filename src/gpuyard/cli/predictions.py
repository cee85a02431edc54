"""`gpuyard predictions`: how right a yard's predictions were, and which model makes them."""

import typer

from gpuyard.cli.input.options import Json, Server, Token, client

NAMES = ("PREDICTED", "TASKS", "MEDIAN ERROR", "MEAN ERROR", "IN THE BAND")


def predictions(as_json: Json = False, server: Server = None, token: Token = None) -> None:
    """Show how right predictions were over the tasks that ended last, and which model makes them."""
    yard = client(server, token)
    told = yard.predictions()
    from gpuyard.cli.output.printing import print_answer, print_table

    if as_json:
        print_answer(yard)
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
