"""What happens at the begin and at the end of a booking."""

from gpuyard.core.domain import events
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import NodeId, Preemption
from gpuyard.core.engine.ledger import Ledger
from gpuyard.core.engine.phases import Placed, Running
from gpuyard.core.engine.scheduling.bookings import choose_gpus, late_tasks, victims_of
from gpuyard.core.engine.state import BookingRecord
from gpuyard.core.engine.task import OpenTask


def begin_or_end(ledger: Ledger, number: int) -> None:
    """Begin or end a booking if it is due; do nothing if it was cancelled."""
    record = ledger.state.bookings.get(number)
    if record is None:
        return
    at = ledger.state.now
    if record.booking.ends_at <= at:
        end_booking(ledger, record, Cause(CauseKind.TIME_CAME))
    elif record.booking.begins_at <= at and not record.begun:
        _begin(ledger, record)


def _begin(ledger: Ledger, record: BookingRecord) -> None:
    """Begin a booking: record the tasks in its way, and stop those that it may stop."""
    state, booking = ledger.state, record.booking
    _move_from_closed_nodes(ledger, record)
    late = dict.fromkeys(task.id for _, _, tasks in late_tasks(state, record) for task in tasks)
    victims = victims_of(state, record) if booking.preempt and not booking.maintenance else []
    hosts = state.index.hosts
    cordoned: list[NodeId] = []
    if booking.maintenance:
        cordoned = [part.node for part in booking.parts if part.node in hosts and not hosts[part.node].cordoned]
        victims = [task for _, _, tasks in late_tasks(state, record) for task in tasks]
        drop_reservations_on(ledger, record)
    ledger.emit(events.BookingBegan(booking.id, tuple(late), tuple(cordoned)))
    for node in cordoned:
        ledger.emit(events.NodeCordoned(node, draining=True, reason=f"maintenance window booking-{booking.id}"))
    for task in victims:
        _stop(ledger, task, booking.id, may_suspend=not booking.maintenance)


def _stop(ledger: Ledger, task: OpenTask, booking: int, *, may_suspend: bool) -> None:
    """Stop a task that may be stopped. A suspended one would keep the memory of a node under maintenance."""
    phase, cause = task.phase, Cause(CauseKind.BOOKED, booking=booking)
    if task.preemption is Preemption.SUSPEND:
        if may_suspend and isinstance(phase, Running):
            ledger.emit(events.AttemptSuspending(task.id, phase.attempt, cause, task.round + 1))
    elif task.preemption is not Preemption.NEVER and isinstance(phase, Running | Placed):
        ledger.emit(events.AttemptStopping(task.id, phase.attempt, cause))


def _move_from_closed_nodes(ledger: Ledger, record: BookingRecord) -> None:
    """Choose other GPUs if a node of the booking is gone or closed, or has too few usable GPUs."""
    state, booking = ledger.state, record.booking
    if booking.maintenance:
        return
    hosts = state.index.hosts
    missing = [part for part in booking.parts if part.node not in hosts or not hosts[part.node].open]
    few = any(
        state.index.device_group(number).usable.bit_count() < gpus for number, gpus in record.device_groups.items()
    )
    if not missing and not few:
        return
    parts = choose_gpus(
        state, booking.gpus, booking.models, booking.nodes, booking.begins_at, booking.ends_at, booking.id
    )
    if not isinstance(parts, Refusal) and parts != booking.parts and all(hosts[part.node].open for part in parts):
        ledger.emit(events.BookingMoved(booking.id, parts))
        drop_reservations_on(ledger, record)


def end_booking(ledger: Ledger, record: BookingRecord, cause: Cause) -> None:
    """End or cancel a booking; its tasks continue, and nodes that were cordoned for it are opened."""
    hosts = ledger.state.index.hosts
    ledger.emit(events.BookingEnded(record.booking.id, cause))
    for node in record.cordoned:
        if node in hosts and hosts[node].cordoned:
            ledger.emit(events.NodeUncordoned(node))


def drop_reservations_on(ledger: Ledger, record: BookingRecord) -> None:
    """Drop the reservations of waiting tasks on the nodes of a booking; they are made again with regard to it."""
    nodes = {part.node for part in record.booking.parts}
    for reservation in list(ledger.state.reservations.values()):
        if not reservation.claim and nodes.intersection(reservation.nodes):
            cause = Cause(CauseKind.BOOKED, booking=record.booking.id)
            ledger.emit(events.ReservationDropped(reservation.task.id, cause))
