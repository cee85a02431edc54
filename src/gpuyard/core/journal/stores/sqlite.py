"""A journal in a folder, kept in SQLite.

    lock                            held by the one process that writes
    head                            how far the journal goes at least (head.py)
    facts-000000000001.sqlite       the first segment, full: never written again (segment.py)
    facts-000000065537.sqlite       the last segment, which grows
    facts-000000065537.sqlite-wal   its write-ahead log, while it is open or after a crash
    snapshot-000000060000.json      the older snapshot (gpuyard/core/journal/snapshots.py)
    snapshot-000000070000.json      the newest

Only `append` uses the connection that writes. Whatever reads has a connection of its own, so reading, saving snapshots
and retiring may go on in other threads. How a folder is judged before it is opened stands in opening.py.
"""

import gzip
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Self

import msgspec

from gpuyard.core.domain.errors import FactsRetired, JournalError, NoJournal, StorageFull
from gpuyard.core.journal import snapshots
from gpuyard.core.journal.chain import link
from gpuyard.core.journal.codec import CODEC, Codec
from gpuyard.core.journal.files import as_journal_errors, no_space
from gpuyard.core.journal.folders import close_files, closed_folder
from gpuyard.core.journal.port import AuditRetention
from gpuyard.core.journal.records import JournalEntry, Position, Record, Snapshot
from gpuyard.core.journal.stores import head, opening, segment, wal
from gpuyard.system.files import NO_SPACE, replace_file, replacing, sync_folder

SEGMENT_FACTS = 65_536
"""A segment of some 15 MB: small enough to retire often, large enough that those of a year are no crowd."""
_BY = b',"by":"'
"""In the payload of every fact that somebody asked for, and of few others."""
_GZIP_LEVEL = 6
"""A fifth of the size, in a fifth of a second."""


