"""Rows are inserted in order, with few statements."""

import sqlite3
from contextlib import closing

import pytest

from gpuyard.system.sqlite_rows import insert_rows


@pytest.mark.parametrize(("count", "statements"), [(0, 0), (1, 1), (3, 2), (17, 2), (127, 7), (128, 1), (300, 5)])
def test_rows_are_inserted_with_few_statements(count: int, statements: int) -> None:
    said = list[str]()
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.execute("CREATE TABLE numbers (number INTEGER PRIMARY KEY, text TEXT)")
        database.set_trace_callback(said.append)
        rows = [(number, f"n{number}") for number in range(count)]
        insert_rows(database, "INSERT INTO numbers VALUES", rows)
        assert len(said) == statements
        assert database.execute("SELECT * FROM numbers ORDER BY number").fetchall() == rows
