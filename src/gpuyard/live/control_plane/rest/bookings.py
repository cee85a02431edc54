"""Bookings and maintenance windows: make, list, cancel."""

from msgspec.structs import replace

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.events import BookingMade
from gpuyard.core.domain.gpu_names import matching_gpu_names
from gpuyard.core.domain.refusals import UnknownBooking
from gpuyard.core.domain.values import NodeId
from gpuyard.core.engine.scheduling.bookings import late_tasks
from gpuyard.core.engine.state import BookingRecord, State
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import Action, Denied, Principal, forbidden, may
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.errors import AccessDenied
from gpuyard.live.control_plane.rest.query import instant
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.wire.answers import MessageAnswer
from gpuyard.live.wire.booking_answers import (
    BookedPart,
    BookingAnswer,
    BookingList,
    BookingRequest,
    format_booking_id,
    parse_booking_id,
    read_booking_request,
)
from gpuyard.live.wire.limits import instant_of
from gpuyard.live.wire.tasks import format_task_id


async def list_bookings(context: AppContext, request: Request) -> Response:
    """List all bookings that have not ended."""
    bookings = await _bookings(context, request.principal)
    return json_response(BookingList(bookings, len(bookings)))


async def get_booking(context: AppContext, request: Request) -> Response:
    """Return one booking."""
    return json_response(await _find(context, request, parse_booking_id(request.path_params["id"])))


async def post_booking(context: AppContext, request: Request) -> Response:
    """Book GPUs, or close nodes for maintenance."""
    asked = read_booking_request(await request.body())
    principal = request.principal
    runs_cluster = may(principal, Action.RUN_CLUSTER)
    if not runs_cluster and (asked.maintenance or asked.preempt):
        raise AccessDenied(forbidden(principal, Action.RUN_CLUSTER))
    if not runs_cluster and not context.settings.scheduler.members_may_book:
        message = (
            f"{principal.username} may not book GPUs: this requires an admin or an operator. "
            "Ask one of them, or for the setting scheduler.members_may_book."
        )
        raise AccessDenied(Denied(403, "Forbidden", message))
    tenant = context.tenant_of(request, Action.SUBMIT, asked.tenant_id)
    begins_at = None if asked.begins_at is None else _instant(asked.begins_at, "begins_at")
    ends_at = _end_of(asked)
    models = (asked.gpu_model,) if isinstance(asked.gpu_model, str) else tuple(asked.gpu_model or ())
    known = context.scheduler.views.gpu_models
    models = tuple(dict.fromkeys(one for model in models for one in matching_gpu_names(model, known) or (model,)))
    _check_shape(asked)
    wanted = command.MakeBooking(
        tenant,
        0.0,
        0.0,
        asked.gpu_count or 0,
        models,
        tuple(NodeId(node) for node in asked.nodes or ()),
        principal.username,
        asked.maintenance,
        asked.preempt,
        asked.note,
    )

    def make(state: State) -> command.Command:
        begin = state.now if begins_at is None else begins_at
        return replace(wanted, begins_at=begin, ends_at=begin + (asked.seconds or 0.0) if ends_at is None else ends_at)

    made = await context.tell(request, make)
    number = next(event.booking.id for event in made if isinstance(event, BookingMade))
    return json_response(await _find(context, request, number), 201)


def _end_of(asked: BookingRequest) -> float | None:
    if (asked.ends_at is None) == (asked.seconds is None):
        raise WrongRequest("Contradiction", "Give either ends_at or seconds, the length of the booking.", "ends_at")
    return None if asked.ends_at is None else _instant(asked.ends_at, "ends_at")


def _instant(value: str, field: str) -> float:
    try:
        return instant(value)
    except ValueError as error:
        raise WrongRequest("WrongValue", f"{field} is not a time; {error}.", field) from None


def _check_shape(asked: BookingRequest) -> None:
    """Refuse a number of GPUs for maintenance, and its absence otherwise."""
    if asked.maintenance and (asked.gpu_count is not None or asked.gpu_model is not None):
        message = "A maintenance window closes whole nodes; omit gpu_count and gpu_model, and name the nodes."
        raise WrongRequest("Contradiction", message, "gpu_count")
    if not asked.maintenance and asked.gpu_count is None:
        raise WrongRequest("MissingField", "gpu_count is missing: the number of GPUs to book.", "gpu_count")


async def delete_booking(context: AppContext, request: Request) -> Response:
    """Cancel a booking, or end it early."""
    number = parse_booking_id(request.path_params["id"])
    found = await _find(context, request, number)
    principal = request.principal
    if found.maintenance and not may(principal, Action.RUN_CLUSTER):
        raise AccessDenied(forbidden(principal, Action.RUN_CLUSTER))
    if not found.tenant_id:
        raise _not_there(number)
    context.tenant_of(request, Action.STOP, found.tenant_id)
    await context.tell(request, command.CancelBooking(number))
    done = "ended" if found.status == "active" else "cancelled"
    return json_response(MessageAnswer(f"{found.id} was {done}."))


async def _find(context: AppContext, request: Request, number: int) -> BookingAnswer:
    for booking in await _bookings(context, request.principal, number):
        return booking
    raise _not_there(number)


def _not_there(number: int) -> WrongRequest:
    return WrongRequest("UnknownBooking", UnknownBooking(number).sentence(), "id", status=404)


async def _bookings(context: AppContext, principal: Principal, only: int | None = None) -> list[BookingAnswer]:
    def ask(state: State, now: float) -> list[BookingAnswer]:
        records = [record for record in state.bookings.values() if only in {None, record.booking.id}]
        records.sort(key=lambda record: (record.booking.begins_at, record.booking.id))
        counts: dict[int, int] = {}
        for task in state.tasks.values() if records else ():
            if number := task.spec.resources.booking:
                counts[number] = counts.get(number, 0) + 1
        return [_told(state, record, principal, counts.get(record.booking.id, 0), now) for record in records]

    return await context.scheduler.queries.look(ask)


def _told(state: State, record: BookingRecord, principal: Principal, tasks: int, now: float) -> BookingAnswer:
    booking = record.booking
    visible = may(principal, Action.SEE, booking.tenant)
    until = max(now, booking.begins_at)
    late = sorted({task.id for _, _, there in late_tasks(state, record, until) for task in there})
    return BookingAnswer(
        id=format_booking_id(booking.id),
        status="active" if record.begun else "planned",
        tenant_id=booking.tenant if visible else "",
        user=booking.user if visible else "",
        note=booking.note if visible or booking.maintenance else "",
        begins_at=instant_of(booking.begins_at),
        ends_at=instant_of(booking.ends_at),
        seconds=booking.ends_at - booking.begins_at,
        gpu_count=booking.gpus,
        gpu_model=list(booking.models),
        parts=[BookedPart(part.node, part.gpus) for part in booking.parts],
        maintenance=booking.maintenance,
        preempt=booking.preempt,
        late_tasks=[format_task_id(task) for task in late],
        tasks=tasks if visible else 0,
    )
