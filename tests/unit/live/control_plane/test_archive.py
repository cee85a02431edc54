"""Ended tasks: pages, totals, retention, idempotency keys, and what happens to a damaged file."""

import random
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from msgspec.structs import replace

from gpuyard.core.domain.values import ENDED, TaskClass, TaskId, TaskStatus, TenantId
from gpuyard.live.control_plane.stores.archive import (
    EVERYTHING,
    Archive,
    ArchiveRow,
    Filters,
    Order,
    SortKey,
    SubmitKey,
)
from gpuyard.live.control_plane.stores.database import StoreDamaged, StoreError, StoreFromFuture, StoreFull
from gpuyard.live.control_plane.views import searched_text

FAILED, SUCCESS, TIMEOUT = TaskStatus.FAILED, TaskStatus.SUCCESS, TaskStatus.TIMEOUT


def row(
    task: int,
    status: TaskStatus = SUCCESS,
    *,
    tenant: str = "lab",
    priority: int = 50,
    user: str = "",
    project: str = "",
    name: str = "",
    created_at: float | None = None,
    finished_at: float | None = None,
    started_at: float | None = None,
) -> ArchiveRow:
    return ArchiveRow(
        TaskId(task),
        TenantId(tenant),
        status,
        TaskClass.BATCH,
        priority,
        user,
        project,
        name,
        float(task) if created_at is None else created_at,
        float(task) if finished_at is None else finished_at,
        b'{"id":%d}' % task,
        started_at,
        searched_text(TaskId(task), name, user, f"python x.py {task}"),
    )


def ids(archive: Archive, filters: Filters = EVERYTHING, before: int | None = None, limit: int = 100) -> list[int]:
    page = archive.page(filters, None if before is None else TaskId(before), limit)
    assert all(answer == b'{"id":%d}' % task for task, answer in page)
    return [task for task, _ in page]


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive.open(tmp_path / "archive.sqlite")


def test_an_ended_task_is_found_by_answer_and_status(archive: Archive) -> None:
    archive.add([row(7, FAILED), row(9)], seq=40)

    assert archive.get(TaskId(7)) == b'{"id":7}'
    assert archive.get(TaskId(8)) is None
    assert archive.statuses([TaskId(7), TaskId(8), TaskId(9)]) == {7: FAILED, 9: SUCCESS}


def test_the_archive_remembers_its_position_in_the_journal(tmp_path: Path) -> None:
    archive = Archive.open(tmp_path / "archive.sqlite")
    assert archive.seq == 0
    archive.add([row(1)], seq=12)
    archive.add([], seq=30)
    archive.close()

    again = Archive.open(tmp_path / "archive.sqlite")
    assert again.seq == 30
    assert again.note is None
    assert ids(again) == [1]


def test_a_task_added_twice_is_counted_once_and_unchanged(archive: Archive) -> None:
    archive.add([row(1), row(2)], seq=1)
    archive.add([row(2, FAILED), row(3), row(3)], seq=2)

    assert archive.count() == 3
    assert archive.statuses([TaskId(2)]) == {2: SUCCESS}


def test_pages_run_from_the_newest_to_the_oldest(archive: Archive) -> None:
    archive.add([row(task, ENDED[task % 4]) for task in range(1, 251)], seq=1)

    seen: list[int] = []
    while page := ids(archive, before=seen[-1] if seen else None):
        seen += page
    assert seen == list(range(250, 0, -1))


def test_a_page_of_several_statuses_is_ordered_by_age(archive: Archive) -> None:
    archive.add([row(task, ENDED[task % 4]) for task in range(1, 21)], seq=1)

    asked = Filters(statuses=(FAILED, TIMEOUT))
    assert ids(archive, asked, limit=4) == [19, 17, 15, 13]
    assert ids(archive, asked, before=13, limit=4) == [11, 9, 7, 5]
    assert archive.count(asked) == 10


def test_a_status_without_ended_tasks_gives_an_empty_list(archive: Archive) -> None:
    archive.add([row(1)], seq=1)

    assert ids(archive, Filters(statuses=(TaskStatus.RUNNING,))) == []
    assert archive.count(Filters(statuses=(TaskStatus.RUNNING,))) == 0
    assert ids(archive, limit=0) == []


