"""`gpuyard help`: the manual page of a command, in a pager."""

import sys
from typing import Annotated

import typer

from gpuyard.cli.input.options import JsonOption
from gpuyard.core.domain.errors import WrongInput


def help_of(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND...", help="A command, such as submit or nodes drain.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the manual page of a command, in a pager at a terminal."""
    from gpuyard.cli.shell.command_table import command_path, command_table
    from gpuyard.cli.shell.man_pages import text_page

    asked, table = words or [], command_table()
    path = command_path(asked, table)
    if path != " ".join(["gpuyard", *asked]):
        from difflib import get_close_matches

        known = [name.removeprefix("gpuyard ") for name in table if name != "gpuyard"]
        near = get_close_matches(" ".join(asked), known, n=1)
        hint = f"did you mean 'gpuyard help {near[0]}'?" if near else "'gpuyard --help' lists them."
        raise WrongInput(f"There is no command {' '.join(asked)!r}; {hint}")
    if as_json:
        from gpuyard.cli.output.printing import print_json

        print_json({"command": path, **table[path]})
        return
    if not sys.stdout.isatty():
        sys.stdout.write(text_page(path, table))
        return
    import shutil

    width = max(40, min(shutil.get_terminal_size().columns, 100))
    from pydoc import pager

    pager(text_page(path, table, width=width))
