"""`gpuyard journal copy`: a journal from a folder or a database to another one, checked by hash."""

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import json_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuyard.core.journal.copying import Progress

_LINE_SECONDS = 10.0
"""Without a terminal, progress is a line as often as this."""


def copy(
    source: Annotated[str, typer.Option("--from", metavar="FOLDER|URL", help="Folder of a journal, data folder of a stopped cluster, or postgresql://USER@HOST/DATABASE?schema=NAME.")],
    target: Annotated[str, typer.Option("--to", metavar="FOLDER|URL", help="Empty or new folder, or a schema of a database that contains no journal.")],
    as_json: Annotated[bool, json_option("Print what was copied as JSON.")] = False,
) -> None:  # fmt: skip
    """Copy a journal, events and snapshots, to a folder or a PostgreSQL database, and check the copy by hash."""
    from gpuyard.core.journal.copying import copy_journal

    with _shown() as progress:
        copied = copy_journal(source, target, progress)
    if as_json:
        from gpuyard.cli.output.printing import print_json

        print_json(copied)
        return
    begins = f", beginning after event {copied.after:,}" if copied.after else ""
    typer.echo(
        f"Copied {copied.events:,} events{begins} and {copied.snapshots} snapshots. The copy ends at event "
        f"{copied.head.seq:,} with hash {copied.head.hash}, like its source."
    )


@contextmanager
def _shown() -> "Iterator[Progress]":
    """Show the progress on standard error: a bar on a terminal, otherwise a line now and then."""
    if not sys.stderr.isatty():
        last = time.monotonic()

        def tell(doing: str, done: int, total: int) -> None:
            nonlocal last
            if time.monotonic() - last >= _LINE_SECONDS:
                last = time.monotonic()
                print(f"gpuyard: {done:,} of {total:,} events {doing}", file=sys.stderr, flush=True)

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.completed:,.0f} events {task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task("copied", total=None)
        yield lambda doing, done, total: bar.update(row, description=doing, completed=done, total=total)
