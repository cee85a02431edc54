"""A real server on a free loopback port, with a real scheduler behind it, in a thread of the test."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import uvicorn
import uvloop
from argon2 import PasswordHasher

from gpuyard.core.domain.commands import Command, JoinNode
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import NodeId, TenantId
from gpuyard.live.control_plane.access.allowed_hosts import AllowedHosts
from gpuyard.live.control_plane.access.authenticator import Authenticator
from gpuyard.live.control_plane.access.principal import Role
from gpuyard.live.control_plane.access.store import AccessStore
from gpuyard.live.control_plane.alerts.options import AlertOptions
from gpuyard.live.control_plane.history.store import HistoryStore
from gpuyard.live.control_plane.options import SchedulerOptions
from gpuyard.live.control_plane.rest.app import make_app
from gpuyard.live.control_plane.rest.serving import Limits, http_server
from gpuyard.live.control_plane.scheduler import Scheduler, Stores
from gpuyard.live.control_plane.settings import ServerSettings
from gpuyard.live.control_plane.stores.archive import Archive
from gpuyard.live.control_plane.stores.recovery import found_cluster, open_journal, recover
from gpuyard.live.control_plane.stores.secrets import SecretStore
from gpuyard.live.wire.loopback_peer import trusted_uids

T = TypeVar("T")
QUICK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
"""Weaker than the default: tests log in often."""
PATIENCE_SECONDS = 60.0


class Reply:
    """A response."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = body

    @property
    def json(self) -> Any:
        """As values."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error. /api/v1 has one format and the legacy /api another; each is complete."""
        body = self.json
        if isinstance(body.get("error"), str):
            assert set(body) == {"error", "code", "field"}, body
            return {"code": body["code"], "message": body["error"], "field": body["field"]}
        assert set(body) == {"error"}, body
        assert set(body["error"]) == {"code", "message", "field"}, body
        assert self.headers["content-type"] == "application/json"
        error: dict[str, Any] = body["error"]
        return error


class RestCluster:
    """The server, from the outside and from the inside."""

    def __init__(
        self,
        folder: Path,
        *,
        settings: ServerSettings | None = None,
        local: bool = True,
        gpus: int = 4,
        idle_seconds: float = 30.0,
        limits: Limits | None = None,
        alerts: AlertOptions | None = None,
        trace_endpoint: str = "",
    ) -> None:
        """`local`: the user who runs the tests needs no login."""
        self._alerts = alerts or AlertOptions()
        self._trace_endpoint = trace_endpoint
        self._folder = folder
        self._settings = settings or ServerSettings()
        self._uids = trusted_uids() if local else frozenset[int]()
        self._gpus = gpus
        self._idle_seconds = idle_seconds
        self._limits = limits
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="rest-cluster")
        self.port = 0
        self.scheduler: Scheduler
        self.access: AccessStore
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._server: uvicorn.Server

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(PATIENCE_SECONDS), "the server did not start"
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the server did not stop"
        if self._failure is not None:
            raise self._failure

    def _serve(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._main())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        journal = open_journal(self._folder / "journal")
        engine, views = recover(journal)
        found_cluster(engine, journal, views, 1.0)
        archive = Archive.open(self._folder / "archive.sqlite")
        secrets = SecretStore.open(self._folder / "secrets.sqlite")
        self.access = AccessStore.open(self._folder / "access.sqlite", hasher=QUICK)
        monitor, history = self._settings.monitor, None
        if monitor.enabled:
            history = HistoryStore.open(self._folder / "history.sqlite", float(monitor.retention))
        self.scheduler = Scheduler(
            Stores(journal, archive, secrets, history=history, journal_folder=self._folder / "journal"),
            engine,
            views,
            SchedulerOptions(
                join_token="join",
                origin=0,
                offline_after_seconds=3600.0,
                history_seconds=float(monitor.interval),
                alerts=self._alerts,
                trace_endpoint=self._trace_endpoint,
            ),
        )
        running = asyncio.create_task(self.scheduler.run("test"))
        while not self.scheduler.ready and not running.done():
            await asyncio.sleep(0.005)
        if self._gpus and not self.scheduler.views.nodes:
            await self.scheduler.loop.tell(JoinNode(self.node("n1", self._gpus)))
        app = make_app(
            self.scheduler,
            self.access,
            Authenticator(self.access, self._uids),
            AllowedHosts("127.0.0.1"),
            self._settings,
        )
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        tls = self._settings.server.tls
        self._server = http_server(app, tls=tls, idle_seconds=self._idle_seconds, limits=self._limits)
        serving = asyncio.create_task(self._server.serve([listening]))
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.005)
        self._ready.set()
        await self._stop.wait()
        await self.scheduler.stop(0.0)
        self._server.should_exit = True
        await serving
        await running
        listening.close()
        self.scheduler.alerts.close()
        if history is not None:
            history.close()
        for store in (journal, archive, secrets, self.access):
            store.close()

    @staticmethod
    def node(name: str, gpus: int, model: str = "RTX4090") -> NodeSpec:
        """A node without an agent: tasks placed there stay placed."""
        return NodeSpec(NodeId(name), (Gpu(model, 24576, virtual=True),) * gpus, cpus=64, memory_mib=65536)

    # --- from the inside ----------------------------------------------------------------------------------------------

    def inside(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine in the server's own loop."""

        async def do() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(do(), self._loop).result(PATIENCE_SECONDS)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The server's own."""
        return self._loop

    def tell(self, command: Command) -> None:
        """Have the engine handle a command."""
        answer = self.inside(lambda: self.scheduler.loop.tell(command, "test"))
        assert not isinstance(answer, Refusal), answer.sentence()

    def token_of(self, username: str, role: Role, tenant: str | None = None) -> str:
        """A new user's token."""
        added = self.access.add_user(username, "correct horse", TenantId(tenant) if tenant else None, role)
        assert not isinstance(added, Refusal), added.sentence()
        made = self.access.make_token(username)
        assert not isinstance(made, Refusal), made.sentence()
        return made.secret

    # --- from the outside ---------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: object = None, *, token: str | None = None, **headers: str) -> Reply:
        """One request. A body that is bytes is sent as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        try:
            sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            if token is not None:
                given["Authorization"] = f"Bearer {token}"
            connection.request(method, path, sent, given)
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def get(self, path: str, **more: Any) -> Any:
        """Return the answer to a GET that must succeed."""
        reply = self.ask("GET", path, **more)
        assert reply.status == 200, reply.body
        return reply.json

    def submit(self, **task: Any) -> dict[str, Any]:
        """A task that must be accepted."""
        reply = self.ask("POST", "/api/v1/tasks", {"gpu_count": 1, "command": "true", **task})
        assert reply.status == 201, reply.body
        answer: dict[str, Any] = reply.json
        return answer

    @contextmanager
    def socket(self) -> Iterator[socket.socket]:
        """A bare connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS) as connection:
            yield connection
