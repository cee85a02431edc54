"""`gpuyard plan run` borrows GPUs of two nodes, gives way to online tasks, and survives the loss of a node."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gpuyard.core.domain.values import TaskStatus
from gpuyard.plan.workers.line import DRAWN, MAC
from tests.acceptance.live import GPUYARD, Cluster, running_cluster
from tests.acceptance.waiting import until
from tests.ports import free_port

MODELS = """
import os, time
from pathlib import Path

class Model:
    def __call__(self, question):
        where = os.environ["GPUYARD_NODE_ID"] + "/" + os.environ["CUDA_VISIBLE_DEVICES"]
        assert "PLAN_WORKER_KEY" not in os.environ
        if not Path(os.environ["RUN_FOLDER"], "hurry").exists():
            time.sleep(float(os.environ["CALL_SECONDS"]))
        return {"where": where, "earlier": list(question.results.values())}
"""


@contextmanager
def _two_nodes(folder: Path, gpus: int = 2) -> Iterator[Cluster]:
    with running_cluster(folder, nodes=2, gpus=gpus, scheduler={"preemption_min_run": "0s"}) as cluster:
        yield cluster


def _problem(folder: Path, *, gpus: int = 4, requests: int = 60, wide: bool = False) -> list[str]:
    """Requests of two calls, the second needs the result of the first; options for a run of it."""
    nodes = [
        {"id": "a", "model": "m", "exec_time": 0.5},
        {"id": "b", "model": "wide" if wide else "m", "exec_time": 0.5, "deps": ["a"]},
    ]
    said = {
        "format": "planner-instance/1",
        "name": "night",
        "models": {"m": {"memory_gb": 1, "load_time_s": 0.1}, "wide": {"memory_gb": 1, "load_time_s": 0.1, "gpus": 2}},
        "gpus": [{"id": number} for number in range(gpus)],
        "workflows": {"w": {"nodes": nodes}},
        "requests": [{"id": f"r{number}", "workflow": "w"} for number in range(requests)],
    }
    (folder / "problem.json").write_text(json.dumps(said))
    (folder / "night_models.py").write_text(MODELS)
    (folder / "runtimes.yaml").write_text('models: {"*": {python: "night_models:Model"}}')
    words = [str(folder / "problem.json"), "--runtimes", str(folder / "runtimes.yaml"), "--strategy", "dynamic"]
    return [*words, "--results", str(folder / "results.jsonl"), "--json"]


@contextmanager
def _run(cluster: Cluster, *words: str, call_s: float = 0.4) -> "Iterator[subprocess.Popen[str]]":
    env = {name: value for name, value in os.environ.items() if not name.startswith("GPUYARD_")}
    env |= {"GPUYARD_SERVER": f"http://127.0.0.1:{cluster.http}", "CALL_SECONDS": str(call_s)}
    env["RUN_FOLDER"] = str(cluster.folder)
    with subprocess.Popen(
        [*GPUYARD, "plan", "run", *words],
        env=env,
        cwd=cluster.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        try:
            yield run
        finally:
            if run.poll() is None:
                run.kill()


def _ended(cluster: Cluster, run: "subprocess.Popen[str]") -> dict[str, Any]:
    """Let the calls that are left take no time, and return the figures of the run."""
    (cluster.folder / "hurry").touch()
    out, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    figures: dict[str, Any] = json.loads(out)
    return figures


def _results(cluster: Cluster) -> list[dict[str, Any]]:
    path = cluster.folder / "results.jsonl"
    return [json.loads(line)["result"] for line in path.read_text().splitlines()] if path.exists() else []


def _where(result: dict[str, Any]) -> set[str]:
    return {result["where"], *(earlier["where"] for earlier in result["earlier"])}


def test_a_plan_runs_on_the_gpus_of_two_nodes_and_gives_way_within_the_notice(tmp_path: Path) -> None:
    with _two_nodes(tmp_path) as cluster, _run(cluster, *_problem(tmp_path, requests=100)) as run:
        client = cluster.client()
        until(lambda: len(_results(cluster)) > 8, what="the plan is under way")
        assert client.gpus().idle == 0
        began = time.monotonic()
        online = client.submit("sleep 3", gpu_count=1, nodes=2, task_class="online", priority="high")
        until(lambda: client.task(online).status is not TaskStatus.PENDING, what="the online task starts")
        assert time.monotonic() - began < 10, "the calls under way take half a second, and the notice is eight seconds"
        assert client.wait(online, timeout=60).status is TaskStatus.SUCCESS
        assert run.poll() is None, "the plan was over before the online task was"
        figures = _ended(cluster, run)
        assert (figures["done"], figures["failed"]) == (200, [])
        assert figures["reclaimed"] == 2
        assert len(_results(cluster)) == 100
        places = set[str]().union(*map(_where, _results(cluster)))
        assert places == {f"node-{node}/{gpu}" for node in (1, 2) for gpu in (0, 1)}
        until(lambda: client.gpus().idle == 4, what="all GPUs are given back")


def _kill_workers(folder: Path, node: str) -> None:
    """Kill what runs in the tasks of a plan on a node, as a power failure does."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            environ = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if {f"RUN_FOLDER={folder}".encode(), f"GPUYARD_NODE_ID={node}".encode()} <= set(environ):
                os.kill(int(entry.name), signal.SIGKILL)


