"""Workers in tasks that connect: tasks that come, go, and are not what they say."""

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

from gpuyard.plan.executor.messages import Back, Done, Lost
from gpuyard.plan.workers import line as line_module
from gpuyard.plan.workers.line import PROTOCOL, NotProven, WorkerLink
from gpuyard.plan.workers.order import OrderKind
from gpuyard.plan.workers.remote import UNPROVEN, UNPROVEN_OF_PEER, BlockChange, BlockNews, RemoteClocks, RemotePool
from gpuyard.plan.workers.remote_messages import Here
from gpuyard.plan.workers.remote_worker import line_to_plan
from tests.acceptance.waiting import until as eventually
from tests.contract.remote_tasks import all_here, remote_task, remote_tasks
from tests.contract.worker_pools import PATIENCE_S, ask, call, until


def _until(pool: RemotePool, wanted: BlockNews) -> None:
    end = monotonic() + PATIENCE_S
    while wanted not in pool.news():
        assert monotonic() < end, f"{wanted} did not happen"
        pool.wait(0.05)


def _pool() -> RemotePool:
    return RemotePool([range(2), range(2, 3)])


def test_a_task_that_does_not_know_the_key_is_refused_and_the_others_work_on() -> None:
    pool = _pool()
    with remote_tasks(pool):
        all_here(pool)
        stranger = remote_task(pool, 1, key="a guess")
        _, said = stranger.communicate(timeout=PATIENCE_S)
        assert stranger.returncode == 1
        assert said == f"The process at {pool.address} is not the plan that this task belongs to.\n"
        assert pool.refused == 1
        assert pool.news() == []
        pool.open([2])
        assert until(pool, bool) == [Back(2)]
        pool.close()


def test_strangers_that_only_connect_do_not_keep_tasks_out() -> None:
    pool = _pool()
    host, port = pool.address.rsplit(":", 1)
    strangers = [socket.create_connection((host, int(port))) for _ in range(20)]
    with remote_tasks(pool):
        all_here(pool)
        pool.close()
    for stranger in strangers:
        stranger.close()


def _strangers(pool: RemotePool, count: int, address: str = "127.0.0.1") -> list[socket.socket]:
    host, port = pool.address.rsplit(":", 1)
    return [socket.create_connection((host, int(port)), 10.0, (address, 0)) for _ in range(count)]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers have to make room before their time is over, also on a busy machine."""
    monkeypatch.setattr(line_module, "HANDSHAKE_S", PATIENCE_S)


@pytest.mark.usefixtures("patient")
def test_more_strangers_than_are_kept_do_not_keep_tasks_out_and_are_reported() -> None:
    pool = _pool()
    assert not pool.turned_away
    strangers = _strangers(pool, 3 * UNPROVEN)
    try:
        with remote_tasks(pool):
            all_here(pool)
            assert pool.dropped >= 3 * UNPROVEN - UNPROVEN_OF_PEER
            pool.close()
    finally:
        for stranger in strangers:
            stranger.close()
    assert f" {pool.dropped:,} were dropped to make room for others." in pool.turned_away


@pytest.mark.usefixtures("patient")
def test_strangers_of_one_address_do_not_push_out_a_slow_worker_of_another() -> None:
    pool = _pool()
    slow = _strangers(pool, 1, "127.0.0.2")
    strangers = _strangers(pool, UNPROVEN)
    try:
        eventually(lambda: pool.dropped == UNPROVEN - UNPROVEN_OF_PEER, what="the oldest strangers are dropped")
        assert strangers[0].recv(1000).startswith(PROTOCOL)
        assert strangers[0].recv(1000) == b"", "the oldest was closed"
        WorkerLink.to_plan(slow[0], pool.key.encode()).close()
    finally:
        pool.close()
        for stranger in strangers:
            stranger.close()


@pytest.mark.usefixtures("patient")
def test_strangers_of_many_addresses_make_room_in_their_order() -> None:
    pool = _pool()
    many = UNPROVEN // UNPROVEN_OF_PEER + 1
    strangers = [one for peer in range(many) for one in _strangers(pool, UNPROVEN_OF_PEER, f"127.0.0.{2 + peer}")]
    try:
        eventually(lambda: pool.dropped == UNPROVEN_OF_PEER, what="those of the first address are dropped")
        for stranger in strangers[:UNPROVEN_OF_PEER]:
            assert stranger.recv(1000).startswith(PROTOCOL)
            assert stranger.recv(1000) == b""
        WorkerLink.to_plan(strangers[-1], pool.key.encode()).close()
    finally:
        pool.close()
        for stranger in strangers:
            stranger.close()


def test_a_task_whose_connection_is_dropped_tries_again() -> None:
    key = b"the key"
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        listener.settimeout(PATIENCE_S)
        trying = threads.submit(line_to_plan, address, key)
        for _ in range(2):
            listener.accept()[0].close()
        plan = WorkerLink.of_worker(listener.accept()[0], key)
        worker = trying.result(PATIENCE_S)
        worker.send("here")
        assert plan.receive() == "here"
        worker.close()
        plan.close()


def test_a_task_that_is_always_dropped_gives_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        listener.settimeout(0.1)
        trying = threads.submit(line_to_plan, f"127.0.0.1:{listener.getsockname()[1]}", b"the key", 0.4)
        while not trying.done():
            with suppress(TimeoutError):
                listener.accept()[0].close()
        assert isinstance(trying.exception(PATIENCE_S), NotProven)


OUT_OF_FILES = """
import os, resource, sys
from gpuyard.plan.workers.remote import RemotePool
pool = RemotePool([range(1)])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    print(pool.address, pool.key, flush=True)
while pool.not_accepted is None:
    pool.wait(0.01)