def test_impossible_task_numbers_are_not_found(archive: Archive) -> None:
    archive.add([row(1)], seq=1)

    assert archive.get(TaskId(10**30)) is None
    assert archive.get(TaskId(-(10**30))) is None
    assert archive.statuses([TaskId(10**30)]) == {}
    assert ids(archive, before=10**30) == [1]
    assert ids(archive, before=-(10**30)) == []
    assert archive.count(Filters(priority=10**30)) == 0


WORDS = some.sampled_from(["", "a", "b"])
FILTERS = some.builds(
    Filters,
    statuses=some.lists(some.sampled_from(list(TaskStatus)), unique=True, max_size=3).map(tuple),
    tenant=some.none() | some.sampled_from(["a", "b", "c"]),
    priority=some.none() | some.sampled_from([20, 80, 81]),
    user=some.none() | WORDS,
    project=some.none() | WORDS,
    name=some.none() | WORDS,
    since=some.none() | some.integers(0, 10).map(float),
    text=some.none() | some.sampled_from(["a\n", "task-3", "x.py 1", "nowhere", "y"]),
)
ORDERS = some.builds(Order, some.sampled_from(get_args(SortKey)), some.booleans())


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Archive, list[ArchiveRow]]:
    chance = random.Random(3)
    words = ["", "a", "b"]
    rows = [
        row(
            task,
            chance.choice(ENDED),
            tenant=chance.choice("ab"),
            priority=chance.choice([20, 80]),
            user=chance.choice(words),
            project=chance.choice(words),
            name=chance.choice(words),
            created_at=float(chance.randrange(10)),
            finished_at=float(chance.randrange(20)),
            started_at=chance.choice([None, float(chance.randrange(20))]),
        )
        for task in range(1, 401)
    ]
    archive = Archive.open(tmp_path_factory.mktemp("mixed") / "archive.sqlite")
    archive.add(rows, seq=1)
    return archive, rows


@pytest.mark.slow
@settings(max_examples=300, deadline=None, database=None)
@given(FILTERS, some.none() | some.integers(0, 402), some.integers(1, 400))
def test_every_filter_equals_a_scan_of_all_rows(
    mixed: tuple[Archive, list[ArchiveRow]], filters: Filters, before: int | None, limit: int
) -> None:
    archive, rows = mixed
    expected = [one.id for one in reversed(rows) if _passes(one, filters)]
    assert (
        ids(archive, filters, before, limit) == [task for task in expected if before is None or task < before][:limit]
    )
    assert archive.count(filters) == len(expected)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, database=None)
@given(FILTERS, ORDERS, some.integers(0, 450), some.integers(1, 400))
def test_every_order_equals_a_sort_of_all_rows(
    mixed: tuple[Archive, list[ArchiveRow]], filters: Filters, order: Order, offset: int, limit: int
) -> None:
    archive, rows = mixed
    matching = [one for one in rows if _passes(one, filters)]
    ordered = [one.id for one in sorted(matching, key=lambda one: _sort_key(one, order), reverse=order.descending)]
    with archive.listed(filters, order) as found:
        assert [task for _, task in found.rows(offset, limit)] == ordered[offset : offset + limit]
        assert found.total == len(matching)
        assert found.contained([TaskId(1), TaskId(400), TaskId(401)]) == {1, 400}


def _sort_key(one: ArchiveRow, order: Order) -> tuple[bool, Any, int]:
    value = one.id if order.by == "created_at" else getattr(one, order.by)
    return (value is not None, 0 if value is None else value, one.id)


def test_a_search_sees_rows_that_were_added_and_removed_since(archive: Archive) -> None:
    one = Filters(text="x.py")
    assert (archive.count(one), ids(archive, one)) == (0, [])
    archive.add([row(1), row(2, finished_at=50.0)], seq=1)
    assert (archive.count(one), ids(archive, one)) == (2, [2, 1])
    archive.retain(10.0)
    assert (archive.count(one), ids(archive, one)) == (1, [2])
    assert ids(archive, Filters(text="%")) == ids(archive, Filters(text="x_py")) == []


