"""When a node is told to remove a checkpoint folder, and what a node is told about an attempt that may save."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from gpuyard.core.domain.commands import CancelTask
from gpuyard.core.domain.values import TaskId, TaskStatus
from gpuyard.live.control_plane.nodes.checkpoints import submitted_us
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import AgentsStub
from gpuyard.testing.fake_node import register_node
from tests.unit.live.control_plane.clusters import TOKEN, ended, open_scheduler, run, spec, submit


class Node:
    """A node whose commands the test reads one by one."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._commands: list[pb.Command] = []
        self._reports = 0

    async def hears(self, kind: str, attempt: int = 0) -> pb.Command:
        """Return the next command of a kind, about this attempt. A node that has just registered hears some twice."""
        async with asyncio.timeout(20):
            while True:
                while self._commands:
                    said = self._commands.pop(0)
                    if said.WhichOneof("what") == kind and said.attempt >= attempt:
                        return said
                self._commands += (await self._call.read()).commands

    async def reports(self, said: pb.Command, **what: Any) -> None:
        self._reports += 1
        report = pb.Report(number=self._reports, task=said.task, attempt=said.attempt, origin=said.origin, **what)
        await self._call.write(pb.AgentMessage(reports=[report]))

    async def asks_about(self, *found: pb.Checkpoint) -> set[tuple[int, int]]:
        """Report folders and return those to remove. A last one that is always removed shows that all are decided."""
        last = pb.Checkpoint(task=999, submitted_us=1, empty=True)
        await self._call.write(pb.AgentMessage(heartbeat=pb.Heartbeat(at=1.0, checkpoints=[*found, last])))
        removed = set()
        while (said := await self.hears("remove_checkpoint")).task != 999:
            removed.add((said.task, said.remove_checkpoint.submitted_us))
        return removed


@asynccontextmanager
async def node_of(address: str, name: str = "n") -> AsyncIterator[Node]:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = AgentsStub(channel)
        described = pb.Node(id=name, gpus=[pb.Gpu(model="v", memory_mib=1)], cpus=1, memory_mib=1)
        welcome = await register_node(stub, pb.Registration(node=described, instance=name), TOKEN)
        call = stub.connect(metadata=(("session", welcome.session),))
        await call.write(pb.AgentMessage())
        yield Node(call)


def test_a_launch_and_a_stop_carry_the_grace_of_the_task(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address), node_of(address) as node:
            (task,) = await submit(scheduler, spec(grace_seconds=90.0))
            launch = await node.hears("launch")
            assert launch.launch.grace_seconds == 90.0
            await node.reports(launch, started=pb.Started(at=1.0))
            await scheduler.loop.tell(CancelTask(task))
            assert (await node.hears("stop")).stop.grace_seconds == 90.0

    run(story)


def test_a_node_that_returns_is_told_the_grace_with_the_stop(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            async with node_of(address) as node:
                (task,) = await submit(scheduler, spec(grace_seconds=90.0))
                launch = await node.hears("launch")
                await node.reports(launch, started=pb.Started(at=1.0))
                await scheduler.loop.tell(CancelTask(task))
                await node.hears("stop")
            async with grpc.aio.insecure_channel(address) as channel:
                stub = AgentsStub(channel)
                described = pb.Node(id="n", gpus=[pb.Gpu(model="v", memory_mib=1)], cpus=1, memory_mib=1)
                held = pb.Attempt(task=task, attempt=1, origin=launch.origin, state=pb.Attempt.RUNNING)
                registration = pb.Registration(node=described, instance="n", attempts=[held])
                welcome = await register_node(stub, registration, TOKEN)
                call = stub.connect(metadata=(("session", welcome.session),))
                await call.write(pb.AgentMessage())
                assert (await Node(call).hears("stop")).stop.grace_seconds == 90.0

    run(story)


def test_an_attempt_without_a_grace_leaves_it_to_the_node(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address), node_of(address) as node:
            (task,) = await submit(scheduler, spec())
            launch = await node.hears("launch")
            assert launch.launch.grace_seconds == 0.0
            await node.reports(launch, started=pb.Started(at=1.0))
            await scheduler.loop.tell(CancelTask(task))
            assert (await node.hears("stop")).stop.grace_seconds == 0.0

    run(story)


@pytest.mark.parametrize("restarted", [False, True])
def test_the_next_attempt_is_told_why_the_last_one_ended(tmp_path: Path, restarted: bool) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address), node_of(address) as node:
            await submit(scheduler, spec(retries=1))
            first = await node.hears("launch")
            assert first.launch.restart_reason == ""
            await node.reports(first, started=pb.Started(at=1.0))
            await node.reports(first, ended=pb.Ended(outcome=pb.Ended.FAILED, exit_code=3, at=2.0))
            if not restarted:
                second = await node.hears("launch", attempt=2)
                assert (second.attempt, second.launch.restart_reason) == (2, "exit_code")
                assert second.launch.submitted_us == first.launch.submitted_us > 0
                return
            while not scheduler.views.tasks[TaskId(1)].restart_reason:
                await asyncio.sleep(0.005)
            await scheduler.snapshots.save()
        async with open_scheduler(tmp_path) as (scheduler, address), node_of(address) as node:
            second = await node.hears("launch", attempt=2)
            assert (second.attempt, second.launch.restart_reason) == (2, "exit_code")
            assert second.launch.submitted_us == first.launch.submitted_us

    run(story)


