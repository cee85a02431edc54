"""The journal that tests use for a disk without space."""

from pathlib import Path

import pytest

from gpuyard.core.domain.errors import StorageFull
from gpuyard.core.domain.events import TaskHeld
from gpuyard.core.domain.values import TaskId
from gpuyard.core.journal.records import JournalEntry
from gpuyard.testing import FullJournal


def test_a_full_journal_writes_nothing_and_the_same_append_works_when_there_is_space(tmp_path: Path) -> None:
    journal = FullJournal.open(tmp_path)
    batch = [JournalEntry(1.0, TaskHeld(TaskId(7)), "ada")]
    before = journal.head
    journal.full = True
    for _ in range(2):
        with pytest.raises(StorageFull):
            journal.append(batch)
    assert (journal.head, list(journal.read()), journal.refused) == (before, [], 2)
    journal.full = False
    assert journal.append(batch).seq == 1
    assert [record.event for record in journal.read()] == [TaskHeld(TaskId(7))]
    journal.close()