for one in taken:
    os.close(one)
print(pool.turned_away, flush=True)
sys.stdin.readline()
pool.close()
"""


def test_a_plan_that_had_too_many_open_files_accepts_workers_afterwards() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OUT_OF_FILES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as plan:
        try:
            assert plan.stdin is not None
            assert plan.stdout is not None
            address, key = plan.stdout.readline().split()
            line = line_to_plan(address, key.encode(), PATIENCE_S)
            assert plan.stdout.readline() == "Some connections could not be accepted at once: Too many open files.\n"
            line.close()
            plan.stdin.write("\n")
            plan.stdin.close()
            assert plan.wait(PATIENCE_S) == 0
        finally:
            plan.kill()


def test_a_task_that_knows_the_key_but_names_no_block_is_not_taken() -> None:
    pool = _pool()
    host, port = pool.address.rsplit(":", 1)
    try:
        line = WorkerLink.to_plan(socket.create_connection((host, int(port))), pool.key.encode())
        line.send(Here(1, "node", "task"))
        pool.wait(0.2)
        assert pool.news() == []
        line.close()
    finally:
        pool.close()


def test_the_loss_of_a_task_is_the_loss_of_all_its_workers_and_another_one_takes_its_place() -> None:
    pool = _pool()
    with remote_tasks(pool) as tasks:
        all_here(pool)
        pool.open([0, 1, 2])
        until(pool, lambda events: len(events) == 3)
        workers = [pool.pid(gpu) for gpu in (0, 1)]
        tasks[0].kill()
        lost = until(pool, lambda events: len(events) == 2)
        assert lost == [Lost(gpu, f"the worker of GPU {gpu} is gone with task-0 on node-0") for gpu in (0, 1)]
        assert pool.news() == [BlockNews(0, BlockChange.GONE)]
        for worker in workers:
            assert worker is not None
            _has_ended(worker)
        assert isinstance(ask(pool, 2, 1, OrderKind.LOAD), Done), "other tasks work on"
        tasks.append(remote_task(pool, 0))
        _until(pool, BlockNews(0, BlockChange.CAME))
        pool.open([0])
        assert until(pool, bool) == [Back(0)]
        pool.close()


def test_a_reclaimed_task_passes_the_notice_on_and_ends_when_the_plan_has_left() -> None:
    pool = _pool()
    with remote_tasks(pool) as tasks:
        all_here(pool)
        pool.open([0, 2])
        until(pool, lambda events: len(events) == 2)
        worker = pool.pid(0)
        assert worker is not None
        for process in (tasks[0].pid, worker):  # the scheduler sends the signal to every process of the task
            os.kill(process, signal.SIGTERM)
        _until(pool, BlockNews(0, BlockChange.NOTICE))
        assert isinstance(ask(pool, 0, 1, OrderKind.LOAD), Done), "its worker still works"
        assert pool.fetch(call(pool, 0, 2, "you"))["said"] == "echo you"
        assert tasks[0].poll() is None
        pool.leave(0)
        assert tasks[0].wait(PATIENCE_S) == 0
        _has_ended(worker)
        assert pool.news() == [], "it was left, so it is not lost"
        pool.close()


def test_workers_end_with_the_process_of_the_plan_and_their_task_fails() -> None:
    pool = _pool()
    task = remote_task(pool, 1)
    _until(pool, BlockNews(1, BlockChange.CAME))
    pool.open([2])
    until(pool, bool)
    worker = pool.pid(2)
    pool._lines[1].close()  # as when the process is killed
    _, said = task.communicate(timeout=PATIENCE_S)
    assert task.returncode == 1, "the calls of the plan were not done, so the task was no success"
    assert said == f"The plan at {pool.address} is gone: the connection ended, and it had not left the GPUs.\n"
    assert worker is not None
    _has_ended(worker)
    pool.close()
    _close(task)


def test_a_task_that_reaches_no_plan_says_so() -> None:
    pool = _pool()
    pool.close()
    task = remote_task(pool, 0)
    _, said = task.communicate(timeout=PATIENCE_S)
    assert task.returncode == 1
    assert said.startswith(f"No plan can be reached at {pool.address} from this node: ")


def _close(task: "subprocess.Popen[str]") -> None:
    assert task.stderr is not None
    task.stderr.close()


def _has_ended(pid: int) -> None:
    eventually(lambda: not _lives(pid), what=f"worker {pid} ends")


def _lives(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="the clocks of a real GPU would be locked")
def test_why_a_clock_cannot_be_locked_is_told_by_its_task_and_again_by_the_next_one() -> None:
    pool = _pool()
    with remote_tasks(pool) as tasks:
        all_here(pool)
        pool.open([2])
        until(pool, bool)
        RemoteClocks(pool).lock("2", 1100)
        assert isinstance(ask(pool, 2, 1, OrderKind.LOAD), Done)
        assert len(pool.troubles) == 1
        assert pool.troubles[0].startswith("The power levels of the plan are not applied: ")
        pool.troubles.clear()
        pool.leave(1)
        tasks.append(remote_task(pool, 1))
        _until(pool, BlockNews(1, BlockChange.CAME))
        pool.open([2])
        until(pool, bool)
        assert len(pool.troubles) == 1, "the next task of the block locks the clock, too"
        pool.close()
