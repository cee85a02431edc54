"""The scheduler: what it accepts survives, what it answers is durable, and agents and clients may reconnect."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
from structlog.testing import capture_logs

from gpuyard.core.domain.commands import CancelTask
from gpuyard.core.domain.errors import EventsRetired, StorageFull
from gpuyard.core.domain.events import AttemptEnded, AttemptRecovered, EpochBegan, TaskEnded, TaskPlaced, TaskRequeued
from gpuyard.core.domain.refusals import QuotaForbids, Refusal
from gpuyard.core.domain.task import Resources
from gpuyard.core.domain.values import NOT_THERE, AttemptRef, NodeId, OnLost, TaskId, TaskStatus
from gpuyard.core.engine.state import State
from gpuyard.core.journal.stores.sqlite import SqliteJournal, read_folder
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane import loop
from gpuyard.live.control_plane.access.principal import issuer_of
from gpuyard.live.control_plane.lifecycle_log import GATHER_SECONDS
from gpuyard.live.control_plane.rest.health import health_of
from gpuyard.live.control_plane.rest.nodes import node_of
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.control_plane.stores.archive import Filters
from gpuyard.live.control_plane.submissions import Submission
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import AgentsStub
from gpuyard.testing import FullJournal
from gpuyard.testing.fake_node import FakeNode, register_node
from tests.unit.live.control_plane.clusters import (
    ADMIN,
    TOKEN,
    ended,
    open_scheduler,
    run,
    silent_for,
    spec,
    status,
    submit,
    until,
)

pytestmark = pytest.mark.slow  # left out of `make quick`

RETRY_SECONDS = 0.05


@pytest.fixture(autouse=True)
def _tries_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without space the scheduler tries again every second; tests need not wait that long."""
    monkeypatch.setattr(loop, "FULL_RETRY_SECONDS", RETRY_SECONDS)


def full_journal_of(scheduler: Scheduler) -> FullJournal:
    """The journal of a scheduler, on a disk that is full from now on."""
    assert isinstance(scheduler.stores.journal, FullJournal)
    scheduler.stores.journal.full = True
    return scheduler.stores.journal


def test_a_task_runs_and_its_end_is_known_after_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            node = FakeNode("n1", 2, join_token=TOKEN)
            playing = asyncio.create_task(node.play(address))
            (task,) = await submit(scheduler, spec(name="train"))
            await ended(scheduler, task)
            await until(lambda: not node.attempts and node.ended == 1)
            playing.cancel()
        async with open_scheduler(tmp_path) as (scheduler, _):
            answer = await scheduler.queries.answer(task)
            assert answer is not None
            told = msgspec.json.decode(answer[1])
            assert (told["status"], told["name"], told["node_id"], told["exit_code"]) == ("success", "train", "n1", 0)
            assert told["allocated_gpus"] == ["n1/0"] or told["allocated_gpus"] == ["n1/1"]

    run(story)


def test_open_tasks_survive_a_restart_with_and_without_a_snapshot(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, _):
            tasks = await submit(scheduler, *(spec(name=f"t{place}") for place in range(20)))
            await scheduler.loop.tell(CancelTask(tasks[0]), issuer_of(ADMIN))
        async with open_scheduler(tmp_path) as (scheduler, _):
            assert await status(scheduler, tasks[0]) == "cancelled"
            assert [await status(scheduler, task) for task in tasks[1:]] == ["pending"] * 19
            page = await scheduler.queries.page(Filters(), None, 100)
            assert page.total == 20
            assert len(page.answers) == 20

    run(story)


def test_every_scheduler_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    async def story() -> None:
        for expected in (1, 2):
            async with open_scheduler(tmp_path) as (scheduler, _):
                epochs = [
                    record.event.epoch
                    for record in scheduler.stores.journal.read()
                    if isinstance(record.event, EpochBegan)
                ]
                assert epochs[-1] == expected

    run(story)


def test_a_repeated_request_is_accepted_once_and_another_body_is_a_conflict(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, _):
            both = await asyncio.gather(*(submit(scheduler, spec(), key="k", body=b"one") for _ in range(2)))
            assert both[0] == both[1]
            with pytest.raises(WrongRequest, match="used with another body") as conflict:
                await submit(scheduler, spec(), key="k", body=b"two")
            assert conflict.value.status == 409
            await scheduler.archiver.archive_now()
            assert await submit(scheduler, spec(), key="k", body=b"one") == both[0]
            assert await submit(scheduler, spec(tenant="other"), key="k", body=b"one") != both[0]
        async with open_scheduler(tmp_path) as (scheduler, _):
            assert await submit(scheduler, spec(), key="k", body=b"one") == both[0]

    run(story)


