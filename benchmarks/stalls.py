"""How long the scheduler's event loop is blocked: large requests, snapshots, explain, and a client that polls lists.

    python benchmarks/stalls.py [--json] [--waiting N] [--only NAME …]

A real scheduler with a journal on disk and a real HTTP server run in this process; clients run in another one. The *longest
stall* is the longest time by which a timer of 2 ms in the event loop was late: nothing else, such as a heartbeat, is
answered for that long. Of that, only the part counts in which this process itself was working (its CPU time): on a shared
machine others make any timer late; `by_the_clock` is with them. The *engine's turn* is the longest time that a query to the engine waited.
"""

import argparse
import asyncio
import json
import logging
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import uvloop

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.tenant import QuotaMode, Split
from gpuyard.core.domain.values import NodeId, Outcome, TaskId
from gpuyard.live.control_plane.access.allowed_hosts import AllowedHosts
from gpuyard.live.control_plane.access.authenticator import Authenticator
from gpuyard.live.control_plane.access.store import AccessStore
from gpuyard.live.control_plane.garbage_collection import freeze_recovered
from gpuyard.live.control_plane.options import SchedulerOptions
from gpuyard.live.control_plane.rest.app import make_app
from gpuyard.live.control_plane.rest.serving import http_server
from gpuyard.live.control_plane.scheduler import Scheduler, Stores
from gpuyard.live.control_plane.settings import ServerSettings
from gpuyard.live.control_plane.stores.archive import Archive
from gpuyard.live.control_plane.stores.recovery import found_cluster, open_journal, recover
from gpuyard.live.control_plane.stores.secrets import SecretStore
from gpuyard.live.wire.loopback_peer import trusted_uids

TICK_SECONDS = 0.002
BATCH, TASKS = "/api/v1/tasks:batch", "/api/v1/tasks"
CLIENT = """
import http.client, json, sys, time
port, method, path, file, count, pause = sys.argv[1:]
body = open(file, "rb").read() if file else None
line = http.client.HTTPConnection("127.0.0.1", int(port), timeout=600)
sent, due = 0, time.monotonic()
while sent < int(count):
    line.request(method, path, body, {"Content-Type": "application/json"})
    answer = line.getresponse()
    size = len(answer.read())
    assert answer.status < 300, answer.status
    sent += 1
    due += float(pause)
    time.sleep(max(0.0, due - time.monotonic()))
print(json.dumps({"status": answer.status, "bytes": size}))
"""


