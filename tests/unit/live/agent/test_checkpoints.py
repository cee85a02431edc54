"""Checkpoint folders on a node: their names, what is reported, and how they are removed."""

import os
import time
from pathlib import Path

import pytest

from gpuyard.core.journal.folders import FolderNotSafe
from gpuyard.live.agent import checkpoints
from gpuyard.live.agent.checkpoints import CheckpointFolders, open_checkpoint_folder
from gpuyard.live.agent.settings import AgentSettings, ExecutorSection


def folders(path: Path, cluster_id: str = "lab") -> CheckpointFolders:
    made = CheckpointFolders(path)
    made.cluster_id = lambda: cluster_id
    return made


def make(of: CheckpointFolders, task: int, submitted_us: int = 5, *files: str) -> Path:
    path = of.path_of(task, submitted_us)
    path.mkdir(parents=True)
    for name in files:
        (path / name).write_text("saved")
    return path


def test_a_folder_belongs_to_one_task_of_one_cluster(tmp_path: Path) -> None:
    lab = folders(tmp_path)
    assert lab.path_of(7, 5) == folders(tmp_path).path_of(7, 5)
    others = {lab.path_of(8, 5), lab.path_of(7, 6), folders(tmp_path, "other/../lab").path_of(7, 5)}
    assert lab.path_of(7, 5) not in others
    assert len(others) == 3
    assert all(tmp_path in path.parents for path in others)


def test_a_report_has_the_folders_of_this_cluster_without_those_of_tasks_that_run_here(tmp_path: Path) -> None:
    lab = folders(tmp_path)
    make(lab, 7, 0xABC, "state")
    make(lab, 2500)
    make(lab, 9)
    make(folders(tmp_path, "another"), 7)
    (tmp_path / "something else").mkdir()
    (lab.path_of(7, 5).parent / "not-a-task").mkdir()
    os.utime(lab.path_of(7, 0xABC), (time.time() - 1000, time.time() - 1000))
    report = lab.report(held={9})
    assert [(it.task, it.submitted_us, it.empty) for it in report] == [(7, 0xABC, False), (2500, 5, True)]
    assert report[0].idle_seconds == pytest.approx(1000, abs=60)
    assert report[1].idle_seconds < 60


def test_a_long_report_is_continued_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "MOST_REPORTED", 2)
    lab = folders(tmp_path)
    for task in (4, 1, 3, 2, 5):
        make(lab, task)
    assert [[it.task for it in lab.report(())] for _ in range(4)] == [[1, 2], [3, 4], [5], [1, 2]]


def test_a_report_without_folders_is_empty(tmp_path: Path) -> None:
    assert folders(tmp_path / "none").report(()) == []


def test_a_removal_removes_one_folder_and_follows_no_link(tmp_path: Path) -> None:
    lab = folders(tmp_path / "checkpoints")
    path, other = make(lab, 7, 5, "state"), make(lab, 7, 6, "state")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    (path / "link").symlink_to(precious)
    (path / "deep").mkdir()
    assert lab.remove(7, 5) == ""
    assert not path.exists()
    assert other.exists()
    assert (precious / "file").exists()
    assert lab.remove(7, 5) == "", "another node has removed it already"
    assert lab.remove(7, 6) == ""
    assert not other.parent.exists()


def test_a_folder_that_is_a_link_is_not_removed(tmp_path: Path) -> None:
    lab = folders(tmp_path / "checkpoints")
    precious = tmp_path / "precious"
    precious.mkdir()
    path = lab.path_of(7, 5)
    path.parent.mkdir(parents=True)
    path.symlink_to(precious)
    assert lab.remove(7, 5)
    assert precious.exists()


def test_other_users_can_pass_through_the_folder_but_not_list_it(tmp_path: Path) -> None:
    open_checkpoint_folder(tmp_path / "a" / "checkpoints")
    assert (tmp_path / "a" / "checkpoints").stat().st_mode & 0o777 == 0o711


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "theirs").mkdir()
    with pytest.raises(FolderNotSafe, match="checkpoint folder"):
        open_checkpoint_folder(shared)


@pytest.mark.parametrize(
    ("uid", "said", "folder"),
    [
        (0, "", "/var/lib/agent-checkpoints"),
        (1000, "", "/var/lib/agent/checkpoints"),
        (0, "/mnt/shared", "/mnt/shared"),
        (1000, "/mnt/shared", "/mnt/shared"),
    ],
)
def test_the_default_is_a_folder_that_the_tasks_can_enter(
    monkeypatch: pytest.MonkeyPatch, uid: int, said: str, folder: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    settings = AgentSettings(executor=ExecutorSection(work_dir="/var/lib/agent", checkpoint_dir=said))
    assert str(settings.checkpoint_dir) == folder
