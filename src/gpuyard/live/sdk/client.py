"""The client of a cluster: one method for each request.

A client may be used by many threads. It keeps no state except connections: a result is what was true when the scheduler
answered. A method that is given a `Task` or a lease, and not only an id, never acts on another task with the same
number, as in a scheduler that was restored from an older copy: it raises `NotFound` with code `AnotherTask`.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypedDict, TypeVar, Unpack, overload

import msgspec

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.core.domain.values import Link, OnLost, Preemption, TaskClass, TaskStatus
from gpuyard.input.nearest_name import closest_word, fields_meant
from gpuyard.input.quantities import gpu_mebibytes_in, gpus_in, mebibytes_in, seconds_in
from gpuyard.live.sdk.calls import Raised, RemoteCall, mapped, result_of, submitted_calls
from gpuyard.live.sdk.connection import TIMEOUT_SECONDS, Connection, ResponseStream
from gpuyard.live.sdk.errors import ClusterError, TaskFailed, TookTooLong
from gpuyard.live.sdk.functions import Arguments, PackedFunction
from gpuyard.live.sdk.leases import RenewalPlan, check_renewal, devices_set, renewed
from gpuyard.live.sdk.paths import of_task, quoted, same
from gpuyard.live.sdk.snapshots import TakenSnapshot, take_snapshot
from gpuyard.live.sdk.steps import Blocking, Item, ItemSteps, OnConnection, Steps, ask, listing, operation, send
from gpuyard.live.sdk.submit_again import request_again
from gpuyard.live.sdk.tokens import stored_server_user, stored_token
from gpuyard.live.sdk.uploads import download, name_of, upload
from gpuyard.live.sdk.values import (
    Lease,
    Page,
    Task,
    TaskHandle,
    TaskRef,
    created_at_of,
    id_of,
    number_of,
    visible_devices,
)
from gpuyard.live.sdk.waiting import AWAY, OVER, AwaitedEnds, OutageTolerance, OutageWatch, TaskChanges, look_at
from gpuyard.live.wire.alert_answers import AlertHistory, AlertList, AlertRuleList, SilenceAnswer, SilenceList
from gpuyard.live.wire.answers import (
    CancelAnswer,
    ExplainAnswer,
    GpusAnswer,
    HealthAnswer,
    LeaseAnswer,
    LeaseList,
    LoginAnswer,
    MessageAnswer,
    NodeAnswer,
    NodeList,
    PortList,
    PredictionsAnswer,
    QuotaAnswer,
    ReplicationAnswer,
    SessionAnswer,
    TenantAnswer,
    TenantList,
    TokenCreated,
    TokenList,
    UserAnswer,
    UserList,
)
from gpuyard.live.wire.booking_answers import BookingAnswer, BookingList
from gpuyard.live.wire.channel_frames import PORT_SUBPROTOCOL, SUBPROTOCOL
from gpuyard.live.wire.live_answers import OverviewAnswer
from gpuyard.live.wire.preview_answers import PreviewAnswer
from gpuyard.live.wire.queue_answers import EndedAnswer, QueueAnswer
from gpuyard.live.wire.search_answers import SearchAnswer
from gpuyard.live.wire.story_answers import StoryAnswer, StoryEvent
from gpuyard.live.wire.tasks import HIGH, LOW, PLACE
from gpuyard.live.wire.timeline_answers import TimelineAnswer
from gpuyard.live.wire.usage_answers import UsageAnswer

if TYPE_CHECKING:
    from gpuyard.live.sdk.console import TaskConsole
    from gpuyard.live.sdk.executor import ClusterExecutor
    from gpuyard.live.sdk.websocket import ClientWebSocket

T = TypeVar("T")
R = TypeVar("R")
DEFAULT_SERVER = "http://127.0.0.1:8080"
IN_ONE_CALL = 5000
"""Number of tasks sent in one batch; each batch is accepted as a whole or not at all."""
Command: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str] | int | float]
"""A line for the shell; or a program, with its arguments in a list."""
_ONE = {"count": 1}
ONE_TASK = (Task, LeaseAnswer, Lease, TaskHandle, str, int)
"""What names one task, although a string is also a sequence."""


class TaskFields(TypedDict, total=False):
    """The fields of a task besides its command. Names and meanings are those of the API."""

    priority: Literal["high", "low"] | int | None
    gpu_count: int | None
    gpus: int | str | None
    """The same as `gpu_count`, or with a model: "A100:2"."""
    gpu_model: str | Sequence[str] | None
    gpu_speeds: Mapping[str, float] | None
    env: Mapping[str, str | int | float] | None
    name: str | None
    description: str | None
    tenant_id: str | None
    project: str | None
    task_class: TaskClass | Literal["online", "batch"] | None
    """The API's `class`, which is a keyword in Python."""
    cpu_count: int | None
    memory_mb: int | None
    memory: int | str | None
    """The same as `memory_mb`, or with a unit: "8G"."""
    gpu_memory_mb: int | None
    gpu_memory: int | str | None
    """The same as `gpu_memory_mb`, or the size of the GPU: "24G", of which 93 percent are required."""
    gpu_fraction: float | None
    nodes: int | None
    labels: Mapping[str, str] | None
    timeout: float | str | None
    """Seconds, or text such as "2h" or "1h30m"; the same applies to `grace` and `estimated_seconds`."""
    grace: float | str | None
    retries: int | None
    depends_on: Sequence[TaskRef] | TaskRef | None
    after_any: Sequence[TaskRef] | TaskRef | None
    array: int | None
    """Number of copies; each finds its number in GPUYARD_ARRAY_INDEX."""
    setup: str | None
    """A line for the shell that runs before the command, such as "pip install -r requirements.txt"."""
    work_dir: str | os.PathLike[str] | None
    secrets: Mapping[str, str] | None
    preemption: Preemption | Literal["never", "suspend", "checkpoint", "requeue"] | None
    on_lost: OnLost | Literal["rerun", "fence", "wait"] | None
    estimated_seconds: float | str | None
    model: str | None
    console: Mapping[str, Any] | None
    """A terminal, such as {"columns": 120, "rows": 40}, or {"terminal": False} for an open standard input."""
    work: Mapping[str, Any] | None
    """What the task computes, such as {"model": "resnet50", "batch": 64, "steps": 1000}."""
    link: Link | Literal["any", "numa", "nvlink"] | None
    require_fit: bool | None
    booking: str | int | None
    """Use the GPUs of this booking, such as "booking-3"."""
    notify: Sequence[str] | None
    """Who is told, each such as "end,fail:mailto:me@example.org"."""
    submit_process: Mapping[str, Any] | None
    """Machine, umask and soft limits for the task, as `gpuyard submit` sends them."""
    snapshot: bool | str | os.PathLike[str] | TakenSnapshot | Mapping[str, Any] | None
    """True: run in a copy of the current folder as it is now; or the path of another folder."""
    files: Mapping[str, str] | None
    """Blobs that the task finds as files: names and SHA-256."""
    store_result: bool | None
    group: str | None
    """Your tasks with the same group are one line of `gpuyard ps`."""


class CommandFields(TaskFields, total=False):
    """The fields of a task, an array or a sweep besides its command."""

    max_running: int | None
    """How many tasks of the array or sweep may run at the same time."""


class NewTaskFields(CommandFields, total=False):
    """A task for `submit_many`."""

    command: Command | None


class CallFields(TaskFields, total=False):
    """The fields of a task that runs a function."""

    kwargs: Mapping[str, Any] | None
    """Keyword arguments of the function."""