def test_upper_and_lower_case_do_not_matter_in_any_language() -> None:
    text = searched_text(TaskId(7), "Straße ÄRGER 训练", "Ann", ("python", "Train.py"))
    for word in ("STRASSE", "ärger", "训练", "ann", "PYTHON train", "task-7"):
        assert word.casefold() in text
    assert len(searched_text(TaskId(1), "", "", "x" * 9999)) < 2100


@pytest.mark.parametrize("order", [Order(by, way) for by in get_args(SortKey) for way in (True, False)])
def test_no_order_sorts_the_whole_archive(archive: Archive, tmp_path: Path, order: Order) -> None:
    """A page in the middle of 100,000 tasks takes a walk over an index; a sort would take tenths of a second."""
    for filters in (EVERYTHING, Filters(text="x")):
        said: list[str] = []
        archive.add([row(task) for task in range(1, 40)], seq=1)
        _first_row(archive, filters, order)
        (reader,) = archive._idle_readers
        reader.set_trace_callback(said.append)
        _first_row(archive, filters, order)
        reader.set_trace_callback(None)
        query = next(one for one in said if "ORDER BY" in one)
        with sqlite3.connect(tmp_path / "archive.sqlite") as database:
            plan = [step[3] for step in database.execute(f"EXPLAIN QUERY PLAN {query}")]
        database.close()
        if filters.text is None or order.by in {"created_at", "name", "priority", "started_at"}:
            assert not any("TEMP B-TREE" in step for step in plan), plan


def _first_row(archive: Archive, filters: Filters, order: Order) -> None:
    with archive.listed(filters, order) as found:
        assert len(found.rows(0, 1)) == 1


def test_story_and_runs_leave_with_their_task(archive: Archive, tmp_path: Path) -> None:
    runs = ((0, "n/0", 1.0, 2.0, 1.0), (0, "n/1", 1.0, 2.0, 1.0), (1, "n/0", 3.0, 4.0, 0.5))
    archive.add([replace(row(1), story=b"[]", runs=runs), replace(row(2), story=b"[2]")], seq=1)
    assert (archive.story(TaskId(1)), archive.story(TaskId(3)), archive.story(TaskId(10**30))) == (b"[]", None, None)
    archive.retain(1.5)
    assert (archive.story(TaskId(1)), archive.story(TaskId(2))) == (None, b"[2]")
    with sqlite3.connect(tmp_path / "archive.sqlite") as database:
        assert database.execute("SELECT count(*) FROM runs").fetchone() == (0,)
        assert database.execute("SELECT count(*) FROM texts").fetchone() == (1,)
    database.close()


VERSION_1 = """
    DROP TRIGGER removed_spans;
    DROP TABLE spans;
    ALTER TABLE tasks RENAME TO newer;
    CREATE TABLE tasks (
        id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, status TEXT NOT NULL, class TEXT NOT NULL,
        priority INTEGER NOT NULL, user TEXT NOT NULL, project TEXT NOT NULL, name TEXT NOT NULL,
        created_at REAL NOT NULL, finished_at REAL NOT NULL
    );
    INSERT INTO tasks SELECT id, tenant, status, class, priority, user, project, name, created_at, finished_at FROM newer;
    DROP TABLE newer;
    DROP TABLE texts;
    DROP TABLE stories;
    DROP TABLE runs;
    CREATE INDEX by_status ON tasks (status);
    CREATE INDEX by_priority ON tasks (priority, status);
    CREATE INDEX by_tenant ON tasks (tenant, status);
    CREATE INDEX by_user ON tasks (user, status, id, tenant) WHERE user != '';
    CREATE INDEX by_project ON tasks (project, status, id, tenant) WHERE project != '';
    CREATE INDEX by_name ON tasks (name, status, id, tenant) WHERE name != '';
    CREATE INDEX by_created ON tasks (created_at, tenant, status, priority);
    CREATE INDEX by_finished ON tasks (finished_at);
    CREATE TRIGGER removed AFTER DELETE ON tasks BEGIN DELETE FROM answers WHERE id = old.id; END;
    PRAGMA user_version = 1;
"""
"""Makes a file of the first version of the current one."""


