"""Workers on several machines, one per GPU, in tasks that connect to this process (`remote_worker`).

    plan run  ◄── line ── task of block 0 (node-1) ── worker of GPU 0
        ▲                                          └─ worker of GPU 1
        └─────── line ── task of block 1 (node-2) ── worker of GPU 2

A block is a range of GPUs that one task holds; its task may come late, go and come again. Results pass through this
process: they outlive the machine of the worker that made them, and large ones are stored in a file here.
"""

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from threading import Event, Lock, Thread
from typing import Any, Final, NamedTuple

from gpuyard.plan.executor.messages import Back, ExecutorEvent, Lost
from gpuyard.plan.workers import remote_messages as msg
from gpuyard.plan.workers.line import LineClosed, NotAuthenticated, WorkerLink
from gpuyard.plan.workers.local import LARGE
from gpuyard.plan.workers.order import Order, Reply, Runtime
from gpuyard.plan.workers.packed import Packed
from gpuyard.plan.workers.process_pool import ProcessPool, event_of

UNPROVEN: Final = 128
"""The most connections at a time that have not proved yet that they know the key; the oldest makes room."""
UNPROVEN_OF_PEER: Final = 32
"""The most of them from one address. A worker needs milliseconds, so this suffices for all GPUs of a node."""
ACCEPT_PAUSE_S: Final = 0.1
"""How long to wait after a connection could not be accepted, for example because too many files are open."""
FAREWELL_S: Final = 2.0
"""How long the last message to a task may take."""


class BlockChange(Enum):
    """What happened to a block."""

    CAME = "came"
    NOTICE = "notice"
    """The scheduler wants its GPUs back."""
    GONE = "gone"


class BlockNews(NamedTuple):
    """A change of a block; blocks are named by their number."""

    block: int
    change: BlockChange


class _Heard(NamedTuple):
    block: int
    line: WorkerLink
    message: object
    """None: the line was closed."""


