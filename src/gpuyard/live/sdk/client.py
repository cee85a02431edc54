"""The client of a cluster: one method for each request.

A client may be used by many threads. It keeps no state except connections: a result is what was true when the scheduler
answered. A method that is given a `Task` or a lease, and not only an id, never acts on another task with the same
number, as in a scheduler that was restored from an older copy: it raises `NotFound` with code `AnotherTask`.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack, overload
from urllib.parse import quote

import msgspec

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.core.domain.values import Link, OnLost, Preemption, TaskClass, TaskStatus
from gpuyard.live.sdk.connection import TIMEOUT_SECONDS, Connection
from gpuyard.live.sdk.errors import ClusterError, NotFound, TaskFailed, TookTooLong
from gpuyard.live.sdk.tokens import stored_server_user, stored_token
from gpuyard.live.sdk.values import Lease, Page, Task, TaskRef, created_at_of, id_of, number_of, visible_devices
from gpuyard.live.sdk.waiting import AWAY, OutageTolerance, OutageWatch, changed_tasks
from gpuyard.live.wire.alert_answers import AlertHistory, AlertList, AlertRuleList, SilenceAnswer, SilenceList
from gpuyard.live.wire.answers import (
    CancelAnswer,
    ExplainAnswer,
    GpusAnswer,
    LeaseAnswer,
    LeaseList,
    LoginAnswer,
    MessageAnswer,
    NodeAnswer,
    NodeList,
    PredictionsAnswer,
    QuotaAnswer,
    TenantAnswer,
    TenantList,
    TokenCreated,
    TokenList,
    UserAnswer,
    UserList,
)
from gpuyard.live.wire.preview_answers import PreviewAnswer
from gpuyard.live.wire.search_answers import SearchAnswer
from gpuyard.live.wire.story_answers import StoryAnswer, StoryEvent
from gpuyard.live.wire.tasks import PLACE
from gpuyard.live.wire.timeline_answers import TimelineAnswer
from gpuyard.live.wire.usage_answers import UsageAnswer

T = TypeVar("T")
DEFAULT_SERVER = "http://127.0.0.1:8080"
IN_ONE_CALL = 5000
"""Number of tasks sent in one batch; each batch is accepted as a whole or not at all."""
LOOKED_AT_ONE_BY_ONE = 100
_ONE = {"count": 1}
EMPTY = "The name or id is empty; check whether a variable is not set."


class TaskFields(TypedDict, total=False):
    """The fields of a task besides its command. Names and meanings are those of the API."""

    priority: Literal["high", "low"] | int | None
    gpu_count: int | None
    gpu_model: str | Sequence[str] | None
    gpu_speeds: Mapping[str, float] | None
    env: Mapping[str, str] | None
    name: str | None
    description: str | None
    tenant_id: str | None
    project: str | None
    task_class: TaskClass | Literal["online", "batch"] | None
    """The API's `class`, which is a keyword in Python."""
    cpu_count: int | None
    memory_mb: int | None
    gpu_memory_mb: int | None
    gpu_fraction: float | None
    nodes: int | None
    labels: Mapping[str, str] | None
    timeout: float | None
    grace: float | None
    retries: int | None
    depends_on: Sequence[TaskRef] | None
    after_any: Sequence[TaskRef] | None
    array: int | None
    """Number of copies; each finds its number in GPUYARD_ARRAY_INDEX."""
    work_dir: str | os.PathLike[str] | None
    secrets: Mapping[str, str] | None
    preemption: Preemption | Literal["never", "suspend", "checkpoint", "requeue"] | None
    on_lost: OnLost | Literal["rerun", "fence", "wait"] | None
    estimated_seconds: float | None
    model: str | None
    work: Mapping[str, Any] | None
    """What the task computes, such as {"model": "resnet50", "batch": 64, "steps": 1000}."""
    link: Link | Literal["any", "numa", "nvlink"] | None
    require_fit: bool | None


