"""How fast the journal is: events made durable per second, and how long it takes to be ready again.

All figures come from one run on one folder. The naive journal beside ours writes one line of JSON per event and syncs
the file each time, which is what "durable before anyone learns of it" costs without group commit. The disk decides the
figures for single events; give `--folder` to measure the disk that matters.

With `--postgres` the same events are also appended to a journal in that database, in turns with the one in SQLite; both
must be on the same disk to be compared. A schema is created for it and dropped at the end.

    .venv/bin/python benchmarks/journal.py [--events 1000000] [--folder DIR] [--postgres URL] [--json]
"""

import argparse
import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.events import AttemptEnded, AttemptStarted, Event, TaskEnded, TaskPlaced, TaskSubmitted
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.task import Resources, TaskSpec
from gpuyard.core.domain.values import NodeId, Outcome, TaskId, TaskStatus, TenantId
from gpuyard.core.journal.codec import CODEC
from gpuyard.core.journal.port import Journal
from gpuyard.core.journal.records import JournalEntry, Snapshot
from gpuyard.core.journal.stores.sqlite import SqliteJournal

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common.output import print_figures, report_progress

OPEN_TASKS = 10_000
TAIL_EVENTS = 1_000
_SINGLE = 2_000
_GROUPED = {100: 20_000, 1_000: 100_000}

Apply = Callable[[Event, float], None]


def run(
    records: int = 1_000_000,
    progress: Callable[[str], None] | None = None,
    apply: Apply | None = None,
    folder: Path | None = None,
    postgres: str | None = None,
) -> dict[str, Any]:
    """Measure, on a temporary folder inside `folder`, and return the figures by name.

    `apply` is called for every event that recovery reads; without it recovery is reading, checking and decoding.
    """
    say = progress or (lambda _: None)
    each = apply or (lambda _event, _at: None)
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-", dir=folder) as inside:
        here = Path(inside)
        alone = min(_SINGLE, records)
        say(f"{alone:,} events one by one")
        single, naive = _single_events_per_second(here, alone)
        grouped = {}
        for group, most in _GROUPED.items():
            events = max(group, min(most, records))
            say(f"{events:,} events, {group:,} a commit")
            grouped[group] = _events_per_second(here / f"grouped-{group}", events, group)
        beside = {} if postgres is None else _beside_postgres(here / "beside", postgres, records, say)
        say(f"writing a journal of {records:,} events")
        written = _write(here / "million", records)
        say("recovering from the journal")
        from_journal = _recovery_seconds(here / "million", each)
        _add_snapshot_and_tail(here / "million", records)
        say(f"recovering from a snapshot of {OPEN_TASKS:,} open tasks and {TAIL_EVENTS:,} events after it")
        from_snapshot = _recovery_seconds(here / "million", each)
    return {
        "events": records,
        "events_per_s_single": round(single),
        **{f"events_per_s_grouped_{group}": round(rate) for group, rate in grouped.items()},
        "naive_events_per_s_single": round(naive),
        **{f"grouped_{group}_over_naive": round(rate / naive, 1) for group, rate in grouped.items()},
        **beside,
        "recovery_journal_s": round(from_journal, 3),
        "recovery_journal_events_per_s": round(records / from_journal),
        "recovery_snapshot_s": round(from_snapshot, 3),
        "bytes_per_event": round(written / records, 1),
        "sqlite_version": sqlite3.sqlite_version,
    }


