"""Streams: events that can be resumed, and output that follows the speed of the reader."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gpuyard.core.domain.commands import CancelTask, CordonNode, ReportEnded, ReportStarted
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import NodeId, Outcome, TaskId, TenantId
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.live.control_plane.access.principal import Role
from gpuyard.live.control_plane.access.store import AccessStore
from gpuyard.live.control_plane.nodes import outputs
from gpuyard.live.control_plane.server import GRPC_OPTIONS
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import LOG_REQUEST, SESSION, AgentsStub, agents_handler
from gpuyard.testing.fake_node import node_of, register_node
from tests.acceptance.rest_cluster import PATIENCE_SECONDS, RestCluster
from tests.acceptance.waiting import until

TASKS, EVENTS = "/api/v1/tasks", "/api/v1/events"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RestCluster]:
    with RestCluster(tmp_path) as cluster:
        yield cluster


# --- events -----------------------------------------------------------------------------------------------------------


class Events:
    """A stream of them, as a client reads it."""

    def __init__(self, cluster: RestCluster, query: str = "", **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=PATIENCE_SECONDS)
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
def listening(cluster: RestCluster, query: str = "", **headers: str) -> Iterator[Events]:
    events = Events(cluster, query, **headers)
    try:
        yield events
    finally:
        events.close()


def listeners(cluster: RestCluster) -> int:
    return len(cluster.scheduler.stream._listeners)


def test_events_are_streamed_as_they_happen(cluster: RestCluster) -> None:
    with listening(cluster) as events:
        until(lambda: listeners(cluster) == 1)
        cluster.submit(name="seen")
        submitted, placed = events.next(), events.next()
        assert submitted["type"] == "TaskSubmitted"
        assert submitted["task"]["name"] == "seen"
        assert submitted["by"].endswith("@127.0.0.1")
        assert placed["type"] == "TaskPlaced"
    until(lambda: listeners(cluster) == 0)


def test_an_interrupted_stream_resumes_without_gaps_or_duplicates(cluster: RestCluster) -> None:
    cluster.ask("POST", f"{TASKS}:batch", {"tasks": [{"gpu_count": 99, "command": "true"}] * 2500})
    busy = threading.Thread(target=lambda: [cluster.submit(gpu_count=99) for _ in range(100)])
    busy.start()
    with listening(cluster, Last_Event_ID="5") as events:
        numbers = [events.next()["seq"] for _ in range(2595)]
    busy.join()
    assert numbers == list(range(6, 2601))


def test_the_events_of_one_task_can_be_asked_for_alone(cluster: RestCluster) -> None:
    with listening(cluster, "?task=task-2&after=0") as events:
        cluster.submit()
        cluster.submit(gpu_count=99)
        cluster.ask("DELETE", f"{TASKS}/2")
        assert [events.next()["type"] for _ in range(2)] == ["TaskSubmitted", "TaskEnded"]


def test_a_tenant_receives_only_events_of_its_own_tasks(tmp_path: Path) -> None:
    with RestCluster(tmp_path, local=False) as cluster:
        task = {"gpu_count": 1, "command": "true", "priority": "high"}
        alice, bob = cluster.token_of("alice", Role.MEMBER, "lab"), cluster.token_of("bob", Role.MEMBER, "shop")
        for token in (bob, alice, bob, alice):
            cluster.ask("POST", TASKS, task, token=token)
        cluster.tell(ReportStarted(TaskId(2), 1))
        cluster.tell(ReportEnded(TaskId(2), 1, Outcome.SUCCEEDED, 0))
        until(lambda: 2 not in cluster.scheduler.views.tasks)
        with listening(cluster, "?after=0", Authorization=f"Bearer {alice}") as events:
            cluster.ask("POST", TASKS, task, token=bob)
            last = cluster.ask("POST", TASKS, task, token=alice).json["id"]
            heard: list[str] = []
            while not heard or heard[-1] != last:
                heard.append(events.next()["task_id"])
        assert set(heard) == {"task-2", "task-4", "task-6"}


def test_who_was_away_for_longer_than_events_are_kept_is_told_what_is_missing(cluster: RestCluster) -> None:
    journal = cluster.scheduler.stores.journal
    assert isinstance(journal, SqliteJournal)
    journal.segment_events = 10
    for _ in range(3):
        for _ in range(10):
            cluster.submit(gpu_count=99)
        cluster.inside(cluster.scheduler.snapshots.save)
    retired = journal.retire()
    assert retired > 2
    with listening(cluster, Last_Event_ID="2") as events:
        gap = events.next()
        assert (gap["after"], gap["next"]) == (2, retired + 1)
        assert gap["message"].startswith(f"Events 3 to {retired} have been removed")
        last = cluster.scheduler.loop.committed
        assert [events.next()["seq"] for _ in range(retired, last)] == list(range(retired + 1, last + 1))
    with listening(cluster, Last_Event_ID=str(retired)) as events:
        assert events.next()["seq"] == retired + 1


def test_a_client_ahead_of_the_journal_is_told_so_and_gets_later_events(cluster: RestCluster) -> None:
    """An old copy of the data was restored: numbers are given out again."""
    last = cluster.scheduler.loop.committed
    with listening(cluster, Last_Event_ID="1000") as events:
        gap = events.next()
        assert (gap["after"], gap["next"]) == (1000, last + 1)
        assert "an old copy may have been restored" in gap["message"]
        cluster.submit()
        assert events.next()["seq"] == last + 1


@pytest.mark.parametrize("last", ["x", "-1", "1e3", "9" * 30])
def test_an_invalid_event_id_is_refused(cluster: RestCluster, last: str) -> None:
    reply = cluster.ask("GET", EVENTS, Last_Event_ID=last)
    assert (reply.status, reply.error["field"]) == (400, "Last-Event-ID")


def test_streams_end_when_the_scheduler_stops(tmp_path: Path) -> None:
    with RestCluster(tmp_path) as cluster:
        events = Events(cluster)
        until(lambda: listeners(cluster) == 1)
    assert events.response.read().endswith(b"\n\n")
    events.close()


# --- streams of a user who lost access ----------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[AccessStore, str], object]] = {
    "token-revoked": lambda access, name: access.revoke_token(access.tokens(name)[0].id),
    "removed": lambda access, name: access.remove_user(name),
    "disabled": lambda access, name: access.change_user(name, disabled=True),
    "other-role": lambda access, name: access.change_user(name, role=Role.VIEWER),
    "other-tenant": lambda access, name: access.change_user(name, tenant=TenantId("shop")),
}


@pytest.mark.parametrize("path", [EVENTS, f"{TASKS}/1/logs?follow=true"])
def test_a_stream_ends_within_seconds_when_its_reader_loses_access(tmp_path: Path, path: str) -> None:
    """It does not end regularly: a client that follows a task must not take this for the end of the task."""
    with RestCluster(tmp_path, local=False) as cluster, ExitStack() as stack:
        streams: dict[str, http.client.HTTPResponse] = {}
        for name in (*CHANGES, "bystander"):
            token = cluster.token_of(name, Role.MEMBER, "lab")
            if not streams:
                cluster.ask("POST", TASKS, {"gpu_count": 99, "command": "true"}, token=token)
            connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=5)
            stack.callback(connection.close)
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            response = streams[name] = stack.enter_context(connection.getresponse())
            assert response.status == 200
        for name, change in CHANGES.items():
            assert not isinstance(change(cluster.access, name), Refusal)
        for name in CHANGES:
            with pytest.raises((ConnectionError, http.client.IncompleteRead)):
                streams[name].read()
        cluster.tell(CancelTask(TaskId(1)))
        heard = next((line for line in streams["bystander"] if line.startswith(b"event: TaskEnded")), b"a whole end")
        assert heard == (b"event: TaskEnded\n" if path == EVENTS else b"a whole end")


# --- output -----------------------------------------------------------------------------------------------------------


class Agent:
    """A node's agent that runs nothing and has output: the real protocol over a real port."""

    def __init__(self, cluster: RestCluster, node: str, output: dict[tuple[int, int], bytes]) -> None:
        self._cluster = cluster
        self._spec = cluster.node(node, 1)
        self._output = output
        self.chunk_bytes = 50_000
        self.more_to_come = False
        self.sent = 0
        """Bytes of output handed to the line."""
        self.readers = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = grpc.aio.server(options=GRPC_OPTIONS)
        self._server.add_generic_rpc_handlers((agents_handler(self._cluster.scheduler.agents),))
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
            metadata = (*self._metadata, (LOG_REQUEST, command.send_log.request))
            await self._stub.send_log(self._chunks(command), metadata=metadata)
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
def agent(tmp_path: Path) -> Iterator[tuple[RestCluster, Agent]]:
    with RestCluster(tmp_path, gpus=0) as cluster:
        agent = Agent(cluster, "n1", {(1, 1): BINARY})
        cluster.inside(agent.start)
        until(lambda: any(session.connected for session in cluster.scheduler.agents.sessions.values()))
        yield cluster, agent
        cluster.inside(agent.stop)


