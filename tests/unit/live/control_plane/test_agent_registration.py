"""Registration of agents in edge cases: duplicates, old copies, invalid reports, absences."""

import asyncio
import gc
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from structlog.testing import capture_logs

from gpuyard.core.domain.commands import CancelTask
from gpuyard.core.domain.events import NodeLost, OrphanedAttemptEnded, OrphanedAttemptFound, TaskRequeued
from gpuyard.core.domain.refusals import UnknownAttemptRuns
from gpuyard.core.domain.task import Resources
from gpuyard.core.domain.values import NOT_THERE, AttemptRef, NodeId, OnLost, TaskId, TaskStatus
from gpuyard.core.engine.explain import why_waits
from gpuyard.core.journal.records import Position
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.live.control_plane.access.principal import issuer_of
from gpuyard.live.control_plane.nodes.registration import SchedulerSuperseded
from gpuyard.live.control_plane.nodes.reports import TRIES
from gpuyard.live.control_plane.scheduler import UNKNOWN_TASKS, Scheduler
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import AgentsStub
from gpuyard.testing.fake_node import register_node
from tests.unit.live.control_plane.clusters import (
    ADMIN,
    TOKEN,
    ended,
    open_scheduler,
    run,
    settled,
    silent_for,
    spec,
    status,
    submit,
    until,
)
from tests.unit.live.control_plane.test_clock import Machine

KEY = b"the yard's own"
N = NodeId("n")


def registration(**more: Any) -> pb.Registration:
    node = pb.Node(id="n", gpus=[pb.Gpu(model="v", memory_mib=100)], cpus=1, memory_mib=1)
    return pb.Registration(**{"node": node, "instance": "i", "boot": "b", **more})


