"""A real scheduler process under a steady load, with and without open dashboards, in turns in one run.

200 simulated nodes with eight GPUs each speak real gRPC from a process of their own; a task runs for 0.2 s. This process
submits batches over HTTP. Open dashboards are a third process: each has the live stream open and asks for what the
overview page asks for, as often as the page does. Windows with and without viewers alternate in the order
without, with, with, without, so that a drift of the machine touches both alike; the medians of both are compared, because
on a shared machine single windows are disturbed.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

NODES, GPUS_EACH = 200, 8
RATES = (1000, 800, 600, 400, 200, 100)
"""Tasks a second that are tried, until the cluster keeps up."""
TRIAL_SECONDS = 6.0
KEPT_UP = 0.97
"""The part of the submitted tasks that must have ended at the end of a trial, less those that still run."""
BATCHES_A_SECOND = 10
SETTLE_SECONDS = 1.0
PLAYERS = """
import asyncio, sys
import grpc.aio, uvloop
from gpuyard.testing.fake_node import FakeNode
address, count, gpus = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
async def play():
    channels = [grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) for _ in range(8)]
    nodes = [FakeNode(f"node-{place:03}", gpus, join_token="join", runs_for=0.2) for place in range(count)]
    await asyncio.gather(*(node.play(address, channels[place % 8]) for place, node in enumerate(nodes)))
uvloop.run(play())
"""
VIEWERS = """
import asyncio, sys, time
port, count = int(sys.argv[1]), int(sys.argv[2])
HISTORY = "gpus_total,gpus_busy,gpus_external,tasks_pending,tasks_running"
def request(path, kind="keep-alive"):
    return f"GET /api/v1/{path} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\nConnection: {kind}\\r\\n\\r\\n".encode()
async def watch():
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request("live"))
    assert b" 200 " in await reader.readline()
    while await reader.read(1 << 20):
        pass
async def ask(path, seconds, first):
    await asyncio.sleep(first)
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        now = int(time.time())
        writer.write(request(path.format(since=now - 3600, until=now), "close"))
        head = await reader.readline()
        assert b" 200 " in head, (path, head)
        await reader.read()
        writer.close()
        await asyncio.sleep(seconds)
async def main():
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(watch())
            for path, seconds in (("overview", 5), ("alerts", 5), ("history?from={since}&to={until}&series=" + HISTORY, 10)):
                group.create_task(ask(path, seconds, seconds * number / count))
        print("watching", flush=True)
