"""Effects of events about bookings. All waiting tasks are tried again: bookings change rarely, and change much."""

from msgspec.structs import replace

from gpuyard.core.domain import events
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.errors import UnknownEvent
from gpuyard.core.engine.state import BookingRecord, State


def apply_booking_made(state: State, event: events.BookingMade) -> None:
    """Record a booking."""
    if event.booking.id <= state.last_booking:
        raise UnknownEvent(f"BookingMade refers to booking {event.booking.id}, a number that was used before.")
    state.last_booking = event.booking.id
    state.add_booking(BookingRecord(event.booking))
    _changed(state, event.booking.id)


def apply_booking_moved(state: State, event: events.BookingMoved) -> None:
    """Let a booking use other GPUs."""
    record = _record(state, event.booking, event)
    record.booking = replace(record.booking, parts=event.parts)
    state.place_bookings()
    _changed(state, event.booking)


def apply_booking_began(state: State, event: events.BookingBegan) -> None:
    """Hold the GPUs of a booking for its tasks."""
    record = _record(state, event.booking, event)
    record.begun = True
    record.late, record.cordoned = event.late, event.cordoned
    _changed(state, event.booking)


def apply_booking_ended(state: State, event: events.BookingEnded) -> None:
    """Remove a booking; the tasks that name it are tasks like all others from now on."""
    _record(state, event.booking, event)
    del state.bookings[event.booking]
    state.place_bookings()
    _changed(state, event.booking)


def _record(state: State, booking: int, event: events.Event) -> BookingRecord:
    record = state.bookings.get(booking)
    if record is None:
        raise UnknownEvent(f"{events.name_of(event)} refers to booking {booking}, which is unknown.")
    return record


def _changed(state: State, booking: int) -> None:
    cause = Cause(CauseKind.BOOKING_ENDED, booking=booking)
    state.queue.everything_changed(cause)
    state.queue.order_changed(cause)
    if state.may_preempt():
        state.queue.retry(state.queue.lines.values(), cause)
