"""The scheduler's side of the line to agents under hard conditions: twins, old copies, nonsense, absences."""

import asyncio
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from gpuyard.core.domain.commands import CancelTask
from gpuyard.core.domain.events import NodeLost, RemainsEnded, RemainsFound, TaskRequeued
from gpuyard.core.domain.refusals import UnknownAttemptRuns
from gpuyard.core.domain.task import Resources
from gpuyard.core.domain.values import NOT_THERE, NodeId, OnLost, TaskId, TaskStatus
from gpuyard.core.engine.explain import why_waits
from gpuyard.core.journal.records import Position
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.live.control_plane.nodes.agents import TRIES, Deposed
from gpuyard.live.control_plane.scheduler import UNKNOWN_TASKS, Scheduler
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import AgentsStub
from gpuyard.testing.fake_node import register_node
from tests.unit.live.control_plane.test_clock import Machine
from tests.unit.live.control_plane.yards import (
    ADMIN,
    TOKEN,
    ended,
    open_yard,
    run,
    settled,
    silent_for,
    spec,
    status,
    submit,
    until,
)

KEY = b"the yard's own"
N = NodeId("n")


def registration(**more: Any) -> pb.Registration:
    node = pb.Node(id="n", gpus=[pb.Gpu(model="v", memory_mib=100)], cpus=1, memory_mib=1)
    return pb.Registration(**{"node": node, "instance": "i", "boot": "b", **more})


class Hand:
    """A node played message by message."""

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


async def refused(address: str, code: str, **more: Any) -> str:
    async with grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await register_node(AgentsStub(channel), registration(**more), TOKEN)
    assert told.value.code().name == code
    return told.value.details() or ""


def test_numbers_that_are_not_finite_end_nothing_and_are_left_out(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path) as (yard, address):
            hand = Hand(address)
            await hand.joins()
            (task,) = await submit(yard, spec())
            await hand.is_told("launch")
            nan = float("nan")
            gpus = [pb.GpuUse(utilization_percent=nan, power_watts=float("inf"))]
            await hand.beats(at=nan, host=pb.Host(cpu_percent=nan, load=float("-inf"), memory_mib=2**63), gpus=gpus)
            await hand.says(task, started=pb.Started(at=nan), seconds_ago=nan)
            await hand.says(task, ended=pb.Ended(outcome=pb.Ended.SUCCEEDED, at=nan, gpu_utilization=nan))
            await ended(yard, task)
            heard = yard.agents.telemetry[N]
            assert (heard.at, heard.host.cpu_percent, heard.host.memory_mib) == (0.0, 0.0, 0)
            assert not heard.gpus[0].HasField("utilization_percent")
            await hand.leaves()

    run(story)


def test_a_report_that_can_not_be_written_is_refused_alone_and_dropped_in_the_end(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path) as (yard, address):
            first, last = Hand(address), None
            await first.joins()
            (task,) = await submit(yard, spec())
            await first.is_told("launch")
            encode = yard.journal.encode

            def breaks(entry: Any) -> bytes:
                if type(entry.fact).__name__ == "AttemptStarted":
                    raise ZeroDivisionError("a fact nobody can write")
                return encode(entry)

            yard.journal.encode = breaks  # type: ignore[method-assign]
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
            assert await submit(yard, spec()) == [TaskId(2)], "everybody else goes on"

    run(story)


def test_a_node_that_was_given_up_while_it_came_back_registers_again_at_its_next_heartbeat(tmp_path: Path) -> None:
    async def story() -> None:
        from gpuyard.core.domain.commands import LoseNode

        async with open_yard(tmp_path) as (yard, address):
            hand = Hand(address)
            await hand.joins()
            await until(lambda: N in yard.views.nodes)
            await yard.loop.tell(LoseNode(N))
            await hand.beats()
            while await hand.call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
                continue
            await hand.joins()
            assert not yard.views.nodes[N].lost
            await hand.leaves()

    run(story)