def start(cluster: RestCluster, task: int = 1, attempt: int = 1) -> None:
    cluster.tell(ReportStarted(TaskId(task), attempt))


def test_output_is_streamed_whole_or_in_part(agent: tuple[RestCluster, Agent]) -> None:
    cluster, _ = agent
    cluster.submit(priority="high")
    start(cluster)
    whole = cluster.ask("GET", f"{TASKS}/1/logs")
    assert (whole.status, whole.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert whole.body == BINARY
    assert cluster.ask("GET", f"{TASKS}/1/logs?offset=10&limit=20").body == BINARY[10:30]
    assert cluster.ask("GET", f"{TASKS}/1/logs?tail=99").body == BINARY[-99:]
    assert cluster.ask("GET", f"{TASKS}/1/logs?tail=0").body == b""
    assert cluster.ask("GET", f"{TASKS}/1/logs?attempt=1&node=n1").body == BINARY
    assert cluster.ask("GET", f"{TASKS}/1/logs?tail=1&offset=1").status == 400
    assert cluster.ask("GET", f"{TASKS}/1/logs?attempt=2").status == 404
    assert cluster.ask("HEAD", f"{TASKS}/1/logs").status == 200


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("since=10", 503, "it is older than the scheduler"),
        ("until=2026-01-01T00:00:00Z", 503, "it is older than the scheduler"),
        ("timestamps=true", 503, "it is older than the scheduler"),
        ("since=yesterday", 400, "it must be a time such as 2026-01-31T12:00:00Z"),
        ("since=10&offset=5", 400, "Give since or offset, not both: both name the beginning."),
        ("until=10&follow=true", 400, "Give until or follow, not both"),
        ("until=10&tail=5", 400, "Give until or tail, not both"),
        ("timestamps=true&limit=5", 400, "Give timestamps or limit, not both"),
        ("since=10&until=10", 400, "until must be later than since."),
        ("search=x&timestamps=true", 400, "timestamps cannot be combined with search."),
    ],
)
def test_times_of_output_are_refused_where_they_contradict_or_the_agent_is_older(
    agent: tuple[RestCluster, Agent], query: str, status: int, said: str
) -> None:
    cluster, _ = agent
    cluster.submit(priority="high")
    start(cluster)
    refused = cluster.ask("GET", f"{TASKS}/1/logs?{query}")
    assert refused.status == status
    assert said in refused.error["message"]


