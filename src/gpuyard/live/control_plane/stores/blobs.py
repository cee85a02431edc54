"""Blobs: code, arguments and results of tasks, each content stored once for its tenant and named by its SHA-256.

    FOLDER/TENANT/ab/abcdef…          one file for each blob; its modification time is that of its last use
    FOLDER/uploads/RANDOM             an upload that has not ended

There is no index: the folder is the truth, so several schedulers can share it on a network file system, and a blob that
was stored twice at the same time is the same file. Tenants do not share contents, because a tenant could find out
otherwise what another one has stored.

A blob is kept while an open task refers to it, and for the retention time after its last use. `sweep` sees to both: it
counts a reference of an open task as a use.
"""

import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256 as new_sha256
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Self
from urllib.parse import quote

from gpuyard.core.domain.task import TaskSpec
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.stores.database import StoreError, StoreFull
from gpuyard.live.wire.blobs import MOST_MANIFEST_BYTES, read_manifest
from gpuyard.system.files import NO_SPACE, sync_folder

UPLOADS = "uploads"
ABANDONED_SECONDS = 86_400.0
"""An upload that was begun this long ago by another process has been given up."""
NOT_SHARED = (
    "This cluster has several schedulers, and they have no common folder for blobs, so code, functions and results cannot be "
    "stored. Ask the administrator to set blobs.dir to a folder that all of them share."
)
MIB = 1 << 20
BLOCK_BYTES = 4096
"""What a file takes on disk at least: a tenant with millions of tiny blobs would fill the disk unnoticed otherwise."""


@dataclass(frozen=True, slots=True)
class BlobLimits:
    """How much is stored, and for how long."""

    blob_bytes: int = 256 * MIB
    tenant_bytes: int = 10 << 30
    keep_seconds: float = 7 * 86_400.0


def refused_blob(sha256: str, field: str = "sha256", status: int = 404) -> WrongRequest:
    """Return the error about a blob that is not stored."""
    message = f"The blob {sha256} is not stored; upload it with PUT /api/v1/blobs/{sha256}."
    return WrongRequest("UnknownBlob", message, field, status=status)


