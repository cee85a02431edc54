"""Two schedulers that share a journal, an agent: real processes that are killed, paused and told to stop.

The journal is in PostgreSQL, or the schedulers replicate it to each other.
"""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from gpuyard.core.domain.values import TaskId
from gpuyard.live.control_plane.stores.cluster_stores import open_cluster_stores
from gpuyard.live.control_plane.stores.secrets_key import KEY_VARIABLE, KeySource
from gpuyard.live.sdk import ClusterError, connect
from gpuyard.live.sdk.errors import Refused
from tests.acceptance.live import GPUYARD, Cluster
from tests.acceptance.pair import SECONDS, SECRETS_KEY, Pair, Scheduler, ask
from tests.acceptance.waiting import until
from tests.ports import free_port
from tests.postgres_server import PostgresServer

pytest.importorskip("psycopg", reason="psycopg is missing; install the extra dev.")

from gpuyard.core.journal.stores.postgres_shared import SharedJournal


def connections_at(port: int) -> int:
    """Return how many connections a server at this port has accepted that are still open."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


@pytest.fixture(params=["database", "replication"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path, request.getfixturevalue("postgres").url() if request.param == "database" else "")
    try:
        made.start(made.a, "master")
        made.until(made.a.leads, "the first scheduler leads")
        made.start(made.b)
        made.start_agent("node-1")
        made.until(made.b.follows, "the second scheduler follows")
        made.ready(1)
        made.until_complete()
        yield made
    finally:
        made.end()


@pytest.mark.slow
def test_a_killed_master_is_replaced_and_its_tasks_continue(pair: Pair) -> None:
    client = pair.client()
    task = client.submit("sleep 5; echo done", gpu_count=1)
    pair.until(lambda: client.task(task.id).status == "running", "the task runs")
    pair.kill(pair.a.process)
    later = client.submit("echo later", gpu_count=1)
    assert client.wait(later.id).status == "success"
    assert pair.b.leads()
    ended = client.wait(task.id)
    assert (ended.status, ended.attempts) == ("success", 1)
    assert b"done" in b"".join(client.logs(task.id))
    pair.start(pair.a)
    pair.until(pair.a.follows, "the killed scheduler follows")
    pair.until(lambda: pair.a.health()["leader"] == pair.b.url, "it knows who leads")


@pytest.mark.slow
def test_two_schedulers_that_start_at_once_share_a_new_database(tmp_path: Path, postgres: PostgresServer) -> None:
    pair = Pair(tmp_path, postgres.url())
    try:
        pair.start(pair.b)
        pair.start(pair.a, "master")
        pair.until(pair.a.leads, "the master leads")
        pair.until(pair.b.follows, "the standby follows")
    finally:
        pair.end()


@pytest.mark.slow
def test_a_scheduler_that_ended_before_it_drew_the_keys_is_replaced(tmp_path: Path, postgres: PostgresServer) -> None:
    pair = Pair(tmp_path, postgres.url())
    journal = SharedJournal.open(pair.database, lease_seconds=1.5)
    assert journal.take_over(journal.leader(), pair.a.url) is not None
    journal.close()
    try:
        pair.start(pair.b)
        pair.until(pair.b.leads, "the standby leads")
        assert pair.b.health()["epoch"] >= 2
    finally:
        pair.end()


@pytest.mark.slow
def test_secrets_of_a_submission_that_was_never_accepted_are_deleted(tmp_path: Path, postgres: PostgresServer) -> None:
    """A scheduler was killed after it had stored them, and before it had written the events."""
    pair = Pair(tmp_path, postgres.url())
    key = KeySource(environment={KEY_VARIABLE: SECRETS_KEY})
    journal = SharedJournal.open(pair.database, lease_seconds=1.5)
    assert journal.take_over(journal.leader(), pair.a.url) is not None
    stores = open_cluster_stores(url=pair.database, epoch=journal.epoch, key=key)
    stores.secrets.put({TaskId(1): {"PASSWORD": "swordfish"}})
    stores.close()
    journal.close()
    try:
        pair.start(pair.a, "master")
        pair.until(pair.a.leads, "the scheduler leads")
        stores = open_cluster_stores(url=pair.database, key=key)
        assert stores.secrets.get(TaskId(1)) == {}
        stores.close()
    finally:
        pair.end()


@pytest.mark.slow
def test_a_standby_answers_reads_and_sends_writes_to_the_master(pair: Pair) -> None:
    client = pair.client()
    task = client.wait(client.submit("echo hello", gpu_count=1))
    path = f"/api/v1/tasks/{task.id}"
    pair.until(lambda: json.loads(ask(pair.b.url, path)[1]).get("status") == "success", "the standby knows the end")
    status, _, headers = ask(pair.b.url, path)
    assert (status, headers["x-gpuyard-role"]) == (200, "standby")
    assert float(headers["x-gpuyard-behind-seconds"]) < SECONDS
    assert ask(pair.a.url, path)[2]["x-gpuyard-role"] == "master"
    assert json.loads(ask(pair.b.url, "/api/v1/tasks")[1])["total"] == 1
    assert ask(pair.b.url, f"{path}/explain")[0] == 200
    for method, where, body in (
        ("POST", "/api/v1/tasks", {"command": "true", "gpu_count": 1}),
        ("DELETE", path, None),
        ("PUT", "/api/v1/quota", {"online_percent": 0.5}),
        ("GET", f"{path}/logs?tail=1", None),
    ):
        status, content, headers = ask(pair.b.url, where, method, body)
        assert (status, headers["location"]) == (307, f"{pair.a.url}{where}")
        assert json.loads(content)["error"]["code"] == "NotLeading"
    assert json.loads(ask(pair.b.url, "/api/v1/tasks")[1])["total"] == 1
    with connect(pair.b.url) as single, pytest.raises(Refused, match=f"Send the request to {pair.a.url}"):
        single.submit("true", gpu_count=1)
    metrics = {name: ask(url, "/metrics")[1].decode() for name, url in (("a", pair.a.url), ("b", pair.b.url))}
    assert "\ngpuyard_scheduler_is_master 1.0\n" in metrics["a"]
    assert "\ngpuyard_scheduler_is_master 0.0\n" in metrics["b"]
    assert ask(pair.b.url, "/readyz")[0] == 200


@pytest.mark.slow
def test_promote_hands_over_and_back(pair: Pair) -> None:
    client = pair.client()
    task = client.submit("sleep 4", gpu_count=1)
    servers, before = f"{pair.a.url},{pair.b.url}", pair.a.health()["epoch"]
    done = subprocess.run([*GPUYARD, "promote", "--server", servers], capture_output=True, text=True, check=False)
    epoch = pair.b.health()["epoch"]
    said = f"{pair.b.url} leads now (epoch {epoch}).\n"
    assert (done.returncode, done.stdout, epoch > before) == (0, said, True), done.stderr + pair.logs()
    pair.until(pair.a.follows, "the earlier master follows")
    shown = subprocess.run(
        [*GPUYARD, "status", "--json", "--server", servers], capture_output=True, text=True, check=True
    )
    roles = {each["server"]: (each["role"], each["epoch"]) for each in json.loads(shown.stdout)["schedulers"]}
    assert roles == {pair.a.url: ("standby", epoch), pair.b.url: ("master", epoch)}
    status, content, _ = ask(pair.b.url, "/api/v1/promote", "POST")
    assert (status, json.loads(content)["error"]["message"]) == (
        409,
        f"This scheduler leads already (epoch {epoch}).",
    )
    with connect(pair.a.url) as first:
        assert first.promote().epoch > epoch
    assert client.wait(task.id).attempts == 1
    pair.kill(pair.b.process)
    shown = subprocess.run([*GPUYARD, "status", "--server", servers], capture_output=True, text=True, check=False)
    assert shown.returncode == 0
    assert "no answer" in shown.stdout
    pair.kill(pair.a.process)
    shown = subprocess.run([*GPUYARD, "status", "--server", servers], capture_output=True, text=True, check=False)
    assert shown.returncode == 1


@pytest.mark.slow
def test_a_master_that_is_told_to_stop_hands_over(pair: Pair) -> None:
    client, before = pair.client(), pair.a.health()["epoch"]
    task = client.submit("sleep 3", gpu_count=1)
    assert pair.a.process is not None
    pair.kill(pair.a.process, signal.SIGTERM)
    assert pair.a.process.wait(20) == 0
    assert client.wait(client.submit("true", gpu_count=1)).status == "success"
    assert (pair.b.health()["epoch"] > before, client.wait(task.id).attempts) == (True, 1)


@pytest.mark.slow
def test_a_paused_master_does_no_harm(pair: Pair) -> None:
    client = pair.client()
    pair.kill(pair.a.process, signal.SIGSTOP)
    pair.until(pair.b.leads, "the standby leads")
    began = time.monotonic()
    ended = client.wait(client.submit("true", gpu_count=1))
    assert time.monotonic() - began < SECONDS / 3, "a client leaves a scheduler that stands still"
    pair.kill(pair.a.process, signal.SIGCONT)
    pair.until(pair.a.follows, "the paused scheduler follows")
    assert pair.b.leads()
    path = f"/api/v1/tasks/{ended.id}"
    pair.until(lambda: json.loads(ask(pair.a.url, path)[1]).get("status") == "success", "it knows what happened")
    assert client.wait(client.submit("true", gpu_count=1)).status == "success"


@pytest.mark.slow
def test_a_client_that_waits_at_a_paused_master_hears_of_the_end(pair: Pair) -> None:
    client = pair.client()
    task = client.submit("sleep 4", gpu_count=1)
    pair.until(lambda: client.task(task.id).status == "running", "the task runs")
    before = connections_at(pair.a.http)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(client.wait, task.id)
        pair.until(lambda: connections_at(pair.a.http) > before, "it listens for events")
        pair.kill(pair.a.process, signal.SIGSTOP)
        try:
            assert ended.result(SECONDS).status == "success"
        finally:
            pair.kill(pair.a.process, signal.SIGCONT)
    assert client.task(task.id).attempts == 1


@pytest.mark.slow
def test_run_and_logs_go_on_when_another_scheduler_leads(pair: Pair) -> None:
    client = pair.client()
    environment = {**pair.environment(""), "GPUYARD_SERVER": f"{pair.a.url},{pair.b.url}"}
    beats = "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 1; done"
    running = subprocess.Popen(
        [*GPUYARD, "run", "-g", "1", "--", "sh", "-c", beats], env=environment, stdout=subprocess.PIPE, text=True
    )
    pair.until(lambda: any(task.status == "running" for task in client.tasks()), "the task runs")
    (task,) = client.tasks()
    following = subprocess.Popen([*GPUYARD, "logs", "-f", task.id], env=environment, stdout=subprocess.PIPE, text=True)
    connect(pair.b.url).promote()
    whole = "".join(f"{number}\n" for number in range(1, 9))
    assert (running.communicate(timeout=SECONDS)[0], running.returncode) == (whole, 0)
    assert (following.communicate(timeout=SECONDS)[0], following.returncode) == (whole, 0)
    pair.until(pair.a.follows, "the first scheduler follows")
    done = subprocess.run([*GPUYARD, "logs", task.id], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (whole, 0), done.stderr


@pytest.mark.slow
def test_accounts_of_users_are_known_to_the_next_scheduler(pair: Pair) -> None:
    client = pair.client()
    client.add_user("ann", "a long password", tenant_id="lab", system_user="nobody")

    def account_at(scheduler: Scheduler) -> list[str]:
        return [user.system_user for user in connect(scheduler.url).users().users if user.username == "ann"]

    pair.until(lambda: account_at(pair.b) == ["nobody"], "the standby knows the account")
    connect(pair.b.url).promote()
    assert account_at(pair.b) == ["nobody"]
    client.add_user("bob", "a long password", tenant_id="lab", system_user="games")
    pair.until(pair.a.follows, "the first scheduler follows")
    pair.until_complete()
    connect(pair.a.url).promote()
    assert account_at(pair.a) == ["nobody"]


@pytest.mark.slow
def test_a_silence_lasts_when_another_scheduler_leads(pair: Pair) -> None:
    silence = pair.client().silence_alerts(seconds=3600, node="node-1", comment="new fans")
    pair.kill(pair.a.process)
    pair.until(pair.b.leads, "the second scheduler leads")
    pair.until(lambda: [each.id for each in pair.client().silences().silences] == [silence.id], "it is silenced there")


@pytest.mark.slow
def test_both_killed_and_started_in_the_other_order(pair: Pair) -> None:
    client = pair.client()
    task = client.submit("sleep 3", gpu_count=1)
    pair.until(lambda: client.task(task.id).status == "running", "the task runs")
    pair.kill(pair.a.process)
    pair.kill(pair.b.process)
    pair.start(pair.b)
    pair.until(pair.b.leads, "the earlier standby leads")
    pair.start(pair.a, "master")
    pair.until(pair.a.follows, "a master follows if another one leads")
    assert (client.wait(task.id).status, client.task(task.id).attempts) == ("success", 1)


@pytest.mark.slow
def test_a_restart_of_the_database_loses_nothing(tmp_path: Path) -> None:
    server = PostgresServer()
    server.start()
    pair = Pair(tmp_path, server.url("cluster"))
    try:
        pair.start(pair.a, "master")
        pair.until(pair.a.leads, "the first scheduler leads")
        pair.start(pair.b)
        pair.start_agent("node-1")
        client = pair.ready(1)
        pair.until(pair.b.follows, "the second scheduler follows")
        task = client.submit("sleep 4", gpu_count=1)
        pair.until(lambda: client.task(task.id).status == "running", "the task runs")
        pair.until(lambda: json.loads(ask(pair.b.url, "/api/v1/tasks")[1])["total"] == 1, "the standby knows the task")
        server.crash()
        status, content, _ = ask(pair.a.url, "/api/v1/tasks", "POST", {"command": "true", "gpu_count": 1})
        assert status in {307, 503}, content
        pair.until(lambda: pair.b.has("standby", "storage_unreachable"), "the standby says what is wrong")
        assert b"\ngpuyard_storage_unreachable 1.0\n" in ask(pair.b.url, "/metrics")[1]
        assert json.loads(ask(pair.b.url, "/api/v1/tasks")[1])["total"] == 1
        status, content, _ = ask(pair.b.url, "/api/v1/promote", "POST")
        assert (status, json.loads(content)["error"]["code"]) == (503, "StorageUnreachable")
        server.start()
        pair.until(lambda: pair.a.leads() or pair.b.leads(), "one of them leads")
        assert b"\ngpuyard_storage_unreachable 0.0\n" in ask(pair.b.url, "/metrics")[1]
        assert client.wait(client.submit("true", gpu_count=1)).status == "success"
        assert (client.wait(task.id).status, client.task(task.id).attempts) == ("success", 1)
    finally:
        pair.end()
        server.stop()


def test_a_database_that_does_not_answer_at_the_start_is_named(tmp_path: Path) -> None:
    pair = Pair(tmp_path, f"postgresql://gpuyard@localhost:{free_port()}/none")
    try:
        pair.start(pair.a)
        assert pair.a.process is not None
        assert pair.a.process.wait(30) == 1
        said = (tmp_path / "a.err").read_text()
        assert "The database none on localhost, schema gpuyard cannot be reached" in said
        assert "Traceback" not in said
    finally:
        pair.end()


def test_a_scheduler_that_is_alone_cannot_be_promoted(tmp_path: Path) -> None:
    alone = Cluster(tmp_path)
    try:
        alone.start_server()
        until(lambda: _answers(alone), SECONDS, "the scheduler answers")
        with connect(f"http://127.0.0.1:{alone.http}") as client:
            with pytest.raises(Refused, match="has its journal for itself and always leads"):
                client.promote()
            told = client.health()
        assert (told.role, told.epoch, told.leader) == ("master", 0, "")
    finally:
        alone.end()


def _answers(alone: Cluster) -> bool:
    with suppress(ClusterError), connect(f"http://127.0.0.1:{alone.http}") as client:
        return client.health().status == "ok"
    return False
