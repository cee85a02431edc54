"""The two ways in which a scheduler recovers, and the bytes by which states are compared."""

from collections.abc import Iterable

import msgspec

from gpuyard.core.engine import snapshot
from gpuyard.core.engine.apply import apply_recorded
from gpuyard.core.engine.state import State
from gpuyard.core.journal.port import Journal
from gpuyard.core.journal.records import Record


def document(state: State) -> bytes:
    return msgspec.json.encode(snapshot.dump(state))


def replayed(records: Iterable[Record], state: State | None = None) -> State:
    """All events, one after the other."""
    state = state or State()
    for record in records:
        apply_recorded(state, record.event, record.at)
    return state


def recovered(journal: Journal) -> State:
    """The newest snapshot, and the events behind it."""
    newest = next(journal.usable_snapshots(), None)
    if newest is None:
        return replayed(journal.read())
    return replayed(journal.read(newest.position.seq), snapshot.load(newest.state))
