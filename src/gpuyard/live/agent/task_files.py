"""The files that a task is given: its code snapshot, its blobs, and the place for its result.

    FOLDER/TASK.ATTEMPT.ORIGIN/code      a fresh copy of the snapshot: the work dir of the attempt
    FOLDER/TASK.ATTEMPT.ORIGIN/files     its blobs, by name (GPUYARD_FILES_DIR)
    FOLDER/TASK.ATTEMPT.ORIGIN/result    what it leaves as its result (GPUYARD_RESULT_FILE)

The folder of an attempt belongs to the system user of the task. It is made before the launch is sent to the supervisor,
and while it is made, other launches go on. After the end, the result is stored by the scheduler before the end is
reported; then files and result are removed, and the copy of the code is kept for a while, with what the task wrote there.
"""

import asyncio
import os
import shutil
import stat
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import suppress
from hashlib import sha256 as new_sha256
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.journal.folders import refuse_unsafe_folder
from gpuyard.input.strict import WrongRequest
from gpuyard.live.agent.blob_cache import BlobCache, Fetch
from gpuyard.live.agent.identity import Account
from gpuyard.live.agent.scheduler_connection import SchedulerConnection
from gpuyard.live.agent.supervisor.messages import AttemptKey
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.blobs import CHUNK_BYTES, MOST_SNAPSHOT_BYTES, SnapshotFile, read_manifest

FETCHED_AT_ONCE = 8
KEEP_CODE_SECONDS = 7 * 86_400.0
KEEP_CODE_BYTES = 10 << 30
"""How long, and how much of, the copies of code and what tasks wrote there are kept after the end."""
MOST_RESULT_BYTES = 16 << 30
"""The scheduler refuses far smaller results, but only after they were read here: a sparse file could keep a thread for days."""
RESULTS_AT_ONCE = 2
MODE = 0o711
"""Of the folder above those of the attempts: other users can pass through, but not list it."""
CODE, FILES, RESULT = "code", "files", "result"


class FilesNotReady(GpuyardError):
    """The files of a task could not be made on this node."""


class ResultNotStored(GpuyardError):
    """The result of a task could not be stored."""


