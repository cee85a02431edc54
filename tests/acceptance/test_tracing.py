"""Traces of tasks, against a real receiver of OTLP on loopback."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gpuyard.core.domain.commands import ReportEnded, ReportStarted
from gpuyard.core.domain.values import Outcome, TaskId
from gpuyard.live.control_plane import tracing
from tests.acceptance.live import running_cluster
from tests.acceptance.rest_cluster import RestCluster
from tests.acceptance.waiting import until
from tests.unit.live.control_plane.receiving import hanging_server

WAY = {"task", "submit", "wait", "decide", "commit", "launch", "start", "run", "end"}


class Collector:
    """Receives OTLP over HTTP and keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                asked = ExportTraceServiceRequest.FromString(body)
                for resource in asked.resource_spans:
                    names = {each.key: each.value.string_value for each in resource.resource.attributes}
                    outer.services.add(names["service.name"])
                    outer.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def by_name(self) -> dict[str, Any]:
        return {span.name: span for span in self.spans}


@contextmanager
def collector() -> Iterator[Collector]:
    made = Collector()
    try:
        yield made
    finally:
        made.close()


def test_the_way_of_a_task_through_real_processes_is_one_trace(tmp_path: Path) -> None:
    with collector() as received:
        settings: dict[str, Any] = {"tracing": {"enabled": True, "endpoint": received.url}}
        with running_cluster(tmp_path, nodes=1, **settings) as cluster:
            client = cluster.client()
            task = client.submit("sleep 0.2", gpu_count=1, name="demo")
            client.wait(task, timeout=60)
            until(lambda: received.by_name().keys() >= WAY, 30, "all spans have arrived")
        spans = received.by_name()
    assert received.services == {"gpuyard"}
    assert len({span.trace_id for span in received.spans}) == 1
    root = spans["task"]
    assert root.parent_span_id == b""
    assert all(span.parent_span_id == root.span_id for name, span in spans.items() if name != "task")
    assert len({span.span_id for span in received.spans}) == len(received.spans)
    for span in received.spans:
        assert span.start_time_unix_nano <= span.end_time_unix_nano
    assert spans["run"].end_time_unix_nano - spans["run"].start_time_unix_nano >= 0.15e9
    assert spans["wait"].end_time_unix_nano <= spans["launch"].end_time_unix_nano
    told = {each.key: each.value for each in root.attributes}
    assert told["gpuyard.task.id"].string_value == task.id
    assert told["gpuyard.status"].string_value == "success"
    assert told["gpuyard.name"].string_value == "demo"


def test_a_trace_continues_after_a_restart(tmp_path: Path) -> None:
    with collector() as received:
        with RestCluster(tmp_path, trace_endpoint=received.url) as cluster:
            cluster.submit()
            cluster.tell(ReportStarted(TaskId(1), 1))
        until(lambda: "start" in received.by_name(), 20, "the first part has arrived when the scheduler stopped")
        with RestCluster(tmp_path, trace_endpoint=received.url) as cluster:
            cluster.tell(ReportEnded(TaskId(1), 1, Outcome.FAILED, 3))
            until(lambda: "task" in received.by_name(), 20, "the end has arrived")
    assert len({span.trace_id for span in received.spans}) == 1
    spans = received.by_name()
    assert spans["run"].status.code == spans["task"].status.code == 2, "an error"


def test_a_receiver_that_hangs_does_not_slow_the_scheduler_and_not_its_end(tmp_path: Path) -> None:
    def submits(cluster: RestCluster) -> float:
        times = []
        for _ in range(60):
            began = time.perf_counter()
            cluster.submit()
            times.append(time.perf_counter() - began)
        return median(times)

    with RestCluster(tmp_path / "without", gpus=200) as cluster:
        without = submits(cluster)
    with hanging_server() as (port, connections):
        with RestCluster(tmp_path / "with", gpus=200, trace_endpoint=f"http://127.0.0.1:{port}/") as cluster:
            submits(cluster)
            until(lambda: connections() >= 1, 20, "the receiver is called and hangs")
            during = submits(cluster)
            # An export that blocks takes seconds; the rest is the noise of the machine.
            assert during < 20 * without + 0.1, f"{during:.4f} s, {without:.4f} s without traces"
            stopping = time.monotonic()
        assert time.monotonic() - stopping < 15.0


def test_a_receiver_that_is_away_costs_spans_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MOST_NOTES", 3)
    monkeypatch.setattr(tracing, "SEND_SECONDS", 0.2)
    with hanging_server() as (port, _):
        pass
    with RestCluster(tmp_path, trace_endpoint=f"http://127.0.0.1:{port}/") as cluster:
        for _ in range(5):
            cluster.submit()
        tracer = cluster.scheduler.tracer
        assert tracer is not None
        until(lambda: tracer.dropped > 0, 20, "spans are dropped")
        assert len(tracer._notes) <= 3


def test_without_tracing_the_library_is_not_even_imported() -> None:
    code = "import sys, gpuyard.live.control_plane.server as s; print([n for n in sys.modules if 'opentelemetry' in n])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
