"""Requests and answers about bookings and maintenance windows."""

import re
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from gpuyard.input.strict import Strict, WrongRequest
from gpuyard.live.wire.limits import Instant, ModelName, PositiveSeconds, TenantName, Title

BookingReference: TypeAlias = Annotated[
    Annotated[int, Meta(ge=1, le=2**62)] | Annotated[str, Meta(pattern=r"^(booking-)?[1-9][0-9]{0,17}$(?!\n)")],
    Meta(description='the number or id of a booking, such as 3 or "booking-3"'),
]
BookedNode: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
_ID = re.compile(r"(?:booking-)?([1-9][0-9]{0,17})")


class BookingRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GPUs to book from one instant to another, or nodes to close for maintenance."""

    gpu_count: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """On all nodes together; not for maintenance, which takes whole nodes."""
    gpu_model: ModelName | Annotated[list[ModelName], Meta(min_length=1, max_length=64)] | None = None
    nodes: Annotated[list[BookedNode], Meta(max_length=10_000)] | None = None
    """Nodes that may be used; for maintenance, the nodes to close."""
    begins_at: Instant | None = None
    """Default: now."""
    ends_at: Instant | None = None
    seconds: PositiveSeconds | None = None
    """Its length, instead of `ends_at`."""
    tenant_id: TenantName | None = None
    maintenance: bool = False
    preempt: bool = False
    """Stop tasks that are in the way at the begin, if they allow preemption."""
    note: Title = ""


class BookedPart(Struct, frozen=True):
    """The part of a booking on one node."""

    node_id: str
    gpu_count: int


class BookingAnswer(Struct, frozen=True, kw_only=True):
    """A booking that has not ended."""

    id: str
    status: Literal["planned", "active"]
    tenant_id: str
    """Empty if it belongs to a tenant that you may not see; the same applies to `user` and `note`."""
    user: str
    note: str
    begins_at: Instant
    ends_at: Instant
    seconds: float
    gpu_count: int
    gpu_model: list[str]
    """The models that were asked for; empty: any."""
    parts: list[BookedPart]
    maintenance: bool
    preempt: bool
    late_tasks: list[str]
    """Tasks that hold its GPUs, or run on its nodes, although it has begun. Before its begin: tasks that are expected to."""
    tasks: int
    """Number of open tasks that name it."""


class BookingList(Struct, frozen=True):
    """Bookings that have not ended, the next one first."""

    bookings: list[BookingAnswer]
    total: int


read_booking_request = Strict(BookingRequest).json


def format_booking_id(number: int) -> str:
    """Return the id of a booking on the API."""
    return f"booking-{number}"


def parse_booking_id(text: str | int) -> int:
    """Return the number of a booking: 3, "3" or "booking-3"."""
    found = _ID.fullmatch(str(text))
    if found is None:
        message = f'There is no booking {str(text)[:40]}; ids look like "booking-3".'
        raise WrongRequest("UnknownBooking", message, "id", status=404)
    return int(found[1])
