"""What is booked when nodes are promised to a task, and when the promise is taken back."""

from gpuyard.core.domain import events as fact
from gpuyard.core.domain.errors import UnknownFact
from gpuyard.core.engine.folds.fits import known
from gpuyard.core.engine.state import State


def made(state: State, event: fact.ReservationMade) -> None:
    """Nodes are promised to a task; a claim takes it out of the queue, since others are stopped for it."""
    state.reserve(known(state, event.task, event), event, state.now)


def dropped(state: State, event: fact.ReservationDropped) -> None:
    """The promise counts no more."""
    reservation = state.reservations.get(event.task)
    if reservation is None:
        raise UnknownFact(f"ReservationDropped speaks of task {event.task}, which holds no reservation.")
    state.end_reservation(event.task)
    if reservation.claim:
        state.enqueue(reservation.task, state.now)
