"""Blobs: content that is stored once and named by its SHA-256, and the manifest of a snapshot of code.

A manifest is a blob itself, the JSON of `SnapshotManifest`: paths relative to the work dir of the task, each a file with
the SHA-256 of its content, or a symbolic link. Its own SHA-256 is the id of the snapshot.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, TypeAlias

from msgspec import Meta, MsgspecError, Struct, json

from gpuyard.input.strict import WrongRequest

Sha256: TypeAlias = Annotated[
    str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)", description="the SHA-256 of a content, as 64 lowercase hex digits")
]
BlobFileName: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$(?!\n)",
        description="a file name of 1 to 100 letters, digits, dots, dashes and underscores",
    ),
]
CHUNK_BYTES = 256 * 1024
"""What is read, written or sent of a blob at a time."""
MOST_MISSING = 100_000
MOST_BATCH_BYTES = 16 * 1024 * 1024
"""Maximum size of a request with many small blobs."""
MOST_SNAPSHOT_BYTES = 200 * 1024 * 1024
"""Maximum size of a snapshot, all files together."""
MOST_SNAPSHOT_FILES = 20_000
MOST_MANIFEST_BYTES = 16 * 1024 * 1024
MOST_PARTS = 128
"""Names in the path of a file of a snapshot."""
MOST_IN_BATCH = 10_000
"""Contents in one request: each costs a few writes to disk, however small it is."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


class MissingRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Blobs of which some may have to be uploaded."""

    blobs: Annotated[list[Sha256], Meta(max_length=MOST_MISSING)]
    tenant_id: str | None = None


class MissingAnswer(Struct, frozen=True):
    """The blobs that are not stored. Those that are stay for the retention time, counted from now."""

    missing: list[str]


class BlobAnswer(Struct, frozen=True):
    """A stored blob."""

    sha256: str
    size: int
    tenant_id: str


class BatchStored(Struct, frozen=True):
    """How many contents of a batch are stored now."""

    stored: int


def pack(contents: Iterable[bytes]) -> bytes:
    """Return contents one behind the other, each after its length in eight bytes, as `blobs:batch` takes them."""
    return b"".join(part for content in contents for part in (len(content).to_bytes(8, "big"), content))


def unpack(body: bytes) -> Iterator[bytes]:
    """Yield the contents of a batch. Raise ValueError if the body ends within one, or has too many."""
    offset = count = 0
    while offset < len(body):
        count += 1
        if count > MOST_IN_BATCH:
            raise ValueError(f"it has more than {MOST_IN_BATCH:,} contents")
        begin = offset + 8
        end = begin + int.from_bytes(body[offset:begin], "big")
        if end > len(body) or begin > len(body):
            raise ValueError("it ends within one")
        yield body[begin:end]
        offset = end


class SnapshotFile(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One file of a snapshot."""

    path: str
    """Relative to the folder, with slashes."""
    sha256: str = ""
    """Of its content; empty: it is a link."""
    size: int = 0
    executable: bool = False
    link: str = ""
    """What a symbolic link points to."""


class SnapshotManifest(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The files of a snapshot, sorted by path."""

    files: list[SnapshotFile]

    @property
    def blobs(self) -> list[str]:
        """The blobs of all files, each once."""
        return list(dict.fromkeys(file.sha256 for file in self.files if file.sha256))


def is_sha256(text: str) -> bool:
    """Whether a text is a SHA-256 as blobs are named by it."""
    return _SHA256.fullmatch(text) is not None


def read_manifest(content: bytes) -> SnapshotManifest:
    """Decode a manifest. Raise `WrongRequest` if it is none, or if a path leads out of its folder."""
    if len(content) > MOST_MANIFEST_BYTES:
        raise _wrong(f"it is larger than {MOST_MANIFEST_BYTES >> 20} MiB")
    try:
        manifest = json.decode(content, type=SnapshotManifest)
    except (MsgspecError, ValueError, RecursionError):
        raise _wrong("it is not the JSON of a list of files") from None
    if len(manifest.files) > MOST_SNAPSHOT_FILES:
        raise _wrong(f"it lists {len(manifest.files):,} files; the maximum is {MOST_SNAPSHOT_FILES:,}")
    if (size := sum(file.size for file in manifest.files)) > MOST_SNAPSHOT_BYTES:
        raise _wrong(f"its files have {size:,} bytes together; the maximum is {MOST_SNAPSHOT_BYTES:,}")
    paths = {file.path for file in manifest.files}
    if len(paths) < len(manifest.files):
        raise _wrong("a path occurs twice")
    for file in manifest.files:
        parts = file.path.split("/")
        if not file.path or "\0" in file.path + file.link or any(part in {"", ".", ".."} for part in parts):
            raise _wrong(f"the path {file.path[:80]!r} does not lead to a file below the folder")
        if len(parts) > MOST_PARTS:
            raise _wrong(f"the path {file.path[:80]!r} has more than {MOST_PARTS} names")
        if bool(file.link) == bool(file.sha256) or not (file.link or is_sha256(file.sha256)) or file.size < 0:
            raise _wrong(f"the entry of {file.path[:80]!r} is neither a file nor a link")
        if any("/".join(parts[:end]) in paths for end in range(1, len(parts))):
            raise _wrong(f"the path {file.path[:80]!r} leads through a file or a link")
    return manifest


def _wrong(problem: str) -> WrongRequest:
    return WrongRequest(
        "WrongSnapshot", f"The manifest of the snapshot cannot be used: {problem}.", "snapshot.manifest"
    )
