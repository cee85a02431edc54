"""Effects of facts about reservations: made, dropped."""

from gpuyard.core.domain import events as fact
from gpuyard.core.domain.errors import UnknownFact
from gpuyard.core.engine.folds.fits import known
from gpuyard.core.engine.state import State


def made(state: State, event: fact.ReservationMade) -> None:
    """Record a reservation; a claim takes its task out of the queue, since others are being stopped for it."""
    state.reserve(known(state, event.task, event), event, state.now)


def dropped(state: State, event: fact.ReservationDropped) -> None:
    """Remove a reservation; the task of a claim returns to the queue."""
    reservation = state.reservations.get(event.task)
    if reservation is None:
        raise UnknownFact(f"ReservationDropped speaks of task {event.task}, which holds no reservation.")
    state.end_reservation(event.task)
    if reservation.claim:
        state.enqueue(reservation.task, state.now)
