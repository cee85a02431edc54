"""Commands that print lists: a table, or with `--json` the scheduler's own answer."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client, is_for_subcommand
from gpuyard.cli.input.suggestions import CommandGroup

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client


class Listing(NamedTuple):
    """A table: column names, rows, and the columns that are aligned right."""

    names: Sequence[str]
    rows: Iterable[Sequence[object]]
    right: Sequence[str] = ()


Look: TypeAlias = "Callable[[Client], Listing]"
"""Queries the scheduler once; its name and docstring become those of the command."""


def list_command(look: Look) -> Callable[..., None]:
    """Return a command that prints the list."""

    def called(as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None) -> None:
        _show(look, as_json=as_json, server=server, token=token)

    called.__name__, called.__doc__ = look.__name__, look.__doc__
    return called


def group(look: Look) -> typer.Typer:
    """Return a group of commands that prints the list when called without a subcommand."""
    app = typer.Typer(cls=CommandGroup, rich_markup_mode=None)

    def called(
        context: typer.Context, as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None
    ) -> None:
        if not is_for_subcommand(context, as_json, server, token):
            _show(look, as_json=as_json, server=server, token=token)

    called.__name__, called.__doc__ = look.__name__, look.__doc__
    app.callback(invoke_without_command=True)(called)
    return app


def _show(look: Look, *, as_json: bool, server: str | None, token: str | None) -> None:
    cluster = client(server, token)
    listing = look(cluster)
    from gpuyard.cli.output.printing import print_answer, print_table

    if as_json:
        print_answer(cluster)
    else:
        print_table(listing.names, listing.rows, right=listing.right)