def test_an_agent_that_stops_on_purpose_is_waited_for_and_its_tasks_go_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path, offline_after_seconds=1.0, check_seconds=0.05) as (yard, address):
            hand = Hand(address)
            await hand.joins()
            (task,) = await submit(yard, spec())
            await hand.is_told("launch")
            await hand.says(task, started=pb.Started())
            await hand.call.write(pb.AgentMessage(goodbye=pb.Goodbye(back_within_seconds=60.0)))
            while not (await hand.call.read()).goodbye:
                continue
            await hand.leaves()
            assert yard.views.nodes[N].status == "away"
            (waits,) = await submit(yard, spec())
            await silent_for(yard, 50.0)
            assert yard.views.tasks[task].status is TaskStatus.RUNNING
            back = Hand(address)
            await back.joins(attempts=[pb.Attempt(task=task, attempt=1, state=pb.Attempt.RUNNING, gpus=[0])])
            await back.says(task, ended=pb.Ended(outcome=pb.Ended.SUCCEEDED, exit_code=0))
            assert (await back.is_told("launch")).task in {task, waits}
            await ended(yard, task)
            facts = [it.fact for it in yard.journal.read()]
            assert not any(isinstance(fact, NodeLost | TaskRequeued) for fact in facts)
            await back.leaves()

    run(story)


def test_an_absence_that_lasts_longer_than_was_said_is_a_loss(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path, check_seconds=0.05) as (yard, address):
            hand = Hand(address)
            await hand.joins()
            await hand.call.write(pb.AgentMessage(goodbye=pb.Goodbye(back_within_seconds=60.0)))
            while not (await hand.call.read()).goodbye:
                continue
            await hand.leaves()
            await silent_for(yard, 61.0)
            assert yard.views.nodes[N].lost

    run(story)


def test_the_absence_of_a_node_survives_a_restart_of_the_scheduler(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path, offline_after_seconds=1.0) as (yard, address):
            hand = Hand(address)
            await hand.joins()
            await hand.call.write(pb.AgentMessage(goodbye=pb.Goodbye(back_within_seconds=600.0)))
            while not (await hand.call.read()).goodbye:
                continue
            await hand.leaves()
        async with open_yard(tmp_path, offline_after_seconds=1.0, check_seconds=0.05) as (yard, _):
            await silent_for(yard, 500.0)
            assert not yard.views.nodes[N].lost
            await silent_for(yard, 110.0)
            assert yard.views.nodes[N].lost

    run(story)


def test_nothing_is_placed_on_a_node_before_it_has_registered_with_this_scheduler(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path) as (yard, address):
            hand = Hand(address)
            await hand.joins()
            await hand.leaves()
        async with open_yard(tmp_path) as (yard, address):
            (task,) = await submit(yard, spec())
            await settled(yard)
            assert yard.views.tasks[task].placement is None
            hand = Hand(address)
            await hand.joins()
            assert (await hand.is_told("launch")).task == task
            await hand.leaves()

    run(story)


def test_after_an_old_copy_is_restored_nobody_gets_anothers_process_for_his_task(tmp_path: Path) -> None:
    """Finding 6: the copy knows the node and no task; somebody submits before the node is back."""

    async def story() -> None:
        async with open_yard(tmp_path / "yard", origin=11, cluster_key=KEY) as (yard, address):
            hand = Hand(address)
            await hand.joins()
            await yard._save_snapshot()
            shutil.copytree(tmp_path / "yard", tmp_path / "copy")
            (old,) = await submit(yard, spec(tenant="a"))
            assert (await hand.is_told("launch")).origin == 11
            await hand.says(old, 11, started=pb.Started())
            await until(lambda: yard.views.tasks[old].status is TaskStatus.RUNNING)
            await hand.leaves()
        async with open_yard(tmp_path / "copy", origin=22, cluster_key=KEY) as (yard, address):
            (new,) = await submit(yard, spec(tenant="b"))
            assert new == old, "the copy can not know that the number was given out"
            hand = Hand(address)
            has = pb.Attempt(task=old, attempt=1, origin=11, state=pb.Attempt.RUNNING, gpus=[0])
            await hand.joins(attempts=[has], highest_task=old)
            assert (await hand.is_told("stray")).origin == 11
            await settled(yard)
            view = yard.views.tasks[new]
            assert (view.status, view.placement) == (TaskStatus.PENDING, None), "its GPU is taken by the stray"
            await hand.says(old, 11, ended=pb.Ended(outcome=pb.Ended.FAILED, exit_code=9))
            launch = await hand.is_told("launch")
            assert (launch.task, launch.attempt, launch.origin) == (new, 1, 22)
            assert view.exit_code is None
            facts = [type(it.fact) for it in yard.journal.read()]
            assert (facts.count(RemainsFound), facts.count(RemainsEnded)) == (1, 1)
            assert await submit(yard, spec()) == [TaskId(new + 1)]
            await hand.leaves()

    run(story)


