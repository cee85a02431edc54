"""Changes of users, tokens, secrets and documents as entries of the replication log.

An entry is `R` and, in msgpack, the name of the store with its changes. Changes are of whole rows, so an entry that is
applied twice changes nothing the second time.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from gpuyard.core.domain.errors import JournalDamaged
from gpuyard.live.control_plane.stores.cluster_records import Change, Delete, Key, Put
from gpuyard.live.control_plane.stores.record_layouts import LAYOUTS, SECRETS_LAYOUT

RECORDS = b"R"
"""First byte of an entry that changes records."""
MOST_BYTES = 1024 * 1024
"""Larger changes become several entries, because a message has a limit."""

_TABLES = {layout.name: {table.name: table for table in layout.tables} for layout in LAYOUTS}
_encode = msgspec.msgpack.Encoder().encode
OF_SECRETS = RECORDS + _encode((SECRETS_LAYOUT.name, []))[:-1]
"""The first bytes of an entry that changes secrets of tasks."""
_decode = msgspec.msgpack.Decoder(tuple[str, list[tuple[bool, str, list[Any]]]]).decode


def encode_changes(store: str, changes: Sequence[Change]) -> list[bytes]:
    """Return the entries for changes of one store: one, unless they are very large."""
    plain = [
        (True, change.table.name, list(change.rows))
        if isinstance(change, Put)
        else (False, change.table.name, list(change.keys))
        for change in changes
    ]
    content = _encode((store, plain))
    if len(content) <= MOST_BYTES:
        return [RECORDS + content]
    return [RECORDS + _encode((store, [part])) for each in plain for part in _parts(*each)]


def _parts(put: bool, table: str, rows: list[Any]) -> Iterator[tuple[bool, str, list[Any]]]:
    part, size = list[Any](), 0
    for row in rows:
        part.append(row)
        size += len(_encode(row))
        if size > MOST_BYTES // 2:
            yield put, table, part
            part, size = [], 0
    if part:
        yield put, table, part


def decode_changes(entry: bytes) -> tuple[str, list[Change]]:
    """Return the store and the changes of an entry."""
    try:
        store, plain = _decode(entry[1:])
        tables = _TABLES[store]
        changes: list[Change] = [
            Put(tables[name], [tuple(row) for row in rows]) if put else Delete(tables[name], rows)
            for put, name, rows in plain
        ]
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise JournalDamaged(f"An entry of the replication log cannot be read: {error}.") from error
    return store, changes


def tasks_with_secrets(entry: bytes) -> list[Key]:
    """Return the tasks whose secrets an entry has written."""
    if not entry.startswith(OF_SECRETS):
        return []
    return [row[0] for change in decode_changes(entry)[1] if isinstance(change, Put) for row in change.rows]


def without_secrets(entry: bytes, tasks: Collection[Key]) -> bytes:
    """Return an entry that has written secrets without those of some tasks, which were deleted by a later entry."""
    store, changes = decode_changes(entry)
    kept: list[Change] = [
        Put(change.table, [row for row in change.rows if row[0] not in tasks]) if isinstance(change, Put) else change
        for change in changes
    ]
    (content,) = encode_changes(store, kept)
    return content
