"""Workers keep the same contract as local processes, in tasks that connect, and as actors of a Ray cluster of two nodes."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from gpuyard.plan.executor.messages import Done
from gpuyard.plan.workers.local import LocalPool
from gpuyard.plan.workers.order import OrderKind
from gpuyard.plan.workers.pool import Pool
from gpuyard.plan.workers.remote import RemotePool
from tests.contract.ray_cluster import REPOSITORY, beside_a_cluster, can_run
from tests.contract.remote_tasks import all_here, remote_tasks
from tests.contract.worker_pools import ECHO, PROMISES, all_there, ask, call


@pytest.mark.parametrize("promise", PROMISES)
def test_local_workers_keep_the_contract_of_a_pool(promise: Callable[[Pool], None]) -> None:
    pool = LocalPool(["4", "5", "6"], widest=2, runtimes=[ECHO])
    try:
        promise(pool)
    finally:
        pool.close()


@pytest.mark.parametrize("promise", PROMISES)
def test_workers_in_tasks_that_connect_keep_the_contract_of_a_pool(promise: Callable[[Pool], None]) -> None:
    pool = RemotePool([range(2), range(2, 3)])
    pool.runtimes = [ECHO]
    with remote_tasks(pool):
        all_here(pool)
        promise(pool)
        pool.close()


def test_a_worker_sees_its_own_gpu_first_and_those_that_wide_models_span() -> None:
    pool = LocalPool(["4", "5", "6"], widest=2)
    try:
        all_there(pool, 0, 2)
        for gpu, seen in ((0, "4,5"), (2, "6")):
            assert isinstance(ask(pool, gpu, 10 + gpu, OrderKind.LOAD), Done)
            assert pool.fetch(call(pool, gpu, 20 + gpu, "you"))["sees"] == seen
    finally:
        pool.close()


def test_workers_end_with_their_parent_process() -> None:
    script = (
        "import sys\nfrom gpuyard.plan.workers.local import LocalPool\n"
        "pool = LocalPool(['0'])\npool.open([0])\npool.wait(30)\nprint(pool.pid(0), flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        worker = int(driver.stdout.readline())
        driver.kill()
    end = os.pidfd_open(worker) if _lives(worker) else None
    if end is not None:
        import select

        assert select.select([end], [], [], 10.0)[0], "the worker outlived its driver"
        os.close(end)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(not can_run(), reason="Ray, or network namespaces, cannot be used here")
def test_actors_of_a_ray_cluster_of_two_nodes_keep_the_contract_of_a_pool() -> None:
    words = beside_a_cluster([sys.executable, "-m", "tests.contract.pools_on_ray"])
    done = subprocess.run(words, cwd=REPOSITORY, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [promise.__name__ for promise in PROMISES]