def test_a_refused_batch_leaves_nothing_behind(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, _):
            before = scheduler.loop.committed
            wrong = spec(after_success=(TaskId(99),))
            answer = await scheduler.submissions.submit(
                [Submission([spec()], {}), Submission([wrong], {"A": "b"})], ADMIN, key="k"
            )
            assert isinstance(answer, Refusal)
            assert not isinstance(answer, QuotaForbids)
            assert scheduler.loop.committed == before
            assert scheduler.stores.secrets.get(TaskId(2)) == {}
            assert await submit(scheduler, spec(), key="k")

    run(story)


def test_secrets_reach_only_the_node(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            async with grpc.aio.insecure_channel(address) as channel:
                stub = AgentsStub(channel)
                node = pb.Node(id="n", gpus=[pb.Gpu(model="v", memory_mib=1)], cpus=1, memory_mib=1)
                welcome = await register_node(stub, pb.Registration(node=node, instance="i"), TOKEN)
                call = stub.connect(metadata=(("session", welcome.session),))
                await call.write(pb.AgentMessage())
                await scheduler.submissions.submit(
                    [Submission([spec(secrets=("TOKEN",))], {"TOKEN": "hunter2"})], ADMIN
                )
                while not (commands := (await call.read()).commands):
                    continue
                assert commands[0].launch.secrets == {"TOKEN": "hunter2"}
            await scheduler.snapshots.save()
        for path in tmp_path.rglob("*"):
            if path.is_file() and not path.name.startswith("secrets.sqlite"):
                assert b"hunter2" not in path.read_bytes(), path

    run(story)


def test_a_silent_node_is_lost_and_its_task_starts_elsewhere(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, offline_after_seconds=1.0) as (scheduler, address):
            silent = FakeNode("silent", 1, join_token=TOKEN, runs_for=None, heartbeat_seconds=0.2)
            playing = asyncio.create_task(silent.play(address))
            (task,) = await submit(scheduler, spec())
            await until(lambda: silent.launched == 1)
            other = FakeNode("other", 1, join_token=TOKEN, runs_for=0.0, heartbeat_seconds=0.2)
            also = asyncio.create_task(other.play(address))
            await until(lambda: NodeId("other") in scheduler.views.nodes)
            playing.cancel()
            await ended(scheduler, task)
            (requeued,) = [it.event for it in scheduler.stores.journal.read() if isinstance(it.event, TaskRequeued)]
            assert requeued.cause.sentence() == "Node silent was lost."
            also.cancel()

    run(story)


def test_a_node_that_returns_is_told_to_stop_attempts_replaced_elsewhere(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, offline_after_seconds=1.0) as (scheduler, address):
            node = FakeNode("n", 1, join_token=TOKEN, runs_for=None, heartbeat_seconds=0.2)
            playing = asyncio.create_task(node.play(address))
            (task,) = await submit(scheduler, spec())
            await until(lambda: node.launched == 1)
            playing.cancel()
            other = FakeNode("other", 1, join_token=TOKEN, runs_for=None, heartbeat_seconds=0.2)
            elsewhere = asyncio.create_task(other.play(address))
            await until(lambda: other.launched == 1)
            playing = asyncio.create_task(node.play(address))
            await until(lambda: not node.attempts)
            assert list(other.attempts) == [(task, 2, 0)]
            playing.cancel()
            elsewhere.cancel()

    run(story)


def test_an_attempt_whose_task_still_waits_is_taken_back_when_its_node_returns(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, offline_after_seconds=1.0) as (scheduler, address):
            node = FakeNode("n", 1, join_token=TOKEN, runs_for=None, heartbeat_seconds=0.2)
            playing = asyncio.create_task(node.play(address))
            (task,) = await submit(scheduler, spec())
            await until(lambda: scheduler.views.tasks[task].status is TaskStatus.RUNNING)
            playing.cancel()
            await until(lambda: scheduler.views.nodes[NodeId("n")].lost)
            assert await status(scheduler, task) == "pending"
            playing = asyncio.create_task(node.play(address))
            await until(lambda: scheduler.views.tasks[task].status is TaskStatus.RUNNING)
            assert (node.launched, list(node.attempts)) == (1, [(task, 1, 0)])
            assert any(isinstance(it.event, AttemptRecovered) for it in scheduler.stores.journal.read())
            view = scheduler.views.tasks[task]
            node.end(next(iter(node.attempts)))
            await ended(scheduler, task)
            assert await status(scheduler, task) == "success"
            assert view.started_at is not None
            assert view.finished_at is not None
            assert view.run_seconds == pytest.approx(view.finished_at - view.started_at)  # also while it was missed
            playing.cancel()

    run(story)


def test_an_attempt_its_node_has_forgotten_is_retried_with_that_reason(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            node = FakeNode("n", 1, join_token=TOKEN, runs_for=None, heartbeat_seconds=0.2)
            playing = asyncio.create_task(node.play(address))
            (task,) = await submit(scheduler, spec())
            await until(lambda: node.launched == 1)
            await until(lambda: scheduler.views.tasks[task].status is TaskStatus.RUNNING)
            playing.cancel()
            node.attempts.clear()
            playing = asyncio.create_task(node.play(address))
            await until(lambda: node.launched == 2)
            (lost,) = [it.event for it in scheduler.stores.journal.read() if isinstance(it.event, AttemptEnded)]
            assert lost.message == NOT_THERE
            playing.cancel()

    run(story)


def test_an_unknown_attempt_is_kept_and_ended_only_by_an_operator(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            node = FakeNode("n", 1, join_token=TOKEN, runs_for=None)
            node.attempts[AttemptRef(TaskId(77), 1, 5)] = pb.Attempt.RUNNING
            playing = asyncio.create_task(node.play(address))
            await until(lambda: (77, 1, 5) in scheduler.agents.sessions.get(NodeId("n"), _NOBODY).unknown_attempts)
            assert (77, 1, 5) in node.attempts
            assert scheduler.agents.stop_unknown_attempt(NodeId("n"), TaskId(77), 1)
            await until(lambda: not node.attempts)
            playing.cancel()

    run(story)


class _Nobody:
    unknown_attempts: dict[AttemptRef, None] = {}  # noqa: RUF012


_NOBODY = _Nobody()


@pytest.mark.parametrize(
    ("change", "code", "sentence"),
    [
        ({"token": "wrong"}, "UNAUTHENTICATED", "join token is wrong"),
        ({"token": ""}, "UNAUTHENTICATED", "join token is wrong"),
        ({"yard": "elsewhere"}, "FAILED_PRECONDITION", "belongs to cluster elsewhere"),
        ({"node": pb.Node(id="../x")}, "INVALID_ARGUMENT", "is not valid"),
        ({"instance": "another"}, "ALREADY_EXISTS", "Another agent with the id n1"),
    ],
)
def test_a_refused_agent_gets_one_sentence(tmp_path: Path, change: dict[str, Any], code: str, sentence: str) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            playing = asyncio.create_task(FakeNode("n1", 1, join_token=TOKEN).play(address))
            await until(lambda: NodeId("n1") in scheduler.views.nodes)
            before = scheduler.loop.committed
            token = change.pop("token", TOKEN)
            asked: dict[str, Any] = {"node": pb.Node(id="n1"), "instance": "n1", **change}
            async with grpc.aio.insecure_channel(address) as channel:
                with pytest.raises(grpc.aio.AioRpcError, match=sentence) as refused:
                    await register_node(AgentsStub(channel), pb.Registration(**asked), token)
            assert refused.value.code().name == code
            assert scheduler.loop.committed == before
            playing.cancel()

    run(story)


def test_a_gang_starts_when_the_last_part_is_ready_and_all_learn_the_address_of_the_first(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address), grpc.aio.insecure_channel(address) as channel:
            stub = AgentsStub(channel)
            calls = {}
            for name in ("a", "b"):
                node = pb.Node(id=name, gpus=[pb.Gpu(model="v", memory_mib=1)], cpus=1, memory_mib=1)
                welcome = await register_node(
                    stub, pb.Registration(node=node, instance=name, address=f"host-{name}"), TOKEN
                )
                calls[name] = stub.connect(metadata=(("session", welcome.session),))
                await calls[name].write(pb.AgentMessage())
            (task,) = await submit(scheduler, spec(resources=Resources(gpus=1, nodes=2)))
            for name, call in calls.items():
                launch = await _next(call, "launch")
                assert launch.launch.wait
                prepared = pb.Prepared(port=1000 if name == "a" else 2000)
                report = pb.Report(number=1, task=task, attempt=1, prepared=prepared)
                await call.write(pb.AgentMessage(reports=[report]))
            starts = [(await _next(call, "start")).start for call in calls.values()]
            first = min(starts, key=lambda start: start.rank)
            expected = ("host-a", 1000) if first.master_addr == "host-a" else ("host-b", 2000)
            assert {(start.master_addr, start.master_port) for start in starts} == {expected}
            assert sorted((start.rank, start.world_size) for start in starts) == [(0, 2), (1, 2)]
            for number, call in enumerate(calls.values()):
                report = pb.Report(number=2, task=task, attempt=1, started=pb.Started())
                await call.write(pb.AgentMessage(reports=[report]))
                if number == 0:
                    await until(lambda: any(it.received == 2 for it in scheduler.agents.sessions.values()))
                    assert scheduler.views.tasks[task].status is TaskStatus.PENDING
            await until(lambda: scheduler.views.tasks[task].status is TaskStatus.RUNNING)

    run(story)


async def _next(call: object, kind: str) -> pb.Command:
    """The next command of a kind; any may come twice."""
    while True:
        message = await call.read()  # type: ignore[attr-defined]
        for command in message.commands:
            if command.WhichOneof("what") == kind:
                found: pb.Command = command
                return found


def test_without_space_writes_are_refused_reads_work_and_it_recovers(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, FullJournal) as (scheduler, _):
            (kept,) = await submit(scheduler, spec())
            journal = full_journal_of(scheduler)
            waiting = asyncio.create_task(submit(scheduler, spec()))
            await until(lambda: scheduler.loop.unwritable)
            with pytest.raises(StorageFull):
                await submit(scheduler, spec())
            assert scheduler.views.tasks[kept].status is TaskStatus.PENDING
            assert len(scheduler.views.tasks) == 1, "what is not durable is not visible"
            journal.full = False
            assert await waiting == [TaskId(2)]
            assert await submit(scheduler, spec())

    run(story)


def test_without_space_queries_are_answered_from_committed_state(tmp_path: Path) -> None:
    """Also one that was sent together with a write that cannot be made durable: its answer must not show it."""

    async def story() -> None:
        async with open_scheduler(tmp_path, FullJournal) as (scheduler, _):
            (kept,) = await submit(scheduler, spec())
            journal = full_journal_of(scheduler)

            def tasks(state: State, now: float) -> list[TaskId]:  # noqa: ARG001
                return list(state.tasks)

            waiting = asyncio.create_task(submit(scheduler, spec()))
            asked_with_it = asyncio.create_task(scheduler.queries.look(tasks))
            await until(lambda: scheduler.loop.unwritable)
            assert await asked_with_it == [kept]
            assert await scheduler.queries.look(tasks) == [kept]
            assert (await scheduler.queries.explain(kept)).reason is not None
            assert (await scheduler.queries.page(Filters(), None, 10)).total == 1
            journal.full = False
            (new,) = await waiting
            assert await scheduler.queries.look(tasks) == [kept, new]

    run(story)


def test_the_log_speaks_of_events_when_they_are_durable_and_not_before(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, FullJournal) as (scheduler, _):
            journal = full_journal_of(scheduler)
            with capture_logs() as said:

                def told() -> list[tuple[str, str]]:
                    lines = [line for call in said for line in call.get("lines", ())]
                    return [(line["event"], line["task_id"]) for line in lines if "task_id" in line]

                waiting = asyncio.create_task(submit(scheduler, spec(), spec()))
                await until(lambda: scheduler.loop.unwritable)
                await until(lambda: journal.refused > 2 + 2 * GATHER_SECONDS / RETRY_SECONDS)
                assert told() == []
                journal.full = False
                await waiting
                await until(told)
            assert told() == [
                ("task_submitted", "task-1"),
                ("task_submitted", "task-2"),
                ("task_pending", "task-1"),
                ("task_pending", "task-2"),
            ]

    run(story)


def test_a_scheduler_reports_whether_it_works_or_stops(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, _):
            assert health_of(scheduler).status == "ok"
            stopping = asyncio.create_task(scheduler.stop(0.0))
            await asyncio.sleep(0)
            assert health_of(scheduler).status == "stopping"
            await stopping
            assert health_of(scheduler).status == "stopping"

    run(story)


def test_who_did_what_is_known_after_its_events_were_retired_if_the_settings_say_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, retired_folder=tmp_path / "retired") as (scheduler, _):
            assert isinstance(scheduler.stores.journal, SqliteJournal)
            scheduler.stores.journal.segment_events = 1
            (task,) = await submit(scheduler, spec())
            for _ in range(3):
                await scheduler.loop.tell(CancelTask(task), issuer_of(ADMIN))
                (task,) = await submit(scheduler, spec())
                await scheduler.snapshots.save()
            (tmp_path / "retired").write_text("in the way")
            scheduler.snapshots.remove_old()
            assert next(scheduler.stores.journal.read()).seq == 1, "what cannot be packed stays"
            (tmp_path / "retired").unlink()
            scheduler.snapshots.remove_old()
            with pytest.raises(EventsRetired):
                scheduler.stores.journal.read()
        ended = [it for it in read_folder(tmp_path / "retired") if isinstance(it.event, TaskEnded)]
        assert {it.by for it in ended} == {"local:root@127.0.0.1"}

    run(story)


def test_a_command_that_breaks_the_engine_is_answered_and_changes_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, _):
            (first,) = await submit(scheduler, spec())

            def broken(_: object) -> CancelTask:
                raise ZeroDivisionError

            results = await asyncio.gather(
                scheduler.loop.tell(CancelTask(first)),
                scheduler.loop.tell(broken),
                submit(scheduler, spec()),
                return_exceptions=True,
            )
            assert "Internal error" in str(results[1])
            assert results[2] == [TaskId(2)]
            assert await status(scheduler, first) == "cancelled"

    run(story)


def test_a_lost_task_with_on_lost_wait_continues_when_the_node_returns(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, offline_after_seconds=0.6) as (scheduler, address):
            node = FakeNode("n", 1, join_token=TOKEN, runs_for=None, heartbeat_seconds=0.1)
            playing = asyncio.create_task(node.play(address))
            (task,) = await submit(scheduler, spec(on_lost=OnLost.WAIT))
            await until(lambda: node.launched == 1)
            playing.cancel()
            await until(lambda: scheduler.views.nodes[NodeId("n")].lost)
            assert await status(scheduler, task) == "running"
            playing = asyncio.create_task(node.play(address))
            await until(lambda: not scheduler.views.nodes[NodeId("n")].lost)
            node.end(AttemptRef(task, 1))
            await ended(scheduler, task)
            events = [type(it.event) for it in scheduler.stores.journal.read()]
            assert (events.count(TaskPlaced), events.count(TaskEnded)) == (1, 1)
            playing.cancel()

    run(story)


def test_a_clock_jump_changes_nothing(tmp_path: Path) -> None:
    """An hour back and an hour forth: events stay in order, nobody is lost, tasks go on."""

    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address):
            node = FakeNode("n", 1, join_token=TOKEN, runs_for=0.05, heartbeat_seconds=0.2)
            playing = asyncio.create_task(node.play(address))
            real, tasks = scheduler.loop.clock, []
            for jump in (-3600.0, 3600.0, 0.0):
                scheduler.loop.clock = _jumped(real, jump)
                (task,) = await submit(scheduler, spec(timeout_seconds=600.0))
                await ended(scheduler, task)
                tasks.append(task)
            assert not scheduler.views.nodes[NodeId("n")].lost
            instants = [record.at for record in scheduler.stores.journal.read()]
            assert instants == sorted(instants)
            playing.cancel()
        async with open_scheduler(tmp_path) as (scheduler, _):
            assert [await status(scheduler, task) for task in tasks] == ["success"] * 3

    run(story)


