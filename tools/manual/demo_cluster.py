"""A scheduler made up of figures, for stills, measurements and tests of what people see: any number of tasks and GPUs.

Rows are computed when they are asked for, so 100,000 tasks take no memory. The answers have the real types.
"""

import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from gpuyard.core.domain.values import TaskClass, TaskStatus
from gpuyard.live.wire.answers import GpuAnswer, GpusAnswer, HealthAnswer, NodeAnswer, NodeList
from gpuyard.live.wire.live_answers import AlertCounts, GpuCounts, LiveCard, LiveMessage, NodeCounts, TaskCounts
from gpuyard.live.wire.queue_answers import QueueAnswer, QueueRow

USERS = ("ann", "bob", "chen", "dana", "emil", "fatima", "goro", "hana")
NAMES = ("llama-sft", "resnet50", "vit-large", "whisper", "moe-pretrain", "eval-mmlu", "diffusion", "bert-base")
MODELS = ("H100", "A100", "L40S")
STATES = ("idle", "busy", "external", "offline")


class DemoCluster:
    """What the scheduler answers."""

    def __init__(self, *, nodes: int, gpus_each: int, running: int, waiting: int) -> None:
        self.nodes, self.gpus_each, self.running, self.waiting = nodes, gpus_each, running, waiting
        self.cancelled: list[str] = []
        self.asked: list[str] = []
        self.tick = threading.Event()
        """Set to end waiting streams."""
        self.samples_per_second = 1.0
        self.url = ""
        self.stopped = False
        self._now = datetime.now(UTC)

    def _at(self, seconds: float) -> str:
        return (self._now + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")

    # --- tasks --------------------------------------------------------------------------------------------------------

    def row(self, place: int, *, fold: bool = False) -> QueueRow:
        """Return the row at a place of the queue."""
        runs, number = place < self.running, place + 1
        several = 24 if not runs and fold and place % 7 == 3 else 1
        waits = place - self.running
        return QueueRow(
            id=f"task-{number}",
            name=f"{NAMES[number % len(NAMES)]}",
            command="python train.py",
            status=TaskStatus.RUNNING if runs else TaskStatus.PENDING,
            tenant_id="lab",
            user=USERS[(number * 7) % len(USERS)],
            project="",
            task_class=TaskClass.BATCH,
            priority=50 if number % 5 else 80,
            gpu_count=(1, 2, 4, 8)[number % 4],
            nodes=1,
            gpu_fraction=None,
            gpu_model=None,
            node_ids=[self.node_name(place % self.nodes)] if runs else [],
            array_index=None,
            attempts=1 if runs else 0,
            created_at=self._at(-7200 - number % 3000),
            started_at=self._at(-3600 - 60 * number % 3000) if runs else None,
            running_since=self._at(-3600 - 60 * number % 3000) if runs else None,
            ran_before_seconds=0.0 if runs else None,
            place=None if runs else waits + 1,
            expected_start=self._at(120 + 240 * waits) if not runs and waits < 30 else None,
            reason=None if runs else "No suitable node has enough free GPUs.",
            reason_code=None if runs else "NoRoom",
            count=several,
            first_id=f"task-{number}" if several > 1 else None,
            last_id=f"task-{number + several - 1}" if several > 1 else None,
        )

    def queue(self, query: dict[str, str]) -> QueueAnswer:
        """Return a page; `q` and `user` filter by remainder, so that totals are known without a search."""
        total = self.running + self.waiting
        places = range(total)
        if "q" in query:
            step = len(NAMES)
            wanted = [place for place, name in enumerate(NAMES) if query["q"] in name]
            places = range((wanted[0] - 1) % step, total, step) if wanted else range(0)
        if "user" in query:
            places = places[:: len(USERS)]
        if query.get("sort", "").startswith("-"):
            places = places[::-1]
        if "status" in query:
            statuses = query["status"].split(",")
            first = 0 if "running" in statuses else self.running
            places = range(first, total if "pending" in statuses else self.running)
        first, limit = int(query.get("offset", 0)), int(query.get("limit", 100))
        rows = [self.row(place, fold="fold" in query) for place in places[first : first + limit]]
        shown = [row for row in rows if row.id not in self.cancelled]
        return QueueAnswer(
            rows=shown, total=len(places), tasks=len(places), running=self.running, suspended=0, pending=self.waiting
        )

    # --- GPUs ---------------------------------------------------------------------------------------------------------

    def node_name(self, place: int) -> str:
        """Return the name of a node."""
        return f"n{place:03}"

    def state(self, place: int) -> tuple[int, int]:
        """Return state and utilization of a GPU."""
        node = place // self.gpus_each
        if node % 67 == 66:
            return 3, 255
        if place % 29 == 28:
            return 0, 0
        return 1, (97, 91, 100, 62, 88, 99, 35, 94)[(place * 5 + node) % 8]

    def gpus(self) -> GpusAnswer:
        """Return all GPUs."""
        found = []
        for place in range(self.nodes * self.gpus_each):
            node, index = divmod(place, self.gpus_each)
            state, used = self.state(place)
            task = f"task-{node + 1}" if state == 1 else None
            found.append(
                GpuAnswer(
                    id=f"{self.node_name(node)}/{index}", node_id=self.node_name(node), device_index=index,
                    model=MODELS[node % 7 // 3], memory=81_559, status=STATES[state],  # type: ignore[arg-type]
                    current_task=task, tasks=[task] if task else [], updated_at=self._at(0),
                    user=USERS[node % len(USERS)] if task else None, utilization=None if used == 255 else float(used),
                )
            )  # fmt: skip
        return GpusAnswer(
            total=len(found), **{name: sum(gpu.status == name for gpu in found) for name in STATES}, gpus=found
        )

    def nodes_answer(self) -> NodeList:
        """Return all nodes; one is drained."""
        rows = [
            NodeAnswer(
                id=self.node_name(place), status="draining" if place == 4 else "offline" if place % 67 == 66 else "online",
                reason="new fan" if place == 4 else None, gpus=self.gpus_each, gpus_idle=0, gpu_models={}, cpus=64,
                memory_mb=1_031_000, labels={}, tasks=[], last_seen=None, version=None, address=None, cpu_percent=None,
                memory_used_mb=None, load=None, disk_free_mb=None, supervisor_silent_seconds=None, devices=[],
                unknown_attempts=[],
            )
            for place in range(self.nodes)
        ]  # fmt: skip
        return NodeList(rows, len(rows))

    def message(self, number: int) -> LiveMessage:
        """Return a message of the live stream; the first one has the cards."""
        count = self.nodes * self.gpus_each
        states = [self.state(place) for place in range(count)]
        samples = b"".join(
            bytes([state, used if used == 255 else (used + number) % 101, 50, 60, 255, 255]) for state, used in states
        )
        tally = {name: sum(state == place for state, _ in states) for place, name in enumerate(STATES)}
        offline = sum(place % 67 == 66 for place in range(self.nodes))
        more: dict[str, Any] = {}
        if number == 0:
            more["cards"] = [
                LiveCard(f"{self.node_name(place // self.gpus_each)}/{place % self.gpus_each}", self.node_name(place // self.gpus_each), place % self.gpus_each, "H100", 81_559)
                for place in range(count)
            ]  # fmt: skip
            more["holders"] = [None] * count
        return LiveMessage(
            at=self._at(number), build="demo", gpus=GpuCounts(total=count, **tally),
            tasks=TaskCounts(pending=max(0, self.waiting - len(self.cancelled)), running=self.running, suspended=0),
            nodes=NodeCounts(total=self.nodes, online=self.nodes - offline, away=0, offline=offline),
            alerts=AlertCounts(), generation=1, samples=b64encode(samples).decode(),
            changed_tasks=[f"task-{number}"] if number % 3 == 2 else msgspec.UNSET, **more,
        )  # fmt: skip

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    def answer(self, path: str, query: dict[str, str]) -> object:
        """Return the answer to a GET."""
        match path.removeprefix("/api/v1"):
            case "/queue":
                return self.queue(query)
            case "/gpus":
                return self.gpus()
            case "/nodes":
                return self.nodes_answer()
            case "/health":
                return HealthAnswer("ok", "demo")
        return None


class _DemoHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    demo: DemoCluster

    def do_GET(self) -> None:
        """Answer a question."""
        parts = urlsplit(self.path)
        self.demo.asked.append(self.path)
        if parts.path == "/api/v1/live":
            self._stream()
            return
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path.endswith("/logs"):
            self._send(b"".join(b"step %d loss 0.%d\n" % (step, 99 - step) for step in range(60)))
            return
        found = self.demo.answer(parts.path, query)
        self._send(msgspec.json.encode(found if found is not None else {"error": {"code": "UnknownTask", "message": "There is no such task."}}), 200 if found is not None else 404)  # fmt: skip

    def do_DELETE(self) -> None:
        """Cancel a task."""
        task = self.path.partition("?")[0].rpartition("/")[2]
        self.demo.cancelled.append(task)
        self._send(msgspec.json.encode({"task_id": task, "id": task, "status": "cancelled", "message": "done"}))

    def _send(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        number = 0
        while not self.demo.stopped:
            name = "snapshot" if number == 0 else "sample"
            data = msgspec.json.encode(self.demo.message(number))
            try:
                self.wfile.write(b"id: %d\nevent: %s\ndata: %s\n\n" % (number, name.encode(), data))
                self.wfile.flush()
            except OSError:
                return
            number += 1
            self.demo.tick.wait(1 / self.demo.samples_per_second)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _DemoServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that leaves is no error."""


@contextmanager
def demo_cluster(**sizes: int) -> Iterator[DemoCluster]:
    """Serve a cluster of these sizes on a free port."""
    demo = DemoCluster(**sizes)
    handler = type("Handler", (_DemoHandler,), {"demo": demo})
    with _DemoServer(("127.0.0.1", 0), handler) as server:
        demo.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield demo
        finally:
            demo.stopped = True
            demo.tick.set()
            server.shutdown()