def test_output_of_an_ended_task_is_available(agent: tuple[RestCluster, Agent]) -> None:
    cluster, _ = agent
    cluster.submit(priority="high")
    start(cluster)
    cluster.tell(ReportEnded(TaskId(1), 1, Outcome.SUCCEEDED, 0))
    until(lambda: 1 not in cluster.scheduler.views.tasks)
    assert cluster.ask("GET", f"{TASKS}/1/logs").body == BINARY
    assert cluster.ask("GET", f"{TASKS}/1/logs?follow=true").body == BINARY


def test_output_of_a_task_that_started_and_ended_while_disconnected_is_available(
    agent: tuple[RestCluster, Agent],
) -> None:
    cluster, _ = agent
    cluster.submit(priority="high")
    cluster.tell(ReportEnded(TaskId(1), 1, Outcome.SUCCEEDED, 0))  # the report of its start was lost with a connection
    until(lambda: 1 not in cluster.scheduler.views.tasks)
    assert cluster.ask("GET", f"{TASKS}/1/logs").body == BINARY


def test_following_waits_for_the_start_continues_with_the_next_attempt_and_ends_with_the_task(
    agent: tuple[RestCluster, Agent],
) -> None:
    cluster, player = agent
    player._output.update({(1, 1): b"first\n", (1, 2): b"second\n"})
    cluster.submit(priority="high", retries=1)
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=PATIENCE_SECONDS)
    connection.request("GET", f"{TASKS}/1/logs?follow=true")
    response = connection.getresponse()
    start(cluster)
    assert response.readline() == b"first\n"
    cluster.tell(ReportEnded(TaskId(1), 1, Outcome.FAILED, 1))
    until(lambda: cluster.scheduler.views.tasks[TaskId(1)].attempts == 2)
    start(cluster, attempt=2)
    assert response.readline() == b"second\n"
    cluster.tell(ReportEnded(TaskId(1), 2, Outcome.SUCCEEDED, 0))
    assert response.read() == b""
    connection.close()


