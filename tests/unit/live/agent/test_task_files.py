"""The folder of an attempt: made whole, given to its user last, read with care."""

import asyncio
import errno
import os
import pwd
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gpuyard.live.agent import task_files
from gpuyard.live.agent.blob_cache import BlobCache, BlobDamaged
from gpuyard.live.agent.identity import Account
from gpuyard.live.agent.supervisor.messages import AttemptKey
from gpuyard.live.agent.task_files import FilesNotReady, ResultNotStored, TaskFiles
from gpuyard.live.wire import agents_pb2 as pb

KEY = AttemptKey(7, 1, 255)
SELF = Account("me", "/", "/bin/sh")


class Scheduler:
    """A connection to a scheduler that has some blobs."""

    metadata = (("session", "s"),)

    def __init__(self, *contents: bytes) -> None:
        self.contents = {sha256(content).hexdigest(): content for content in contents}
        self.stored: dict[str, bytes] = {}
        self.stub = self

    async def fetch_blob(self, asked: pb.BlobRequest, metadata: Any) -> AsyncIterator[pb.BlobChunk]:
        assert (asked.task, metadata) == (KEY.task, self.metadata)
        yield pb.BlobChunk(data=self.contents.get(asked.sha256, b"other"))

    async def store_blob(self, chunks: AsyncIterator[pb.BlobChunk], metadata: Any) -> pb.BlobReceipt:
        assert metadata == self.metadata
        received = [chunk async for chunk in chunks]
        self.stored[received[0].about.sha256] = b"".join(chunk.data for chunk in received)
        return pb.BlobReceipt()


@pytest.fixture
def files(tmp_path: Path) -> TaskFiles:
    (tmp_path / "files").mkdir()
    return TaskFiles(tmp_path / "files", BlobCache(tmp_path / "cache", 1 << 20))


def make(given: TaskFiles, scheduler: Any, account: Account = SELF, **asked: Any) -> Path:
    asyncio.run(given.make(KEY, pb.Launch(**asked), account, scheduler))
    return given.folder_of(KEY)


def test_a_folder_that_was_left_half_is_made_again(files: TaskFiles) -> None:
    scheduler = Scheduler(b"content")
    (name,) = scheduler.contents
    files.folder_of(KEY).mkdir()
    (files.folder_of(KEY) / "left").write_text("")
    folder = make(files, scheduler, files={"a.bin": name})
    assert [path.relative_to(folder) for path in folder.rglob("*")] == [Path("files"), Path("files/a.bin")]
    assert (folder / "files" / "a.bin").read_bytes() == b"content"
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_everything_belongs_to_the_user_of_the_task(files: TaskFiles) -> None:
    code = b"print()"
    manifest = b'{"files":[{"path":"a/b.py","sha256":"%s"},{"path":"l","link":"/etc/shadow"}]}'
    manifest %= sha256(code).hexdigest().encode()
    nobody = pwd.getpwnam("nobody")
    owner = Path("/etc/shadow").stat().st_uid
    account = Account("nobody", "/", "/bin/sh", nobody.pw_uid, nobody.pw_gid)
    folder = make(files, Scheduler(code, manifest), account, snapshot=sha256(manifest).hexdigest(), store_result=True)
    assert {path.lstat().st_uid for path in (folder, *folder.rglob("*"))} == {nobody.pw_uid}
    assert Path("/etc/shadow").stat().st_uid == owner  # the link was given, not what it points to


def test_a_blob_that_arrives_with_other_content_stops_the_launch(files: TaskFiles) -> None:
    with pytest.raises(BlobDamaged, match="other content"):
        make(files, Scheduler(), files={"a": "0" * 64})


def test_a_manifest_that_leads_out_of_the_folder_stops_the_launch(files: TaskFiles) -> None:
    manifest = b'{"files":[{"path":"../x","link":"y"}]}'
    with pytest.raises(FilesNotReady, match="does not lead to a file below the folder"):
        make(files, Scheduler(manifest), snapshot=sha256(manifest).hexdigest())