def test_the_calls_of_a_lost_node_are_run_elsewhere(tmp_path: Path) -> None:
    with _two_nodes(tmp_path) as cluster, _run(cluster, *_problem(tmp_path)) as run:
        until(lambda: any("node-2" in str(result) for result in _results(cluster)), what="node-2 has done some work")
        cluster.kill_node("node-2")
        _kill_workers(tmp_path, "node-2")
        figures = _ended(cluster, run)
        assert (figures["done"], figures["failed"]) == (120, [])
        assert figures["lost"] == 2
        assert len(figures["losses"]) == 2
        assert all("on node-2" in why for why in figures["losses"])
        assert len(_results(cluster)) == 60


def test_a_wide_model_is_run_by_one_task_with_its_gpus(tmp_path: Path) -> None:
    with _two_nodes(tmp_path) as cluster, _run(cluster, *_problem(tmp_path, requests=8, wide=True)) as run:
        figures = _ended(cluster, run)
        assert (figures["done"], figures["failed"]) == (16, [])
        assert {result["where"].partition("/")[2] for result in _results(cluster)} == {"0,1"}
        assert {task.gpu_count for task in cluster.client().tasks()} == {2}


def test_a_plan_leaves_gpus_free_for_online_tasks_and_gives_back_those_that_are_taken(tmp_path: Path) -> None:
    with (
        _two_nodes(tmp_path) as cluster,
        _run(cluster, *_problem(tmp_path, requests=150), "--leave-free", "1", "--priority", "7") as run,
    ):
        client = cluster.client()
        until(lambda: len(_results(cluster)) > 4, what="the plan is under way")
        until(lambda: client.gpus().busy == 3, what="three of four GPUs are used")
        assert {task.priority for task in client.tasks()} == {7}
        online = client.submit("sleep 20", gpu_count=1, task_class="online", priority="high")
        until(lambda: client.task(online).status is TaskStatus.RUNNING, what="the online task starts")
        until(lambda: client.gpus().idle == 1, what="the plan gives a GPU back, so that one is free again")
        assert client.task(online).status is TaskStatus.RUNNING
        client.cancel(online)
        until(lambda: client.gpus().busy == 3 and client.task(online).ended, what="the plan takes a GPU again")
        figures = _ended(cluster, run)
        assert (figures["done"], figures["failed"]) == (300, [])
        assert figures["reclaimed"] == 1


def test_a_plan_that_can_borrow_nothing_says_why(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=1, gpus=1) as cluster:
        address = ("127.0.0.1", free_port())
        listen = ("--listen", f"127.0.0.1:{address[1]}")
        with _run(cluster, *_problem(tmp_path, gpus=1), "--worker-python", "/no/such/python", *listen) as run:
            until(lambda: _is_refused(address), what="a stranger that guesses is refused")
            _, errors = run.communicate(timeout=120)
        assert run.returncode == 1
        assert "The cluster lent no GPU: task-" in errors
        said = "Connections that did not prove that they know the key of this run: 1 were refused, 0 were dropped"
        assert errors.count(said) >= 2, "where the block is given up, and at the end"


def _is_refused(address: tuple[str, int]) -> bool:
    """Connect, if the plan listens already, and try to prove something with a wrong key."""
    with suppress(ConnectionRefusedError), socket.create_connection(address, 10.0) as stranger:
        stranger.sendall(bytes(DRAWN + MAC))
        while stranger.recv(1000):
            pass
        return True
    return False


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (("--leave-free", "many"), "'many' is neither a number of GPUs nor a part of all, such as 10%"),
        (("--leave-free", "101%"), "'101%' is neither a number of GPUs nor a part of all, such as 10%"),
        (
            ("--listen", "0.0.0.0:7000"),
            "give an address of this machine that the nodes can reach, as HOST or HOST:PORT.",
        ),
        (("--listen", "192.0.2.7"), "Workers cannot connect to 192.0.2.7:0: Cannot assign requested address."),
    ],
)
def test_a_wrong_option_is_reported_in_one_sentence(tmp_path: Path, option: tuple[str, str], sentence: str) -> None:
    words = [sys.executable, "-m", "gpuyard.cli", "plan", "run", *_problem(tmp_path), "--server", "http://127.0.0.1:1"]
    ran = subprocess.run([*words, *option], check=False, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert ran.returncode == 2
    assert sentence in ran.stderr
