"""What the terminal can show: its width, colors, moving the cursor. Text is measured in cells: Chinese takes two."""

import os
import shutil
import sys
from typing import NamedTuple, TextIO
from unicodedata import combining, east_asian_width

COLORS = {"green": "32", "yellow": "33", "cyan": "36", "red": "31", "dim": "2", "bold": "1", "blue": "34", "magenta": "35"}  # fmt: skip


class Screen(NamedTuple):
    """What is known of the output."""

    width: int | None
    """In cells; None: it is not a terminal, so nothing is cut off."""
    height: int
    colors: bool
    moves: bool
    """Whether the cursor can be moved, so that lines can be written over."""

    def paint(self, text: str, color: str | None) -> str:
        """Return text in a color, where colors are shown."""
        return f"\x1b[{COLORS[color]}m{text}\x1b[0m" if color and self.colors and text else text


def screen_of(stream: TextIO | None = None) -> Screen:
    """Return what a stream can show. TERM=dumb has no colors and does not move; NO_COLOR turns colors off."""
    stream = stream or sys.stdout
    if not stream.isatty():
        return Screen(None, 0, colors=False, moves=False)
    size = shutil.get_terminal_size()
    dumb = os.environ.get("TERM", "") in {"", "dumb", "unknown"}
    return Screen(max(size.columns, 1), max(size.lines, 1), not dumb and not os.environ.get("NO_COLOR"), not dumb)


def cells(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def cut(text: str, width: int) -> str:
    """Return the beginning of a text that fits, with … where something is missing."""
    if cells(text) <= width:
        return text
    kept, taken = [], 1
    for letter in text:
        taken += cells(letter)
        if taken > width:
            break
        kept.append(letter)
    return ("".join(kept) + "…") if width > 0 else ""


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return a text filled with blanks to a width."""
    blanks = " " * max(0, width - cells(text))
    return blanks + text if right else text + blanks
