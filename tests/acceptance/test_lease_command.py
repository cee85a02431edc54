"""`gpuyard lease -- COMMAND`: a command here, on leased GPUs of this machine."""

import os
import signal
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.acceptance.cli_cluster import GPUYARD, CliCluster, running_cluster
from tests.acceptance.live import Cluster
from tests.acceptance.terminals import PROMPT, at_terminal, environment
from tests.acceptance.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def _leases(cluster: CliCluster) -> int:
    return len(cluster.client().leases().leases)


def _ends(cluster: CliCluster) -> list[str]:
    """How the newest leases and tasks have ended, and the last line of the cluster: for a test that failed."""
    found = [f"{task.id} {task.status} {task.reason}" for task in islice(cluster.client().tasks(), 5)]
    return [*found, cluster.last_words]


def test_a_command_runs_here_on_leased_gpus_and_gives_them_back(cluster: CliCluster) -> None:
    done = cluster.call(
        "lease", "-g", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; echo -- $0 $#; exit 5", "list"
    )
    assert (done.returncode, done.stdout) == (5, "0,1\n-- list 0\n"), done.stderr
    assert _leases(cluster) == 0
    done = cluster.call("lease", "--", "no-such-program")
    assert done.returncode == 127
    assert "no-such-program" in done.stderr
    assert cluster.call("lease", "-g", "1", "--", "sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM
    assert _leases(cluster) == 0


def test_words_after_the_dashes_of_a_subcommand_stay_with_it(cluster: CliCluster) -> None:
    done = cluster.call("lease", "release", "--", "task-999")
    assert done.returncode == 1
    assert "task-999" in done.stderr
    assert "a command is missing after --" in cluster.call("lease", "-g", "1", "--").stderr
    assert cluster.call("lease", "--json", "--", "true").returncode == 2


def test_ctrl_c_is_for_the_command_and_its_killed_parent_gives_the_gpus_back(cluster: CliCluster) -> None:
    env = {**cluster.env, "PS1": PROMPT, "TERM": "dumb"}
    words = ("lease", "-g", "1", "--", "bash", "--norc", "--noediting")
    with at_terminal(GPUYARD, *words, env=env, folder=cluster.folder) as one:
        one.sees(PROMPT)
        one.types("sh -c 'echo be''gun; exec sleep 300'")
        one.sees("begun")  # before that, Ctrl-C could come between bash and its job, and be lost
        one.presses("c")
        shown = one.sees(PROMPT)
        assert _leases(cluster) == 1, f"{shown!r} {cluster.call('lease', 'list').stdout!r} {_ends(cluster)}"
        os.kill(one.pid, signal.SIGKILL)
        until(lambda: _leases(cluster) == 0, what="the guard releases the lease")


def test_a_lease_that_ends_stops_the_command(cluster: CliCluster) -> None:
    done = cluster.call("lease", "-g", "1", "--timeout", "1", "--", "sleep", "300")
    assert done.returncode == 128 + signal.SIGTERM
    assert "has ended (timeout)" in done.stderr


def test_a_cluster_without_a_node_here_is_told_apart(tmp_path: Path) -> None:
    class Elsewhere(Cluster):
        def agent_settings(self, name: str, gpus: str, executor: dict[str, object]) -> dict[str, object]:
            settings = super().agent_settings(name, gpus, executor)
            settings["agent"]["address"] = "192.0.2.7"  # of no machine
            return settings

    made = Elsewhere(tmp_path)
    try:
        made.start_server()
        made.start_agent("far-away")
        made.ready(1)
        words = [GPUYARD, "lease", "-g", "1", "--", "true"]
        done = subprocess.run(words, env=environment(made), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert "gpuyard run --pty" in done.stderr
        assert not made.client().leases().leases
    finally:
        made.end()
