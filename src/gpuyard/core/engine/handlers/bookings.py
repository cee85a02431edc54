"""Commands about bookings: make one, cancel one."""

from math import isfinite

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.booking import BookedGpus, Booking
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.engine.ledger import Ledger
from gpuyard.core.engine.lifecycle.bookings import drop_reservations_on, end_booking
from gpuyard.core.engine.scheduling.bookings import choose_gpus, maintenance_parts
from gpuyard.core.engine.state import BookingRecord, State

DAY = 86400.0
MOST_BOOKINGS = 1000
"""Maximum number of bookings that have not ended: each costs time in every decision about its nodes."""
MOST_OF_TENANT = 500
"""Maximum number of those of one tenant, maintenance apart: one tenant leaves bookings to others."""


def make_booking(ledger: Ledger, asked: command.MakeBooking) -> Refusal | None:
    """Book GPUs, or close nodes for maintenance."""
    state = ledger.state
    refusal = _wrong(state, asked)
    if refusal is not None:
        return refusal
    begins_at = max(asked.begins_at, state.now)
    parts = _parts(state, asked, begins_at)
    if isinstance(parts, Refusal):
        return parts
    booking = Booking(
        state.last_booking + 1, asked.tenant, begins_at, asked.ends_at, parts, asked.user, asked.models, asked.nodes,
        asked.maintenance, asked.preempt, asked.note,
    )  # fmt: skip
    ledger.emit(events.BookingMade(booking))
    drop_reservations_on(ledger, state.bookings[booking.id])
    return None


def _wrong(state: State, asked: command.MakeBooking) -> Refusal | None:
    """Refuse a request that is wrong in itself, or above a limit."""
    for field in ("begins_at", "ends_at"):
        if not isfinite(getattr(asked, field)):
            return no.NotFinite(field)
    if asked.ends_at <= max(asked.begins_at, state.now):
        return no.BookingTimes()
    settings, begins_at = state.settings, max(asked.begins_at, state.now)
    if begins_at - state.now > settings.book_ahead_seconds:
        return no.BookingTooFar((begins_at - state.now) / DAY, settings.book_ahead_seconds / DAY)
    if asked.ends_at - begins_at > settings.longest_booking_seconds:
        return no.BookingTooLong((asked.ends_at - begins_at) / DAY, settings.longest_booking_seconds / DAY)
    if not asked.tenant:
        return no.EmptyName("tenant")
    for node in asked.nodes:
        if node not in state.index.hosts:
            return no.UnknownNode(node)
    if len(state.bookings) >= MOST_BOOKINGS:
        return no.TooManyBookings(MOST_BOOKINGS)
    if asked.maintenance:
        return None if asked.nodes else no.MaintenanceWithoutNodes()
    if asked.gpus <= 0:
        return no.NotPositive("gpus", asked.gpus)
    its = [one for one in state.bookings.values() if one.booking.tenant == asked.tenant and not one.booking.maintenance]
    if len(its) >= MOST_OF_TENANT:
        return no.TooManyBookings(MOST_OF_TENANT)
    usage = state.tenants.get(asked.tenant)
    limit = (usage.tenant if usage else state.default_tenant).max_gpus
    gpus = asked.gpus + _most_booked(its, max(asked.begins_at, state.now), asked.ends_at)
    return no.BookingAboveQuota(asked.tenant, gpus, limit) if limit is not None and gpus > limit else None


def _most_booked(records: list[BookingRecord], begins_at: float, ends_at: float) -> int:
    """Return the most GPUs that bookings hold at one time between two instants."""
    there = [record.booking for record in records if record.overlaps(begins_at, ends_at)]
    instants = {begins_at, *(booking.begins_at for booking in there if booking.begins_at > begins_at)}
    return max(
        sum(booking.gpus for booking in there if booking.begins_at <= instant < booking.ends_at) for instant in instants
    )


def _parts(state: State, asked: command.MakeBooking, begins_at: float) -> tuple[BookedGpus, ...] | Refusal:
    """Return the GPUs of a booking, or all GPUs of the nodes for maintenance."""
    if not asked.maintenance:
        return choose_gpus(state, asked.gpus, asked.models, asked.nodes, begins_at, asked.ends_at)
    for record in state.bookings.values():
        if record.overlaps(begins_at, asked.ends_at):
            for part in record.booking.parts:
                if part.node in asked.nodes:
                    return no.NodeBooked(part.node, record.booking.id)
    return maintenance_parts(state, asked.nodes)


def cancel_booking(ledger: Ledger, asked: command.CancelBooking) -> Refusal | None:
    """Cancel a booking, or end it early."""
    record = ledger.state.bookings.get(asked.booking)
    if record is None:
        return no.UnknownBooking(asked.booking)
    end_booking(ledger, record, Cause(CauseKind.CANCELLED))
    return None