def _jumped(clock: Callable[[], float], seconds: float) -> Callable[[], float]:
    return lambda: clock() + seconds


# --- found in a review ------------------------------------------------------------------------------------------------


class Hand:
    """A fake node, driven message by message."""

    def __init__(self, stub: AgentsStub, name: str) -> None:
        self._stub = stub
        self._node = pb.Node(id=name, gpus=[pb.Gpu(model="v", memory_mib=1)], cpus=1, memory_mib=1)
        self.call: Any = None
        self.number = 0

    async def joins(self, *attempts: pb.Attempt) -> None:
        """Register and connect."""
        request = pb.Registration(node=self._node, instance=self._node.id, attempts=attempts, address=self._node.id)
        welcome = await register_node(self._stub, request, TOKEN)
        self.call = self._stub.connect(metadata=(("session", welcome.session),))
        await self.call.write(pb.AgentMessage())

    async def says(self, task: TaskId, **what: Any) -> None:
        """One report."""
        self.number += 1
        report = pb.Report(number=self.number, task=task, attempt=1, **what)
        await self.call.write(pb.AgentMessage(reports=[report]))

    async def beats(self, health: "pb.GpuUse.Health", silent_seconds: float = 0.0) -> None:
        """A heartbeat."""
        use = pb.GpuUse(index=0, health=health)
        beat = pb.Heartbeat(at=1.0, gpus=[use], supervisor_silent_seconds=silent_seconds)
        await self.call.write(pb.AgentMessage(heartbeat=beat))


