"""Messages about tasks: a real scheduler, real tasks, real web and mail servers on loopback."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.acceptance.cli_cluster import CliCluster
from tests.acceptance.waiting import until
from tests.ports import free_port
from tests.unit.live.control_plane.receiving import SmtpServer, webhook_server

ALLOWED = {"hosts": ["127.0.0.1"], "local": True}


@contextmanager
def cluster_with(folder: Path, **settings: Any) -> Iterator[CliCluster]:
    """A cluster with these settings."""
    (folder / "scheduler.yaml").write_text(yaml.safe_dump(settings))
    cluster = CliCluster(folder)
    try:
        cluster.up("--config", str(folder / "scheduler.yaml"))
        yield cluster
    finally:
        cluster.end()


def test_a_task_tells_a_web_address_of_its_start_and_its_failure(tmp_path: Path) -> None:
    with webhook_server() as server, cluster_with(tmp_path, notifications=ALLOWED) as cluster:
        told = cluster.does(
            "submit", "--json", "-n", "train", "--notify", f"start,end:{server.url}", "--shell", "sleep 0.2; exit 3"
        )  # fmt: skip
        task = json.loads(told)
        assert task["notify"] == [f"start,end:{server.url}"]
        until(lambda: len(server.bodies) == 2, what="both messages arrive")
        start, end = sorted(server.bodies, key=lambda body: body["moment"], reverse=True)
        assert (start["moment"], start["task_id"]) == ("start", task["id"])
        assert start["text"].startswith(f"train ({task['id']}) has started on ")
        assert (end["moment"], end["status"], end["exit_code"]) == ("end", "failed", 3)
        assert "ended as failed" in end["text"]
        again = cluster.client().clone(task["id"])
        assert again.notify == task["notify"]
        until(lambda: len(server.bodies) == 4, what="the clone tells, too")


def test_an_array_tells_once_and_a_mail_arrives(tmp_path: Path) -> None:
    with closing(SmtpServer()) as server:
        mail = {
            "name": "ops", "host": "127.0.0.1", "port": server.port, "from": "yard@example.org", "to": ["ops@example.org"],
            "security": "none",
        }  # fmt: skip
        with cluster_with(
            tmp_path, notifications={"mail": "ops", "mail_domains": ["example.org"]}, alerts={"mail": [mail]}
        ) as cluster:
            client = cluster.client()
            tasks = client.submit_all("exit $GPUYARD_ARRAY_INDEX", array=3, notify=["end:mailto:me@example.org"])
            client.wait(tasks, timeout=60)
            until(lambda: server.messages, what="the mail arrives")
            assert server.recipients == [["me@example.org"]]
            assert b"All 3 tasks of the array" in server.messages[0]
            assert b"2 failed, 1 success" in server.messages[0]


def test_messages_that_could_not_be_sent_are_sent_after_a_restart(tmp_path: Path) -> None:
    with webhook_server() as server, cluster_with(tmp_path, notifications=ALLOWED) as cluster:
        server.status = 503
        client = cluster.client()
        client.wait(client.submit(["true"], notify=[f"end:{server.url}"]), timeout=60)
        cluster.kill()
        server.status = 200
        cluster.up("--config", str(tmp_path / "scheduler.yaml"))
        until(lambda: len(server.bodies) == 1, what="the message arrives")
        cluster.interrupt()
        cluster.up("--config", str(tmp_path / "scheduler.yaml"))
        cluster.client().wait(cluster.client().submit(["true"], notify=[f"end:{server.url}"]), timeout=60)
        until(lambda: len(server.bodies) == 2, what="only the new message arrives")
        assert server.bodies[0]["task_id"] != server.bodies[1]["task_id"]


def test_who_may_not_be_told_is_named_when_the_task_is_submitted(tmp_path: Path) -> None:
    with cluster_with(tmp_path, notifications={"hosts": ["*"]}) as cluster:
        for target, said in (
            (f"end:http://127.0.0.1:{free_port()}/", "own machine"),
            ("end:mailto:me@example.org", "notifications.mail"),
            ("http://x.example", "does not say when"),
        ):
            done = cluster.call("submit", "--notify", target, "--", "true")
            assert done.returncode == 1
            assert said in done.stderr
            assert done.stderr.count("\n") == 1
        assert cluster.client().page().total == 0


def test_a_command_runs_where_the_task_ran_with_its_variables(tmp_path: Path) -> None:
    with cluster_with(tmp_path) as cluster:
        client = cluster.client()
        told = tmp_path / "told"
        # the file appears whole, under its last name
        command = f"{{ pwd; env; }} > {told}.new && mv {told}.new {told}.$GPUYARD_NOTICE"
        task = client.submit(
            "sleep 0.2; exit 3", name="train", env={"KIND": "mine"}, work_dir=str(tmp_path), gpus=1,
            notify=[f"start,fail:cmd:{command}"],
        )  # fmt: skip
        for moment, status, code in (("start", "running", ""), ("fail", "failed", "3")):
            shown = tmp_path / f"told.{moment}"
            until(shown.exists, what=f"the command of {moment} has run")
            folder, *variables = shown.read_text().splitlines()
            assert folder == str(tmp_path)
            assert {
                f"GPUYARD_TASK_ID={task.number}", f"GPUYARD_NOTICE={moment}", "GPUYARD_TASK_NAME=train", "KIND=mine",
                "GPUYARD_ATTEMPT=1", "CUDA_VISIBLE_DEVICES=",
            } <= set(variables)  # fmt: skip
            if moment == "fail":  # a message about the start may be sent after the end
                assert {f"GPUYARD_TASK_STATUS={status}", f"GPUYARD_EXIT_CODE={code}"} <= set(variables)


def test_a_command_that_fails_is_recorded_and_delays_nothing(tmp_path: Path) -> None:
    with webhook_server() as server, cluster_with(tmp_path, notifications=ALLOWED) as cluster:
        client = cluster.client()
        door, log = tmp_path / "door", tmp_path / "data" / "logs" / "scheduler.log"
        waits = f"until [ -e {door} ]; do sleep 0.05; done; echo no room; exit 4"
        first = client.submit("true", gpus=4, notify=[f"end:cmd:{waits}", f"end:{server.url}"])
        client.wait(first, timeout=60)
        client.wait(client.submit("true", gpus=4), timeout=60)  # the GPUs are free while the command runs
        until(lambda: server.bodies, what="the web address is told while the command runs")
        assert "task_notice_given_up" not in log.read_text()
        door.touch()
        until(lambda: "task_notice_given_up" in log.read_text(), what="the failure is logged")
        assert "The command ended with exit code 4: no room." in log.read_text()
        client.submit("sleep 600", gpus=4)
        client.cancel(client.submit("true", gpus=4, notify=["end:cmd:true"]))
        until(lambda: "The task never ran on a node" in log.read_text(), what="the second failure is logged")
