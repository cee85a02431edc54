"""Snapshots of a large state are written by another process, and equal those of the loop."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.errors import JournalError
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.values import NodeId, Outcome, TaskId
from gpuyard.core.journal.records import Position
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.control_plane.stores.archive import Archive
from gpuyard.live.control_plane.stores.recovery import open_journal, recover, snapshot_content
from gpuyard.live.control_plane.stores.snapshotter import write_in_process
from gpuyard.live.control_plane.submissions import Submission
from tests.unit.live.control_plane.clusters import ADMIN, open_scheduler, run, spec, submit, until


async def lives(scheduler: Scheduler, count: int) -> None:
    """Tasks wait, run, and end; those that ended are in the archive, except for the last one."""
    if not scheduler.views.nodes:
        await scheduler.loop.tell(command.JoinNode(NodeSpec(NodeId("n"), (Gpu("v", 1024),) * 2, 64, 1024), ()))
    tasks = await submit(scheduler, *(spec(name=f"x{place}", tenant=f"t{place % 3}") for place in range(count)))
    await scheduler.submissions.submit(
        [Submission([spec()] * 20, {}), Submission([spec()] * 20, {}, after_success=(0,))], ADMIN
    )
    for task in tasks[:2]:
        await scheduler.loop.tell(command.ReportStarted(task, 1))
        await scheduler.loop.tell(command.ReportEnded(task, 1, Outcome.SUCCEEDED, 0))
        if task == tasks[0]:
            await scheduler.archiver.archive_now()


def still_open(state: dict[str, Any]) -> dict[str, Any]:
    """Without the tasks that ended: they leave for the archive at any moment."""
    return {**state, "tasks": [task for task in state["tasks"] if "finished_at" not in task]}


@pytest.mark.slow
def test_a_process_writes_the_same_snapshot_as_the_loop(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, snapshot_seconds=9999.0, small_cluster=0) as (scheduler, _):
            for _ in range(3):  # the second and third from a snapshot on
                await lives(scheduler, 10)
                expected = json.loads(
                    msgspec.json.encode(snapshot_content(scheduler.loop.engine.state, scheduler.views))
                )
                await scheduler.snapshots.save()
                newest = next(scheduler.stores.journal.usable_snapshots(), None)
                assert newest is not None
                assert newest.position == scheduler.stores.journal.head
                expected["engine"]["now"] = newest.state["engine"]["now"]  # the loop's is later than its last event
                assert still_open(newest.state) == still_open(expected)
                assert len(newest.state["tasks"]) <= len(newest.state["engine"]["tasks"]) + 1
            assert len(list(tmp_path.glob("journal/snapshot-*.json"))) == 2

    run(story)


def test_a_scheduler_restarts_from_such_a_snapshot(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, snapshot_seconds=9999.0, small_cluster=0) as (scheduler, _):
            await lives(scheduler, 10)
            await scheduler.snapshots.save()
            await submit(scheduler, spec(name="later"))
            before = still_open(snapshot_content(scheduler.loop.engine.state, scheduler.views))
            engine, views = recover(scheduler.stores.journal)
            assert still_open(snapshot_content(engine.state, views)) == before

    run(story)


@pytest.mark.slow
def test_a_start_that_applied_many_events_is_followed_by_a_snapshot_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "journal"

    def remove_snapshots() -> None:
        """As after a kill: only a planned stop saves one."""
        for path in folder.glob("snapshot-*.json"):
            path.unlink()

    async def story() -> None:
        async with open_scheduler(tmp_path, snapshot_seconds=9999.0) as (scheduler, _):
            await submit(scheduler, *(spec() for _ in range(40)))
        remove_snapshots()
        async with open_scheduler(tmp_path, snapshot_seconds=9999.0, many_events=20) as (scheduler, _):
            assert scheduler.views.snapshot_seq == 0
            await until(lambda: list(folder.glob("snapshot-*.json")))
        async with open_scheduler(tmp_path, snapshot_seconds=9999.0) as (scheduler, _):
            assert scheduler.views.snapshot_seq > 40, "the start began from it"

    run(story)


def test_the_loop_answers_while_the_process_works(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, snapshot_seconds=9999.0, small_cluster=0) as (scheduler, _):
            await lives(scheduler, 2_000)
            saving = asyncio.create_task(scheduler.snapshots.save())
            answered, longest = 0, 0.0
            while not saving.done():
                before = time.thread_time()
                await scheduler.loop.look(lambda state, now: (len(state.tasks), now))
                longest = max(longest, time.thread_time() - before)
                answered += 1
                await asyncio.sleep(0.005)
            await saving
            assert answered > 10
            assert longest < 0.1, "of the loop's own processor time, whatever runs beside it"

    run(story)


def test_a_failing_process_says_why_and_leaves_earlier_snapshots(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, snapshot_seconds=9999.0) as (scheduler, _):
            await lives(scheduler, 2)
            await scheduler.snapshots.save()
            journal = scheduler.stores.journal
            assert isinstance(journal, SqliteJournal)
            kept = sorted(tmp_path.glob("journal/snapshot-*.json"))
            beside = tmp_path / "no" / "such" / "folder"
            with pytest.raises(JournalError, match="was not written: FileNotFoundError"):
                await write_in_process(journal.folder, journal.head, 0, beside)
            with pytest.raises(JournalError, match="never at event"):
                journal.adopt_snapshot(Position(3, "0" * 32), tmp_path)
            assert sorted(tmp_path.glob("journal/snapshot-*.json")) == kept

    run(story)


def test_leftovers_of_a_killed_process_do_not_matter(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, snapshot_seconds=9999.0, small_cluster=0) as (scheduler, _):
            await lives(scheduler, 2)
            (tmp_path / "journal" / "making").mkdir()
            (tmp_path / "journal" / "making" / "snapshot-000000000002.json.new").write_text("{")
            await scheduler.snapshots.save()
            assert await submit(scheduler, spec())
        journal = open_journal(tmp_path / "journal")
        assert journal.notes == []
        journal.close()

    run(story)


def test_a_damaged_archive_finds_no_request_and_refuses_none(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, _):
            await submit(scheduler, spec(), key="one", body=b"one")
            await scheduler.archiver.archive_now()
            database = Archive.open(tmp_path / "other.sqlite")
            database._writer.execute("DROP TABLE keys")
            database.close()
            scheduler._requests._archive = database
            assert await submit(scheduler, spec(), key="two", body=b"two") == [TaskId(2)]

    run(story)