def test_following_the_output_of_one_node_leaves_out_attempts_on_other_nodes(agent: tuple[RestCluster, Agent]) -> None:
    cluster, player = agent
    other = Agent(cluster, "n2", {(1, 2): b"elsewhere\n"})
    player._output.update({(1, 1): b"first\n"})
    cluster.submit(priority="high", retries=1)
    start(cluster)
    cluster.inside(other.start)
    until(lambda: len(cluster.scheduler.agents.sessions) == 2)
    cluster.tell(CordonNode(NodeId("n1")))
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=PATIENCE_SECONDS)
    connection.request("GET", f"{TASKS}/1/logs?follow=true&node=n1")
    response = connection.getresponse()
    assert response.readline() == b"first\n"
    cluster.tell(ReportEnded(TaskId(1), 1, Outcome.FAILED, 1))
    until(lambda: cluster.scheduler.views.tasks[TaskId(1)].attempts == 2)
    start(cluster, attempt=2)
    assert cluster.ask("GET", f"{TASKS}/1/logs").body == b"elsewhere\n"
    cluster.tell(ReportEnded(TaskId(1), 2, Outcome.SUCCEEDED, 0))
    assert response.read() == b""
    connection.close()
    cluster.inside(other.stop)


def test_a_slow_reader_slows_the_node_down_and_a_closed_connection_ends_the_transfer(
    agent: tuple[RestCluster, Agent],
) -> None:
    cluster, player = agent
    player._output[1, 1] = bytes(200 << 20)
    cluster.submit(priority="high")
    start(cluster)
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=PATIENCE_SECONDS)
    connection.request("GET", f"{TASKS}/1/logs")
    response = connection.getresponse()
    assert response.read(1000) == bytes(1000)
    before = -1
    while before != player.sent:  # until nothing moves any more
        before = player.sent
        assert cluster.ask("GET", "/readyz").status == 200
        threading.Event().wait(0.3)
    assert player.sent < 8 << 20, "more is held back than the buffers of the kernel take"
    response.close()
    connection.close()
    until(lambda: player.readers == 0)


@pytest.mark.parametrize("so_far", [b"", b"so far\n"])
def test_who_leaves_the_output_of_a_silent_task_ends_it_on_its_node(
    agent: tuple[RestCluster, Agent], so_far: bytes
) -> None:
    cluster, player = agent
    player._output[1, 1], player.more_to_come = so_far, True
    cluster.submit(priority="high")
    start(cluster)
    readers = [http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=PATIENCE_SECONDS) for _ in range(5)]
    for reader in readers:
        reader.request("GET", f"{TASKS}/1/logs?follow=true")
    for reader in readers:
        assert reader.getresponse().status == 200
    until(lambda: player.readers == len(readers))
    for reader in readers:
        reader.close()
    until(lambda: player.readers == 0)
    assert cluster.scheduler.agents.outputs.count == 0


