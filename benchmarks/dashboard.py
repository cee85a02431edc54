"""What the history and the live stream cost the scheduler, in CPU time.

    python benchmarks/dashboard.py [--json] [--gpus N …] [--seconds N] [--watch-seconds N] [--only history|viewers|load]

*History*: so many virtual seconds of a cluster of virtual GPUs are sampled and written as the scheduler does it, with new
heartbeats every five seconds. Beside it, in the same run, the same readings go to a naive store: one row of SQLite for each
GPU and second, with the key (GPU, time) and one transaction a second. CPU time is that of the thread that does the work;
the part that runs in the event loop is given separately.

*Viewers*: a real scheduler with its history and a real HTTP server run in this process, ten readers of `/api/v1/live` in
another. The figure is the CPU time of this process in a second, without and with readers. Heartbeats of all nodes arrive
in memory; a tenth of the GPUs change hands every second.

*Load*: a real scheduler process with 1,600 virtual GPUs runs 1,000 tasks a second, or as many as the machine bears, with and
without ten open dashboards in turns (`common/watched_load.py`). The figures are tasks a second, the time from submission to
start, and the scheduler's CPU time, as ratios of windows with and without. `--write` keeps them in benchmarks/results.
"""

import argparse
import asyncio
import json
import logging
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog
import uvloop

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common.results import about, write_result
from benchmarks.common.watched_load import watched_load
from gpuyard.core.domain import commands as command
from gpuyard.core.domain.events import NodeJoined
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.values import NodeId, TaskId
from gpuyard.core.journal.records import Record
from gpuyard.live.control_plane.access.allowed_hosts import AllowedHosts
from gpuyard.live.control_plane.access.authenticator import Authenticator
from gpuyard.live.control_plane.access.store import AccessStore
from gpuyard.live.control_plane.history.layout import GPUS
from gpuyard.live.control_plane.history.sample import Sampler
from gpuyard.live.control_plane.history.series import Span, gathered
from gpuyard.live.control_plane.history.store import HistoryStore
from gpuyard.live.control_plane.options import SchedulerOptions
from gpuyard.live.control_plane.readings import Readings
from gpuyard.live.control_plane.rest.app import make_app
from gpuyard.live.control_plane.rest.serving import http_server
from gpuyard.live.control_plane.scheduler import Scheduler, Stores
from gpuyard.live.control_plane.settings import ServerSettings
from gpuyard.live.control_plane.stores.archive import Archive
from gpuyard.live.control_plane.stores.recovery import found_cluster, open_journal, recover
from gpuyard.live.control_plane.stores.secrets import SecretStore
from gpuyard.live.control_plane.views import Views
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.loopback_peer import trusted_uids

GPUS_IN_A_NODE = 8
HEARTBEAT_SECONDS = 5
BEGIN = 1_790_000_040
"""A whole minute."""
WARM_SECONDS = 3.0
READER = """
import socket, sys
port, count = int(sys.argv[1]), int(sys.argv[2])
import selectors
waiting = selectors.DefaultSelector()
for _ in range(count):
    line = socket.create_connection(("127.0.0.1", port))
    line.sendall(f"GET /api/v1/live HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n".encode())
    waiting.register(line, selectors.EVENT_READ)
read = 0
print("reading", flush=True)
while True:
    for key, _ in waiting.select():
        data = key.fileobj.recv(1 << 20)
        if not data:
            sys.exit(0)
        read += len(data)
"""