def test_an_unresponsive_supervisor_is_logged_shown_and_gets_no_tasks(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address), grpc.aio.insecure_channel(address) as channel:
            hand = Hand(AgentsStub(channel), "n")
            await hand.joins()

            def shown() -> float | None:
                return node_of(scheduler, scheduler.views.nodes[NodeId("n")], None).supervisor_silent_seconds

            with capture_logs() as said:
                await hand.beats(pb.GpuUse.OFFLINE, 12.34)
                await hand.beats(pb.GpuUse.OFFLINE, 17.34)
                await until(lambda: shown() == 17.3)
                (task,) = await submit(scheduler, spec())
                assert not scheduler.views.nodes[NodeId("n")].tasks
                await hand.beats(pb.GpuUse.OK)
                await until(lambda: shown() is None)
                await _next(hand.call, "launch")
            events = [line["event"] for line in said if line["event"].startswith("supervisor_")]
            assert events == ["supervisor_unresponsive", "supervisor_recovered"]
            assert task in scheduler.views.nodes[NodeId("n")].tasks

    run(story)


def test_no_receipt_overtakes_a_report_that_is_not_durable_yet(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            open_scheduler(tmp_path, FullJournal) as (scheduler, address),
            grpc.aio.insecure_channel(address) as channel,
        ):
            hand = Hand(AgentsStub(channel), "n")
            await hand.joins()
            (task,) = await submit(scheduler, spec())
            await _next(hand.call, "launch")
            journal = full_journal_of(scheduler)
            await hand.says(task, ended=pb.Ended(outcome=pb.Ended.SUCCEEDED, exit_code=0))
            await until(lambda: scheduler.loop.unwritable)
            await hand.says(task, prepared=pb.Prepared(port=1))
            await until(lambda: scheduler.agents.sessions[NodeId("n")].backlog)
            assert scheduler.agents.sessions[NodeId("n")].received == 0
            journal.full = False
            await ended(scheduler, task)
            await until(lambda: scheduler.agents.sessions[NodeId("n")].received == 1)

    run(story)