def test_a_result_is_stored_and_then_removed_with_the_files_but_not_the_code(files: TaskFiles) -> None:
    manifest = b'{"files":[{"path":"l","link":"y"}]}'
    scheduler: Any = Scheduler(manifest, b"in")
    names = {"in": sha256(b"in").hexdigest()}
    folder = make(files, scheduler, snapshot=sha256(manifest).hexdigest(), files=names, store_result=True)
    assert not files.has_result(KEY)
    (folder / "result").write_bytes(b"out")
    assert files.has_result(KEY)
    assert asyncio.run(files.store_result(KEY, scheduler)) == sha256(b"out").hexdigest()
    assert scheduler.stored == {sha256(b"out").hexdigest(): b"out"}
    asyncio.run(files.forget(KEY))
    assert [path.name for path in folder.iterdir()] == ["code"]


@pytest.mark.parametrize("kind", ["link", "pipe", "hard link"])
def test_a_result_that_is_not_a_file_of_its_user_is_not_read(files: TaskFiles, tmp_path: Path, kind: str) -> None:
    scheduler: Any = Scheduler()
    result = make(files, scheduler, store_result=True) / "result"
    (tmp_path / "secret").write_text("secret")
    if kind == "link":
        result.symlink_to(tmp_path / "secret")
    elif kind == "pipe":
        os.mkfifo(result)
    else:
        result.hardlink_to(tmp_path / "secret")
    with pytest.raises(ResultNotStored):
        asyncio.run(files.store_result(KEY, scheduler))
    assert not scheduler.stored


def test_old_copies_are_removed_and_those_of_running_attempts_kept(files: TaskFiles) -> None:
    folder = make(files, Scheduler(), store_result=True)
    os.utime(folder, (0, 0))
    files.prune([KEY])
    assert folder.exists()
    files.prune([])
    assert not folder.exists()


def test_code_that_is_larger_than_its_manifest_says_is_not_copied(
    files: TaskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuyard.live.agent.task_files.MOST_SNAPSHOT_BYTES", 1000)
    code = b"x" * 300
    listed = ",".join(f'{{"path":"{number}","sha256":"{sha256(code).hexdigest()}"}}' for number in range(4))
    manifest = f'{{"files":[{listed}]}}'.encode()
    with pytest.raises(FilesNotReady, match="1,200 bytes together; the maximum is 1,000"):
        make(files, Scheduler(code, manifest), snapshot=sha256(manifest).hexdigest())
    assert not files.folder_of(KEY).exists()


def test_a_huge_sparse_result_is_refused_before_it_is_read(files: TaskFiles) -> None:
    scheduler: Any = Scheduler()
    folder = make(files, scheduler, store_result=True)
    with (folder / "result").open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(ResultNotStored, match="4,398,046,511,104 bytes; the maximum is"):
        asyncio.run(files.store_result(KEY, scheduler))


def test_a_result_that_grows_is_stored_as_it_was(files: TaskFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler: Any = Scheduler()
    result = make(files, scheduler, store_result=True) / "result"
    result.write_bytes(b"out")
    digest = task_files._digest

    def grows(file: Any, size: int) -> str:
        with result.open("ab") as more:
            more.write(b"more")
        return digest(file, size)

    monkeypatch.setattr(task_files, "_digest", grows)
    assert asyncio.run(files.store_result(KEY, scheduler)) == sha256(b"out").hexdigest()
    assert list(scheduler.stored.values()) == [b"out"]


def test_a_disk_that_fails_does_not_lose_the_end_of_the_task(files: TaskFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler: Any = Scheduler()
    (make(files, scheduler, store_result=True) / "result").write_bytes(b"out")

    def fails(*_: object) -> str:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(task_files, "_digest", fails)
    with pytest.raises(ResultNotStored, match="cannot be read: Input/output error"):
        asyncio.run(files.store_result(KEY, scheduler))
