"""Move ended tasks and idempotency keys from memory to the archive, once a second."""

import asyncio

import msgspec
import structlog

from gpuyard.live.control_plane.folding import fold_of
from gpuyard.live.control_plane.loop import EngineLoop
from gpuyard.live.control_plane.stores.archive import Archive, ArchiveRow, SubmitKey
from gpuyard.live.control_plane.stores.database import StoreDamaged, StoreError
from gpuyard.live.control_plane.stores.idempotency import IdempotentRequests, keys_of
from gpuyard.live.control_plane.stores.secrets import SecretStore
from gpuyard.live.control_plane.stories import Stories
from gpuyard.live.control_plane.time_slices import TimeSlicer
from gpuyard.live.control_plane.views import TaskView, Views, searched_text
from gpuyard.live.control_plane.worker_threads import WorkerPools

ARCHIVE_SECONDS = 1.0

log = structlog.get_logger()
_encode = msgspec.json.Encoder().encode


class Archiver:
    """Keeps the archive up to date."""

    def __init__(
        self,
        loop: EngineLoop,
        views: Views,
        archive: Archive,
        secrets: SecretStore,
        requests: IdempotentRequests,
        worker_pools: WorkerPools,
    ) -> None:
        self._loop = loop
        self._views = views
        self._archive = archive
        self._secrets = secrets
        self._requests = requests
        self._worker_pools = worker_pools
        self.archived_seq = 0
        """The archive holds every task that ended by an event up to this one."""

    async def run(self) -> None:
        """Archive ended tasks until cancelled."""
        while True:
            await asyncio.sleep(ARCHIVE_SECONDS)
            await self.archive_now()

    async def archive_now(self) -> None:
        """Move ended tasks and idempotency keys from memory to the archive."""
        while self._loop.hearing:
            await asyncio.sleep(0.001)  # a request's key must be archived with all of its tasks or with none
        views, seq = self._views, self._views.last_seq
        ended, views.just_ended = views.just_ended, []
        keys = self._requests.take_accepted()
        if not ended and not keys:
            self.archived_seq = seq
            return
        rows, turns = [], TimeSlicer()
        for view in ended:
            rows.append(archive_row(view, views.stories))
            if turns.due():
                await turns.give()
        try:
            await self._worker_pools.archive_writer.run(self._write_archive, rows, keys_of(keys), seq)
        except StoreError as error:
            views.just_ended = ended + views.just_ended
            self._requests.put_back(keys)
            if isinstance(error, StoreDamaged):
                log.error("archive_replaced", message=self._archive.start_over(error))
            else:
                log.warning("archive_write_failed", message=str(error))
            return
        views.archived([view.id for view in ended])
        self.archived_seq = seq
        with_secrets = [view.id for view in ended if view.spec.secrets]
        if with_secrets and not self._loop.follows:  # the scheduler that leads removes them
            try:
                await self._worker_pools.archive_writer.run(self._secrets.drop, with_secrets)
            except StoreError as error:
                log.warning("secret_removal_failed", message=str(error))  # the next start sweeps them
        self._requests.archived(keys)

    def _write_archive(self, rows: list[ArchiveRow], keys: list[SubmitKey], seq: int) -> None:
        if keys:
            self._archive.remember(keys)
        self._archive.add(rows, seq)


def archive_row(view: TaskView, stories: Stories | None = None) -> ArchiveRow:
    """Return the archive row of an ended task, with its story."""
    spec, finished_at = view.spec, view.finished_at
    runs = stories.runs_of(view.id) if stories is not None else []
    assert finished_at is not None
    return ArchiveRow(
        view.id,
        spec.tenant,
        view.status,
        spec.task_class,
        view.priority,
        spec.user,
        spec.project,
        spec.name,
        view.submitted_at,
        finished_at,
        _encode(view.answer()),
        view.started_at,
        searched_text(view.id, spec.name, spec.user, spec.command),
        b"" if stories is None else stories.packed(view.id, view.submitted_at, view.by),
        tuple(
            (place, gpu, run.started_at, finished_at if run.ended_at is None else run.ended_at, run.share)
            for place, run in enumerate(runs)
            for gpu in run.gpus
        ),
        view.spans,
        fold_of(view.id, spec, view.submitted_at),
    )
