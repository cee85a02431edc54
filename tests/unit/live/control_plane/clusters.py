"""A real scheduler on a real folder, with a real gRPC port, for tests."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import grpc.aio

from gpuyard.core.domain.commands import SetSplit
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import Resources, TaskSpec
from gpuyard.core.domain.tenant import QuotaMode, Split
from gpuyard.core.domain.values import TaskId, TaskStatus, TenantId
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.live.control_plane.access.principal import AuthMethod, Principal, Role
from gpuyard.live.control_plane.options import SchedulerOptions
from gpuyard.live.control_plane.scheduler import Scheduler, Stores
from gpuyard.live.control_plane.stores.archive import Archive
from gpuyard.live.control_plane.stores.recovery import found_cluster, open_journal, recover
from gpuyard.live.control_plane.stores.secrets import SecretStore
from gpuyard.live.control_plane.submissions import Submission
from gpuyard.live.wire.rpc import agents_handler

ADMIN = Principal("root", None, Role.ADMIN, AuthMethod.LOCAL, "127.0.0.1")
TOKEN = "let-me-in"
OPTIONS = {field.name for field in fields(SchedulerOptions)}


@asynccontextmanager
async def open_scheduler(
    folder: Path, store: type[SqliteJournal] | None = None, **more: Any
) -> AsyncIterator[tuple[Scheduler, str]]:
    """The scheduler, and where agents find it. `store`: another kind of journal; `more`: options, or parts of the scheduler."""
    journal = open_journal(folder / "journal") if store is None else store.open(folder / "journal")
    engine, views = recover(journal)
    found_cluster(engine, journal, views, time.time())
    archive, secrets = Archive.open(folder / "archive.sqlite"), SecretStore.open(folder / "secrets.sqlite")
    chosen = {name: more.pop(name) for name in OPTIONS & more.keys()}
    options = SchedulerOptions(join_token=TOKEN, **{"origin": 0, **chosen})
    scheduler = Scheduler(Stores(journal, archive, secrets), engine, views, options, **more)
    running = asyncio.create_task(scheduler.run("test"))
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((agents_handler(scheduler.agents),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await until(lambda: scheduler.ready)
    await scheduler.loop.tell(SetSplit(Split(0.5, 0.5, QuotaMode.BORROW)))
    try:
        yield scheduler, f"127.0.0.1:{port}"
    finally:
        if not running.done():
            await scheduler.stop(0.0)
        await server.stop(0)
        try:
            await running
        finally:
            scheduler.alerts.close()
            journal.close()
            archive.close()
            secrets.close()


async def until(true: Callable[[], Any], seconds: float = 20.0) -> None:
    """Wait for something to become so."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


async def settled(scheduler: Scheduler) -> None:
    """All that was asked before is decided and durable: what has not happened by now does not happen by itself."""
    for _ in range(2):
        await scheduler.queries.look(lambda _state, now: now)


async def silent_for(scheduler: Scheduler, seconds: float) -> None:
    """Let time pass in which no node is heard of, and wait until the scheduler has looked for lost ones twice."""
    liveness = scheduler.agents.liveness
    for instants in (liveness.last_heard, liveness.away_until):
        for node in instants:
            instants[node] -= seconds
    liveness.scheduler_back_by -= seconds
    await _looked(scheduler)
    await _looked(scheduler)  # by now the loop has been told what was found the first time
    await settled(scheduler)


async def _looked(scheduler: Scheduler) -> None:
    before = scheduler.agents.liveness.checked_at
    await until(lambda: scheduler.agents.liveness.checked_at != before)


def spec(**more: Any) -> TaskSpec:
    """A task for one GPU."""
    resources = more.pop("resources", Resources(gpus=1))
    return TaskSpec(TenantId(more.pop("tenant", "lab")), resources, **{"command": "true", **more})


async def submit(scheduler: Scheduler, *specs: TaskSpec, **more: Any) -> list[TaskId]:
    """Submit tasks that must be accepted."""
    answer = await scheduler.submissions.submit([Submission([each], {}) for each in specs], ADMIN, **more)
    assert not isinstance(answer, Refusal), answer.sentence()
    return [view.id for view in answer]


async def status(scheduler: Scheduler, task: TaskId) -> str:
    """The answer of the API for a task."""
    import msgspec

    answer = await scheduler.queries.answer(task)
    assert answer is not None
    return str(msgspec.json.decode(answer[1])["status"])


async def ended(scheduler: Scheduler, task: TaskId, how: TaskStatus = TaskStatus.SUCCESS) -> None:
    """Wait for a task to end in this way."""
    deadline = time.monotonic() + 20
    while (now := await status(scheduler, task)) != how:
        assert time.monotonic() < deadline, f"task {task} is {now}"
        await asyncio.sleep(0.01)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run an asynchronous test, bounded in time."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())
