"""A table that fits the terminal: wide columns shrink, then the less important ones are left out.

In a pipe every column is complete.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuyard.cli.output.screen import Screen, cells, cut, padded

GAP = 2


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column and how it behaves in a narrow terminal."""

    name: str
    right: bool = False
    least: int | None = None
    """May shrink to so many cells; None: it does not shrink."""
    rank: int = 0
    """Columns with the highest rank are left out first; those with rank 0 never."""


def table_lines(
    columns: Sequence[TableColumn],
    rows: Sequence[Sequence[str]],
    screen: Screen,
    colors: Sequence[Sequence[str | None]] | None = None,
) -> list[str]:
    """Return the lines of a table. `colors` has a color or None for every cell."""
    widths = [max([cells(column.name), *(cells(row[place]) for row in rows)]) for place, column in enumerate(columns)]
    shown = list(range(len(columns)))
    if screen.width is not None:
        shown = _that_fit(columns, widths, screen.width)
        _shrink(columns, widths, shown, screen.width)
    lines = [_line([columns[place].name for place in shown], ["bold"] * len(shown), columns, widths, shown, screen)]
    for number, row in enumerate(rows):
        painted = colors[number] if colors else [None] * len(columns)
        lines.append(
            _line([row[place] for place in shown], [painted[place] for place in shown], columns, widths, shown, screen)
        )
    return lines


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[place] for place in shown) + GAP * max(0, len(shown) - 1)


def _that_fit(columns: Sequence[TableColumn], widths: Sequence[int], width: int) -> list[int]:
    """Leave out columns until the others fit when they are shrunk."""
    shown = list(range(len(columns)))
    small = [
        each if column.least is None else min(each, column.least) for column, each in zip(columns, widths, strict=True)
    ]
    while _total(small, shown) > width:
        rank = max((columns[place].rank for place in shown), default=0)
        if rank == 0:
            break
        shown.remove(max(place for place in shown if columns[place].rank == rank))
    return shown


def _shrink(columns: Sequence[TableColumn], widths: list[int], shown: Sequence[int], width: int) -> None:
    """Take cells from the widest column that may shrink, until the table fits."""
    for hard in (False, True):  # the second time whatever it takes: the terminal is very narrow
        while _total(widths, shown) > width:
            able = [
                place for place in shown if widths[place] > ((columns[place].least or widths[place]) if not hard else 3)
            ]
            if not able:
                break
            widest = max(able, key=lambda place: widths[place])
            widths[widest] -= 1


def _line(
    texts: Sequence[str],
    colors: Sequence[str | None],
    columns: Sequence[TableColumn],
    widths: Sequence[int],
    shown: Sequence[int],
    screen: Screen,
) -> str:
    parts = []
    for place, text, color in zip(shown, texts, colors, strict=True):
        fitting = cut(text, widths[place])
        blanks = padded("", widths[place] - cells(fitting))
        painted = screen.paint(fitting, color)
        parts.append(blanks + painted if columns[place].right else painted + blanks)
    line = (" " * GAP).join(parts).rstrip()
    return line if screen.width is None or screen.colors else cut(line, screen.width)
