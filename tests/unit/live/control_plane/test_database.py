"""Small stores beside the journal: upgrading older files."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from gpuyard.live.control_plane.stores.database import DatabaseLayout, StoreError, StoreFromFuture, open_database

OLD = DatabaseLayout("things", 1, "CREATE TABLE things (name TEXT)", durable=True, exclusive=True)
NEW = replace(
    OLD,
    version=3,
    tables="CREATE TABLE things (name TEXT, size INTEGER, color TEXT)",
    upgrades=("ALTER TABLE things ADD COLUMN size INTEGER", "ALTER TABLE things ADD COLUMN color TEXT"),
)


def test_an_older_file_is_upgraded_with_its_content(tmp_path: Path) -> None:
    path = tmp_path / "things.sqlite"
    old = open_database(path, OLD)
    old.execute("INSERT INTO things VALUES ('a')")
    old.close()
    for _ in range(2):
        new = open_database(path, NEW)
        assert new.execute("SELECT * FROM things").fetchall() == [("a", None, None)]
        new.close()
    with pytest.raises(StoreFromFuture):
        open_database(path, OLD)


def test_a_file_without_an_upgrade_path_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "things.sqlite"
    open_database(path, OLD).close()
    with pytest.raises(StoreError, match="which this gpuyard no longer reads"):
        open_database(path, replace(NEW, upgrades=()))
    open_database(path, OLD).close()
