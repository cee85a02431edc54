"""Usage of a running scheduler, over REST and on the command line."""

import csv
import io
import json
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.commands import JoinNode, ReportEnded, ReportStarted
from gpuyard.core.domain.values import Outcome, TaskId
from gpuyard.live.control_plane.access.principal import Role
from gpuyard.live.control_plane.stores import archive as archive_module
from gpuyard.live.control_plane.usage import accounting
from tests.acceptance.cli_cluster import running_cluster
from tests.acceptance.loop_time import loop_time
from tests.acceptance.rest_cluster import RestCluster
from tests.acceptance.waiting import until
from tests.unit.live.control_plane.test_archive import VERSION_1


def total(cluster: RestCluster, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = cluster.get(f"/api/v1/usage?{query}")["total"]
    return found


def run(cluster: RestCluster, number: int, outcome: Outcome, actual: Actual | None = None) -> None:
    """Start and end a task that has its GPUs."""
    cluster.tell(ReportStarted(TaskId(number), 1))
    cluster.tell(ReportEnded(TaskId(number), 1, outcome, 0 if outcome is Outcome.SUCCEEDED else 1, actual=actual))


def test_usage_counts_running_and_ended_tasks_and_survives_a_restart(tmp_path: Path) -> None:
    with RestCluster(tmp_path) as cluster:
        cluster.submit(tenant_id="lab", gpu_count=2, priority="high")
        cluster.submit(tenant_id="lab")
        cluster.submit(tenant_id="other", gpu_count=8)
        run(cluster, 1, Outcome.SUCCEEDED, Actual(None, 50.0, 0.25, 360.0))
        until(lambda: total(cluster)["gpu_hours"] > 0, 20, "time passes")
        until(lambda: not cluster.scheduler.views.over, 20, "the ended task is in the archive")
        now = cluster.scheduler.clock()
        until(lambda: cluster.scheduler.clock() > now + 0.01, 20, "the window is over")
        before = cluster.get(f"/api/v1/usage?by=tenant,model&until={now}")
        rows = {(row["tenant"], row["model"]): row for row in before["rows"]}
        assert {"lab", "other"} == {tenant for tenant, _ in rows}
        assert rows["other", ""]["wait_hours"] > 0
        mine = rows["lab", "RTX4090"]
        assert mine["tasks"] == 2
        assert 0 < mine["idle_gpu_hours"] < mine["used_gpu_hours"] < mine["gpu_hours"]
        assert mine["idle_gpu_hours"] == pytest.approx(mine["used_gpu_hours"] / 3, rel=1e-3)
        measured = mine["idle_gpu_hours"] + mine["used_gpu_hours"]
        assert mine["energy_kwh"] == pytest.approx(measured * 0.36, rel=1e-2)
    with RestCluster(tmp_path) as cluster:
        assert cluster.get(f"/api/v1/usage?by=tenant,model&until={now}") == before


def test_failed_and_out_of_memory_time_are_told_apart(tmp_path: Path) -> None:
    with RestCluster(tmp_path) as cluster:
        cluster.submit()
        run(cluster, 1, Outcome.FAILED)
        cluster.submit(retries=0)
        run(cluster, 2, Outcome.OUT_OF_MEMORY)
        until(lambda: total(cluster)["out_of_memory_gpu_hours"] > 0, 20, "it is counted")
        sums = total(cluster)
        assert sums["failed_gpu_hours"] > 0
        assert sums["failed_gpu_hours"] + sums["out_of_memory_gpu_hours"] <= sums["gpu_hours"] + 1e-9
        assert total(cluster, "since=0&until=1000")["tasks"] == 0


def test_members_see_their_own_tenant_only(tmp_path: Path) -> None:
    with RestCluster(tmp_path) as cluster:
        cluster.submit(tenant_id="lab")
        cluster.submit(tenant_id="other")
        member = cluster.token_of("ada", Role.MEMBER, "lab")
        told = cluster.get("/api/v1/usage?by=tenant", token=member)
        assert [row["tenant"] for row in told["rows"]] == ["lab"]
        assert told["total"]["tasks"] == 1
        assert len(cluster.get("/api/v1/usage?by=tenant")["rows"]) == 2


def test_wrong_questions_get_one_sentence(tmp_path: Path) -> None:
    with RestCluster(tmp_path) as cluster:
        for query, sentence in (
            ("since=10&until=10", "since is not before until; give an earlier time."),
            ("by=tenants", 'by is "tenants"; did you mean "tenant"?'),
            ("by=hour&since=0", "The window has more than 10,000 hours; give a shorter one, or leave out hour."),
            ("format=xml", 'format is "xml"; known values: json, csv.'),
            ("since=yesterday", 'since is "yesterday"; it must be a time such as'),
        ):
            reply = cluster.ask("GET", f"/api/v1/usage?{query}")
            assert reply.status == 400, query
            assert sentence in reply.error["message"]


@pytest.mark.parametrize("form", ["json", "csv"])
def test_usage_with_many_rows_does_not_hold_the_event_loop(tmp_path: Path, form: str) -> None:
    with RestCluster(tmp_path) as cluster:
        tasks = [{"gpu_count": 1, "command": "true", "project": f"p{number}"} for number in range(10_000)]
        assert cluster.ask("POST", "/api/v1/tasks:batch", {"tasks": tasks}).status == 201
        with loop_time(cluster) as found:
            reply = cluster.ask("GET", f"/api/v1/usage?by=project&format={form}")
        assert reply.status == 200
        assert reply.body.count(b"p9999") == 1
        assert found.longest < 0.04, found.longest


def test_usage_on_many_connections_of_one_member_leaves_threads_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, gate = threading.Semaphore(0), threading.Event()

    def slow(*_: object) -> None:
        began.release()
        assert gate.wait(60)

    monkeypatch.setattr(archive_module.Archive, "usage", slow)
    with RestCluster(tmp_path) as cluster, ThreadPoolExecutor(8) as clients:
        member = cluster.token_of("ada", Role.MEMBER, "lab")
        asked = [clients.submit(cluster.ask, "GET", "/api/v1/usage", token=member) for _ in range(8)]
        try:
            assert began.acquire(timeout=60)
            assert began.acquire(timeout=60)
            assert cluster.ask("GET", "/api/v1/tasks/7").status == 404, "an ended task is looked for in the archive"
        finally:
            gate.set()
        assert {one.result().status for one in asked} == {200}


def test_too_many_rows_are_an_error_that_names_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "MOST_ROWS", 2)
    with RestCluster(tmp_path) as cluster:
        for number in range(3):
            cluster.submit(project=f"p{number}")
        reply = cluster.ask("GET", "/api/v1/usage?by=project,user")
        assert (reply.status, reply.error["code"], reply.error["field"]) == (400, "TooManyRows", "by")
        assert reply.error["message"].startswith("Usage by project, user has more than ")
        assert len(cluster.get("/api/v1/usage?by=user")["rows"]) == 1


