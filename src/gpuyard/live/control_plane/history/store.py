"""The file of the history: SQLite with one table of rows and one of blocks for each tier (layout.py).

It is beside the journal and not part of it: a lost second does no harm, so it is written with `synchronous = NORMAL` by a
thread of its own, and a file that is damaged is removed and started again. Its size is bounded: a tier has no more blocks
than its time has, and a block no more slots than slots.py allows.

One thread writes and others read; they take turns, block by block of one card. All wait for the disk, so the event loop
calls none of them.
"""

# ruff: noqa: S608 - the names of tables and columns come from the layout, never from a request

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from threading import RLock
from typing import NamedTuple, TypeVar

import structlog

from gpuyard.live.control_plane.history.layout import (
    CLUSTER,
    GPUS,
    KINDS,
    NODES,
    TIERS,
    BadBlock,
    Row,
    RowKind,
    Tier,
    read_row,
    read_slot,
    rolled_up,
    row_bytes,
    sealed,
    unknown_row,
    width,
)
from gpuyard.live.control_plane.history.sample import HistorySample, Key
from gpuyard.live.control_plane.history.slots import MOST_SLOTS, Assigned, Owner, Slots
from gpuyard.live.control_plane.stores.database import (
    DatabaseLayout,
    StoreDamaged,
    StoreError,
    StoreFromFuture,
    StoreFromPast,
    as_store_errors,
    open_database,
    transaction,
)

T = TypeVar("T")
WHAT = "history"
SMALL_STEP_SECONDS = 60
"""If the clock goes back by no more than this, samples are left out until it is where it was."""
_BLOBS = ", ".join(f"{kind.name} BLOB NOT NULL" for kind in KINDS)
_NAMES = ", ".join(kind.name for kind in KINDS)
_MARKS = ", ".join("?" for _ in KINDS)
_TABLES = "; ".join(
    f"CREATE TABLE rows_{tier.number} (at INTEGER PRIMARY KEY, {_BLOBS}); "
    f"CREATE TABLE blocks_{tier.number} (at INTEGER PRIMARY KEY, units BLOB NOT NULL, {_BLOBS})"
    for tier in TIERS
)
_TABLES += (
    "; CREATE TABLE slots (kind TEXT NOT NULL, slot INTEGER NOT NULL, name TEXT NOT NULL, mark TEXT NOT NULL, "
    "memory_mib INTEGER NOT NULL, since INTEGER NOT NULL, until INTEGER, PRIMARY KEY (kind, slot)) WITHOUT ROWID"
)
_LAYOUT = DatabaseLayout(what=WHAT, version=2, tables=_TABLES, durable=False, exclusive=False)

log = structlog.get_logger()


class Stretch(NamedTuple):
    """Rows of one slot, from one block or from open rows."""

    tier: Tier
    times: list[int]
    """The start of each row."""
    values: Row
    """The columns of the tier, one value a row."""


