"""What a jump in a long list of tasks and a search cost the scheduler, in CPU time.

    python benchmarks/task_lists.py [--json] [--sizes OPEN+ENDED …] [--times N]

A real scheduler with its archive and a real HTTP server run in this process. Of the tasks, `OPEN` wait and `ENDED` are in
the archive; every second task has ended where both exist, which is the worst case for a page from the middle. Each request
asks for a page of 200 summaries, as the dashboard does. The figures are the CPU time of the whole process for one request
(the median, and the worst after the first), and the longest *stall*: how long a timer of 1 ms in the event loop was late,
as far as this process was working in that time. The client is part of the process and of the figures.
"""

import argparse
import asyncio
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog
import uvloop

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.stalls import Bench, opened
from gpuyard.core.domain import commands as command
from gpuyard.core.domain.task import Resources, TaskSpec
from gpuyard.core.domain.values import TaskId, TenantId
from gpuyard.live.control_plane.access.principal import AuthMethod, Principal, Role
from gpuyard.live.control_plane.submissions import Submission

WHO = Principal("root", None, Role.ADMIN, AuthMethod.LOCAL, "127.0.0.1")
BATCH = 1000
SIZES = ["10000+0", "100000+0", "200000+0", "0+10000", "0+100000", "0+200000", "50000+50000", "100000+100000"]
TICK_SECONDS = 0.001


def queries(total: int) -> dict[str, str]:
    """The requests, by what they do."""
    middle, end = min(total // 2, 100_000), min(total - 200, 100_000)
    return {
        "first page": "",
        "jump to the middle": f"&offset={middle}",
        "jump to the end": f"&offset={end}",
        "jump, by status": f"&status=pending,cancelled&offset={middle}",
        "jump, by name": f"&sort=name&offset={middle}",
        "jump, by start": f"&sort=-started_at&offset={middle}",
        "jump, by status order": f"&sort=status&offset={middle}",
        "rare search": "&q=task-7777",
        "common search": "&q=sweep",
        "common search, jump": f"&q=sweep&offset={middle // 2}",
        "search by name order": "&q=sweep&sort=name",
        "search without result": "&q=nothing-like-this",
        "queue": "queue?",
        "queue, folded": "queue?fold=true",
        "queue, jump to the end": f"queue?offset={end}",
        "queue, by name": "queue?sort=name",
        "queue of one user": "queue?user=u7",
    }


def spec(number: int) -> TaskSpec:
    """A task that waits: it needs more GPUs than are free."""
    return TaskSpec(
        TenantId(f"t{number % 20}"),
        Resources(gpus=8),
        command=f"python train.py --seed {number} --data /data/set-{number % 97}",
        name=f"{'sweep' if number % 2 else 'eval'}-{number % 1000}",
        user=f"u{number % 50}",
    )


async def fill(bench: Bench, waiting: int, ended: int) -> None:
    """Submit all tasks, and cancel those that shall have ended."""
    scheduler, total = bench.scheduler, waiting + ended
    for first in range(0, total, BATCH):
        batch = [Submission([spec(number)], {}) for number in range(first, min(first + BATCH, total))]
        assert isinstance(await scheduler.submissions.submit(batch, WHO), list)
    chosen = range(1, 2 * ended + 1, 2) if waiting >= ended else range(1, total + 1)
    for first in range(0, ended, BATCH):
        cancelled = [TaskId(task) for task in chosen[first : first + BATCH]]
        await asyncio.gather(*(scheduler.loop.tell(command.CancelTask(task)) for task in cancelled))
        await scheduler.archiver.archive_now()
    while scheduler.views.just_ended:
        await asyncio.sleep(0.05)


class Stall:
    """The longest stall since `begin`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def watch(self) -> None:
        """Watch until cancelled."""
        while True:
            before, worked = time.perf_counter(), time.process_time()
            await asyncio.sleep(TICK_SECONDS)
            late = time.perf_counter() - before - TICK_SECONDS
            self.seconds = max(self.seconds, min(late, time.process_time() - worked))


async def ask(port: int, path: str) -> bytes:
    """Send a request and return the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert b" 200 " in head.split(b"\r\n", 1)[0], head[:300]
    return body


async def measure(bench: Bench, query: str, times: int) -> dict[str, Any]:
    """Ask so many times for a page."""
    path = f"/api/v1/{query}&limit=200" if "?" in query else f"/api/v1/tasks?limit=200&fields=summary{query}"
    stall = Stall()
    watching = asyncio.create_task(stall.watch())
    spent, body = [], b""
    for _ in range(times + 1):
        began = time.process_time()
        body = await ask(bench.port, path)
        spent.append(time.process_time() - began)
        await asyncio.sleep(0.02)
    watching.cancel()
    page = json.loads(body)
    return {
        "first_ms": round(1000 * spent[0], 1),
        "median_ms": round(1000 * statistics.median(spent[1:]), 1),
        "worst_ms": round(1000 * max(spent[1:]), 1),
        "stall_ms": round(1000 * stall.seconds, 1),
        "total": page["total"],
        "rows": len(page["rows"] if "rows" in page else page["tasks"]),
    }


async def measured(size: str, times: int) -> list[dict[str, Any]]:
    """Measure all requests with so many tasks."""
    waiting, ended = map(int, size.split("+"))
    with tempfile.TemporaryDirectory() as folder:
        async with opened(Path(folder)) as bench:
            began = time.perf_counter()
            await fill(bench, waiting, ended)
            print(f"{size}: filled in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
            return [
                {"open": waiting, "ended": ended, "what": what} | await measure(bench, query, times)
                for what, query in queries(waiting + ended).items()
            ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="open and ended tasks, for example 50000+50000")
    parser.add_argument("--times", type=int, default=5, help="requests of each kind after the first")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    result: dict[str, Any] = {"python": sys.version.split()[0], "load_before": os.getloadavg()[0], "rows": []}
    for size in asked.sizes:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result["rows"] += runner.run(measured(size, asked.times))
    result["load_after"] = os.getloadavg()[0]
    if asked.json:
        print(json.dumps(result, indent=1))
        return
    for row in result["rows"]:
        print(" ".join(f"{name}={value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