def test_an_archive_of_the_first_version_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    archive = Archive.open(path)
    answer = (
        b'{"started_at":"2026-01-31T12:00:01.500000Z","command":["python","Train.py"],"allocated_gpus":["n/0","n/1"]}'
    )
    waiting = b'{"started_at":null,"command":null,"allocated_gpus":[]}'
    damaged = b"not JSON"
    rows = [replace(row(number, name="Big"), answer=told) for number, told in enumerate((answer, waiting, damaged), 1)]
    archive.add(rows, seq=1)
    archive.close()
    database = sqlite3.connect(path)
    database.executescript(VERSION_1)
    database.close()
    archive = Archive.open(path)
    assert archive.note is None
    assert archive.page(Filters(text="python"), None, 9) == [(1, answer)]
    assert archive.count(Filters(text="big")) == 2
    with archive.listed(EVERYTHING, Order("started_at", descending=True)) as listed:
        found = listed.rows(0, 9)
    assert found == [(pytest.approx(1769860801.5, abs=0.01), 1), (None, 3), (None, 2)]
    assert archive.story(TaskId(1)) is None
    archive.retain(1e12)
    assert archive.count() == archive.count(Filters(text="big")) == 0
    archive.close()
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*) FROM runs").fetchone() == (0,)
    database.close()


def _passes(one: ArchiveRow, filters: Filters) -> bool:
    wanted = (filters.tenant, filters.priority, filters.user, filters.project, filters.name)
    has = (one.tenant, one.priority, one.user, one.project, one.name)
    return (
        (not filters.statuses or one.status in filters.statuses)
        and all(want is None or want == value for want, value in zip(wanted, has, strict=True))
        and (filters.since is None or one.created_at >= filters.since)
        and (filters.text is None or filters.text in one.text)
    )


def test_no_filter_sorts_or_scans_the_whole_archive(archive: Archive, tmp_path: Path) -> None:
    """A walk over an index in order of age stops where the page is full; a sort would first look at everything."""
    plans: list[str] = []
    for filters in (
        EVERYTHING,
        Filters(statuses=(FAILED, TIMEOUT)),
        Filters(tenant=TenantId("a")),
        Filters(priority=80),
        Filters(user="ann", tenant=TenantId("a")),
        Filters(project="p"),
        Filters(name="n", statuses=(FAILED,)),
    ):
        said: list[str] = []
        archive.page(filters, None, 1)
        (reader,) = archive._idle_readers
        reader.set_trace_callback(said.append)
        archive.page(filters, TaskId(5), 10)
        reader.set_trace_callback(None)
        with sqlite3.connect(tmp_path / "archive.sqlite") as database:
            plans += [step[3] for step in database.execute(f"EXPLAIN QUERY PLAN {said[-1]}")]
        database.close()
    walks = [step for step in plans if " tasks" in step]
    assert walks
    assert all(step.startswith("SEARCH tasks USING") for step in walks), walks


def test_retention_removes_the_longest_ended_in_small_steps(archive: Archive) -> None:
    archive.add([row(task, finished_at=float(100 - task)) for task in range(1, 31)], seq=1)

    assert [archive.retain(80.0, step=4) for _ in range(4)] == [4, 4, 2, 0]
    assert ids(archive) == list(range(20, 0, -1))
    assert archive.count() == archive.count(Filters(tenant=TenantId("lab"))) == 20
    assert archive.get(TaskId(25)) is None


def test_retention_by_age_leaves_what_ended_since_then(archive: Archive) -> None:
    archive.add([row(task, tenant=f"t{task}") for task in range(1, 11)], seq=1)

    assert archive.retain(finished_since=4.0) == 3
    assert ids(archive) == [10, 9, 8, 7, 6, 5, 4]
    assert archive.count(Filters(tenant=TenantId("t1"))) == 0


def test_a_key_is_kept_with_its_result_until_it_is_forgotten(archive: Archive) -> None:
    first = SubmitKey(TenantId("a"), "k", b"hash", (TaskId(1), TaskId(2)), 10.0)
    archive.remember([first, SubmitKey(TenantId("b"), "k", b"other", (TaskId(3),), 20.0)])
    archive.remember([SubmitKey(TenantId("a"), "k", b"later", (TaskId(4),), 30.0)])

    assert archive.lookup(TenantId("a"), "k") == first
    assert archive.lookup(TenantId("a"), "other") is None
    assert archive.forget_keys(before=15.0) == 1
    assert archive.lookup(TenantId("a"), "k") is None
    assert archive.lookup(TenantId("b"), "k") is not None


