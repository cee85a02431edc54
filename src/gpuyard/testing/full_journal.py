"""A journal whose disk is full for as long as a test says so."""

import errno
from collections.abc import Sequence

from gpuyard.core.domain.errors import StorageFull
from gpuyard.core.journal.records import Position
from gpuyard.core.journal.stores.sqlite import SqliteJournal


class FullJournal(SqliteJournal):
    """A file journal that refuses appends while `full` is true: nothing is written, as on a real full disk.

        journal = FullJournal.open(folder)
        journal.full = True

    `refused` counts the refusals, so that a test can wait for the next try instead of sleeping.
    """

    full: bool = False
    refused: int = 0

    def append_encoded(self, payloads: Sequence[bytes]) -> Position:
        """Append, or raise `StorageFull` as a full disk does."""
        if self.full:
            self.refused += 1
            raise StorageFull from OSError(errno.ENOSPC, "No space left on device")
        return super().append_encoded(payloads)
