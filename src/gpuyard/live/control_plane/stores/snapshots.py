"""Save snapshots periodically and remove what is no longer needed: old events, archived tasks, audit records."""

import asyncio
import shutil
import time
from contextlib import suppress
from functools import partial

import structlog

from gpuyard.core.domain.errors import JournalError
from gpuyard.core.journal import snapshots
from gpuyard.core.journal.folders import FolderNotSafe
from gpuyard.core.journal.port import AuditRetention, FolderJournal, Journal
from gpuyard.core.journal.records import Position, Record
from gpuyard.live.control_plane.loop import EngineLoop
from gpuyard.live.control_plane.options import SchedulerOptions
from gpuyard.live.control_plane.stores.archive import Archive
from gpuyard.live.control_plane.stores.archiver import Archiver
from gpuyard.live.control_plane.stores.recovery import take_snapshot
from gpuyard.live.control_plane.stores.snapshotter import write_in_process
from gpuyard.live.control_plane.views import Views
from gpuyard.live.control_plane.worker_threads import WorkerPools
from gpuyard.live.wire.clock import SYSTEM_CLOCK, Clock
from gpuyard.system.files import replacing

SNAPSHOT_FOLDER = "making"
"""Subfolder of the journal in which another process writes a snapshot."""
SOON_SECONDS = 1.0
"""The first pause if the start had to apply many events."""
SNAPSHOT_PAUSES = 10.0
"""The pause after a slow snapshot, as a multiple of its duration."""
MOST_FAILED = 3
"""After this many failures in a row, the loop makes the snapshot itself; otherwise the journal would grow forever."""
KEEP_KEYS_SECONDS = 86_400.0
"""How long a repeated request is recognized by its key."""
REMOVE_STEP, REMOVE_PAUSE_SECONDS = 500, 0.05

log = structlog.get_logger()


class SnapshotSaver:
    """Saves snapshots, and retires what they make unnecessary."""

    def __init__(
        self,
        journal: Journal,
        loop: EngineLoop,
        views: Views,
        archive: Archive,
        archiver: Archiver,
        worker_pools: WorkerPools,
        options: SchedulerOptions,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._journal = journal
        self._loop = loop
        self._views = views
        self._archive = archive
        self._archiver = archiver
        self._worker_pools = worker_pools
        self._options = options
        self._clock = clock
        folder = options.audit_folder
        self._audit = None if folder is None else AuditRetention(folder, _is_of_somebody)
        self._saved_seq = views.snapshot_seq
        self._failed = 0
        """Consecutive failures of the snapshot process."""

    async def run(self) -> None:
        """Save snapshots and remove old data until cancelled."""
        took, pause = 0.0, self._options.snapshot_seconds
        if self._journal.head.seq - self._saved_seq > self._options.many_events:
            pause = min(pause, SOON_SECONDS)
        while True:
            await asyncio.sleep(pause)
            try:
                await self._archiver.archive_now()
                began = self._clock.monotonic()
                await self.save()
                took = self._clock.monotonic() - began
                await self._worker_pools.snapshots.run(self.remove_old)
            except Exception:  # a snapshot is only an optimization: the journal holds everything
                log.exception("snapshot_failed")
            pause = max(self._options.snapshot_seconds, SNAPSHOT_PAUSES * took)

    async def save(self, *, at_once: bool = False) -> None:
        """Save a snapshot: of a small cluster within the loop, in milliseconds; of a large one in another process."""
        if self._loop.unwritable or self._loop.committed == self._saved_seq:
            return
        size = len(self._loop.engine.state.tasks) + len(self._views.tasks) + len(self._views.nodes)
        if at_once or size <= self._options.small_cluster or self._failed >= MOST_FAILED:
            snapshot = await self._loop.agree(
                lambda: take_snapshot(self._loop.position, self._loop.engine, self._views)
            )
            await self._worker_pools.snapshots.run(self._journal.save_snapshot, snapshot)
            position = snapshot.position
        else:
            position = await self._save_by_process()
        self._failed = 0
        await self._worker_pools.snapshots.run(self._copy_for_people, position)
        self._saved_seq = position.seq

    async def _save_by_process(self) -> Position:
        journal, position = self._journal, self._journal.head
        folder = journal.folder if isinstance(journal, FolderJournal) else self._options.database_snapshots
        assert folder is not None
        beside = folder / SNAPSHOT_FOLDER
        self._failed += 1
        await self._worker_pools.snapshots.run(
            partial(shutil.rmtree, beside, ignore_errors=True)
        )  # left by a process that was stopped
        source = folder if isinstance(journal, FolderJournal) else self._options.database
        await write_in_process(source, position, self._archiver.archived_seq, beside)
        if isinstance(journal, FolderJournal):
            await self._worker_pools.snapshots.run(journal.adopt_snapshot, position, beside)
        else:
            made = snapshots.path_of(beside, position.seq)
            await self._worker_pools.snapshots.run(lambda: journal.save_snapshot(snapshots.read(made)))
        return position

    def _copy_for_people(self, position: Position) -> None:
        """Copy the newest snapshot to a file with a stable name, for people to read."""
        if self._options.snapshot_folder is not None:
            shown = self._options.snapshot_folder / "state.json"
            with replacing(shown, durable=False) as new:
                if isinstance(self._journal, FolderJournal):
                    shutil.copyfile(self._journal.snapshot_path(position.seq), new)
                else:
                    new.write_bytes(snapshots.encode(next(self._journal.usable_snapshots())))

    def remove_old(self) -> None:
        """Retire events that snapshots cover; remove ended tasks, keys and audit records after their retention."""
        try:
            self._journal.retire(into=self._options.retired_folder, audit=self._audit)
        except (JournalError, FolderNotSafe) as error:
            log.warning("event_retirement_failed", message=str(error))  # the journal grows until the next attempt
        now = self._clock.wall()
        self._remove_old_audit(now)
        while self._archive.retain(finished_since=now - self._options.keep_seconds, step=REMOVE_STEP) >= REMOVE_STEP:
            time.sleep(REMOVE_PAUSE_SECONDS)  # sleeps in a worker thread, so that other work can run
        while self._archive.forget_keys(now - KEEP_KEYS_SECONDS, step=REMOVE_STEP) >= REMOVE_STEP:
            time.sleep(REMOVE_PAUSE_SECONDS)

    def _remove_old_audit(self, now: float) -> None:
        """Remove audit records that are older than their retention."""
        if self._audit is None:
            return
        for path in self._audit.folder.glob("audit-*.jsonl.gz"):
            with suppress(OSError):
                if path.stat().st_mtime < now - self._options.audit_seconds:
                    path.unlink()


def _is_of_somebody(record: Record) -> bool:
    """Whether an event comes from a user or the settings. Reports of nodes are many and are not user actions."""
    return bool(record.by) and not record.by.startswith("agent:")
