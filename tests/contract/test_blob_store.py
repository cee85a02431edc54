"""What a store of blobs promises: one process, and two that share a folder."""

import os
import time
from hashlib import sha256
from pathlib import Path

import pytest

from gpuyard.core.domain.task import CodeSnapshot, Resources, TaskSpec
from gpuyard.core.domain.values import TenantId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.stores.blobs import BLOCK_BYTES, BlobLimits, BlobStore
from gpuyard.live.control_plane.stores.database import StoreError
from gpuyard.live.wire.blobs import MOST_MANIFEST_BYTES, pack, read_manifest, unpack

LIMITS = BlobLimits(blob_bytes=1000, tenant_bytes=4 * BLOCK_BYTES, keep_seconds=3600.0)
LAB = TenantId("lab/7 ü")
Pair = tuple[BlobStore, BlobStore]


@pytest.fixture(params=["one process", "two processes"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    """The store that is written, and the one that is read: the same, or another one on the same folder."""
    first = BlobStore.open(tmp_path / "blobs", LIMITS)
    return first, first if request.param == "one process" else BlobStore.open(tmp_path / "blobs", LIMITS)


def put(store: BlobStore, content: bytes, tenant: str = LAB) -> str:
    name = sha256(content).hexdigest()
    upload = store.begin(tenant)
    try:
        upload.write(content[:3])
        upload.write(content[3:])
        assert upload.finish(name) == len(content)
    finally:
        upload.abandon()
    return name


def age(folder: Path, name: str, seconds: float) -> None:
    """Let a blob be unused for so long."""
    for path in folder.rglob(name):
        os.utime(path, (time.time() - seconds,) * 2)


def test_a_content_is_read_as_it_was_written(stores: Pair) -> None:
    name = put(stores[0], b"some content")
    assert stores[1].read(LAB, name) == b"some content"
    assert stores[1].read(LAB, name, 5, 3) == b"con"
    assert stores[1].size(LAB, name) == 12
    assert stores[1].missing(LAB, [name, "0" * 64]) == ["0" * 64]


def test_another_tenant_does_not_have_it(stores: Pair) -> None:
    name = put(stores[0], b"some content")
    assert stores[1].missing("other", [name]) == [name]
    with pytest.raises(WrongRequest, match="is not stored"):
        stores[1].read("other", name)


def test_a_wrong_content_is_not_stored(stores: Pair, tmp_path: Path) -> None:
    upload = stores[0].begin(LAB)
    upload.write(b"one thing")
    with pytest.raises(WrongRequest, match="send it again"):
        upload.finish(sha256(b"another").hexdigest())
    assert not list((tmp_path / "blobs" / "uploads").iterdir())


def test_an_abandoned_upload_leaves_nothing(stores: Pair, tmp_path: Path) -> None:
    upload = stores[0].begin(LAB)
    upload.write(b"half")
    upload.abandon()
    assert not [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]


def test_the_limits_of_a_blob_and_of_a_tenant_hold(stores: Pair) -> None:
    with pytest.raises(WrongRequest) as caught:
        put(stores[0], b"x" * 1001)
    assert (caught.value.code, caught.value.status) == ("TooLarge", 413)
    for letter in b"abcd":
        put(stores[0], bytes([letter]))  # each takes a block on disk
    put(stores[0], b"a")  # it is there already
    with pytest.raises(WrongRequest) as caught:
        put(stores[0], b"e")
    assert (caught.value.code, caught.value.status) == ("TooManyBlobs", 409)
    put(stores[0], b"e", "other")


def test_uploads_that_have_not_ended_count_as_well(stores: Pair, tmp_path: Path) -> None:
    for letter in b"abc":
        put(stores[0], bytes([letter]))
    uploads = [stores[0].begin(LAB) for _ in range(5)]
    for upload in uploads[:4]:
        upload.write(b"x" * 1000)
    with pytest.raises(WrongRequest) as caught:
        uploads[4].write(b"x" * 1000)
    assert (caught.value.code, caught.value.status) == ("TooManyBlobs", 409)
    assert sum(path.stat().st_size for path in (tmp_path / "blobs" / "uploads").iterdir()) <= BLOCK_BYTES
    for upload in uploads:
        upload.abandon()
        upload.abandon()  # counted once
    put(stores[0], b"d" * 1000)


def test_a_huge_manifest_costs_little() -> None:
    deep = b'{"files":[{"path":"%s","link":"b"}]}' % b"/".join([b"a"] * 200)
    for manifest, said in ((b"[" * (MOST_MANIFEST_BYTES + 1), "larger than 16 MiB"), (deep, "more than 128 names")):
        with pytest.raises(WrongRequest, match=said):
            read_manifest(manifest)
    with pytest.raises(ValueError, match="more than 10,000"):
        list(unpack(pack([b""] * 10_001)))
    assert len(list(unpack(pack([b""] * 10_000)))) == 10_000


def test_a_blob_is_removed_after_its_retention_and_makes_room(stores: Pair, tmp_path: Path) -> None:
    old, new = put(stores[0], b"a" * 900), put(stores[0], b"b" * 900)
    age(tmp_path, old, 4000)
    assert stores[0].sweep([]) == 900
    assert stores[1].missing(LAB, [old, new]) == [old]
    put(stores[0], b"c" * 900)


def test_what_open_tasks_refer_to_is_kept_and_used(stores: Pair, tmp_path: Path) -> None:
    code = put(stores[0], b"print()")
    manifest = put(stores[0], b'{"files":[{"path":"a.py","sha256":"%s","size":7}]}' % code.encode())
    file, other = put(stores[0], b"file"), put(stores[0], b"other")
    for name in (code, manifest, file, other):
        age(tmp_path, name, 4000)
    spec = TaskSpec(LAB, Resources(gpus=1), snapshot=CodeSnapshot(manifest), files=(("f", file),))
    stores[0].sweep([spec])
    stores[0].sweep([])  # the task has ended: they were in use until now
    assert stores[1].missing(LAB, [code, manifest, file, other]) == [other]
    stores[1].check([spec])


def test_a_task_with_a_missing_file_of_its_snapshot_is_refused(stores: Pair) -> None:
    manifest = put(stores[0], b'{"files":[{"path":"a.py","sha256":"%s"}]}' % (b"1" * 64))
    spec = TaskSpec(LAB, Resources(gpus=1), snapshot=CodeSnapshot(manifest))
    with pytest.raises(WrongRequest) as caught:
        stores[1].check([spec])
    assert (caught.value.code, caught.value.field) == ("UnknownBlob", "snapshot.manifest")


def test_an_upload_of_a_process_that_was_killed_is_removed_the_next_day(stores: Pair, tmp_path: Path) -> None:
    left = tmp_path / "blobs" / "uploads" / "abc"
    left.write_bytes(b"half")
    stores[1].sweep([])
    assert left.exists()
    age(tmp_path, "abc", 2 * 86_400)
    stores[1].sweep([])
    assert not left.exists()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file.* cannot be used.*blobs\.dir"):
        BlobStore.open(tmp_path / "file" / "blobs", LIMITS)
