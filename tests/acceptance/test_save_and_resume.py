"""Tasks that save their state when they are stopped, as real processes on virtual GPUs.

The program is the one of the manual (docs/manual/preemption.md), with a counter in the place of a model.
"""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuyard.live.sdk import Client, Refused, Task
from tests.acceptance.live import Cluster
from tests.acceptance.waiting import until

MANUAL = Path(__file__).parents[2] / "docs" / "manual" / "preemption.md"
TRAIN = """
def train(state):
    with open(sys.argv[2], "a") as done:
        done.write(f"{state['step']}\\n")
    state["step"] += 1
    time.sleep(0.01)
    while os.environ["GPUYARD_RESTART_COUNT"] == "0" and state["step"] > 40 and not stopping:
        time.sleep(0.01)
"""
"""One step: it notes which step was done. The first attempt does not end before it is stopped."""
STEPS = 110
RETENTION_SECONDS = 1

IGNORES_SIGTERM = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: Path(sys.argv[1]).write_text(repr(time.time())))
print("ready", flush=True)
while True:
    time.sleep(0.02)
"""
"""Notes when it was asked to stop, and continues."""


def program(folder: Path) -> Path:
    """The example of the manual, with a step that takes time."""
    (example,) = re.findall(r"```python\n(.*?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)
    path = folder / "train.py"
    path.write_text(example.replace("import json,", "import time, json,").replace("def stop(", f"{TRAIN}\ndef stop("))
    return path


@contextmanager
def cluster_of(folder: Path, nodes: dict[str, dict[str, Any]], **scheduler: Any) -> Iterator[tuple[Cluster, Client]]:
    """A cluster with these nodes of one GPU, by the settings of their executors."""
    settings = {"scheduler": {"preemption_min_run": 0, "algorithm": "priority", **scheduler}}
    made = Cluster(
        folder,
        scheduler={
            **settings,
            "storage": {"data_dir": str(folder / "data"), "checkpoint_retention": f"{RETENTION_SECONDS}s"},
        },
    )
    try:
        made.start_server()
        for name, executor in nodes.items():
            made.start_agent(name, 1, **executor)
        yield made, made.ready(len(nodes))
    finally:
        made.end()


def output(client: Client, task: Task) -> str:
    """What its last attempt has written so far."""
    try:
        return b"".join(client.logs(task)).decode()
    except Refused:  # it has not started yet
        return ""


def steps_in(done: Path) -> list[int]:
    return [int(line) for line in done.read_text().split()] if done.exists() else []


def train(client: Client, folder: Path, **more: Any) -> tuple[Task, Path]:
    """Start the program, and wait until it has done some steps."""
    done = folder / "done"
    command = [sys.executable, str(program(folder)), str(STEPS), str(done)]
    task = client.submit(command, **{"preemption": "checkpoint", "grace": 60, "priority": 10, **more})
    until(lambda: len(steps_in(done)) >= 20, what="the first steps")
    return task, done


def test_a_preempted_task_goes_on_from_its_checkpoint_and_repeats_nothing(tmp_path: Path) -> None:
    with cluster_of(tmp_path, {"n": {}}) as (cluster, client):
        task, done = train(client, tmp_path)
        urgent = client.submit("true", priority=90)
        assert client.wait(urgent, timeout=60).status == "success"
        assert len(steps_in(done)) < STEPS, "it was stopped before its end"
        finished = client.wait(task, timeout=120)
        assert (finished.status, finished.attempts, finished.grace) == ("success", 2, 60)
        assert steps_in(done) == list(range(STEPS)), "every step was done once"
        assert re.search(r"resumed at step \d+ after preempted", output(client, task))
        _is_removed_after_its_retention(cluster, "n")


def _is_removed_after_its_retention(cluster: Cluster, node: str) -> None:
    folders = cluster.folder / f"{node}-checkpoints"
    if not folders.exists():  # the agent is not root
        folders = cluster.folder / node / "checkpoints"
    (kept,) = folders.rglob("state.json")
    until(lambda: time.time() - kept.parent.stat().st_mtime > 2 * RETENTION_SECONDS, what="the end of the retention")
    cluster.stop_agent(node)  # an agent looks for old folders when it starts
    cluster.start_agent(node, 1)
    until(lambda: not list(folders.glob("*/*/*")), what="the folder is removed")


@pytest.mark.parametrize("shared", [True, False])
def test_an_attempt_on_another_node_finds_the_checkpoint_if_the_storage_is_shared(tmp_path: Path, shared: bool) -> None:
    where = {"checkpoint_dir": str(tmp_path / "shared")} if shared else {}
    with cluster_of(tmp_path, {"n": where}) as (cluster, client):
        task, done = train(client, tmp_path)
        cluster.start_agent("m", 1, **where)
        cluster.ready(2)
        client.drain("n")
        finished = client.wait(task, timeout=120)
        assert (finished.status, finished.attempts, finished.node_id) == ("success", 2, "m")
        steps = steps_in(done)
        if shared:
            assert steps == list(range(STEPS)), "every step was done once"
        else:
            assert sorted(set(steps)) == list(range(STEPS))
            assert steps.count(0) == 2, "it began from the start"


@pytest.mark.slow
def test_a_task_that_moves_to_make_room_goes_on_from_its_checkpoint_in_shared_storage(tmp_path: Path) -> None:
    where = {"checkpoint_dir": str(tmp_path / "shared")}
    with cluster_of(tmp_path, {}, defragment=True) as (cluster, client):
        cluster.start_agent("left", 4, **where)
        cluster.ready(1)
        ends = client.submit("sleep 600", gpu_count=3)
        task, done = train(client, tmp_path, priority=50, estimated_seconds=3600)
        cluster.start_agent("right", 4, **where)
        cluster.ready(2)
        stays = client.submit("sleep 600", gpu_count=3)
        until(lambda: client.task(stays).node_id == "right", what="three GPUs are in use on the other node")
        client.cancel(ends)
        large = client.submit("true", gpu_count=4)
        assert client.wait(large, timeout=150).node_id == "left"
        finished = client.wait(task, timeout=120)
        assert (finished.status, finished.attempts, finished.node_id) == ("success", 2, "right")
        assert steps_in(done) == list(range(STEPS)), "every step was done once"
        assert re.search(r"resumed at step \d+ after made_room", output(client, task))
        told = [event.cause for event in client.events(task)]
        assert f"It was moved to make room for {large.id}." in told


def test_a_task_does_not_set_these_variables_itself(tmp_path: Path) -> None:
    with cluster_of(tmp_path, {"n": {}}) as (_, client):
        for where in ("env", "secrets"):
            for name in ("CHECKPOINT_DIR", "GRACE_SECONDS", "RESTART_COUNT", "RESTART_REASON"):
                with pytest.raises(Refused, match=f"GPUYARD_{name}"):
                    client.submit("true", **{where: {f"GPUYARD_{name}": "mine"}})  # type: ignore[call-overload]
        with pytest.raises(Refused, match=r"grace is 601 s; the maximum of this cluster is 600 s"):
            client.submit("true", grace=601)
        shown = client.wait(client.submit("env | grep ^GPUYARD_", grace=90, secrets={"TOKEN": "hush"}), timeout=60)
        log = output(client, shown)
        assert "GPUYARD_GRACE_SECONDS=90\n" in log
        assert "GPUYARD_RESTART_COUNT=0\n" in log
        assert "GPUYARD_CHECKPOINT_DIR=/" in log
        assert "RESTART_REASON" not in log
        assert "hush" not in log


STOPPED_BY = ("cancel", "preemption", "timeout", "drain", "default")


@pytest.mark.parametrize("how", STOPPED_BY)
def test_a_task_that_ignores_sigterm_is_killed_after_its_own_grace(tmp_path: Path, how: str) -> None:
    asked = tmp_path / "asked"
    with cluster_of(tmp_path, {"n": {"grace": 300}}, grace="2s" if how == "default" else 0) as (_, client):
        options: dict[str, Any] = {"preemption": "requeue", "priority": 10, "grace": 2.0}
        if how == "default":
            del options["grace"]
        if how == "timeout":
            options["timeout"] = 2.0
        task = client.submit([sys.executable, "-c", IGNORES_SIGTERM, str(asked)], **options)
        until(lambda: "ready" in output(client, task), what="it runs")
        match how:
            case "cancel" | "default":
                client.cancel(task)
            case "preemption":
                client.submit("sleep 600", priority=90)
            case "drain":
                client.drain("n")
        until(asked.exists, what="SIGTERM")
        until(lambda: client.task(task).status != "running", what="its end")
        seconds = time.time() - float(asked.read_text())
        assert 1.9 <= seconds < 60, "neither at once nor after the 300 s of its node"
        expected = {"cancel": "cancelled", "default": "cancelled", "timeout": "timeout"}.get(how, "pending")
        assert client.task(task).status == expected