class TaskFilters(TypedDict, total=False):
    """Filters for a list of tasks."""

    status: str | Iterable[str] | None
    tenant: str | None
    priority: str | int | None
    user: str | None
    project: str | None
    name: str | None
    since: str | float | None


class LeaseFields(TypedDict, total=False):
    """The fields of a lease besides the number of GPUs and the time limit."""

    gpu_model: str | Sequence[str] | None
    gpu_memory_mb: int | None
    gpu_memory: int | str | None
    gpu_fraction: float | None
    nodes: int | None
    priority: Literal["high", "low"] | int | None
    task_class: TaskClass | Literal["online", "batch"] | None
    name: str | None
    description: str | None
    tenant_id: str | None
    project: str | None
    require_fit: bool | None
    booking: str | int | None


class TenantLimits(TypedDict, total=False):
    """Limits of a tenant. A field that is left out is not limited."""

    max_gpus: int | None
    max_gpus_by_model: Mapping[str, int] | None
    guaranteed_gpus: int | None
    max_open_tasks: int | None
    weight: float | None
    gpu_hours: float | None
    gpu_hours_period: float | None


def connect(
    server: str | None = None,
    *,
    token: str | None = None,
    ca: str | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    server_user: str | None = None,
    wait_for_scheduler: float = 0.0,
    on_wait: Callable[[ClusterError, float], None] | None = None,
) -> "Client":
    """Return a client. Defaults come from GPUYARD_SERVER, GPUYARD_TOKEN, GPUYARD_CA and GPUYARD_SERVER_USER.

    Without a token, the one that `gpuyard login` stored for this server is used, if any. Nothing is sent yet. A server
    on this machine must be run by this user, root or `server_user`. A request to an address where nothing listens fails
    at once, or is retried for `wait_for_scheduler` seconds, to bridge a restart of the scheduler; `on_wait` is called
    once, after a second, with the reason and the most seconds it waits.
    """
    return Client(
        connection_to(
            server,
            token=token,
            ca=ca,
            timeout_seconds=timeout_seconds,
            server_user=server_user,
            wait_for_scheduler=wait_for_scheduler,
            on_wait=on_wait,
        )
    )


def connection_to(
    server: str | None,
    *,
    token: str | None,
    ca: str | None,
    timeout_seconds: float,
    server_user: str | None,
    wait_for_scheduler: float,
    on_wait: Callable[[ClusterError, float], None] | None,
) -> Connection:
    """Return the connection of a client; see `connect`."""
    server = server or os.environ.get("GPUYARD_SERVER") or DEFAULT_SERVER
    if token is None:
        token = os.environ.get("GPUYARD_TOKEN") or stored_token(server)
    return Connection(
        server,
        token=token,
        ca=ca or os.environ.get("GPUYARD_CA") or None,
        timeout_seconds=timeout_seconds,
        server_user=server_user or os.environ.get("GPUYARD_SERVER_USER") or stored_server_user(server),
        wait_seconds=wait_for_scheduler,
        on_wait=on_wait,
    )