def test_readers_continue_while_rows_are_added(archive: Archive) -> None:
    added = threading.Event()
    torn: list[object] = []

    def read() -> None:
        while not added.is_set():
            page = ids(archive, limit=1000)
            if page != list(range(len(page), 0, -1)) or len(page) % 10:
                torn.append(page)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for batch in range(30):
        archive.add([row(batch * 10 + one) for one in range(1, 11)], seq=batch)
    added.set()
    for reader in readers:
        reader.join(timeout=30)
    assert torn == []
    assert archive.count() == 300
    archive.close()


ADDER = """
import sys
from pathlib import Path
from gpuyard.live.control_plane.stores.archive import Archive, ArchiveRow
from gpuyard.core.domain.values import TaskClass, TaskStatus

archive = Archive.open(Path(sys.argv[1]))
while True:
    first = archive.seq + 1
    rows = [ArchiveRow(task, "a", TaskStatus.SUCCESS, TaskClass.BATCH, 50, "", "", "", 0.0, 0.0, b"x" * 500) for task in range(first, first + 20)]
    archive.add(rows, first + 19)
    print(archive.seq, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 17, 60])
def test_a_killed_writer_leaves_exactly_the_rows_up_to_its_position(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "archive.sqlite"
    with subprocess.Popen([sys.executable, "-c", ADDER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = [int(writer.stdout.readline()) for _ in range(lines)]
        writer.kill()

    archive = Archive.open(path)
    assert archive.note is None
    assert archive.seq >= said[-1]
    assert archive.count() == archive.seq
    assert [task for task, _ in archive.page(EVERYTHING, None, 10**6)] == list(range(archive.seq, 0, -1))


@pytest.mark.parametrize("damage", [b"", b"not a database at all, but long enough to be looked at" * 100])
def test_a_damaged_archive_is_set_aside_and_recreated(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "archive.sqlite"
    for number in (1, 2):
        path.write_bytes(damage)
        archive = Archive.open(path)
        assert archive.note is not None
        assert f"the old file is archive.sqlite.damaged-{number}" in archive.note
        assert (archive.seq, archive.count()) == (0, 0)
        archive.add([row(1)], seq=5)
        archive.close()
        assert (tmp_path / f"archive.sqlite.damaged-{number}").read_bytes() == damage


def test_damage_found_in_use_is_reported_and_can_be_removed(tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    archive = Archive.open(path)
    archive.add([row(task, name=f"job-{task}") for task in range(1, 2001)], seq=9)
    archive.close()
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = b"\xa5" * (len(content) - len(content) // 2)
    path.write_bytes(content)

    archive = Archive.open(path)
    with pytest.raises(StoreDamaged, match=r"ended tasks.* is damaged") as damage:
        archive.page(EVERYTHING, None, 2000)
    assert "replaced by an empty one" in archive.start_over(damage.value)
    archive.add([row(1)], seq=3)
    assert (ids(archive), archive.seq) == ([1], 3)
    archive.close()


def test_without_space_nothing_is_added_until_there_is_some(archive: Archive) -> None:
    archive.add([row(1)], seq=1)
    (pages,) = archive._writer.execute("PRAGMA page_count").fetchone()
    archive._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
    many = [row(task, name=f"job-{task}") for task in range(2, 1000)]
    with pytest.raises(StoreFull, match=r"No space is left .*Nothing was written; free disk space"):
        archive.add(many, seq=2)
    assert (ids(archive), archive.count(), archive.seq) == ([1], 1, 1)

    archive._writer.execute("PRAGMA max_page_count = 1000000")
    archive.add(many, seq=2)
    assert (archive.count(), archive.seq) == (999, 2)


def test_an_archive_of_a_newer_version_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    Archive.open(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()

    with pytest.raises(StoreFromFuture, match="newer gpuyard"):
        Archive.open(path)
    assert [file.name for file in tmp_path.iterdir()] == ["archive.sqlite"]


def test_a_folder_in_its_place_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "archive.sqlite").mkdir()

    with pytest.raises(StoreError, match=r"cannot be written\. Check the owner"):
        Archive.open(tmp_path / "archive.sqlite")
