"""A scheduler's machine in memory: the real `Scheduler` on a disk that is slow or full when told to, killed and restarted.

What the journal was given survives a kill, and nothing else does. A backup is a copy of the disk.
"""

import asyncio
import copy
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from secrets import token_bytes
from typing import Any

from gpuyard import __version__
from gpuyard.core.domain import commands as command
from gpuyard.core.domain.errors import StorageFull
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.tenant import QuotaMode, Split
from gpuyard.core.domain.values import TaskId, TaskStatus, TenantId
from gpuyard.core.journal.records import Position, Record
from gpuyard.core.journal.stores.memory import MemoryJournal
from gpuyard.live.control_plane import server
from gpuyard.live.control_plane.nodes.registration import SchedulerSuperseded
from gpuyard.live.control_plane.options import SchedulerOptions
from gpuyard.live.control_plane.scheduler import Scheduler, Stores
from gpuyard.live.control_plane.stores.archive import ArchiveRow, SubmitKey
from gpuyard.live.control_plane.stores.recovery import found_cluster, recover
from gpuyard.live.wire.rpc import agents_handler
from tests.simulation.faults.event_loop import Process, VirtualLoop
from tests.simulation.faults.machine import JOIN_TOKEN, MachineClock
from tests.simulation.faults.network import Network

Told = Callable[[Sequence[Record]], None]
PATIENCE_SECONDS = server.ANNOUNCED_ABSENCE_SECONDS
APPLIED = (
    command.ChangeSettings(Settings()),
    command.SetSplit(Split(0.5, 0.5, QuotaMode.BORROW)),
)
"""What a scheduler records as events at its first start."""


class MemoryArchive:
    """Ended tasks, as far as the scheduler asks for them."""

    note = None

    def __init__(self) -> None:
        self.rows: dict[TaskId, ArchiveRow] = {}
        self.keys: dict[tuple[TenantId, str], SubmitKey] = {}
        self.seq = 0

    def add(self, rows: Sequence[ArchiveRow], seq: int) -> None:
        self.rows |= {row.id: row for row in rows}
        self.seq = max(self.seq, seq)

    def get(self, task: TaskId) -> bytes | None:
        row = self.rows.get(task)
        return None if row is None else row.answer

    def statuses(self, tasks: Iterable[TaskId]) -> dict[TaskId, TaskStatus]:
        return {task: self.rows[task].status for task in tasks if task in self.rows}

    def spans(self, tasks: Iterable[TaskId]) -> dict[TaskId, tuple[float, float]]:
        return {task: (self.rows[task].created_at, self.rows[task].finished_at) for task in tasks if task in self.rows}

    def remember(self, keys: Sequence[SubmitKey]) -> None:
        self.keys |= {(key.tenant, key.key): key for key in keys}

    def lookup(self, tenant: TenantId, key: str) -> SubmitKey | None:
        return self.keys.get((tenant, key))

    def all_keys(self) -> Iterable[tuple[TenantId, str]]:
        return list(self.keys)

    def retain(self, finished_since: float, step: int = 500) -> int:  # noqa: ARG002
        return 0

    def forget_keys(self, before: float, step: int = 500) -> int:  # noqa: ARG002
        return 0


class NoSecrets:
    """No task of these scenarios has any."""

    def get(self, task: TaskId) -> dict[str, str]:  # noqa: ARG002
        return {}

    def put(self, by_task: Mapping[TaskId, Mapping[str, str]]) -> None:  # noqa: ARG002
        raise AssertionError

    def drop(self, tasks: Iterable[TaskId]) -> None:
        """There are none."""

    def sweep(self, open_tasks: Collection[TaskId]) -> int:  # noqa: ARG002
        return 0


class DiskJournal(MemoryJournal):
    """A journal on a disk that may be slow or full."""

    def __init__(self, told: Told) -> None:
        super().__init__()
        self.full = False
        self.process: Process | None = None
        """Who writes it."""
        self._told = told

    def append_encoded(self, payloads: Sequence[bytes]) -> Position:
        if self.process is not None and self.process.disk_seconds:
            self.process.blocks(self.process.disk_seconds)
        if self.full:
            raise StorageFull("No space is left for the journal.")
        head = super().append_encoded(payloads)
        first = head.seq - len(payloads) + 1
        self._told([self._codec.decode(seq, payload) for seq, payload in enumerate(payloads, first)])
        return head


class Disk:
    """What survives."""

    def __init__(self, told: Told, folder: Path) -> None:
        self._told = told
        self.folder = folder
        """For the little that is kept beside the journal."""
        folder.mkdir()
        self.journal = DiskJournal(told)
        self.archive = MemoryArchive()
        self.cluster_key = token_bytes(32)
        self.applied = False
        self._copies = 0

    @property
    def clock_file(self) -> Path:
        return self.folder / "clock.json"

    def copy(self, told: Told | None = None) -> "Disk":
        """A backup of it."""
        self._copies += 1
        other = Disk(told or self._told, self.folder.with_name(f"{self.folder.name}-{self._copies}"))
        other.cluster_key = self.cluster_key
        if self.clock_file.exists():
            shutil.copy(self.clock_file, other.clock_file)
        for name in ("_retired", "_rows", "_head", "_snapshots"):
            setattr(other.journal, name, copy.copy(getattr(self.journal, name)))
        other.archive.rows, other.archive.keys = dict(self.archive.rows), dict(self.archive.keys)
        other.archive.seq, other.applied = self.archive.seq, self.applied
        return other