class ClusterOperations:
    """What can be done with a cluster, each as steps that a `Client` blocks for and an `AsyncClient` awaits."""

    connection: Connection

    # --- submitting ---------------------------------------------------------------------------------------------------

    @operation
    def _submit_command(
        self, command: Command, *, idempotency_key: str | None = None, **fields: Unpack[CommandFields]
    ) -> Steps[Task]:
        tasks = yield from self._submit_all(command, idempotency_key, fields)
        return tasks[0]

    @operation
    def submit_all(
        self, command: Command, *, idempotency_key: str | None = None, **fields: Unpack[CommandFields]
    ) -> Steps[list[Task]]:
        """Submit a task and return all tasks of its array."""
        return self._submit_all(command, idempotency_key, fields)

    def _submit_all(self, command: Command, key: str | None, fields: CommandFields) -> Steps[list[Task]]:
        (body,) = yield from self._with_snapshots([_request(fields, command=command)])
        key = key or new_key()
        if "array" in body:
            return (yield from ask("POST", "/api/v1/tasks", _Tasks, body=body, key=key)).tasks
        return [(yield from ask("POST", "/api/v1/tasks", Task, body=body, key=key))]

    @operation
    def submit_many(self, tasks: Iterable[NewTaskFields], *, idempotency_key: str | None = None) -> Steps[list[Task]]:
        """Submit many tasks; return them in order, arrays expanded.

        Each 5,000 of a tenant are accepted as a whole or not at all.

        They may depend on each other by position: `"tasks[2]"` is the third. A task in a later batch cannot be a
        dependency. With your own key, sending them again does not submit them again.
        """
        bodies = yield from self._with_snapshots([_request(task) for task in tasks])
        by_tenant: dict[str | None, list[int]] = {}
        for place, body in enumerate(bodies):
            by_tenant.setdefault(body.get("tenant_id"), []).append(place)
        made: list[list[Task]] = [[] for _ in bodies]
        for places in by_tenant.values():
            for begin in range(0, len(places), IN_ONE_CALL):
                part = places[begin : begin + IN_ONE_CALL]
                within = {place: number for number, place in enumerate(part)}
                key = idempotency_key or new_key()
                if idempotency_key and part[0]:  # later batches have their own key
                    key = f"{idempotency_key}-{part[0]}"
                answers = iter((yield from self._batch([_in_part(bodies[place], within, made) for place in part], key)))
                for place in part:
                    made[place] = list(islice(answers, bodies[place].get("array", _ONE)["count"]))
        return [task for answers in made for task in answers]

    @operation
    def submit_together(
        self,
        tasks: Iterable[NewTaskFields],
        *,
        limits: Iterable[Mapping[str, int]] = (),
        idempotency_key: str | None = None,
    ) -> Steps[list[Task]]:
        """Submit tasks of one tenant in one request, which is accepted as a whole or not at all; return them in order.

        They may depend on each other by position: `"tasks[2]"` is the third. Of `limits`, each says how many of several
        consecutive tasks may run at the same time, such as `{"first": 0, "count": 6, "max_running": 2}`.
        """
        return self._batch([_request(task) for task in tasks], idempotency_key or new_key(), limits)

    @operation
    def sweep(
        self,
        command: Command,
        values: Mapping[str, Any],
        *,
        side_by_side: bool = False,
        idempotency_key: str | None = None,
        **fields: Unpack[CommandFields],
    ) -> Steps[list[Task]]:
        """Submit a command once for each combination of values; all are accepted or none.

        `values` has a list for each key, such as `{"lr": [1e-3, 1e-4], "seed": range(10)}`, or text such as `"0..9"`. In
        the command `{lr}` stands for a value, `{index}` for the number of the task, `{args}` for all values as
        `--lr 0.001 --seed 0`, `{hydra}` as `lr=0.001 seed=0`. With `side_by_side` the lists are not combined: the first
        task has all first values.
        """
        from gpuyard.input.sweep import axes_of, points_of, swept_tasks

        if fields.get("array") is not None:
            raise WrongInput("A sweep cannot be an array, too; add a key with the numbers to the sweep.")
        points = points_of(axes_of(values), side_by_side=side_by_side)
        most = fields.pop("max_running", None)
        env = {name: _word(value) for name, value in (fields.get("env") or {}).items()}
        swept = swept_tasks(_words(command), points, name=fields.get("name"), env=env)
        tasks: list[NewTaskFields] = [
            {**fields, "command": one.command, "env": one.env, "name": one.name} for one in swept
        ]
        limits = [] if most is None else [{"first": 0, "count": len(tasks), "max_running": most}]
        return (yield from self._batch([_request(task) for task in tasks], idempotency_key or new_key(), limits))

    def _batch(
        self, bodies: list[dict[str, Any]], key: str, limits: Iterable[Mapping[str, int]] = ()
    ) -> Steps[list[Task]]:
        body: dict[str, Any] = {"tasks": (yield from self._with_snapshots(bodies))}
        if limits := list(limits):
            body["limits"] = limits
        return (yield from ask("POST", "/api/v1/tasks:batch", _Tasks, body=body, key=key)).tasks

    def _with_snapshots(self, bodies: list[dict[str, Any]]) -> Steps[list[dict[str, Any]]]:
        """Take and upload the snapshots that requests ask for; each folder once, for each tenant."""
        taken: dict[tuple[str | int, str | None], dict[str, object]] = {}
        for body in bodies:
            asked = body.get("snapshot")
            if asked is False:
                del body["snapshot"]
            elif asked is not None:
                body.pop("work_dir", None)
            if not asked or isinstance(asked, Mapping):
                continue
            place = (id(asked) if isinstance(asked, TakenSnapshot) else str(asked), body.get("tenant_id"))
            if place not in taken:
                taken[place] = yield from _uploaded_snapshot(asked, body.get("tenant_id"))
            body["snapshot"] = taken[place]
        return bodies

    # --- functions ----------------------------------------------------------------------------------------------------

    @operation
    def result(self, task: TaskRef, *, timeout: float | None = None) -> Steps[Any]:
        """Return the result of a function that you submitted, also in another program, or raise its exception."""
        now = yield from ask("GET", of_task(task), Task, query=same(task))
        return (yield from result_of(self.connection, now, timeout))

    @operation
    def upload(self, content: bytes | Path, *, tenant_id: str | None = None) -> Steps[str]:
        """Store a content, or that of a file, and return its SHA-256, for the field `files` of a task."""
        data = content if isinstance(content, bytes) else content.read_bytes()
        yield from upload({name_of(data): data}, tenant_id)
        return name_of(data)

    @operation
    def download(self, blob: str, *, tenant_id: str | None = None) -> Steps[bytes]:
        """Return a stored content, such as the `result` of a task."""
        return download(blob, tenant_id)

    @operation
    def _submit_call(self, function: Callable[..., Any], args: tuple[Any, ...], fields: TaskFields) -> Steps[Task]:
        given = dict(fields)
        kwargs: Any = given.pop("kwargs", None) or {}
        tasks = yield from submitted_calls(PackedFunction(function), [(args, kwargs)], given, self._submit_bodies)
        return tasks[0]

    def _submit_bodies(self, tasks: list[dict[str, Any]]) -> Steps[list[Task]]:
        made: list[Task] = []
        for begin in range(0, len(tasks), IN_ONE_CALL):
            part = [_request(task) for task in tasks[begin : begin + IN_ONE_CALL]]
            made += yield from self._batch(part, new_key())
        return made

    def _mapped(
        self,
        function: Callable[..., Any],
        iterables: Sequence[Iterable[Any]],
        max_running: int | None,
        ordered: bool,
        return_exceptions: bool,
        fields: TaskFields,
    ) -> ItemSteps[Any]:
        for name in ("array", "nodes"):
            if fields.get(name) is not None:
                raise WrongInput(f"{name} cannot be combined with map; each item is a task of its own on one node.")
        calls: Iterator[Arguments] = ((args, {}) for args in zip(*iterables, strict=False))
        return mapped(
            self.connection,
            PackedFunction(function),
            calls,
            fields,
            self._submit_bodies,
            max_running=max_running,
            ordered=ordered,
            return_exceptions=return_exceptions,
        )

    # --- looking ------------------------------------------------------------------------------------------------------

    @operation
    def task(self, task: TaskRef) -> Steps[Task]:
        """Return the current state of a task."""
        return ask("GET", of_task(task), Task, query=same(task))

    @listing
    def tasks(self, *, query: str | None = None, **filters: Unpack[TaskFilters]) -> ItemSteps[Task]:
        """Return all tasks that match, newest first. `query` is part of a name, command, id or user."""
        cursor: str | None = None
        while True:
            asked = {**filters, "limit": 1000, "cursor": cursor, "q": query}
            page = yield from ask("GET", "/api/v1/tasks", Page, query=asked)
            for task in page.tasks:
                yield Item(task)
            cursor = page.next_cursor
            if cursor is None:
                return

    @operation
    def page(
        self,
        *,
        limit: int = 100,
        cursor: str | None = None,
        query: str | None = None,
        sort: str | None = None,
        offset: int | None = None,
        **filters: Unpack[TaskFilters],
    ) -> Steps[Page]:
        """Return one page of the list, newest first.

        With `sort` (such as `name`, or `-started_at` for the latest first), pages have an `offset` and no cursor.
        """
        asked = {**filters, "limit": limit, "cursor": cursor, "q": query, "sort": sort, "offset": offset}
        return ask("GET", "/api/v1/tasks", Page, query=asked)

    @operation
    def queue(
        self,
        *,
        limit: int = 100,
        offset: int | None = None,
        sort: str | None = None,
        fold: bool = False,
        query: str | None = None,
        **filters: Unpack[TaskFilters],
    ) -> Steps[QueueAnswer]:
        """Return a page of open tasks: running ones, then waiting ones in queue order, with places and expected starts.

        `sort` is another order, such as `name` or `-priority`; `fold` puts the tasks of an array, sweep or group on one row.
        """
        asked = {
            **filters,
            "limit": limit,
            "offset": offset,
            "sort": sort,
            "q": query,
            "fold": "true" if fold else None,
        }
        return ask("GET", "/api/v1/queue", QueueAnswer, query=asked)

    @operation
    def ended(
        self, *, limit: int = 100, query: str | None = None, **filters: Unpack[TaskFilters]
    ) -> Steps[EndedAnswer]:
        """Return the tasks that ended last, those of an array, sweep or group on one row with counts."""
        return ask("GET", "/api/v1/queue/ended", EndedAnswer, query={**filters, "limit": limit, "q": query})

    @operation
    def events(self, task: TaskRef) -> Steps[list[StoryEvent]]:
        """Return what has happened to a task, from its submission on; also after its end."""
        return (yield from ask("GET", f"{of_task(task)}/events", StoryAnswer, query=same(task))).events

    @operation
    def preview(self, command: Command, **fields: Unpack[CommandFields]) -> Steps[PreviewAnswer]:
        """Return where and when a task would start, without submitting it."""
        body, dry_run = _request(fields, command=command), {"dry_run": "true"}
        body.pop("snapshot", None)  # nothing is stored
        return ask("POST", "/api/v1/tasks", PreviewAnswer, body=body, query=dry_run)

    @operation
    def timeline(
        self,
        *,
        start: float | str | None = None,
        end: float | str | None = None,
        width: int | None = None,
        node: str | None = None,
        tenant: str | None = None,
    ) -> Steps[TimelineAnswer]:
        """Return which task held which GPU when, by default in the last six hours."""
        asked = {"from": start, "to": end, "width": width, "node": node, "tenant": tenant}
        return ask("GET", "/api/v1/timeline", TimelineAnswer, query=asked)

    @operation
    def search_logs(
        self,
        task: TaskRef,
        text: str,
        *,
        match_case: bool = False,
        context: int | None = None,
        attempt: int | None = None,
        node: str | None = None,
        offset: int | None = None,
        limit: int | None = None,
        since: datetime | float | str | None = None,
    ) -> Steps[SearchAnswer]:
        """Return the lines of a task's output that contain a text; the node searches. Continue at `next_offset`."""
        asked: dict[str, object] = {
            "search": text,
            "case": match_case or None,
            "context": context,
            "attempt": attempt,
            "node": node,
            "offset": offset,
            "limit": limit,
            "since": _instant(since),
        }
        return ask("GET", f"{of_task(task)}/logs", SearchAnswer, query=asked | same(task))

    @operation
    def explain(self, task: TaskRef) -> Steps[ExplainAnswer]:
        """Return why it waits, how many tasks are ahead of it, and when it is likely to start."""
        return ask("GET", f"{of_task(task)}/explain", ExplainAnswer, query=same(task))

    @listing
    def logs(
        self,
        task: TaskRef,
        *,
        follow: bool = False,
        tail: int | None = None,
        attempt: int | None = None,
        node: str | None = None,
        offset: int | None = None,
        since: datetime | float | str | None = None,
        until: datetime | float | str | None = None,
        timestamps: bool = False,
    ) -> ItemSteps[bytes]:
        """Yield the output of a task in pieces as they arrive; with `follow`, until it ends. `tail` is in bytes.

        `since` and `until` are a `datetime` (without a time zone: local time), seconds since 1970, or RFC 3339.
        """
        query: dict[str, object] = {
            "follow": follow or None,
            "tail": tail,
            "attempt": attempt,
            "node": node,
            "offset": offset,
            "since": _instant(since),
            "until": _instant(until),
            "timestamps": timestamps or None,
        }
        query |= same(task)
        return _stream(f"{of_task(task)}/logs", query)

    # --- waiting ------------------------------------------------------------------------------------------------------

    @operation
    def _wait_for_all(self, tasks: Sequence[TaskRef], timeout: float | None, check: bool) -> Steps[list[Task]]:
        ends: dict[int, Task] = {}
        waiting = yield from self._awaited(tasks, timeout, None)
        try:
            while (task := (yield from waiting.next())) is not None:
                if check and not task.succeeded:
                    raise TaskFailed(task)
                ends[task.number] = task
        finally:
            waiting.close()
        return [ends[number] for number in map(number_of, tasks) if number is not None]

    @listing
    def ends(
        self, tasks: Iterable[TaskRef], *, timeout: float | None = None, on_outage: OutageWatch | None = None
    ) -> ItemSteps[Task]:
        """Yield tasks in the order in which they end. Raise `TookTooLong` if some are left after `timeout`.

        If the scheduler goes away meanwhile, wait for it for two minutes; `on_outage` is called.
        """
        waiting = yield from self._awaited(list(tasks), timeout, on_outage)
        try:
            while (task := (yield from waiting.next())) is not None:
                yield Item(task)
        finally:
            waiting.close()

    def _awaited(
        self, tasks: Sequence[TaskRef], timeout: float | None, on_outage: OutageWatch | None
    ) -> Steps[AwaitedEnds]:
        numbers: dict[int, str | None] = {}
        for task in tasks:
            numbers[(yield from self._number(task))] = created_at_of(task)
        return AwaitedEnds(self.connection.without_waiting(), numbers, timeout, on_outage)

    @listing
    def changes(
        self, task: TaskRef, *, idle_seconds: float = 5.0, on_outage: OutageWatch | None = None
    ) -> ItemSteps[Task]:
        """Yield a task after each change and every `idle_seconds`, the last time when it has ended.

        If the scheduler goes away meanwhile, wait for it for two minutes; `on_outage` is called. If it returns with
        another task under this number, raise `NotFound`.
        """
        number = yield from self._number(task)
        connection = self.connection.without_waiting()
        tolerance = OutageTolerance(connection, on_outage)
        following = TaskChanges(connection, (number,), timeout=None, idle_seconds=idle_seconds)
        try:
            while (yield from following.next()) is not OVER:
                try:
                    task = now = yield from look_at(connection, number, created_at_of(task))
                except AWAY as error:
                    tolerance.tolerate(error)
                    continue
                tolerance.answered()
                yield Item(now)
                if now.ended:
                    return
        finally:
            following.close()

    def _number(self, task: TaskRef) -> Steps[int]:
        number = number_of(task)
        if number is not None:
            return number
        return (yield from ask("GET", of_task(task), Task, query=same(task))).number

    # --- changing -----------------------------------------------------------------------------------------------------

    @operation
    def ports(self, task: TaskRef) -> Steps[PortList]:
        """Return the TCP ports on which a running task listens."""
        return ask("GET", f"{of_task(task)}/ports", PortList, query=same(task))

    @operation
    def cancel(self, task: TaskRef) -> Steps[CancelAnswer]:
        """Stop a task, or take it out of the queue. A task that has ended stays as it is."""
        return ask("DELETE", of_task(task), CancelAnswer, query=same(task))

    @operation
    def suspend(self, task: TaskRef) -> Steps[Task]:
        """Suspend a running task and give its GPUs to others."""
        return self._do(task, "suspend")

    @operation
    def resume(self, task: TaskRef) -> Steps[Task]:
        """Resume a suspended task."""
        return self._do(task, "resume")

    @operation
    def hold(self, task: TaskRef) -> Steps[Task]:
        """Keep a waiting task from starting."""
        return self._do(task, "hold")

    @operation
    def release(self, task: TaskRef) -> Steps[Task]:
        """Let a task on hold start."""
        return self._do(task, "release")

    def _do(self, task: TaskRef, action: str) -> Steps[Task]:
        return ask("POST", f"{of_task(task)}/{action}", Task, query=same(task))

    @operation
    def set_priority(self, task: TaskRef, priority: int) -> Steps[Task]:
        """Set the priority within its class, 0 to 100."""
        body = {"priority": priority}
        return ask("PATCH", of_task(task), Task, body=body, query=same(task))

    @operation
    def set_max_running(self, task: TaskRef, max_running: int) -> Steps[Task]:
        """Set how many tasks of the array or sweep of this task may run at the same time; 0: any number."""
        body = {"max_running": max_running}
        return ask("PATCH", of_task(task), Task, body=body, query=same(task))

    @operation
    def boost(self, task: TaskRef, by: int = 10) -> Steps[Task]:
        """Raise the priority within its class, at most to 100."""
        now = yield from ask("GET", of_task(task), Task, query=same(task))
        body = {"priority": min(100, _priority_number(now) + by)}
        return (yield from ask("PATCH", of_task(now), Task, body=body, query=same(now)))

    @operation
    def extend(
        self, task: TaskRef, *, by: float | str | None = None, timeout: float | str | None = None
    ) -> Steps[Task]:
        """Raise the timeout of a waiting or running task by a time, or to a new one; in seconds or as text such as "2h"."""
        if (by is None) == (timeout is None):
            raise WrongInput("Give either by, a time to add, or timeout, the new one.")
        if timeout is None:
            now = yield from ask("GET", of_task(task), Task, query=same(task))
            if now.timeout is None:
                raise WrongInput(f"{now.id} has no timeout, so it cannot be extended.")
            task, timeout = now, now.timeout + _quantity(seconds_in, by, "by")
        body = {"timeout": _quantity(seconds_in, timeout, "timeout")}
        return (yield from ask("PATCH", of_task(task), Task, body=body, query=same(task)))

    @operation
    def clone(
        self,
        task: TaskRef,
        *,
        idempotency_key: str | None = None,
        **changes: Unpack[TaskFields],
    ) -> Steps[Task]:
        """Submit a task again, ended or not, with these changes. Variables of `env` are added to those of the task.

        Dependencies are not repeated. The scheduler does not return secrets: give their values again with `secrets`.
        """
        told = yield from ask("GET", of_task(task), Task, query=same(task))
        body = request_again(told, _request(changes))
        booking = body.get("booking")
        if booking and "booking" not in changes:
            known = yield from ask("GET", "/api/v1/bookings", BookingList)
            if booking not in {one.id for one in known.bookings}:
                del body["booking"]  # it has ended, and restricts nothing
        key = idempotency_key or new_key()
        if "array" in body:
            return (yield from ask("POST", "/api/v1/tasks", _Tasks, body=body, key=key)).tasks[0]
        return (yield from ask("POST", "/api/v1/tasks", Task, body=body, key=key))

    # --- leases -------------------------------------------------------------------------------------------------------

    @operation
    def take_lease(
        self,
        gpus: int | None = None,
        *,
        timeout: float | None = None,
        wait_seconds: float | None = None,
        watch: Callable[[Task], None] | None = None,
        **fields: Unpack[LeaseFields],
    ) -> Steps[Lease]:
        """Take a lease without a `with`; release it yourself.

        It is given up if it is not granted within `wait_seconds`.

        `watch` is called with the lease from time to time: why it waits, and that it runs.
        """
        asked = yield from self._ask_for_lease(gpus, timeout, None, fields)
        try:
            return (yield from self._granted(asked, wait_seconds, watch, None))
        except GeneratorExit:
            raise  # nothing can be asked any more; the lease ends by its timeout
        except BaseException:
            yield from self._release(asked)
            raise

    @operation
    def ask_for_lease(
        self,
        gpus: int | None = None,
        *,
        timeout: float | str | None = None,
        idempotency_key: str | None = None,
        **fields: Unpack[LeaseFields],
    ) -> Steps[LeaseAnswer]:
        """Request GPUs without waiting for them. With your own key, a repeated request returns the same lease."""
        return self._ask_for_lease(gpus, timeout, idempotency_key, fields)

    def _ask_for_lease(
        self, gpus: int | None, timeout: float | str | None, key: str | None, fields: LeaseFields
    ) -> Steps[LeaseAnswer]:
        body = _request(fields, gpu_count=gpus, timeout=timeout)
        key = key or new_key()
        return ask("POST", "/api/v1/leases", LeaseAnswer, body=body, key=key)

    @operation
    def granted(
        self,
        lease: TaskRef,
        *,
        wait_seconds: float | None = None,
        watch: Callable[[Task], None] | None = None,
        on_outage: OutageWatch | None = None,
    ) -> Steps[Lease]:
        """Wait until a lease has its GPUs."""
        return self._granted(lease, wait_seconds, watch, on_outage)

    def _granted(
        self,
        lease: TaskRef,
        wait_seconds: float | None,
        watch: Callable[[Task], None] | None,
        on_outage: OutageWatch | None,
    ) -> Steps[Lease]:
        number = yield from self._number(lease)
        connection = self.connection.without_waiting()
        tolerance = OutageTolerance(connection, on_outage)
        asked = lease
        following = TaskChanges(connection, (number,), timeout=wait_seconds)
        try:
            while (yield from following.next()) is not OVER:
                try:
                    asked = task = yield from look_at(connection, number, created_at_of(asked))
                    if watch is not None:
                        watch(task)
                    if task.status is TaskStatus.RUNNING:
                        return (yield from self._lease_of(task))
                except AWAY as error:
                    tolerance.tolerate(error)
                    continue
                tolerance.answered()
                if task.ended:
                    raise TaskFailed(task)
        finally:
            following.close()
        raise TookTooLong(f"{id_of(lease)} did not get its GPUs within {wait_seconds:g} s.")

    def _lease_of(self, task: Task) -> Steps[Lease]:
        known = yield from ask("GET", f"/api/v1/leases/{task.id}", LeaseAnswer, query=same(task))
        gpus = yield from ask("GET", "/api/v1/gpus", GpusAnswer)
        env = {"CUDA_VISIBLE_DEVICES": visible_devices(known.gpus, gpus.gpus)}
        return Lease(known.id, known.gpus, known.node_id, env, known.expires_at, known.created_at)

    @operation
    def release_lease(self, lease: TaskRef) -> Steps[CancelAnswer]:
        """Give the GPUs back. Repeating it has no effect."""
        return self._release(lease)

    def _release(self, lease: TaskRef) -> Steps[CancelAnswer]:
        return ask("DELETE", f"/api/v1/leases/{quoted(id_of(lease))}", CancelAnswer, query=same(lease))

    @operation
    def leases(self) -> Steps[LeaseList]:
        """Return all leases that are held or waited for."""
        return ask("GET", "/api/v1/leases", LeaseList)

    # --- bookings -----------------------------------------------------------------------------------------------------

    @operation
    def book(
        self,
        gpus: int | str | None = None,
        *,
        begins_at: datetime | None = None,
        ends_at: datetime | None = None,
        duration: float | str | None = None,
        gpu_model: str | Sequence[str] | None = None,
        nodes: Sequence[str] | None = None,
        tenant_id: str | None = None,
        maintenance: bool = False,
        preempt: bool = False,
        note: str | None = None,
    ) -> Steps[BookingAnswer]:
        """Book GPUs from `begins_at` (default: now) for a duration such as "12h", or until `ends_at`.

        Tasks use them with `booking=` the id of the booking. A `datetime` without a time zone is local time.
        """
        if maintenance and gpus is not None:
            raise WrongInput("A maintenance window closes whole nodes; omit gpus and name the nodes.")
        count, model = (None, None) if gpus is None else _quantity(gpus_in, gpus, "gpus")
        body = _request(
            {},
            gpu_count=count,
            gpu_model=model or gpu_model,
            nodes=list(nodes) if nodes is not None else None,
            begins_at=_instant(begins_at),
            ends_at=_instant(ends_at),
            seconds=None if duration is None else seconds_in(duration),
            tenant_id=tenant_id,
            maintenance=maintenance or None,
            preempt=preempt or None,
            note=note,
        )
        return ask("POST", "/api/v1/bookings", BookingAnswer, body=body)

    @operation
    def bookings(self) -> Steps[BookingList]:
        """Return the bookings that have not ended, the next one first."""
        return ask("GET", "/api/v1/bookings", BookingList)

    @operation
    def cancel_booking(self, booking: str | int) -> Steps[MessageAnswer]:
        """Cancel a booking, or end it early."""
        return ask("DELETE", f"/api/v1/bookings/{quoted(str(booking))}", MessageAnswer)

    # --- the cluster --------------------------------------------------------------------------------------------------

    @operation
    def gpus(self) -> Steps[GpusAnswer]:
        """Return all GPUs and their use."""
        return ask("GET", "/api/v1/gpus", GpusAnswer)

    @operation
    def overview(self) -> Steps[OverviewAnswer]:
        """Return the state of the cluster in one answer."""
        return ask("GET", "/api/v1/overview", OverviewAnswer)

    @listing
    def live(self) -> ItemSteps[bytes]:
        """Yield the live stream of the cluster as it comes: server-sent events, one a second, until it breaks."""
        return _stream("/api/v1/live")

    @operation
    def node(self, node: str) -> Steps[NodeAnswer]:
        """Return one node."""
        return ask("GET", f"/api/v1/nodes/{quoted(node)}", NodeAnswer)

    @operation
    def nodes(self) -> Steps[NodeList]:
        """Return all nodes."""
        return ask("GET", "/api/v1/nodes", NodeList)

    @operation
    def cordon(self, node: str, *, reason: str | None = None) -> Steps[NodeAnswer]:
        """Place no new tasks on a node; `reason` is shown with the node."""
        return self._do_to_node(node, "cordon", {"reason": reason})

    @operation
    def drain(self, node: str, *, force: bool = False, reason: str | None = None) -> Steps[NodeAnswer]:
        """Place nothing new on a node, and move away the tasks that allow it; with `force` suspended ones, too."""
        return self._do_to_node(node, "drain", {"force": force or None, "reason": reason})

    @operation
    def uncordon(self, node: str) -> Steps[NodeAnswer]:
        """Place tasks on a node again."""
        return self._do_to_node(node, "uncordon")

    def _do_to_node(self, node: str, action: str, query: Mapping[str, object] | None = None) -> Steps[NodeAnswer]:
        return ask("POST", f"/api/v1/nodes/{quoted(node)}/{action}", NodeAnswer, query=query)

    @operation
    def stop_unknown_attempt(self, node: str, task: TaskRef, attempt: int) -> Steps[MessageAnswer]:
        """End an attempt that a node runs and the scheduler does not know; `nodes()` lists them as `unknown_attempts`."""
        path = f"/api/v1/nodes/{quoted(node)}/unknown_attempts/{quoted(id_of(task))}/{attempt}/stop"
        return ask("POST", path, MessageAnswer)

    @operation
    def remove_node(self, node: str) -> Steps[None]:
        """Forget a node. It may come back."""
        yield from send("DELETE", f"/api/v1/nodes/{quoted(node)}")

    @operation
    def predictions(self) -> Steps[PredictionsAnswer]:
        """Return the accuracy of predictions for the tasks that ended last, and the model that makes them."""
        return ask("GET", "/api/v1/predictions", PredictionsAnswer)

    @operation
    def health(self) -> Steps[HealthAnswer]:
        """Return whether the scheduler works, whether it leads, and how far a standby is behind."""
        return ask("GET", "/health", HealthAnswer)

    @operation
    def promote(self) -> Steps[HealthAnswer]:
        """Let this standby lead; the scheduler that leads hands over to it."""
        return ask("POST", "/api/v1/promote", HealthAnswer)

    @operation
    def replication(self) -> Steps[ReplicationAnswer]:
        """Return how two schedulers replicate the journal: which copies are complete, who votes, what is missing."""
        return ask("GET", "/api/v1/replication", ReplicationAnswer)

    @operation
    def detach_standby(self) -> Steps[ReplicationAnswer]:
        """Go on without the standby until it has caught up; new events are then on one disk only."""
        return ask("POST", "/api/v1/replication/detach", ReplicationAnswer)

    @operation
    def quota(self) -> Steps[QuotaAnswer]:
        """Return how the cluster is split between online and batch work."""
        return ask("GET", "/api/v1/quota", QuotaAnswer)

    @operation
    def set_quota(self, online_percent: float, *, mode: QuotaMode | str | None = None) -> Steps[QuotaAnswer]:
        """Change the split: 0.7 for 70 percent online work."""
        body = _request({}, online_percent=online_percent, mode=mode)
        return ask("PUT", "/api/v1/quota", QuotaAnswer, body=body)

    # --- alerts -------------------------------------------------------------------------------------------------------

    @operation
    def alerts(self, *, state: str | None = None) -> Steps[AlertList]:
        """Return the alerts, firing ones first; with `state` (or several, with commas) only those."""
        return ask("GET", "/api/v1/alerts", AlertList, query={"state": state})

    @operation
    def alert_rules(self) -> Steps[AlertRuleList]:
        """Return the rules of alerts as they are evaluated."""
        return ask("GET", "/api/v1/alerts/rules", AlertRuleList)

    @operation
    def alert_history(self, *, limit: int | None = None, cursor: str | None = None) -> Steps[AlertHistory]:
        """Return changes of alerts, newest first."""
        query = {"limit": limit, "cursor": cursor}
        return ask("GET", "/api/v1/alerts/history", AlertHistory, query=query)

    @operation
    def silences(self) -> Steps[SilenceList]:
        """Return the silences that have not ended."""
        return ask("GET", "/api/v1/alerts/silences", SilenceList)

    @operation
    def silence_alerts(
        self,
        *,
        seconds: float,
        rule: str | None = None,
        node: str | None = None,
        gpu: str | None = None,
        comment: str = "",
    ) -> Steps[SilenceAnswer]:
        """Do not send alerts that match all of these, for so many seconds."""
        matchers = {name: text for name, text in (("rule", rule), ("node", node), ("gpu", gpu)) if text is not None}
        body = {"matchers": matchers, "seconds": seconds, "comment": comment}
        return ask("POST", "/api/v1/alerts/silences", SilenceAnswer, body=body)

    @operation
    def end_silence(self, silence: str) -> Steps[None]:
        """End a silence."""
        yield from send("DELETE", f"/api/v1/alerts/silences/{quoted(silence)}")

    # --- usage --------------------------------------------------------------------------------------------------------

    @operation
    def usage(self, *, by: str = "tenant", since: str | None = None, until: str | None = None) -> Steps[UsageAnswer]:
        """Return GPU-hours, idle and lost time, energy and waits in [since, until), by these keys (with commas)."""
        query = {"by": by, "since": since, "until": until}
        return ask("GET", "/api/v1/usage", UsageAnswer, query=query)

    @operation
    def usage_csv(self, *, by: str = "tenant", since: str | None = None, until: str | None = None) -> Steps[str]:
        """Return the same as CSV, with a line of names."""
        query = {"by": by, "since": since, "until": until, "format": "csv"}
        return (yield from send("GET", "/api/v1/usage", query=query)).decode()

    # --- access -------------------------------------------------------------------------------------------------------

    @operation
    def tenants(self) -> Steps[TenantList]:
        """Return all tenants you may see."""
        return ask("GET", "/api/v1/tenants", TenantList)

    @operation
    def set_tenant(self, tenant: str, **limits: Unpack[TenantLimits]) -> Steps[TenantAnswer]:
        """Set the limits of a tenant. A field that is left out is not limited."""
        return ask("PUT", f"/api/v1/tenants/{quoted(tenant)}", TenantAnswer, body=_request(limits))

    @operation
    def users(self) -> Steps[UserList]:
        """Return all users."""
        return ask("GET", "/api/v1/users", UserList)

    @operation
    def add_user(
        self, username: str, password: str, *, tenant_id: str, role: str = "member", system_user: str = ""
    ) -> Steps[UserAnswer]:
        """Add a user; `system_user` is the account that the user's tasks run as on nodes whose agent is root."""
        body = {"username": username, "password": password, "tenant_id": tenant_id, "role": role}
        if system_user:
            body["system_user"] = system_user
        return ask("POST", "/api/v1/users", UserAnswer, body=body)

    @operation
    def set_password(
        self, username: str, password: str, *, old_password: str | None = None, revoke_tokens: bool = False
    ) -> Steps[UserAnswer]:
        """Change a password: your own (with the old one), or as an admin any. Logins with the old password end.

        Tokens stay valid unless `revoke_tokens` is set.
        """
        body = _request({}, password=password, old_password=old_password, revoke_tokens=revoke_tokens or None)
        return ask("PATCH", f"/api/v1/users/{quoted(username)}", UserAnswer, body=body)

    @operation
    def change_user(
        self, username: str, *, tenant_id: str | None = None, role: str | None = None, system_user: str | None = None
    ) -> Steps[UserAnswer]:
        """Change tenant, role or system account; arguments that are None change nothing."""
        asked = {"tenant_id": tenant_id, "role": role, "system_user": system_user}
        body = {name: value for name, value in asked.items() if value is not None}
        return ask("PATCH", f"/api/v1/users/{quoted(username)}", UserAnswer, body=body)

    @operation
    def remove_user(self, username: str) -> Steps[None]:
        """Remove a user and all tokens of that user."""
        yield from send("DELETE", f"/api/v1/users/{quoted(username)}")

    @operation
    def tokens(self) -> Steps[TokenList]:
        """Return all tokens you may see."""
        return ask("GET", "/api/v1/tokens", TokenList)

    @operation
    def create_token(
        self,
        name: str = "",
        *,
        username: str | None = None,
        lifetime_seconds: float | None = None,
        password: str | None = None,
    ) -> Steps[TokenCreated]:
        """Create a token; its secret is shown only this once.

        It does not outlive the login or token it is made with, unless your password is given again.
        """
        body = _request({}, name=name, username=username, lifetime=lifetime_seconds, password=password)
        return ask("POST", "/api/v1/tokens", TokenCreated, body=body)

    @operation
    def revoke_token(self, token: str) -> Steps[None]:
        """Revoke a token, named by its id."""
        yield from send("DELETE", f"/api/v1/tokens/{quoted(token)}")

    @operation
    def who_am_i(self) -> Steps[SessionAnswer]:
        """Return the user, tenant, role and rights of this client."""
        return ask("GET", "/api/v1/session", SessionAnswer)

    @operation
    def login(self, username: str, password: str) -> Steps[LoginAnswer]:
        """Exchange a password for a token that expires. This client is not changed; connect again with the token."""
        body = {"username": username, "password": password}
        return ask("POST", "/api/v1/login", LoginAnswer, body=body)


