"""`submit --snapshot` and `run --snapshot`: the code as it was, with a real cluster and the real program."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.live.sdk.snapshots import take_snapshot
from gpuyard.live.wire import blobs
from tests.acceptance.cli_cluster import GPUYARD, CliCluster, running_cluster


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a commit, a new file and an ignored one."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "model.py").write_text("VERSION = 1\n")
    (tmp_path / "train.sh").write_text("#!/bin/sh\ncat pkg/model.py new.txt; ls data 2>&1; echo in $PWD\n")
    (tmp_path / "train.sh").chmod(0o755)
    (tmp_path / ".gitignore").write_text("data\n")
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "First"], check=True)
    (tmp_path / "data").write_text("large")
    (tmp_path / "new.txt").write_text("new\n")
    return tmp_path


def call(place: CliCluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [GPUYARD, *words], env=place.env, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_run_uses_the_code_of_the_repository_and_not_what_it_ignores(place: CliCluster, project: Path) -> None:
    done = call(place, project, "run", "--snapshot", "-q", "--", "./train.sh")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("VERSION = 1\nnew\n")
    assert "No such file" in done.stdout  # data is ignored
    assert str(project) not in done.stdout.rpartition("in ")[2]
    said = rf"gpuyard: snapshot [0-9a-f]{{12}} of {project}: 4 files, [\d.]+ KiB, commit [0-9a-f]{{12}} with changes"
    assert re.search(said, done.stderr), done.stderr


def test_a_task_that_waits_runs_the_code_as_it_was_and_show_names_the_commit(place: CliCluster, project: Path) -> None:
    blocker = place.does("submit", "-g", "4", "--", "sleep", "600").strip()
    task = call(place, project, "submit", "--snapshot", "-g", "4", "--", "./train.sh").stdout.strip()
    (project / "pkg" / "model.py").write_text("VERSION = 2\n")
    place.does("cancel", blocker)
    cluster = place.client()
    ended = cluster.wait(task, timeout=60, check=True)
    assert b"VERSION = 1" in b"".join(cluster.logs(ended))
    head = subprocess.run(["git", "-C", str(project), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert ended.snapshot is not None
    assert (ended.snapshot.commit, ended.snapshot.dirty) == (head.stdout.strip(), True)
    shown = place.does("show", task)
    assert f"{ended.snapshot.manifest[:12]} (commit {head.stdout[:12]} with changes)" in shown


def test_a_sweep_takes_one_snapshot_and_only_new_files_are_sent(place: CliCluster, project: Path) -> None:
    words = ("submit", "--snapshot", "--sweep", "n=1,2", "--", "sh", "-c", "echo {n}; cat pkg/model.py")
    ids = call(place, project, *words).stdout.split()
    cluster = place.client()
    tasks = cluster.wait(ids, timeout=60, check=True)
    manifests = {task.snapshot.manifest for task in tasks if task.snapshot is not None}
    assert (len(tasks), len(manifests)) == (2, 1)
    snapshot = take_snapshot(project)
    (project / "pkg" / "model.py").write_text("VERSION = 3\n")
    changed = take_snapshot(project)
    body = {"blobs": list(changed.contents)}
    answer = cluster.connection.ask("POST", "/api/v1/blobs:missing", blobs.MissingAnswer, body=body)
    assert answer.missing == [name for name in changed.contents if name not in snapshot.contents]


def test_a_dry_run_stores_nothing(place: CliCluster, project: Path) -> None:
    (project / "new.txt").write_text("only for the dry run\n")
    done = call(place, project, "submit", "--snapshot", "--dry-run", "--", "true")
    assert done.returncode == 0, done.stderr
    body = {"blobs": list(take_snapshot(project).contents)}
    answer = place.client().connection.ask("POST", "/api/v1/blobs:missing", blobs.MissingAnswer, body=body)
    assert answer.missing


def test_bad_folders_are_refused_with_one_sentence(place: CliCluster, tmp_path: Path) -> None:
    gone = call(place, tmp_path, "submit", "--snapshot", "-C", "/no/such/folder", "--", "true")
    assert (gone.returncode, gone.stderr.count("\n")) == (2, 1)
    assert "There is no folder /no/such/folder" in gone.stderr
    with (tmp_path / "large.bin").open("wb") as file:
        file.truncate(blobs.MOST_SNAPSHOT_BYTES + 1)
    large = call(place, tmp_path, "submit", "--snapshot", "--", "true")
    assert large.returncode == 2
    assert "The largest are large.bin (200.0 MiB)" in large.stderr
    assert large.stderr.count("\n") == 1