class SchedulerMachine:
    """Where a scheduler runs, or does not."""

    def __init__(self, loop: VirtualLoop, network: Network, address: str, disk: Disk) -> None:
        self.loop, self.network, self.address, self.disk = loop, network, address, disk
        self.clock = MachineClock(loop, address)
        self.active: Scheduler | None = None
        """While it is ready."""
        self.process: Process | None = None
        self.disk_seconds = 0.0
        self.starts = 0
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def ended_alone(self) -> str:
        """Why it ended without being asked; empty: it did not."""
        if not self.is_up or self._stopping or self._task is None or not self._task.done():
            return ""
        return "cancelled" if self._task.cancelled() else repr(self._task.exception())

    @property
    def was_deposed(self) -> bool:
        """Whether it ended because a node has obeyed a later scheduler."""
        task = self._task
        return (
            task is not None
            and task.done()
            and not task.cancelled()
            and isinstance(task.exception(), SchedulerSuperseded)
        )

    def start(self, *, take_over: bool = False) -> None:
        """Start it, unless it runs. An operator who restored a backup says that it is to take over all the same."""
        if self.is_up:
            return
        self._stopping = False
        self.starts += 1
        process = self.process = self.clock.process = Process(self.loop, f"{self.address}/{self.starts}")
        process.disk_seconds = self.disk_seconds
        self.disk.journal.process = process
        self._task = process.start(self._run(process, take_over))

    async def _run(self, process: Process, take_over: bool) -> None:
        """As `server.serve` does it."""
        journal, archive = self.disk.journal, self.disk.archive
        engine, views = recover(journal)
        found_cluster(engine, journal, views, self.clock.wall())
        server._catch_up(archive, views)  # type: ignore[arg-type]
        active = Scheduler(
            Stores(journal, archive, NoSecrets()),  # type: ignore[arg-type]
            engine,
            views,
            SchedulerOptions(
                join_token=JOIN_TOKEN,
                request_key=b"key",
                yard_key=self.disk.cluster_key,
                clock_file=self.disk.clock_file,
                take_over=take_over,
            ),
            clock=self.clock,
        )  # its origin is drawn at random, and all randomness comes from the seed
        running = asyncio.create_task(active.run(__version__))
        while not active.ready and not running.done():
            await asyncio.sleep(0.001)
        if not running.done():
            if not self.disk.applied:
                for order in APPLIED:
                    answer = await active.loop.tell(order, "settings")
                    assert not isinstance(answer, Refusal)
                self.disk.applied = True
            self.active = active
            process.on_kill.append(self._gone)
            self.network.listen(self.address, process, agents_handler(active.agents))
        await running

    def _gone(self) -> None:
        self.active = None

    def kill(self, finished: Callable[[], bool]) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill(finished)
        self.active = None

    async def stop(self) -> None:
        """SIGTERM: it announces its stop to the nodes."""
        process, active, task = self.process, self.active, self._task
        if process is None or active is None or task is None or not process.alive:
            self.kill(lambda: True)
            return
        self.active, self._stopping = None, True
        process.start(active.stop(PATIENCE_SECONDS))
        for _ in range(2_000):
            if task.done() or not process.alive:
                break
            await asyncio.sleep(0.01)
        self.network.hang_up(self.address)
        process.kill()

    def set_disk(self, seconds: float) -> None:
        """Its disk takes so long for a commit."""
        self.disk_seconds = seconds
        if self.process is not None:
            self.process.disk_seconds = seconds

    def set_full(self, full: bool) -> None:
        """Its disk has no space left, or has some again."""
        self.disk.journal.full = full

    async def ask(self, make: Callable[[Scheduler], Any], seconds: float = 10.0) -> Any:
        """A request of a client over HTTP, answered inside the scheduler; None if the connection broke or there was no answer."""
        process, active = self.process, self.active
        if process is None or active is None or not process.alive:
            return None
        answered: asyncio.Future[Any] = self.loop.create_future()

        async def answer() -> None:
            try:
                result = await make(active)
            except Exception as error:  # an answer with a status of 500 or 503
                result = error
            if not answered.done():
                answered.set_result(result)

        process.start(answer())

        def gone() -> None:
            if not answered.done():
                answered.set_result(None)

        process.on_kill.append(gone)
        try:
            async with asyncio.timeout(seconds):
                return await answered
        except TimeoutError:
            return None
        finally:
            if gone in process.on_kill:
                process.on_kill.remove(gone)