class Client(ClusterOperations, Blocking):
    """One cluster. Create it with `gpuyard.connect()`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def without_waiting(self) -> "Client":
        """Return a client with the same connections whose requests fail at once if nothing listens."""
        return Client(self.connection.without_waiting())

    def close(self) -> None:
        """Close the connection of this thread; the next request opens another one."""
        self.connection.close()

    @overload
    def submit(
        self, command: Command, *, idempotency_key: str | None = None, **fields: Unpack[CommandFields]
    ) -> Task: ...
    @overload
    def submit(self, command: Callable[..., R], *args: Any, **fields: Unpack[CallFields]) -> "RemoteCall[R]": ...

    def submit(self, command: Any, *args: Any, idempotency_key: str | None = None, **fields: Any) -> Any:
        """Submit a task: a shell command line, a list of arguments, or a function with its arguments.

        For an array, return its first task. A function returns a `RemoteCall`, whose `result()` is the value; keyword
        arguments of the function are passed as `kwargs={…}`, because all others are fields of the task.

        It is sent with an idempotency key, so that a broken connection never leads to two tasks. Pass your own key to
        be safe across restarts of your program, too.
        """
        if not callable(command):
            check_command(args, fields)
            return self._submit_command(command, idempotency_key=idempotency_key, **fields)
        check_call(fields, idempotency_key)
        return RemoteCall(self.connection, self._submit_call(command, args, fields))  # type: ignore[arg-type]

    @overload
    def map(
        self,
        function: Callable[..., R],
        *iterables: Iterable[Any],
        max_running: int | None = None,
        ordered: bool = True,
        return_exceptions: Literal[False] = False,
        **fields: Unpack[TaskFields],
    ) -> "MapResults[R]": ...
    @overload
    def map(
        self,
        function: Callable[..., R],
        *iterables: Iterable[Any],
        max_running: int | None = None,
        ordered: bool = True,
        return_exceptions: Literal[True],
        **fields: Unpack[TaskFields],
    ) -> "MapResults[R | Exception]": ...

    def map(
        self,
        function: Callable[..., R],
        *iterables: Iterable[Any],
        max_running: int | None = None,
        ordered: bool = True,
        return_exceptions: bool = False,
        **fields: Unpack[TaskFields],
    ) -> "MapResults[Any]":
        """Run a function for each item as a task of its own, and yield the results, in order or as they come.

        Items are taken when there is room for them: `max_running` tasks (1,000) at most are submitted at a time. An item
        that raises does not stop the others: with `return_exceptions` its exception is a result; without, it is raised
        when its turn comes, and the next call of `next()` continues behind it. With several iterables, the function gets
        an item of each.
        """
        return MapResults(
            self._iterate(self._mapped(function, iterables, max_running, ordered, return_exceptions, fields))
        )

    def executor(self, **defaults: Unpack[TaskFields]) -> "ClusterExecutor":
        """Return a `concurrent.futures.Executor` that runs each function as a task with these fields."""
        from gpuyard.live.sdk.executor import ClusterExecutor

        return ClusterExecutor(self, defaults)

    @overload  # a string is a task id, although it is also a sequence of strings
    def wait(self, tasks: TaskRef, *, timeout: float | None = None, check: bool = False) -> Task: ...  # type: ignore[overload-overlap]
    @overload
    def wait(self, tasks: Iterable[TaskRef], *, timeout: float | None = None, check: bool = False) -> list[Task]: ...

    def wait(
        self, tasks: TaskRef | Iterable[TaskRef], *, timeout: float | None = None, check: bool = False
    ) -> Task | list[Task]:
        """Wait until a task, or all of several, have ended.

        With `check`, raise `TaskFailed` for one that did not succeed.
        """
        if isinstance(tasks, ONE_TASK):
            return self._wait_for_all([tasks], timeout, check)[0]
        return self._wait_for_all(list(tasks), timeout, check)

    @contextmanager
    def lease(
        self,
        gpus: int | None = None,
        *,
        timeout: float | None = None,
        wait_seconds: float | None = None,
        renew: bool = False,
        set_devices: bool = False,
        **fields: Unpack[LeaseFields],
    ) -> Iterator[Lease]:
        """Hold GPUs for this program until the end of the `with`, at most `timeout` seconds from the grant.

        with cluster.lease(gpus=1) as lease:
            subprocess.run(["python", "look.py"], env=os.environ | lease.env)

        With `renew`, the lease is extended as long as the block runs, and ends `timeout` seconds after this program has
        gone. With `set_devices`, CUDA_VISIBLE_DEVICES of this process is set in the block; set it before a library
        starts to use GPUs.
        """
        check_renewal(timeout, renew=renew)
        lease = self.take_lease(gpus, timeout=timeout, wait_seconds=wait_seconds, **fields)
        try:
            with ExitStack() as stack:
                if renew:
                    impatient = self.without_waiting()
                    stack.enter_context(
                        renewed(RenewalPlan(timeout or 0.0), lambda seconds: impatient.extend(lease, timeout=seconds))
                    )
                if set_devices:
                    stack.enter_context(devices_set(lease))
                yield lease
        finally:
            self.release_lease(lease)

    # --- terminals and ports ------------------------------------------------------------------------------------------

    def console(
        self,
        task: TaskRef,
        *,
        read_only: bool = False,
        steal: bool = False,
        received: int | None = None,
        size: tuple[int, int] | None = None,
    ) -> "TaskConsole":
        """Return a client of the terminal, or of the open standard input, of a running task.

        `received`: the offset in its output to begin at; None: a little before its end. `steal`: from another client
        that types. `size`: columns and rows.
        """
        from gpuyard.live.sdk.console import TaskConsole

        path, query = f"{of_task(task)}/console", {"read_only": read_only or None, **same(task)}
        return TaskConsole(
            lambda: self.connection.upgrade(path, query, subprotocol=SUBPROTOCOL),
            received=received,
            steal=steal,
            size=size,
        )

    def shell(
        self,
        task: TaskRef,
        command: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        size: tuple[int, int] | None = None,
        linger_seconds: float | None = None,
    ) -> "TaskConsole":
        """Return the terminal of another command beside a running task: same GPUs, folder and user.

        It ends with the task, or `linger_seconds` after its client is gone. Without a command it is the user's shell.
        """
        from msgspec import json

        from gpuyard.live.sdk.console import TaskConsole

        columns, rows = size or (80, 24)
        query: dict[str, object] = {
            "session": token_hex(12), "columns": columns, "rows": rows, "linger": linger_seconds, **same(task),
            "command": json.encode(list(command)).decode() if command else None,
            "env": json.encode(dict(env)).decode() if env else None,
        }  # fmt: skip
        path = f"{of_task(task)}/shell"
        return TaskConsole(lambda: self.connection.upgrade(path, query, subprotocol=SUBPROTOCOL), received=0, size=size)

    def forward(self, task: TaskRef, port: int) -> "ClientWebSocket":
        """Connect to a TCP port of a running task: each message is a part of the stream, an empty one its end."""
        path = f"{of_task(task)}/ports/{port}"
        return self.connection.upgrade(path, same(task), subprotocol=PORT_SUBPROTOCOL)


def _stream(path: str, query: Mapping[str, object] | None = None) -> ItemSteps[bytes]:
    stream: ResponseStream = yield OnConnection(lambda it: it.stream(path, query))
    parts = iter(stream)
    try:
        while (part := (yield OnConnection(lambda _: next(parts, None), endless=True))) is not None:
            yield Item(part)
    finally:
        stream.hang_up()


class MapResults(Iterator[T]):
    """The results of a map. After an exception that it raises, the next result follows."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __next__(self) -> T:
        item = next(self._items)
        if isinstance(item, Raised):
            raise item.error
        value: T = item
        return value