class HistoryStore:
    """The history, opened for writing by one thread and for reading by others."""

    def __init__(self, path: Path, keep_seconds: float) -> None:
        self.path = path
        self.tiers = tuple(
            Tier(
                tier.number, tier.step, tier.block, keep_seconds if tier is TIERS[-1] else min(tier.keep, keep_seconds)
            )
            for tier in TIERS
        )
        """With the configured retention: the last tier is kept for all of it, the others for at most that."""
        self._lock = RLock()
        """Held by the thread whose turn it is."""
        self._is_open = False
        self._is_closed = False

    @classmethod
    def open(cls, path: Path, keep_seconds: float = TIERS[-1].keep) -> "HistoryStore":
        """Open the file, or create it. A file that cannot be used is removed, and a line of the log says so."""
        store = cls(path, keep_seconds)
        try:
            store._open()
        except (StoreFromFuture, StoreFromPast) as error:
            aside = f"{path.name}.{'newer' if isinstance(error, StoreFromFuture) else 'older'}"
            log.warning("history_set_aside", message=f"{error} It was moved to {aside}; a new history begins.")
            _set_aside(path, aside)
            store._open()
        except StoreDamaged as error:
            store._start_over(error)
        return store

    def _open(self) -> None:
        with as_store_errors(self.path, WHAT):
            self._database = open_database(self.path, _LAYOUT)
            self._is_open = True
            try:
                self._database.execute("PRAGMA journal_size_limit = 16777216")
                owners: dict[str, list[Owner]] = {kind.name: [] for kind in KINDS}
                for kind, *rest in self._database.execute(
                    "SELECT kind, slot, name, mark, memory_mib, since, until FROM slots"
                ):
                    owners[kind].append(Owner(*rest))
                self._last_at = self._newest_row()
            except (KeyError, TypeError) as error:
                raise _damaged(self.path, f"its list of cards cannot be read ({error})") from error
        keep_seconds = self.tiers[-1].keep
        self._slots = {kind.name: Slots(keep_seconds, owners[kind.name]) for kind in KINDS}
        self._assigned: dict[str, Assigned] = {}
        self._generation: int | None = None

    def _newest_row(self) -> int:
        """Return the instant of the newest sample; the end of the newest block if there is no open row."""
        newest = 0
        for table in ("rows_0", "blocks_0"):
            (at,) = self._database.execute(f"SELECT max(at) FROM {table}").fetchone()
            newest = max(newest, at or 0)
        return newest

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._is_closed, self._is_open = True, False
            self._database.close()

    def _start_over(self, error: StoreDamaged) -> None:
        """Remove the file and begin a new one. If that fails, the next call tries again to open it."""
        log.warning(
            "history_replaced", message=f"{self.path} is damaged and was removed; a new history begins. {error}"
        )
        if self._is_open:
            self._is_open = False
            with suppress(sqlite3.Error):
                self._database.close()
        _remove(self.path)
        self._open()

    def _guarded(self, work: Callable[[], T]) -> T:
        """Do work on the file. If the file turns out to be damaged, start over and raise the error."""
        with self._lock:
            try:
                with as_store_errors(self.path, WHAT):
                    if self._is_closed:
                        raise StoreError("The history is closed.")
                    if not self._is_open:
                        self._open()
                    return work()
            except BadBlock as error:
                damaged = _damaged(self.path, str(error))
                self._start_over(damaged)
                raise damaged from error
            except StoreDamaged as error:
                self._start_over(error)
                raise

    # --- writing ------------------------------------------------------------------------------------------------------

    def append(self, sample: HistorySample) -> None:
        """Write a sample. Complete blocks are sealed and rolled up, expired ones removed."""
        self._guarded(lambda: self._append(sample))

    def _append(self, sample: HistorySample) -> None:
        at = sample.at
        if self._last_at - SMALL_STEP_SECONDS <= at <= self._last_at:
            return  # that second is written already
        try:
            with transaction(self._database):
                if at < self._last_at:
                    self._forget_from(at)
                rows = self._placed(sample)
                if self.tiers[0].block_of(at) != self.tiers[0].block_of(self._last_at):
                    self._seal_before(at)
                self._insert(0, at, rows)
        except BaseException:
            self._generation = None  # slots that were not recorded are assigned again
            self._reload_slots()
            raise
        self._last_at = at

    def _reload_slots(self) -> None:
        with suppress(sqlite3.Error):
            for kind in KINDS:
                rows = self._database.execute(
                    "SELECT slot, name, mark, memory_mib, since, until FROM slots WHERE kind = ?", (kind.name,)
                )
                self._slots[kind.name] = Slots(self.tiers[-1].keep, [Owner(*row) for row in rows])

    def _insert(self, tier: int, at: int, rows: Sequence[Row]) -> None:
        self._database.execute(
            f"INSERT OR REPLACE INTO rows_{tier} (at, {_NAMES}) VALUES (?, {_MARKS})", (at, *map(row_bytes, rows))
        )

    def _placed(self, sample: HistorySample) -> list[Row]:
        """Return the rows of all kinds, with every card in its slot."""
        if sample.generation != self._generation or len(self._assigned) < len(KINDS):
            for kind, keys in ((GPUS, sample.cards()), (NODES, sample.nodes()), (CLUSTER, [("", "", 0)])):
                self._assign(kind, keys, sample.at)
            self._generation = sample.generation
        given = {CLUSTER.name: sample.cluster_row, NODES.name: sample.node_row, GPUS.name: sample.gpu_row}
        return [self._scattered(kind, given[kind.name]) for kind in KINDS]

    def _assign(self, kind: RowKind, keys: Sequence[Key], at: int) -> None:
        assigned = self._assigned[kind.name] = self._slots[kind.name].assign(keys, at)
        if None in assigned.slots:
            log.warning("history_incomplete", kind=kind.name, message=f"More than {MOST_SLOTS} are not recorded.")
        self._database.executemany(
            "DELETE FROM slots WHERE kind = ? AND slot = ?", [(kind.name, slot) for slot in assigned.dropped]
        )
        self._database.executemany(
            "INSERT OR REPLACE INTO slots (kind, slot, name, mark, memory_mib, since, until) VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(kind.name, it.slot, it.name, it.mark, it.memory_mib, it.since, it.until) for it in assigned.changed],
        )

    def _scattered(self, kind: RowKind, given: Row) -> Row:
        slots, count = self._assigned[kind.name].slots, self._slots[kind.name].count
        if slots == list(range(count)):
            return given
        row = unknown_row(kind.cells[0], count)
        for column, values in zip(row, given, strict=True):
            for slot, value in zip(slots, values, strict=True):
                if slot is not None:
                    column[slot] = value
        return row

    def _seal_before(self, at: int) -> None:
        """Seal the blocks that are complete at an instant, and remove what has expired."""
        for tier in self.tiers:
            current = tier.block_of(at)
            while True:
                (oldest,) = self._database.execute(f"SELECT min(at) FROM rows_{tier.number}").fetchone()
                if oldest is None or oldest >= current:
                    break
                self._seal(tier, tier.block_of(oldest))
            self._database.execute(
                f"DELETE FROM blocks_{tier.number} WHERE at <= ?", (int(at - tier.keep - tier.block),)
            )

    def _seal(self, tier: Tier, block: int) -> None:
        """Turn the rows of a block into one blob for each kind, and into one row of the next tier."""
        span = (block, block + tier.block)
        found = self._database.execute(
            f"SELECT at, {_NAMES} FROM rows_{tier.number} WHERE at >= ? AND at < ? ORDER BY at", span
        ).fetchall()
        units = bytes((at - block) // tier.step for at, *_ in found)
        blobs, rolled = list[bytes](), list[Row]()
        for number, kind in enumerate(KINDS):
            cells = kind.cells[tier.number]
            rows = [read_row(cells, row[number + 1]) for row in found]
            blobs.append(sealed(cells, rows))
            if tier.number + 1 < len(self.tiers):
                rolled.append(rolled_up(kind, tier.number, rows))
        self._database.execute(
            f"INSERT OR REPLACE INTO blocks_{tier.number} (at, units, {_NAMES}) VALUES (?, ?, {_MARKS})",
            (block, units, *blobs),
        )
        self._database.execute(f"DELETE FROM rows_{tier.number} WHERE at >= ? AND at < ?", span)
        if rolled:
            self._insert(tier.number + 1, block, rolled)

    def _forget_from(self, at: int) -> None:
        """Remove what lies after an instant: the clock was set back, and that time comes again."""
        log.warning(
            "history_cut",
            message=f"The clock went back by {self._last_at - at} s; that part of the history is replaced.",
        )
        for tier in self.tiers:
            self._database.execute(f"DELETE FROM rows_{tier.number} WHERE at + ? > ?", (tier.step, at))
            self._database.execute(f"DELETE FROM blocks_{tier.number} WHERE at + ? > ?", (tier.block, at))
        self._database.execute("UPDATE slots SET since = min(since, ?), until = min(until, ?)", (at, at))
        self._reload_slots()

    # --- reading ------------------------------------------------------------------------------------------------------

    def owners(self, kind: RowKind, name: str) -> list[Owner]:
        """Return who had this name, present and past."""
        with self._lock:
            return self._slots[kind.name].named(name)

    def read(self, kind: RowKind, tier: Tier, slot: int, since: int, until: int) -> list[Stretch]:
        """Return the rows of a slot that begin in [since, until), in order."""
        return self._guarded(lambda: list(self._stretches(kind, tier, slot, since, until)))

    def covered_until(self, tier: Tier) -> int:
        """Return the end of the newest row of a tier; 0: it has none."""
        return self._guarded(lambda: self._covered_until(tier))

    def _covered_until(self, tier: Tier) -> int:
        (row,) = self._database.execute(f"SELECT max(at) FROM rows_{tier.number}").fetchone()
        if row is not None:
            return int(row) + tier.step
        (block,) = self._database.execute(f"SELECT max(at) FROM blocks_{tier.number}").fetchone()
        return 0 if block is None else int(block) + tier.block

    def _stretches(self, kind: RowKind, tier: Tier, slot: int, since: int, until: int) -> Iterator[Stretch]:
        cells = kind.cells[tier.number]
        span = (tier.block_of(since), until)
        blocks = self._database.execute(
            f"SELECT at, units, length({kind.name}) FROM blocks_{tier.number} WHERE at >= ? AND at < ? ORDER BY at",
            span,
        ).fetchall()
        for block, units, size in blocks:
            of_slot = width(cells) * len(units)
            if of_slot and (slot + 1) * of_slot <= size:
                part = self._part(f"blocks_{tier.number}", kind.name, block, slot * of_slot, of_slot)
                times = [block + unit * tier.step for unit in units]
                yield _clipped(Stretch(tier, times, read_slot(cells, len(units), part)), since, until)
        rows = self._database.execute(
            f"SELECT at, {kind.name} FROM rows_{tier.number} WHERE at >= ? AND at < ? ORDER BY at", (since, until)
        ).fetchall()
        for at, data in rows:
            row = read_row(cells, data)
            if slot < len(row[0]):
                yield Stretch(tier, [at], [column[slot : slot + 1] for column in row])

    def _part(self, table: str, column: str, at: int, place: int, size: int) -> bytes:
        with closing(self._database.blobopen(table, column, at, readonly=True)) as blob:
            blob.seek(place)
            return blob.read(size)


def _clipped(stretch: Stretch, since: int, until: int) -> Stretch:
    kept = [number for number, at in enumerate(stretch.times) if since <= at < until]
    if len(kept) == len(stretch.times):
        return stretch
    if not kept:
        return Stretch(stretch.tier, [], [column[:0] for column in stretch.values])
    part = slice(kept[0], kept[-1] + 1)
    return Stretch(stretch.tier, stretch.times[part], [column[part] for column in stretch.values])


def _damaged(path: Path, how: str) -> StoreDamaged:
    return StoreDamaged(f"{path} ({WHAT}) is damaged: {how}.")


_FILES = ("", "-wal", "-shm")
"""What SQLite adds to the name of a database."""


def _remove(path: Path) -> None:
    for more in _FILES:
        path.with_name(path.name + more).unlink(missing_ok=True)


def _set_aside(path: Path, name: str) -> None:
    _remove(path.with_name(name))
    for more in _FILES:
        with suppress(FileNotFoundError):
            path.with_name(path.name + more).replace(path.with_name(name + more))
