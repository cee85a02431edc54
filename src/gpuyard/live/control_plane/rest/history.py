"""The history of the cluster, of GPUs, of nodes and of tasks, over any range of time."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gpuyard.core.domain.refusals import UnknownNode
from gpuyard.core.domain.values import NodeId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.history.layout import CLUSTER, GPUS, NODES, RowKind
from gpuyard.live.control_plane.history.series import (
    MOST_POINTS,
    USUAL_POINTS,
    USUAL_SECONDS,
    Buckets,
    Span,
    TooManyPoints,
    gathered,
    highest_of,
    names_of,
    span_of,
    usual_names,
)
from gpuyard.live.control_plane.history.slots import Owner
from gpuyard.live.control_plane.history.store import HistoryStore
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.errors import CommandRefused, Unavailable
from gpuyard.live.control_plane.rest.lookup import find_answer, read_answer
from gpuyard.live.control_plane.rest.query import Parameter, counted, instant, one_of
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.stores.database import StoreDamaged
from gpuyard.live.wire.history_answers import GpuHistory, HistoryAnswer, TaskHistoryAnswer
from gpuyard.live.wire.task_answers import TaskAnswer

MOST_GPUS = 64
"""GPUs of a task whose series are in one answer."""
_STEP = counted("step", f"Seconds between two values (default: at most {USUAL_POINTS} values).", 1, 366 * 86_400)


def _series(kind: RowKind) -> Parameter:
    known = {name: name for name in (*names_of(kind), *highest_of(kind))}
    words = "Only these series, separated by commas (default: all)."
    return Parameter("series", words, one_of(known), values=tuple(known), many=True)


def parameters_of(kind: RowKind) -> tuple[Parameter, ...]:
    """Return the query parameters for the history of one kind."""
    return (
        Parameter("from", "The start: RFC 3339, or seconds since 1970 (default: an hour before the end).", instant),
        Parameter("to", "The end (default: now).", instant),
        _STEP,
        _series(kind),
    )


OF_CLUSTER, OF_GPU, OF_NODE, OF_TASK = parameters_of(CLUSTER), parameters_of(GPUS), parameters_of(NODES), (_STEP,)


async def get_history(context: AppContext, request: Request) -> Response:
    """Return the history of the cluster."""
    return await _answer(context, request, CLUSTER, "", None)


async def get_gpu_history(context: AppContext, request: Request) -> Response:
    """Return the history of one GPU, also of one that has left."""
    node, index = request.path_params["node"], request.path_params["index"]
    name = f"{node}/{index}"
    view = context.scheduler.views.nodes.get(NodeId(node))
    shown = name[:100] if name.isprintable() else ascii(name[:100])
    unknown = WrongRequest("UnknownGpu", f"GPU {shown} does not exist. GET /api/v1/gpus lists them.", "id", status=404)
    is_there = view is not None and index in map(str, range(len(view.spec.gpus)))
    return await _answer(context, request, GPUS, name, None if is_there else unknown)


async def get_node_history(context: AppContext, request: Request) -> Response:
    """Return the history of one node, also of one that has left."""
    name = request.path_params["id"]
    is_there = name in context.scheduler.views.nodes
    return await _answer(context, request, NODES, name, None if is_there else CommandRefused(UnknownNode(NodeId(name))))


async def get_task_history(context: AppContext, request: Request) -> Response:
    """Return the history of the GPUs of a task's last attempt, from its start to its end."""
    answer = read_answer((await find_answer(context, request))[1])
    store = store_of(context)
    began, gpus = _seconds(answer.started_at), answer.allocated_gpus
    if began is None or not gpus:
        return json_response(TaskHistoryAnswer(since=began, to=None, step=1, times=[], gpus=[], gpus_total=len(gpus)))
    now = context.scheduler.clock()
    span = _span(store, began, _end(answer) or now, request.query.get("step"), now)
    names = usual_names(GPUS, span.step)

    def read() -> list[GpuHistory]:
        found = []
        for gpu in gpus[:MOST_GPUS]:
            buckets = gathered(store, GPUS, _sharing(store.owners(GPUS, gpu), span), span)
            found.append(GpuHistory(gpu, {name: buckets.values(name) for name in names}))
        return found

    series = await _read(context, read)
    return json_response(
        TaskHistoryAnswer(
            since=span.start, to=span.end, step=span.step, times=_times(span), gpus=series, gpus_total=len(gpus)
        )
    )


def store_of(context: AppContext) -> HistoryStore:
    """Return the history, or raise an error that says why there is none."""
    store = context.scheduler.stores.history
    if store is not None:
        return store
    if context.settings.monitor.enabled:
        raise Unavailable("NoHistory", "The file of the history cannot be used; the log of the scheduler says why.")
    message = "There is no history: monitor.enabled is false in the settings of the scheduler."
    raise WrongRequest("MonitorOff", message, status=404)


async def _answer(
    context: AppContext, request: Request, kind: RowKind, name: str, unknown: Exception | None
) -> Response:
    """Return the history of one name. `unknown` is raised if nothing is recorded of it."""
    store, asked, now = store_of(context), request.query, context.scheduler.clock()
    until = asked.get("to", now)
    since = asked.get("from", max(0.0, until - USUAL_SECONDS))
    if since >= until:
        message = "from must be before to." if "from" in asked else "to is at the beginning of time; give a later one."
        raise WrongRequest("EmptyRange", message, "from")
    span = _span(store, since, until, asked.get("step"), now)
    names = asked.get("series") or usual_names(kind, span.step)

    def read() -> Buckets:
        owners = store.owners(kind, name)
        if not owners and unknown is not None:
            raise unknown
        return gathered(store, kind, _sharing(owners, span), span)

    buckets = await _read(context, read)
    return json_response(
        HistoryAnswer(
            since=span.start,
            to=span.end,
            step=span.step,
            times=_times(span),
            series={each: buckets.values(each) for each in names},
        )
    )


def _span(store: HistoryStore, since: float, until: float, step: int | None, now: float) -> Span:
    try:
        return span_of(store.tiers, since, until, step, now)
    except TooManyPoints as many:
        message = (
            f"A step of {step} s gives {many.points:,} values in this range; the maximum is {MOST_POINTS:,}. "
            f"Use a step of at least {many.step} s, or a shorter range."
        )
        raise WrongRequest("TooManyValues", message, "step") from None


def _sharing(owners: Sequence[Owner], span: Span) -> list[Owner]:
    """Return the owners of a name within a span: another card may have been at the same place before."""
    return [owner for owner in owners if owner.since < span.end and (owner.until is None or owner.until > span.start)]


async def _read(context: AppContext, work: Any) -> Any:
    try:
        return await context.scheduler.worker_pools.history_reader.run(work)
    except StoreDamaged:
        raise Unavailable("NoHistory", "The history was damaged and begins again; try again.") from None


def _times(span: Span) -> list[float]:
    return [float(at) for at in span.times]


def _end(answer: TaskAnswer) -> float | None:
    """Return when the last attempt ended; None: it runs, or its end is not recorded."""
    return _seconds(answer.finished_at)


def _seconds(instant_text: str | None) -> float | None:
    return None if instant_text is None else datetime.fromisoformat(instant_text).timestamp()