def _events_per_second(folder: Path, events: int, group: int) -> float:
    source = lives()
    batches = [list(islice(source, group)) for _ in range(events // group)]
    journal = SqliteJournal.open(folder)
    began = perf_counter()
    for batch in batches:
        journal.append(batch)
    took = perf_counter() - began
    journal.close()
    return events / took


def _single_events_per_second(folder: Path, events: int) -> tuple[float, float]:
    """Ours and the naive one, in turns, so that a disk that is slow for a while is slow for both."""
    entries = list(islice(lives(), events))
    journal = SqliteJournal.open(folder / "single")
    ours = naive = 0.0
    with (folder / "naive").open("wb") as file:
        for first in range(0, events, 100):
            began = perf_counter()
            for entry in entries[first : first + 100]:
                journal.append([entry])
            between = perf_counter()
            for entry in entries[first : first + 100]:
                file.write(CODEC.encode(entry) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            ours += between - began
            naive += perf_counter() - between
    journal.close()
    return events / ours, events / naive


def _beside_postgres(folder: Path, url: str, records: int, say: Callable[[str], None]) -> dict[str, float]:
    """Append the same batches to SQLite and to PostgreSQL in turns; return rates, and times of single appends."""
    import psycopg

    from gpuyard.core.journal.stores.postgres import PostgresJournal
    from gpuyard.core.journal.stores.postgres_connection import DatabaseAddress

    figures: dict[str, float] = {}
    schema = f"gpuyard_benchmark_{os.getpid()}"
    place = f"{url}{'&' if '?' in url else '?'}schema={schema}"
    try:
        for group, most in {1: _SINGLE, **_GROUPED}.items():
            events = max(group, min(most, records))
            say(f"{events:,} events, {group:,} a commit, in SQLite and PostgreSQL")
            source = lives()
            batches = [list(islice(source, group)) for _ in range(events // group)]
            journals: dict[str, Journal] = {
                "sqlite": SqliteJournal.open(folder / str(group)),
                "postgres": PostgresJournal.open(place),
            }
            took = _in_turns(journals, batches)
            for name, seconds in took.items():
                figures[f"{name}_beside_events_per_s_{group}"] = round(events / sum(seconds))
                figures[f"{name}_beside_append_ms_p50_{group}"] = round(1000 * sorted(seconds)[len(seconds) // 2], 3)
                figures[f"{name}_beside_append_ms_p99_{group}"] = round(
                    1000 * sorted(seconds)[len(seconds) * 99 // 100], 3
                )
            for journal in journals.values():
                journal.close()
    finally:
        with psycopg.connect(DatabaseAddress.parse(url).conninfo) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())
    return figures


def _in_turns(journals: dict[str, Journal], batches: list[list[JournalEntry]]) -> dict[str, list[float]]:
    """Append each batch to each journal, some of them at a time; return the seconds of every append."""
    took: dict[str, list[float]] = {name: [] for name in journals}
    turn = max(1, len(batches) // 20)
    for first in range(0, len(batches), turn):
        for name, journal in journals.items():
            for batch in batches[first : first + turn]:
                began = perf_counter()
                journal.append(batch)
                took[name].append(perf_counter() - began)
    return took


def _write(folder: Path, events: int) -> int:
    """Write a journal and return its size in bytes."""
    journal = SqliteJournal.open(folder)
    source = lives()
    while batch := list(islice(source, min(1_000, events - journal.head.seq))):
        journal.append(batch)
    journal.close()
    return sum(path.stat().st_size for path in folder.iterdir())


def _add_snapshot_and_tail(folder: Path, events: int) -> None:
    journal = SqliteJournal.open(folder)
    journal.save_snapshot(Snapshot(journal.head, state_document()))
    journal.append(list(islice(lives(first=events), TAIL_EVENTS)))
    journal.close()


def _recovery_seconds(folder: Path, apply: Apply) -> float:
    """What a scheduler does before it is ready: open and check, load the newest snapshot, apply the events after it."""
    began = perf_counter()
    journal = SqliteJournal.open(folder)
    snapshot = next(journal.usable_snapshots(), None)
    for record in journal.read(snapshot.position.seq if snapshot else 0):
        apply(record.event, record.at)
    took = perf_counter() - began
    journal.close()
    return took


def lives(first: int = 1) -> Iterator[JournalEntry]:
    """Events as a busy yard makes them: tasks that are submitted, placed, started and ended, without end."""
    for number in count(first):
        task, node = TaskId(number), NodeId(f"node-{number % 200:03d}")
        at = 1_700_000_000.0 + number / 8
        yield JournalEntry(at, TaskSubmitted(task, _spec(number)), f"user-{number % 40}")
        yield JournalEntry(at, TaskPlaced(task, 1, _placement(node, number)))
        yield JournalEntry(at + 0.25, AttemptStarted(task, 1), node)
        yield JournalEntry(at + 60.5, AttemptEnded(task, 1, Outcome.SUCCEEDED, 0), node)
        yield JournalEntry(at + 60.5, TaskEnded(task, TaskStatus.SUCCESS, Cause(CauseKind.SUCCEEDED)))


def state_document() -> dict[str, Any]:
    """A document as large as the state of an engine with many open tasks."""
    return {
        "tasks": [
            {
                "id": number,
                "phase": "running",
                "submitted_at": 1_700_000_000.0 + number,
                "attempt": 1,
                "started_at": 1_700_000_100.0 + number,
                "spec": msgspec.to_builtins(_spec(number)),
                "placement": msgspec.to_builtins(_placement(NodeId(f"node-{number % 200:03d}"), number)),
            }
            for number in range(OPEN_TASKS)
        ]
    }


def _spec(number: int) -> TaskSpec:
    return TaskSpec(
        TenantId(f"tenant-{number % 10}"),
        Resources(gpus=1 + number % 4, cpus=8, memory_mib=65_536),
        name=f"train-{number}",
        user=f"user-{number % 40}",
        command=("python", "train.py", "--seed", str(number)),
        timeout_seconds=86_400.0,
    )


def _placement(node: NodeId, number: int) -> Placement:
    return Placement((Slice(node, tuple(range(1 + number % 4)), cpus=8, memory_mib=65_536),))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000, help="events in the journal that is recovered")
    parser.add_argument("--folder", type=Path, help="measure the disk under this folder (default: temporary files)")
    parser.add_argument("--postgres", metavar="URL", help="append to a journal in this database as well")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    asked = parser.parse_args()
    if asked.events < 1:
        parser.error("--events must be at least 1")
    print_figures(run(asked.events, report_progress, folder=asked.folder, postgres=asked.postgres), as_json=asked.json)


if __name__ == "__main__":
    main()
