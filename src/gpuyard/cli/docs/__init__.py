"""`gpuyard docs`: writes the parts of the manual that are made from the code. A test fails when they are out of date."""

from pathlib import Path
from typing import Annotated

import typer


def docs(out: Annotated[Path, typer.Option(help="Folder the pages are written to; it is made if need be.")]) -> None:
    """Write the pages and drawings of the manual that are made from the code."""
    from gpuyard.cli.docs.pages import pages

    out.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (out / name).write_text(text, encoding="utf-8")
        typer.echo(out / name)
