"""A cluster task that holds GPUs for a plan and runs its workers there.

    python -m gpuyard.plan.workers.remote_worker HOST:PORT FIRST COUNT

It connects to the process that follows the plan, which is on the same or on another machine, and proves that it knows
the key of the run (`PLAN_WORKER_KEY`, a secret of the task). Then it starts, feeds and kills workers as it is told: one
process for each of its GPUs, which sees its own GPU first and then those after it.

To reclaim the GPUs, the scheduler sends SIGTERM, as to any task. This process passes the notice on, and ends when it is
told that the plan has left the GPUs; workers ignore the signal. When the connection ends without that, for example
because the plan was killed, it kills its workers and ends with an error.
So the scheduler never gives a GPU to another task while a worker uses it.
"""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import monotonic, sleep
from typing import Final

from gpuyard.plan.workers import remote_messages as msg
from gpuyard.plan.workers.line import HANDSHAKE_S, LineClosed, NotAuthenticated, NotProven, WorkerLink
from gpuyard.plan.workers.local import GRACE_S, WorkerProcess
from gpuyard.plan.workers.power import NoClocks, clocks_here
from gpuyard.system.gpu_clocks import Clocks

KEY_VARIABLE: Final = "PLAN_WORKER_KEY"
CONNECT_S: Final = 30.0
"""How long to try to connect: others may keep the plan busy with connections, or its node may be out of files."""
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0


class HeldGpus:
    """The GPUs of this task, and the workers on them."""

    def __init__(self, line: WorkerLink, first: int, devices: list[str], spool: Path) -> None:
        self._line = line
        self._first = first
        self._devices = devices
        self._spool = spool
        self._workers: dict[int, WorkerProcess] = {}
        self._listeners: dict[int, Thread] = {}
        self._clocks: Clocks | None = None
        self._no_clocks = False
        self.over = Event()
        self.was_told_to_leave = False

    def serve(self) -> None:
        """Do what the plan says until it leaves or is gone; then kill all workers."""
        with suppress(LineClosed):
            while True:
                match self._line.receive():
                    case msg.BeginWorker() as begin:
                        self._begin(begin)
                    case msg.Execute(gpu, order):
                        with suppress(OSError):  # a worker that is gone is reported by its own thread
                            if gpu in self._workers:
                                self._workers[gpu].line.send(order)
                    case msg.EndWorker(gpu):
                        self._end(gpu)
                    case msg.SetClock(gpu, mhz):
                        self._set_clock(self._devices[gpu - self._first], mhz)
                    case msg.LeaveGpus():
                        self.was_told_to_leave = True
                        break
        for gpu in list(self._workers):
            self._end(gpu)
        if self._clocks is not None:
            self._clocks.close()
        self.over.set()

    def _set_clock(self, device: str, mhz: int | None) -> None:
        if self._clocks is None and not self._no_clocks:
            try:
                self._clocks = clocks_here()
            except NoClocks as error:
                self._no_clocks = True
                self._line.send(msg.ClockTrouble(str(error)))
        if self._clocks is None:
            return
        if mhz is None:
            self._clocks.free(device)
        elif trouble := self._clocks.lock(device, mhz):
            self._line.send(msg.ClockTrouble(trouble))

    def _begin(self, begin: msg.BeginWorker) -> None:
        self._end(begin.gpu)
        if Path(begin.folder).is_dir():
            with suppress(OSError):
                os.chdir(begin.folder)
        seen = ",".join(self._devices[begin.gpu - self._first :])
        worker = self._workers[begin.gpu] = WorkerProcess(begin.gpu, seen, self._spool, large=sys.maxsize)
        with suppress(OSError):
            worker.line.send(begin.runtimes)
        listener = Thread(target=self._pass_on, args=(worker, begin.gpu, begin.number), daemon=True)
        self._listeners[begin.gpu] = listener
        listener.start()

    def _end(self, gpu: int) -> None:
        worker = self._workers.pop(gpu, None)
        if worker is not None:
            worker.kill()
            self._listeners.pop(gpu).join()  # it uses the connection that is closed next
            worker.end()

    def _pass_on(self, worker: WorkerProcess, gpu: int, number: int) -> None:
        """Pass on what a worker says, and that it ended."""
        with suppress(EOFError, OSError):
            while True:
                reply = worker.line.recv()
                ready = msg.WorkerReady(gpu, number, worker.process.pid)
                self._line.send(ready if reply is None else msg.WorkerSaid(gpu, number, reply))
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(GRACE_S)
        worker.kill()
        code = worker.process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._line.send(msg.WorkerEnded(gpu, number, how))


def line_to_plan(address: str, key: bytes, patience_s: float = CONNECT_S) -> WorkerLink:
    """Connect to the plan, again and again for a bounded time, unless nothing listens there or it knows another key."""
    host, _, port = address.rpartition(":")
    end, pause_s = monotonic() + patience_s, FIRST_PAUSE_S
    while True:
        connection = None
        try:
            connection = socket.create_connection((host.strip("[]"), int(port)), timeout=HANDSHAKE_S)
            return WorkerLink.to_plan(connection, key)
        except (OSError, NotAuthenticated) as error:
            if connection is not None:
                connection.close()
            # a plan listens before it submits its tasks, and its port is never opened again
            final = isinstance(error, ConnectionRefusedError) or not isinstance(error, OSError | NotProven)
            if final or monotonic() + pause_s > end:
                raise
        sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def main() -> int:
    """Hold the GPUs until the plan leaves them or is gone."""
    address, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    key = os.environ.pop(KEY_VARIABLE, "")
    try:
        line = line_to_plan(address, key.encode())
    except OSError as error:
        print(f"No plan can be reached at {address} from this node: {error}. `plan run --listen` sets the address.", file=sys.stderr)  # fmt: skip
        return 1
    except NotProven:
        print(f"The process at {address} did not prove in {CONNECT_S:g} s that it is the plan of this task: it closed the connection, or was too slow.", file=sys.stderr)  # fmt: skip
        return 1
    except NotAuthenticated:
        print(f"The process at {address} is not the plan that this task belongs to.", file=sys.stderr)
        return 1
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    devices = named if len(named) == count else [str(number) for number in range(count)]
    signal.signal(signal.SIGTERM, lambda *_: line.send(msg.ReclaimNotice()))
    with TemporaryDirectory(prefix="gpuyard-worker-") as folder:
        held = HeldGpus(line, first, devices, Path(folder))
        task = f"task-{os.environ.get('GPUYARD_TASK_ID', '?')}"
        line.send(msg.Here(first, os.environ.get("GPUYARD_NODE_ID", ""), task))
        Thread(target=held.serve, daemon=True).start()
        held.over.wait()
        line.close()
    if not held.was_told_to_leave:
        print(f"The plan at {address} is gone: the connection ended, and it had not left the GPUs.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