async def _ended_task(scheduler: Scheduler, node: Node, outcome: "pb.Ended.Outcome") -> tuple[TaskId, int]:
    (task,) = await submit(scheduler, spec())
    launch = await node.hears("launch")
    await node.reports(launch, started=pb.Started(at=1.0))
    await node.reports(launch, ended=pb.Ended(outcome=outcome, exit_code=int(outcome != pb.Ended.SUCCEEDED), at=2.0))
    await ended(scheduler, task, TaskStatus.SUCCESS if outcome == pb.Ended.SUCCEEDED else TaskStatus.FAILED)
    return task, launch.launch.submitted_us


@pytest.mark.parametrize("outcome", [pb.Ended.SUCCEEDED, pb.Ended.FAILED])
@pytest.mark.parametrize(("keep_seconds", "kept"), [(3600.0, True), (0.0, False)])
def test_the_folder_of_an_ended_task_is_kept_for_the_configured_time(
    tmp_path: Path, outcome: "pb.Ended.Outcome", keep_seconds: float, kept: bool
) -> None:
    async def story() -> None:
        opened = open_scheduler(tmp_path, checkpoint_seconds=keep_seconds)
        async with opened as (scheduler, address), node_of(address) as node:
            task, submitted = await _ended_task(scheduler, node, outcome)
            found = pb.Checkpoint(task=task, submitted_us=submitted)
            assert await node.asks_about(found) == (set() if kept else {(task, submitted)})
            empty = pb.Checkpoint(task=task, submitted_us=submitted, empty=True)
            assert await node.asks_about(empty) == {(task, submitted)}

    run(story)


def test_the_folder_of_a_task_that_can_still_run_is_kept_even_if_it_is_empty(tmp_path: Path) -> None:
    async def story() -> None:
        opened = open_scheduler(tmp_path, checkpoint_seconds=0.0)
        async with opened as (scheduler, address), node_of(address) as node:
            running, waiting = await submit(scheduler, spec(), spec())
            await node.hears("launch")
            found = [
                pb.Checkpoint(
                    task=task,
                    submitted_us=submitted_us(scheduler.views.tasks[task].submitted_at),
                    empty=True,
                    idle_seconds=1e9,
                )
                for task in (running, waiting)
            ]
            assert await node.asks_about(*found) == set()

    run(story)


def test_the_folder_of_an_unknown_task_is_kept_while_it_is_used(tmp_path: Path) -> None:
    async def story() -> None:
        opened = open_scheduler(tmp_path, checkpoint_seconds=100.0)
        async with opened as (scheduler, address), node_of(address) as node:
            (open_task,) = await submit(scheduler, spec())
            young = pb.Checkpoint(task=500, submitted_us=5, idle_seconds=99.0)
            old = pb.Checkpoint(task=501, submitted_us=5, idle_seconds=101.0)
            namesake = pb.Checkpoint(task=open_task, submitted_us=5, idle_seconds=101.0)
            strange = pb.Checkpoint(task=2**64 - 1, submitted_us=5, idle_seconds=float("nan"))
            zero = pb.Checkpoint(task=0, submitted_us=5, empty=True)
            assert await node.asks_about(young, old, namesake, strange, zero) == {(501, 5), (open_task, 5)}

    run(story)
