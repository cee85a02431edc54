"""Which files are in a snapshot, with and without git."""

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.live.sdk.snapshots import LARGE_BYTES, TakenSnapshot, take_snapshot
from gpuyard.live.wire import blobs


def manifest_of(snapshot: TakenSnapshot) -> dict[str, blobs.SnapshotFile]:
    return {file.path: file for file in blobs.read_manifest(snapshot.manifest).files}


def test_without_git_what_is_no_code_is_left_out(tmp_path: Path) -> None:
    for name in ("a.py", "sub/b.py", ".venv/lib/c.py", "sub/__pycache__/b.pyc", "wandb/run", "model.pt", ".env"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    snapshot = take_snapshot(tmp_path)
    assert list(manifest_of(snapshot)) == [".env", "a.py", "sub/b.py"]
    assert (snapshot.commit, snapshot.dirty, snapshot.files) == ("", False, 3)


def test_the_same_files_have_the_same_id_and_modes_and_links_count(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.sh").write_text("true")
        (tmp_path / name / "link").symlink_to("run.sh")
        (tmp_path / name / "folder_link").symlink_to("..")
    one, two = take_snapshot(tmp_path / "one"), take_snapshot(tmp_path / "two")
    assert one.id == two.id
    (tmp_path / "two" / "run.sh").chmod(0o755)
    changed = take_snapshot(tmp_path / "two")
    assert changed.id != one.id
    assert changed.contents.keys() == one.contents.keys()
    files = manifest_of(changed)
    assert (files["run.sh"].executable, files["link"].link, files["folder_link"].link) == (True, "run.sh", "..")


def test_a_deleted_file_that_git_tracks_and_pipes_are_left_out(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    for name in ("kept", "gone", "spaced out\t"):
        (tmp_path / name).write_text(name)
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "First"], check=True)
    clean = take_snapshot(tmp_path)
    assert (len(clean.commit), clean.dirty, clean.files) == (40, False, 3)
    (tmp_path / "gone").unlink()
    os.mkfifo(tmp_path / "pipe")
    snapshot = take_snapshot(tmp_path)
    assert list(manifest_of(snapshot)) == ["kept", "spaced out\t"]
    assert (snapshot.commit, snapshot.dirty) == (clean.commit, True)


def test_large_files_are_pointed_out_and_too_many_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(LARGE_BYTES + 1)
    assert take_snapshot(tmp_path).large == [("big", LARGE_BYTES + 1)]
    monkeypatch.setattr("gpuyard.live.sdk.snapshots.MOST_SNAPSHOT_FILES", 1)
    (tmp_path / "small").write_text("")
    with pytest.raises(WrongInput, match=r"has 2 files and 10 MiB; the maximum is 1 files.*big \(10\.0 MiB\), small"):
        take_snapshot(tmp_path)


def test_the_manifest_is_sorted_json(tmp_path: Path) -> None:
    for name in "cab":
        (tmp_path / name).write_text(name)
    told = msgspec.json.decode(take_snapshot(tmp_path).manifest)
    assert [file["path"] for file in told["files"]] == ["a", "b", "c"]
    assert set(told["files"][0]) == {"path", "sha256", "size"}


def test_gpuyardignore_brings_back_what_is_left_out_by_name_without_git(tmp_path: Path) -> None:
    for name in ("a.py", "model.pt", "other.pt", "outputs/x", "data/raw/y", "data/z"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".gpuyardignore").write_text("!model.pt\n!outputs\n/data/raw/\n")
    assert list(manifest_of(take_snapshot(tmp_path))) == [".gpuyardignore", "a.py", "data/z", "model.pt", "outputs/x"]


def test_gpuyardignore_leaves_out_what_git_tracks_also_in_submodules(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"]
    for folder, names in (
        ("lib", ("code.py", "big.bin", "docs/x.md")),
        ("main", ("train.py", "big.bin", "notes/n.md")),
    ):
        for name in names:
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_text(name)
        subprocess.run([*git, "init", "-q"], cwd=tmp_path / folder, check=True)
        subprocess.run([*git, "add", "."], cwd=tmp_path / folder, check=True)
        subprocess.run([*git, "commit", "-qm", "First"], cwd=tmp_path / folder, check=True)
    main = tmp_path / "main"
    subprocess.run([*git, "submodule", "--quiet", "add", str(tmp_path / "lib"), "lib"], cwd=main, check=True)
    (main / ".gpuyardignore").write_text("*.bin\nnotes/\nlib/docs\n.git*\n")
    (main / "new.bin").write_text("new")
    (main / "notes" / "new.md").write_text("new")
    assert list(manifest_of(take_snapshot(main))) == [".gpuyardignore", "lib/code.py", "train.py"]
    (main / ".gpuyardignore").write_text("lib\n")
    assert "lib/code.py" not in manifest_of(take_snapshot(main))