def test_an_output_ends_with_its_client_also_if_the_client_ends_only_its_side(agent: tuple[RestCluster, Agent]) -> None:
    """An output that is there is sent whole. With `follow`, the client may have left, which nothing else would show."""
    cluster, player = agent
    cluster.submit(priority="high")
    start(cluster)

    def asks(query: str) -> bytes:
        with cluster.socket() as line:
            line.sendall(f"GET {TASKS}/1/logs{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            line.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: line.recv(1 << 20), b""))

    whole = asks("")
    assert whole.endswith(b"0\r\n\r\n")
    assert len(whole) > len(BINARY)
    player.more_to_come = True
    for _ in range(5):
        assert not asks("?follow=true").endswith(b"0\r\n\r\n"), "a stream that is broken off looks complete"
    until(lambda: player.readers == 0)
    assert cluster.scheduler.agents.outputs.count == 0


def test_more_outputs_than_can_be_read_at_once_are_refused(
    agent: tuple[RestCluster, Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "MOST_READERS", 1)
    cluster, player = agent
    player.more_to_come = True
    cluster.submit(priority="high")
    start(cluster)
    reader = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=PATIENCE_SECONDS)
    reader.request("GET", f"{TASKS}/1/logs?follow=true")
    assert reader.getresponse().status == 200
    refused = cluster.ask("GET", f"{TASKS}/1/logs")
    assert (refused.status, refused.error["code"]) == (503, "TooManyReaders")
    reader.close()
    until(lambda: player.readers == 0)
    player.more_to_come = False
    assert cluster.ask("GET", f"{TASKS}/1/logs").body == BINARY


def test_asking_for_the_head_of_an_output_follows_nothing(agent: tuple[RestCluster, Agent]) -> None:
    cluster, player = agent
    player._output[1, 1], player.more_to_come = b"", True
    cluster.submit(priority="high")
    assert cluster.ask("HEAD", f"{TASKS}/1/logs?follow=true").status == 200
    start(cluster)
    answer = cluster.ask("HEAD", f"{TASKS}/1/logs?follow=true")
    assert (answer.status, answer.body, answer.headers.get("content-length")) == (200, b"", None)
    assert cluster.ask("HEAD", f"{TASKS}/1/logs").status == 200
    until(lambda: player.readers == 0)
    assert cluster.scheduler.agents.outputs.count == 0
    player._output.clear()
    assert (
        cluster.ask("HEAD", f"{TASKS}/1/logs?follow=true").status == cluster.ask("GET", f"{TASKS}/1/logs").status == 404
    )


def test_output_breaks_off_when_its_node_goes_and_that_is_no_bug_of_ours(
    agent: tuple[RestCluster, Agent], caplog: pytest.LogCaptureFixture
) -> None:
    cluster, player = agent
    player._output[1, 1], player.more_to_come = b"so far\n", True
    cluster.submit(priority="high")
    start(cluster)
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=PATIENCE_SECONDS)
    connection.request("GET", f"{TASKS}/1/logs?follow=true")
    with connection.getresponse() as response:
        assert response.readline() == b"so far\n"
        for session in cluster.scheduler.agents.sessions.values():
            cluster._loop.call_soon_threadsafe(session.close)
        with pytest.raises((ConnectionError, http.client.IncompleteRead)):
            response.read()
    connection.close()
    assert not caplog.records


def test_unavailable_output_is_reported_in_one_sentence(agent: tuple[RestCluster, Agent]) -> None:
    cluster, player = agent
    player._output.clear()
    cluster.submit(priority="high")
    assert cluster.ask("GET", f"{TASKS}/1/logs").body == b""
    start(cluster)
    missing = cluster.ask("GET", f"{TASKS}/1/logs")
    assert "no such output" in missing.error["message"]
    elsewhere = cluster.ask("GET", f"{TASKS}/1/logs?node=n7")
    assert (elsewhere.status, elsewhere.error["code"]) == (404, "UnknownNode")
    cluster.inside(player.stop)
    until(lambda: not any(session.connected for session in cluster.scheduler.agents.sessions.values()))
    away = cluster.ask("GET", f"{TASKS}/1/logs")
    assert (away.status, away.error["code"]) == (503, "NodeUnreachable")
