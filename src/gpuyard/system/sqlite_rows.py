"""Insert many rows into SQLite with few statements: from some dozen rows on this takes half of the time."""

import sqlite3
from collections.abc import Sequence
from itertools import chain

_MOST = 128
"""Rows in one statement. Smaller groups are powers of two, so that few different statements are compiled."""


def insert_rows(connection: sqlite3.Connection, insert: str, rows: Sequence[Sequence[object]]) -> None:
    """Insert rows of equal length; `insert` is the statement up to VALUES."""
    first = 0
    while first < len(rows):
        count = min(_MOST, 1 << ((len(rows) - first).bit_length() - 1))
        group = rows[first : first + count]
        one = f"({', '.join('?' * len(group[0]))})"
        connection.execute(f"{insert} {', '.join([one] * count)}", list(chain.from_iterable(group)))
        first += count
