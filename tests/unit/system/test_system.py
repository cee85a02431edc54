"""Helpers around the operating system."""

import os
import stat
from pathlib import Path

import pytest

from gpuyard.system.backoff import Backoff
from gpuyard.system.files import replace_file, replacing
from gpuyard.system.locks import take_lock


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_file_is_replaced_as_a_whole_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "note"
    path.write_text("old")
    path.chmod(0o644)
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(tmp_path) == ["note"]


@pytest.mark.parametrize("durable", [True, False])
def test_an_error_during_a_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "note"
    path.write_text("old")

    def fails() -> None:
        with replacing(path, durable=durable) as new:
            new.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["note"]


def test_a_file_left_by_a_killed_process_is_in_no_ones_way(tmp_path: Path) -> None:
    (tmp_path / "note.new").write_text("of a process that was killed")
    replace_file(tmp_path / "note", b"new", durable=False)
    assert names(tmp_path) == ["note"]


def test_a_lock_is_taken_once_and_released_by_closing(tmp_path: Path) -> None:
    descriptor = take_lock(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        take_lock(tmp_path / "lock")
    os.close(descriptor)
    os.close(take_lock(tmp_path / "lock"))


def test_back_off_grows_to_a_limit_and_restarts() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next() == 0.5
