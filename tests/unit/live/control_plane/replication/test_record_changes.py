"""Changes of the small stores as entries of the replication log."""

import pytest

from gpuyard.core.domain.errors import JournalDamaged
from gpuyard.live.control_plane.replication import record_changes
from gpuyard.live.control_plane.replication.record_changes import RECORDS, decode_changes, encode_changes
from gpuyard.live.control_plane.stores.cluster_records import Change, Delete, Put
from gpuyard.live.control_plane.stores.record_layouts import DOCUMENTS, SECRETS, TOKENS, USERS

ANN = ("ann", "$hash", "lab", "member", 0, 1_800_000_000.123456)
TOKEN = ("t1", b"\x00\xff'\\", "ann", 'laptop {"a", NULL}', "token", 1.5, None, 0.1 + 0.2, None, 2**40)


@pytest.mark.parametrize(
    ("store", "changes"),
    [
        ("access", [Put(USERS, [ANN]), Put(TOKENS, [TOKEN])]),
        ("access", [Delete(TOKENS, ["t1", "t2"]), Delete(USERS, ["ann"])]),
        ("secrets", [Put(SECRETS, [(7, b"\x01\x02")]), Delete(SECRETS, [8])]),
        ("documents", [Put(DOCUMENTS, [("applied.json", b"{}", 0)])]),
    ],
)
def test_changes_are_read_as_they_were_written(store: str, changes: list[Change]) -> None:
    (entry,) = encode_changes(store, changes)
    assert entry.startswith(RECORDS)
    assert decode_changes(entry) == (store, changes)


def test_large_changes_become_several_entries_that_make_the_same_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_changes, "MOST_BYTES", 1000)
    rows = [(task, b"x" * 200) for task in range(20)]
    entries = encode_changes("secrets", [Put(SECRETS, rows), Delete(SECRETS, list(range(100, 120)))])
    assert len(entries) > 2
    assert max(map(len, entries)) < 1000
    decoded = [change for entry in entries for change in decode_changes(entry)[1]]
    assert [row for change in decoded if isinstance(change, Put) for row in change.rows] == rows
    assert [key for change in decoded if isinstance(change, Delete) for key in change.keys] == list(range(100, 120))


@pytest.mark.parametrize(
    "entry", [b"R", b"R\x93\x01\x02\x03", b"R\x92\xa7nothing\x90", b"R\x92\xa6access\x91\x93\xc3\xa1x\x90"]
)
def test_an_entry_that_cannot_be_read_is_reported(entry: bytes) -> None:
    with pytest.raises(JournalDamaged, match="cannot be read"):
        decode_changes(entry)