class TaskFiles:
    """The files of all attempts of this node."""

    def __init__(self, folder: Path, cache: BlobCache) -> None:
        self._folder = folder
        self._cache = cache
        self._turns = asyncio.Semaphore(FETCHED_AT_ONCE)
        self._result_turns = asyncio.Semaphore(RESULTS_AT_ONCE)

    def folder_of(self, key: AttemptKey) -> Path:
        """Return the folder of an attempt."""
        return self._folder / f"{key.task}.{key.attempt}.{key.origin:x}"

    @staticmethod
    def needed(asked: pb.Launch) -> bool:
        """Whether a launch needs a folder."""
        return bool(asked.snapshot or asked.files or asked.store_result)

    def environment(self, key: AttemptKey, asked: pb.Launch) -> dict[str, str]:
        """Return the variables by which the task finds its files."""
        folder = self.folder_of(key)
        return (
            ({"GPUYARD_FILES_DIR": str(folder / FILES)} if asked.files else {})
            | ({"GPUYARD_RESULT_FILE": str(folder / RESULT)} if asked.store_result else {})
            | ({"GPUYARD_SNAPSHOT_DIR": str(folder / CODE)} if asked.snapshot else {})
        )

    def work_dir(self, key: AttemptKey, asked: pb.Launch) -> str:
        """Return the work dir that the snapshot provides; empty if there is none."""
        return str(self.folder_of(key) / CODE) if asked.snapshot else ""

    # --- before the launch -------------------------------------------------------------------------------------------

    async def make(self, key: AttemptKey, asked: pb.Launch, account: Account, connection: SchedulerConnection) -> None:
        """Fetch what is missing here and make the folder of an attempt. Raise `FilesNotReady` with one sentence."""
        fetch = _fetcher(key, connection)
        try:
            with self._cache.in_use():
                code: Sequence[SnapshotFile] = ()
                if asked.snapshot:
                    manifest = await self._cache.ensure(asked.snapshot, fetch)
                    code = (await asyncio.to_thread(lambda: read_manifest(manifest.read_bytes()))).files
                blobs = {*asked.files.values(), *(file.sha256 for file in code if file.sha256)}
                await asyncio.gather(*(self._ensure(blob, fetch) for blob in sorted(blobs)))
                await asyncio.to_thread(self._check_size, code)
                await asyncio.to_thread(self._lay_out, key, asked, code, account)
            await asyncio.to_thread(self._cache.trim)
        except grpc.aio.AioRpcError as error:
            why = error.details() if error.code() is grpc.StatusCode.NOT_FOUND else "the scheduler did not send them"
            raise FilesNotReady(f"The files of the task could not be fetched: {why}") from None
        except OSError as error:
            where = error.filename or self._folder
            raise FilesNotReady(
                f"The files of the task cannot be written on this node: {where}: {error.strerror}."
            ) from None
        except WrongRequest as error:
            raise FilesNotReady(error.message) from None

    async def _ensure(self, blob: str, fetch: Fetch) -> None:
        async with self._turns:
            await self._cache.ensure(blob, fetch)

    def _check_size(self, code: Sequence[SnapshotFile]) -> None:
        """Refuse code that is larger than its manifest may say: a blob can be listed under thousands of paths."""
        sizes = {file.sha256: self._cache.path_of(file.sha256).stat().st_size for file in code if file.sha256}
        if (total := sum(sizes[file.sha256] for file in code if file.sha256)) > MOST_SNAPSHOT_BYTES:
            raise FilesNotReady(
                f"The files of the snapshot have {total:,} bytes together; the maximum is {MOST_SNAPSHOT_BYTES:,}."
            )

    def _lay_out(self, key: AttemptKey, asked: pb.Launch, code: Sequence[SnapshotFile], account: Account) -> None:
        folder = self.folder_of(key)
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)  # of a launch that an earlier agent did not complete
        folder.mkdir(mode=0o700)
        if asked.files:
            (folder / FILES).mkdir(mode=0o700)
            for name, blob in asked.files.items():
                _copy(self._cache.path_of(blob), folder / FILES / name, executable=False)
        if asked.snapshot:
            made = {folder / CODE}
            (folder / CODE).mkdir(mode=0o700)
            for file in sorted(code, key=lambda one: bool(one.link)):  # links last: nothing is written through one
                path = folder / CODE / file.path
                for parent in reversed(path.parents):
                    if folder / CODE in parent.parents and parent not in made:
                        parent.mkdir(mode=0o700)
                        made.add(parent)
                if file.link:
                    path.symlink_to(file.link)
                else:
                    _copy(self._cache.path_of(file.sha256), path, executable=file.executable)
        _give(folder, account)

    # --- after the end -----------------------------------------------------------------------------------------------

    def has_result(self, key: AttemptKey) -> bool:
        """Whether an attempt has left a result."""
        return os.path.lexists(self.folder_of(key) / RESULT)

    async def store_result(self, key: AttemptKey, connection: SchedulerConnection) -> str:
        """Have the scheduler store the result of an attempt; return its SHA-256.

        Raise `ResultNotStored` with one sentence; grpc.aio.AioRpcError if the connection broke.
        """
        async with self._result_turns:
            try:
                return await self._store_result(key, connection)
            except OSError as error:
                raise ResultNotStored(f"The result of the task cannot be read: {error.strerror}.") from None

    async def _store_result(self, key: AttemptKey, connection: SchedulerConnection) -> str:
        path = self.folder_of(key) / RESULT
        descriptor = await asyncio.to_thread(_open_result, path)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - only opened from a descriptor
            size = os.fstat(descriptor).st_size
            if size > MOST_RESULT_BYTES:
                raise ResultNotStored(
                    f"The result of the task has {size:,} bytes; the maximum is {MOST_RESULT_BYTES:,}. "
                    "Write a file and pass its path."
                )
            sha256 = await asyncio.to_thread(_digest, file, size)
            about = pb.BlobRequest(task=key.task, attempt=key.attempt, origin=key.origin, sha256=sha256)

            async def chunks() -> AsyncGenerator[pb.BlobChunk, None]:
                yield pb.BlobChunk(about=about, size=size)
                while data := await asyncio.to_thread(file.read, min(CHUNK_BYTES, size - file.tell())):
                    yield pb.BlobChunk(data=data)

            receipt = await connection.stub.store_blob(chunks(), metadata=connection.metadata)
        if receipt.error:
            raise ResultNotStored(f"The result of the task could not be stored: {receipt.error}")
        return sha256

    async def forget(self, key: AttemptKey) -> None:
        """Remove what is not needed after the end of an attempt; the copy of the code stays for a while."""
        folder = self.folder_of(key)
        if folder.is_dir():
            await asyncio.to_thread(_remove_but_code, folder)

    def prune(self, held: Collection[AttemptKey]) -> None:
        """Remove the folders of ended attempts that are old, then the oldest until the rest is small enough."""
        keep = {self.folder_of(key).name for key in held}
        found = []
        with suppress(FileNotFoundError):
            found += [(entry.lstat().st_mtime, entry) for entry in self._folder.iterdir() if entry.name not in keep]
        total, oldest = 0, time.time() - KEEP_CODE_SECONDS
        for changed_at, folder in sorted(found, reverse=True):
            total += _size_of(folder)
            if changed_at < oldest or total > KEEP_CODE_BYTES:
                shutil.rmtree(folder, ignore_errors=True)