def nodes_of(gpus: int) -> list[NodeSpec]:
    """Nodes of eight GPUs."""
    return [
        NodeSpec(NodeId(f"node-{number:03}"), (Gpu("H100", 81_559),) * GPUS_IN_A_NODE, cpus=64, memory_mib=1 << 20)
        for number in range(gpus // GPUS_IN_A_NODE)
    ]


def heartbeat(node: int, at: int) -> pb.Heartbeat:
    """A heartbeat with readings that change."""
    return pb.Heartbeat(
        at=float(at),
        host=pb.Host(cpu_percent=(node + at) % 100, memory_used_mib=1 << 18, memory_mib=1 << 20),
        gpus=[
            pb.GpuUse(
                index=index,
                utilization_percent=(7 * node + 13 * index + at) % 101,
                memory_used_mib=(node * index + 17 * at) % 81_559,
                temperature_c=40 + (node + index + at) % 40,
                power_watts=100.0 + (node + 3 * index + at) % 600,
            )
            for index in range(GPUS_IN_A_NODE)
        ],
    )


# --- history ----------------------------------------------------------------------------------------------------------


def timed(work: Callable[[], Any]) -> float:
    """CPU seconds of this thread."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


class NaiveStore:
    """One row for each GPU and second."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.execute(
            "CREATE TABLE samples (gpu TEXT, at INTEGER, utilization REAL, memory_mib INTEGER, temperature REAL, "
            "power REAL, PRIMARY KEY (gpu, at)) WITHOUT ROWID"
        )

    def append(self, at: int, beats: dict[NodeId, pb.Heartbeat]) -> None:
        """Write all readings of one second."""
        rows = [
            (
                f"{node}/{use.index}",
                at,
                use.utilization_percent,
                use.memory_used_mib,
                use.temperature_c,
                use.power_watts,
            )
            for node, beat in beats.items()
            for use in beat.gpus
        ]
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._database.execute("COMMIT")

    def read(self, gpu: str, since: int, until: int) -> list[Any]:
        """Return the samples of one GPU."""
        return self._database.execute(
            "SELECT * FROM samples WHERE gpu = ? AND at >= ? AND at < ? ORDER BY at", (gpu, since, until)
        ).fetchall()

    def close(self) -> None:
        """Close it."""
        self._database.close()


def size_of(path: Path) -> int:
    """Bytes of a database with its log."""
    return sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*"))