def test_a_node_that_was_removed_and_returns_brings_its_attempts_gpus_as_taken(tmp_path: Path) -> None:
    """Finding 14."""

    async def story() -> None:
        from gpuyard.core.domain.commands import LoseNode, RemoveNode

        async with open_yard(tmp_path, origin=5) as (yard, address):
            hand = Hand(address)
            await hand.joins()
            (task,) = await submit(yard, spec())
            await hand.is_told("launch")
            await hand.says(task, 5, started=pb.Started())
            await until(lambda: yard.views.tasks[task].status is TaskStatus.RUNNING)
            await hand.leaves()
            await yard.loop.tell(LoseNode(N))
            await yard.loop.tell(RemoveNode(N))
            back = Hand(address)
            await back.joins(attempts=[pb.Attempt(task=task, attempt=1, origin=5, state=pb.Attempt.RUNNING, gpus=[0])])
            assert (await back.is_told("stop")).task == task
            assert yard.views.tasks[task].attempts == 1, "the second attempt waits until the first is gone"
            await back.says(task, 5, ended=pb.Ended(outcome=pb.Ended.STOPPED))
            launch = await back.is_told("launch")
            assert (launch.task, launch.attempt) == (task, 2)
            await back.leaves()

    run(story)


def test_a_scheduler_on_an_old_copy_says_that_it_is_deposed_and_stops_until_an_operator_decides(tmp_path: Path) -> None:
    """Finding 8: nobody raises its epoch by hearsay, and a proof can not be invented."""

    async def story() -> None:
        async with open_yard(tmp_path / "yard", origin=1, cluster_key=KEY):
            pass
        shutil.copytree(tmp_path / "yard", tmp_path / "copy")
        async with open_yard(tmp_path / "yard", origin=2, cluster_key=KEY) as (yard, address):
            pass
        async with open_yard(tmp_path / "yard", origin=3, cluster_key=KEY) as (yard, address):
            hand = Hand(address)
            welcome = await hand.joins()
            seen: dict[str, Any] = {
                "epoch": welcome.epoch,
                "origin": welcome.origin,
                "epoch_proof": welcome.epoch_proof,
            }
            seen |= {"yard": welcome.yard}
            await hand.leaves()
        with pytest.raises(Deposed, match="--take-over"):  # noqa: PT012 - it fails when it is left
            async with open_yard(tmp_path / "copy", origin=9, cluster_key=KEY) as (yard, address):
                invented = {**seen, "epoch_proof": b"x" * 32}
                assert "no proof" in await refused(address, "FAILED_PRECONDITION", **invented)
                assert yard.ready, "what somebody merely says changes nothing"
                await refused(address, "ABORTED", **seen)
                await until(lambda: yard.stopping)
        async with open_yard(tmp_path / "copy", origin=9, cluster_key=KEY, take_over=True) as (yard, address):
            hand = Hand(address)
            welcome = await hand.joins(**seen)
            assert welcome.epoch > seen["epoch"]
            await hand.leaves()

    run(story)


