"""The yard, as a program sees it: one method for each thing one can ask of it.

A client may be used by many threads. It keeps nothing but connections: what a method returns is what was true when the
scheduler answered. A method that is given a `Task` or a lease, and not only an id, never acts on another task that has
the same number, as in a scheduler that was restored from an older copy: that is a `NotFound` whose code is `AnotherTask`.
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
from gpuyard.live.wire.tasks import PLACE

T = TypeVar("T")
DEFAULT_SERVER = "http://127.0.0.1:8080"
IN_ONE_CALL = 5000
"""Tasks that go together in a batch; each such part is accepted as a whole."""
LOOKED_AT_ONE_BY_ONE = 100
_ONE = {"count": 1}
EMPTY = "The name or id is empty; is a variable not set?"


class TaskFields(TypedDict, total=False):
    """What can be said of a task beside its command. The names and meanings are the API's."""

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
    """The API's `class`, which is a word of Python's own."""
    cpu_count: int | None
    memory_mb: int | None
    gpu_memory_mb: int | None
    gpu_fraction: float | None
    nodes: int | None
    labels: Mapping[str, str] | None
    timeout: float | None
    retries: int | None
    depends_on: Sequence[TaskRef] | None
    after_any: Sequence[TaskRef] | None
    array: int | None
    """How many copies; each finds its number in GPUYARD_ARRAY_INDEX."""
    work_dir: str | os.PathLike[str] | None
    secrets: Mapping[str, str] | None
    preemption: Preemption | Literal["never", "suspend", "checkpoint", "requeue"] | None
    on_lost: OnLost | Literal["rerun", "fence", "wait"] | None
    estimated_seconds: float | None
    model: str | None
    work: Mapping[str, Any] | None
    """What it computes, such as {"model": "resnet50", "batch": 64, "steps": 1000}."""
    link: Link | Literal["any", "numa", "nvlink"] | None
    require_fit: bool | None


class NewTaskFields(TaskFields, total=False):
    """A task for `submit_many`."""

    command: str | Sequence[str] | None


class TaskFilters(TypedDict, total=False):
    """Which tasks of a list are wanted."""

    status: str | Iterable[str] | None
    tenant: str | None
    priority: str | int | None
    user: str | None
    project: str | None
    name: str | None
    since: str | float | None


