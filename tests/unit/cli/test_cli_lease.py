"""`gpuyard lease`: terminated while the lease is requested."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import pytest

from gpuyard.core.domain.values import TaskStatus
from gpuyard.live.wire.answers import LeaseAnswer
from tests.unit.live.sdk.fake_server import Answering, another_cluster, fake_server, refusal, task

LEASE = LeaseAnswer(
    id="task-7", task_id="task-7", status=TaskStatus.PENDING, gpu_count=1, gpus=[], node_id=None, name="",
    tenant_id="default", user="ann", created_at="2026-11-15T12:00:00Z", started_at=None, expires_at=None, finished_at=None, reason=None,
)  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_lease_requested_while_its_process_is_terminated_is_released(number: signal.Signals) -> None:
    client = threading.Event()
    pids: list[int] = []

    def behave(line: Answering) -> None:
        if line.asked.method == "POST":
            client.wait(30)
            os.kill(pids[0], number)
            line.say(LEASE, 201)
        else:
            line.say({"id": "task-7", "task_id": "task-7", "status": "cancelled", "message": "It was given back."})

    with fake_server(behave) as server:
        words = [sys.executable, "-m", "gpuyard.cli", "lease", "--server", server.url]
        with started(words) as lease:
            pids.append(lease.pid)
            client.set()
            _, said = lease.communicate(timeout=60)
    assert lease.returncode == 130, said
    assert [asked.method for asked in server.asked] == ["POST", "DELETE"]


HEARS_SIGNALS = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Not by `preexec_fn`: gRPC, which other tests use in the same process, aborts a child that runs Python after a fork."""


@contextmanager
def started(words: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """A command that receives signals, even if the test runner ignores some (`nohup`), and is ended at the end."""

    with subprocess.Popen(
        [sys.executable, "-c", HEARS_SIGNALS, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


class Waits:
    """A scheduler at which a lease waits until it is released; with a token that only the requester has."""

    def __init__(self) -> None:
        self.waits, self.given_back = threading.Event(), threading.Event()

    def __call__(self, line: Answering) -> None:
        if line.asked.method == "POST":
            line.say(LEASE, 201)
        elif line.asked.method == "DELETE":
            assert line.asked.headers["Authorization"] == "Bearer gy_x"
            line.say({"id": "task-7", "task_id": "task-7", "status": "cancelled", "message": "The lease was released."})
            self.given_back.set()
        elif "/events" in line.asked.path:
            line.say(refusal("NotReady", "not now"), 409)
        else:
            line.say(task(7, TaskStatus.PENDING, command=None))
            self.waits.set()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGHUP, 130), (signal.SIGKILL, -9)]
)
def test_a_waiting_lease_is_released_however_its_process_ends(number: signal.Signals, code: int) -> None:
    scheduler = Waits()
    with fake_server(scheduler) as server:
        words = [sys.executable, "-m", "gpuyard.cli", "lease", "--server", server.url, "--token", "gy_x"]
        with started(words) as lease:
            assert scheduler.waits.wait(30)
            lease.send_signal(number)
            out, _ = lease.communicate(timeout=60)
        assert scheduler.given_back.wait(30)
        [released] = [asked.path for asked in server.asked if asked.method == "DELETE"]
        assert released == f"/api/v1/leases/task-7?created_at={quote(LEASE.created_at, safe='')}"
    assert (lease.returncode, out) == (code, "")


def test_another_task_under_the_number_of_a_lease_is_not_released() -> None:
    scheduler = Waits()

    def replaced(line: Answering) -> None:
        if scheduler.waits.is_set():
            another_cluster(line)
        else:
            scheduler(line)

    with fake_server(replaced) as server:
        words = [sys.executable, "-m", "gpuyard.cli", "lease", "--server", server.url, "--token", "gy_x"]
        with started(words) as lease:
            out, said = lease.communicate(timeout=60)
    assert (lease.returncode, out) == (1, "")
    assert "now has another task with this number" in said
    assert all("created_at=" in asked.path for asked in server.asked if asked.method == "DELETE")


class Slow:
    """A scheduler that makes one lease for each key and answers the first request too late."""

    def __init__(self) -> None:
        self.asked, self.answer, self.given_back = threading.Event(), threading.Event(), threading.Event()
        self.keys: list[str] = []

    def __call__(self, line: Answering) -> None:
        if line.asked.method == "POST":
            self.keys.append(line.asked.headers["Idempotency-Key"])
            if len(self.keys) == 1:
                self.asked.set()
                self.answer.wait(30)
            line.say(LEASE, 201)
        else:
            line.say({"id": "task-7", "task_id": "task-7", "status": "cancelled", "message": "The lease was released."})
            self.given_back.set()


def test_a_lease_whose_process_is_killed_before_the_answer_is_released() -> None:
    scheduler = Slow()
    with fake_server(scheduler) as server:
        words = [sys.executable, "-m", "gpuyard.cli", "lease", "--server", server.url, "-g", "1"]
        with subprocess.Popen(words) as lease:
            assert scheduler.asked.wait(30)
            lease.kill()
        assert scheduler.given_back.wait(30)
        scheduler.answer.set()
    first, again, released = server.asked
    assert (first.method, again.method, released.method) == ("POST", "POST", "DELETE")
    assert scheduler.keys == [scheduler.keys[0]] * 2
    assert first.body == again.body
    assert released.path.startswith("/api/v1/leases/task-7?created_at=")


def test_a_refused_lease_is_not_requested_again() -> None:
    with fake_server(lambda line: line.say(refusal("QueueFull", "The queue is full."), 429)) as server:
        words = [sys.executable, "-m", "gpuyard.cli", "lease", "--server", server.url]
        lease = subprocess.run(words, capture_output=True, timeout=60, check=False)
        assert lease.returncode == 1
    assert [asked.method for asked in server.asked] == ["POST"]
