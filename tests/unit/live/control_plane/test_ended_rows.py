"""Ended tasks on one row: arrays, sweeps and groups, from memory and from the archive."""

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gpuyard.core.domain.task import Resources, TaskSpec
from gpuyard.core.domain.values import TaskClass, TaskId, TaskStatus, TenantId
from gpuyard.live.control_plane import ended_rows
from gpuyard.live.control_plane.ended_rows import EndedLine, find_lines, rows_of
from gpuyard.live.control_plane.folding import fold_of
from gpuyard.live.control_plane.stores.archive import EVERYTHING, Archive, ArchiveRow, Filters
from gpuyard.live.control_plane.views import TaskView, searched_text

FAILED, SUCCESS = TaskStatus.FAILED, TaskStatus.SUCCESS


def spec(name: str = "", *, index: int | None = None, group: str = "", user: str = "ann") -> TaskSpec:
    return TaskSpec(
        TenantId("lab"), Resources(gpus=1), name=name, user=user, array_index=index, group=group, command="true"
    )


def view(task: int, given: TaskSpec, *, at: float, status: TaskStatus = SUCCESS, submitted: float = 1.0) -> TaskView:
    return TaskView(TaskId(task), given, submitted, status=status, finished_at=at)


def row(task: int, given: TaskSpec, *, at: float, status: TaskStatus = SUCCESS, submitted: float = 1.0) -> ArchiveRow:
    seen = view(task, given, at=at, status=status, submitted=submitted)
    return ArchiveRow(
        TaskId(task), given.tenant, status, TaskClass.BATCH, 50, given.user, "", given.name, submitted, at,
        msgspec.json.encode(seen.answer()), text=searched_text(TaskId(task), given.name, given.user, "true"),
        fold=fold_of(TaskId(task), given, submitted),
    )  # fmt: skip


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive.open(tmp_path / "archive.sqlite")


def lines(archive: Archive, *here: TaskView, limit: int = 10, filters: Filters = EVERYTHING) -> list[EndedLine]:
    with archive.folded(filters) as ended:
        return find_lines(here, ended, limit).lines


def test_tasks_of_an_array_a_sweep_or_a_group_have_one_fold_each() -> None:
    def fold(task: int, given: TaskSpec, submitted: float = 1.0) -> str:
        return fold_of(TaskId(task), given, submitted)

    assert fold(5, spec("a", index=0)) == fold(8, spec("a", index=3)) != ""
    assert fold(5, spec("a", index=0)) != fold(6, spec("a", index=0)), "another array"
    assert fold(5, spec("a", index=0)) != fold(5, spec("a", index=0), 2.0)
    assert fold(5, spec("t[lr=1]")) == fold(9, spec("t[lr=2]")) != ""
    assert fold(5, spec("t[lr=1]")) != fold(5, spec("t[lr=1]", user="bob"))
    assert fold(5, spec("f[x=1]", group="f-1")) == fold(90, spec("f[x=2]", group="f-1"), 70.0) != ""
    assert fold(5, spec("f[x=1]", group="f-1")) != fold(5, spec("f[x=1]", group="f-2"))
    assert fold(5, spec("f[x=1]", group="f-1")) != fold(5, spec("f[x=1]", group="f-1", user="bob"))
    assert fold(5, spec("plain")) == fold(5, spec("odd[name]")) == ""


def test_ended_tasks_are_folded_with_counts_at_the_place_of_the_latest_end(archive: Archive) -> None:
    archive.add(
        [
            row(1, spec("a", index=0), at=10.0),
            row(2, spec("a", index=1), at=40.0, status=FAILED),
            row(3, spec("single"), at=30.0),
            row(4, spec("f[x=1]", group="g"), at=20.0),
            row(6, spec("f[x=2]", group="g"), at=35.0, submitted=9.0),
        ],
        seq=1,
    )
    assert lines(archive) == [
        EndedLine(TaskId(2), {SUCCESS: 1, FAILED: 1}, TaskId(1), TaskId(2)),
        EndedLine(TaskId(6), {SUCCESS: 2}, TaskId(4), TaskId(6)),
        EndedLine(TaskId(3), {}, TaskId(3), TaskId(3)),
    ]