class NewTaskFields(TaskFields, total=False):
    """A task for `submit_many`."""

    command: str | Sequence[str] | None


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
    gpu_fraction: float | None
    nodes: int | None
    priority: Literal["high", "low"] | int | None
    task_class: TaskClass | Literal["online", "batch"] | None
    name: str | None
    description: str | None
    tenant_id: str | None
    project: str | None
    require_fit: bool | None


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
    server = server or os.environ.get("GPUYARD_SERVER") or DEFAULT_SERVER
    if token is None:
        token = os.environ.get("GPUYARD_TOKEN") or stored_token(server)
    ca = ca or os.environ.get("GPUYARD_CA") or None
    server_user = server_user or os.environ.get("GPUYARD_SERVER_USER") or stored_server_user(server)
    return Client(
        Connection(
            server,
            token=token,
            ca=ca,
            timeout_seconds=timeout_seconds,
            server_user=server_user,
            wait_seconds=wait_for_scheduler,
            on_wait=on_wait,
        )
    )


class Client:
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

    # --- submitting ---------------------------------------------------------------------------------------------------

    def submit(
        self, command: str | Sequence[str], *, idempotency_key: str | None = None, **fields: Unpack[TaskFields]
    ) -> Task:
        """Submit a task: a shell command line, or a list of arguments. For an array, return its first task.

        It is sent with an idempotency key, so that a broken connection never leads to two tasks. Pass your own key to
        be safe across restarts of your program, too.
        """
        return self.submit_all(command, idempotency_key=idempotency_key, **fields)[0]

    def submit_all(
        self, command: str | Sequence[str], *, idempotency_key: str | None = None, **fields: Unpack[TaskFields]
    ) -> list[Task]:
        """Submit a task and return all tasks of its array."""
        body = _request(fields, command=command)
        key = idempotency_key or new_key()
        if "array" in body:
            return self.connection.ask("POST", "/api/v1/tasks", _Tasks, body=body, key=key).tasks
        return [self.connection.ask("POST", "/api/v1/tasks", Task, body=body, key=key)]

    def submit_many(self, tasks: Iterable[NewTaskFields], *, idempotency_key: str | None = None) -> list[Task]:
        """Submit many tasks; return them in order, arrays expanded.

        Each 5,000 of a tenant are accepted as a whole or not at all.

        They may depend on each other by position: `"tasks[2]"` is the third. A task in a later batch cannot be a
        dependency. With your own key, sending them again does not submit them again.
        """
        bodies = [_request(task) for task in tasks]
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
                answers = iter(self._batch([_in_part(bodies[place], within, made) for place in part], key))
                for place in part:
                    made[place] = list(islice(answers, bodies[place].get("array", _ONE)["count"]))
        return [task for answers in made for task in answers]

    def _batch(self, bodies: list[dict[str, Any]], key: str) -> list[Task]:
        return self.connection.ask("POST", "/api/v1/tasks:batch", _Tasks, body={"tasks": bodies}, key=key).tasks

    # --- looking ------------------------------------------------------------------------------------------------------

    def task(self, task: TaskRef) -> Task:
        """Return the current state of a task."""
        return self.connection.ask("GET", _of_task(task), Task, query=_same(task))

    def tasks(self, *, query: str | None = None, **filters: Unpack[TaskFilters]) -> Iterator[Task]:
        """Return all tasks that match, newest first. `query` is part of a name, command, id or user."""
        cursor: str | None = None
        while True:
            page = self.page(limit=1000, cursor=cursor, query=query, **filters)
            yield from page.tasks
            cursor = page.next_cursor
            if cursor is None:
                return

    def page(
        self,
        *,
        limit: int = 100,
        cursor: str | None = None,
        query: str | None = None,
        sort: str | None = None,
        offset: int | None = None,
        **filters: Unpack[TaskFilters],
    ) -> Page:
        """Return one page of the list, newest first.

        With `sort` (such as `name`, or `-started_at` for the latest first), pages have an `offset` and no cursor.
        """
        asked = {**filters, "limit": limit, "cursor": cursor, "q": query, "sort": sort, "offset": offset}
        return self.connection.ask("GET", "/api/v1/tasks", Page, query=asked)

    def events(self, task: TaskRef) -> list[StoryEvent]:
        """Return what has happened to a task, from its submission on; also after its end."""
        return self.connection.ask("GET", f"{_of_task(task)}/events", StoryAnswer, query=_same(task)).events

    def preview(self, command: str | Sequence[str], **fields: Unpack[TaskFields]) -> PreviewAnswer:
        """Return where and when a task would start, without submitting it."""
        body, dry_run = _request(fields, command=command), {"dry_run": "true"}
        return self.connection.ask("POST", "/api/v1/tasks", PreviewAnswer, body=body, query=dry_run)

    def timeline(
        self,
        *,
        start: float | str | None = None,
        end: float | str | None = None,
        width: int | None = None,
        node: str | None = None,
        tenant: str | None = None,
    ) -> TimelineAnswer:
        """Return which task held which GPU when, by default in the last six hours."""
        asked = {"from": start, "to": end, "width": width, "node": node, "tenant": tenant}
        return self.connection.ask("GET", "/api/v1/timeline", TimelineAnswer, query=asked)

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
    ) -> SearchAnswer:
        """Return the lines of a task's output that contain a text; the node searches. Continue at `next_offset`."""
        asked: dict[str, object] = {
            "search": text,
            "case": match_case or None,
            "context": context,
            "attempt": attempt,
            "node": node,
            "offset": offset,
            "limit": limit,
        }
        return self.connection.ask("GET", f"{_of_task(task)}/logs", SearchAnswer, query=asked | _same(task))

    def explain(self, task: TaskRef) -> ExplainAnswer:
        """Return why it waits, how many tasks are ahead of it, and when it is likely to start."""
        return self.connection.ask("GET", f"{_of_task(task)}/explain", ExplainAnswer, query=_same(task))

    def logs(
        self,
        task: TaskRef,
        *,
        follow: bool = False,
        tail: int | None = None,
        attempt: int | None = None,
        node: str | None = None,
        offset: int | None = None,
    ) -> Iterator[bytes]:
        """Yield the output of a task in pieces as they arrive; with `follow`, until it ends. `tail` is in bytes."""
        query: dict[str, object] = {
            "follow": follow or None,
            "tail": tail,
            "attempt": attempt,
            "node": node,
            "offset": offset,
        }
        query |= _same(task)
        yield from self.connection.stream(f"{_of_task(task)}/logs", query)

    # --- waiting ------------------------------------------------------------------------------------------------------

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
        if isinstance(tasks, Task | LeaseAnswer | Lease | str | int):
            return self._wait([tasks], timeout, check)[0]
        return self._wait(list(tasks), timeout, check)

    def _wait(self, tasks: list[TaskRef], timeout: float | None, check: bool) -> list[Task]:
        ends = {}
        for task in self.ends(tasks, timeout=timeout):
            if check and not task.succeeded:
                raise TaskFailed(task)
            ends[task.number] = task
        return [ends[number] for number in map(number_of, tasks) if number is not None]

    def ends(
        self, tasks: Iterable[TaskRef], *, timeout: float | None = None, on_outage: OutageWatch | None = None
    ) -> Iterator[Task]:
        """Yield tasks in the order in which they end. Raise `TookTooLong` if some are left after `timeout`.

        If the scheduler goes away meanwhile, wait for it for two minutes; `on_outage` is called.
        """
        waiting = {self._number(task): created_at_of(task) for task in tasks}
        cluster = self.without_waiting()
        tolerance = OutageTolerance(cluster.connection, on_outage)
        for told in changed_tasks(cluster.connection, waiting, timeout=timeout) if waiting else ():
            try:
                found = cluster._look(waiting) if told is None else [cluster._look_at(told, waiting[told])]
            except AWAY as error:
                tolerance.tolerate(error)
                continue
            tolerance.answered()
            for task in found:
                waiting[task.number] = task.created_at
                if task.ended:
                    del waiting[task.number]
                    yield task
            if not waiting:
                return
        if waiting:
            words = f"task-{next(iter(waiting))} has" if len(waiting) == 1 else f"{len(waiting)} tasks have"
            raise TookTooLong(f"{words} not ended within {timeout:g} s.")

    def changes(
        self, task: TaskRef, *, idle_seconds: float = 5.0, on_outage: OutageWatch | None = None
    ) -> Iterator[Task]:
        """Yield a task after each change and every `idle_seconds`, the last time when it has ended.

        If the scheduler goes away meanwhile, wait for it for two minutes; `on_outage` is called. If it returns with
        another task under this number, raise `NotFound`.
        """
        number = self._number(task)
        cluster = self.without_waiting()
        tolerance = OutageTolerance(cluster.connection, on_outage)
        for _ in changed_tasks(cluster.connection, (number,), timeout=None, idle_seconds=idle_seconds):
            try:
                task = now = cluster.task(task)
            except AWAY as error:
                tolerance.tolerate(error)
                continue
            tolerance.answered()
            yield now
            if now.ended:
                return

    def _look(self, waiting: Mapping[int, str | None]) -> list[Task]:
        """Return the current state of tasks: a few one by one, many from the list, which is newest first."""
        wanted = dict(waiting)
        found = []
        if len(wanted) > LOOKED_AT_ONE_BY_ONE:
            oldest = min(wanted)
            for task in self.tasks():
                if task.number < oldest:
                    break
                if task.number in wanted and wanted[task.number] in {None, task.created_at}:
                    del wanted[task.number]
                    found.append(task)
        # For a task that the list lacks, or has as a different task, a single request raises the proper error.
        return found + [self._look_at(number, created_at) for number, created_at in sorted(wanted.items())]

    def _look_at(self, number: int, created_at: str | None) -> Task:
        """Return the current state of one task; with `created_at`, exactly the task created then."""
        return self.connection.ask("GET", _of_task(number), Task, query={"created_at": created_at})

    def _number(self, task: TaskRef) -> int:
        number = number_of(task)
        return self.task(task).number if number is None else number

    # --- changing -----------------------------------------------------------------------------------------------------

    def cancel(self, task: TaskRef) -> CancelAnswer:
        """Stop a task, or take it out of the queue. A task that has ended stays as it is."""
        return self.connection.ask("DELETE", _of_task(task), CancelAnswer, query=_same(task))

    def suspend(self, task: TaskRef) -> Task:
        """Suspend a running task and give its GPUs to others."""
        return self._do(task, "suspend")

    def resume(self, task: TaskRef) -> Task:
        """Resume a suspended task."""
        return self._do(task, "resume")

    def hold(self, task: TaskRef) -> Task:
        """Keep a waiting task from starting."""
        return self._do(task, "hold")

    def release(self, task: TaskRef) -> Task:
        """Let a task on hold start."""
        return self._do(task, "release")

    def _do(self, task: TaskRef, action: str) -> Task:
        return self.connection.ask("POST", f"{_of_task(task)}/{action}", Task, query=_same(task))

    def set_priority(self, task: TaskRef, priority: int) -> Task:
        """Set the priority within its class, 0 to 100."""
        body = {"priority": priority}
        return self.connection.ask("PATCH", _of_task(task), Task, body=body, query=_same(task))

    # --- leases -------------------------------------------------------------------------------------------------------

    @contextmanager
    def lease(
        self,
        gpus: int | None = None,
        *,
        timeout: float | None = None,
        wait_seconds: float | None = None,
        **fields: Unpack[LeaseFields],
    ) -> Iterator[Lease]:
        """Hold GPUs for this program until the end of the `with`, at most `timeout` seconds from the grant.

        with cluster.lease(gpus=1) as lease:
            subprocess.run(["python", "look.py"], env=os.environ | lease.env)
        """
        lease = self.take_lease(gpus, timeout=timeout, wait_seconds=wait_seconds, **fields)
        try:
            yield lease
        finally:
            self.release_lease(lease)

    def take_lease(
        self,
        gpus: int | None = None,
        *,
        timeout: float | None = None,
        wait_seconds: float | None = None,
        watch: Callable[[Task], None] | None = None,
        **fields: Unpack[LeaseFields],
    ) -> Lease:
        """Take a lease without a `with`; release it yourself.

        It is given up if it is not granted within `wait_seconds`.

        `watch` is called with the lease from time to time: why it waits, and that it runs.
        """
        asked = self.ask_for_lease(gpus, timeout=timeout, **fields)
        try:
            return self.granted(asked, wait_seconds=wait_seconds, watch=watch)
        except BaseException:
            self.release_lease(asked)
            raise

    def ask_for_lease(
        self,
        gpus: int | None = None,
        *,
        timeout: float | None = None,
        idempotency_key: str | None = None,
        **fields: Unpack[LeaseFields],
    ) -> LeaseAnswer:
        """Request GPUs without waiting for them. With your own key, a repeated request returns the same lease."""
        body = _request(fields, gpu_count=gpus, timeout=timeout)
        key = idempotency_key or new_key()
        return self.connection.ask("POST", "/api/v1/leases", LeaseAnswer, body=body, key=key)

    def granted(
        self,
        lease: TaskRef,
        *,
        wait_seconds: float | None = None,
        watch: Callable[[Task], None] | None = None,
        on_outage: OutageWatch | None = None,
    ) -> Lease:
        """Wait until a lease has its GPUs."""
        number = self._number(lease)
        cluster = self.without_waiting()
        tolerance = OutageTolerance(cluster.connection, on_outage)
        asked = lease
        for _ in changed_tasks(cluster.connection, (number,), timeout=wait_seconds):
            try:
                asked = task = cluster.task(asked)
                if watch is not None:
                    watch(task)
                if task.status is TaskStatus.RUNNING:
                    return cluster._lease_of(task)
            except AWAY as error:
                tolerance.tolerate(error)
                continue
            tolerance.answered()
            if task.ended:
                raise TaskFailed(task)
        raise TookTooLong(f"{id_of(lease)} did not get its GPUs within {wait_seconds:g} s.")

    def _lease_of(self, task: Task) -> Lease:
        known = self.connection.ask("GET", f"/api/v1/leases/{task.id}", LeaseAnswer, query=_same(task))
        devices = visible_devices(known.gpus, self.gpus().gpus)
        env = {"CUDA_VISIBLE_DEVICES": devices}
        return Lease(known.id, known.gpus, known.node_id, env, known.expires_at, known.created_at)

    def release_lease(self, lease: TaskRef) -> None:
        """Give the GPUs back. Repeating it has no effect."""
        self.connection.send("DELETE", f"/api/v1/leases/{_quoted(id_of(lease))}", query=_same(lease))

    def leases(self) -> LeaseList:
        """Return all leases that are held or waited for."""
        return self.connection.ask("GET", "/api/v1/leases", LeaseList)

    # --- the cluster --------------------------------------------------------------------------------------------------

    def gpus(self) -> GpusAnswer:
        """Return all GPUs and their use."""
        return self.connection.ask("GET", "/api/v1/gpus", GpusAnswer)

    def nodes(self) -> NodeList:
        """Return all nodes."""
        return self.connection.ask("GET", "/api/v1/nodes", NodeList)

    def cordon(self, node: str) -> NodeAnswer:
        """Place no new tasks on a node."""
        return self._do_to_node(node, "cordon")

    def drain(self, node: str, *, force: bool = False) -> NodeAnswer:
        """Place nothing new on a node, and move away the tasks that allow it; with `force` suspended ones, too."""
        return self._do_to_node(node, "drain", {"force": force or None})

    def uncordon(self, node: str) -> NodeAnswer:
        """Place tasks on a node again."""
        return self._do_to_node(node, "uncordon")

    def _do_to_node(self, node: str, action: str, query: Mapping[str, object] | None = None) -> NodeAnswer:
        return self.connection.ask("POST", f"/api/v1/nodes/{_quoted(node)}/{action}", NodeAnswer, query=query)

    def stop_unknown_attempt(self, node: str, task: TaskRef, attempt: int) -> MessageAnswer:
        """End an attempt that a node runs and the scheduler does not know; `nodes()` lists them as `unknown_attempts`."""
        path = f"/api/v1/nodes/{_quoted(node)}/unknown_attempts/{_quoted(id_of(task))}/{attempt}/stop"
        return self.connection.ask("POST", path, MessageAnswer)

    def remove_node(self, node: str) -> None:
        """Forget a node. It may come back."""
        self.connection.send("DELETE", f"/api/v1/nodes/{_quoted(node)}")

    def predictions(self) -> PredictionsAnswer:
        """Return the accuracy of predictions for the tasks that ended last, and the model that makes them."""
        return self.connection.ask("GET", "/api/v1/predictions", PredictionsAnswer)

    def quota(self) -> QuotaAnswer:
        """Return how the cluster is split between online and batch work."""
        return self.connection.ask("GET", "/api/v1/quota", QuotaAnswer)

    def set_quota(self, online_percent: float, *, mode: QuotaMode | str | None = None) -> QuotaAnswer:
        """Change the split: 0.7 for 70 percent online work."""
        body = _request({}, online_percent=online_percent, mode=mode)
        return self.connection.ask("PUT", "/api/v1/quota", QuotaAnswer, body=body)

    # --- alerts -------------------------------------------------------------------------------------------------------

    def alerts(self, *, state: str | None = None) -> AlertList:
        """Return the alerts, firing ones first; with `state` (or several, with commas) only those."""
        return self.connection.ask("GET", "/api/v1/alerts", AlertList, query={"state": state})

    def alert_rules(self) -> AlertRuleList:
        """Return the rules of alerts as they are evaluated."""
        return self.connection.ask("GET", "/api/v1/alerts/rules", AlertRuleList)

    def alert_history(self, *, limit: int | None = None, cursor: str | None = None) -> AlertHistory:
        """Return changes of alerts, newest first."""
        query = {"limit": limit, "cursor": cursor}
        return self.connection.ask("GET", "/api/v1/alerts/history", AlertHistory, query=query)

    def silences(self) -> SilenceList:
        """Return the silences that have not ended."""
        return self.connection.ask("GET", "/api/v1/alerts/silences", SilenceList)

    def silence_alerts(
        self,
        *,
        seconds: float,
        rule: str | None = None,
        node: str | None = None,
        gpu: str | None = None,
        comment: str = "",
    ) -> SilenceAnswer:
        """Do not send alerts that match all of these, for so many seconds."""
        matchers = {name: text for name, text in (("rule", rule), ("node", node), ("gpu", gpu)) if text is not None}
        body = {"matchers": matchers, "seconds": seconds, "comment": comment}
        return self.connection.ask("POST", "/api/v1/alerts/silences", SilenceAnswer, body=body)

    def end_silence(self, silence: str) -> None:
        """End a silence."""
        self.connection.send("DELETE", f"/api/v1/alerts/silences/{_quoted(silence)}")

    # --- usage --------------------------------------------------------------------------------------------------------

    def usage(self, *, by: str = "tenant", since: str | None = None, until: str | None = None) -> UsageAnswer:
        """Return GPU-hours, idle and lost time, energy and waits in [since, until), by these keys (with commas)."""
        query = {"by": by, "since": since, "until": until}
        return self.connection.ask("GET", "/api/v1/usage", UsageAnswer, query=query)

    def usage_csv(self, *, by: str = "tenant", since: str | None = None, until: str | None = None) -> str:
        """Return the same as CSV, with a line of names."""
        query = {"by": by, "since": since, "until": until, "format": "csv"}
        return self.connection.send("GET", "/api/v1/usage", query=query).decode()

    # --- access -------------------------------------------------------------------------------------------------------

    def tenants(self) -> TenantList:
        """Return all tenants you may see."""
        return self.connection.ask("GET", "/api/v1/tenants", TenantList)

    def set_tenant(self, tenant: str, **limits: Unpack[TenantLimits]) -> TenantAnswer:
        """Set the limits of a tenant. A field that is left out is not limited."""
        return self.connection.ask("PUT", f"/api/v1/tenants/{_quoted(tenant)}", TenantAnswer, body=_request(limits))

    def users(self) -> UserList:
        """Return all users."""
        return self.connection.ask("GET", "/api/v1/users", UserList)

    def add_user(
        self, username: str, password: str, *, tenant_id: str, role: str = "member", system_user: str = ""
    ) -> UserAnswer:
        """Add a user; `system_user` is the account that the user's tasks run as on nodes whose agent is root."""
        body = {"username": username, "password": password, "tenant_id": tenant_id, "role": role}
        if system_user:
            body["system_user"] = system_user
        return self.connection.ask("POST", "/api/v1/users", UserAnswer, body=body)

    def set_password(
        self, username: str, password: str, *, old_password: str | None = None, revoke_tokens: bool = False
    ) -> UserAnswer:
        """Change a password: your own (with the old one), or as an admin any. Logins with the old password end.

        Tokens stay valid unless `revoke_tokens` is set.
        """
        body = _request({}, password=password, old_password=old_password, revoke_tokens=revoke_tokens or None)
        return self.connection.ask("PATCH", f"/api/v1/users/{_quoted(username)}", UserAnswer, body=body)

    def change_user(
        self, username: str, *, tenant_id: str | None = None, role: str | None = None, system_user: str | None = None
    ) -> UserAnswer:
        """Change tenant, role or system account; arguments that are None change nothing."""
        asked = {"tenant_id": tenant_id, "role": role, "system_user": system_user}
        body = {name: value for name, value in asked.items() if value is not None}
        return self.connection.ask("PATCH", f"/api/v1/users/{_quoted(username)}", UserAnswer, body=body)

    def remove_user(self, username: str) -> None:
        """Remove a user and all tokens of that user."""
        self.connection.send("DELETE", f"/api/v1/users/{_quoted(username)}")

    def tokens(self) -> TokenList:
        """Return all tokens you may see."""
        return self.connection.ask("GET", "/api/v1/tokens", TokenList)

    def create_token(
        self,
        name: str = "",
        *,
        username: str | None = None,
        lifetime_seconds: float | None = None,
        password: str | None = None,
    ) -> TokenCreated:
        """Create a token; its secret is shown only this once.

        It does not outlive the login or token it is made with, unless your password is given again.
        """
        body = _request({}, name=name, username=username, lifetime=lifetime_seconds, password=password)
        return self.connection.ask("POST", "/api/v1/tokens", TokenCreated, body=body)

    def revoke_token(self, token: str) -> None:
        """Revoke a token, named by its id."""
        self.connection.send("DELETE", f"/api/v1/tokens/{_quoted(token)}")

    def login(self, username: str, password: str) -> LoginAnswer:
        """Exchange a password for a token that expires. This client is not changed; connect again with the token."""
        body = {"username": username, "password": password}
        return self.connection.ask("POST", "/api/v1/login", LoginAnswer, body=body)