class BlobStore:
    """All blobs of a cluster. May be called from any thread; every call may read or write files."""

    def __init__(self, folder: Path, limits: BlobLimits) -> None:
        self.limits = limits
        self._folder = folder
        self._turn = Lock()
        self._used: dict[str, int] = {}
        """Bytes on disk by folder of a tenant, for those that were counted."""
        self._arriving: Counter[str] = Counter()
        """The same for uploads that have not ended."""

    @classmethod
    def open(cls, folder: Path, limits: BlobLimits) -> Self:
        """Open the folder, or create it. Raise `StoreError` if this is impossible."""
        try:
            (folder / UPLOADS).mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
        except OSError as error:
            raise StoreError(
                f"The folder of blobs {folder} cannot be used: {error.strerror}. Check blobs.dir."
            ) from error
        return cls(folder, limits)

    def missing(self, tenant: str, blobs: Iterable[str]) -> list[str]:
        """Return those that are not stored, each once. For those that are, this is a use."""
        return [one for one in dict.fromkeys(blobs) if not self._use(self._place(tenant, one))]

    def size(self, tenant: str, sha256: str) -> int:
        """Return the size of a blob in bytes, or raise the error that it is not stored."""
        try:
            return self._place(tenant, sha256).stat().st_size
        except FileNotFoundError:
            raise refused_blob(sha256) from None

    def read(self, tenant: str, sha256: str, offset: int = 0, length: int = -1) -> bytes:
        """Return a part of a blob, or all of it."""
        try:
            with self._place(tenant, sha256).open("rb") as file:
                file.seek(offset)
                return file.read(length)
        except FileNotFoundError:
            raise refused_blob(sha256) from None

    def begin(self, tenant: str) -> "BlobUpload":
        """Begin to store a blob; write its content, then call `finish`, or `abandon`."""
        with _disk():
            return BlobUpload(self, tenant, self._folder / UPLOADS / token_hex(16))

    def put_all(self, tenant: str, contents: Iterable[bytes]) -> int:
        """Store small contents, all durable when this returns; return how many there were."""
        folders = set[Path]()
        count = 0
        for content in contents:
            count += 1
            upload = self.begin(tenant)
            try:
                upload.write(content)
                folders.add(upload.finish_without_folder(new_sha256(content).hexdigest()))
            finally:
                upload.abandon()
        for folder in folders:
            sync_folder(folder)
        return count

    def check(self, specs: Iterable[TaskSpec]) -> None:
        """Raise the error about the first blob that a task refers to and that is not stored. This is a use."""
        seen: set[tuple[str, str]] = set()
        manifests: set[tuple[str, str]] = set()
        for spec in specs:
            for field, blobs in self._named(spec, manifests):
                new = [one for one in blobs if (spec.tenant, one) not in seen]
                seen.update((spec.tenant, one) for one in new)
                if missing := self.missing(spec.tenant, new):
                    raise refused_blob(missing[0], field, 409)

    def _named(self, spec: TaskSpec, manifests: set[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
        """Yield the fields of a task that name blobs, each with the blobs; a manifest before the files that it lists.

        `manifests`: those that were read already; many tasks have the same one.
        """
        if spec.files:
            yield "files", [sha256 for _, sha256 in spec.files]
        if spec.snapshot is not None and (spec.tenant, spec.snapshot.manifest) not in manifests:
            manifests.add((spec.tenant, spec.snapshot.manifest))
            yield "snapshot.manifest", [spec.snapshot.manifest]
            content = self.read(spec.tenant, spec.snapshot.manifest, 0, MOST_MANIFEST_BYTES + 1)
            yield "snapshot.manifest", read_manifest(content).blobs

    def sweep(self, open_tasks: Iterable[TaskSpec]) -> int:
        """Note that the blobs of open tasks are in use, remove what was not used for too long, and return the bytes."""
        kept: dict[str, set[str]] = {}
        manifests: set[tuple[str, str]] = set()
        for spec in open_tasks:
            with suppress(
                WrongRequest, OSError
            ):  # a manifest that is damaged or lost: its files are not needed any more
                for _, blobs in self._named(spec, manifests):
                    kept.setdefault(self._name(spec.tenant), set()).update(blobs)
        freed = 0
        for folder in _folders(self._folder):
            if folder.name == UPLOADS:
                self._remove_abandoned(folder)
            else:
                freed += self._sweep(folder, kept.get(folder.name, set()))
        return freed

    def _sweep(self, folder: Path, kept: Collection[str]) -> int:
        used = freed = 0
        oldest = time.time() - self.limits.keep_seconds
        for part in _folders(folder):
            for path in part.iterdir():
                with suppress(FileNotFoundError):
                    found = path.stat()
                    if path.name in kept:
                        os.utime(path)
                    elif found.st_mtime < oldest:
                        path.unlink()
                        freed += found.st_size
                        continue
                    used += _on_disk(found.st_size)
            with suppress(OSError):  # it holds blobs
                part.rmdir()
        with self._turn:
            self._used[folder.name] = used
        return freed

    def _remove_abandoned(self, folder: Path) -> None:
        for path in folder.iterdir():
            with suppress(OSError):
                if path.stat().st_mtime < time.time() - ABANDONED_SECONDS:
                    path.unlink()

    def _stored(self, tenant: str, sha256: str, new: Path, size: int) -> Path:
        """Take a complete upload in; return the folder that is to be synced."""
        place = self._place(tenant, sha256)
        if self._use(place):
            return place.parent
        used, takes = self._used_by(tenant), _on_disk(size)
        with self._turn:
            if self._used.get(name := self._name(tenant), used) + takes > self.limits.tenant_bytes:
                raise self._full(tenant)
            self._used[name] = self._used.get(name, used) + takes
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.replace(place)
        return place.parent

    def arrives(self, tenant: str, size: int) -> None:
        """Count bytes of an upload, or raise the error that the tenant has no room for it.

        One blob may always arrive: it may be one that is stored.
        """
        used, name = self._used_by(tenant), self._name(tenant)
        with self._turn:
            room = max(self.limits.tenant_bytes - self._used.get(name, used), self.limits.blob_bytes)
            if self._arriving[name] + size > room:
                raise self._full(tenant)
            self._arriving[name] += size

    def arrived(self, tenant: str, size: int) -> None:
        """Count the bytes of an upload no longer."""
        name = self._name(tenant)
        with self._turn:
            self._arriving[name] -= size
            if not self._arriving[name]:
                del self._arriving[name]

    def _full(self, tenant: str) -> WrongRequest:
        message = (
            f"The blobs of tenant {tenant} would take more than {self.limits.tenant_bytes // MIB:,} MiB, the maximum "
            "(blobs.max_tenant_mb). Those that no task uses are removed after a while; store less, or ask the administrator."
        )
        return WrongRequest("TooManyBlobs", message, "tenant_id", status=409)

    def _used_by(self, tenant: str) -> int:
        name = self._name(tenant)
        with self._turn:
            if (known := self._used.get(name)) is not None:
                return known
        used = 0
        for part in _folders(self._folder / name):
            for path in part.iterdir():
                with suppress(FileNotFoundError):  # removed meanwhile
                    used += _on_disk(path.stat().st_size)
        with self._turn:
            return self._used.setdefault(name, used)

    def _use(self, place: Path) -> bool:
        """Note the use of a blob; return whether it is stored."""
        try:
            os.utime(place)
        except FileNotFoundError:
            return False
        return True

    @staticmethod
    def _name(tenant: str) -> str:
        return f"t-{quote(tenant, safe='')}"

    def _place(self, tenant: str, sha256: str) -> Path:
        return self._folder / self._name(tenant) / sha256[:2] / sha256


class BlobUpload:
    """The content of a blob while it arrives. Create it with `BlobStore.begin`."""

    def __init__(self, store: BlobStore, tenant: str, path: Path) -> None:
        self._store = store
        self._tenant = tenant
        self._path = path
        self._digest = new_sha256()
        self._file = path.open("xb")
        self._counted = 0
        self.size = 0

    def write(self, data: bytes) -> None:
        """Add to the content. Raise `WrongRequest` at a limit."""
        self.size += len(data)
        if self.size > (most := self._store.limits.blob_bytes):
            message = f"The blob is larger than {most // MIB:,} MiB, the maximum (blobs.max_blob_mb). Write a file and pass its path."
            raise WrongRequest("TooLarge", message, status=413)
        self._store.arrives(self._tenant, len(data))
        self._counted += len(data)
        self._digest.update(data)
        with _disk():
            self._file.write(data)

    def finish(self, sha256: str) -> int:
        """Check the content and store it durably; return its size."""
        sync_folder(self.finish_without_folder(sha256))
        return self.size

    def finish_without_folder(self, sha256: str) -> Path:
        """Do the same, except that the folder, which is returned, must still be synced."""
        found = self._digest.hexdigest()
        if found != sha256:
            self.abandon()
            raise WrongRequest("WrongBlob", f"The content has SHA-256 {found}, not {sha256}; send it again.", "sha256")
        try:
            with _disk():
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                return self._store._stored(self._tenant, sha256, self._path, self.size)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Remove what has arrived. Nothing happens after `finish`."""
        counted, self._counted = self._counted, 0
        self._store.arrived(self._tenant, counted)
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


@contextmanager
def _disk() -> Iterator[None]:
    """Turn a full disk into the error that asks to try again later."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise StoreFull("The disk of the blobs is full; try again when there is room.") from error
        raise


def _on_disk(size: int) -> int:
    """Return what a blob takes, in whole blocks."""
    return max(1, -(-size // BLOCK_BYTES)) * BLOCK_BYTES


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder; none if it does not exist."""
    try:
        return [path for path in folder.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []


def blob_specs(specs: Iterable[TaskSpec]) -> list[TaskSpec]:
    """Return the tasks that refer to blobs."""
    return [spec for spec in specs if spec.files or spec.snapshot is not None]
