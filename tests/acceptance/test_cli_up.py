"""`gpuyard up` and `down` on one machine; running tasks survive both."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli_cluster import GPUYARD, CliCluster, running_cluster
from tests.acceptance.waiting import until


def goes_on(folder: Path, *options: str) -> str:
    """What is said of one task, with commands that work as printed."""
    where = f"--data-dir {folder / 'data'}"
    up = " ".join(["gpuyard up", where, *options])
    return f"1 task continues; run `{up}` to manage it again or `gpuyard down {where} --stop-tasks` to end it."


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CliCluster]:
    with running_cluster(tmp_path) as made:
        yield made


def gated(folder: Path) -> str:
    """A shell line that says that it runs, and ends when it is let go."""
    return f"echo run >> {folder}/runs; while [ ! -e {folder}/go ]; do sleep 0.05; done; echo done"


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_tasks_survive_ctrl_c_and_are_adopted_at_the_next_start(cluster: CliCluster, tmp_path: Path) -> None:
    task = cluster.client().submit(gated(tmp_path))
    until((tmp_path / "runs").exists, what="the task runs")
    assert cluster.interrupt() == 0
    options = ("--http-address 127.0.0.1:0", "--grpc-address 127.0.0.1:0", "--virtual-gpus 4:RTX4090:24")
    assert cluster.last_words == f"Stopped. {goes_on(tmp_path, *options)}"
    (tmp_path / "go").touch()
    cluster.up()

    ended = cluster.client().wait(task, timeout=60)
    assert (ended.status, ended.attempts) == ("success", 1)
    assert cluster.does("logs", task.id) == "done\n"
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_killed_up_takes_its_agent_with_it_and_the_next_one_continues(cluster: CliCluster, tmp_path: Path) -> None:
    task = cluster.client().submit(gated(tmp_path))
    until((tmp_path / "runs").exists, what="the task runs")
    [agent] = cluster.agents()
    cluster.kill()
    until(lambda: not is_alive(agent), what="the agent ends")
    cluster.up()
    (tmp_path / "go").touch()

    ended = cluster.client().wait(task, timeout=60)
    assert (ended.status, ended.attempts) == ("success", 1)


def test_an_agent_that_dies_is_restarted(cluster: CliCluster, tmp_path: Path) -> None:
    task = cluster.client().submit(gated(tmp_path))
    until((tmp_path / "runs").exists, what="the task runs")
    [agent] = cluster.agents()
    os.kill(agent, signal.SIGKILL)
    until(lambda: [pid for pid in cluster.agents() if pid != agent], what="another agent")
    (tmp_path / "go").touch()

    ended = cluster.client().wait(task, timeout=60)
    assert (ended.status, ended.attempts) == ("success", 1)
    assert "The agent ended with code" in (tmp_path / "up.err").read_text()


def test_a_second_cluster_on_the_same_folder_is_one_sentence(cluster: CliCluster, tmp_path: Path) -> None:
    done = cluster.call("up", "--data-dir", str(tmp_path / "data"))

    assert done.returncode == 1
    assert "is already running in" in done.stderr
    assert f"`gpuyard down --data-dir {tmp_path / 'data'}`" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_in_use_is_one_sentence(cluster: CliCluster, tmp_path: Path) -> None:
    done = cluster.call(
        "up", "--data-dir", str(tmp_path / "other"), "--http-address", cluster.url.removeprefix("http://")
    )

    assert done.returncode == 1
    assert cluster.url.removeprefix("http://") in done.stderr
    assert done.stderr.count("\n") == 1


def test_down_stops_the_cluster_and_leaves_tasks_running(cluster: CliCluster, tmp_path: Path) -> None:
    cluster.client().submit(f"echo $$ > {tmp_path}/pid; exec sleep 100")
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip(), what="the task runs")
    pid = int((tmp_path / "pid").read_text())

    down = cluster.does("down", "--data-dir", str(tmp_path / "data"))
    assert down == f"The cluster in {tmp_path / 'data'} has stopped.\n{goes_on(tmp_path)}\n"
    assert is_alive(pid)
    assert "1 task was cancelled" in cluster.does("down", "--data-dir", str(tmp_path / "data"), "--stop-tasks")
    assert not is_alive(pid)
    assert "No cluster is running" in cluster.does("down", "--data-dir", str(tmp_path / "data"))


def test_down_with_stop_tasks_cancels_running_and_waiting_tasks(cluster: CliCluster, tmp_path: Path) -> None:
    runs = cluster.client().submit(gated(tmp_path), gpu_count=4)
    waits = cluster.client().submit("true", gpu_count=4)
    until((tmp_path / "runs").exists, what="the task runs")

    down = cluster.does("down", "--data-dir", str(tmp_path / "data"), "--stop-tasks")
    assert down == f"The cluster in {tmp_path / 'data'} has stopped.\n2 tasks were cancelled.\n"
    assert cluster.last_words == "Stopped. No task is running."
    cluster.up()
    assert [cluster.client().task(task).status for task in (runs, waits)] == ["cancelled", "cancelled"]


def test_run_and_followed_logs_continue_over_a_restart_of_the_cluster(cluster: CliCluster, tmp_path: Path) -> None:
    """The client keeps looking for the scheduler where it was, so the second one has to listen there too."""
    address = cluster.url.removeprefix("http://")
    line = f"echo begins; {gated(tmp_path)}"
    run = subprocess.Popen(
        [GPUYARD, "run", "--shell", line], env=cluster.env, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    with run:
        until((tmp_path / "runs").exists, what="the task runs")
        logs = subprocess.Popen(
            [GPUYARD, "logs", "-f", "1"], env=cluster.env, stdout=subprocess.PIPE, text=True, cwd=tmp_path
        )
        with logs:
            assert logs.stdout is not None
            assert logs.stdout.readline() == "begins\n"
            assert cluster.interrupt() == 0
            cluster.up("--http-address", address)
            (tmp_path / "go").touch()
            assert run.communicate(timeout=90)[0] == "begins\ndone\n"
            assert logs.communicate(timeout=90)[0] == "done\n"

    assert (run.returncode, logs.returncode) == (0, 0)
