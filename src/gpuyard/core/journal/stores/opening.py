"""Before a journal is opened: is everything there that somebody has seen?

Who can say how far the journal went? Not SQLite: it takes a log that was cut for a log that ended there. So there are
witnesses outside the database: the head file, the snapshots, and whomever the caller asked (agents remember what they
saw). Opening looks at all of them and holds the journal to the highest:

    1 ────────── retired ──────────┤ snapshot ├───────── witnessed ─────────┤ head ├── whole, unwitnessed ──┤ torn
                                                must be there, with this hash        is accepted              is cut

Nobody was told of what lies behind the head: the commit and the note of it had not both returned. If it is whole it
counts (it may be durable, and one answer is as true as the other), if it is torn it is cut and the cut is named.
Anything amiss before that is damage: opening refuses, and changes nothing.

The chain is checked from the newest usable snapshot on, so opening takes as long as the facts since then, not as long
as the journal.
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
    """What a killed writer left behind the last whole commit. Nobody was told of it; it was cut."""

    segment: str
    after: int
    bytes_cut: int

    def sentence(self) -> str:
        """One sentence for the log."""
        return (
            f"The journal ends at fact {self.after}: {self.bytes_cut} bytes behind it in the write-ahead log of "
            f"{self.segment} were a commit that was never finished, and were cut."
        )


def begin(folder: Path, after: Snapshot | None = None, page_bytes: int = 4096) -> None:
    """Make a new journal in a folder that holds none: an empty one, or one that goes on from a snapshot."""
    head.HeadFile.create(folder, after.position if after else GENESIS)
    if after:
        snapshots.write(folder, after)
    segment.create(folder, after.position if after else GENESIS, page_bytes)


@dataclass(frozen=True, slots=True)
class JournalContents:
    """What opening found in the folder, all of it checked."""

    head: Position
    paths: list[Path]
    snapshots: list[Position]
    """The two newest usable ones, the older first."""
    cut: TornTail | None
    notes: list[str]


def examine(folder: Path, noted: Position | None, witness: Position | None) -> JournalContents:
    """Check the folder against all witnesses without changing anything in it."""
    notes: list[str] = []
    paths = segment.segments_in(folder)
    earliest = segment.first_seq(paths[0]) - 1
    segment.check_header(paths[-1])
    torn = wal.torn_bytes(wal.path_of(paths[-1]))
    whole = [snapshot.position for snapshot in readable_snapshots(folder, notes)]
    usable = [position for position in whole if position.seq >= earliest]
    if noted is None:
        raise JournalDamaged(f"{folder / head.NAME} is damaged: neither of its lines is whole. {segment.WAY_OUT}")
    if earliest and not usable:
        raise JournalDamaged(
            f"The journal in {folder} begins with fact {earliest + 1}, and no snapshot of what was before can be used. "
            + " ".join([*notes, "Restore the folder from a backup, with its retired segments if they are kept."])
        )

    witnesses = [("the head file", noted), *(("a snapshot", position) for position in usable)]
    if witness is not None:
        witnesses.append(("a witness outside", witness))
    end = segment.last_seq(paths[-1])
    for who, seen in witnesses:
        if seen.seq > end:
            what = f"{who} says that the journal went to fact {seen.seq}, but it ends at {end}"
            raise segment.damaged(paths[-1], end + 1, what)
    reached = _check_chain(paths, usable[0].seq if usable else earliest, end)
    for who, seen in witnesses:
        if seen.seq >= earliest and segment.position_at(paths, seen.seq) != seen:
            raise segment.damaged(paths[-1], seen.seq, f"{who} has seen another fact there")

    cut = TornTail(paths[-1].name, reached.seq, torn) if torn else None
    return JournalContents(reached, paths, usable[1::-1], cut, notes + ([cut.sentence()] if cut else []))


def _check_chain(paths: Sequence[Path], base: int, end: int) -> Position:
    """Follow the chain from a fact to the last."""
    digest = bytes.fromhex(segment.position_at(paths, base).hash)
    for _, _, digest in segment.read_rows(paths, base, end):  # noqa: B007 - the last one counts
        pass
    return Position(end, digest.hex())


def readable_snapshots(folder: Path, notes: list[str]) -> Iterator[Snapshot]:
    """The snapshots that are whole, newest first; the others are noted."""
    for path in sorted(folder.glob(snapshots.PATTERN), reverse=True):
        try:
            yield snapshots.read(path)
        except snapshots.SnapshotDamaged as damage:
            notes.append(f"A snapshot is damaged and was not used: {damage}.")


def begin_if_new(folder: Path, page_bytes: int) -> None:
    """Make a journal where there is none; a folder that has lost its segments is no new one."""
    if segment.segments_in(folder):
        return
    # A head that says "nothing yet" is from a begin that was killed.
    if any(folder.glob(snapshots.PATTERN)) or ((folder / head.NAME).exists() and _noted(folder) != GENESIS):
        raise JournalDamaged(f"All segments of the journal in {folder} are gone. {segment.WAY_OUT}")
    begin(folder, None, page_bytes)


def _noted(folder: Path) -> Position | None:
    file = head.HeadFile(folder / head.NAME)
    file.close()
    return file.position


def open_head(folder: Path) -> head.HeadFile:
    """The head file, which is there as long as the journal is."""
    try:
        return head.HeadFile(folder / head.NAME)
    except FileNotFoundError:
        raise JournalDamaged(f"{folder / head.NAME} is gone. {segment.WAY_OUT}") from None


def take_lock(folder: Path) -> int:
    """The right to write; it ends when the descriptor is closed, or with the process."""
    path = folder / "lock"
    try:
        lock = locks.take_lock(path)
    except BlockingIOError:
        holder = path.read_bytes()[:20].decode(errors="replace").strip()
        who = f"Process {holder}" if holder else "Another process"
        raise JournalLocked(f"{who} writes the journal in {folder}. Stop it first.") from None
    with suppress(OSError):  # a courtesy to whoever is refused; a full disk is no reason to stop here
        os.pwrite(lock, b"%-19d\n" % os.getpid(), 0)
    return lock
