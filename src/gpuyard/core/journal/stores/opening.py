"""Check, before a journal is opened, that it holds every event that was ever reported.

SQLite cannot tell how far the journal went: it cannot distinguish a truncated log from one that ended there. So there
are witnesses outside the database: the head file, the snapshots, and positions that the caller collected (agents
remember the last one they saw). The journal must reach the highest of them:

    1 ────────── retired ──────────┤ snapshot ├───────── witnessed ─────────┤ head ├── whole, unwitnessed ──┤ torn
                                                must be there, with this hash        is accepted              is cut

Events after the head were never reported: the commit and the write of the head file had not both returned. If such a
tail is complete, it is accepted (it may be durable, and either result is correct). If it is torn, it is cut and the cut
is reported. Any defect before the head is damage: opening fails and changes nothing.

The chain is checked from the newest usable snapshot on, so the time to open depends on the number of events since then,
not on the length of the journal.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuyard.core.domain.errors import JournalDamaged, JournalLocked
from gpuyard.core.domain.values import Value
from gpuyard.core.journal import snapshots
from gpuyard.core.journal.records import GENESIS, Position, Snapshot
from gpuyard.core.journal.stores import head, segment, wal
from gpuyard.system import locks


class TornTail(Value, frozen=True):
    """The incomplete commit that a killed writer left at the end. It was never reported, and was cut."""

    segment: str
    after: int
    bytes_cut: int

    def sentence(self) -> str:
        """Describe the cut in one sentence for the log."""
        return (
            f"The journal ends at event {self.after}: {self.bytes_cut} bytes after it in the "
            f"write-ahead log of {self.segment} were an unfinished commit and were removed."
        )


def begin(folder: Path, after: Snapshot | None = None, page_bytes: int = 4096) -> None:
    """Create a journal in a folder without one: empty, or continuing after a snapshot."""
    head.HeadFile.create(folder, after.position if after else GENESIS)
    if after:
        snapshots.write(folder, after)
    segment.create(folder, after.position if after else GENESIS, page_bytes)


@dataclass(frozen=True, slots=True)
class JournalContents:
    """The contents of a journal folder, all of them checked."""

    head: Position
    paths: list[Path]
    snapshots: list[Position]
    """The positions of the two newest usable snapshots, the older first."""
    cut: TornTail | None
    notes: list[str]


def examine(folder: Path, noted: Position | None, witness: Position | None) -> JournalContents:
    """Check the folder against all witnesses without changing anything in it.

    `noted` is the position in the head file (None: the file is damaged), `witness` one from outside the folder. Raises
    JournalDamaged if an event is missing or altered.
    """
    notes: list[str] = []
    paths = segment.segments_in(folder)
    earliest = segment.first_seq(paths[0]) - 1
    segment.check_header(paths[-1])
    torn = wal.torn_bytes(wal.path_of(paths[-1]))
    whole = [snapshot.position for snapshot in readable_snapshots(folder, notes)]
    usable = [position for position in whole if position.seq >= earliest]
    if noted is None:
        raise JournalDamaged(f"{folder / head.NAME} is damaged: neither of its lines is complete. {segment.WAY_OUT}")
    if earliest and not usable:
        raise JournalDamaged(
            f"The journal in {folder} begins with event {earliest + 1}, and no snapshot of earlier "
            "events can be used. "
            + " ".join([*notes, "Restore the folder from a backup, with its retired segments if they are kept."])
        )

    witnesses = [("the head file", noted), *(("a snapshot", position) for position in usable)]
    if witness is not None:
        witnesses.append(("an external witness", witness))
    end = segment.last_seq(paths[-1])
    for who, seen in witnesses:
        if seen.seq > end:
            what = f"{who} records that the journal went to event {seen.seq}, but it ends at {end}"
            raise segment.damaged(paths[-1], end + 1, what)
    reached = _check_chain(paths, usable[0].seq if usable else earliest, end)
    for who, seen in witnesses:
        if seen.seq >= earliest and segment.position_at(paths, seen.seq) != seen:
            raise segment.damaged(paths[-1], seen.seq, f"{who} has recorded another event there")

    cut = TornTail(paths[-1].name, reached.seq, torn) if torn else None
    return JournalContents(reached, paths, usable[1::-1], cut, notes + ([cut.sentence()] if cut else []))


def _check_chain(paths: Sequence[Path], base: int, end: int) -> Position:
    """Verify the chain after the event `base` and return the position of the last event, `end`."""
    digest = bytes.fromhex(segment.position_at(paths, base).hash)
    for _, _, digest in segment.read_rows(paths, base, end):  # noqa: B007 - the last one counts
        pass
    return Position(end, digest.hex())


def readable_snapshots(folder: Path, notes: list[str]) -> Iterator[Snapshot]:
    """Iterate over the intact snapshots, newest first; append a sentence to `notes` for each damaged one."""
    for path in sorted(folder.glob(snapshots.PATTERN), reverse=True):
        try:
            yield snapshots.read(path)
        except snapshots.SnapshotDamaged as damage:
            notes.append(f"A snapshot is damaged and was not used: {damage}.")


def begin_if_new(folder: Path, page_bytes: int) -> None:
    """Create a journal if the folder has none. A folder that lost its segments is damaged, not new."""
    if segment.segments_in(folder):
        return
    # A head at GENESIS without a segment is left by a `begin` that was killed.
    if any(folder.glob(snapshots.PATTERN)) or ((folder / head.NAME).exists() and _noted(folder) != GENESIS):
        raise JournalDamaged(f"All segments of the journal in {folder} are missing. {segment.WAY_OUT}")
    begin(folder, None, page_bytes)


def _noted(folder: Path) -> Position | None:
    file = head.HeadFile(folder / head.NAME)
    file.close()
    return file.position


def open_head(folder: Path) -> head.HeadFile:
    """Open the head file. Every journal has one; raises JournalDamaged if it is missing."""
    try:
        return head.HeadFile(folder / head.NAME)
    except FileNotFoundError:
        raise JournalDamaged(f"{folder / head.NAME} is missing. {segment.WAY_OUT}") from None


def take_lock(folder: Path) -> int:
    """Take the write lock and return its descriptor. Closing the descriptor, or the end of the process, releases it."""
    path = folder / "lock"
    try:
        lock = locks.take_lock(path)
    except BlockingIOError:
        holder = path.read_bytes()[:20].decode(errors="replace").strip()
        who = f"Process {holder}" if holder else "Another process"
        raise JournalLocked(f"{who} writes the journal in {folder}. Stop it first.") from None
    with suppress(OSError):  # the PID only serves the message of a refused process; a full disk is not an error here
        os.pwrite(lock, b"%-19d\n" % os.getpid(), 0)
    return lock
