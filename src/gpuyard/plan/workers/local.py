"""Workers as processes of this machine, one per GPU. A killed worker is noticed at once and restarted."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory

from gpuyard.plan.executor.messages import Back, ExecutorEvent, Lost
from gpuyard.plan.workers.order import Order, Reply, Runtime
from gpuyard.plan.workers.process_pool import ProcessPool, event_of

LARGE = 1 << 20
"""Results of more bytes than this are stored in a file."""
GRACE_S = 0.5


class WorkerProcess:
    """A process and the connection to it."""

    def __init__(self, gpu: int, devices: str, spool: Path, large: int = LARGE) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "gpuyard.plan.workers.process", str(theirs.fileno()), str(spool), str(large)],
                env=os.environ | {"CUDA_VISIBLE_DEVICES": devices, "GPUYARD_WORKER": str(gpu)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.line = Connection(ours.detach())

    def kill(self) -> None:
        """Kill the process and everything that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill it and close the connection."""
        self.kill()
        self.process.wait()
        self.line.close()


class LocalPool(ProcessPool):
    """Implements `Pool`. `devices` are the names for CUDA_VISIBLE_DEVICES of each GPU; a worker sees `widest` of them.

    Workers prepare `runtimes` before they report that they are ready.
    """

    def __init__(self, devices: Sequence[str], widest: int = 1, runtimes: Sequence[Runtime] = ()) -> None:
        super().__init__()
        self.hosts = [0] * len(devices)
        self.devices = devices
        self._widest = widest
        self._folder = TemporaryDirectory(prefix="gpuyard-run-")
        self._workers: dict[int, WorkerProcess] = {}
        self._runtimes = list(runtimes)

    def pid(self, gpu: int) -> int | None:
        """Return the process id of a GPU's worker, for monitoring."""
        worker = self._workers.get(gpu)
        return None if worker is None else worker.process.pid

    def open(self, gpus: Sequence[int]) -> None:
        """Start a process for each GPU."""
        self.stop(gpus, for_good=False)

    def _begin(self, gpu: int) -> None:
        self._coming.add(gpu)
        seen = ",".join(self.devices[gpu : gpu + self._widest])
        worker = self._workers[gpu] = WorkerProcess(gpu, seen, Path(self._folder.name))
        with suppress(OSError):
            worker.line.send(self._runtimes)

    def send(self, orders: Sequence[tuple[int, Order]]) -> None:
        """Send orders. A worker that is gone does not get its order; `wait` reports the loss."""
        for gpu, order in orders:
            worker = self._workers.get(gpu)
            if worker is not None:
                with suppress(OSError):
                    worker.line.send(order)

    def stop(self, gpus: Sequence[int], *, for_good: bool) -> None:
        """Kill workers; unless `for_good`, start new ones."""
        for gpu in gpus:
            self._restarts.forget(gpu)
            self._coming.discard(gpu)
            worker = self._workers.pop(gpu, None)
            if worker is not None:
                worker.end()
            if not for_good:
                self._begin(gpu)

    def wait(self, seconds: float) -> list[ExecutorEvent]:
        """Return replies and workers that came or went; start the workers whose restart is due."""
        if not self._happened:
            for gpu in self._restarts.due():
                self._begin(gpu)
            lines = {worker.line: gpu for gpu, worker in self._workers.items()}
            for line in wait(list(lines), self._restarts.pause_s(seconds)):
                self._hear(lines[line])  # type: ignore[index]
        happened, self._happened = self._happened, []
        return happened

    def _hear(self, gpu: int) -> None:
        line = self._workers[gpu].line
        try:
            while True:
                said: Reply | None = line.recv()
                if said is None:
                    self._coming.discard(gpu)
                    self._happened.append(Back(gpu))
                else:
                    self._restarts.worked(gpu)
                    self._happened.append(event_of(said))
                if not line.poll():
                    return
        except (EOFError, OSError):
            self._gone(gpu)

    def _gone(self, gpu: int) -> None:
        worker = self._workers.pop(gpu)
        self._coming.discard(gpu)
        with suppress(subprocess.TimeoutExpired):  # it is about to end, and its own exit code says more than our kill
            worker.process.wait(GRACE_S)
        worker.end()
        code = worker.process.returncode
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._happened.append(Lost(gpu, f"the worker of GPU {gpu} ended with {how}"))
        self._restarts.ended(gpu)

    def close(self) -> None:
        """Kill all workers and delete the results in files."""
        self.stop(list(self._workers), for_good=True)
        self._folder.cleanup()