async def beat_of(scheduler: Scheduler, node: NodeId) -> None:
    """Wait for the next heartbeat of a node."""
    before = scheduler.agents.telemetry[node]
    await until(lambda: scheduler.agents.telemetry[node] is not before)


def test_without_space_nodes_stay_connected_and_none_is_lost(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path, FullJournal, offline_after_seconds=1.0, check_seconds=0.05) as (
            scheduler,
            address,
        ):
            node = FakeNode("n", 2, join_token=TOKEN, runs_for=None, heartbeat_seconds=0.2)
            playing = asyncio.create_task(node.play(address))
            tasks = await submit(scheduler, spec(), spec())
            await until(lambda: all(scheduler.views.tasks[task].status is TaskStatus.RUNNING for task in tasks))
            journal = full_journal_of(scheduler)
            waiting = asyncio.create_task(submit(scheduler, spec()))
            await until(lambda: scheduler.loop.unwritable)
            node.end(AttemptRef(tasks[0], 1))
            for _ in range(4):  # together longer than it takes to be lost, if its heartbeats did not come through
                await silent_for(scheduler, 0.8)
                await beat_of(scheduler, NodeId("n"))
            journal.full = False
            await ended(scheduler, tasks[0])
            await waiting
            assert scheduler.views.tasks[tasks[1]].status is TaskStatus.RUNNING
            assert not any(isinstance(it.event, TaskRequeued) for it in scheduler.stores.journal.read())
            playing.cancel()

    run(story)


