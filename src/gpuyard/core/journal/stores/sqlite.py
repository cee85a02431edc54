"""A journal in a folder, kept in SQLite.

    lock                            held by the one process that writes
    head                            lower bound of the last position (head.py)
    facts-000000000001.sqlite       the first segment, full: never written again (segment.py)
    facts-000000065537.sqlite       the last segment, which grows
    facts-000000065537.sqlite-wal   its write-ahead log, while it is open or after a crash
    snapshot-000000060000.json      the older snapshot (gpuyard/core/journal/snapshots.py)
    snapshot-000000070000.json      the newest

Only `append` uses the connection that writes. Every reader has its own connection, so other threads may read, save
snapshots and retire at the same time. opening.py checks a folder before it is opened.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Self

from gpuyard.core.domain.errors import EventsRetired, JournalError, NoJournal, StorageFull
from gpuyard.core.journal import snapshots
from gpuyard.core.journal.chain import link
from gpuyard.core.journal.codec import CODEC, Codec
from gpuyard.core.journal.files import as_journal_errors, no_space
from gpuyard.core.journal.folders import close_files, closed_folder
from gpuyard.core.journal.port import AuditRetention
from gpuyard.core.journal.records import JournalEntry, Position, Record, Snapshot
from gpuyard.core.journal.stores import head, opening, retiring, segment, wal
from gpuyard.system.files import NO_SPACE, sync_folder

SEGMENT_EVENTS = 65_536
"""About 15 MB: small enough to retire often, large enough to keep the number of segments of a year low."""


class SqliteJournal:
    """See gpuyard.core.journal.port.Journal. Create it with `open`."""

    def __init__(
        self,
        folder: Path,
        lock: int,
        noted: head.HeadFile,
        found: opening.JournalContents,
        codec: Codec,
        segment_events: int,
        page_bytes: int,
    ) -> None:
        self._folder = folder
        self._codec = codec
        self.segment_events = segment_events
        """A new segment is created when the last one holds this many events."""
        self._page_bytes = page_bytes
        self._lock = lock
        self._noted = noted
        self._head = found.head
        self._paths = found.paths
        self._snapshots = found.snapshots
        self._mutex = Lock()
        self._retiring = Lock()
        self._saving = Lock()
        """Held from the writing of a snapshot to the deletion of older ones, which would delete one not yet listed."""
        self._closed = False
        self._unusable = ""
        self._unnoted: tuple[Position, list[bytes]] | None = None
        """Committed events that the head file does not cover yet, because the disk was full; and the head after them."""
        self._writer = segment.open_writer(self._paths[-1])
        self.cut = found.cut
        """The torn tail that was cut when the journal was opened; None: there was none."""
        self.notes = found.notes
        """Problems that were found when the journal was opened and did not prevent it, one sentence each."""

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        witness: Position | None = None,
        codec: Codec = CODEC,
        segment_events: int = SEGMENT_EVENTS,
        page_bytes: int = 4096,
    ) -> Self:
        """Open the journal in a folder for writing, or create one if there is none.

        `witness` is a position known from outside; a journal that does not contain it is refused as damaged.
        """
        with as_journal_errors(folder):
            closed_folder(folder, "folder of the journal", "storage.data_dir")
            close_files(folder)
            lock = opening.take_lock(folder)
        try:
            with as_journal_errors(folder):
                segment.remove_unfinished(folder)
                opening.begin_if_new(folder, page_bytes)
                noted = opening.open_head(folder)
            try:
                found = opening.examine(folder, noted.position, witness)
                journal = cls(folder, lock, noted, found, codec, segment_events, page_bytes)
                journal._note(journal._head)
            except BaseException:
                noted.close()
                raise
        except BaseException:
            os.close(lock)
            raise
        return journal

    @property
    def head(self) -> Position:
        """The position of the last event."""
        return self._head

    def encode(self, entry: JournalEntry) -> bytes:
        """Encode an event as it would be written."""
        return self._codec.encode(entry)

    def append(self, batch: Sequence[JournalEntry]) -> Position:
        """Encode these events and append them."""
        return self.append_encoded([self._codec.encode(entry) for entry in batch])

    def append_encoded(self, payloads: Sequence[bytes]) -> Position:
        """Write encoded events durably, all or none; return the new head."""
        with self._mutex:
            self._check_usable()
            if self._unnoted is not None:
                return self._note_again(payloads)
            if not payloads:
                return self._head
            if self._head.seq - segment.first_seq(self._paths[-1]) + 1 >= self.segment_events:
                self._begin_segment()
            digest = bytes.fromhex(self._head.hash)
            rows = [
                (seq, payload, digest := link(digest, payload))
                for seq, payload in enumerate(payloads, start=self._head.seq + 1)
            ]
            self._commit(rows)
            return self._reached(Position(rows[-1][0], digest.hex()), payloads)

    def read(self, after: int = 0) -> Iterator[Record]:
        """Iterate over the events after this number, up to the current head; each is checked against the chain."""
        with self._mutex:
            self._check_usable()
            paths, until = list(self._paths), self._head.seq
        if after + 1 < segment.first_seq(paths[0]):
            raise EventsRetired(after, segment.first_seq(paths[0]))
        return self._decoded(paths, after, until) if after < until else iter(())

    def position_at(self, seq: int) -> Position | None:
        """Return the position of this event, or None if it does not exist or was retired."""
        with self._mutex:
            self._check_usable()
            paths, reached = list(self._paths), self._head
        if seq == reached.seq:
            return reached
        if not segment.first_seq(paths[0]) - 1 <= seq < reached.seq:
            return None
        return segment.position_at(paths, seq)

    def verify(self) -> int:
        """Check every stored event, oldest first; return how many. Raises JournalDamaged at the first defect."""
        while True:
            with self._mutex:
                self._check_usable()
                paths, until = list(self._paths), self._head.seq
            try:
                return sum(1 for _ in self._decoded(paths, segment.first_seq(paths[0]) - 1, until))
            except EventsRetired:
                continue  # a segment was retired meanwhile, which is no defect

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Write a snapshot durably, and delete all but the two newest. Another thread may append meanwhile."""
        self._check_position(snapshot.position)
        with self._saving, as_journal_errors(self._folder):
            snapshots.write(self._folder, snapshot)
            self._keep_newest(snapshot.position)

    def adopt_snapshot(self, position: Position, folder: Path) -> None:
        """Move in the snapshot at this position, which another process wrote durably to `folder` (same file system)."""
        self._check_position(position)
        with self._saving, as_journal_errors(self._folder):
            snapshots.path_of(folder, position.seq).replace(snapshots.path_of(self._folder, position.seq))
            sync_folder(self._folder)
            self._keep_newest(position)

    @property
    def folder(self) -> Path:
        """The folder of the journal."""
        return self._folder

    def _check_position(self, position: Position) -> None:
        with self._mutex:
            self._check_usable()
            paths, reached = list(self._paths), self._head
        known = position.seq <= reached.seq and position.seq + 1 >= segment.first_seq(paths[0])
        if not known or segment.position_at(paths, position.seq) != position:
            raise JournalError(f"This journal was never at event {position.seq} with that hash; no snapshot was saved.")

    def _keep_newest(self, position: Position) -> None:
        with self._mutex:
            self._snapshots = sorted({*self._snapshots, position}, key=lambda each: each.seq)[-2:]
            kept = {snapshots.path_of(self._folder, each.seq) for each in self._snapshots}
        for path in self._folder.glob(snapshots.PATTERN):
            if path not in kept:
                path.unlink()

    def snapshot_path(self, seq: int) -> Path:
        """Return the path of the snapshot at this event, for messages."""
        return snapshots.path_of(self._folder, seq)

    def usable_snapshots(self) -> Iterator[Snapshot]:
        """Iterate over the intact snapshots whose following events are all stored here, newest first."""
        with self._mutex:
            self._check_usable()
            earliest, reached = segment.first_seq(self._paths[0]) - 1, self._head.seq
        return (
            snapshot
            for snapshot in opening.readable_snapshots(self._folder, notes=[])
            if earliest <= snapshot.position.seq <= reached
        )

    def retire(self, into: Path | None = None, audit: AuditRetention | None = None) -> int:
        """Delete or pack the segments that both snapshots cover, oldest first; return the number of events."""
        count = 0
        with self._retiring, as_journal_errors(self._folder):
            while path := self._oldest_covered():
                if into is not None:
                    retiring.pack(path, into)
                if audit is not None:
                    first = segment.first_seq(path)
                    retiring.keep_audit(segment.read_rows([path], first - 1), first, audit, self._codec)
                path.unlink()
                sync_folder(self._folder)
                with self._mutex:
                    self._paths.remove(path)
                    count += segment.first_seq(self._paths[0]) - segment.first_seq(path)
        return count

    def close(self) -> None:
        """Close the journal and release the lock. SQLite moves the log into the database, which leaves plain files."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            self._unusable = "The journal is closed. Open it again."
            try:
                with segment.writing(self._folder):
                    self._writer.close()
            finally:
                self._noted.close()
                os.close(self._lock)

    def _oldest_covered(self) -> Path | None:
        with self._mutex:
            self._check_usable()
            # The last segment is being written, so it stays even if the snapshots cover it.
            if len(self._snapshots) < 2 or len(self._paths) < 2:
                return None
            path, after = self._paths[:2]
            if segment.first_seq(after) - 1 > self._snapshots[0].seq:
                return None
        # A reader may prevent the checkpoint of its log; the segment is then retired the next time.
        return path if not wal.path_of(path).exists() or segment.checkpoint_log(path) else None

    def _decoded(self, paths: Sequence[Path], after: int, until: int) -> Iterator[Record]:
        decode, seq = self._codec.decode, after
        try:
            for seq, payload, _ in segment.read_rows(paths, after, until):
                yield decode(seq, payload)
        except JournalError as error:
            oldest = segment.first_seq(self._paths[0])
            if seq + 1 < oldest:  # the segment was retired during the read
                raise EventsRetired(seq, oldest) from error
            raise

    def _commit(self, rows: Sequence[segment.SegmentRow]) -> None:
        try:
            with segment.writing(self._folder):
                try:
                    segment.write(self._writer, rows)
                except BaseException:
                    if self._writer.in_transaction:
                        self._writer.execute("ROLLBACK")
                    raise
        except StorageFull:
            raise
        except BaseException as error:
            self._unusable = f"An earlier write failed ({error}). Open the journal again to know what was written."
            raise

    def _reached(self, position: Position, payloads: Sequence[bytes]) -> Position:
        """Write the new head to the head file; the events count only after that."""
        try:
            self._note(position)
        except StorageFull:
            self._unnoted = (position, list(payloads))
            raise
        self._head, self._unnoted = position, None
        return position

    def _note_again(self, payloads: Sequence[bytes]) -> Position:
        """Retry writing the head: the last call committed its events, but had no space for the head and failed.

        The caller must pass the same events again; they are not written twice.
        """
        assert self._unnoted is not None
        position, written = self._unnoted
        if written != list(payloads):
            self._unusable = "Other events were given than those that wait to be noted. Open the journal again."
            raise JournalError(self._unusable)
        return self._reached(position, payloads)

    def _note(self, position: Position) -> None:
        try:
            self._noted.note(position)
        except OSError as error:
            if error.errno in NO_SPACE:  # a copy-on-write file system needs space even to overwrite
                raise no_space(self._folder) from error
            self._unusable = f"The events up to {position.seq} are written, but the head file is not: {error}."
            raise JournalError(self._unusable) from error

    def _begin_segment(self) -> None:
        path = segment.create(self._folder, self._head, self._page_bytes)
        # The new segment exists from here on, and nothing may be written to the old one.
        try:
            writer = segment.open_writer(path)
        except StorageFull:
            raise  # the segment is empty; the next attempt creates it again under the same name
        except BaseException as error:
            self._unusable = f"A new segment could not be opened ({error}). Open the journal again."
            raise
        try:
            with segment.writing(self._folder):
                self._writer.close()
        except BaseException as error:
            self._unusable = f"A new segment could not be opened ({error}). Open the journal again."
            raise
        self._writer = writer
        self._paths.append(path)

    def _check_usable(self) -> None:
        if self._unusable:
            raise JournalError(self._unusable)


def read_folder(folder: Path, after: int | None = None, codec: Codec = CODEC) -> Iterator[Record]:
    """Read a journal, or a folder of retired events, without opening it for writing.

    `after` None: begin with the first stored event. No lock and no witness are needed: a live journal can be read up to
    the last commit.
    """
    paths = segment.segments_with_packed(folder)
    if not paths:
        raise NoJournal(f"There is no journal in {folder}.")
    for seq, payload, _ in segment.read_rows(paths, segment.first_seq(paths[0]) - 1 if after is None else after):
        yield codec.decode(seq, payload)
