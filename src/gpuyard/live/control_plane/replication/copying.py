"""Copy the data folder of the scheduler that leads to one that is empty or too far behind.

The leader prepares a copy in a folder of its own: journal, records and the archive of ended tasks, all as of one
position. Then it sends the files. The receiver collects them in `copying`; only a complete copy is moved to its place,
with the replication log last. A receiver that is killed at any moment begins again or finishes the move.

The copy belongs to a new replica: it gets a new name, so that nothing that an earlier one has promised is expected of it.
"""

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import TypeVar

import msgspec
import structlog

from gpuyard.core.journal.copying import copy_open_journal
from gpuyard.core.replication.membership import Membership
from gpuyard.core.replication.outputs import ReplicaRecord
from gpuyard.live.control_plane.replication.applier import Applier
from gpuyard.live.control_plane.replication.log_file import FILE, Base, ReplicationLog, drawn_name
from gpuyard.live.control_plane.replication.replica_files import ReplicaFiles, record_paths
from gpuyard.live.control_plane.stores.cluster_records import Put, SqliteRecords
from gpuyard.live.control_plane.stores.record_layouts import LAYOUTS
from gpuyard.live.wire.frames import FramedConnection, WrongPeer
from gpuyard.system.files import sync_file, sync_folder

PREPARED = "copy-"
"""How the names of folders begin in which a copy is prepared for the other scheduler."""
INCOMING, COMPLETE, BEFORE = "copying", "complete", "before_copy"
CHUNK_BYTES = 1024 * 1024
MOST_FILES = 100_000
REPLACED = ("journal", "access.sqlite", "secrets.sqlite", "documents.sqlite", "archive.sqlite", FILE)
"""What a copy brings, in the order in which it is moved to its place."""

T = TypeVar("T")

log = structlog.get_logger()


class CopyHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first frame of a copy."""

    cluster: str
    base: Base
    membership: Membership
    files: int
    total_bytes: int


class CopiedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The frame before the content of a file."""

    path: str
    size: int


class CopyRefused(WrongPeer):
    """The scheduler at the other end cannot send a copy now. This one tries again."""


# --- sending -----------------------------------------------------------------------------------------------------------


def remove_unsent_copies(folder: Path) -> None:
    """Remove what a process that was killed while it sent a copy has left."""
    for prepared in folder.glob(f"{PREPARED}*"):
        shutil.rmtree(prepared, ignore_errors=True)


async def send_copy(connection: FramedConnection, files: ReplicaFiles, applier: Applier, folder: Path) -> None:
    """Prepare a copy and send it; the prepared files are removed afterwards."""
    prepared = Path(await asyncio.to_thread(mkdtemp, prefix=PREPARED, dir=folder))
    try:
        head = await asyncio.to_thread(_prepare, prepared, files, applier, folder)
        log.info("copy_began", position=head.base.position, seq=head.base.seq, bytes=head.total_bytes)
        connection.send(msgspec.msgpack.encode(head))
        for path in _files_in(prepared):
            said = CopiedFile(str(path.relative_to(prepared)), path.stat().st_size)
            connection.send(msgspec.msgpack.encode(said))
            with path.open("rb") as content:
                while chunk := await asyncio.to_thread(content.read, CHUNK_BYTES):
                    connection.send(chunk)
                    await connection.drain()
        await connection.receive()  # the receiver confirms: its copy is complete
        log.info("copy_sent", position=head.base.position, seq=head.base.seq)
    finally:
        await asyncio.to_thread(shutil.rmtree, prepared, ignore_errors=True)


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _prepare(target: Path, files: ReplicaFiles, applier: Applier, folder: Path) -> CopyHead:
    """Write the copy. Only the small records are read while nothing is applied; the journal is read up to that point."""
    paths = record_paths(target)
    with applier.still():
        position, reached = applier.position, files.journal.head
        base = Base(position, files.log.epoch_at(position), reached.seq)
        membership = files.log.record.membership
        rows = {
            layout.name: [(table, files.records[layout.name].rows(table)) for table in layout.tables]
            for layout in LAYOUTS
        }
    for layout in LAYOUTS:
        records = SqliteRecords.open(paths[layout.name], layout)
        try:
            for table, content in rows[layout.name]:
                records.write(Put(table, content))
        finally:
            records.close()
    _copy_archive(folder / "archive.sqlite", target / "archive.sqlite")
    copy_open_journal(files.journal, target / "journal", reached)
    found = _files_in(target)
    return CopyHead(files.log.cluster, base, membership, len(found), sum(path.stat().st_size for path in found))


