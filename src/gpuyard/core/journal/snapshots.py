"""The snapshot file: readable JSON with a checksum.

    {
      "format": 1,
      "gpuyard": "0.1.0",
      "seq": 1200,
      "hash": "5f0c…",
      "state": { … },
      "checksum": "9be1…"
    }

The checksum is BLAKE2b-128 over all other fields in compact JSON, so it detects every change except of indentation. A
file is written under a temporary name, synced and renamed: under its final name it is complete unless it was modified
later. `seq` and `hash` make it a witness: a journal that ends earlier, or has another hash there, is damaged.
"""

from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from gpuyard.core.domain.errors import JournalError, JournalFromFuture
from gpuyard.core.journal.records import HASH_BYTES, Position, Snapshot
from gpuyard.system.files import replace_file
from gpuyard.version import __version__

FORMAT = 1
PATTERN = "snapshot-*.json"


class SnapshotDamaged(Exception):
    """Internal to the journal: this snapshot cannot be used; an older one may be."""


def path_of(folder: Path, seq: int) -> Path:
    """Return the path of the snapshot at this event."""
    return folder / f"snapshot-{seq:012d}.json"


def write(folder: Path, snapshot: Snapshot) -> None:
    """Write a snapshot durably and atomically: on an error, the file that was there before is unchanged."""
    document = msgspec.json.format(encode(snapshot), indent=2) + b"\n"
    replace_file(path_of(folder, snapshot.position.seq), document)


def read(path: Path) -> Snapshot:
    """Read the snapshot in a file. Raises SnapshotDamaged if the content is not exactly what was written."""
    try:
        document = path.read_bytes()
    except OSError as error:
        raise SnapshotDamaged(f"{path.name} cannot be read ({error})") from error
    return decode(document, path.name)


def encode(snapshot: Snapshot) -> bytes:
    """Return a snapshot with its checksum as compact JSON, for stores that do not use files."""
    fields: dict[str, Any] = {
        "format": FORMAT,
        "gpuyard": __version__,
        "seq": snapshot.position.seq,
        "hash": snapshot.position.hash,
        "state": snapshot.state,
    }
    try:
        compact = msgspec.json.encode(fields)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
        message = f"This state cannot be written as a snapshot: {error}. Earlier snapshots are unchanged."
        raise JournalError(message) from error
    return compact[:-1] + b',"checksum":"' + _checksum(compact).encode() + b'"}'


def decode(document: bytes, name: str) -> Snapshot:
    """Return the snapshot in a document; `name` is used in messages."""
    try:
        fields = msgspec.json.decode(document)
        claimed = fields.pop("checksum")
        whole = claimed == _checksum(msgspec.json.encode(fields))
    except (msgspec.MsgspecError, ValueError, RecursionError, AttributeError, LookupError, TypeError) as error:
        raise SnapshotDamaged(f"{name} cannot be read ({error})") from error
    if not whole:
        raise SnapshotDamaged(f"{name} does not match its checksum")
    if fields["format"] > FORMAT:
        raise JournalFromFuture(
            f"{name} has format {fields['format']}, and this gpuyard reads up to {FORMAT}: a "
            "newer one wrote it. Use that version or a newer one."
        )
    return Snapshot(Position(fields["seq"], fields["hash"]), fields["state"])


def _checksum(compact: bytes) -> str:
    return blake2b(compact, digest_size=HASH_BYTES).hexdigest()