class SqliteJournal:
    """See gpuyard.core.journal.port.Journal. Made by `open`."""

    def __init__(
        self,
        folder: Path,
        lock: int,
        noted: head.HeadFile,
        found: opening.JournalContents,
        codec: Codec,
        segment_facts: int,
        page_bytes: int,
    ) -> None:
        self._folder = folder
        self._codec = codec
        self.segment_facts = segment_facts
        """A new segment is begun when the last one holds so many facts."""
        self._page_bytes = page_bytes
        self._lock = lock
        self._noted = noted
        self._head = found.head
        self._paths = found.paths
        self._snapshots = found.snapshots
        self._mutex = Lock()
        self._retiring = Lock()
        self._closed = False
        self._unusable = ""
        self._unnoted: tuple[Position, list[bytes]] | None = None
        """Facts that are written and do not count yet, with how far the journal goes with them."""
        self._writer = segment.open_writer(self._paths[-1])
        self.cut = found.cut
        """The torn tail that was cut when the journal was opened."""
        self.notes = found.notes
        """What was noticed when the journal was opened and is not as it should be, a sentence each."""

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        witness: Position | None = None,
        codec: Codec = CODEC,
        segment_facts: int = SEGMENT_FACTS,
        page_bytes: int = 4096,
    ) -> Self:
        """Open the journal in a folder for writing, or begin one there if there is none.

        `witness` is a position that somebody else has seen; a journal that does not hold it is refused.
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
                journal = cls(folder, lock, noted, found, codec, segment_facts, page_bytes)
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
        """How far the journal goes."""
        return self._head

    def encode(self, entry: JournalEntry) -> bytes:
        """A fact as it would be written."""
        return self._codec.encode(entry)

    def append(self, batch: Sequence[JournalEntry]) -> Position:
        """Encode these facts and append them."""
        return self.append_encoded([self._codec.encode(entry) for entry in batch])

    def append_encoded(self, payloads: Sequence[bytes]) -> Position:
        """Write facts durably, all or none."""
        with self._mutex:
            self._check_usable()
            if self._unnoted is not None:
                return self._note_again(payloads)
            if not payloads:
                return self._head
            if self._head.seq - segment.first_seq(self._paths[-1]) + 1 >= self.segment_facts:
                self._begin_segment()
            digest = bytes.fromhex(self._head.hash)
            rows = [
                (seq, payload, digest := link(digest, payload))
                for seq, payload in enumerate(payloads, start=self._head.seq + 1)
            ]
            self._commit(rows)
            return self._reached(Position(rows[-1][0], digest.hex()), payloads)

    def read(self, after: int = 0) -> Iterator[Record]:
        """The facts after this number, up to the head of this moment, each checked against the chain."""
        with self._mutex:
            self._check_usable()
            paths, until = list(self._paths), self._head.seq
        if after + 1 < segment.first_seq(paths[0]):
            raise FactsRetired(after, segment.first_seq(paths[0]))
        return self._decoded(paths, after, until) if after < until else iter(())

    def position_at(self, seq: int) -> Position | None:
        """The place after this fact; none: it was never there, or is not any more."""
        with self._mutex:
            self._check_usable()
            paths, reached = list(self._paths), self._head
        if seq == reached.seq:
            return reached
        if not segment.first_seq(paths[0]) - 1 <= seq < reached.seq:
            return None
        return segment.position_at(paths, seq)

    def verify(self) -> int:
        """Check every fact that is there, the oldest segment first; return how many. Raises what is wrong."""
        return sum(1 for _ in self.read(segment.first_seq(self._paths[0]) - 1))

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Write it durably, and drop all but the two newest. Safe beside `append`, in another thread."""
        self._check_position(snapshot.position)
        with as_journal_errors(self._folder):
            snapshots.write(self._folder, snapshot)
            self._keep_newest(snapshot.position)

    def adopt_snapshot(self, position: Position, folder: Path) -> None:
        """Take over the snapshot at this position that another process wrote durably into a folder beside."""
        self._check_position(position)
        with as_journal_errors(self._folder):
            snapshots.path_of(folder, position.seq).replace(snapshots.path_of(self._folder, position.seq))
            sync_folder(self._folder)
            self._keep_newest(position)

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        return self._folder

    def _check_position(self, position: Position) -> None:
        with self._mutex:
            self._check_usable()
            paths, reached = list(self._paths), self._head
        known = position.seq <= reached.seq and position.seq + 1 >= segment.first_seq(paths[0])
        if not known or segment.position_at(paths, position.seq) != position:
            raise JournalError(f"This journal was never at fact {position.seq} with that hash; no snapshot was saved.")

    def _keep_newest(self, position: Position) -> None:
        with self._mutex:
            self._snapshots = sorted({*self._snapshots, position}, key=lambda each: each.seq)[-2:]
        kept = {snapshots.path_of(self._folder, each.seq) for each in self._snapshots}
        for path in self._folder.glob(snapshots.PATTERN):
            if path not in kept:
                path.unlink()

    def snapshot_path(self, seq: int) -> Path:
        """The file of a snapshot, for people."""
        return snapshots.path_of(self._folder, seq)

    def usable_snapshots(self) -> Iterator[Snapshot]:
        """All snapshots that are whole and that the facts here go on from, the newest first."""
        with self._mutex:
            self._check_usable()
            earliest, reached = segment.first_seq(self._paths[0]) - 1, self._head.seq
        return (
            snapshot
            for snapshot in opening.readable_snapshots(self._folder, notes=[])
            if earliest <= snapshot.position.seq <= reached
        )

    def retire(self, into: Path | None = None, audit: AuditRetention | None = None) -> int:
        """Drop or pack the segments that both snapshots cover, oldest first."""
        count = 0
        with self._retiring, as_journal_errors(self._folder):
            while path := self._oldest_covered():
                if into is not None:
                    _pack(path, into)
                if audit is not None:
                    self._keep(path, audit)
                path.unlink()
                sync_folder(self._folder)
                with self._mutex:
                    self._paths.remove(path)
                    count += segment.first_seq(self._paths[0]) - segment.first_seq(path)
        return count

    def close(self) -> None:
        """Leave plain files: SQLite moves the log into the database. The lock is free then."""
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

    def _keep(self, path: Path, audit: AuditRetention) -> None:
        """Write the facts that must outlive their segment as lines of JSON, as `gpuyard.core.journal.read` prints them."""
        decode, encode = self._codec.decode, msgspec.json.Encoder().encode
        first = segment.first_seq(path)
        with as_journal_errors(audit.folder):
            closed_folder(audit.folder, "folder of the audit", "storage.data_dir")
            records = (
                decode(seq, payload) for seq, payload, _ in segment.read_rows([path], first - 1) if _BY in payload
            )
            lines = [encode(record) + b"\n" for record in records if audit.wanted(record)]
            if lines:
                kept = gzip.compress(b"".join(lines), _GZIP_LEVEL)
                replace_file(audit.folder / f"audit-{first:012d}.jsonl.gz", kept)

    def _oldest_covered(self) -> Path | None:
        with self._mutex:
            self._check_usable()
            # The last segment stays, whoever covers it: it is being written.
            if len(self._snapshots) < 2 or len(self._paths) < 2:
                return None
            path, after = self._paths[:2]
            if segment.first_seq(after) - 1 > self._snapshots[0].seq:
                return None
        # A reader may have kept its log from being absorbed; then the segment goes the next time.
        return path if not wal.path_of(path).exists() or segment.checkpoint_log(path) else None

    def _decoded(self, paths: Sequence[Path], after: int, until: int) -> Iterator[Record]:
        decode, seq = self._codec.decode, after
        try:
            for seq, payload, _ in segment.read_rows(paths, after, until):
                yield decode(seq, payload)
        except JournalError as error:
            oldest = segment.first_seq(self._paths[0])
            if seq + 1 < oldest:  # retired while it was being read
                raise FactsRetired(seq, oldest) from error
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
        """Note how far the journal goes now; only then does it count."""
        try:
            self._note(position)
        except StorageFull:
            self._unnoted = (position, list(payloads))
            raise
        self._head, self._unnoted = position, None
        return position

    def _note_again(self, payloads: Sequence[bytes]) -> Position:
        """The facts of the last call are written, but there was no space to note it. Nobody has heard of them."""
        assert self._unnoted is not None
        position, written = self._unnoted
        if written != list(payloads):
            self._unusable = "Other facts were given than those that wait to be noted. Open the journal again."
            raise JournalError(self._unusable)
        return self._reached(position, payloads)

    def _note(self, position: Position) -> None:
        try:
            self._noted.note(position)
        except OSError as error:
            if error.errno in NO_SPACE:  # a file system that copies on write needs space for this, too
                raise no_space(self._folder) from error
            self._unusable = f"The facts up to {position.seq} are written, but the head file is not: {error}."
            raise JournalError(self._unusable) from error

    def _begin_segment(self) -> None:
        path = segment.create(self._folder, self._head, self._page_bytes)
        # From here on the new segment is there, and nothing more may go into the old one.
        try:
            writer = segment.open_writer(path)
        except StorageFull:
            raise  # the next attempt makes it again, under the same name: nothing is in it
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
    """Read a journal, or a folder of retired facts, without opening it for writing; by default from the first that is there.

    It needs no lock and no witness: a live journal can be read too, up to what is committed.
    """
    paths = segment.segments_with_packed(folder)
    if not paths:
        raise NoJournal(f"There is no journal in {folder}.")
    for seq, payload, _ in segment.read_rows(paths, segment.first_seq(paths[0]) - 1 if after is None else after):
        yield codec.decode(seq, payload)


def _pack(path: Path, folder: Path) -> None:
    """Put a full segment into a folder, compressed; whoever is killed here begins again."""
    packed = folder / (path.name + segment.PACKED)
    with as_journal_errors(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(packed) as new, path.open("rb") as plain, gzip.open(new, "wb", _GZIP_LEVEL) as file:
            shutil.copyfileobj(plain, file)