def test_a_request_beside_one_that_breaks_the_engine_gets_its_own_tasks(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, _):

            def broken(_: object) -> CancelTask:
                raise ZeroDivisionError

            good = asyncio.create_task(submit(scheduler, spec(name="a"), spec(name="b")))
            await asyncio.sleep(0)
            bad = scheduler.loop.tell(broken)
            assert await good == [TaskId(1), TaskId(2)]
            with pytest.raises(Exception, match="Internal error"):
                await bad
            assert len(scheduler.views.tasks) == 2

    run(story)


def test_a_gang_with_one_started_part_continues_after_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address), grpc.aio.insecure_channel(address) as channel:
            hands = {name: Hand(AgentsStub(channel), name) for name in ("a", "b")}
            for hand in hands.values():
                await hand.joins()
            (task,) = await submit(scheduler, spec(resources=Resources(gpus=1, nodes=2)))
            for hand in hands.values():
                await _next(hand.call, "launch")
        async with open_scheduler(tmp_path) as (scheduler, address), grpc.aio.insecure_channel(address) as channel:
            placement = scheduler.views.tasks[task].placement
            assert placement is not None
            first, second = placement.nodes
            hands = {name: Hand(AgentsStub(channel), name) for name in (first, second)}
            await hands[first].joins(pb.Attempt(task=task, attempt=1, state=pb.Attempt.RUNNING, port=1234))
            await hands[second].joins(pb.Attempt(task=task, attempt=1, state=pb.Attempt.PREPARED, port=9))
            await _next(hands[second].call, "launch")
            await hands[second].says(task, prepared=pb.Prepared(port=9))
            start = (await _next(hands[second].call, "start")).start
            assert (start.master_addr, start.master_port, start.rank) == (first, 1234, 1)
            await hands[second].says(task, started=pb.Started())
            await until(lambda: scheduler.views.tasks[task].status is TaskStatus.RUNNING)

    run(story)


