"""A full disk, a long queue at a restart, and an old copy of the data."""

import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest

from gpuyard.live.control_plane.rest.routes import ROUTES
from gpuyard.live.sdk.client import NewTaskFields
from tests.acceptance.live import Cluster, running_cluster
from tests.acceptance.waiting import until

BLOB = b"a content that is stored"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_refuses_writes_with_503_and_recovers_when_there_is_space(tmp_path: Path, small_disk: Path) -> None:
    with running_cluster(tmp_path, storage={"data_dir": str(small_disk)}) as cluster:
        client = cluster.client()
        running = client.submit("sleep 600", gpu_count=1)
        until(lambda: client.task(running.id).status == "running")
        waiting = client.submit("true", gpu_count=1, gpu_model="none-such")
        lease = client.ask_for_lease(1)
        booking = client.book(1, begins_at=datetime.now(UTC) + timedelta(days=1), duration=3600)
        _store(cluster, BLOB)
        client.add_user("ada", "correct horse", tenant_id="lab")
        ballast = small_disk / "ballast"
        _fill(ballast)
        status = until(lambda: (code := _submit(cluster)) != 201 and code, what="a refusal")
        assert status == 503
        assert until(lambda: _ready(cluster) == 503, what="/readyz says no")
        assert client.task(running.id).status == "running"
        assert client.explain(waiting).reason_code == "UnknownGpuModel"
        for path in _every_get(task=running.id, lease=lease.id, booking=booking.id):
            assert _get(cluster, path) == {"/readyz": 503, "/api/v1/replication": 409}.get(path, 200), path
        ballast.unlink()
        assert until(lambda: _ready(cluster) == 200, what="/readyz says yes")
        assert until(lambda: _submit(cluster) == 201, what="a task is accepted")
        client.cancel(running)
        assert client.wait(running, timeout=30).status == "cancelled"


def test_a_scheduler_on_a_full_disk_stops_on_request_and_reports_why_it_does_not_start(
    tmp_path: Path, small_disk: Path
) -> None:
    with running_cluster(tmp_path, storage={"data_dir": str(small_disk)}) as cluster:
        client = cluster.client()
        kept = client.submit("sleep 600", gpu_count=1)
        until(lambda: client.task(kept.id).status == "running")
        _fill(small_disk / "ballast")
        until(lambda: _submit(cluster) == 503, what="a refusal")
        cluster.stop_server()
        assert _ended(cluster) == 0
        _fill(small_disk / "ballast too")  # closing its files has made some room
        cluster.start_server()
        assert _ended(cluster) == 1
        (sentence,) = (tmp_path / "scheduler.err").read_text().splitlines()
        assert sentence.startswith("gpuyard: No space is left")
        for ballast in small_disk.glob("ballast*"):
            ballast.unlink()
        cluster.start_server()
        cluster.ready(1)
        assert client.task(kept.id).status == "running"


def _ended(cluster: Cluster) -> int:
    assert cluster.server is not None
    return cluster.server.wait(30)


def test_a_node_with_a_full_disk_stays_connected_and_obeys(tmp_path: Path, small_disk: Path) -> None:
    with running_cluster(tmp_path, nodes=0) as cluster:
        cluster.start_agent("node-1", work_dir=str(small_disk / "node-1"))
        client = cluster.ready(1)
        stays, goes = (client.submit("sleep 600", gpu_count=1) for _ in range(2))
        until(lambda: all(client.task(task.id).status == "running" for task in (stays, goes)))
        ballast = small_disk / "ballast"
        _fill(ballast)
        cluster.kill(cluster.agents["node-1"])
        cluster.start_agent("node-1", work_dir=str(small_disk / "node-1"))
        client.cancel(goes)
        assert client.wait(goes, timeout=10).status == "cancelled"
        assert (client.task(stays.id).status, client.task(stays.id).attempts) == ("running", 1)
        ballast.unlink()
        assert client.wait(client.submit("true", gpu_count=1), timeout=30).status == "success"


def test_ten_thousand_open_tasks_survive_a_kill_and_the_cluster_is_ready_at_once(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=1, gpus=1) as cluster:
        client = cluster.client()
        request: NewTaskFields = {"command": "true", "gpu_count": 1, "gpu_model": "none-such"}
        tasks = client.submit_many([request] * 10_000)
        assert len({task.id for task in tasks}) == 10_000
        cluster.kill(cluster.server)
        cluster.start_server()
        cluster.ready(1)
        assert cluster.count("pending") == 10_000
        assert client.wait(client.submit("exit 4", gpu_count=1), timeout=60).exit_code == 4


def test_a_scheduler_on_an_old_copy_of_its_data_is_detected_and_kills_no_unknown_attempt(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=1, gpus=2) as cluster:
        client = cluster.client()
        client.wait(client.submit("true", gpu_count=1))
        cluster.stop_server()
        shutil.copytree(tmp_path / "data", tmp_path / "old")
        cluster.start_server()
        cluster.ready(1)
        unknown = client.submit(f"echo $$ > {tmp_path}/pid; sleep 600", gpu_count=1)
        until(lambda: client.task(unknown.id).status == "running")
        cluster.stop_server()
        shutil.rmtree(tmp_path / "data")
        shutil.move(tmp_path / "old", tmp_path / "data")
        cluster.start_server()
        assert cluster.server is not None
        assert cluster.server.wait(40) == 1, "a node has obeyed a later one"
        assert "--take-over" in (tmp_path / "server.log").read_text()
        cluster.start_server()
        assert cluster.server.wait(40) == 1, "nor does another start let it in"
        cluster.start_server("--take-over")
        cluster.ready(1)
        strays = until(lambda: client.nodes().nodes[0].unknown_attempts, what="the unknown attempt is shown")
        assert [(stray.task_id, stray.attempt) for stray in strays] == [(unknown.id, 1)]
        assert "journal_found_behind" in (tmp_path / "server.log").read_text()
        assert Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def _fill(path: Path) -> None:
    try:
        with path.open("wb") as file:
            while True:
                file.write(bytes(65536))
                file.flush()
    except OSError:
        return


def _submit(cluster: Cluster) -> int:
    body = json.dumps({"command": "true", "gpu_count": 1, "gpu_model": "none-such", "name": "x" * 200}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{cluster.http}/api/v1/tasks", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=3) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except TimeoutError:
        return 0


def _ready(cluster: Cluster) -> int:
    return _get(cluster, "/readyz")


def _store(cluster: Cluster, content: bytes) -> None:
    url = f"http://127.0.0.1:{cluster.http}/api/v1/blobs/{sha256(content).hexdigest()}"
    binary = {"Content-Type": "application/octet-stream"}
    with urllib.request.urlopen(urllib.request.Request(url, content, binary, method="PUT"), timeout=10) as answer:
        assert answer.status == 200


def _get(cluster: Cluster, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{cluster.http}{path}", timeout=10) as answer:
            answer.readline()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _every_get(task: str, lease: str, booking: str) -> list[str]:
    """All there is to read, about things that are there; no background job was begun."""
    known = {"tasks": task, "leases": lease, "nodes": "node-1", "tenants": "default", "users": "ada"}
    names = {**known, "device": "0", "history": "0", "bookings": booking, "blobs": sha256(BLOB).hexdigest()}
    return [
        re.sub(
            r"(\w+)/\{\w+\}",
            lambda found: f"{found[1]}/{names[found[1]]}",
            route.path.replace("{node}/{index}", "node-1/0"),
        )
        for route in ROUTES
        if route.method == "GET"
        and not route.upgrades
        and not route.path.endswith(("/plans/{id}", "/simulations/{id}"))
    ]