def test_tasks_in_memory_and_in_the_archive_are_one_row(archive: Archive) -> None:
    archive.add([row(1, spec("a", index=0), at=10.0), row(9, spec("other"), at=50.0)], seq=1)
    found = lines(archive, view(2, spec("a", index=1), at=60.0, status=FAILED), view(7, spec("new"), at=55.0))
    assert found == [
        EndedLine(TaskId(2), {SUCCESS: 1, FAILED: 1}, TaskId(1), TaskId(2)),
        EndedLine(TaskId(7), {}, TaskId(7), TaskId(7)),
        EndedLine(TaskId(9), {}, TaskId(9), TaskId(9)),
    ]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(statuses=(FAILED,)), [EndedLine(TaskId(2), {FAILED: 1}, TaskId(2), TaskId(2))]),
        (Filters(text="sing"), [EndedLine(TaskId(3), {}, TaskId(3), TaskId(3))]),
        (Filters(text="swee"), [EndedLine(TaskId(2), {SUCCESS: 1, FAILED: 1}, TaskId(1), TaskId(2))]),
        (Filters(user="bob"), []),
        (Filters(name="single"), [EndedLine(TaskId(3), {}, TaskId(3), TaskId(3))]),
        (Filters(tenant=TenantId("other")), []),
    ],
)
def test_only_tasks_that_match_are_counted(archive: Archive, filters: Filters, expected: list[EndedLine]) -> None:
    archive.add(
        [
            row(1, spec("sweep[a=1]"), at=10.0),
            row(2, spec("sweep[a=2]"), at=40.0, status=FAILED),
            row(3, spec("single"), at=30.0),
        ],
        seq=1,
    )
    assert lines(archive, filters=filters) == expected


def test_there_is_more_behind_the_last_row_only_if_another_row_follows(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.add([row(task, spec("a", index=task - 1), at=float(task)) for task in range(1, 6)], seq=1)
    archive.add([row(9, spec("one"), at=0.5)], seq=2)
    with archive.folded(EVERYTHING) as ended:
        assert find_lines([], ended, 1).has_more
        assert not find_lines([], ended, 2).has_more
        monkeypatch.setattr(ended_rows, "MOST_WALKED", 3)
        walked = find_lines([], ended, 2)
        assert walked.has_more, "the walk ended before the archive did"
        assert walked.lines == [EndedLine(TaskId(5), {SUCCESS: 5}, TaskId(1), TaskId(5))]


def test_a_row_has_the_fields_of_the_task_that_ended_last() -> None:
    one = view(7, spec("f[x=1]", group="g"), at=60.0, status=FAILED)
    line = EndedLine(TaskId(7), {FAILED: 1, SUCCESS: 3}, TaskId(2), TaskId(9))
    for told in (one.answer(), msgspec.json.encode(one.answer())):
        [found] = rows_of([line], {TaskId(7): told})
        assert (found.id, found.count, found.first_id, found.last_id) == ("task-7", 4, "task-2", "task-9")
        assert (found.status, found.counts, found.group) == (FAILED, {FAILED: 1, SUCCESS: 3}, "g")
        assert found.finished_at is not None


def test_an_archive_of_an_older_version_gets_the_column(tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    before = Archive.open(path)
    before.add([replace(row(1, spec("a", index=0), at=1.0), fold="")], seq=1)
    before.close()
    with closing(sqlite3.connect(path)) as database:
        database.executescript("DROP INDEX by_fold; ALTER TABLE tasks DROP COLUMN fold; PRAGMA user_version = 2")
    after = Archive.open(path)
    assert after.note is None
    after.add([row(2, spec("a", index=1), at=2.0), row(3, spec("a", index=2), at=3.0)], seq=2)
    assert lines(after) == [
        EndedLine(TaskId(3), {SUCCESS: 2}, TaskId(2), TaskId(3)),
        EndedLine(TaskId(1), {}, TaskId(1), TaskId(1)),
    ]