class LeaseFields(TypedDict, total=False):
    """What can be said of a lease beside the number of GPUs and how long."""

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
    """Limits of a tenant. What is left out is not limited."""

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
    """A client for a yard. What is not given is read from GPUYARD_SERVER, GPUYARD_TOKEN, GPUYARD_CA and GPUYARD_SERVER_USER.

    Without a token, the one `gpuyard login` kept for this server is used, if any. Nothing is sent yet. On this machine
    the server must be run by this user, root or `server_user`. A request to an address where nothing listens fails at
    once, or is tried again for `wait_for_scheduler` seconds, over a restart of the scheduler; `on_wait` is told once,
    after a second, why it waits and for how many seconds at most.
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
    """One yard. Make it with `gpuyard.connect()`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def without_waiting(self) -> "Client":
        """The same yard and connections; a request fails at once where nothing listens."""
        return Client(self.connection.without_waiting())

    def close(self) -> None:
        """Hang up the connection of this thread; the next request opens another one."""
        self.connection.close()

    # --- submitting ---------------------------------------------------------------------------------------------------

    def submit(
        self, command: str | Sequence[str], *, idempotency_key: str | None = None, **fields: Unpack[TaskFields]
    ) -> Task:
        """Submit a task: a line for the shell, or a list of arguments. Of an array, the first is returned.

        Sent with a key, so that a connection that breaks can never make two tasks of one. Give the key yourself to be
        safe over restarts of your own program too.
        """
        return self.submit_all(command, idempotency_key=idempotency_key, **fields)[0]

    def submit_all(
        self, command: str | Sequence[str], *, idempotency_key: str | None = None, **fields: Unpack[TaskFields]
    ) -> list[Task]:
        """Submit a task and return all of its array."""
        body = _request(fields, command=command)
        key = idempotency_key or new_key()
        if "array" in body:
            return self.connection.ask("POST", "/api/v1/tasks", _Tasks, body=body, key=key).tasks
        return [self.connection.ask("POST", "/api/v1/tasks", Task, body=body, key=key)]

    def submit_many(self, tasks: Iterable[NewTaskFields], *, idempotency_key: str | None = None) -> list[Task]:
        """Submit many tasks, all of an array in its place. Every 5,000 of a tenant are accepted together or not at all.

        They may wait for each other by their places: `"tasks[2]"` is the third. Whoever goes in a later part can not be
        waited for. With a key of your own, sent again is not submitted again.
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
                if idempotency_key and part[0]:  # later parts have their own
                    key = f"{idempotency_key}-{part[0]}"
                answers = iter(self._batch([_in_part(bodies[place], within, made) for place in part], key))
                for place in part:
                    made[place] = list(islice(answers, bodies[place].get("array", _ONE)["count"]))
        return [task for answers in made for task in answers]

    def _batch(self, bodies: list[dict[str, Any]], key: str) -> list[Task]:
        return self.connection.ask("POST", "/api/v1/tasks:batch", _Tasks, body={"tasks": bodies}, key=key).tasks

    # --- looking ------------------------------------------------------------------------------------------------------

    def task(self, task: TaskRef) -> Task:
        """A task as it is now."""
        return self.connection.ask("GET", _of_task(task), Task, query=_same(task))

    def tasks(self, **filters: Unpack[TaskFilters]) -> Iterator[Task]:
        """All tasks that match, newest first."""
        cursor: str | None = None
        while True:
            page = self.page(limit=1000, cursor=cursor, **filters)
            yield from page.tasks
            cursor = page.next_cursor
            if cursor is None:
                return

    def page(self, *, limit: int = 100, cursor: str | None = None, **filters: Unpack[TaskFilters]) -> Page:
        """One page of the list."""
        query = {**filters, "limit": limit, "cursor": cursor}
        return self.connection.ask("GET", "/api/v1/tasks", Page, query=query)

    def explain(self, task: TaskRef) -> ExplainAnswer:
        """Why it waits, how many are ahead, when it is likely to start."""
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
        """What a task wrote, in pieces as they come; with `follow`, until it ends. `tail` is in bytes."""
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

    @overload  # a text is a task's id, although it is also a sequence of texts
    def wait(self, tasks: TaskRef, *, timeout: float | None = None, check: bool = False) -> Task: ...  # type: ignore[overload-overlap]
    @overload
    def wait(self, tasks: Iterable[TaskRef], *, timeout: float | None = None, check: bool = False) -> list[Task]: ...

    def wait(
        self, tasks: TaskRef | Iterable[TaskRef], *, timeout: float | None = None, check: bool = False
    ) -> Task | list[Task]:
        """Wait until a task, or all of some, ended. With `check`, one that did not succeed is a `TaskFailed`."""
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
        """Tasks in the order in which they end. `TookTooLong` when some are left and the time is over.

        A scheduler that goes away meanwhile is waited for, for two minutes; `on_outage` is told of it.
        """
        waiting = {self._number(task): created_at_of(task) for task in tasks}
        cluster = self.without_waiting()
        patience = OutageTolerance(cluster.connection, on_outage)
        for told in changed_tasks(cluster.connection, waiting, timeout=timeout) if waiting else ():
            try:
                found = cluster._look(waiting) if told is None else [cluster._look_at(told, waiting[told])]
            except AWAY as error:
                patience.tolerate(error)
                continue
            patience.answered()
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
        """A task whenever something happened to it, and every `idle_seconds`; the last time when it ended.

        A scheduler that goes away meanwhile is waited for, for two minutes; `on_outage` is told of it. One that has
        another task under this number when it is back is a `NotFound`.
        """
        number = self._number(task)
        cluster = self.without_waiting()
        patience = OutageTolerance(cluster.connection, on_outage)
        for _ in changed_tasks(cluster.connection, (number,), timeout=None, idle_seconds=idle_seconds):
            try:
                task = now = cluster.task(task)
            except AWAY as error:
                patience.tolerate(error)
                continue
            patience.answered()
            yield now
            if now.ended:
                return

    def _look(self, waiting: Mapping[int, str | None]) -> list[Task]:
        """These tasks as they are now: few one by one, many from the list, which is newest first."""
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
        # What the list lacks, or has as another task, gets the sentence that says so.
        return found + [self._look_at(number, created_at) for number, created_at in sorted(wanted.items())]

    def _look_at(self, number: int, created_at: str | None) -> Task:
        """One task as it is now; with `created_at` that one and no other."""
        return self.connection.ask("GET", _of_task(number), Task, query={"created_at": created_at})

    def _number(self, task: TaskRef) -> int:
        number = number_of(task)
        return self.task(task).number if number is None else number

    # --- changing -----------------------------------------------------------------------------------------------------

    def cancel(self, task: TaskRef) -> CancelAnswer:
        """Stop a task, or take it out of the queue. One that ended stays as it was."""
        return self.connection.ask("DELETE", _of_task(task), CancelAnswer, query=_same(task))

    def suspend(self, task: TaskRef) -> Task:
        """Let a running task stand still and give its GPUs to others."""
        return self._do(task, "suspend")

    def resume(self, task: TaskRef) -> Task:
        """Let a suspended task go on."""
        return self._do(task, "resume")

    def hold(self, task: TaskRef) -> Task:
        """Keep a waiting task from starting."""
        return self._do(task, "hold")

    def release(self, task: TaskRef) -> Task:
        """Let a task on hold start."""
        return self._do(task, "release")

    def _do(self, task: TaskRef, verb: str) -> Task:
        return self.connection.ask("POST", f"{_of_task(task)}/{verb}", Task, query=_same(task))

    def set_priority(self, task: TaskRef, priority: int) -> Task:
        """Another place in the queue of its class, 0 to 100."""
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
        """GPUs for this program, given back at the end of the `with`; `timeout` seconds after they were given at the latest.

        with yard.lease(gpus=1) as lease:
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
        """The same without a `with`: release it yourself. Given up when it is not granted within `wait_seconds`.

        `watch` is told of the lease now and then: why it waits, and that it runs.
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
        """Ask for GPUs and do not wait for them. With a key of your own, asked again is the same lease."""
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
        patience = OutageTolerance(cluster.connection, on_outage)
        asked = lease
        for _ in changed_tasks(cluster.connection, (number,), timeout=wait_seconds):
            try:
                asked = task = cluster.task(asked)
                if watch is not None:
                    watch(task)
                if task.status is TaskStatus.RUNNING:
                    return cluster._lease_of(task)
            except AWAY as error:
                patience.tolerate(error)
                continue
            patience.answered()
            if task.ended:
                raise TaskFailed(task)
        raise TookTooLong(f"{id_of(lease)} did not get its GPUs within {wait_seconds:g} s.")

    def _lease_of(self, task: Task) -> Lease:
        known = self.connection.ask("GET", f"/api/v1/leases/{task.id}", LeaseAnswer, query=_same(task))
        devices = visible_devices(known.gpus, self.gpus().gpus)
        env = {"CUDA_VISIBLE_DEVICES": devices}
        return Lease(known.id, known.gpus, known.node_id, env, known.expires_at, known.created_at)

    def release_lease(self, lease: TaskRef) -> None:
        """Give the GPUs back. Done again it changes nothing."""
        self.connection.send("DELETE", f"/api/v1/leases/{_quoted(id_of(lease))}", query=_same(lease))

    def leases(self) -> LeaseList:
        """All leases that are held or waited for."""
        return self.connection.ask("GET", "/api/v1/leases", LeaseList)

    # --- the yard -----------------------------------------------------------------------------------------------------

    def gpus(self) -> GpusAnswer:
        """All GPUs and what they do."""
        return self.connection.ask("GET", "/api/v1/gpus", GpusAnswer)

    def nodes(self) -> NodeList:
        """All nodes."""
        return self.connection.ask("GET", "/api/v1/nodes", NodeList)

    def cordon(self, node: str) -> NodeAnswer:
        """Place nothing new on a node."""
        return self._do_to_node(node, "cordon")

    def drain(self, node: str, *, force: bool = False) -> NodeAnswer:
        """Place nothing new on a node, and move away what allows it; with `force` what is suspended there, too."""
        return self._do_to_node(node, "drain", {"force": force or None})

    def uncordon(self, node: str) -> NodeAnswer:
        """Use a node again."""
        return self._do_to_node(node, "uncordon")

    def _do_to_node(self, node: str, verb: str, query: Mapping[str, object] | None = None) -> NodeAnswer:
        return self.connection.ask("POST", f"/api/v1/nodes/{_quoted(node)}/{verb}", NodeAnswer, query=query)

    def stop_stray(self, node: str, task: TaskRef, attempt: int) -> MessageAnswer:
        """End an attempt that a node runs and the scheduler does not know; `nodes()` lists them as `strays`."""
        path = f"/api/v1/nodes/{_quoted(node)}/strays/{_quoted(id_of(task))}/{attempt}/stop"
        return self.connection.ask("POST", path, MessageAnswer)

    def remove_node(self, node: str) -> None:
        """Forget a node. It may come back."""
        self.connection.send("DELETE", f"/api/v1/nodes/{_quoted(node)}")

    def predictions(self) -> PredictionsAnswer:
        """How right predictions were over the tasks that ended last, and which model makes them."""
        return self.connection.ask("GET", "/api/v1/predictions", PredictionsAnswer)

    def quota(self) -> QuotaAnswer:
        """How the yard is split between online and batch work."""
        return self.connection.ask("GET", "/api/v1/quota", QuotaAnswer)

    def set_quota(self, online_percent: float, *, mode: QuotaMode | str | None = None) -> QuotaAnswer:
        """Split it anew: 0.7 for 70 percent online work."""
        body = _request({}, online_percent=online_percent, mode=mode)
        return self.connection.ask("PUT", "/api/v1/quota", QuotaAnswer, body=body)

    # --- who may ------------------------------------------------------------------------------------------------------

    def tenants(self) -> TenantList:
        """All tenants one may see."""
        return self.connection.ask("GET", "/api/v1/tenants", TenantList)

    def set_tenant(self, tenant: str, **limits: Unpack[TenantLimits]) -> TenantAnswer:
        """Limits for a tenant. What is left out is not limited."""
        return self.connection.ask("PUT", f"/api/v1/tenants/{_quoted(tenant)}", TenantAnswer, body=_request(limits))

    def users(self) -> UserList:
        """All users."""
        return self.connection.ask("GET", "/api/v1/users", UserList)

    def add_user(
        self, username: str, password: str, *, tenant_id: str, role: str = "member", system_user: str = ""
    ) -> UserAnswer:
        """A new user; `system_user` is the account that the user's tasks run as where agents are root."""
        body = {"username": username, "password": password, "tenant_id": tenant_id, "role": role}
        if system_user:
            body["system_user"] = system_user
        return self.connection.ask("POST", "/api/v1/users", UserAnswer, body=body)

    def set_password(
        self, username: str, password: str, *, old_password: str | None = None, revoke_tokens: bool = False
    ) -> UserAnswer:
        """Another password, one's own (with the old one) or as an admin anybody's. Logins with the old one are over.

        Tokens stay unless they are to be revoked, too.
        """
        body = _request({}, password=password, old_password=old_password, revoke_tokens=revoke_tokens or None)
        return self.connection.ask("PATCH", f"/api/v1/users/{_quoted(username)}", UserAnswer, body=body)

    def change_user(
        self, username: str, *, tenant_id: str | None = None, role: str | None = None, system_user: str | None = None
    ) -> UserAnswer:
        """Another tenant, role or system account; what is not given stays as it is."""
        asked = {"tenant_id": tenant_id, "role": role, "system_user": system_user}
        body = {name: value for name, value in asked.items() if value is not None}
        return self.connection.ask("PATCH", f"/api/v1/users/{_quoted(username)}", UserAnswer, body=body)

    def remove_user(self, username: str) -> None:
        """Away with a user and all tokens of that user."""
        self.connection.send("DELETE", f"/api/v1/users/{_quoted(username)}")

    def tokens(self) -> TokenList:
        """All tokens one may see."""
        return self.connection.ask("GET", "/api/v1/tokens", TokenList)

    def create_token(
        self,
        name: str = "",
        *,
        username: str | None = None,
        lifetime_seconds: float | None = None,
        password: str | None = None,
    ) -> TokenCreated:
        """A new token; what it is made of is shown this once.

        It does not outlive the login or token it is made with, unless one's password is given again.
        """
        body = _request({}, name=name, username=username, lifetime=lifetime_seconds, password=password)
        return self.connection.ask("POST", "/api/v1/tokens", TokenCreated, body=body)

    def revoke_token(self, token: str) -> None:
        """Let nobody in with this token any more; it is named by its id."""
        self.connection.send("DELETE", f"/api/v1/tokens/{_quoted(token)}")

    def login(self, username: str, password: str) -> LoginAnswer:
        """Exchange a password for a token that runs out. This client goes on as it was; connect anew with the token."""
        body = {"username": username, "password": password}
        return self.connection.ask("POST", "/api/v1/login", LoginAnswer, body=body)


class _Tasks(msgspec.Struct):
    tasks: list[Task]


def new_key() -> str:
    """A name for a request that nobody used before."""
    return os.urandom(16).hex()


def _of_task(task: TaskRef) -> str:
    return f"/api/v1/tasks/{_quoted(id_of(task))}"


def _same(task: TaskRef) -> dict[str, object]:
    """What keeps a request from another task under the same number."""
    return {"created_at": created_at_of(task)}


def _quoted(part: str) -> str:
    """A name or id as a part of an address; an empty one would make another address of it."""
    if not part:
        raise NotFound(EMPTY, status=404, code="EmptyName")
    return quote(part, safe="")


def _in_part(body: dict[str, Any], within: Mapping[int, int], made: Sequence[Sequence[Task]]) -> dict[str, Any]:
    """A request whose references to places are those of its part, or ids where those were accepted before."""
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
                raise WrongInput(f"{ref} comes later than a task that is to wait for it, or not at all.")
        waits[name] = found
    return {**body, **waits}


def _request(fields: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A request as the API wants it: what is None is left out, Python's words become the API's."""
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