def test_two_schedulers_of_one_epoch_do_not_both_go_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path / "yard", origin=1, cluster_key=KEY):
            pass
        shutil.copytree(tmp_path / "yard", tmp_path / "twin")
        with pytest.raises(Deposed):  # noqa: PT012 - it fails when it is left
            async with (
                open_yard(tmp_path / "yard", origin=2, cluster_key=KEY) as (one, address),
                open_yard(tmp_path / "twin", origin=3, cluster_key=KEY) as (other, elsewhere),
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


def test_a_copy_of_a_work_folder_on_another_machine_is_not_let_in_beside_the_first(tmp_path: Path) -> None:
    """Finding 11: also after a restart of the scheduler, whichever of the two is quicker."""

    async def story() -> None:
        async with open_yard(tmp_path) as (yard, address):
            hand = Hand(address)
            await hand.joins()
            assert "the same work folder" in await refused(address, "ALREADY_EXISTS", boot="another machine")
            assert "another one" in await refused(address, "ALREADY_EXISTS", instance="new folder")
            await hand.leaves()
        async with open_yard(tmp_path, offline_after_seconds=1.0) as (yard, address):
            assert "the same work folder" in await refused(address, "ALREADY_EXISTS", boot="another machine")
            hand = Hand(address)
            await hand.joins()
            await hand.leaves()
            await until(lambda: yard.views.nodes[N].lost)
            await hand_in(address, boot="after a reboot")

    run(story)


async def hand_in(address: str, **more: Any) -> None:
    hand = Hand(address)
    await hand.joins(**more)
    await hand.leaves()


def test_the_answer_to_an_overheard_registration_is_no(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path) as (_, address), grpc.aio.insecure_channel(address) as channel:
            stub, said = AgentsStub(channel), []
            register = stub.register

            async def overheard(signed: pb.SignedRegistration) -> pb.Welcome:
                said.append(signed)
                return await register(signed)

            stub.register = overheard
            await register_node(stub, registration(), TOKEN)
            with pytest.raises(grpc.aio.AioRpcError, match="does not answer a current challenge"):
                await register(said[0])
            with pytest.raises(grpc.aio.AioRpcError, match="speaks protocol 1"):
                await register(pb.SignedRegistration(protocol=1))

    run(story)


def test_a_successor_waits_as_long_as_its_predecessor_told_the_nodes_it_would(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path, offline_after_seconds=60.0) as (yard, address):
            await hand_in(address)
        async with open_yard(tmp_path, offline_after_seconds=1.0, check_seconds=0.05) as (yard, address):
            await silent_for(yard, 55.0)
            assert not yard.views.nodes[N].lost
            await silent_for(yard, 10.0)
            assert yard.views.nodes[N].lost

    run(story)


def test_a_run_is_as_long_as_its_process_lived_however_late_the_end_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        machine = Machine(time.time())
        async with open_yard(tmp_path, clock=machine) as (yard, address):
            hand = Hand(address)
            await hand.joins()
            (task,) = await submit(yard, spec(resources=Resources(gpus=1)))
            await hand.is_told("launch")
            await hand.says(task, started=pb.Started())
            await until(lambda: yard.views.tasks[task].status is TaskStatus.RUNNING)
            view = yard.views.tasks[task]
            machine.passes(100.0)
            await hand.says(task, ended=pb.Ended(outcome=pb.Ended.SUCCEEDED, exit_code=0), seconds_ago=90.0)
            await ended(yard, task)
            assert view.run_seconds == pytest.approx(
                10.0, abs=1.1
            )  # the engine's clock is off by one in a hundred at most
            assert view.finished_at is not None
            assert view.started_at is not None
            assert view.finished_at - view.started_at == pytest.approx(view.run_seconds)
            await hand.leaves()

    run(story)


def test_a_task_that_is_cancelled_before_its_node_connects_ends_when_the_node_says_that_it_has_nothing(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with open_yard(tmp_path) as (yard, address):
            hand = Hand(address)
            session = await hand.registers()
            (task,) = await submit(yard, spec())
            await until(lambda: yard.views.tasks[task].placement)
            await yard.tell(CancelTask(task), ADMIN)
            await hand.connects(session)
            stop = await hand.is_told("stop")
            assert (stop.task, stop.attempt) == (task, 1)
            await hand.says(task, ended=pb.Ended(outcome=pb.Ended.LOST, message=NOT_THERE))
            await ended(yard, task, TaskStatus.CANCELLED)
            await hand.leaves()

    run(story)


def test_what_an_old_copy_has_placed_and_ran_since_is_not_started_under_the_same_name(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path / "yard", origin=11, cluster_key=KEY) as (yard, address):
            hand = Hand(address)
            await hand.joins()
            (task,) = await submit(yard, spec())
            assert (await hand.is_told("launch")).attempt == 1
            await yard._save_snapshot()
            shutil.copytree(tmp_path / "yard", tmp_path / "copy")
            await hand.says(task, 11, ended=pb.Ended(outcome=pb.Ended.SUCCEEDED, exit_code=0))
            await hand.is_told_it_was_received(1)
            await hand.leaves()
        async with open_yard(tmp_path / "copy", origin=22, cluster_key=KEY) as (yard, address):
            hand = Hand(address)
            await hand.joins()
            launch = await hand.is_told("launch")
            assert (launch.task, launch.attempt, launch.origin) == (task, 2, 22)
            await hand.leaves()

    run(story)


def test_a_gpu_is_not_given_out_while_something_unknown_runs_where_a_lost_attempt_was(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path, origin=5) as (yard, address):
            hand = Hand(address)
            await hand.joins()
            (task,) = await submit(yard, spec())
            await hand.is_told("launch")
            await hand.says(task, 5, started=pb.Started())
            await until(lambda: yard.views.tasks[task].status is TaskStatus.RUNNING)
            await hand.leaves()
            back = Hand(address)
            stray = pb.Attempt(task=77, attempt=1, origin=99, state=pb.Attempt.RUNNING, gpus=[0])
            await back.joins(attempts=[stray])
            assert (await back.is_told("stray")).task == 77
            await settled(yard)
            view = yard.views.tasks[task]
            assert (view.status, view.attempts) == (TaskStatus.PENDING, 1), "its node has lost it, and its GPU is taken"
            await back.says(77, 99, ended=pb.Ended(outcome=pb.Ended.FAILED, exit_code=1))
            assert (await back.is_told("launch")).attempt == 2
            await back.leaves()

    run(story)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_task_does_not_start_beside_an_attempt_of_it_that_an_old_copy_does_not_know(
    tmp_path: Path, restarted: bool
) -> None:
    stray = pb.Attempt(task=1, attempt=1, origin=99, state=pb.Attempt.RUNNING, gpus=[0])
    other = pb.Node(id="m", gpus=[pb.Gpu(model="v", memory_mib=100)], cpus=1, memory_mib=1)

    async def waits(yard: Scheduler, address: str) -> tuple[Hand, Hand]:
        here, there = Hand(address), Hand(address)
        await here.joins(attempts=[stray])
        await there.joins(node=other, instance="m")
        await settled(yard)
        why = await yard.look(lambda state, now: why_waits(state, TaskId(1), now))
        assert why == UnknownAttemptRuns(TaskId(1), N)
        assert yard.views.tasks[TaskId(1)].status is TaskStatus.PENDING
        return here, there

    async def story() -> None:
        async with open_yard(tmp_path, origin=5) as (yard, address):
            assert await submit(yard, spec(on_lost=OnLost.FENCE)) == [TaskId(1)]
            hands = await waits(yard, address)
            if not restarted:
                await hands[0].says(1, 99, ended=pb.Ended(outcome=pb.Ended.SUCCEEDED, exit_code=0))
                await until(lambda: yard.views.tasks[TaskId(1)].attempts == 1)
            for hand in hands:
                await hand.leaves()
        if restarted:
            async with open_yard(tmp_path, origin=6) as (yard, address):
                for hand in await waits(yard, address):
                    await hand.leaves()

    run(story)


def test_a_gang_starts_when_its_first_part_is_back_although_the_others_were_sooner(tmp_path: Path) -> None:
    """After a restart nobody knows where the first part is, so the others wait for it, and it may be over by then."""

    def node(name: str) -> pb.Node:
        return pb.Node(id=name, gpus=[pb.Gpu(model="v", memory_mib=100)], cpus=1, memory_mib=1)

    async def story() -> None:
        async with open_yard(tmp_path, origin=1) as (yard, address):
            hands = {name: Hand(address) for name in ("a", "b")}
            for name, hand in hands.items():
                await hand.joins(node=node(name))
            (task,) = await submit(yard, spec(resources=Resources(gpus=1, nodes=2), on_lost=OnLost.WAIT))
            placement = yard.views.tasks[task].placement
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
        async with open_yard(tmp_path, origin=2) as (yard, address):
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
        async with open_yard(tmp_path) as (yard, address):
            hands = {}
            for name in ("a", "b"):
                node = pb.Node(id=name, gpus=[pb.Gpu(model="v", memory_mib=100)], cpus=1, memory_mib=1)
                hands[name] = Hand(address)
                await hands[name].joins(node=node)
            (task,) = await submit(yard, spec(resources=Resources(gpus=1, nodes=2)))
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
            placement = yard.views.tasks[task].placement
            assert placement is not None
            first = placement.nodes[0]
            assert (start.rank, start.master_port) == ((0, 2000) if first == "b" else (1, 1000))
            await back.says(task, started=pb.Started())
            await back.says(task, ended=pb.Ended(outcome=pb.Ended.SUCCEEDED, exit_code=0))
            await ended(yard, task)
            assert await status(yard, task) == "success"

    run(story)


def test_a_registration_that_is_refused_is_no_sign_of_life(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path, check_seconds=0.05) as (yard, address):
            hand = Hand(address)
            await hand.joins()
            await hand.leaves()
            for _ in range(2):
                assert not yard.views.nodes[N].lost
                await refused(address, "FAILED_PRECONDITION", epoch=1000, epoch_proof=b"invented")
                await silent_for(yard, 8.0)
            assert yard.views.nodes[N].lost

    run(story)


def test_while_an_agent_is_away_on_purpose_no_other_one_takes_its_name(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path, check_seconds=0.05) as (yard, address):
            hand = Hand(address)
            await hand.joins()
            await hand.call.write(pb.AgentMessage(goodbye=pb.Goodbye(back_within_seconds=60.0)))
            while not (await hand.call.read()).goodbye:
                continue
            await hand.leaves()
            await silent_for(yard, 50.0)
            assert "another one" in await refused(address, "ALREADY_EXISTS", instance="twin")
            await hand_in(address, boot="after a reboot")

    run(story)


class SlowJournal(SqliteJournal):
    """A journal that writes when it may."""

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
def test_of_two_agents_with_one_name_that_register_at_once_one_is_let_in(tmp_path: Path, known: bool) -> None:
    async def story() -> None:
        async with open_yard(tmp_path, SlowJournal, check_seconds=60.0) as (yard, address):
            if known:
                await hand_in(address)
                yard.agents._last_heard[N] -= 120.0
            journal = yard.journal
            assert isinstance(journal, SlowJournal)
            yard.loop._append_seconds = 1.0  # so that it is appended in a thread
            journal.may_write.clear()
            other = asyncio.create_task(submit(yard, spec()))
            await until(journal.writes.is_set)  # what comes now waits for this commit
            both = [asyncio.create_task(hand_in(address, **it)) for it in ({}, {"boot": "a copy elsewhere"})]
            await until(lambda: len(yard.agents._registering.get(N, ())) == 1 and any(it.done() for it in both))
            journal.may_write.set()
            answers = await asyncio.gather(*both, return_exceptions=True)
            assert sum(isinstance(answer, grpc.aio.AioRpcError) for answer in answers) == 1
            await other

    run(story)


@pytest.mark.parametrize("take_over", [False, True])
def test_on_an_old_copy_of_the_journal_absent_nodes_are_waited_for(tmp_path: Path, take_over: bool) -> None:
    async def story() -> None:
        async with open_yard(tmp_path, offline_after_seconds=1.0) as (_, address):
            await hand_in(address)
            await hand_in(address, node=pb.Node(id="m", gpus=[pb.Gpu(model="v", memory_mib=100)]))
        more: dict[str, Any] = {"offline_after_seconds": 1.0, "check_seconds": 0.05, "take_over": take_over}
        async with open_yard(tmp_path, **more) as (yard, address):
            witness = Hand(address)
            await witness.joins(seq=0 if take_over else 1_000_000)
            await silent_for(yard, 250.0)
            assert not yard.views.nodes[NodeId("m")].lost, "its planned stop may be among the facts that are missing"
            await witness.leaves()

    run(story)


def test_what_may_have_run_under_another_scheduler_is_not_launched_again_under_the_same_name(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path, cluster_key=KEY, take_over=True, origin=5) as (yard, address):
            hand = Hand(address)
            await hand.joins()
            await submit(yard, spec())
            assert (await hand.is_told("launch")).attempt == 1
            await hand.leaves()
            back = Hand(address)  # it ran, ended, and the other scheduler has its end
            epoch = yard.loop.engine.state.epoch
            await back.joins(epoch=epoch + 10, origin=3, epoch_proof=b"of a key that is gone")
            assert (await back.is_told("launch")).attempt == 2
            await back.leaves()

    run(story)


def test_a_part_of_an_unknown_gang_that_has_not_begun_is_ended(tmp_path: Path) -> None:
    part = pb.Attempt(task=1, attempt=1, origin=99, state=pb.Attempt.PREPARED, gpus=[0])

    async def story() -> None:
        async with open_yard(tmp_path, origin=5) as (yard, address):
            await submit(yard, spec())
            hand = Hand(address)
            await hand.joins(attempts=[part])
            assert (await hand.is_told("stop")).origin == 99
            await hand.says(1, 99, ended=pb.Ended(outcome=pb.Ended.STOPPED))
            assert (await hand.is_told("launch")).origin == 5
            await hand.leaves()

    run(story)


def test_a_scheduler_that_takes_over_leaves_task_numbers_out(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path) as (yard, _):
            assert await submit(yard, spec()) == [TaskId(1)]
        async with open_yard(tmp_path, take_over=True) as (yard, _):
            await until(lambda: yard.ready)
            (task,) = await submit(yard, spec())
            assert UNKNOWN_TASKS + 2 <= task <= 10 * UNKNOWN_TASKS + 2

    run(story)


def test_a_scheduler_that_takes_over_believes_a_bare_word_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path, cluster_key=KEY, take_over=True) as (yard, address):
            first = yard.loop.engine.state.epoch
            await hand_in(address, epoch=first + 10, origin=3, epoch_proof=b"of a key that is gone")
            taken = yard.loop.engine.state.epoch
            assert taken == first + 11
            await refused(address, "FAILED_PRECONDITION", epoch=taken + 10, origin=4, epoch_proof=b"invented")
            assert yard.loop.engine.state.epoch == taken

    run(story)


def test_a_scheduler_that_stood_still_lets_no_twin_in_because_it_was_quicker(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_yard(tmp_path, check_seconds=60.0) as (yard, address):
            await hand_in(address)
            agents = yard.agents
            agents._last_heard[N] -= 120.0
            agents._checked_at -= 60.0 + 120.0  # as after SIGSTOP for two minutes, before it has looked again
            assert "the same work folder" in await refused(address, "ALREADY_EXISTS", boot="a copy elsewhere")

    run(story)
