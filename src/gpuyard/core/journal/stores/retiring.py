"""What is kept of events that leave a journal: packed segments, and the events of users for the audit.

All stores keep them in the same files, so that retired events are read in one way (`sqlite.read_folder`).
"""

import gzip
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from gpuyard.core.journal.codec import Codec
from gpuyard.core.journal.files import as_journal_errors
from gpuyard.core.journal.folders import closed_folder
from gpuyard.core.journal.port import AuditRetention
from gpuyard.core.journal.stores.segment import PACKED, SegmentRow
from gpuyard.system.files import replace_file, replacing

_BY = b',"by":"'
"""Occurs in the payload of every event with a `by`, and in few others: a cheap filter before decoding."""
_GZIP_LEVEL = 6
"""Compresses a segment to a fifth of its size in a fifth of a second."""


def pack(path: Path, folder: Path) -> None:
    """Compress a full segment into a folder. If the process is killed here, the next call starts over."""
    packed = folder / (path.name + PACKED)
    with as_journal_errors(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(packed) as new, path.open("rb") as plain, gzip.open(new, "wb", _GZIP_LEVEL) as file:
            shutil.copyfileobj(plain, file)


def keep_audit(rows: Iterable[SegmentRow], first: int, audit: AuditRetention, codec: Codec) -> None:
    """Write the events that the audit keeps as lines of JSON, in the format of `gpuyard.core.journal.read`.

    `first` is the number of the first event of these rows, after which the file is named.
    """
    encode = msgspec.json.Encoder().encode
    with as_journal_errors(audit.folder):
        closed_folder(audit.folder, "folder of the audit", "storage.data_dir")
        records = (codec.decode(seq, payload) for seq, payload, _ in rows if _BY in payload)
        lines = [encode(record) + b"\n" for record in records if audit.wanted(record)]
        if lines:
            kept = gzip.compress(b"".join(lines), _GZIP_LEVEL)
            replace_file(audit.folder / f"audit-{first:012d}.jsonl.gz", kept)