def test_csv_has_the_same_rows_and_hostile_names_are_no_formulas(tmp_path: Path) -> None:
    with RestCluster(tmp_path) as cluster:
        cluster.submit(project='=cmd|"/c calc"!A1,"x"')
        cluster.submit(project="+1")
        told = cluster.get(f"/api/v1/usage?by=project,day&until={time.time()}")
        reply = cluster.ask("GET", f"/api/v1/usage?by=project,day&format=csv&until={time.time()}")
        assert reply.headers["content-type"] == "text/csv; charset=utf-8"
        rows = list(csv.DictReader(io.StringIO(reply.body.decode())))
        assert [row["project"] for row in rows] == ["'+1", """'=cmd|"/c calc"!A1,"x\""""]
        assert [row["day"] for row in rows] == [row["day"] for row in told["rows"]]
        assert list(rows[0])[2:] == list(told["total"])


def test_an_archive_of_the_version_before_is_upgraded(tmp_path: Path) -> None:
    with RestCluster(tmp_path) as cluster:
        cluster.submit()
        run(cluster, 1, Outcome.SUCCEEDED)
        until(lambda: not cluster.scheduler.views.over, 20, "it is archived")
    database = sqlite3.connect(tmp_path / "archive.sqlite")
    with database:
        database.executescript(VERSION_1)
    database.close()
    with RestCluster(tmp_path) as cluster:
        assert total(cluster)["tasks"] == 0, "nothing is known about tasks that ended before"
        cluster.tell(JoinNode(cluster.node("n2", 2)))
        cluster.submit()
        run(cluster, 2, Outcome.SUCCEEDED)
        until(lambda: not cluster.scheduler.views.over, 20, "it is archived")
        assert total(cluster)["tasks"] == 1
    assert archive_module._LAYOUT.version == 3


def test_a_real_task_is_in_the_table_with_its_energy(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        client = cluster.client()
        task = client.submit("sleep 600", gpu_count=2, project="demo")

        def busy() -> bool:
            return any(gpu.power_usage and gpu.power_usage > 200 for gpu in client.gpus().gpus)

        until(busy, 60, "the agent has measured it")
        client.cancel(task)
        client.wait(task, timeout=60)
        until(lambda: client.usage(by="project").total.energy_kwh > 0, 30, "its energy is known")
        table = cluster.does("usage", "--by", "project,model", "--since", "1h")
        assert table.splitlines()[0].split()[:3] == ["PROJECT", "MODEL", "TASKS"]
        assert table.splitlines()[1].split()[:3] == ["demo", "RTX4090", "1"]
        told = json.loads(cluster.does("usage", "--by", "day", "--json"))
        assert told["rows"][0]["gpu_hours"] == told["total"]["gpu_hours"] > 0
        assert told["total"]["used_gpu_hours"] == pytest.approx(told["total"]["gpu_hours"])
        assert told["total"]["energy_kwh"] == pytest.approx(told["total"]["gpu_hours"] * 0.27, rel=1e-6)
        assert cluster.does("usage", "--csv").startswith("tenant,tasks,gpu_hours,")
        assert cluster.call("usage", "--csv", "--json").returncode == 2
