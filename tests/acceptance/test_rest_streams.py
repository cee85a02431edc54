"""What flows: events that can be taken up again, and output that comes from a node at the reader's own speed."""

import asyncio
import http.client
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gpuyard.core.domain.commands import CancelTask, ReportEnded, ReportStarted
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import Outcome, TaskId, TenantId
from gpuyard.live.control_plane.access.principal import Role
from gpuyard.live.control_plane.access.store import AccessStore
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import SESSION, AgentsStub, agents_handler
from gpuyard.testing.fake_node import node_of, register_node
from tests.acceptance.rest_yard import PATIENCE_SECONDS, RestYard
from tests.acceptance.waiting import until

TASKS, EVENTS = "/api/v1/tasks", "/api/v1/events"


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[RestYard]:
    with RestYard(tmp_path) as yard:
        yield yard


# --- events -----------------------------------------------------------------------------------------------------------


class Events:
    """A stream of them, as a client reads it."""

    def __init__(self, yard: RestYard, query: str = "", **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", yard.port, timeout=PATIENCE_SECONDS)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request("GET", EVENTS + query, headers=given)
        self.response = self._connection.getresponse()
        assert self.response.status == 200
        assert self.response.headers["content-type"] == "text/event-stream"
        assert self.response.readline().startswith(b"retry:")
        self.response.readline()

    def next(self) -> dict[str, Any]:
        """The next event, which must come before the stream says that nothing happens."""
        told: dict[str, str] = {}
        while "data" not in told:
            line = self.response.readline().decode()
            assert line, "the stream has ended"
            assert line != ": still here\n"
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                told[name] = value
        data: dict[str, Any] = json.loads(told["data"])
        if told["event"] == "Gap":
            assert int(told["id"]) == data["next"] - 1
        else:
            assert (int(told["id"]), told["event"]) == (data["seq"], data["type"])
        return data

    def close(self) -> None:
        self.response.close()
        self._connection.close()


@contextmanager
def listening(yard: RestYard, query: str = "", **headers: str) -> Iterator[Events]:
    events = Events(yard, query, **headers)
    try:
        yield events
    finally:
        events.close()


def listeners(yard: RestYard) -> int:
    return len(yard.yard.stream._listeners)


def test_what_happens_is_told_as_it_happens(yard: RestYard) -> None:
    with listening(yard) as events:
        until(lambda: listeners(yard) == 1)
        yard.submit(name="seen")
        submitted, placed = events.next(), events.next()
        assert submitted["type"] == "TaskSubmitted"
        assert submitted["task"]["name"] == "seen"
        assert submitted["by"].endswith("@127.0.0.1")
        assert placed["type"] == "TaskPlaced"
    until(lambda: listeners(yard) == 0)


def test_a_stream_that_broke_off_goes_on_without_a_gap_and_without_doubles_while_more_happens(yard: RestYard) -> None:
    yard.ask("POST", f"{TASKS}:batch", {"tasks": [{"gpu_count": 99, "command": "true"}] * 2500})
    busy = threading.Thread(target=lambda: [yard.submit(gpu_count=99) for _ in range(100)])
    busy.start()
    with listening(yard, Last_Event_ID="5") as events:
        numbers = [events.next()["seq"] for _ in range(2595)]
    busy.join()
    assert numbers == list(range(6, 2601))


def test_the_facts_of_one_task_can_be_asked_for_alone(yard: RestYard) -> None:
    with listening(yard, "?task=task-2&after=0") as events:
        yard.submit()
        yard.submit(gpu_count=99)
        yard.ask("DELETE", f"{TASKS}/2")
        assert [events.next()["type"] for _ in range(2)] == ["TaskSubmitted", "TaskEnded"]


def test_a_tenant_hears_of_its_own_tasks_only(tmp_path: Path) -> None:
    with RestYard(tmp_path, local=False) as yard:
        task = {"gpu_count": 1, "command": "true", "priority": "high"}
        alice, bob = yard.token_of("alice", Role.MEMBER, "lab"), yard.token_of("bob", Role.MEMBER, "shop")
        for token in (bob, alice, bob, alice):
            yard.ask("POST", TASKS, task, token=token)
        yard.tell(ReportStarted(TaskId(2), 1))
        yard.tell(ReportEnded(TaskId(2), 1, Outcome.SUCCEEDED, 0))
        until(lambda: 2 not in yard.yard.views.tasks)
        with listening(yard, "?after=0", Authorization=f"Bearer {alice}") as events:
            yard.ask("POST", TASKS, task, token=bob)
            last = yard.ask("POST", TASKS, task, token=alice).json["id"]
            heard: list[str] = []
            while not heard or heard[-1] != last:
                heard.append(events.next()["task_id"])
        assert set(heard) == {"task-2", "task-4", "task-6"}


def test_who_was_away_for_longer_than_facts_are_kept_is_told_what_is_missing(yard: RestYard) -> None:
    journal = yard.yard.journal
    journal.segment_facts = 10
    for _ in range(3):
        for _ in range(10):
            yard.submit(gpu_count=99)
        yard.inside(yard.yard._save_snapshot)
    retired = journal.retire()
    assert retired > 2
    with listening(yard, Last_Event_ID="2") as events:
        gap = events.next()
        assert (gap["after"], gap["next"]) == (2, retired + 1)
        assert gap["message"].startswith(f"Events 3 to {retired} have been removed")
        last = yard.yard.loop.committed
        assert [events.next()["seq"] for _ in range(retired, last)] == list(range(retired + 1, last + 1))
    with listening(yard, Last_Event_ID=str(retired)) as events:
        assert events.next()["seq"] == retired + 1


def test_who_has_seen_more_than_there_is_gets_what_comes_after_being_told(yard: RestYard) -> None:
    """An old copy of the data was restored: numbers are given out again."""
    last = yard.yard.loop.committed
    with listening(yard, Last_Event_ID="1000") as events:
        gap = events.next()
        assert (gap["after"], gap["next"]) == (1000, last + 1)
        assert "an old copy may have been restored" in gap["message"]
        yard.submit()
        assert events.next()["seq"] == last + 1


@pytest.mark.parametrize("last", ["x", "-1", "1e3", "9" * 30])
def test_an_event_id_that_is_none_is_refused(yard: RestYard, last: str) -> None:
    reply = yard.ask("GET", EVENTS, Last_Event_ID=last)
    assert (reply.status, reply.error["field"]) == (400, "Last-Event-ID")


def test_streams_end_when_the_scheduler_stops(tmp_path: Path) -> None:
    with RestYard(tmp_path) as yard:
        events = Events(yard)
        until(lambda: listeners(yard) == 1)
    assert events.response.read().endswith(b"\n\n")
    events.close()


# --- streams of somebody who may not any more -------------------------------------------------------------------------

CHANGES: dict[str, Callable[[AccessStore, str], object]] = {
    "token-revoked": lambda access, name: access.revoke_token(access.tokens(name)[0].id),
    "removed": lambda access, name: access.remove_user(name),
    "disabled": lambda access, name: access.change_user(name, disabled=True),
    "other-role": lambda access, name: access.change_user(name, role=Role.VIEWER),
    "other-tenant": lambda access, name: access.change_user(name, tenant=TenantId("shop")),
}


@pytest.mark.parametrize("path", [EVENTS, f"{TASKS}/1/logs?follow=true"])
def test_a_stream_breaks_off_within_seconds_when_its_reader_may_not_read_it_any_more(tmp_path: Path, path: str) -> None:
    """It does not end as a whole one does: who follows a task must not take this for the task's end."""
    with RestYard(tmp_path, local=False) as yard, ExitStack() as stack:
        streams: dict[str, http.client.HTTPResponse] = {}
        for name in (*CHANGES, "bystander"):
            token = yard.token_of(name, Role.MEMBER, "lab")
            if not streams:
                yard.ask("POST", TASKS, {"gpu_count": 99, "command": "true"}, token=token)
            connection = http.client.HTTPConnection("127.0.0.1", yard.port, timeout=5)
            stack.callback(connection.close)
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            response = streams[name] = stack.enter_context(connection.getresponse())
            assert response.status == 200
        for name, change in CHANGES.items():
            assert not isinstance(change(yard.access, name), Refusal)
        for name in CHANGES:
            with pytest.raises((ConnectionError, http.client.IncompleteRead)):
                streams[name].read()
        yard.tell(CancelTask(TaskId(1)))
        heard = next((line for line in streams["bystander"] if line.startswith(b"event: TaskEnded")), b"a whole end")
        assert heard == (b"event: TaskEnded\n" if path == EVENTS else b"a whole end")


# --- output -----------------------------------------------------------------------------------------------------------


class Agent:
    """A node's agent that runs nothing and has output: the real protocol over a real port."""

    def __init__(self, yard: RestYard, node: str, output: dict[tuple[int, int], bytes]) -> None:
        self._yard = yard
        self._spec = yard.node(node, 1)
        self._output = output
        self.chunk_bytes = 50_000
        self.more_to_come = False
        self.sent = 0
        """Bytes of output handed to the line."""
        self.readers = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((agents_handler(self._yard.yard.agents),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        stub = AgentsStub(self._channel)
        welcome = await register_node(stub, pb.Registration(node=node_of(self._spec), instance="i"), "join")
        self._metadata = ((SESSION, welcome.session),)
        self._stub = stub
        self._stream = stub.connect(metadata=self._metadata)
        self._spawn(self._listen())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close(None)
        await self._server.stop(0)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)

    async def _listen(self) -> None:
        async for message in self._stream:
            for command in message.commands:
                if command.HasField("send_log"):
                    self._spawn(self._answer(command))

    async def _answer(self, command: pb.Command) -> None:
        self.readers += 1
        with suppress(grpc.aio.AioRpcError):  # nobody reads any more
            await self._stub.send_log(self._chunks(command), metadata=self._metadata)
        self.readers -= 1

    async def _chunks(self, command: pb.Command) -> AsyncIterator[pb.LogChunk]:
        asked = command.send_log
        output = self._output.get((command.task, command.attempt))
        if output is None:
            yield pb.LogChunk(request=asked.request, error="There is no such output here.")
            return
        begin = asked.offset if asked.offset >= 0 else max(0, len(output) + asked.offset)
        end = begin + asked.limit if asked.limit else len(output)
        for at in range(begin, min(end, len(output)), self.chunk_bytes):
            part = output[at : min(at + self.chunk_bytes, end)]
            self.sent += len(part)
            yield pb.LogChunk(request=asked.request, data=part, offset=at)
        if self.more_to_come:
            await asyncio.Event().wait()


BINARY = bytes(range(256)) * 1000


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[tuple[RestYard, Agent]]:
    with RestYard(tmp_path, gpus=0) as yard:
        agent = Agent(yard, "n1", {(1, 1): BINARY})
        yard.inside(agent.start)
        until(lambda: any(session.connected for session in yard.yard.agents.sessions.values()))
        yield yard, agent
        yard.inside(agent.stop)


def start(yard: RestYard, task: int = 1, attempt: int = 1) -> None:
    yard.tell(ReportStarted(TaskId(task), attempt))


def test_output_comes_as_it_was_written_whole_or_in_part(agent: tuple[RestYard, Agent]) -> None:
    yard, _ = agent
    yard.submit(priority="high")
    start(yard)
    whole = yard.ask("GET", f"{TASKS}/1/logs")
    assert (whole.status, whole.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert whole.body == BINARY
    assert yard.ask("GET", f"{TASKS}/1/logs?offset=10&limit=20").body == BINARY[10:30]
    assert yard.ask("GET", f"{TASKS}/1/logs?tail=99").body == BINARY[-99:]
    assert yard.ask("GET", f"{TASKS}/1/logs?tail=0").body == b""
    assert yard.ask("GET", f"{TASKS}/1/logs?attempt=1&node=n1").body == BINARY
    assert yard.ask("GET", f"{TASKS}/1/logs?tail=1&offset=1").status == 400
    assert yard.ask("GET", f"{TASKS}/1/logs?attempt=2").status == 404
    assert yard.ask("HEAD", f"{TASKS}/1/logs").status == 200


def test_output_of_an_ended_task_is_still_there(agent: tuple[RestYard, Agent]) -> None:
    yard, _ = agent
    yard.submit(priority="high")
    start(yard)
    yard.tell(ReportEnded(TaskId(1), 1, Outcome.SUCCEEDED, 0))
    until(lambda: 1 not in yard.yard.views.tasks)
    assert yard.ask("GET", f"{TASKS}/1/logs").body == BINARY
    assert yard.ask("GET", f"{TASKS}/1/logs?follow=true").body == BINARY


def test_output_of_a_task_that_started_and_ended_unheard_is_there(agent: tuple[RestYard, Agent]) -> None:
    yard, _ = agent
    yard.submit(priority="high")
    yard.tell(ReportEnded(TaskId(1), 1, Outcome.SUCCEEDED, 0))  # the report of its start was lost with a connection
    until(lambda: 1 not in yard.yard.views.tasks)
    assert yard.ask("GET", f"{TASKS}/1/logs").body == BINARY


def test_following_waits_for_the_start_goes_on_with_the_next_attempt_and_ends_with_the_task(
    agent: tuple[RestYard, Agent],
) -> None:
    yard, player = agent
    player._output.update({(1, 1): b"first\n", (1, 2): b"second\n"})
    yard.submit(priority="high", retries=1)
    connection = http.client.HTTPConnection("127.0.0.1", yard.port, timeout=PATIENCE_SECONDS)
    connection.request("GET", f"{TASKS}/1/logs?follow=true")
    response = connection.getresponse()
    start(yard)
    assert response.readline() == b"first\n"
    yard.tell(ReportEnded(TaskId(1), 1, Outcome.FAILED, 1))
    until(lambda: yard.yard.views.tasks[TaskId(1)].attempts == 2)
    start(yard, attempt=2)
    assert response.readline() == b"second\n"
    yard.tell(ReportEnded(TaskId(1), 2, Outcome.SUCCEEDED, 0))
    assert response.read() == b""
    connection.close()


def test_a_slow_reader_holds_back_the_node_and_one_who_leaves_ends_it(agent: tuple[RestYard, Agent]) -> None:
    yard, player = agent
    player._output[1, 1] = bytes(200 << 20)
    yard.submit(priority="high")
    start(yard)
    connection = http.client.HTTPConnection("127.0.0.1", yard.port, timeout=PATIENCE_SECONDS)
    connection.request("GET", f"{TASKS}/1/logs")
    response = connection.getresponse()
    assert response.read(1000) == bytes(1000)
    before = -1
    while before != player.sent:  # until nothing moves any more
        before = player.sent
        assert yard.ask("GET", "/readyz").status == 200
        threading.Event().wait(0.3)
    assert player.sent < 50 << 20
    response.close()
    connection.close()
    until(lambda: player.readers == 0)


def test_output_breaks_off_when_its_node_goes_and_that_is_no_bug_of_ours(
    agent: tuple[RestYard, Agent], caplog: pytest.LogCaptureFixture
) -> None:
    yard, player = agent
    player._output[1, 1], player.more_to_come = b"so far\n", True
    yard.submit(priority="high")
    start(yard)
    connection = http.client.HTTPConnection("127.0.0.1", yard.port, timeout=PATIENCE_SECONDS)
    connection.request("GET", f"{TASKS}/1/logs?follow=true")
    with connection.getresponse() as response:
        assert response.readline() == b"so far\n"
        for session in yard.yard.agents.sessions.values():
            yard._loop.call_soon_threadsafe(session.close)
        with pytest.raises((ConnectionError, http.client.IncompleteRead)):
            response.read()
    connection.close()
    assert not caplog.records


def test_output_that_can_not_be_had_gets_a_sentence(agent: tuple[RestYard, Agent]) -> None:
    yard, player = agent
    player._output.clear()
    yard.submit(priority="high")
    assert yard.ask("GET", f"{TASKS}/1/logs").body == b""
    start(yard)
    missing = yard.ask("GET", f"{TASKS}/1/logs")
    assert "no such output" in missing.error["message"]
    elsewhere = yard.ask("GET", f"{TASKS}/1/logs?node=n7")
    assert (elsewhere.status, elsewhere.error["code"]) == (404, "UnknownNode")
    yard.inside(player.stop)
    until(lambda: not any(session.connected for session in yard.yard.agents.sessions.values()))
    away = yard.ask("GET", f"{TASKS}/1/logs")
    assert (away.status, away.error["code"]) == (503, "NodeUnreachable")