def _uploaded_snapshot(asked: Any, tenant: str | None) -> Steps[dict[str, object]]:
    folder = Path.cwd() if asked is True else asked
    snapshot = asked if isinstance(asked, TakenSnapshot) else take_snapshot(Path(folder))
    yield from upload({**snapshot.contents, snapshot.id: snapshot.manifest}, tenant)
    return snapshot.fields


class _Tasks(msgspec.Struct):
    tasks: list[Task]


def check_command(args: tuple[Any, ...], fields: Mapping[str, Any]) -> None:
    """Refuse what only a function can be given."""
    if args:
        raise WrongInput(
            "A command has no further arguments; pass a list, such as ['python', 'train.py', '--lr', 0.1]."
        )
    if "kwargs" in fields:
        raise WrongInput("kwargs are for a function; pass the arguments of a command in a list.")


def check_call(fields: Mapping[str, Any], idempotency_key: str | None) -> None:
    """Refuse what a function cannot be given."""
    if idempotency_key is not None:
        raise WrongInput("idempotency_key is for commands; a function is always submitted with a key of its own.")
    for name, why in (
        ("array", "use map() for many calls"),
        ("max_running", "use map() for many calls"),
        ("nodes", "a function runs on one node"),
        ("files", "it holds the function; pass paths or contents as arguments"),
        ("store_result", "a function always stores its result"),
    ):
        if fields.get(name) is not None:
            raise WrongInput(f"{name} cannot be given with a function; {why}.")


