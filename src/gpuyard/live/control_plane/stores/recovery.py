"""Recover a scheduler: load the newest snapshot and apply the events since."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import structlog

from gpuyard.core.domain.commands import CreateCluster
from gpuyard.core.domain.errors import EventsRetired
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.engine import snapshot as engine_snapshot
from gpuyard.core.engine.apply import apply_recorded
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.scheduling.advice import Advisor
from gpuyard.core.engine.state import State
from gpuyard.core.journal.port import Journal
from gpuyard.core.journal.records import JournalEntry, Position, Snapshot
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.live.control_plane.views import Views

log = structlog.get_logger()


def open_journal(folder: Path) -> SqliteJournal:
    """Open the journal of a data folder; problems that were found are logged."""
    journal = SqliteJournal.open(folder)
    if journal.cut is not None:
        log.warning("journal_tail_cut", message=str(journal.cut))
    for note in journal.notes:
        log.warning("journal_checked", message=note)
    return journal


def recover(journal: Journal, advisor: Advisor | None = None) -> tuple[Engine, Views]:
    """Return engine and views as of the last committed event. Ended tasks in the views must then be archived."""
    state, views, after = _from_snapshots(journal)
    for record in journal.read(after):
        apply_recorded(state, record.event, record.at)
        views.apply(record)
    return Engine(state, advisor), views


def restored(snapshot: Snapshot | None) -> tuple[State, Views, int]:
    """Return the state and views of a snapshot and the number of its last event; empty ones without a snapshot."""
    state, views, after = State(), Views(), 0
    if snapshot is not None:
        state = engine_snapshot.load(snapshot.state["engine"])
        views.load(snapshot.state["tasks"], state.index.hosts.values(), state.origin)
        after = views.last_seq = views.snapshot_seq = snapshot.position.seq
    return state, views, after


def _from_snapshots(journal: Journal) -> tuple[State, Views, int]:
    """Load the newest snapshot that can be loaded; return its state, views and last event.

    If an intact snapshot cannot be loaded, because of a bug or because another version wrote it, the older one is used,
    then all events if they are still there.
    """
    failed: Exception | None = None
    for snapshot in journal.usable_snapshots():
        try:
            return restored(snapshot)
        except Exception as error:  # whatever the cause, an older snapshot may load
            log.error("snapshot_rejected", seq=snapshot.position.seq, exc_info=error)
            failed = failed or error
    try:
        journal.read(0)
    except EventsRetired:
        if failed is not None:
            raise failed from None
        raise
    return State(), Views(), 0


def found_cluster(engine: Engine, journal: Journal, views: Views, now: float) -> None:
    """Give a new cluster its name."""
    if engine.state.cluster_id:
        return
    events = engine.handle(CreateCluster(uuid4().hex[:12]), now)
    assert not isinstance(events, Refusal)
    entries = [JournalEntry(engine.state.now, event) for event in events]
    head = journal.append(entries)
    for record in journal.read(head.seq - len(entries)):
        views.apply(record)


def take_snapshot(position: Position, engine: Engine, views: Views) -> Snapshot:
    """Return a snapshot of the current state. Engine and views must be at this position."""
    return Snapshot(position, snapshot_content(engine.state, views))


def snapshot_content(state: State, views: Views) -> dict[str, Any]:
    """Return the contents of a snapshot."""
    return {"engine": engine_snapshot.dump(state), "tasks": views.dump()}
