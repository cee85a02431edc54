"""How a write-ahead log ends."""

import sqlite3
from pathlib import Path

import pytest

from gpuyard.core.journal.stores.wal import path_of, torn_bytes


def log_of(tmp_path: Path, commits: int, *, rewritten: bool = False) -> bytes:
    """The log of a database after some commits of a page each; rewritten: over an older, longer log."""
    database = tmp_path / "database"
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("PRAGMA page_size=512")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE numbers (number INTEGER)")
    if rewritten:
        for number in range(10):
            connection.execute("INSERT INTO numbers VALUES (?)", (number,))
    connection.execute("PRAGMA wal_checkpoint(RESTART)")
    for number in range(commits):
        connection.execute("INSERT INTO numbers VALUES (?)", (number,))
    log = path_of(database).read_bytes()
    connection.close()
    return log


def torn(tmp_path: Path, log: bytes) -> int:
    (tmp_path / "log").write_bytes(log)
    return torn_bytes(tmp_path / "log")


FRAME = 24 + 512
HEADER = 32


def test_a_missing_log_is_not_torn(tmp_path: Path) -> None:
    assert torn_bytes(tmp_path / "log") == 0


def test_a_complete_log_is_not_torn(tmp_path: Path) -> None:
    log = log_of(tmp_path, commits=3)[: HEADER + 3 * FRAME]

    assert torn(tmp_path, log) == 0


def test_old_frames_after_a_rewritten_log_are_no_torn_tail(tmp_path: Path) -> None:
    log = log_of(tmp_path, commits=3, rewritten=True)

    assert len(log) > HEADER + 3 * FRAME
    assert torn(tmp_path, log) == 0


@pytest.mark.parametrize("length", [1, 23, 24, 100, FRAME - 1])
def test_part_of_a_frame_is_a_torn_tail(tmp_path: Path, length: int) -> None:
    log = log_of(tmp_path, commits=3)

    assert torn(tmp_path, log[: HEADER + 2 * FRAME + length]) == length


def test_a_frame_whose_page_was_not_written_is_a_torn_tail(tmp_path: Path) -> None:
    log = log_of(tmp_path, commits=3)[: HEADER + 3 * FRAME]

    assert torn(tmp_path, log[:-512] + bytes(512)) == FRAME
    assert torn(tmp_path, log[:-FRAME] + bytes(FRAME)) == FRAME


@pytest.mark.parametrize("header", [b"", b"half a header", bytes(HEADER)])
def test_a_log_without_its_header_is_torn_from_the_beginning(tmp_path: Path, header: bytes) -> None:
    assert torn(tmp_path, header) == len(header)
