"""`gpuyard journal copy`: a cluster, or a journal alone, from a folder or a database to another one, checked by hash."""

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from gpuyard.cli.input.options import json_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuyard.core.journal.copying import Progress
    from gpuyard.live.control_plane.stores.cluster_copying import ClusterCopy

_LINE_SECONDS = 10.0
"""Without a terminal, progress is a line as often as this."""


def copy(
    source: Annotated[str, typer.Option("--from", metavar="FOLDER|URL", help="Data folder of a stopped cluster, folder of a journal, or postgresql://USER@HOST/DATABASE?schema=NAME.")],
    target: Annotated[str, typer.Option("--to", metavar="FOLDER|URL", help="Empty or new folder, data folder of a scheduler that had its journal in a database, or a schema of a database that contains no journal.")],
    journal_only: Annotated[bool, typer.Option("--journal-only", help="Copy the journal without users, tokens, secrets and documents, into the folder itself.")] = False,
    secrets_key: Annotated[Path | None, typer.Option("--secrets-key", metavar="FILE", help="File with the key of the secrets in the database, unless GPUYARD_SECRETS_KEY is set; default: secrets_key in the data folder, which is created for a new database.")] = None,
    as_json: Annotated[bool, json_option("Print what was copied as JSON.")] = False,
) -> None:  # fmt: skip
    """Copy a cluster, its journal with users, tokens, secrets and documents, to a folder or a PostgreSQL database.

    The journal is checked by hash. A source that is only a journal is copied as one.
    """
    from gpuyard.cli.output.printing import print_json
    from gpuyard.live.control_plane.stores.cluster_copying import copy_cluster

    with _shown() as progress:
        copied = copy_cluster(source, target, progress, journal_only=journal_only, key_file=secrets_key)
    if as_json:
        stores = copied.stores._asdict() if copied.stores else {}
        print_json({**msgspec.to_builtins(copied.journal), **stores})
        return
    typer.echo(_sentences(copied))


def _sentences(copied: "ClusterCopy") -> str:
    from gpuyard.cli.output.printing import counted

    journal, stores = copied.journal, copied.stores
    begins = f", beginning after event {journal.after:,}" if journal.after else ""
    said = (
        f"Copied {journal.events:,} events{begins} and {journal.snapshots} snapshots. The copy ends at event "
        f"{journal.head.seq:,} with hash {journal.head.hash}, like its source."
    )
    if stores is not None:
        said += (
            f"\nCopied {counted(stores.users, 'user')}, {counted(stores.tokens, 'token')}, the secrets of "
            f"{counted(stores.secrets, 'task')} and {counted(stores.documents, 'document')}."
        )
    if copied.key:
        said += f"\nThe secrets are encrypted with the key in {copied.key}. All schedulers of the database need it."
    return said


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