def _give(folder: Path, account: Account) -> None:
    """Give a complete folder to the user of its task.

    The folder itself comes last: until then the user cannot enter it, so cannot put a link where root writes.
    """
    if account.uid is None or account.gid is None or os.geteuid() != 0:
        return
    for path, folders, names in os.walk(folder, topdown=False):
        for name in (*folders, *names):
            os.chown(f"{path}/{name}", account.uid, account.gid, follow_symlinks=False)
    os.chown(folder, account.uid, account.gid, follow_symlinks=False)


def _copy(source: Path, path: Path, *, executable: bool) -> None:
    """Copy a file; on file systems that can, without copying its content."""
    with source.open("rb") as old, path.open("xb") as new:
        left = os.fstat(old.fileno()).st_size
        while left > 0 and (copied := _copy_range(old.fileno(), new.fileno(), left)):
            left -= copied
        if left:
            shutil.copyfileobj(old, new)
    path.chmod(0o700 if executable else 0o600)


def _copy_range(source: int, target: int, size: int) -> int:
    try:
        return os.copy_file_range(source, target, size)
    except OSError:
        os.lseek(source, 0, os.SEEK_SET)
        os.lseek(target, 0, os.SEEK_SET)
        os.ftruncate(target, 0)
        return 0


def _fetcher(key: AttemptKey, connection: SchedulerConnection) -> Fetch:
    async def fetch(sha256: str) -> AsyncGenerator[bytes, None]:
        asked = pb.BlobRequest(task=key.task, attempt=key.attempt, origin=key.origin, sha256=sha256)
        call: Any = connection.stub.fetch_blob(asked, metadata=connection.metadata)
        async for chunk in call:
            yield chunk.data

    return fetch


def _open_result(path: Path) -> int:
    """Open a result. The task owns the folder, so the name may lead to a file that is not the task's."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise ResultNotStored(f"The result of the task cannot be read: {error.strerror}.") from None
    found, folder = os.fstat(descriptor), path.parent.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != folder.st_uid or found.st_nlink != 1:
        os.close(descriptor)
        raise ResultNotStored("The result of the task is not a plain file of its user, so it was not stored.")
    return descriptor


def _digest(file: Any, size: int) -> str:
    """Return the SHA-256 of so many bytes; a process that is left may still write."""
    digest = new_sha256()
    while data := file.read(min(1 << 20, size - file.tell())):
        digest.update(data)
    file.seek(0)
    return digest.hexdigest()


def _remove_but_code(folder: Path) -> None:
    shutil.rmtree(folder / FILES, ignore_errors=True)
    with suppress(OSError):
        (folder / RESULT).unlink()
    with suppress(OSError):  # it holds the code
        folder.rmdir()


def _size_of(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(f"{path}/{name}").st_size
    return total


def open_files_folder(folder: Path) -> None:
    """Create the folder that holds the folders of all attempts.

    Raise OSError, or FolderNotSafe if another user could put folders into it.
    """
    refuse_unsafe_folder(folder, "folder of task files", "executor.work_dir")
    folder.mkdir(mode=MODE, parents=True, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) != MODE:
        folder.chmod(MODE)
