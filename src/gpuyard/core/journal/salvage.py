"""The way out of a damaged journal: make a new one from everything that can still be read.

    python -m gpuyard.core.journal.salvage FOLDER NEW_FOLDER

The damaged folder is only read. The new journal holds the same events with the same numbers and hashes, up to the last
intact one. If some events before the newest usable snapshot are damaged, the new journal begins with that snapshot.
The result says how much is lost; missing events are never guessed.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gpuyard.core.domain.errors import JournalDamaged, JournalError
from gpuyard.core.domain.values import Value
from gpuyard.core.journal import snapshots
from gpuyard.core.journal.files import as_journal_errors
from gpuyard.core.journal.records import GENESIS, Position, Snapshot
from gpuyard.core.journal.stores import head, segment
from gpuyard.core.journal.stores.opening import begin
from gpuyard.core.journal.stores.sqlite import SqliteJournal

_BATCH = 1000


class SalvageResult(Value, frozen=True):
    """The result of salvaging a damaged journal."""

    after: int
    """The new journal begins after this event; 0: it begins with the first event."""
    head: Position
    why: str
    """The error that stopped reading; empty: all events were read."""
    witnessed: int | None
    """The last event of the old journal according to its head file, a lower bound; None: that file cannot be read."""

    def sentence(self) -> str:
        """Describe the result to the operator."""
        begins = f"begins with the snapshot at event {self.after}" if self.after else "begins with the first event"
        if self.witnessed is None:
            lost = "The number of lost events is unknown, because the head file cannot be read."
        else:
            lost = f"{max(0, self.witnessed - self.head.seq)} later events are lost."
        return " ".join(filter(None, [f"The new journal {begins} and ends at event {self.head.seq}.", lost, self.why]))


def salvage(folder: Path, new_folder: Path) -> SalvageResult:
    """Create a journal in `new_folder` from the intact events in `folder`. `new_folder` must be empty or not exist."""
    with as_journal_errors(new_folder):
        new_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if any(new_folder.iterdir()):
            raise JournalError(f"{new_folder} is not empty. Use a new folder.")
    whole = _Whole(segment.segments_in(folder))
    newest = _newest_snapshot(folder)
    from_first = whole.reach(GENESIS)
    if newest is None and from_first is None:
        raise JournalDamaged(
            f"Neither the first event nor a snapshot can be read in {folder}. Restore it from a backup."
        )

    after = newest.position if newest and (from_first is None or from_first < newest.position.seq) else GENESIS
    with as_journal_errors(new_folder):
        begin(new_folder, newest if after != GENESIS else None)
    journal = SqliteJournal.open(new_folder)
    try:
        for payloads in _batches(whole.payloads(after)):
            journal.append_encoded(payloads)
        if newest and after == GENESIS:
            with suppress(JournalError):  # the snapshot belongs to another journal
                journal.save_snapshot(newest)
        return SalvageResult(after.seq, journal.head, whole.why, _witnessed(folder))
    finally:
        journal.close()


class _Whole:
    """Reads a damaged journal up to the damage, and keeps the error in `why`."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self.why = ""

    def payloads(self, after: Position) -> Iterator[bytes]:
        self.why = ""
        try:
            if segment.position_at(self._paths, after.seq) == after:
                for _, payload, _ in segment.read_rows(self._paths, after.seq):
                    yield payload
        except JournalError as error:
            self.why = str(error).removesuffix(segment.WAY_OUT).strip()

    def reach(self, after: Position) -> int | None:
        """Return the last event that can be read after a position; None if the position itself cannot be read."""
        try:
            segment.position_at(self._paths, after.seq)
        except JournalError as error:
            self.why = str(error)
            return None
        return after.seq + sum(1 for _ in self.payloads(after))


def _newest_snapshot(folder: Path) -> Snapshot | None:
    for path in sorted(folder.glob(snapshots.PATTERN), reverse=True):
        with suppress(snapshots.SnapshotDamaged):
            return snapshots.read(path)
    return None


def _witnessed(folder: Path) -> int | None:
    try:
        file = head.HeadFile(folder / head.NAME)
    except OSError:
        return None
    file.close()
    return file.position.seq if file.position else None


def _batches(payloads: Iterator[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    for payload in payloads:
        batch.append(payload)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m gpuyard.core.journal.salvage", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("new_folder", type=Path)
    given = parser.parse_args()
    try:
        print(salvage(given.folder, given.new_folder).sentence())
    except JournalError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
