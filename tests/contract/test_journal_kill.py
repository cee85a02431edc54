"""A writer killed at any instant loses nothing that it had acknowledged."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard.core.domain.events import TaskHeld
from gpuyard.core.domain.values import TaskId
from gpuyard.core.journal.records import Position
from gpuyard.core.journal.stores.sqlite import SqliteJournal

WRITER = """
import sys
from pathlib import Path
from gpuyard.core.domain.events import TaskHeld
from gpuyard.core.journal.records import JournalEntry, Snapshot
from gpuyard.core.journal.stores.sqlite import SqliteJournal

journal = SqliteJournal.open(Path(sys.argv[1]), segment_events=40)
while True:
    first = journal.head.seq + 1
    head = journal.append([JournalEntry(float(seq), TaskHeld(seq)) for seq in range(first, first + 1 + first % 7)])
    print(head.seq, head.hash, flush=True)
    if head.seq % 5 == 0:
        journal.save_snapshot(Snapshot(head, {"last": head.seq}))
        journal.retire()
"""


@pytest.mark.parametrize("seed", range(10))
def test_everything_acknowledged_before_a_kill_is_there_after_it(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(2):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(chance.randrange(1, 120))]
        writer.send_signal(signal.SIGKILL)
        # What was still in the pipe was acknowledged too; a line that was cut was not.
        lines += [line for line in writer.communicate()[0].splitlines(keepends=True) if line.endswith("\n")]
        seq, digest = lines[-1].split()

        journal = SqliteJournal.open(tmp_path, witness=Position(int(seq), digest))
        assert journal.head.seq >= int(seq)
        snapshot = next(journal.usable_snapshots(), None)
        after = snapshot.position.seq if snapshot else 0
        assert snapshot is None or snapshot.state == {"last": after}
        records = list(journal.read(after))
        assert [record.seq for record in records] == list(range(after + 1, journal.head.seq + 1))
        assert all(record.event == TaskHeld(TaskId(record.seq)) and record.at == record.seq for record in records)
        journal.verify()
        journal.close()
