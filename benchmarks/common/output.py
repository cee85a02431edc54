"""Prints measured figures: JSON or a table on standard output, progress on standard error."""

import json
import sys
from typing import Any


def report_progress(what: str) -> None:
    """Print progress on standard error, so that standard output can be parsed."""
    print(what, file=sys.stderr, flush=True)


def print_figures(figures: dict[str, Any], *, as_json: bool) -> None:
    """Print figures by name, as JSON or as text."""
    print(json.dumps(figures, indent=2) if as_json else "\n\n".join(tables(figures)))


def tables(figures: dict[str, Any]) -> list[str]:
    """Lay figures out as text: the single ones, then for each list of runs a table with a column per run."""
    single = {name: value for name, value in figures.items() if not isinstance(value, list)}
    return [_table([single]), *(_table(value) for value in figures.values() if isinstance(value, list))]


def _table(columns: list[dict[str, Any]]) -> str:
    names = dict.fromkeys(name for column in columns for name in column)
    cells = [[name, *(_shown(column.get(name)) for column in columns)] for name in names]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join([name.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))])
        for name, *rest in cells
    )


def _shown(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}"