class RemotePool(ProcessPool):
    """Implements `Pool`. Tasks connect to `address` and prove that they know `key`."""

    def __init__(self, blocks: Sequence[range], host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__()
        self.blocks = list(blocks)
        self.hosts = [number for number, block in enumerate(blocks) for _ in block]
        self.key = os.urandom(32).hex()
        self.runtimes: list[Runtime] = []
        """What workers prepare before they report that they are ready."""
        self.refused = 0
        """Connections that did not prove in time that they know the key."""
        self.dropped = 0
        """Connections that had not proved it when they had to make room for newer ones."""
        self.not_accepted: str | None = None
        """Why a connection could not be accepted, the last time."""
        self._unproven: dict[socket.socket, str] = {}
        """Connections that have not proved it yet, the oldest first, and from which address they are."""
        self._admission = Lock()
        """Held to change these connections and their counts."""
        self._closed = Event()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._listener.getsockname()[1]}"
        self._folder = TemporaryDirectory(prefix="gpuyard-run-")
        self._heard: SimpleQueue[_Heard] = SimpleQueue()
        self._lines: dict[int, WorkerLink] = {}
        self._where: dict[int, msg.Here] = {}
        self._numbers = [0] * len(self.hosts)
        """The number of the last start of each worker."""
        self._workers: set[int] = set()
        """GPUs whose worker was started and has not ended."""
        self._pids: dict[int, int] = {}
        self._news: list[BlockNews] = []
        self._stored = 0
        self._clocks: dict[int, int] = {}
        """The clocks to which GPUs are locked: a task that comes later locks them again."""
        self.troubles: list[str] = []
        """Why GPUs stay at full speed, in sentences, each once."""
        Thread(target=self._listen, daemon=True).start()

    # --- connections --------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                connection, peer = self._listener.accept()
            except OSError as error:
                if not self._closed.is_set():
                    self.not_accepted = error.strerror or str(error)
                self._closed.wait(ACCEPT_PAUSE_S)
                continue
            self._note(connection, str(peer[0]))
            try:
                Thread(target=self._admit, args=(connection,), daemon=True).start()
            except RuntimeError as error:  # no more threads
                self.not_accepted = str(error)
                self._forget(connection)
                connection.close()

    def _note(self, connection: socket.socket, peer: str) -> None:
        """Note a new connection. Where there are too many, the oldest makes room: real workers are not the slow ones."""
        with self._admission:
            of_peer = [one for one, other in self._unproven.items() if other == peer]
            oldest = None
            if len(of_peer) >= UNPROVEN_OF_PEER:
                oldest = of_peer[0]
            elif len(self._unproven) >= UNPROVEN:
                oldest = next(iter(self._unproven))
            if oldest is not None:
                self.dropped += 1
                del self._unproven[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its own thread wakes up and closes it
            self._unproven[connection] = peer

    def _forget(self, connection: socket.socket) -> bool:
        """Count a connection as unproven no longer; return False if it had to make room before."""
        with self._admission:
            return self._unproven.pop(connection, None) is not None

    @property
    def turned_away(self) -> str:
        """Sentences about connections that were not admitted; empty if there were none."""
        said = []
        if self.refused or self.dropped:
            said.append(
                f"Connections that did not prove that they know the key of this run: {self.refused:,} were refused, "
                f"{self.dropped:,} were dropped to make room for others."
            )
        if self.not_accepted is not None:
            said.append(f"Some connections could not be accepted at once: {self.not_accepted}.")
        return " ".join(said)

    def _admit(self, connection: socket.socket) -> None:
        """Serve a connection, from its proof until it ends."""
        try:
            line = WorkerLink.of_worker(connection, self.key.encode())
        except (NotAuthenticated, OSError):
            if self._forget(connection):
                with self._admission:
                    self.refused += 1
            connection.close()
            return
        self._forget(connection)
        try:
            here = line.receive()
            block = next(number for number, block in enumerate(self.blocks) if block[0] == here.first)
        except (LineClosed, StopIteration, AttributeError):
            line.close()
            return
        message: object = here
        with suppress(LineClosed):
            while True:
                self._heard.put(_Heard(block, line, message))
                message = line.receive()
        self._heard.put(_Heard(block, line, None))

    # --- blocks -------------------------------------------------------------------------------------------------------

    def news(self) -> list[BlockNews]:
        """Return what happened to blocks since the last call."""
        self._hear(0.0)
        news, self._news = self._news, []
        return news

    def leave(self, block: int) -> None:
        """Kill the workers of a block and let its task end."""
        line = self._lines.pop(block, None)
        self._drop(block)
        if line is not None:
            line.send(msg.LeaveGpus())

    def set_clock(self, gpu: int, mhz: int | None) -> None:
        """Lock the clock of a GPU, or reset it, before what is sent next to its worker."""
        if mhz is None:
            self._clocks.pop(gpu, None)
        else:
            self._clocks[gpu] = mhz
        line = self._lines.get(self.hosts[gpu])
        if line is not None:
            line.send(msg.SetClock(gpu, mhz))

    def _drop(self, block: int) -> None:
        for gpu in self.blocks[block]:
            self._restarts.forget(gpu)
            self._workers.discard(gpu)
            self._coming.discard(gpu)
            self._pids.pop(gpu, None)
            self._numbers[gpu] += 1

    # --- `Pool` -------------------------------------------------------------------------------------------------------

    def pid(self, gpu: int) -> int | None:
        """Return the process id of a GPU's worker on its machine, for monitoring."""
        return self._pids.get(gpu)

    def open(self, gpus: Sequence[int]) -> None:
        """Start a worker for each GPU; its block must be here."""
        self.stop(gpus, for_good=False)

    def _begin(self, gpu: int) -> None:
        line = self._lines.get(self.hosts[gpu])
        if line is None:
            self._happened.append(Lost(gpu, f"the task that held GPU {gpu} is gone"))
            return
        self._coming.add(gpu)
        self._workers.add(gpu)
        self._numbers[gpu] += 1
        line.send(msg.BeginWorker(gpu, self._numbers[gpu], self.runtimes, str(Path.cwd())))

    def send(self, orders: Sequence[tuple[int, Order]]) -> None:
        """Send orders, with the results that they need."""
        for gpu, order in orders:
            line = self._lines.get(self.hosts[gpu])
            if line is None:
                continue
            if order.question is not None:
                results = {node: _in_memory(result) for node, result in order.question.results.items()}
                order = replace(order, question=replace(order.question, results=results))  # noqa: PLW2901
            line.send(msg.Execute(gpu, order))

    def stop(self, gpus: Sequence[int], *, for_good: bool) -> None:
        """Kill workers; unless `for_good`, start new ones."""
        for gpu in gpus:
            self._restarts.forget(gpu)
            self._coming.discard(gpu)
            self._pids.pop(gpu, None)
            if not for_good:
                self._begin(gpu)
                continue
            self._numbers[gpu] += 1
            self._workers.discard(gpu)
            line = self._lines.get(self.hosts[gpu])
            if line is not None:
                line.send(msg.EndWorker(gpu))

    def wait(self, seconds: float) -> list[ExecutorEvent]:
        """Return replies and workers that came or went; also return if a block came or went."""
        for gpu in self._restarts.due():
            self._begin(gpu)
        self._hear(0.0 if self._happened else self._restarts.pause_s(seconds))
        happened, self._happened = self._happened, []
        return happened

    def _hear(self, seconds: float) -> None:
        with suppress(Empty):
            heard = self._heard.get(timeout=seconds) if seconds else self._heard.get_nowait()
            while True:
                self._take(heard)
                heard = self._heard.get_nowait()

    def _take(self, heard: _Heard) -> None:
        block, line, message = heard
        if isinstance(message, msg.Here):
            if block in self._lines:  # the scheduler has started the task again, although the line is still open
                self._gone(block)
            self._lines[block] = line
            self._where[block] = message
            for gpu in self.blocks[block]:
                if gpu in self._clocks:
                    line.send(msg.SetClock(gpu, self._clocks[gpu]))
            self._news.append(BlockNews(block, BlockChange.CAME))
        elif self._lines.get(block) is not line:
            if message is None:
                line.close()
        elif message is None:
            self._gone(block)
        elif isinstance(message, msg.ReclaimNotice):
            self._news.append(BlockNews(block, BlockChange.NOTICE))
        elif isinstance(message, msg.ClockTrouble):
            if message.sentence not in self.troubles:
                self.troubles.append(message.sentence)
        elif (
            isinstance(message, msg.WorkerReady | msg.WorkerSaid | msg.WorkerEnded)
            and message.number == self._numbers[message.gpu]
        ):
            self._take_from_worker(message)

    def _take_from_worker(self, message: msg.WorkerReady | msg.WorkerSaid | msg.WorkerEnded) -> None:
        gpu = message.gpu
        match message:
            case msg.WorkerReady():
                self._coming.discard(gpu)
                self._pids[gpu] = message.pid
                self._happened.append(Back(gpu))
            case msg.WorkerSaid():
                self._restarts.worked(gpu)
                self._happened.append(event_of(self._stored_here(message.reply)))
            case msg.WorkerEnded():
                self._workers.discard(gpu)
                self._coming.discard(gpu)
                self._pids.pop(gpu, None)
                where = self._where[self.hosts[gpu]].node
                self._happened.append(Lost(gpu, f"the worker of GPU {gpu} on {where} ended with {message.how}"))
                self._restarts.ended(gpu)

    def _gone(self, block: int) -> None:
        """The task of a block is gone, with its workers."""
        self._lines.pop(block).close()
        where = self._where[block]
        for gpu in self.blocks[block]:
            if gpu in self._workers:
                self._happened.append(Lost(gpu, f"the worker of GPU {gpu} is gone with {where.task} on {where.node}"))
        self._drop(block)
        self._news.append(BlockNews(block, BlockChange.GONE))

    def _stored_here(self, reply: Reply) -> Reply:
        """Store a large result in a file."""
        result = reply.result
        if not isinstance(result, Packed) or not isinstance(result.content, bytes) or len(result.content) <= LARGE:
            return reply
        self._stored += 1
        path = Path(self._folder.name) / str(self._stored)
        path.write_bytes(result.content)
        return replace(reply, result=Packed(path))

    def close(self) -> None:
        """Kill all workers, let their tasks end, and delete the results in files."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not wake the thread that accepts
        self._listener.close()
        lines = list(self._lines.values())
        for block in list(self._lines):
            self.leave(block)
        for line in lines:
            line.close(FAREWELL_S)
        self._folder.cleanup()


class RemoteClocks:
    """Implements `ClockSetter`: the GPUs are named by their numbers. Tasks reset their clocks when they end."""

    def __init__(self, pool: RemotePool) -> None:
        self._pool = pool

    def lock(self, gpu: str, mhz: int) -> str | None:
        """Let the task of a GPU lock its clock. Why that failed is known later (`RemotePool.troubles`)."""
        self._pool.set_clock(int(gpu), mhz)
        return None

    def free(self, gpu: str) -> None:
        """Let the task of a GPU reset its clock."""
        self._pool.set_clock(int(gpu), None)

    def close(self) -> None:
        """Do nothing: tasks reset their clocks when they end."""


def _in_memory(result: Any) -> Any:
    """Return a packed result with its content: the worker may not see the files of this machine."""
    if isinstance(result, Packed) and isinstance(result.content, Path):
        return Packed(result.content.read_bytes())
    return result
