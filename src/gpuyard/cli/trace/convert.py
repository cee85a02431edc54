"""`gpuyard trace convert`: a native trace as a file of jobs for `gpuyard simulate --trace`."""

import sys
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class TraceName(StrEnum):
    """Native formats; `gpuyard.simulator.workloads.converters` has one file for each."""

    HELIOS = "helios"
    PHILLY = "philly"
    PAI = "pai"
    ACME = "acme"


def convert(
    kind: Annotated[TraceName, typer.Argument(metavar="helios|philly|pai|acme", help="Format of the native trace.")],
    source: Annotated[Path, typer.Argument(metavar="IN", help="cluster_log.csv of Helios; cluster_job_log or philly.csv of Philly; for pai the folder with pai_task_table.csv and pai_job_table.csv, or a table of its simulator; trace_seren.csv or trace_kalos.csv of Acme.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="CSV file of jobs to write, compressed if the name ends in .gz.")],
    begin: Annotated[str | None, typer.Option("--from", metavar="DATE", help="Keep jobs submitted from this date on, which is second 0 (default: the first job is); for pai a time since its beginning, such as 14d.")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="DATE", help="Keep jobs submitted before this date.")] = None,
    rename_vc: Annotated[str | None, typer.Option("--rename-vc", metavar="OLD=NEW,…", help="Virtual clusters that are part of others.")] = None,
) -> None:  # fmt: skip
    """Convert a native trace of a public GPU cluster; docs/manual/traces.md has the addresses of the originals."""
    from gpuyard.simulator.comparison import convert_trace

    if not target.parent.is_dir() or target.is_dir():
        raise WrongInput(f"Cannot write {target}; use a file in a folder that exists.")
    if source.resolve() == target.resolve():
        raise WrongInput("IN and OUT are the same file.")
    renamed = renames(rename_vc)
    with _counted() as counted:
        found = convert_trace(
            kind.value, source, target, begin=begin, end=end, rename_vc=renamed, progress=counted
        )  # fmt: skip
    for why, count in found.omitted.items():
        print(f"{count:,} {why}.", file=sys.stderr)
    demand = f", which request {found.gpu_seconds / found.seconds:,.0f} GPUs on average" if found.seconds else ""
    print(f"Written: {target}, {found.jobs:,} jobs of {found.seconds / 86400:,.1f} days{demand}.", file=sys.stderr)


def renames(text: str | None) -> dict[str, str]:
    """Parse `OLD=NEW,…`."""
    found: dict[str, str] = {}
    for one in filter(None, (text or "").split(",")):
        old, _, new = one.strip().partition("=")
        if not old or not new:
            raise WrongInput(f"--rename-vc is {text!r}; it must be OLD=NEW,…, such as vcbIW=vcvGl.")
        found[old] = new
    return found


@contextmanager
def _counted() -> "Iterator[Callable[[int], None]]":
    """Show the number of jobs read so far; only on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.completed:,.0f} jobs read"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task("", total=None)
        yield lambda count: bar.update(row, completed=count)
