"""The contract of the small stores beside the journal. Every test runs on each store."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuyard.live.control_plane.stores.cluster_records import ClusterRecords, Delete, Put, RecordsLayout, SqliteRecords
from gpuyard.live.control_plane.stores.database import StoreError
from gpuyard.live.control_plane.stores.record_layouts import (
    ACCESS_LAYOUT,
    DOCUMENTS,
    DOCUMENTS_LAYOUT,
    LAYOUTS,
    SECRETS,
    SECRETS_LAYOUT,
    TOKENS,
    USERS,
)
from tests.postgres_server import shared_server

Make = Callable[[Path, RecordsLayout], ClusterRecords]

ANN = ("ann", "$hash", "lab", "member", 0, 1_800_000_000.123456)
BOB = ("bob", "$hash 'é' %s", None, "admin", 1, 5e-324)
TOKEN = ("t1", b"\x00\xff'\\", "ann", 'laptop {"a", NULL}', "token", 1.5, None, 0.1 + 0.2, None, None)
SESSION = ("t2", b"", "ann", "", "session", 2.0, 3.0, None, 4.0, 2**40)


def in_file(folder: Path, layout: RecordsLayout) -> ClusterRecords:
    return SqliteRecords.open(folder / f"{layout.name}.sqlite", layout)


def in_postgres(folder: Path, layout: RecordsLayout) -> ClusterRecords:
    """Open the store that belongs to a folder, as the next leader of the journal in its schema."""
    server = shared_server()
    from gpuyard.core.journal.stores.postgres import PostgresJournal
    from gpuyard.live.control_plane.stores.postgres_records import PostgresRecords

    url = server.url(server.schema_of(folder))
    journal = PostgresJournal.open(url)
    journal.close()
    return PostgresRecords.open(url, layout, epoch=journal.epoch)


STORES: dict[str, Make] = {"sqlite": in_file, "postgres": in_postgres}


@pytest.fixture(params=STORES)
def make(request: pytest.FixtureRequest) -> Make:
    return STORES[request.param]


@pytest.fixture
def access(make: Make, tmp_path: Path) -> Iterator[ClusterRecords]:
    made = make(tmp_path, ACCESS_LAYOUT)
    yield made
    made.close()


def test_new_stores_are_empty(make: Make, tmp_path: Path) -> None:
    for layout in LAYOUTS:
        store = make(tmp_path, layout)
        assert [store.rows(table) for table in layout.tables] == [[] for _ in layout.tables]
        assert store.keys(layout.tables[0]) == []
        store.close()


def test_rows_are_returned_exactly_as_they_were_put(access: ClusterRecords) -> None:
    access.write(Put(USERS, [ANN, BOB]), Put(TOKENS, [TOKEN, SESSION]))
    assert sorted(access.rows(USERS)) == [ANN, BOB]
    assert sorted(access.rows(TOKENS)) == [TOKEN, SESSION]
    assert sorted(map(str, access.keys(TOKENS))) == ["t1", "t2"]


def test_columns_without_any_value_can_be_written(access: ClusterRecords) -> None:
    access.write(Put(USERS, [BOB]))
    token = (*TOKEN[:2], "bob", *TOKEN[3:6], None, None, None, None)
    access.write(Put(TOKENS, [token]))
    assert access.rows(TOKENS) == [token]


def test_rows_are_found_by_key(access: ClusterRecords) -> None:
    access.write(Put(USERS, [ANN, BOB]))
    assert access.rows(USERS, ["bob", "eve"]) == [BOB]
    assert access.rows(USERS, []) == []


def test_numbers_are_keys_too(make: Make, tmp_path: Path) -> None:
    store = make(tmp_path, SECRETS_LAYOUT)
    store.write(Put(SECRETS, [(1, b"one"), (2**50, b"large")]))
    assert store.rows(SECRETS, [2**50]) == [(2**50, b"large")]
    store.write(Delete(SECRETS, [1, 7]))
    assert store.keys(SECRETS) == [2**50]
    store.tidy()
    store.close()


def test_a_put_replaces_a_row_and_leaves_the_rows_that_depend_on_it(access: ClusterRecords) -> None:
    access.write(Put(USERS, [ANN]), Put(TOKENS, [TOKEN]))
    changed = (*ANN[:3], "admin", *ANN[4:])
    access.write(Put(USERS, [changed]))
    assert access.rows(USERS) == [changed]
    assert access.rows(TOKENS) == [TOKEN]


def test_a_change_can_be_repeated(access: ClusterRecords) -> None:
    access.write(Put(USERS, [ANN, BOB]), Put(TOKENS, [TOKEN]))
    for _ in range(2):
        access.write(Delete(TOKENS, ["t1"]), Delete(USERS, ["ann"]))
        access.write(Put(USERS, [BOB]))
        access.write()
        access.write(Put(USERS, []), Delete(TOKENS, []))
    assert access.rows(USERS) == [BOB]
    assert access.rows(TOKENS) == []


def test_all_changes_of_a_write_are_made_or_none(access: ClusterRecords) -> None:
    access.write(Put(USERS, [ANN]))
    invalid = ("eve", None, None, "admin", 0, 1.0)
    with pytest.raises(StoreError):
        access.write(Put(TOKENS, [TOKEN]), Delete(TOKENS, ["t2"]), Put(USERS, [BOB, invalid]))
    assert access.rows(USERS) == [ANN]
    assert access.rows(TOKENS) == []
    access.write(Put(USERS, [BOB]))
    assert sorted(access.rows(USERS)) == [ANN, BOB]


def test_a_row_occurs_in_one_change_only(access: ClusterRecords) -> None:
    with pytest.raises(AssertionError, match="changed twice"):
        access.write(Put(USERS, [ANN]), Delete(USERS, ["ann"]))


def test_rows_are_there_after_opening_again(make: Make, tmp_path: Path) -> None:
    store = make(tmp_path, DOCUMENTS_LAYOUT)
    store.write(Put(DOCUMENTS, [("applied.json", b"{}", 0)]))
    store.close()
    store.close()
    store = make(tmp_path, DOCUMENTS_LAYOUT)
    assert store.rows(DOCUMENTS) == [("applied.json", b"{}", 0)]
    store.close()


def test_a_closed_store_is_not_used(access: ClusterRecords) -> None:
    access.close()
    with pytest.raises(StoreError):
        access.rows(USERS)
    with pytest.raises(StoreError):
        access.write(Put(USERS, [ANN]))
