"""Write a snapshot of a large cluster, in a separate process.

    python -m gpuyard.live.control_plane.stores.snapshotter JOURNAL SEQ HASH ARCHIVED FOLDER

It does the same as a restart: it loads the newest snapshot, applies the committed events up to SEQ, and writes the
result to FOLDER. JOURNAL is a folder, or - for the database in the variable GPUYARD_SNAPSHOT_OF. The scheduler then moves the file into place. The scheduler itself spends no time on it, however many
tasks wait, and the snapshot is by construction what a restart would recover.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuyard.core.domain.errors import JournalError
from gpuyard.core.domain.events import TaskEnded
from gpuyard.core.engine.apply import apply_recorded
from gpuyard.core.journal import snapshots
from gpuyard.core.journal.records import Position, Record, Snapshot
from gpuyard.core.journal.stores.opening import readable_snapshots
from gpuyard.core.journal.stores.sqlite import read_folder
from gpuyard.live.control_plane.stores.recovery import restored, snapshot_content

NICE = 10
"""Low priority, because a snapshot is not urgent."""
SNAPSHOT_TIMEOUT_SECONDS = 600.0
DATABASE, VARIABLE = "-", "GPUYARD_SNAPSHOT_OF"


async def write_in_process(journal: Path | str, position: Position, archived: int, folder: Path) -> None:
    """Have a process write the snapshot at this position to a folder. `journal`: a folder, or a database's address."""
    command = (
        sys.executable,
        "-m",
        __name__,
        str(journal) if isinstance(journal, Path) else DATABASE,
        str(position.seq),
        position.hash,
        str(archived),
        str(folder),
    )
    process = subprocess.Popen(  # noqa: S603 - runs this module
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=None if isinstance(journal, Path) else {**os.environ, VARIABLE: journal},  # it may contain a password
    )
    try:
        _, said = await asyncio.to_thread(process.communicate, timeout=SNAPSHOT_TIMEOUT_SECONDS)
    except BaseException:
        process.kill()
        await asyncio.to_thread(process.wait)
        raise
    if process.returncode:
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise JournalError(f"The snapshot at event {position.seq} was not written: {last or process.returncode}.")


def write(journal: Path | str, position: Position, archived: int, folder: Path) -> None:
    """Write the snapshot at this position. The archive holds every task that ended by an event up to `archived`."""
    kept, read = _source(journal)
    newest = next((each for each in kept if each.position.seq <= position.seq), None)
    state, views, after = restored(newest)
    if after <= archived:
        views.archived([view.id for view in views.just_ended])
    for record in read(after):
        if record.seq > position.seq:
            break
        apply_recorded(state, record.event, record.at)
        views.apply(record)
        if isinstance(record.event, TaskEnded) and record.seq <= archived:
            views.archived([record.event.task])
    folder.mkdir(mode=0o700, exist_ok=True)
    snapshots.write(folder, Snapshot(position, snapshot_content(state, views)))


def _source(journal: Path | str) -> tuple[Iterator[Snapshot], Callable[[int], Iterator[Record]]]:
    """Return the snapshots of a journal, newest first, and the function that reads its events."""
    if isinstance(journal, Path):
        return readable_snapshots(journal, notes=[]), lambda after: read_folder(journal, after)
    from gpuyard.core.journal.stores.postgres_follower import PostgresFollower

    follower = PostgresFollower.open(journal)
    return follower.snapshots(), follower.read


def main() -> None:
    """Run as the process that the scheduler starts."""
    journal, seq, digest, archived, folder = sys.argv[1:]
    os.nice(NICE)
    write(
        Path(journal) if journal != DATABASE else os.environ[VARIABLE],
        Position(int(seq), digest),
        int(archived),
        Path(folder),
    )


if __name__ == "__main__":
    main()
