"""Print answers: JSON as the scheduler sent it, or a table. In a pipe a table is plain text, without rich."""

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from gpuyard.cli.output.screen import cells, padded, screen_of

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client

COLORS = {
    "running": "green",
    "online": "green",
    "idle": "green",
    "pending": "yellow",
    "suspended": "yellow",
    "cordoned": "yellow",
    "draining": "yellow",
    "external": "yellow",
    "busy": "cyan",
    "failed": "red",
    "timeout": "red",
    "offline": "red",
    "cancelled": "dim",
}

WRAPPED = frozenset({"REASON", "NOTE"})
"""Columns whose text is wrapped on a narrow terminal."""
SHORT, LONG = 12, 32
"""Columns are not narrowed below the first and never wider than the second, in characters."""


def print_json(answer: object) -> None:
    """Print the answer as the API encodes it, on one line."""
    _write_json(msgspec.json.encode(answer).decode())


def print_answer(cluster: "Client") -> None:
    """Print the last answer of the scheduler unchanged; at a terminal, control characters are escaped."""
    _write_json(cluster.connection.last_answer.decode())


def print_lines(text: str) -> None:
    """Print lines of text unchanged; at a terminal, control characters are replaced."""
    if sys.stdout.isatty():
        text = "".join(f"{one_line(line)}\n" for line in text.splitlines())
    sys.stdout.write(text)


def _write_json(text: str) -> None:
    if sys.stdout.isatty() and not text.isprintable():
        import json

        text = "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)
    sys.stdout.write(text + "\n")


def report(cluster: "Client", sentence: str, *, as_json: bool) -> None:
    """Print what was done: a sentence, or with `as_json` the scheduler's answer."""
    if as_json:
        print_answer(cluster)
    else:
        from gpuyard.cli.shell.messages import localized

        sys.stdout.write(f"{localized(sentence)}\n")


def print_table(names: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Print rows below their column names. On a terminal the table fits the width; in a pipe nothing is truncated."""
    texts = [[_shown(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        _print_plain(names, texts, right)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column, name in enumerate(names):
        longest = max(cells(name), *(cells(row[column]) for row in texts), 0)
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name not in WRAPPED,
            overflow="ellipsis",
            min_width=min(longest, SHORT),
            max_width=None if name in WRAPPED else LONG,
        )
    for row in texts:
        table.add_row(*(Text(cell, style=COLORS.get(cell, "")) for cell in row))
    Console(no_color=not screen_of().colors).print(table)


def _print_plain(names: Sequence[str], rows: list[list[str]], right: Sequence[str]) -> None:
    lines = [list(names), *rows]
    widths = [max(cells(line[column]) for line in lines) for column in range(len(names))]
    for line in lines:
        filled = [
            padded(cell, width, right=name in right) for name, cell, width in zip(names, line, widths, strict=True)
        ]
        sys.stdout.write("  ".join(filled).rstrip() + "\n")


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Print one name and value per line; empty values are left out."""
    sys.stdout.write("".join(f"{line}\n" for line in pair_lines(pairs)))


def pair_lines(pairs: Iterable[tuple[str, object]]) -> list[str]:
    """Return a line for each name and value; empty values are left out."""
    shown = [(name, _shown(value)) for name, value in pairs if value not in (None, "", [], {}, False)]
    width = max((len(name) for name, _ in shown), default=0)
    return [f"{name.ljust(width)}  {text}" for name, text in shown]


def _shown(value: object) -> str:
    match value:
        case None | "":
            return "–"
        case True:
            return "yes"
        case float():
            return f"{value:g}"
        case list() | tuple():
            return " ".join(map(one_line, value)) or "–"
        case dict():
            return " ".join(f"{name}={one_line(below)}" for name, below in value.items()) or "–"
    return one_line(value)


def one_line(value: object) -> str:
    """Return untrusted text with control characters and line breaks replaced, which could move the cursor."""
    return "".join(letter if letter.isprintable() else "�" for letter in str(value))


def seconds_since(instant: str | None, until: str | None = None) -> float | None:
    """Return the seconds from an instant until now, or until another instant; None if there is no instant."""
    if instant is None:
        return None
    end = datetime.now(UTC) if until is None else datetime.fromisoformat(until)
    return max(0.0, (end - datetime.fromisoformat(instant)).total_seconds())


def format_seconds(seconds: float | None, *, fine: bool = False) -> str:
    """Return 45s, 12m, 3h10m or 2d4h; with `fine`, one decimal below ten seconds: 0.9s, 2.5s."""
    if seconds is None:
        return ""
    if fine and seconds < 9.95:
        return f"{round(seconds, 1):g}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s" if whole < 600 else f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    hours = whole % 86400 // 3600
    return f"{whole // 86400}d{hours}h" if hours else f"{whole // 86400}d"


def format_instant(instant: str | None) -> str:
    """Return an instant in local time."""
    if instant is None:
        return ""
    there = datetime.fromisoformat(instant).astimezone()
    today = there.date() == datetime.now(UTC).astimezone().date()
    return there.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")


def counted(count: float, word: str) -> str:
    """Return a count with its noun: 1 task, 2 tasks."""
    return f"{count:g} {word}" if count == 1 else f"{count:g} {word}s"


def with_article(word: str) -> str:
    """Return a word with its article: a member, an admin."""
    return f"{'an' if word[:1] in tuple('aeiou') else 'a'} {word}"


def asked_gpus(task: Any) -> str:
    """Return the GPUs that a task requests, for a table cell."""
    if task.gpu_fraction is not None:
        return f"{task.gpu_fraction:g}"
    return f"{task.nodes}×{task.gpu_count}" if task.nodes > 1 else str(task.gpu_count)