def _copy_archive(source: Path, target: Path) -> None:
    """Copy the archive while it is in use. The standby adds what is missing from the journal."""
    if not source.exists():
        return
    with (
        closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as old,
        closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)


# --- receiving ---------------------------------------------------------------------------------------------------------


async def receive_copy(
    connection: FramedConnection, folder: Path, scheduler: str, progress: Callable[[int, int], None]
) -> None:
    """Receive a copy and put it in place. The files of a replica that was here must be closed."""
    incoming = folder / INCOMING
    await asyncio.to_thread(shutil.rmtree, incoming, ignore_errors=True)
    incoming.mkdir(mode=0o700)
    head = await _receive(connection, CopyHead)
    done = 0
    for _ in range(min(head.files, MOST_FILES)):
        said = await _receive(connection, CopiedFile)
        path = _inside(incoming, said.path)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("xb") as content:
            left = said.size
            while left:
                chunk = await connection.receive()
                if not 0 < len(chunk) <= left:
                    raise WrongPeer("The copy of the data folder is damaged. It is tried again.")
                await asyncio.to_thread(content.write, chunk)
                left, done = left - len(chunk), done + len(chunk)
                progress(done, head.total_bytes)
        path.chmod(0o600)
        await asyncio.to_thread(sync_file, path)
    await asyncio.to_thread(_complete, incoming, head, scheduler)
    connection.send(COMPLETE.encode())
    await connection.drain()
    await asyncio.to_thread(finish_copy, folder)
    log.info("copy_received", cluster=head.cluster, seq=head.base.seq, bytes=done)


async def _receive(connection: FramedConnection, kind: type[T]) -> T:
    body = await connection.receive()
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise WrongPeer(f"The copy of the data folder cannot be read: {error}.") from error


def _inside(folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or path == folder.resolve():
        raise WrongPeer(f"The copy of the data folder has a file outside of it: {name[:100]!r}.")
    return path


def _complete(incoming: Path, head: CopyHead, scheduler: str) -> None:
    name = drawn_name(scheduler)
    ReplicationLog.create(incoming / FILE, name, head.cluster, head.base, ReplicaRecord(0, head.membership)).close()
    for path in (incoming, *(each for each in incoming.rglob("*") if each.is_dir())):
        sync_folder(path)
    (incoming / COMPLETE).touch(mode=0o600)
    sync_folder(incoming)


def finish_copy(folder: Path) -> bool:
    """Move a complete copy to its place, and what was there before to `before_copy`; return whether there was one.

    It may be interrupted and repeated at any point. An incomplete copy is removed.
    """
    incoming, before = folder / INCOMING, folder / BEFORE
    if not (incoming / COMPLETE).exists():
        shutil.rmtree(incoming, ignore_errors=True)
        return False
    moving = [name for name in REPLACED if (incoming / name).exists()]
    if moving and moving[0] == REPLACED[0]:  # nothing was moved in yet
        shutil.rmtree(before, ignore_errors=True)
    before.mkdir(mode=0o700, exist_ok=True)
    if (folder / FILE).exists() and FILE in moving:  # first: without it, the folder is not that of a replica
        (folder / FILE).replace(before / FILE)
    for name in moving:
        place = folder / name
        if place.exists():
            place.replace(before / name)
        for beside in folder.glob(f"{name}-*"):  # write-ahead logs of the old files
            with suppress(OSError):
                beside.unlink()
        (incoming / name).replace(place)
    sync_folder(folder)
    shutil.rmtree(incoming)
    return True