class Hand:
    """A fake node, driven message by message."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._stub = AgentsStub(self._channel)
        self.call: Any = None
        self.number = 0

    async def joins(self, **more: Any) -> pb.Welcome:
        welcome = await self.registers(**more)
        await self.connects(welcome)
        return welcome

    async def registers(self, **more: Any) -> pb.Welcome:
        return await register_node(self._stub, registration(**more), TOKEN)

    async def connects(self, welcome: pb.Welcome) -> None:
        self.call = self._stub.connect(metadata=(("session", welcome.session),))
        await self.call.write(pb.AgentMessage())

    async def says(self, task: int, origin: int = 0, **what: Any) -> None:
        self.number += 1
        report = pb.Report(number=self.number, task=task, attempt=1, origin=origin, **what)
        await self.call.write(pb.AgentMessage(reports=[report]))

    async def beats(self, **more: Any) -> None:
        await self.call.write(pb.AgentMessage(heartbeat=pb.Heartbeat(**{"at": 1.0, **more})))

    async def is_told(self, kind: str) -> pb.Command:
        while True:
            for command in (await self.call.read()).commands:
                if command.WhichOneof("what") == kind:
                    return command  # type: ignore[no-any-return]

    async def is_told_it_was_received(self, number: int) -> None:
        while (await self.call.read()).received < number:
            continue

    async def leaves(self) -> None:
        await self._channel.close(None)


@contextmanager
def broken_by(yard: Scheduler, event: str) -> Iterator[None]:
    """A scheduler that cannot write events of this kind."""
    journal = yard.stores.journal
    encode = journal.encode

    def breaks(entry: Any) -> bytes:
        if type(entry.fact).__name__ == event:
            raise ZeroDivisionError("an event that cannot be written")
        return encode(entry)

    journal.encode = breaks  # type: ignore[method-assign]
    yield
    journal.encode = encode  # type: ignore[method-assign]


async def refused(address: str, code: str, **more: Any) -> str:
    async with grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await register_node(AgentsStub(channel), registration(**more), TOKEN)
    assert told.value.code().name == code
    return told.value.details() or ""


def test_non_finite_numbers_crash_nothing_and_are_left_out(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            hand = Hand(address)
            await hand.joins()
            (task,) = await submit(scheduler, spec())
            await hand.is_told("launch")
            nan = float("nan")
            gpus = [pb.GpuUse(utilization_percent=nan, power_watts=float("inf"))]
            await hand.beats(at=nan, host=pb.Host(cpu_percent=nan, load=float("-inf"), memory_mib=2**63), gpus=gpus)
            await hand.says(task, started=pb.Started(at=nan), seconds_ago=nan)
            await hand.says(task, ended=pb.Ended(outcome=pb.Ended.SUCCEEDED, at=nan, gpu_utilization=nan))
            await ended(scheduler, task)
            heard = scheduler.agents.telemetry[N]
            assert (heard.at, heard.host.cpu_percent, heard.host.memory_mib) == (0.0, 0.0, 0)
            assert not heard.gpus[0].HasField("utilization_percent")
            await hand.leaves()

    run(story)


def test_an_unwritable_report_is_refused_alone_and_dropped_in_the_end(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            first, last = Hand(address), None
            await first.joins()
            (task,) = await submit(scheduler, spec())
            await first.is_told("launch")
            with broken_by(scheduler, "AttemptStarted"):
                for _ in range(TRIES):
                    last = Hand(address)
                    await last.joins(attempts=[pb.Attempt(task=task, attempt=1, state=pb.Attempt.PREPARED)])
                    await last.says(task, started=pb.Started())
                    while await last.call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
                        continue
            last = Hand(address)
            await last.joins(attempts=[pb.Attempt(task=task, attempt=1, state=pb.Attempt.PREPARED)])
            await last.says(task, started=pb.Started())
            await last.is_told_it_was_received(1)
            assert await submit(scheduler, spec()) == [TaskId(2)], "everything else continues"

    run(story)


def test_reports_that_broke_the_engine_are_counted_only_while_their_attempt_is_open(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            hand = Hand(address)
            await hand.joins()
            (task,) = await submit(scheduler, spec())
            await hand.is_told("launch")
            with broken_by(scheduler, "AttemptStarted"):
                await hand.says(task, started=pb.Started())
                while await hand.call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
                    continue
            assert len(scheduler.agents._reports._broke) == 1
            hand = Hand(address)
            await hand.joins(attempts=[pb.Attempt(task=task, attempt=1, state=pb.Attempt.RUNNING)])
            assert len(scheduler.agents._reports._broke) == 1, "it may come again"
            await hand.says(task, ended=pb.Ended(outcome=pb.Ended.SUCCEEDED))
            await ended(scheduler, task)
            assert not scheduler.agents._reports._broke
            await hand.leaves()

    run(story)


def test_reports_of_attempts_that_a_node_no_longer_has_are_not_counted(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            scheduler.agents._reports._broke = {(N, AttemptRef(TaskId(7), 1, 3)): 1}
            hand = Hand(address)
            await hand.joins(attempts=[pb.Attempt(task=7, attempt=1, origin=3, state=pb.Attempt.RUNNING)])
            assert scheduler.agents._reports._broke
            await Hand(address).joins()
            assert not scheduler.agents._reports._broke

    run(story)


def test_a_change_of_a_gpus_health_that_breaks_the_engine_is_logged_and_tried_again(tmp_path: Path) -> None:
    async def story() -> None:
        said: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["message"]))
        async with open_scheduler(tmp_path) as (scheduler, address):
            hand = Hand(address)
            await hand.joins()
            with broken_by(scheduler, "GpuHealthChanged"), capture_logs() as logs:
                await hand.beats(gpus=[pb.GpuUse(index=0, health=pb.GpuUse.OFFLINE)])
                await until(lambda: any(line["event"] == "gpu_health_not_recorded" for line in logs))
            await hand.beats(gpus=[pb.GpuUse(index=0, health=pb.GpuUse.OFFLINE)])
            await until(lambda: scheduler.views.nodes[N].health)
            await hand.leaves()
        logs.clear()  # they hold the error, and with it the future
        gc.collect()
        assert not [message for message in said if "never retrieved" in message]

    run(story)


def test_a_node_given_up_while_it_reconnected_registers_again_at_its_next_heartbeat(tmp_path: Path) -> None:
    async def story() -> None:
        from gpuyard.core.domain.commands import LoseNode

        async with open_scheduler(tmp_path) as (scheduler, address):
            hand = Hand(address)
            await hand.joins()
            await until(lambda: N in scheduler.views.nodes)
            await scheduler.loop.tell(LoseNode(N))
            await hand.beats()
            while await hand.call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
                continue
            await hand.joins()
            assert not scheduler.views.nodes[N].lost
            await hand.leaves()

    run(story)


def test_an_agent_that_stops_on_purpose_is_waited_for_and_its_tasks_continue(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, offline_after_seconds=1.0, check_seconds=0.05) as (scheduler, address):
            hand = Hand(address)
            await hand.joins()
            (task,) = await submit(scheduler, spec())
            await hand.is_told("launch")
            await hand.says(task, started=pb.Started())
            await hand.call.write(pb.AgentMessage(goodbye=pb.Goodbye(back_within_seconds=60.0)))
            while not (await hand.call.read()).goodbye:
                continue
            await hand.leaves()
            assert scheduler.views.nodes[N].status == "away"
            (waits,) = await submit(scheduler, spec())
            await silent_for(scheduler, 50.0)
            assert scheduler.views.tasks[task].status is TaskStatus.RUNNING
            back = Hand(address)
            await back.joins(attempts=[pb.Attempt(task=task, attempt=1, state=pb.Attempt.RUNNING, gpus=[0])])
            await back.says(task, ended=pb.Ended(outcome=pb.Ended.SUCCEEDED, exit_code=0))
            assert (await back.is_told("launch")).task in {task, waits}
            await ended(scheduler, task)
            events = [it.event for it in scheduler.stores.journal.read()]
            assert not any(isinstance(event, NodeLost | TaskRequeued) for event in events)
            await back.leaves()

    run(story)


def test_an_absence_longer_than_announced_is_a_loss(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, check_seconds=0.05) as (scheduler, address):
            hand = Hand(address)
            await hand.joins()
            await hand.call.write(pb.AgentMessage(goodbye=pb.Goodbye(back_within_seconds=60.0)))
            while not (await hand.call.read()).goodbye:
                continue
            await hand.leaves()
            await silent_for(scheduler, 61.0)
            assert scheduler.views.nodes[N].lost

    run(story)


def test_the_absence_of_a_node_survives_a_restart_of_the_scheduler(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, offline_after_seconds=1.0) as (scheduler, address):
            hand = Hand(address)
            await hand.joins()
            await hand.call.write(pb.AgentMessage(goodbye=pb.Goodbye(back_within_seconds=600.0)))
            while not (await hand.call.read()).goodbye:
                continue
            await hand.leaves()
        async with open_scheduler(tmp_path, offline_after_seconds=1.0, check_seconds=0.05) as (scheduler, _):
            await silent_for(scheduler, 500.0)
            assert not scheduler.views.nodes[N].lost
            await silent_for(scheduler, 110.0)
            assert scheduler.views.nodes[N].lost

    run(story)


def test_nothing_is_placed_on_a_node_before_it_has_registered_with_this_scheduler(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            hand = Hand(address)
            await hand.joins()
            await hand.leaves()
        async with open_scheduler(tmp_path) as (scheduler, address):
            (task,) = await submit(scheduler, spec())
            await settled(scheduler)
            assert scheduler.views.tasks[task].placement is None
            hand = Hand(address)
            await hand.joins()
            assert (await hand.is_told("launch")).task == task
            await hand.leaves()

    run(story)


def test_after_a_restored_backup_no_task_gets_the_process_of_another(tmp_path: Path) -> None:
    """Finding 6: the copy knows the node and no task; a task is submitted before the node is back."""

    async def story() -> None:
        async with open_scheduler(tmp_path / "cluster", origin=11, yard_key=KEY) as (scheduler, address):
            hand = Hand(address)
            await hand.joins()
            await scheduler.snapshots.save()
            shutil.copytree(tmp_path / "cluster", tmp_path / "copy")
            (old,) = await submit(scheduler, spec(tenant="a"))
            assert (await hand.is_told("launch")).origin == 11
            await hand.says(old, 11, started=pb.Started())
            await until(lambda: scheduler.views.tasks[old].status is TaskStatus.RUNNING)
            await hand.leaves()
        async with open_scheduler(tmp_path / "copy", origin=22, yard_key=KEY) as (scheduler, address):
            (new,) = await submit(scheduler, spec(tenant="b"))
            assert new == old, "the copy cannot know that the number was assigned"
            hand = Hand(address)
            has = pb.Attempt(task=old, attempt=1, origin=11, state=pb.Attempt.RUNNING, gpus=[0])
            await hand.joins(attempts=[has], highest_task=old)
            assert (await hand.is_told("stray")).origin == 11
            await settled(scheduler)
            view = scheduler.views.tasks[new]
            assert (view.status, view.placement) == (TaskStatus.PENDING, None), "its GPU is taken by the stray"
            await hand.says(old, 11, ended=pb.Ended(outcome=pb.Ended.FAILED, exit_code=9))
            launch = await hand.is_told("launch")
            assert (launch.task, launch.attempt, launch.origin) == (new, 1, 22)
            assert view.exit_code is None
            events = [type(it.event) for it in scheduler.stores.journal.read()]
            assert (events.count(OrphanedAttemptFound), events.count(OrphanedAttemptEnded)) == (1, 1)
            assert await submit(scheduler, spec()) == [TaskId(new + 1)]
            await hand.leaves()

    run(story)


def test_a_removed_node_that_returns_reports_the_gpus_of_its_attempts_as_in_use(tmp_path: Path) -> None:
    """Finding 14."""

    async def story() -> None:
        from gpuyard.core.domain.commands import LoseNode, RemoveNode

        async with open_scheduler(tmp_path, origin=5) as (scheduler, address):
            hand = Hand(address)
            await hand.joins()
            (task,) = await submit(scheduler, spec())
            await hand.is_told("launch")
            await hand.says(task, 5, started=pb.Started())
            await until(lambda: scheduler.views.tasks[task].status is TaskStatus.RUNNING)
            await hand.leaves()
            await scheduler.loop.tell(LoseNode(N))
            await scheduler.loop.tell(RemoveNode(N))
            back = Hand(address)
            await back.joins(attempts=[pb.Attempt(task=task, attempt=1, origin=5, state=pb.Attempt.RUNNING, gpus=[0])])
            assert (await back.is_told("stop")).task == task
            assert scheduler.views.tasks[task].attempts == 1, "the second attempt waits until the first is gone"
            await back.says(task, 5, ended=pb.Ended(outcome=pb.Ended.STOPPED))
            launch = await back.is_told("launch")
            assert (launch.task, launch.attempt) == (task, 2)
            await back.leaves()

    run(story)


def test_a_scheduler_on_an_old_copy_reports_that_it_is_deposed_and_stops_until_an_operator_decides(
    tmp_path: Path,
) -> None:
    """Finding 8: no scheduler raises its epoch without proof, and a proof cannot be invented."""

    async def story() -> None:
        async with open_scheduler(tmp_path / "cluster", origin=1, yard_key=KEY):
            pass
        shutil.copytree(tmp_path / "cluster", tmp_path / "copy")
        async with open_scheduler(tmp_path / "cluster", origin=2, yard_key=KEY) as (scheduler, address):
            pass
        async with open_scheduler(tmp_path / "cluster", origin=3, yard_key=KEY) as (scheduler, address):
            hand = Hand(address)
            welcome = await hand.joins()
            seen: dict[str, Any] = {
                "epoch": welcome.epoch,
                "origin": welcome.origin,
                "epoch_proof": welcome.epoch_proof,
            }
            seen |= {"yard": welcome.yard}
            await hand.leaves()
        with pytest.raises(SchedulerSuperseded, match="--take-over"):  # noqa: PT012 - it fails when it is left
            async with open_scheduler(tmp_path / "copy", origin=9, yard_key=KEY) as (scheduler, address):
                invented = {**seen, "epoch_proof": b"x" * 32}
                assert "no proof" in await refused(address, "FAILED_PRECONDITION", **invented)
                assert scheduler.ready, "an unproven claim changes nothing"
                await refused(address, "ABORTED", **seen)
                await until(lambda: scheduler.stopping)
        async with open_scheduler(tmp_path / "copy", origin=9, yard_key=KEY, take_over=True) as (scheduler, address):
            hand = Hand(address)
            welcome = await hand.joins(**seen)
            assert welcome.epoch > seen["epoch"]
            await hand.leaves()

    run(story)


def test_two_schedulers_of_one_epoch_do_not_both_continue(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path / "cluster", origin=1, yard_key=KEY):
            pass
        shutil.copytree(tmp_path / "cluster", tmp_path / "twin")
        with pytest.raises(SchedulerSuperseded):  # noqa: PT012 - it fails when it is left
            async with (
                open_scheduler(tmp_path / "cluster", origin=2, yard_key=KEY) as (one, address),
                open_scheduler(tmp_path / "twin", origin=3, yard_key=KEY) as (other, elsewhere),
            ):
                hand = Hand(address)
                welcome = await hand.joins()
                assert welcome.epoch == other.loop.engine.state.epoch
                proven = {"epoch": welcome.epoch, "origin": welcome.origin, "epoch_proof": welcome.epoch_proof}
                await refused(elsewhere, "ABORTED", yard=welcome.yard, **proven)
                await until(lambda: other.stopping)
                assert one.ready
                await hand.leaves()

    run(story)


def test_a_copied_work_folder_on_another_machine_is_refused_beside_the_first(tmp_path: Path) -> None:
    """Finding 11: also after a restart of the scheduler, whichever of the two is quicker."""

    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            hand = Hand(address)
            await hand.joins()
            assert "the same work folder" in await refused(address, "ALREADY_EXISTS", boot="another machine")
            assert "another one" in await refused(address, "ALREADY_EXISTS", instance="new folder")
            await hand.leaves()
        async with open_scheduler(tmp_path, offline_after_seconds=1.0) as (scheduler, address):
            assert "the same work folder" in await refused(address, "ALREADY_EXISTS", boot="another machine")
            hand = Hand(address)
            await hand.joins()
            await hand.leaves()
            await until(lambda: scheduler.views.nodes[N].lost)
            await hand_in(address, boot="after a reboot")

    run(story)


async def hand_in(address: str, **more: Any) -> None:
    hand = Hand(address)
    await hand.joins(**more)
    await hand.leaves()


def test_a_replayed_registration_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (_, address), grpc.aio.insecure_channel(address) as channel:
            stub, said = AgentsStub(channel), []
            register = stub.register

            async def overheard(signed: pb.SignedRegistration) -> pb.Welcome:
                said.append(signed)
                return await register(signed)

            stub.register = overheard
            await register_node(stub, registration(), TOKEN)
            with pytest.raises(grpc.aio.AioRpcError, match="does not answer a current challenge"):
                await register(said[0])
            with pytest.raises(grpc.aio.AioRpcError, match="uses protocol 1"):
                await register(pb.SignedRegistration(protocol=1))

    run(story)


def test_an_agent_is_told_where_to_vote(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (yard, address):
            hand = Hand(address)
            assert list((await hand.joins()).voting) == []
            yard.agents.registration.voting_for = lambda node: ["0.0.0.0:9092", f"{node}:9092"]
            assert list((await hand.joins()).voting) == ["0.0.0.0:9092", "n:9092"]
            await hand.leaves()

    run(story)


def test_a_successor_waits_as_long_as_its_predecessor_told_the_nodes(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, offline_after_seconds=60.0) as (scheduler, address):
            await hand_in(address)
        async with open_scheduler(tmp_path, offline_after_seconds=1.0, check_seconds=0.05) as (scheduler, address):
            await silent_for(scheduler, 55.0)
            assert not scheduler.views.nodes[N].lost
            await silent_for(scheduler, 10.0)
            assert scheduler.views.nodes[N].lost

    run(story)


def test_a_run_is_as_long_as_its_process_lived_however_late_the_end_is_reported(tmp_path: Path) -> None:
    async def story() -> None:
        machine = Machine(time.time())
        async with open_scheduler(tmp_path, clock=machine) as (scheduler, address):
            hand = Hand(address)
            await hand.joins()
            (task,) = await submit(scheduler, spec(resources=Resources(gpus=1)))
            await hand.is_told("launch")
            await hand.says(task, started=pb.Started())
            await until(lambda: scheduler.views.tasks[task].status is TaskStatus.RUNNING)
            view = scheduler.views.tasks[task]
            machine.passes(100.0)
            await hand.says(task, ended=pb.Ended(outcome=pb.Ended.SUCCEEDED, exit_code=0), seconds_ago=90.0)
            await ended(scheduler, task)
            assert view.run_seconds == pytest.approx(
                10.0, abs=1.1
            )  # the engine's clock is off by one in a hundred at most
            assert view.finished_at is not None
            assert view.started_at is not None
            assert view.finished_at - view.started_at == pytest.approx(view.run_seconds)
            await hand.leaves()

    run(story)


def test_a_task_cancelled_before_its_node_connects_ends_when_the_node_reports_nothing(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            hand = Hand(address)
            session = await hand.registers()
            (task,) = await submit(scheduler, spec())
            await until(lambda: scheduler.views.tasks[task].placement)
            await scheduler.loop.tell(CancelTask(task), issuer_of(ADMIN))
            await hand.connects(session)
            stop = await hand.is_told("stop")
            assert (stop.task, stop.attempt) == (task, 1)
            await hand.says(task, ended=pb.Ended(outcome=pb.Ended.LOST, message=NOT_THERE))
            await ended(scheduler, task, TaskStatus.CANCELLED)
            await hand.leaves()

    run(story)


def test_an_attempt_that_ran_since_an_old_copy_is_not_started_under_the_same_name(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path / "cluster", origin=11, yard_key=KEY) as (scheduler, address):
            hand = Hand(address)
            await hand.joins()
            (task,) = await submit(scheduler, spec())
            assert (await hand.is_told("launch")).attempt == 1
            await scheduler.snapshots.save()
            shutil.copytree(tmp_path / "cluster", tmp_path / "copy")
            await hand.says(task, 11, ended=pb.Ended(outcome=pb.Ended.SUCCEEDED, exit_code=0))
            await hand.is_told_it_was_received(1)
            await hand.leaves()
        async with open_scheduler(tmp_path / "copy", origin=22, yard_key=KEY) as (scheduler, address):
            hand = Hand(address)
            await hand.joins()
            launch = await hand.is_told("launch")
            assert (launch.task, launch.attempt, launch.origin) == (task, 2, 22)
            await hand.leaves()

    run(story)


def test_a_gpu_is_not_allocated_while_an_unknown_attempt_runs_on_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, origin=5) as (scheduler, address):
            hand = Hand(address)
            await hand.joins()
            (task,) = await submit(scheduler, spec())
            await hand.is_told("launch")
            await hand.says(task, 5, started=pb.Started())
            await until(lambda: scheduler.views.tasks[task].status is TaskStatus.RUNNING)
            await hand.leaves()
            back = Hand(address)
            stray = pb.Attempt(task=77, attempt=1, origin=99, state=pb.Attempt.RUNNING, gpus=[0])
            await back.joins(attempts=[stray])
            assert (await back.is_told("stray")).task == 77
            await settled(scheduler)
            view = scheduler.views.tasks[task]
            assert (view.status, view.attempts) == (TaskStatus.PENDING, 1), "its node has lost it, and its GPU is taken"
            await back.says(77, 99, ended=pb.Ended(outcome=pb.Ended.FAILED, exit_code=1))
            assert (await back.is_told("launch")).attempt == 2
            await back.leaves()

    run(story)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_task_does_not_start_beside_its_attempt_that_an_old_copy_does_not_know(
    tmp_path: Path, restarted: bool
) -> None:
    stray = pb.Attempt(task=1, attempt=1, origin=99, state=pb.Attempt.RUNNING, gpus=[0])
    other = pb.Node(id="m", gpus=[pb.Gpu(model="v", memory_mib=100)], cpus=1, memory_mib=1)

    async def waits(scheduler: Scheduler, address: str) -> tuple[Hand, Hand]:
        here, there = Hand(address), Hand(address)
        await here.joins(attempts=[stray])
        await there.joins(node=other, instance="m")
        await settled(scheduler)
        why = await scheduler.queries.look(lambda state, now: why_waits(state, TaskId(1), now))
        assert why == UnknownAttemptRuns(TaskId(1), N)
        assert scheduler.views.tasks[TaskId(1)].status is TaskStatus.PENDING
        return here, there

    async def story() -> None:
        async with open_scheduler(tmp_path, origin=5) as (scheduler, address):
            assert await submit(scheduler, spec(on_lost=OnLost.FENCE)) == [TaskId(1)]
            hands = await waits(scheduler, address)
            if not restarted:
                await hands[0].says(1, 99, ended=pb.Ended(outcome=pb.Ended.SUCCEEDED, exit_code=0))
                await until(lambda: scheduler.views.tasks[TaskId(1)].attempts == 1)
            for hand in hands:
                await hand.leaves()
        if restarted:
            async with open_scheduler(tmp_path, origin=6) as (scheduler, address):
                for hand in await waits(scheduler, address):
                    await hand.leaves()

    run(story)


def test_a_gang_starts_when_its_first_part_is_back_although_the_others_were_sooner(tmp_path: Path) -> None:
    """After a restart the place of the first part is unknown, so the others wait for it, and it may have ended by then."""

    def node(name: str) -> pb.Node:
        return pb.Node(id=name, gpus=[pb.Gpu(model="v", memory_mib=100)], cpus=1, memory_mib=1)

    async def story() -> None:
        async with open_scheduler(tmp_path, origin=1) as (scheduler, address):
            hands = {name: Hand(address) for name in ("a", "b")}
            for name, hand in hands.items():
                await hand.joins(node=node(name))
            (task,) = await submit(scheduler, spec(resources=Resources(gpus=1, nodes=2), on_lost=OnLost.WAIT))
            placement = scheduler.views.tasks[task].placement
            assert placement is not None
            first, last = placement.nodes
            for hand in hands.values():
                await hand.is_told("launch")
            await hands[first].says(task, 1, started=pb.Started())
            await hands[first].is_told_it_was_received(1)
            for hand in hands.values():
                await hand.leaves()
        has = pb.Attempt(task=task, attempt=1, origin=1, state=pb.Attempt.PREPARED, gpus=[0], port=2000)
        ran = pb.Attempt(task=task, attempt=1, origin=1, state=pb.Attempt.ENDED)
        async with open_scheduler(tmp_path, origin=2) as (scheduler, address):
            waits, back = Hand(address), Hand(address)
            await waits.joins(node=node(last), attempts=[has])
            await waits.is_told("launch")
            await waits.says(task, 1, prepared=pb.Prepared(port=2000))
            await waits.is_told_it_was_received(1)
            await back.joins(node=node(first), attempts=[ran])
            await waits.is_told("start")
            await waits.leaves()
            await back.leaves()

    run(story)


def test_a_part_of_a_gang_whose_start_was_lost_is_started_when_it_is_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            hands = {}
            for name in ("a", "b"):
                node = pb.Node(id=name, gpus=[pb.Gpu(model="v", memory_mib=100)], cpus=1, memory_mib=1)
                hands[name] = Hand(address)
                await hands[name].joins(node=node)
            (task,) = await submit(scheduler, spec(resources=Resources(gpus=1, nodes=2)))
            for name, port in (("a", 1000), ("b", 2000)):
                await hands[name].is_told("launch")
                await hands[name].says(task, prepared=pb.Prepared(port=port))
            await hands["a"].is_told("start")
            await hands["b"].leaves()  # before it has heard of the start
            await hands["a"].says(task, started=pb.Started())
            await hands["a"].says(task, ended=pb.Ended(outcome=pb.Ended.SUCCEEDED, exit_code=0))
            await hands["a"].is_told_it_was_received(3)
            back = Hand(address)
            has = pb.Attempt(task=task, attempt=1, state=pb.Attempt.PREPARED, gpus=[0], port=2000)
            await back.joins(node=node, attempts=[has])
            await back.is_told("launch")
            await back.says(task, prepared=pb.Prepared(port=2000))
            start = (await back.is_told("start")).start
            placement = scheduler.views.tasks[task].placement
            assert placement is not None
            first = placement.nodes[0]
            assert (start.rank, start.master_port) == ((0, 2000) if first == "b" else (1, 1000))
            await back.says(task, started=pb.Started())
            await back.says(task, ended=pb.Ended(outcome=pb.Ended.SUCCEEDED, exit_code=0))
            await ended(scheduler, task)
            assert await status(scheduler, task) == "success"

    run(story)


def test_a_refused_registration_is_no_sign_of_life(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, check_seconds=0.05) as (scheduler, address):
            hand = Hand(address)
            await hand.joins()
            await hand.leaves()
            for _ in range(2):
                assert not scheduler.views.nodes[N].lost
                await refused(address, "FAILED_PRECONDITION", epoch=1000, epoch_proof=b"invented")
                await silent_for(scheduler, 8.0)
            assert scheduler.views.nodes[N].lost

    run(story)


def test_during_a_planned_absence_no_other_agent_takes_the_name(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, check_seconds=0.05) as (scheduler, address):
            hand = Hand(address)
            await hand.joins()
            await hand.call.write(pb.AgentMessage(goodbye=pb.Goodbye(back_within_seconds=60.0)))
            while not (await hand.call.read()).goodbye:
                continue
            await hand.leaves()
            await silent_for(scheduler, 50.0)
            assert "another one" in await refused(address, "ALREADY_EXISTS", instance="twin")
            await hand_in(address, boot="after a reboot")

    run(story)


class SlowJournal(SqliteJournal):
    """A journal that writes when it is allowed to."""

    def __init__(self, *more: Any) -> None:
        self.may_write, self.writes = threading.Event(), threading.Event()
        self.may_write.set()
        super().__init__(*more)

    def append_encoded(self, payloads: Sequence[bytes]) -> Position:
        if not self.may_write.is_set():
            self.writes.set()
            assert self.may_write.wait(20.0)
        return super().append_encoded(payloads)


@pytest.mark.parametrize("known", [False, True])
def test_of_two_agents_with_one_name_that_register_at_once_one_is_accepted(tmp_path: Path, known: bool) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, SlowJournal, check_seconds=60.0) as (scheduler, address):
            if known:
                await hand_in(address)
                scheduler.agents.liveness.last_heard[N] -= 120.0
            journal = scheduler.stores.journal
            assert isinstance(journal, SlowJournal)
            scheduler.loop._append_seconds = 1.0  # so that it is appended in a thread
            journal.may_write.clear()
            other = asyncio.create_task(submit(scheduler, spec()))
            await until(journal.writes.is_set)  # what comes now waits for this commit
            both = [asyncio.create_task(hand_in(address, **it)) for it in ({}, {"boot": "a copy elsewhere"})]
            await until(
                lambda: len(scheduler.agents.liveness._registering.get(N, ())) == 1 and any(it.done() for it in both)
            )
            journal.may_write.set()
            answers = await asyncio.gather(*both, return_exceptions=True)
            assert sum(isinstance(answer, grpc.aio.AioRpcError) for answer in answers) == 1
            await other

    run(story)


@pytest.mark.parametrize("take_over", [False, True])
def test_on_an_old_copy_of_the_journal_absent_nodes_are_waited_for(tmp_path: Path, take_over: bool) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, offline_after_seconds=1.0) as (_, address):
            await hand_in(address)
            await hand_in(address, node=pb.Node(id="m", gpus=[pb.Gpu(model="v", memory_mib=100)]))
        more: dict[str, Any] = {"offline_after_seconds": 1.0, "check_seconds": 0.05, "take_over": take_over}
        async with open_scheduler(tmp_path, **more) as (scheduler, address):
            witness = Hand(address)
            await witness.joins(seq=0 if take_over else 1_000_000)
            await silent_for(scheduler, 250.0)
            assert not scheduler.views.nodes[NodeId("m")].lost, (
                "its planned stop may be among the events that are missing"
            )
            await witness.leaves()

    run(story)


def test_an_attempt_that_may_have_run_under_another_scheduler_is_not_relaunched_under_the_same_name(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, yard_key=KEY, take_over=True, origin=5) as (scheduler, address):
            hand = Hand(address)
            await hand.joins()
            await submit(scheduler, spec())
            assert (await hand.is_told("launch")).attempt == 1
            await hand.leaves()
            back = Hand(address)  # it ran, ended, and the other scheduler has its end
            epoch = scheduler.loop.engine.state.epoch
            await back.joins(epoch=epoch + 10, origin=3, epoch_proof=b"of a key that is gone")
            assert (await back.is_told("launch")).attempt == 2
            await back.leaves()

    run(story)


def test_an_unstarted_part_of_an_unknown_gang_is_ended(tmp_path: Path) -> None:
    part = pb.Attempt(task=1, attempt=1, origin=99, state=pb.Attempt.PREPARED, gpus=[0])

    async def story() -> None:
        async with open_scheduler(tmp_path, origin=5) as (scheduler, address):
            await submit(scheduler, spec())
            hand = Hand(address)
            await hand.joins(attempts=[part])
            assert (await hand.is_told("stop")).origin == 99
            await hand.says(1, 99, ended=pb.Ended(outcome=pb.Ended.STOPPED))
            assert (await hand.is_told("launch")).origin == 5
            await hand.leaves()

    run(story)


def test_a_scheduler_that_takes_over_skips_task_numbers(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, _):
            assert await submit(scheduler, spec()) == [TaskId(1)]
        async with open_scheduler(tmp_path, take_over=True) as (scheduler, _):
            await until(lambda: scheduler.ready)
            (task,) = await submit(scheduler, spec())
            assert UNKNOWN_TASKS + 2 <= task <= 10 * UNKNOWN_TASKS + 2

    run(story)


def test_a_scheduler_that_takes_over_believes_an_unproven_epoch_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, yard_key=KEY, take_over=True) as (scheduler, address):
            first = scheduler.loop.engine.state.epoch
            await hand_in(address, epoch=first + 10, origin=3, epoch_proof=b"of a key that is gone")
            taken = scheduler.loop.engine.state.epoch
            assert taken == first + 11
            await refused(address, "FAILED_PRECONDITION", epoch=taken + 10, origin=4, epoch_proof=b"invented")
            assert scheduler.loop.engine.state.epoch == taken

    run(story)


def test_a_scheduler_that_hung_admits_no_duplicate_agent_because_it_was_quicker(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, check_seconds=60.0) as (scheduler, address):
            await hand_in(address)
            agents = scheduler.agents
            agents.liveness.last_heard[N] -= 120.0
            agents.liveness.checked_at -= 60.0 + 120.0  # as after SIGSTOP for two minutes, before it has looked again
            assert "the same work folder" in await refused(address, "ALREADY_EXISTS", boot="a copy elsewhere")

    run(story)


def test_an_agent_whose_name_another_one_has_taken_over_is_sent_nothing_more(tmp_path: Path) -> None:
    """Found by the soak test: a launch went to the frozen agent and to its copy, and both started the attempt."""

    async def story() -> None:
        async with open_scheduler(tmp_path, check_seconds=60.0) as (scheduler, address):
            frozen, copy = Hand(address), Hand(address)
            await frozen.joins()
            (task,) = await submit(scheduler, spec(on_lost=OnLost.RERUN))
            await frozen.is_told("launch")
            await frozen.says(task, started=pb.Started(at=1.0))
            await until(lambda: scheduler.views.tasks[task].started_at)
            scheduler.agents.liveness.last_heard[N] -= 60.0
            welcome = await copy.registers(boot="a copy elsewhere")
            left = []
            while (message := await frozen.call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                left += message.commands
            assert not left, "a launch was sent to an agent that is no longer the node's"
            await copy.connects(welcome)
            assert (await copy.is_told("launch")).attempt == 2
            await frozen.leaves()
            await copy.leaves()

    run(story)