asyncio.run(main())
"""


class Loaded:
    """The scheduler under load."""

    def __init__(self, port: int, server: "subprocess.Popen[bytes]") -> None:
        self.port = port
        self.server = server
        self._line = HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request and return the answer."""
        data = None if body is None else json.dumps(body).encode()
        self._line.request(method, f"/api/v1/{path}", data, {"Content-Type": "application/json"})
        answer = self._line.getresponse()
        told = answer.read()
        assert answer.status < 300, (answer.status, told[:300])
        return json.loads(told)

    def answers(self) -> bool:
        """Whether the scheduler answers."""
        try:
            return self.ask("GET", "overview") is not None
        except (OSError, HTTPException):
            self._line.close()
            return False

    def ended(self) -> int:
        """Return how many tasks have ended."""
        return int(self.ask("GET", "tasks?status=success&limit=1")["total"])

    def load(self, rate: int, seconds: float) -> int:
        """Submit so many tasks a second; return their number."""
        size = max(1, rate // BATCHES_A_SECOND)
        body = {"tasks": [{"command": ["true"], "gpu_count": 1, "array": {"count": size}}]}
        began, submitted = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < seconds:
            if submitted < passed * rate:
                self.ask("POST", "tasks:batch", body)
                submitted += size
            else:
                time.sleep(0.005)
        return submitted

    def starts(self, since: float, pages: int = 5) -> list[float]:
        """Return the seconds from submission to start of tasks that were created since then, evenly chosen."""
        query = f"tasks?since={since}&fields=summary&limit=200"
        total = int(self.ask("GET", query)["total"])
        found = []
        for page in range(pages):
            rows = self.ask("GET", f"{query}&offset={page * max(0, total - 200) // max(1, pages - 1)}")["tasks"]
            found += [_seconds(row["started_at"]) - _seconds(row["created_at"]) for row in rows if row["started_at"]]
        return found


def _seconds(instant: str) -> float:
    return datetime.fromisoformat(instant).timestamp()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def loaded() -> Iterator[Loaded]:
    """Run a scheduler and its simulated nodes."""
    from tests.acceptance.live import free_port
    from tests.acceptance.waiting import until

    with tempfile.TemporaryDirectory() as folder:
        http, grpc = free_port(), free_port()
        settings = Path(folder) / "scheduler.yaml"
        settings.write_text(
            f"server: {{http_address: '127.0.0.1:{http}', grpc_address: '127.0.0.1:{grpc}'}}\n"
            f"storage: {{data_dir: {folder}/data}}\nauth: {{join_token: join}}\nquota: {{mode: borrow}}\n"
            f"logging: {{output: {folder}/log}}\n"
        )
        server = subprocess.Popen([sys.executable, "-m", "gpuyard.cli", "server", "--config", str(settings)])
        processes = [server]
        try:
            cluster = Loaded(http, server)

            until(cluster.answers, 30, "the scheduler is up")
            words = [sys.executable, "-c", PLAYERS, f"127.0.0.1:{grpc}", str(NODES), str(GPUS_EACH)]
            processes.append(subprocess.Popen(words))
            until(lambda: cluster.ask("GET", "nodes")["total"] == NODES, 60, f"{NODES} nodes")
            yield cluster
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait(30)


def sustained_rate(cluster: Loaded, wanted: int) -> int:
    """Return the highest of the tried rates, from `wanted` down, that the cluster keeps up with on this machine."""
    for rate in (wanted, *(each for each in RATES if each < wanted)):
        before = cluster.ended()
        submitted = cluster.load(rate, TRIAL_SECONDS)
        ended = cluster.ended() - before
        _drain(cluster, before + submitted)
        if submitted >= KEPT_UP * rate * TRIAL_SECONDS and ended >= KEPT_UP * submitted - rate:  # a second's tasks run
            return rate
    return RATES[-1]


def _drain(cluster: Loaded, total: int) -> None:
    for _ in range(600):
        if cluster.ended() >= total:
            return
        time.sleep(0.1)
    raise AssertionError("the tasks do not end")


def window(cluster: Loaded, rate: int, seconds: float, viewers: int) -> dict[str, Any]:
    """Measure one window."""
    watching = None
    if viewers:
        words = [sys.executable, "-c", VIEWERS, str(cluster.port), str(viewers)]
        watching = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert watching.stdout is not None
        assert watching.stdout.readline() == b"watching\n"
    try:
        cluster.load(rate, SETTLE_SECONDS)
        first, since = cluster.ended(), time.time()
        worked, began = cpu_seconds(cluster.server.pid), time.perf_counter()
        cluster.load(rate, seconds)
        passed = time.perf_counter() - began
        ended, worked = cluster.ended() - first, cpu_seconds(cluster.server.pid) - worked
        assert watching is None or watching.poll() is None, "the viewers have failed"
        waits = sorted(cluster.starts(since))
    finally:
        if watching is not None:
            watching.kill()
            watching.wait()
    return {
        "viewers": viewers,
        "tasks_per_s": round(ended / passed, 1),
        "submit_to_start_p50_ms": round(1000 * statistics.median(waits), 2),
        "submit_to_start_p99_ms": round(1000 * waits[int(0.99 * len(waits))], 2),
        "scheduler_percent_of_a_core": round(100 * worked / passed, 1),
        "scheduler_cpu_ms_per_task": round(1000 * worked / max(1, ended), 4),
    }


def watched_load(viewers: int, wanted_rate: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Measure all windows and compare them."""
    with loaded() as cluster:
        rate = sustained_rate(cluster, wanted_rate)
        order = [0, viewers, viewers, 0] * rounds
        windows = [window(cluster, rate, seconds, count) for count in order]
    without = [one for one in windows if not one["viewers"]]
    watched = [one for one in windows if one["viewers"]]
    middle = {
        name: (statistics.median(one[name] for one in without), statistics.median(one[name] for one in watched))
        for name in windows[0]
        if name != "viewers"
    }
    of_core = "scheduler_percent_of_a_core"
    return {
        "gpus": NODES * GPUS_EACH,
        "viewers": viewers,
        "asked_tasks_per_s": wanted_rate,
        "sustained_tasks_per_s": rate,
        "window_seconds": seconds,
        "windows": windows,
        "medians_without_and_with": middle,
        "ratio_with_to_without": {name: round(values[1] / values[0], 3) for name, values in middle.items()},
        "viewers_percent_of_a_core": round(middle[of_core][1] - middle[of_core][0], 1),
    }