def new_key() -> str:
    """Return a new unique idempotency key."""
    return os.urandom(16).hex()


def _in_part(body: dict[str, Any], within: Mapping[int, int], made: Sequence[Sequence[Task]]) -> dict[str, Any]:
    """Return a request whose positions refer to its batch, or are ids for tasks accepted before."""
    waits: dict[str, Any] = {name: body[name] for name in ("depends_on", "after_any") if name in body}
    for name, refs in waits.items():
        found: list[str] = []
        for ref in refs:
            place = int(ref[len(PLACE) : -1]) if ref.startswith(PLACE) else None
            if place is None:
                found.append(ref)
            elif place in within:
                found.append(f"{PLACE}{within[place]}]")
            elif place < len(made) and made[place]:
                found += (task.id for task in made[place])
            else:
                raise WrongInput(f"{ref} is not in the list before the tasks that depend on it.")
        waits[name] = found
    return {**body, **waits}


def _instant(given: datetime | float | str | None) -> str | float | None:
    """Return an instant as the API reads it; a `datetime` without a time zone is local time."""
    return given.astimezone(UTC).isoformat() if isinstance(given, datetime) else given


def _request(fields: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Build the body of a request: leave out None, rename fields that differ from the API's, convert units."""
    body: dict[str, Any] = {}
    if "command" in fields or "command" in more:
        _refuse_words_of_others(fields)
    for name, value in {**fields, **more}.items():
        if value is None:
            continue
        match name:
            case "task_class":
                body["class"] = value
            case "array":
                body["array"] = {**({"count": value} if isinstance(value, int) else value), **body.get("array", {})}
            case "max_running":
                body["array"] = {**body.get("array", {}), "max_running": value}
            case "depends_on" | "after_any":
                body[name] = [id_of(task) for task in ([value] if isinstance(value, ONE_TASK) else value)]
            case "notify":
                body[name] = [value] if isinstance(value, str) else list(value)
            case "work_dir":
                body[name] = os.path.abspath(value)  # noqa: PTH100 - a path as text, which is what is sent
            case "command":
                body[name] = _words(value)
            case "env" | "secrets" if isinstance(value, Mapping):
                body[name] = {key: _word(item) for key, item in value.items()}
            case "timeout" | "grace" | "estimated_seconds" if isinstance(value, str):
                body[name] = _quantity(seconds_in, value, name)
            case "gpus" | "memory" | "gpu_memory":
                _add_alias(body, {**fields, **more}, name, value)
            case _:
                body[name] = value
    if "array" in body and "count" not in body["array"]:
        raise WrongInput("max_running limits the running tasks of an array or sweep; give array=N, or use sweep().")
    return body


def _refuse_words_of_others(fields: Iterable[str]) -> None:
    """Refuse what another library calls a field of a task. Any other name is for the scheduler, which may be newer."""
    known = NewTaskFields.__annotations__
    for name in fields:
        if name not in known and fields_meant(name) and (near := closest_word(name, known)):
            raise WrongInput(f"A task has no field {name!r}; did you mean {near!r}?")


def _add_alias(body: dict[str, Any], fields: Mapping[str, Any], name: str, value: Any) -> None:
    """Add a field that has another name in the API, and a unit or a model in its value."""
    field = {"gpus": "gpu_count", "memory": "memory_mb", "gpu_memory": "gpu_memory_mb"}[name]
    if fields.get(field) is not None:
        raise WrongInput(f"{name} and {field} mean the same; use only one of them.")
    if name == "gpus":
        body[field], model = _quantity(gpus_in, value, name)
        if model is not None:
            if fields.get("gpu_model") is not None:
                raise WrongInput("gpus names a model, and gpu_model is given, too; use one of the two.")
            body["gpu_model"] = model
        return
    is_share = fields.get("gpu_fraction") not in {None, 1}
    of_whole_gpus = name == "gpu_memory" and not is_share
    body[field] = _quantity(gpu_mebibytes_in if of_whole_gpus else mebibytes_in, value, name)


def _priority_number(task: Task) -> int:
    """Return the priority of a task as a number; words are what `high` and `low` stand for."""
    return {"high": HIGH[1], "low": LOW[1]}[task.priority] if isinstance(task.priority, str) else task.priority


def _quantity(read: Callable[[object], T], value: object, name: str) -> T:
    try:
        return read(value)
    except ValueError as error:
        raise WrongInput(f"{name} is {value!r}; {error}.") from None


def _words(command: Any) -> Any:
    """Return a command as the API has it: paths and numbers become text, a path alone is a program."""
    if isinstance(command, os.PathLike):
        return [os.fspath(command)]
    return [_word(part) for part in command] if isinstance(command, list | tuple) else command


def _word(value: Any) -> Any:
    """Return a path or a number as text; anything else is for the scheduler to judge."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
