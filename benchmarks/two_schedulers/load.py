"""Submits tasks at a steady rate, and repeats a submission until it is acknowledged."""

import random
import threading
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.common.output import report_progress
from benchmarks.two_schedulers.pair import Pair, boot
from gpuyard.live.sdk import ClusterError, connect

SUBMITTERS = 8
GIVE_UP_SECONDS = 90.0
RUNNING_SHARE, RUNNING_SECONDS = 0.1, 3
"""So many of the tasks run for seconds, so that every fault meets running tasks."""
LIMIT_SECONDS = 120
"""The time limit of tasks that run for seconds: clocks five minutes apart must not use it up."""
TASK = """read -r up _ < /proc/uptime
echo "begin $up $GPUYARD_TASK_ID $GPUYARD_ATTEMPT $GPUYARD_NODE_ID $CUDA_VISIBLE_DEVICES" >> {ledger}
{work}
read -r up _ < /proc/uptime
echo "end $up $GPUYARD_TASK_ID $GPUYARD_ATTEMPT $GPUYARD_NODE_ID $CUDA_VISIBLE_DEVICES" >> {ledger}"""


class Load:
    """Some threads, each with a client that knows both schedulers."""

    def __init__(self, pair: Pair, ledger: Path, rate: float, seed: int) -> None:
        self._pair = pair
        self._ledger = ledger
        self._rate = rate
        self._draw = random.Random(seed)
        self._numbers = count()
        self._mutex = threading.Lock()
        self._began = boot()
        self.over = threading.Event()
        self.acknowledged: dict[str, int] = {}
        self.seconds: list[float] = []
        self.repeated: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._submit_all, daemon=True) for _ in range(SUBMITTERS)]

    def start(self) -> None:
        """Begin to submit."""
        self._began = boot()
        for thread in self._threads:
            thread.start()

    def stop(self) -> bool:
        """Submit nothing more; return whether every submission was acknowledged."""
        self.over.set()
        for thread in self._threads:
            thread.join(GIVE_UP_SECONDS)
        return not any(thread.is_alive() for thread in self._threads)

    def _submit_all(self) -> None:
        client = connect(self._pair.addresses, token=self._pair.token())
        while not self.over.is_set():
            with self._mutex:
                number, is_running = next(self._numbers), self._draw.random() < RUNNING_SHARE
            due = self._began + number / self._rate
            if self.over.wait(max(0.0, due - boot())):
                break
            if boot() - due > 1:  # the clients were held up: go on from here instead of catching up
                with self._mutex:
                    self._began += boot() - due
            self.submit(client, f"load-{number}", f"sleep {RUNNING_SECONDS}" if is_running else "true")
        client.close()

    def submit(self, client: Any, name: str, work: str) -> None:
        """Submit one task until it is acknowledged."""
        sent = boot()
        command = TASK.format(ledger=self._ledger, work=work)
        while True:
            try:
                task = client.submit(command, idempotency_key=name, name=name, gpu_count=1, timeout=LIMIT_SECONDS)
            except ClusterError as error:
                self.repeated[f"{type(error).__name__}: {str(error)[:100]}"] += 1
                if boot() - sent > GIVE_UP_SECONDS:
                    report_progress(f"never acknowledged: {name}: {error}")
                    return
                time.sleep(0.1)
            else:
                break
        with self._mutex:
            self.acknowledged[name] = task.number
            self.seconds.append(boot() - sent)
