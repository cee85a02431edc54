"""`gpuyard trace nodes`: the nodes of the virtual clusters of Helios for `gpuyard simulate --nodes`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpuyard.cli.trace.convert import renames
from gpuyard.core.domain.errors import WrongInput


def nodes(
    source: Annotated[Path, typer.Argument(metavar="IN", help="cluster_gpu_number.csv of Helios.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="CSV file of nodes to write.")],
    date: Annotated[str, typer.Option("--date", metavar="DATE", help="The day whose nodes are meant.")],
    rename_vc: Annotated[
        str | None,
        typer.Option(
            "--rename-vc", metavar="OLD=NEW,…", help="As for gpuyard trace convert: OLD has no nodes of its own."
        ),
    ] = None,
) -> None:
    """Write the number of nodes of every virtual cluster of Helios on a day."""
    from gpuyard.simulator.workloads.converters.convert import convert_nodes

    try:
        found = convert_nodes(source, target, date, renames(rename_vc))
    except OSError as error:
        raise WrongInput(f"{target} cannot be written: {error.strerror}.") from None
    print(
        f"Written: {target}, {sum(found.values()):,} nodes of {len(found)} virtual clusters on {date}.", file=sys.stderr
    )
