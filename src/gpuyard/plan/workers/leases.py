"""GPUs of a cluster, borrowed for a plan, each by a task that holds it (`gpu_placeholder`).

The tasks are of class batch and may be requeued: the plan uses what online work leaves. When the scheduler reclaims a
GPU, it notifies the task first, the executor finishes or stops what runs there within the grace period, and only then
the task ends. It is queued like any other task, and when it is placed again its GPU is used again.

    plan run ◄── socket ── placeholder 0 (a task of the cluster, GPU 3)
        └────── socket ── placeholder 1 (another task, GPU 1)
"""

import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread
from time import monotonic, sleep

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.live.sdk import Client, Task
from gpuyard.plan.executor.messages import Back, ExecutorEvent, Reclaimed
from gpuyard.plan.workers.gpu_placeholder import FREE, NOTICE

GRACE_S = 8.0
"""A task has ten seconds between SIGTERM and SIGKILL; the plan's worker must have left the GPU before that."""
LOOK_S = 5.0
"""The interval at which the scheduler is asked whether the tasks still exist."""
SETTLE_S = 1.5
"""The time to wait for more GPUs after the first one, before the plan starts."""


class NoGpus(GpuyardError):
    """The cluster lends no GPU for the plan."""


class ClusterGpus:
    """Implements `GpuSource`. `devices` is filled with the CUDA device names of the GPUs that were lent."""

    def __init__(self, cluster: Client, name: str, gpus: int, speed_up: float = 1.0) -> None:
        self.devices = [str(gpu) for gpu in range(gpus)]
        self._cluster = cluster
        self._speed_up = speed_up
        self._folder = TemporaryDirectory(prefix="gpuyard-door-")
        self._lines: dict[int, socket.socket] = {}
        self._heard: SimpleQueue[tuple[int, str, socket.socket]] = SimpleQueue()
        self._listener = socket.socket(socket.AF_UNIX)
        path = Path(self._folder.name) / "door"
        self._listener.bind(str(path))
        self._listener.listen()
        Thread(target=self._listen, daemon=True).start()
        words = [sys.executable, "-m", "gpuyard.plan.workers.gpu_placeholder", str(path)]
        self._tasks = cluster.submit_many(
            {
                "command": [*words, str(gpu)],
                "gpu_count": 1,
                "name": f"{name or 'plan'} gpu {gpu}",
                "description": "holds a GPU for a plan",
                "task_class": "batch",
                "preemption": "requeue",
                "model": name or None,
            }
            for gpu in range(gpus)
        )
        self._open = True
        self._looked = monotonic()

    # --- placeholder connections --------------------------------------------------------------------------------------

    def _listen(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                line, _ = self._listener.accept()
                Thread(target=self._hear, args=(line,), daemon=True).start()

    def _hear(self, line: socket.socket) -> None:
        """Serve one placeholder task, from its first message until it disconnects."""
        with line, line.makefile("rb") as words, suppress(OSError):
            slot, _, devices = words.readline().decode().strip().partition(" ")
            if not slot.isdigit() or int(slot) >= len(self.devices):
                return
            gpu = int(slot)
            if devices:
                self.devices[gpu] = devices
            self._heard.put((gpu, "came", line))
            for word in words:
                if word == NOTICE:
                    self._heard.put((gpu, "notice", line))
            self._heard.put((gpu, "gone", line))

    # --- `GpuSource` --------------------------------------------------------------------------------------------------

    def wait(self, watch: Callable[[Task], None], ended: Callable[[], bool]) -> None:
        """Wait for the first GPU and then shortly for others, or until `ended` returns True."""
        while self._heard.empty() and not ended():
            task = self._cluster.task(self._tasks[0])
            watch(task)
            self._look()
            if not self._open:
                raise NoGpus(f"The cluster lent no GPU: {task.id} ended. {task.reason or ''}".strip())
            sleep(0.3)
        until = monotonic() + SETTLE_S
        while self._heard.qsize() < len(self._tasks) and monotonic() < until and not ended():
            sleep(0.05)

    def news(self, now_s: float) -> list[ExecutorEvent]:
        """Return events for GPUs that were lent, that are reclaimed, and whose task is gone without notice."""
        events: list[ExecutorEvent] = []
        with suppress(Empty):
            while True:
                gpu, word, line = self._heard.get_nowait()
                match word:
                    case "came":
                        self._lines[gpu] = line
                        events.append(Back(gpu))
                    case "notice":
                        events.append(Reclaimed(gpu, now_s + GRACE_S * self._speed_up))
                    case "gone":
                        if self._lines.get(gpu) is line:
                            del self._lines[gpu]
                            events.append(Reclaimed(gpu, now_s))
        if monotonic() - self._looked > LOOK_S:
            self._look()
        return events

    def _look(self) -> None:
        """Check whether a task may still be given a GPU; if the scheduler does not answer, the last answer stands."""
        self._looked = monotonic()
        with suppress(GpuyardError):
            self._open = any(not self._cluster.task(task).ended for task in self._tasks)

    def returned(self, gpu: int) -> None:
        """Let the placeholder task of this GPU end."""
        line = self._lines.pop(gpu, None)
        if line is not None:
            with suppress(OSError):
                line.sendall(FREE)

    @property
    def expects_gpus(self) -> bool:
        """Whether more GPUs may be lent later."""
        return self._open

    def close(self) -> None:
        """Give all GPUs back. If the scheduler does not answer, the tasks end by themselves when the socket closes."""
        for task in self._tasks:
            with suppress(GpuyardError):
                self._cluster.cancel(task)
        self.news(0.0)
        for gpu in list(self._lines):
            self.returned(gpu)
        self._listener.close()
        self._folder.cleanup()
