"""The queue: running tasks, then waiting ones in the order in which they go; and those that ended last."""

from typing import cast, get_args

from gpuyard.core.domain.values import TaskStatus
from gpuyard.input.nearest_name import closest_word
from gpuyard.live.control_plane.access.principal import visible_tenant
from gpuyard.live.control_plane.queue_pages import QueueSort, QueueSortKey
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.query import Parameter, counted, one_of, switch
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.rest.tasks import FILTERS, MOST_OFFSET, SEARCH, USUAL_LIMIT, filters_of

SORT_KEYS: tuple[str, ...] = get_args(QueueSortKey)
OPEN = {status.value: status for status in (TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.SUSPENDED)}


def _read_sort(value: str) -> QueueSort:
    by = value.removeprefix("-")
    if by not in SORT_KEYS:
        near = closest_word(by, SORT_KEYS)
        raise ValueError(f'did you mean "{near}"?' if near else f"known values: {', '.join(SORT_KEYS)}")
    return QueueSort(cast("QueueSortKey", by), descending=value != by)


PARAMETERS = (
    Parameter("status", "Only these statuses.", one_of(OPEN), values=tuple(OPEN), many=True),
    *(one for one in FILTERS if one.name not in {"status", "cursor", "limit"}),
    SEARCH,
    Parameter(
        "sort",
        f"Order of the rows: {', '.join(SORT_KEYS)}; with a leading - the largest first (default: queue).",
        _read_sort,
        values=tuple(way + key for key in SORT_KEYS for way in ("", "-")),
    ),
    switch("fold", "Put the tasks of an array, sweep or group that have the same status on one row."),
    counted("limit", f"Number of rows on a page (default: {USUAL_LIMIT}).", 1, 1000),
    counted("offset", "Skip this many rows.", 0, MOST_OFFSET),
)

ENDED_PARAMETERS = (
    *(one for one in FILTERS if one.name not in {"cursor", "limit"}),
    SEARCH,
    counted("limit", f"Maximum number of rows (default: {USUAL_LIMIT}).", 1, 1000),
)


async def get_ended(context: AppContext, request: Request) -> Response:
    """Return the rows of tasks that ended last."""
    asked = request.query
    filters = filters_of(request, asked)
    return json_response(await context.scheduler.queue_pages.ended(filters, asked.get("limit", USUAL_LIMIT)))


async def get_queue(context: AppContext, request: Request) -> Response:
    """Return a page of the queue."""
    asked = request.query
    return json_response(
        await context.scheduler.queue_pages.page(
            filters_of(request, asked),
            asked.get("sort", QueueSort()),
            asked.get("offset", 0),
            asked.get("limit", USUAL_LIMIT),
            fold=asked.get("fold", False),
            seen=visible_tenant(request.principal),
        )
    )
