"""The tasks of a `RemotePool` without a scheduler: processes that hold one block of GPUs each."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from gpuyard.plan.workers.remote import BlockChange, RemotePool
from gpuyard.plan.workers.remote_worker import KEY_VARIABLE
from tests.contract.worker_pools import PATIENCE_S

MODULE = "gpuyard.plan.workers.remote_worker"


def remote_task(pool: RemotePool, block: int, key: str | None = None) -> "subprocess.Popen[str]":
    """Start the task of a block; its node is called after the block."""
    gpus = pool.blocks[block]
    env = os.environ | {
        KEY_VARIABLE: pool.key if key is None else key,
        "CUDA_VISIBLE_DEVICES": ",".join(str(4 + gpu) for gpu in gpus),
        "GPUYARD_NODE_ID": f"node-{block}",
        "GPUYARD_TASK_ID": str(block),
    }
    words = [sys.executable, "-m", MODULE, pool.address, str(gpus[0]), str(len(gpus))]
    return subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True)


@contextmanager
def remote_tasks(pool: RemotePool) -> "Iterator[list[subprocess.Popen[str]]]":
    """Start the tasks of all blocks. They must end by themselves once the pool is closed."""
    tasks = [remote_task(pool, block) for block in range(len(pool.blocks))]
    try:
        yield tasks
        assert {task.wait(10) for task in tasks} <= {0, -signal.SIGKILL}
    finally:
        pool.close()
        for task in tasks:
            task.kill()
            task.wait()
            assert task.stderr is not None
            task.stderr.close()


def all_here(pool: RemotePool) -> None:
    """Wait until the tasks of all blocks have connected."""
    missing, end = set(range(len(pool.blocks))), monotonic() + PATIENCE_S
    while missing:
        assert monotonic() < end, f"the tasks of {missing} did not connect"
        pool.wait(0.1)
        missing -= {news.block for news in pool.news() if news.change is BlockChange.CAME}