class _Tasks(msgspec.Struct):
    tasks: list[Task]


def new_key() -> str:
    """Return a new unique idempotency key."""
    return os.urandom(16).hex()


def _of_task(task: TaskRef) -> str:
    return f"/api/v1/tasks/{_quoted(id_of(task))}"


def _same(task: TaskRef) -> dict[str, object]:
    """Return the query that restricts a request to this task, and excludes another with the same number."""
    return {"created_at": created_at_of(task)}


def _quoted(part: str) -> str:
    """Quote a name or id as part of a URL path; an empty one would result in a different URL."""
    if not part:
        raise NotFound(EMPTY, status=404, code="EmptyName")
    return quote(part, safe="")


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


def _request(fields: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Build the body of a request: leave out None, and rename fields that differ from the API's."""
    body: dict[str, Any] = {}
    for name, value in {**fields, **more}.items():
        if value is None:
            continue
        match name:
            case "task_class":
                body["class"] = value
            case "array":
                body["array"] = {"count": value} if isinstance(value, int) else value
            case "depends_on" | "after_any":
                body[name] = [id_of(task) for task in value]
            case "work_dir":
                body[name] = os.path.abspath(value)  # noqa: PTH100 - a path as text, which is what is sent
            case _:
                body[name] = value
    return body
