"""The cache of blobs on a node."""

import asyncio
import os
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest

from gpuyard.live.agent.blob_cache import BlobCache, BlobDamaged


class Source:
    """What the scheduler would send, and how often it was asked."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = {sha256(content).hexdigest(): content for content in contents}
        self.asked: list[str] = []

    async def fetch(self, name: str) -> AsyncIterator[bytes]:
        self.asked.append(name)
        await asyncio.sleep(0)
        yield self.contents[name]


def test_a_blob_is_fetched_once(tmp_path: Path) -> None:
    source, cache = Source(b"abc"), BlobCache(tmp_path, 1000)
    name = next(iter(source.contents))

    async def twice() -> list[bytes]:
        return [
            path.read_bytes() for path in await asyncio.gather(*(cache.ensure(name, source.fetch) for _ in range(2)))
        ]

    assert asyncio.run(twice()) == [b"abc", b"abc"]
    assert source.asked == [name]


def test_a_blob_with_other_content_is_refused_and_not_kept(tmp_path: Path) -> None:
    source, cache = Source(b"abc"), BlobCache(tmp_path, 1000)
    name = next(iter(source.contents))
    source.contents[name] = b"abd"
    with pytest.raises(BlobDamaged, match="other content"):
        asyncio.run(_ensured(cache, name, source))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


async def _ensured(cache: BlobCache, name: str, source: Source) -> Path:
    return await cache.ensure(name, source.fetch)


def test_the_least_recently_used_goes_first_but_not_while_a_launch_uses_blobs(tmp_path: Path) -> None:
    source, cache = Source(b"a" * 400, b"b" * 400, b"c" * 400), BlobCache(tmp_path, 1000)
    names = list(source.contents)
    for place, name in enumerate(names):
        asyncio.run(_ensured(cache, name, source))
        os.utime(cache.path_of(name), (1000 + place,) * 2)
    asyncio.run(_ensured(cache, names[0], source))  # used again
    with cache.in_use():
        assert cache.trim() == 0
    assert cache.trim() == 400
    assert [cache.path_of(name).exists() for name in names] == [True, False, True]
