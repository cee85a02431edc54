"""Effects of events about reservations: made, dropped."""

from gpuyard.core.domain import events
from gpuyard.core.domain.errors import UnknownEvent
from gpuyard.core.engine.apply.checks import open_task
from gpuyard.core.engine.state import State


def apply_reservation_made(state: State, event: events.ReservationMade) -> None:
    """Record a reservation; a claim takes its task out of the queue, since others are being stopped for it."""
    state.reserve(open_task(state, event.task, event), event, state.now)


def apply_reservation_dropped(state: State, event: events.ReservationDropped) -> None:
    """Remove a reservation; the task of a claim returns to the queue."""
    reservation = state.reservations.get(event.task)
    if reservation is None:
        raise UnknownEvent(f"ReservationDropped refers to task {event.task}, which has no reservation.")
    state.end_reservation(event.task)
    if reservation.claim:
        state.enqueue(reservation.task, state.now)
