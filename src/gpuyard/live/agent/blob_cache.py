"""Blobs on this node: fetched from the scheduler once, kept until the cache is full, least recently used first out."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256 as new_sha256
from pathlib import Path
from secrets import token_hex
from weakref import WeakValueDictionary

from gpuyard.core.domain.errors import GpuyardError

Fetch = Callable[[str], AsyncIterator[bytes]]
"""Yields the content of a blob as the scheduler sends it."""
PARTIAL = ".partial"


class BlobDamaged(GpuyardError):
    """A blob did not arrive as it is named. Submit the task again."""


class BlobCache:
    """The blobs on this node. Its coroutines run on one event loop."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._users = 0
        """Launches that use blobs at present; nothing is removed meanwhile."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def path_of(self, sha256: str) -> Path:
        """Return where a blob is kept."""
        return self._folder / sha256[:2] / sha256

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep all blobs while a launch uses some of them."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1

    async def ensure(self, sha256: str, fetch: Fetch) -> Path:
        """Return the file of a blob; fetch it if it is not here. Launches that need the same one wait for one fetch."""
        path = self.path_of(sha256)
        async with self._turns.setdefault(sha256, asyncio.Lock()):
            try:
                os.utime(path)
            except FileNotFoundError:
                await self._fetch(sha256, path, fetch)
        return path

    async def _fetch(self, sha256: str, path: Path, fetch: Fetch) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(f"{token_hex(8)}{PARTIAL}")
        digest = new_sha256()
        try:
            with new.open("xb") as file:
                async for data in fetch(sha256):
                    digest.update(data)
                    file.write(data)
            if digest.hexdigest() != sha256:
                raise BlobDamaged(f"The blob {sha256} arrived with other content. Submit the task again.")
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)

    def trim(self) -> int:
        """Remove the least recently used blobs until the rest is within the limit, and what an earlier agent left half.

        Return the bytes freed.
        """
        found = []
        for path in self._folder.glob("*/*"):
            with suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        found.sort(key=lambda entry: entry[0])
        total, freed = sum(size for _, size, _ in found), 0
        for _, size, path in found:
            if self._users or total - freed <= self._limit_bytes:
                break
            with suppress(OSError):
                path.unlink()
                freed += size
        return freed