def history(gpus: int, seconds: int) -> dict[str, Any]:
    """Sample and write so many seconds with both stores."""
    specs, views, beats = nodes_of(gpus), Views(), dict[NodeId, pb.Heartbeat]()
    for number, spec in enumerate(specs):
        views.apply(Record(number + 1, 0.0, NodeJoined(spec)))
    sampler = Sampler(views, Readings(views, beats, {}))
    took, wrote, sealed, naive_took = 0.0, 0.0, [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        store, naive = HistoryStore.open(Path(folder) / "history.sqlite"), NaiveStore(Path(folder) / "naive.sqlite")
        for at in range(BEGIN, BEGIN + seconds):
            for number, spec in enumerate(specs):
                if (at + number) % HEARTBEAT_SECONDS == 0 or at == BEGIN:
                    beats[spec.id] = heartbeat(number, at)
            began = time.thread_time()
            sample = sampler.take(at, float(at), 1.0)
            took += time.thread_time() - began
            spent = timed(lambda sample=sample: store.append(sample))
            wrote += spent
            if at % 60 == 0 and at != BEGIN:
                sealed.append(spent)
            naive_took += timed(lambda at=at: naive.append(at, beats))
        name, until = f"{specs[-1].id}/0", BEGIN + seconds
        span = Span(BEGIN, seconds, 1)
        read = min(timed(lambda: gathered(store, GPUS, store.owners(GPUS, name), span)) for _ in range(5))
        naive_read = min(timed(lambda: naive.read(name, BEGIN, until)) for _ in range(5))
        store.close()
        naive.close()
        sizes = size_of(store.path), size_of(naive.path)
    ours = 1000 * (took + wrote) / seconds
    return {
        "gpus": gpus,
        "virtual_seconds": seconds,
        "history_ms_per_second": round(ours, 4),
        "of_that_in_the_event_loop_ms": round(1000 * took / seconds, 4),
        "sealing_a_minute_ms": round(1000 * max(sealed), 2) if sealed else None,
        "naive_ms_per_second": round(1000 * naive_took / seconds, 4),
        "naive_divided_by_ours": round(1000 * naive_took / seconds / ours, 1),
        "bytes": sizes[0],
        "naive_bytes": sizes[1],
        "read_one_gpu_ms": round(1000 * read, 3),
        "naive_read_one_gpu_ms": round(1000 * naive_read, 3),
    }


# --- viewers ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(folder: Path, gpus: int) -> AsyncIterator[tuple[Scheduler, int]]:
    """Run a scheduler with so many GPUs and its HTTP server."""
    journal = open_journal(folder / "journal")
    engine, views = recover(journal)
    found_cluster(engine, journal, views, time.time())
    archive, secrets = Archive.open(folder / "archive.sqlite"), SecretStore.open(folder / "secrets.sqlite")
    access, kept = AccessStore.open(folder / "access.sqlite"), HistoryStore.open(folder / "history.sqlite")
    options = SchedulerOptions(join_token="benchmark", origin=0, offline_after_seconds=36_000.0)
    scheduler = Scheduler(Stores(journal, archive, secrets, history=kept), engine, views, options)
    running = asyncio.create_task(scheduler.run("benchmark"))
    while not scheduler.ready:
        await asyncio.sleep(0.01)
    for spec in nodes_of(gpus):
        await scheduler.loop.tell(command.JoinNode(spec))
    app = make_app(
        scheduler, access, Authenticator(access, trusted_uids()), AllowedHosts("127.0.0.1"), ServerSettings()
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = http_server(app)
        served = asyncio.create_task(server.serve([listening]))
        beating = asyncio.create_task(beat(scheduler))
        try:
            yield scheduler, listening.getsockname()[1]
        finally:
            beating.cancel()
            await scheduler.stop(0.0)
            server.should_exit = True
            await asyncio.gather(served, running, beating, return_exceptions=True)
    for store in (journal, archive, secrets, access, kept):
        store.close()  # type: ignore[attr-defined]


async def beat(scheduler: Scheduler) -> None:
    """Deliver new readings of a fifth of the nodes each second, and move tasks on a tenth of the GPUs, in the views."""
    specs = [view.spec for view in scheduler.views.nodes.values()]
    for at in range(1_000_000_000):
        for number, spec in enumerate(specs):
            if (at + number) % HEARTBEAT_SECONDS == 0 or at == 0:
                scheduler.agents.telemetry[spec.id] = heartbeat(number, at)
            if (at + number) % 10 == 0:
                for held in scheduler.views.nodes[spec.id].on_gpu:
                    held.clear()
                    held[TaskId(at + number + 1)] = None
        await asyncio.sleep(1.0)


async def viewers(gpus: int, counts: list[int], seconds: float) -> list[dict[str, Any]]:
    """Measure the CPU time of this process with so many readers."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder), gpus) as (scheduler, port):
            await asyncio.sleep(WARM_SECONDS)
            for count in counts:
                readers = None
                if count:
                    readers = subprocess.Popen(
                        [sys.executable, "-c", READER, str(port), str(count)], stdout=subprocess.PIPE
                    )
                    while scheduler.live.viewers < count:
                        await asyncio.sleep(0.05)
                await asyncio.sleep(WARM_SECONDS)
                ticks, began, by_the_clock = scheduler.live.ticks, time.process_time(), time.monotonic()
                await asyncio.sleep(seconds)
                spent, passed = time.process_time() - began, time.monotonic() - by_the_clock
                found.append(
                    {
                        "gpus": gpus,
                        "viewers": count,
                        "seconds": round(passed, 1),
                        "ticks": scheduler.live.ticks - ticks,
                        "cpu_percent_of_a_core": round(100 * spent / passed, 3),
                    }
                )
                if readers is not None:
                    readers.kill()
                    readers.wait()
                    while scheduler.live.viewers:
                        await asyncio.sleep(0.05)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 1600])
    parser.add_argument("--seconds", type=int, default=300, help="virtual seconds of history")
    parser.add_argument("--watch-seconds", type=float, default=20.0, help="seconds for each number of viewers")
    parser.add_argument("--viewers", type=int, nargs="+", default=[0, 1, 10, 0])
    parser.add_argument("--only", choices=["history", "viewers", "load"])
    parser.add_argument("--rate", type=int, default=1000, help="tasks a second of the load")
    parser.add_argument("--window-seconds", type=float, default=5.0, help="length of a window of the load")
    parser.add_argument("--rounds", type=int, default=4, help="how often four windows of the load are measured")
    parser.add_argument("--write", action="store_true", help="keep the result of the load")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    result: dict[str, Any] = {"python": sys.version.split()[0], "load_before": os.getloadavg()[0]}
    if asked.only in {None, "history"}:
        result["history"] = [history(gpus, asked.seconds) for gpus in asked.gpus]
    if asked.only in {None, "viewers"}:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result["viewers"] = [
                row for gpus in asked.gpus for row in runner.run(viewers(gpus, asked.viewers, asked.watch_seconds))
            ]
    if asked.only in {None, "load"}:
        result["load"] = [watched_load(10, asked.rate, asked.window_seconds, asked.rounds)]
    result["load_after"] = os.getloadavg()[0]
    if asked.write and "load" in result:
        conditions = {"load_before": result["load_before"], "load_after": result["load_after"], "cores": os.cpu_count()}
        command = f"python benchmarks/dashboard.py --only load --rate {asked.rate} --write"
        write_result("watched_load", about(command, [], **conditions), result["load"])
    if asked.json:
        print(json.dumps(result, indent=1))
        return
    for part in ("history", "viewers", "load"):
        for row in result.get(part, []):
            print(part, " ".join(f"{name}={value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
