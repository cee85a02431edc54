"""Existing tasks: list, show, explain, change and cancel them."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Raw, Struct

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.refusals import NotLonger, TaskIsOver, UnknownTask
from gpuyard.core.domain.values import ENDED, TaskId, TaskStatus, TenantId
from gpuyard.input.strict import Strict, WrongRequest
from gpuyard.live.control_plane.access.principal import Action, Denied, visible_tenant
from gpuyard.live.control_plane.queries import TaskPage
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.errors import AccessDenied, CommandRefused
from gpuyard.live.control_plane.rest.lookup import find_answer, find_task, read_answer
from gpuyard.live.control_plane.rest.query import Parameter, counted, instant, number, one_of, text
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.rest.route import Handler
from gpuyard.live.control_plane.stores.archive import Filters
from gpuyard.live.wire.answers import CancelAnswer, ExplainAnswer
from gpuyard.live.wire.limits import PositiveSeconds, Priority, instant_of
from gpuyard.live.wire.tasks import HIGH, LOW, format_task_id

USUAL_LIMIT = 100
STATUSES: dict[str, TaskStatus] = {**{status.value: status for status in TaskStatus}, "completed": TaskStatus.SUCCESS}
"""`completed` is the legacy name of success."""


def _read_priority(value: str) -> int:
    named = {"high": HIGH[1], "low": LOW[1]}
    if value in named:
        return named[value]
    try:
        return number(0, 100)(value)
    except ValueError:
        raise ValueError("it must be high, low or a whole number from 0 to 100") from None


def _read_cursor(value: str) -> TaskId:
    try:
        inner = urlsafe_b64decode(value.encode("ascii")).decode("ascii")
        return TaskId(number(1, 2**63 - 1)(inner.removeprefix("before ")))
    except ValueError:
        raise ValueError("it must be the next_cursor of the page before, unchanged") from None


def cursor_of(task: TaskId) -> str:
    """Return the cursor of the page that begins after a task."""
    return urlsafe_b64encode(f"before {task}".encode()).decode()


def cursor_or_none(task: TaskId | None) -> str | None:
    """Return the cursor of the page after a task; None if there is no further page."""
    return None if task is None else cursor_of(task)


FILTERS = (
    Parameter(
        "status",
        "Only these statuses; separate several with commas or repeat the parameter. completed means success.",
        one_of(STATUSES),
        values=tuple(STATUSES),
        many=True,
    ),
    Parameter("tenant", "Only tasks of this tenant.", text),
    Parameter("priority", "high, low or a number from 0 to 100.", _read_priority),
    Parameter("user", "Only tasks submitted by this user.", text),
    Parameter("project", "Only tasks of this project.", text),
    Parameter("name", "Only tasks with exactly this name.", text),
    Parameter(
        "since", "Only tasks created at this time or later: 2026-01-31T12:00:00Z, or seconds since 1970.", instant
    ),
    counted("limit", f"Number of tasks on a page (default: {USUAL_LIMIT}).", 1, 1000),
    Parameter("cursor", "The next_cursor of the previous page.", _read_cursor),
)


class RawTaskList(Struct, frozen=True):
    """A page of tasks that are already encoded as JSON."""

    tasks: list[Any]
    total: int
    next_cursor: str | None


class TaskChange(Struct, frozen=True, forbid_unknown_fields=True):
    """A change of an existing task. Omitted fields stay unchanged."""

    priority: Priority | None = None
    """Within its class."""
    timeout: PositiveSeconds | None = None
    """Longest run of one attempt, in seconds from its start; it can only be raised."""


_read_change = Strict(TaskChange).json


async def list_tasks(context: AppContext, request: Request) -> Response:
    """List a page of tasks."""
    return page_of(await find_page(context, request), lambda answer: answer)


async def find_page(context: AppContext, request: Request, asked: Mapping[str, Any] | None = None) -> TaskPage:
    """Return the page that the caller asks for, limited to visible tasks; `asked` replaces the query parameters."""
    asked, seen = request.query if asked is None else asked, visible_tenant(request.principal)
    tenant = asked.get("tenant")
    if seen is not None and tenant not in {None, seen}:
        raise AccessDenied(
            Denied(403, "Forbidden", f"{request.principal.username} may see only tasks of tenant {seen}.")
        )
    filters = Filters(
        statuses=tuple(dict.fromkeys(asked.get("status", ()))),
        tenant=seen if tenant is None else TenantId(tenant),
        priority=asked.get("priority"),
        user=asked.get("user"),
        project=asked.get("project"),
        name=asked.get("name"),
        since=asked.get("since"),
    )
    return await context.scheduler.queries.page(filters, asked.get("cursor"), asked.get("limit", USUAL_LIMIT))


def page_of(page: TaskPage, told: Callable[[Raw], Any]) -> Response:
    """Return a page as a response, with each task converted by `told`."""
    return json_response(
        RawTaskList([told(answer) for answer in page.answers], page.total, cursor_or_none(page.next_cursor))
    )


async def get_task(context: AppContext, request: Request) -> Response:
    """Return one task."""
    _, answer = await find_answer(context, request)
    return Response(answer)


async def explain_task(context: AppContext, request: Request) -> Response:
    """Return why a task waits and when it will start; for a task that does not wait, the reason for its status."""
    task, encoded = await find_answer(context, request)
    told = read_answer(encoded)
    found = await context.scheduler.queries.explain(task) if told.status not in ENDED else None
    if found is None or found.reason is None or isinstance(found.reason, UnknownTask):
        reason, code = told.reason, told.reason_code
    else:
        reason, code = found.reason.sentence(), found.reason.code
        if told.attempts and told.status is TaskStatus.PENDING:
            reason = told.reason or reason  # includes the result of its last attempt
    return json_response(
        ExplainAnswer(
            format_task_id(task),
            told.status,
            reason,
            code,
            found.ahead if found else 0,
            _instant_or_none(found.starts_at if found else None),
            _instant_or_none(found.starts_low if found else None),
            _instant_or_none(found.starts_high if found else None),
            list(found.nodes) if found and found.nodes else told.node_ids,
            found is not None and found.guessed,
            told.estimated_seconds,
            told.estimated_low_seconds,
            told.estimated_high_seconds,
            told.predicted_from,
            list(found.model_ran_on) if found else [],
            told.forecasts,
            found is not None and found.more_ahead,
        )
    )


def _instant_or_none(at: float | None) -> str | None:
    return None if at is None else instant_of(at)


async def cancel_task(context: AppContext, request: Request) -> Response:
    """Cancel a task; an ended task is not changed."""
    return json_response(await cancel(context, request, done="cancelled", doing="stopped"))


async def cancel(context: AppContext, request: Request, *, done: str, doing: str) -> CancelAnswer:
    """Cancel the task and return the result; `done` and `doing` are the words for a finished and a pending one."""
    task = await find_task(context, request, Action.STOP)
    name = format_task_id(task)
    try:
        await context.tell(request, command.CancelTask(task))
    except CommandRefused as refused:
        if not isinstance(refused.refusal, TaskIsOver | UnknownTask):
            raise
        _, encoded = await find_answer(context, request)
        status = read_answer(encoded).status
        return CancelAnswer(name, name, status, f"{name} had already ended ({status}); nothing was changed.")
    view = context.scheduler.views.tasks.get(task)
    if view is None or view.status is TaskStatus.CANCELLED:
        return CancelAnswer(name, name, TaskStatus.CANCELLED, f"{name} was {done}.")
    return CancelAnswer(name, name, view.status, f"{name} is being {doing}.")


async def change_task(context: AppContext, request: Request) -> Response:
    """Change the priority, or extend the timeout."""
    task = await find_task(context, request, Action.STOP)
    change = _read_change(await request.body())
    if change.priority is None and change.timeout is None:
        raise WrongRequest("NothingAsked", "Specify priority or timeout to change the task.")
    if change.timeout is not None:  # first, because only this change can be refused
        await _extend(context, request, task, change.timeout)
    if change.priority is not None:
        await context.tell(request, command.ChangePriority(task, change.priority))
    return await get_task(context, request)


async def _extend(context: AppContext, request: Request, task: TaskId, seconds: float) -> None:
    try:
        await context.tell(request, command.ExtendTask(task, timeout_seconds=seconds))
    except CommandRefused as refused:
        if not isinstance(refused.refusal, NotLonger):
            raise
        message = (
            f"The timeout of {format_task_id(task)} can only be raised; {seconds:g} s is not above the current one."
        )
        raise WrongRequest(refused.refusal.code, message, "timeout", status=409) from None


def command_handler(make: Callable[[TaskId], command.Command]) -> Handler:
    """Make a handler that sends one command to the engine and returns the task afterwards."""

    async def handle(context: AppContext, request: Request) -> Response:
        task = await find_task(context, request, Action.STOP)
        await context.tell(request, make(task))
        return await get_task(context, request)

    return handle
