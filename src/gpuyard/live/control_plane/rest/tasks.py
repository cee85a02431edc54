"""Existing tasks: list, show, explain, change and cancel them."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Annotated, Any, cast, get_args

from msgspec import Meta, Raw, Struct, field, json
from msgspec.structs import replace

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.refusals import NotLonger, TaskIsOver, UnknownTask
from gpuyard.core.domain.task import RunLimit
from gpuyard.core.domain.values import ENDED, TaskClass, TaskId, TaskStatus, TenantId
from gpuyard.core.engine.scheduling.backfill import promised_start
from gpuyard.core.engine.state import State
from gpuyard.core.engine.task import OpenTask
from gpuyard.input.nearest_name import closest_word
from gpuyard.input.strict import Strict, WrongRequest
from gpuyard.live.control_plane.access.principal import Action, Denied, visible_tenant
from gpuyard.live.control_plane.folding import fold_of
from gpuyard.live.control_plane.queries import TaskPage
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.errors import AccessDenied, CommandRefused
from gpuyard.live.control_plane.rest.lookup import find_answer, find_task, read_answer
from gpuyard.live.control_plane.rest.query import Parameter, counted, instant, number, one_of, text
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.rest.route import Handler
from gpuyard.live.control_plane.stores.archive import NEWEST_FIRST, Filters, Order, SortKey
from gpuyard.live.wire.answers import CancelAnswer, ExplainAnswer
from gpuyard.live.wire.limits import Instant, PositiveSeconds, Priority, instant_of
from gpuyard.live.wire.tasks import HIGH, LOW, MOST_TASKS, format_task_id, parse_task_id

USUAL_LIMIT = 100
MOST_OFFSET = 1_000_000
LONGEST_SEARCH = 200
SORT_KEYS: tuple[str, ...] = get_args(SortKey)
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


def _read_search(value: str) -> str:
    if len(text(value)) > LONGEST_SEARCH:
        raise ValueError(f"it must be at most {LONGEST_SEARCH} characters long")
    return value.casefold()


def _read_order(value: str) -> Order:
    by = value.removeprefix("-")
    if by not in SORT_KEYS:
        near = closest_word(by, SORT_KEYS)
        raise ValueError(f'did you mean "{near}"?' if near else f"known values: {', '.join(SORT_KEYS)}")
    return Order(cast("SortKey", by), descending=value != by)


SEARCH = Parameter(
    "q", "Only tasks with this text in their name, command, id or user; case does not matter.", _read_search
)
OFFSET = counted("offset", "Skip this many tasks of the list; not together with cursor.", 0, MOST_OFFSET)
LIST = (
    *FILTERS,
    SEARCH,
    Parameter(
        "sort",
        f"Order of the list: {', '.join(SORT_KEYS)}; with a leading - the largest first (default: -created_at).",
        _read_order,
        values=tuple(way + key for key in SORT_KEYS for way in ("", "-")),
    ),
    OFFSET,
    Parameter(
        "fields", "summary: only the fields that a table shows.", one_of({"summary": "summary"}), values=("summary",)
    ),
)


class TaskSummary(Struct, frozen=True):
    """The fields of a task that a table shows."""

    id: str
    name: str
    status: TaskStatus
    tenant_id: str
    user: str
    project: str
    task_class: TaskClass = field(name="class")
    priority: str | int
    gpu_count: int
    gpu_model: str | list[str] | None
    node_id: str | None
    created_at: Instant
    started_at: Instant | None
    finished_at: Instant | None
    exit_code: int | None
    reason: str | None
    reason_code: str | None
    expected_start: Instant | None = None
    """When a waiting task with a reservation is expected to start; null: unknown, see `explain`."""


class TaskSummaryList(Struct, frozen=True):
    """A page of tasks with the fields of a table. `next_cursor` is null on the last page and in other orders."""

    tasks: list[TaskSummary]
    total: int
    """Number of matching tasks over all pages."""
    next_cursor: str | None


_read_summary = json.Decoder(TaskSummary).decode


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
    max_running: Annotated[int, Meta(ge=0, le=MOST_TASKS)] | None = None
    """How many tasks of its array or sweep may run at the same time; 0: any number. Running tasks continue."""


_read_change = Strict(TaskChange).json


async def list_tasks(context: AppContext, request: Request) -> Response:
    """List a page of tasks."""
    asked = request.query
    if "cursor" in asked and ("offset" in asked or asked.get("sort", NEWEST_FIRST) != NEWEST_FIRST):
        wrong = "offset" if "offset" in asked else "sort"
        message = f"{wrong} cannot be combined with cursor; give one of them. Use offset for pages in another order."
        raise WrongRequest("Contradiction", message, wrong)
    page = await find_page(context, request)
    if "fields" not in asked:
        return page_of(page, lambda answer: answer)
    summaries = [_read_summary(answer) for answer in page.answers]
    starts = await _expected_starts(context, [one for one in summaries if one.status is TaskStatus.PENDING])
    return json_response(
        RawTaskList(
            [replace(one, expected_start=starts[one.id]) if one.id in starts else one for one in summaries],
            page.total,
            cursor_or_none(page.next_cursor),
        )
    )


async def _expected_starts(context: AppContext, waiting: list[TaskSummary]) -> dict[str, str]:
    """Return when tasks with a reservation are expected to start; the others are not known without a long search."""
    if not waiting:
        return {}
    ids = [one.id for one in waiting]

    def ask(state: State, now: float) -> dict[str, str]:
        at = max(state.now, now)
        found = {one: state.reservations.get(parse_task_id(one)) for one in ids}
        starts = {
            one: at if promised.claim else promised_start(state, promised, at)
            for one, promised in found.items()
            if promised is not None
        }
        return {one: instant_of(start) for one, start in starts.items() if start is not None}

    return await context.scheduler.queries.look(ask)


async def find_page(context: AppContext, request: Request, asked: Mapping[str, Any] | None = None) -> TaskPage:
    """Return the page that the caller asks for, limited to visible tasks; `asked` replaces the query parameters."""
    asked = request.query if asked is None else asked
    return await context.scheduler.queries.page(
        filters_of(request, asked),
        asked.get("cursor"),
        asked.get("limit", USUAL_LIMIT),
        asked.get("sort", NEWEST_FIRST),
        asked.get("offset", 0),
    )


def filters_of(request: Request, asked: Mapping[str, Any]) -> Filters:
    """Return the filters that the caller asks for, limited to visible tasks."""
    seen, tenant = visible_tenant(request.principal), asked.get("tenant")
    if seen is not None and tenant not in {None, seen}:
        raise AccessDenied(
            Denied(403, "Forbidden", f"{request.principal.username} may see only tasks of tenant {seen}.")
        )
    return Filters(
        statuses=tuple(dict.fromkeys(asked.get("status", ()))),
        tenant=seen if tenant is None else TenantId(tenant),
        priority=asked.get("priority"),
        user=asked.get("user"),
        project=asked.get("project"),
        name=asked.get("name"),
        since=asked.get("since"),
        text=asked.get("q"),
    )


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
            found is not None and found.may_be_overtaken,
            found is not None and found.from_other_work,
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
        message = f"{name} had already ended ({status}); nothing was changed."
        return CancelAnswer(name, name, status, message, had_ended=True)
    view = context.scheduler.views.tasks.get(task)
    if view is None or view.status is TaskStatus.CANCELLED:
        return CancelAnswer(name, name, TaskStatus.CANCELLED, f"{name} was {done}.")
    return CancelAnswer(name, name, view.status, f"{name} is being {doing}.")


async def change_task(context: AppContext, request: Request) -> Response:
    """Change the priority, extend the timeout, or limit the running tasks of its array or sweep."""
    task = await find_task(context, request, Action.STOP)
    change = _read_change(await request.body())
    if change.priority is None and change.timeout is None and change.max_running is None:
        raise WrongRequest("NothingAsked", "Specify priority, timeout or max_running to change the task.")
    limit = None if change.max_running is None else await _run_limit(context, task, change.max_running)
    if change.timeout is not None:  # first, because this change can be refused
        await _extend(context, request, task, change.timeout)
    if limit is not None:
        await context.tell(request, limit)
    if change.priority is not None:
        await context.tell(request, command.ChangePriority(task, change.priority))
    return await get_task(context, request)


async def _run_limit(context: AppContext, task: TaskId, most: int) -> command.SetRunLimit:
    """Return the command that sets the limit for the array or sweep to which a task belongs."""

    def find(state: State, now: float) -> command.SetRunLimit | None:  # noqa: ARG001
        known = state.tasks.get(task) or _open_in_array_of(state, task)
        if known is None:
            return command.SetRunLimit(task, RunLimit(task, task, most))  # the engine says what has become of it
        if known.run_limit is not None:
            return command.SetRunLimit(known.id, replace(known.run_limit.limit, most=most))
        array = _array_of(known)
        if not array:
            return None
        ends = []
        for step, last in ((-1, 0), (1, state.last_task + 1)):
            end = known.id
            for near in islice(range(known.id + step, last, step), MOST_TASKS):
                other = state.tasks.get(TaskId(near))
                if other is not None and _array_of(other) != array:
                    break
                end = end if other is None else other.id
            ends.append(end)
        return command.SetRunLimit(known.id, RunLimit(ends[0], ends[1], most))

    found = await context.scheduler.queries.look(find)
    if found is None:
        message = f"{format_task_id(task)} is not part of an array or sweep, so max_running has no meaning for it."
        raise WrongRequest("NotInArray", message, "max_running", status=409)
    return found


def _array_of(task: OpenTask) -> str:
    """Return what the tasks of an array or sweep have in common; empty for others, also for groups, which may grow."""
    return "" if task.spec.group else fold_of(task.id, task.spec, task.submitted_at)


def _open_in_array_of(state: State, task: TaskId) -> OpenTask | None:
    """Return an open task of the array of a task that has ended: the first one after it whose array begins before it."""
    for limited in state.run_limits.values():
        if limited.limit.first <= task <= limited.limit.last:
            return next(limited.tasks(state), None)
    for near in islice(range(task + 1, state.last_task + 1), MOST_TASKS):
        other = state.tasks.get(TaskId(near))
        if other is not None:
            index = other.spec.array_index
            return other if index is not None and near - index <= task else None
    return None


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
