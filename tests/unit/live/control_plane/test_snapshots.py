"""Snapshots: of a large yard another process makes them, and they are what the loop itself would have written."""

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
from gpuyard.live.control_plane.scheduler import Scheduler, Submission
from gpuyard.live.control_plane.stores.archive import Archive
from gpuyard.live.control_plane.stores.recovery import open_journal, recover, snapshot_content
from gpuyard.live.control_plane.stores.snapshotter import write_in_process
from tests.unit.live.control_plane.yards import ADMIN, open_yard, run, spec, submit


async def lives(yard: Scheduler, count: int) -> None:
    """Tasks wait, run, and end; those that ended are in the archive, except for the last one."""
    if not yard.views.nodes:
        await yard.loop.tell(command.JoinNode(NodeSpec(NodeId("n"), (Gpu("v", 1024),) * 2, 64, 1024), ()))
    tasks = await submit(yard, *(spec(name=f"x{place}", tenant=f"t{place % 3}") for place in range(count)))
    await yard.submit([Submission([spec()] * 20, {}), Submission([spec()] * 20, {}, after_success=(0,))], ADMIN)
    for task in tasks[:2]:
        await yard.loop.tell(command.ReportStarted(task, 1))
        await yard.loop.tell(command.ReportEnded(task, 1, Outcome.SUCCEEDED, 0))
        if task == tasks[0]:
            await yard._archive_now()


def still_open(state: dict[str, Any]) -> dict[str, Any]:
    """Without the tasks that ended: they leave for the archive at any moment."""
    return {**state, "tasks": [task for task in state["tasks"] if "finished_at" not in task]}


@pytest.mark.slow
def test_a_process_writes_what_the_loop_would_have_written(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path, snapshot_seconds=9999.0, small_cluster=0) as (yard, _):
            for _ in range(3):  # the second and third from a snapshot on
                await lives(yard, 10)
                expected = json.loads(msgspec.json.encode(snapshot_content(yard.loop.engine.state, yard.views)))
                await yard._save_snapshot()
                newest = next(yard.journal.usable_snapshots(), None)
                assert newest is not None
                assert newest.position == yard.journal.head
                expected["engine"]["now"] = newest.state["engine"]["now"]  # the loop's is later than its last fact
                assert still_open(newest.state) == still_open(expected)
                assert len(newest.state["tasks"]) <= len(newest.state["engine"]["tasks"]) + 1
            assert len(list(tmp_path.glob("journal/snapshot-*.json"))) == 2

    run(story)


def test_a_yard_comes_back_from_such_a_snapshot(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path, snapshot_seconds=9999.0, small_cluster=0) as (yard, _):
            await lives(yard, 10)
            await yard._save_snapshot()
            await submit(yard, spec(name="later"))
            before = still_open(snapshot_content(yard.loop.engine.state, yard.views))
            engine, views = recover(yard.journal)
            assert still_open(snapshot_content(engine.state, views)) == before

    run(story)


def test_the_loop_answers_while_the_process_works(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path, snapshot_seconds=9999.0, small_cluster=0) as (yard, _):
            await lives(yard, 2_000)
            saving = asyncio.create_task(yard._save_snapshot())
            answered, longest = 0, 0.0
            while not saving.done():
                before = time.thread_time()
                await yard.loop.look(lambda state, now: (len(state.tasks), now))
                longest = max(longest, time.thread_time() - before)
                answered += 1
                await asyncio.sleep(0.005)
            await saving
            assert answered > 10
            assert longest < 0.1, "of the loop's own processor time, whatever runs beside it"

    run(story)


def test_a_process_that_fails_says_why_and_leaves_the_snapshots_as_they_were(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path, snapshot_seconds=9999.0) as (yard, _):
            await lives(yard, 2)
            await yard._save_snapshot()
            kept = sorted(tmp_path.glob("journal/snapshot-*.json"))
            beside = tmp_path / "no" / "such" / "folder"
            with pytest.raises(JournalError, match="was not written: FileNotFoundError"):
                await write_in_process(yard.journal.folder, yard.journal.head, 0, beside)
            with pytest.raises(JournalError, match="never at fact"):
                yard.journal.adopt_snapshot(Position(3, "0" * 32), tmp_path)
            assert sorted(tmp_path.glob("journal/snapshot-*.json")) == kept

    run(story)


def test_what_a_killed_process_left_does_not_matter(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path, snapshot_seconds=9999.0, small_cluster=0) as (yard, _):
            await lives(yard, 2)
            (tmp_path / "journal" / "making").mkdir()
            (tmp_path / "journal" / "making" / "snapshot-000000000002.json.new").write_text("{")
            await yard._save_snapshot()
            assert await submit(yard, spec())
        journal = open_journal(tmp_path / "journal")
        assert journal.notes == []
        journal.close()

    run(story)


def test_a_damaged_archive_knows_no_request_and_refuses_none(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path) as (yard, _):
            await submit(yard, spec(), key="one", body=b"one")
            await yard._archive_now()
            database = Archive.open(tmp_path / "other.sqlite")
            database._writer.execute("DROP TABLE keys")
            database.close()
            yard._requests._archive = database
            assert await submit(yard, spec(), key="two", body=b"two") == [TaskId(2)]

    run(story)
