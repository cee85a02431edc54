"""`gpuyard quota`: the split of the cluster between online and batch tasks."""

from typing import Annotated

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client, finite

NAMES = ("CLASS", "PART", "QUOTA", "USED", "AVAILABLE")


def quota(
    online: Annotated[
        float | None,
        typer.Option(
            "--online",
            callback=finite,
            metavar="PART",
            min=0,
            max=1,
            help="Part of the GPUs for online tasks, such as 0.6.",
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            metavar="strict|borrow|none",
            help="Whether one class may use idle GPUs of the other; none: no split.",
        ),
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Show or change how GPUs are split between online and batch tasks."""
    cluster = client(server, token)
    known = cluster.quota() if online is None else None
    if online is not None or mode is not None:
        part = known.online_percent if known else online
        assert part is not None
        known = cluster.set_quota(part, mode=mode)
    assert known is not None
    from gpuyard.cli.output.printing import print_answer, print_table

    if as_json:
        print_answer(cluster)
        return
    rows = (
        (
            name,
            "–" if known.mode == "none" else f"{part:.0%}",
            of_class.quota,
            f"{of_class.used:g}",
            f"{of_class.available:g}",
        )
        for name, part, of_class in (
            ("online", known.online_percent, known.online),
            ("batch", known.batch_percent, known.batch),
        )
    )
    print_table(NAMES, rows, right=NAMES[1:])
    gpus = f"{known.total_gpus} GPU{'' if known.total_gpus == 1 else 's'}"
    typer.echo(f"{gpus}, no split." if known.mode == "none" else f"{gpus}, {known.mode}.")
