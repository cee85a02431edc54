"""The audit trail survives the segment it was written to."""

import gzip
import json
from pathlib import Path

from gpuyard.core.domain.events import AccessChanged, TaskHeld
from gpuyard.core.domain.values import TaskId
from gpuyard.core.journal.port import AuditRetention
from gpuyard.core.journal.records import JournalEntry, Snapshot
from gpuyard.core.journal.stores.sqlite import SqliteJournal


def test_events_with_a_user_are_kept_when_their_segment_is_retired(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path / "journal", segment_events=3)
    audit = AuditRetention(tmp_path / "audit", lambda record: not record.by.startswith("agent:"))
    for number in range(12):
        by = ("alice@10.0.0.7", "agent:node-1", "")[number % 3]
        event = AccessChanged("logged_in", "alice") if number == 3 else TaskHeld(TaskId(number))
        head = journal.append([JournalEntry(float(number), event, by)])
        journal.save_snapshot(Snapshot(head, {}))

    assert journal.retire(audit=audit) == 9
    kept = sorted((tmp_path / "audit").iterdir())
    assert [path.name for path in kept] == [f"audit-{first:012d}.jsonl.gz" for first in (1, 4, 7)]
    lines = [json.loads(line) for path in kept for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert [(line["seq"], line["by"]) for line in lines] == [(seq, "alice@10.0.0.7") for seq in (1, 4, 7)]
    assert lines[1]["fact"]["type"] == "AccessChanged"
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "audit", *kept)} == {0}
    journal.close()