class Stalls:
    """The longest stall and the longest wait for the engine since `begin`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._yard = scheduler
        self.loop = self.wall = self.engine = 0.0

    def begin(self) -> None:
        self.loop = self.wall = self.engine = 0.0

    async def watch(self) -> None:
        asking = asyncio.create_task(self._ask())
        try:
            while True:
                before, worked = time.perf_counter(), time.process_time()
                await asyncio.sleep(TICK_SECONDS)
                late = time.perf_counter() - before - TICK_SECONDS
                self.wall = max(self.wall, late)
                self.loop = max(self.loop, min(late, time.process_time() - worked))
        finally:
            asking.cancel()

    async def _ask(self) -> None:
        while True:
            before = time.perf_counter()
            await self._yard.loop.look(lambda state, now: (state.epoch, now))
            self.engine = max(self.engine, time.perf_counter() - before)
            await asyncio.sleep(0.01)


class Bench:
    """A scheduler, its port, and what is measured."""

    def __init__(self, scheduler: Scheduler, port: int, folder: Path) -> None:
        self.scheduler, self.port, self.folder = scheduler, port, folder
        self.stalls = Stalls(scheduler)
        self.rows: list[dict[str, Any]] = []

    async def ask(
        self, method: str, path: str, body: object = None, count: int = 1, pause: float = 0.0
    ) -> dict[str, Any]:
        """A client in a process of its own."""
        file = ""
        if body is not None:
            file = str(self.folder / "body.json")
            Path(file).write_bytes(body if isinstance(body, bytes) else json.dumps(body).encode())
        arguments = (str(self.port), method, path, file, str(count), str(pause))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, *arguments, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        assert process.returncode == 0, "the client failed"
        answer: dict[str, Any] = json.loads(out)
        return answer

    async def measure(self, name: str, work: Callable[[], Awaitable[Any]], **more: object) -> None:
        """Run something and record how long the loop was blocked."""
        await asyncio.sleep(0.2)
        self.stalls.begin()
        began = time.perf_counter()
        answer = await work()
        took = time.perf_counter() - began
        await asyncio.sleep(0.3)  # what is done after the answer counts, too
        row = {
            "what": name,
            "longest_stall_ms": round(1000 * self.stalls.loop, 1),
            "by_the_clock_ms": round(1000 * self.stalls.wall, 1),
            "engine_turn_ms": round(1000 * self.stalls.engine, 1),
            "seconds": round(took, 2),
            "answer_bytes": answer.get("bytes") if isinstance(answer, dict) else None,
            **more,
        }
        self.rows.append(row)
        print(f"{name}: {row['longest_stall_ms']} ms", file=sys.stderr, flush=True)


@asynccontextmanager
async def opened(folder: Path, gpus: int = 8) -> AsyncIterator[Bench]:
    """A scheduler with one node without an agent."""
    journal = open_journal(folder / "journal")
    engine, views = recover(journal)
    found_cluster(engine, journal, views, time.time())
    archive, secrets = Archive.open(folder / "archive.sqlite"), SecretStore.open(folder / "secrets.sqlite")
    access = AccessStore.open(folder / "access.sqlite")
    scheduler = Scheduler(
        Stores(journal, archive, secrets),
        engine,
        views,
        SchedulerOptions(join_token="join", offline_after_seconds=3600.0, snapshot_seconds=1e6),
    )
    running = asyncio.create_task(scheduler.run("bench"))
    while not scheduler.ready:
        await asyncio.sleep(0.01)
    await scheduler.loop.tell(command.SetSplit(Split(0.5, 0.5, QuotaMode.BORROW)))
    await scheduler.loop.tell(command.JoinNode(NodeSpec(NodeId("n1"), (Gpu("v", 24576),) * gpus, 64, 65536)))
    app = make_app(
        scheduler, access, Authenticator(access, trusted_uids()), AllowedHosts("127.0.0.1"), ServerSettings()
    )
    listening = socket.create_server(("127.0.0.1", 0))
    server = http_server(app)
    serving = asyncio.create_task(server.serve([listening]))
    while not server.started:
        await asyncio.sleep(0.01)
    freeze_recovered()
    bench = Bench(scheduler, listening.getsockname()[1], folder)
    watching = asyncio.create_task(bench.stalls.watch())
    try:
        yield bench
    finally:
        watching.cancel()
        scheduler.loop.stop()
        server.should_exit = True
        await asyncio.gather(serving, running, watching, return_exceptions=True)
        listening.close()
        for store in (journal, archive, secrets, access):
            store.close()


def array(count: int, **more: object) -> dict[str, object]:
    return {"command": "true", "array": {"count": count}, **more}


async def two_arrays(bench: Bench, count: int) -> None:
    body = {"tasks": [array(count), array(count, depends_on=["tasks[0]"])]}
    await bench.measure(f"two arrays of {count:,}, one after the other", lambda: bench.ask("POST", BATCH, body))


async def failure(bench: Bench, count: int) -> None:
    body = {"tasks": [array(20), array(count, depends_on=["tasks[0]"])]}
    first = int(bench.scheduler.loop.engine.state.last_task) + 1
    await bench.ask("POST", BATCH, body)
    path = f"{TASKS}/task-{first + 19}"
    await bench.measure(f"a cancelled task that {count:,} others wait for", lambda: bench.ask("DELETE", path))


async def just_below_a_mebibyte(bench: Bench) -> None:
    """Single tasks, tasks in a chain backwards, one large command, and a body that is wrong at its end."""
    single = b'{"command":"true"}'
    count = ((1 << 20) - 100) // (len(single) + 1)
    body = b'{"tasks":[' + b",".join([single] * count) + b"]}"
    await bench.measure(f"1 MiB: {count:,} single tasks", lambda: bench.ask("POST", BATCH, body))
    links = [b'{"command":"true","depends_on":["tasks[%d]"]}' % (place + 1) for place in range(20_000)]
    chain = b'{"tasks":[' + b",".join([*links, single]) + b"]}"
    assert len(chain) < 1 << 20
    await bench.measure("1 MiB: a chain of 20,001 tasks, last one first", lambda: bench.ask("POST", BATCH, chain))
    ids = {"command": "true", "depends_on": list(range(1, 10_001))}
    await bench.measure(
        "an array of 5,000 after 10,000 tasks by number",
        lambda: bench.ask("POST", TASKS, {**ids, "array": {"count": 5_000}}),
    )


async def ten_arrays(bench: Bench) -> None:
    await bench.measure("ten arrays of 10,000", lambda: bench.ask("POST", BATCH, {"tasks": [array(10_000)] * 10}))


async def fill(bench: Bench, waiting: int) -> None:
    for place in range(waiting // 10_000):
        more = {"tenant_id": f"t{place % 20}", "env": {"A": "b"}, "name": f"x{place}"}
        await bench.ask("POST", TASKS, array(10_000, **more))


async def with_many_waiting(bench: Bench, waiting: int) -> None:
    await fill(bench, waiting)
    scheduler, said = bench.scheduler, f"with {waiting:,} waiting"
    await bench.measure(f"snapshot {said}", scheduler.snapshots.save)
    await bench.ask("POST", TASKS, {"command": "true", "tenant_id": "t1"})
    await bench.measure(f"second snapshot {said}", scheduler.snapshots.save)
    for place in (150, waiting // 2, waiting):
        path = f"{TASKS}/task-{place}"
        await bench.measure(f"explain task {place:,} {said}", partial(bench.ask, "GET", f"{path}/explain", count=20))
        await bench.measure(f"GET task {place:,} {said}", partial(bench.ask, "GET", path, count=20))
    await bench.measure(f"list of 100 {said}", lambda: bench.ask("GET", f"{TASKS}?status=pending", count=20))
    await bench.measure(f"list by name {said}", lambda: bench.ask("GET", f"{TASKS}?name=x1", count=20))


async def with_many_nodes(bench: Bench, nodes: int) -> None:
    joins = [command.JoinNode(NodeSpec(NodeId(f"m{k}"), (Gpu("v", 24576),) * 8, 64, 65536)) for k in range(nodes)]
    await asyncio.gather(*(bench.scheduler.loop.tell(join) for join in joins))
    for path in ("/api/v1/nodes", "/api/v1/gpus", "/api/monitor/metrics", "/api/monitor/history"):
        await bench.measure(f"GET {path} with {nodes:,} nodes of 8 GPUs", partial(bench.ask, "GET", path, count=3))


async def lifecycles(bench: Bench, seconds: float) -> float:
    """Tasks that are submitted, placed, started and ended in a second, 64 at a time, inside the process."""
    scheduler = bench.scheduler
    ended, until = 0, time.perf_counter() + seconds
    from gpuyard.core.domain.task import Resources, TaskSpec
    from gpuyard.core.domain.values import TenantId
    from gpuyard.live.control_plane.access.principal import AuthMethod, Principal, Role
    from gpuyard.live.control_plane.submissions import Submission

    who = Principal("root", None, Role.ADMIN, AuthMethod.LOCAL, "127.0.0.1")
    spec = TaskSpec(TenantId("quick"), Resources(cpus=1), command="true")

    async def one() -> None:
        nonlocal ended
        while time.perf_counter() < until:
            views = await scheduler.submissions.submit([Submission([spec], {})], who)
            assert isinstance(views, list)
            task = TaskId(views[0].id)
            while scheduler.views.tasks[task].placement is None:
                await asyncio.sleep(0.001)
            await scheduler.loop.tell(command.ReportStarted(task, 1))
            await scheduler.loop.tell(command.ReportEnded(task, 1, Outcome.SUCCEEDED, 0))
            ended += 1

    await asyncio.gather(*(one() for _ in range(32)))
    return ended / seconds


async def polling(bench: Bench, seconds: float = 6.0) -> None:
    """Throughput with and without a client that asks for the list of waiting tasks 100 times a second."""
    await bench.ask("POST", TASKS, array(2_000))
    alone, polled = [], []
    for _ in range(2):
        alone.append(await lifecycles(bench, seconds))
        polls = int(100 * seconds)
        client = asyncio.create_task(bench.ask("GET", f"{TASKS}?status=pending", count=polls, pause=0.01))
        await asyncio.sleep(0.3)
        polled.append(await lifecycles(bench, seconds - 1.0))
        await client
    row = {
        "what": "lifecycles a second, alone and beside 100 lists a second",
        "alone": round(statistics.mean(alone)),
        "polled": round(statistics.mean(polled)),
        "ratio": round(statistics.mean(polled) / statistics.mean(alone), 2),
    }
    bench.rows.append(row)


PARTS: dict[str, Callable[[Bench, int], Awaitable[None]]] = {
    "arrays_2000": lambda bench, _: two_arrays(bench, 2_000),
    "arrays_10000": lambda bench, _: two_arrays(bench, 10_000),
    "ten_arrays": lambda bench, _: ten_arrays(bench),
    "failure": lambda bench, _: failure(bench, 9_000),
    "mebibyte": lambda bench, _: just_below_a_mebibyte(bench),
    "waiting": with_many_waiting,
    "nodes": lambda bench, _: with_many_nodes(bench, 10_000),
    "polling": lambda bench, _: polling(bench),
}


async def main() -> None:
    reader = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    reader.add_argument("--json", action="store_true")
    reader.add_argument("--waiting", type=int, default=100_000)
    reader.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    said = reader.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    rows = []
    for name in said.only:
        with tempfile.TemporaryDirectory() as folder:
            async with opened(Path(folder)) as bench:
                await PARTS[name](bench, said.waiting)
            rows += bench.rows
    if said.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(" | ".join(f"{key} {value}" for key, value in row.items() if value is not None))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