def test_a_node_that_reports_impossible_numbers_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address), grpc.aio.insecure_channel(address) as channel:
            for change, sentence in (({"epoch": 2**64 - 1}, "no proof"), ({"highest_task": 2**64 - 1}, "was rejected")):
                request = pb.Registration(node=pb.Node(id="n"), instance="n", **change)  # type: ignore[arg-type]
                with pytest.raises(grpc.aio.AioRpcError, match=sentence):
                    await register_node(AgentsStub(channel), request, TOKEN)
            assert await submit(scheduler, spec()) == [TaskId(1)]

    run(story)


def test_a_gpu_freed_while_its_agent_was_disconnected_is_allocated_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address), grpc.aio.insecure_channel(address) as channel:
            hand = Hand(AgentsStub(channel), "n")
            await hand.joins()
            await hand.beats(pb.GpuUse.EXTERNAL)
            await until(lambda: scheduler.views.nodes[NodeId("n")].health)
            await hand.joins()
            await hand.beats(pb.GpuUse.OK)
            await until(lambda: not scheduler.views.nodes[NodeId("n")].health)

    run(story)


def test_a_task_placed_while_its_node_connects_is_launched_with_its_owner_and_secrets(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address), grpc.aio.insecure_channel(address) as channel:
            hand = Hand(AgentsStub(channel), "n")
            await hand.joins()
            for _ in range(20):
                joining = asyncio.create_task(hand.joins())
                asked = [Submission([spec(secrets=("TOKEN",))], {"TOKEN": "hunter2"})]
                (view,) = await scheduler.submissions.submit(asked, ADMIN)  # type: ignore[misc]
                await joining
                launch = (await _next(hand.call, "launch")).launch
                assert (launch.by_owner, dict(launch.secrets)) == (True, {"TOKEN": "hunter2"})
                await scheduler.loop.tell(CancelTask(view.id), issuer_of(ADMIN))
                await hand.says(view.id, ended=pb.Ended(outcome=pb.Ended.STOPPED))
                await ended(scheduler, view.id, TaskStatus.CANCELLED)

    run(story)


def test_an_undelivered_command_is_sent_when_the_node_registers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, address), grpc.aio.insecure_channel(address) as channel:
            hand = Hand(AgentsStub(channel), "n")
            await hand.joins()

            def broken(_: object) -> None:
                raise ZeroDivisionError

            with monkeypatch.context() as for_once:
                for_once.setattr(scheduler.agents, "hear", broken)
                (task,) = await submit(scheduler, spec())
            while (await hand.call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                continue
            await hand.joins()
            assert (await _next(hand.call, "launch")).task == task

    run(story)
