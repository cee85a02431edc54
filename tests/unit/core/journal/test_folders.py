"""Folders are made private, and refused where another user could replace them."""

import os
from pathlib import Path

import pytest

from gpuyard.core.domain.events import TaskHeld
from gpuyard.core.domain.values import TaskId
from gpuyard.core.journal.folders import FolderNotSafe, closed_folder
from gpuyard.core.journal.records import JournalEntry, Snapshot
from gpuyard.core.journal.stores.sqlite import SqliteJournal

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
NOBODY = 65534


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def close(folder: Path) -> str:
    return closed_folder(folder, "data folder", "storage.data_dir")


def test_a_new_folder_is_private(tmp_path: Path) -> None:
    assert not close(tmp_path / "a" / "b")
    assert mode_of(tmp_path / "a" / "b") == 0o700


def test_an_existing_folder_is_made_private_and_that_is_reported(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    assert "0755" in close(tmp_path / "data")
    assert mode_of(tmp_path / "data") == 0o700
    assert not close(tmp_path / "data")


def test_a_folder_writable_by_others_is_made_private_only_while_it_is_empty(tmp_path: Path) -> None:
    for name in ("empty", "full"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    (tmp_path / "full" / "planted").touch()
    close(tmp_path / "empty")
    with pytest.raises(FolderNotSafe, match="so its files may be theirs"):
        close(tmp_path / "full")


@as_root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    os.chown(tmp_path / "data", NOBODY, NOBODY)
    with pytest.raises(FolderNotSafe, match=r"belongs to another user .* Set storage.data_dir"):
        close(tmp_path / "data")


@as_root
def test_a_folder_below_one_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs" / "data").mkdir(parents=True)
    os.chown(tmp_path / "theirs", NOBODY, NOBODY)
    with pytest.raises(FolderNotSafe, match=r"its parent .*theirs belongs to another user"):
        close(tmp_path / "theirs" / "data")


@as_root
def test_a_link_in_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "data").symlink_to(tmp_path / "mine")
    os.chown(tmp_path / "theirs", NOBODY, NOBODY)
    with pytest.raises(FolderNotSafe, match="theirs belongs to another user"):
        close(tmp_path / "theirs" / "data")


def test_a_parent_that_others_can_write_to_is_refused_unless_it_is_sticky(tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    (open_folder / "data").mkdir(parents=True)
    open_folder.chmod(0o777)
    with pytest.raises(FolderNotSafe, match="is writable by other users"):
        close(open_folder / "data")
    open_folder.chmod(0o1777)
    close(open_folder / "data")


@as_root
def test_a_parent_that_a_group_of_several_can_write_to_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "data").mkdir(parents=True)
    shared.chmod(0o775)
    close(shared / "data")  # root's own group
    os.chown(shared, 0, 100)
    with pytest.raises(FolderNotSafe, match="is writable by the group"):
        close(shared / "data")


def test_a_folder_that_is_refused_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(FolderNotSafe, match="is writable by other users"):
        close(tmp_path / "open" / "a" / "data")
    assert list((tmp_path / "open").iterdir()) == []


@as_root
def test_a_folder_behind_a_link_that_is_refused_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", NOBODY, NOBODY)
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with pytest.raises(FolderNotSafe, match="theirs belongs to another user"):
        close(tmp_path / "link" / "data")
    assert list((tmp_path / "theirs").iterdir()) == []


def test_parents_that_are_created_are_writable_for_no_other_user_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        close(tmp_path / "a" / "b" / "data")
    finally:
        os.umask(before)
    assert [mode_of(tmp_path / path) for path in ("a", "a/b", "a/b/data")] == [0o755, 0o755, 0o700]


def test_every_file_of_a_journal_is_private_even_of_an_older_public_one(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir(mode=0o755)
    before = os.umask(0o000)
    try:
        journal = SqliteJournal.open(folder)
        head = journal.append([JournalEntry(1.0, TaskHeld(TaskId(1)))])
        journal.save_snapshot(Snapshot(head, {}))
        assert {path.name: oct(mode_of(path)) for path in folder.iterdir() if mode_of(path) & 0o077} == {}
        assert mode_of(folder) == 0o700
        journal.close()
    finally:
        os.umask(before)
    for path in folder.iterdir():
        path.chmod(0o644)
    SqliteJournal.open(folder).close()
    assert [path.name for path in folder.iterdir() if mode_of(path) & 0o077] == []
