"""A loop that ends leaves nothing behind."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuyard.core.domain.commands import SetSplit
from gpuyard.core.domain.errors import OutcomeUnknown, StorageUnreachable
from gpuyard.core.domain.tenant import QuotaMode, Split
from gpuyard.core.journal.records import Position
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.live.control_plane.loop import EngineLoop
from gpuyard.live.control_plane.stores.recovery import recover
from tests.unit.live.control_plane.clusters import run, until


class Unreachable(SqliteJournal):
    """A journal whose database does not answer."""

    def append_encoded(self, payloads: Sequence[bytes]) -> Position:
        del payloads
        raise StorageUnreachable("It does not answer.")


def test_a_loop_that_is_cancelled_does_not_go_on_to_try_an_append(tmp_path: Path) -> None:
    async def story() -> None:
        journal = Unreachable.open(tmp_path / "journal")
        engine, _ = recover(journal)
        loop = EngineLoop(engine, journal, lambda _: None, clock=time.time, rebuild=lambda: engine, is_remote=True)
        running = asyncio.create_task(loop.run())
        asked = loop.tell(SetSplit(Split(0.5, 0.5, QuotaMode.BORROW)))
        await until(lambda: loop.unwritable is not None)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(OutcomeUnknown):
            await asked
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        journal.close()

    run(story)
