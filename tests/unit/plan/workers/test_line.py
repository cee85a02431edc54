"""The connection between a plan and its workers: both ends prove that they know the key, and so does every message."""

import pickle
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest

from gpuyard.plan.workers import line as line_module
from gpuyard.plan.workers.line import DRAWN, MAC, PROTOCOL, LineClosed, NotAuthenticated, NotProven, WorkerLink

KEY = b"the key of the run"


class _Bomb:
    """Unpickling it is noticed."""

    went_off = False

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return (_go_off, ())


def _go_off() -> None:
    _Bomb.went_off = True


def _ends() -> tuple[socket.socket, socket.socket]:
    """The two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()
    return here, there


@contextmanager
def _lines(
    worker_key: bytes = KEY, plan_key: bytes = KEY
) -> "Iterator[tuple[list[WorkerLink | None], list[socket.socket]]]":
    """What both ends got: the plan first. None: it did not believe the other one."""
    ends = _ends()
    got: list[WorkerLink | None] = [None, None]

    def prove(place: int, begin: Callable[[socket.socket, bytes], WorkerLink], key: bytes) -> None:
        try:
            got[place] = begin(ends[place], key)
        except NotAuthenticated:
            ends[place].close()

    threads = [
        Thread(target=prove, args=(0, WorkerLink.of_worker, plan_key)),
        Thread(target=prove, args=(1, WorkerLink.to_plan, worker_key)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        yield got, list(ends)
    finally:
        for one in got:
            if one is not None:
                one.close()
        for end in ends:
            end.close()


def test_messages_of_any_size_pass_in_both_directions() -> None:
    with _lines() as ((plan, worker), _):
        assert plan is not None
        assert worker is not None
        large = bytes(range(256)) * 20_000
        plan.send({"order": 1})
        plan.send(large)
        worker.send(["reply"])
        assert worker.receive() == {"order": 1}
        assert worker.receive() == large
        assert plan.receive() == ["reply"]


def test_neither_end_believes_one_with_another_key() -> None:
    with _lines(worker_key=b"a guess") as (got, _):
        assert got == [None, None]


def test_a_closed_line_is_noticed_after_what_was_sent_before() -> None:
    with _lines() as ((plan, worker), _):
        assert plan is not None
        assert worker is not None
        plan.send("last words")
        plan.close(5.0)
        assert worker.receive() == "last words"
        with pytest.raises(LineClosed):
            worker.receive()


def test_a_silent_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a machine that lost its power: its connection stays open, and nothing is sent, not even that all is well."""
    monkeypatch.setattr(line_module, "SILENT_S", 0.2)
    monkeypatch.setattr(line_module, "PING_S", 60.0)
    with _lines() as ((plan, _worker), _):
        assert plan is not None
        with pytest.raises(LineClosed):
            plan.receive()


def test_an_end_that_has_nothing_to_say_shows_that_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "SILENT_S", 1.0)
    monkeypatch.setattr(line_module, "PING_S", 0.05)
    with _lines() as ((plan, worker), (plan_socket, _)):
        assert plan is not None
        assert worker is not None
        empty = 8 + MAC
        while len(plan_socket.recv(1 << 16, socket.MSG_PEEK)) < 5 * empty:
            pass
        worker.send("at last")
        assert plan.receive() == "at last"


@pytest.mark.parametrize("what", ["added", "repeated", "changed"])
def test_a_message_that_somebody_else_sends_is_not_unpickled(what: str) -> None:
    """Somebody between the two ends can write into the connection and has seen a message, but does not know the key."""
    _Bomb.went_off = False
    with _lines() as ((plan, worker), (plan_socket, worker_socket)):
        assert plan is not None
        assert worker is not None
        content = pickle.dumps(_Bomb())
        head = len(content).to_bytes(8, "big")
        if what == "added":
            worker_socket.sendall(head + bytes(MAC) + content)
        else:
            worker.send("seen")
            seen = _peek(plan_socket)
            assert plan.receive() == "seen"
            worker_socket.sendall(seen if what == "repeated" else seen[:8] + bytes(MAC) + seen[8 + MAC :])
        with pytest.raises(LineClosed):
            plan.receive()
    assert not _Bomb.went_off


def _peek(connection: socket.socket) -> bytes:
    """The bytes of one whole message, which stay to be received."""
    while True:
        seen = connection.recv(1 << 16, socket.MSG_PEEK)
        if len(seen) >= 8 and len(seen) >= 8 + MAC + int.from_bytes(seen[:8], "big"):
            return seen


def test_a_stranger_that_says_nothing_or_too_little_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "HANDSHAKE_S", 0.2)
    for said in (b"", b"x" * DRAWN):
        here, there = _ends()
        with here, there:
            there.sendall(said)
            with pytest.raises(NotAuthenticated):
                WorkerLink.of_worker(here, KEY)
            assert there.recv(1000)[: len(PROTOCOL)] == PROTOCOL


@pytest.mark.parametrize(
    ("begin", "needed"), [(WorkerLink.of_worker, DRAWN + MAC), (WorkerLink.to_plan, len(PROTOCOL) + DRAWN)]
)
def test_a_stranger_that_sends_a_byte_now_and_then_has_no_more_time_than_others(
    begin: Callable[[socket.socket, bytes], WorkerLink], needed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_module, "HANDSHAKE_S", 0.5)
    here, there = _ends()
    over, sent = Event(), 0

    def drip() -> None:
        nonlocal sent
        while not over.wait(0.1) and sent < needed:
            there.sendall(b"x")
            sent += 1

    with here, there:
        slow = Thread(target=drip)
        slow.start()
        with pytest.raises(NotProven):
            begin(here, KEY)
        over.set()
        slow.join()
    assert 0 < sent < needed, "it was not believed although it had still bytes to send"


def test_a_worker_knows_whether_its_key_is_wrong_or_the_plan_had_no_time_for_it() -> None:
    here, there = _ends()
    with there:
        here.close()
        with pytest.raises(NotProven):
            WorkerLink.to_plan(there, KEY)
    here, there = _ends()
    wrong: list[type[Exception]] = []

    def refuse() -> None:
        try:
            WorkerLink.of_worker(here, KEY)
        except NotAuthenticated as error:
            wrong.append(type(error))
            here.close()

    plan = Thread(target=refuse)
    plan.start()
    with there, pytest.raises(NotAuthenticated) as told:
        WorkerLink.to_plan(there, b"a guess")
    plan.join()
    assert told.type is NotAuthenticated
    assert wrong == [NotAuthenticated]
