"""Two nodes on one host, from settings files: parts of them are killed and return."""

import json
import signal
import time
import urllib.request
from pathlib import Path

from gpuyard.cli.slurm.job import job_of
from gpuyard.cli.slurm.script import read_script
from tests.acceptance.live import Cluster, running_cluster
from tests.acceptance.waiting import until
from tests.unit.live.agent.supervised import parent_of


def test_tasks_of_a_killed_node_restart_on_the_other_within_20_seconds_and_the_node_is_reused(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=2, gpus=2) as cluster:
        client = cluster.client()
        tasks = [client.submit("sleep 600", gpu_count=1) for _ in range(2)]
        on = {task.id: _node_of(cluster, task.id) for task in tasks}
        victim = on[tasks[0].id]
        other = next(name for name in cluster.agents if name != victim)
        mine = [task for task, node in on.items() if node == victim]
        cluster.kill_node(victim)
        until(lambda: all(_runs_on(cluster, task, other) for task in mine), 60, f"the tasks of {victim} on {other}")
        assert {node.id: node.status for node in client.nodes().nodes}[victim] == "offline"
        cluster.start_agent(victim, 2)
        cluster.ready(2)
        again = [client.submit("sleep 600", gpu_count=1) for _ in range(2)]
        until(lambda: any(_runs_on(cluster, task.id, victim) for task in again), what=f"a task on {victim}")


def test_tasks_survive_a_killed_agent_and_are_adopted_by_the_next_one(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=1, gpus=2) as cluster:
        client = cluster.client()
        go, over = tmp_path / "go", tmp_path / "over"
        long = client.submit(f"echo begun; {waits_for(tmp_path / 'end')}; echo done; exit 7", gpu_count=1)
        short = client.submit(f"{waits_for(go)}; touch {over}; exit 5", gpu_count=1)
        until(lambda: all(client.task(task.id).status == "running" for task in (long, short)))
        cluster.kill(cluster.agents["node-1"])
        go.touch()
        until(over.exists, what="the end of the short one, while no agent is there to report it")
        cluster.start_agent("node-1", 2)
        assert client.wait(short, timeout=30).exit_code == 5
        (tmp_path / "end").touch()
        ended = client.wait(long, timeout=30)
        assert (ended.exit_code, ended.attempts) == (7, 1)
        assert b"".join(client.logs(long)) == b"begun\ndone\n"


def test_tasks_survive_a_killed_scheduler_and_their_ends_are_not_lost(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=1, gpus=4) as cluster:
        client = cluster.client()
        first, second, over = (tmp_path / name for name in ("first", "second", "over"))
        lines = (f"{waits_for(first)}; touch {over}; exit 3", f"{waits_for(second)}; exit 4")
        tasks = [client.submit(line, gpu_count=1) for line in lines]
        waiting = client.submit("exit 0", gpu_count=4)
        until(lambda: all(client.task(task.id).status == "running" for task in tasks))
        assert cluster.server is not None
        cluster.kill(cluster.server)
        first.touch()
        until(over.exists, what="the end of the first one, while there is no scheduler")
        cluster.start_server()
        cluster.ready(1)
        second.touch()
        client = cluster.client()
        assert [client.wait(task, timeout=30).exit_code for task in tasks] == [3, 4]
        assert client.wait(waiting, timeout=30).status == "success"
        assert [client.task(task.id).attempts for task in tasks] == [1, 1]


def test_a_killed_supervisor_loses_no_task(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=1, gpus=2) as cluster:
        client = cluster.client()
        task = client.submit("sleep 3", gpu_count=1)
        until(lambda: client.task(task.id).status == "running")
        cluster.kill(cluster.supervisor("node-1"))
        ended = client.wait(task, timeout=60)
        assert ended.status == "success"
        assert ended.attempts == 1, "its keeper knows how it ended"


def test_a_supervisor_killed_with_its_keeper_loses_no_task(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=1, gpus=2) as cluster:
        client = cluster.client()
        task = client.submit("sleep 3", gpu_count=1)
        until(lambda: client.task(task.id).status == "running")
        supervisor = cluster.supervisor("node-1")
        assert supervisor is not None
        cluster.kill(parent_of(supervisor))
        cluster.kill(supervisor)
        ended = client.wait(task, timeout=60)
        assert ended.status == "success"
        assert ended.attempts == 2, "the end of the first one is unknown, so it was retried"


def test_a_gang_starts_together_with_one_rendezvous_and_one_failing_part_ends_all(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=2, gpus=1) as cluster:
        client = cluster.client()
        task = client.submit(
            'echo "$RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT"; sleep 1; [ "$RANK" = 1 ] && exit 9; sleep 600',
            gpu_count=1,
            nodes=2,
        )
        ended = client.wait(task, timeout=60)
        assert (ended.status, ended.exit_code) == ("failed", 9)
        outputs = [b"".join(client.logs(task, node=node)).decode() for node in ("node-1", "node-2")]
        lines = [output.splitlines()[0] for output in outputs]
        assert {line.split()[0] for line in lines} == {"0", "1"}
        assert len({line.split(" at ")[1] for line in lines}) == 1


def test_two_agents_with_one_id_and_an_agent_without_a_token_are_refused(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=1, gpus=1) as cluster:
        twin = Cluster(tmp_path / "twin")
        twin.folder.mkdir()
        twin.grpc = cluster.grpc
        twin.start_agent("node-1", 1)
        until(lambda: "Another agent with the id node-1" in twin.logs())
        twin.kill(twin.agents["node-1"], signal.SIGTERM)
        stranger = Cluster(tmp_path / "stranger")
        stranger.folder.mkdir()
        stranger.grpc = cluster.grpc
        stranger.join_token = "guess"
        stranger.start_agent("node-9", 1)
        until(lambda: "does not know the join token of this node" in stranger.logs())
        assert [node.id for node in cluster.client().nodes().nodes] == ["node-1"]
        twin.end()
        stranger.end()


def waits_for(path: Path) -> str:
    """A line of shell that ends when there is such a file."""
    return f"while [ ! -e {path} ]; do sleep 0.05; done"


def _node_of(cluster: Cluster, task: str) -> str:
    client = cluster.client()
    return str(until(lambda: (it := client.task(task)).status == "running" and it.node_id, what=f"{task} runs"))


def _runs_on(cluster: Cluster, task: str, node: str) -> bool:
    told = cluster.client().task(task)
    return told.status == "running" and told.node_id == node


def test_a_changed_timeout_reaches_a_node_that_was_disconnected(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=1, gpus=1) as cluster:
        client = cluster.client()
        task = client.submit("sleep 4; exit 7", gpu_count=1, timeout=3)
        until(lambda: client.task(task.id).status == "running")
        cluster.kill(cluster.agents["node-1"])
        _change(cluster, task.id, timeout=600)
        cluster.start_agent("node-1", 1)
        assert client.wait(task, timeout=30).exit_code == 7


def test_a_longer_timeout_does_not_count_the_time_in_suspension(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=1, gpus=1) as cluster:
        client = cluster.client()
        task = client.submit(
            "for i in $(seq 30); do sleep 0.1; done; exit 7", gpu_count=1, timeout=5, preemption="suspend"
        )
        until(lambda: client.task(task.id).status == "running")
        client.suspend(task)
        until(lambda: client.task(task.id).status == "suspended")
        time.sleep(6)
        client.resume(task)
        until(lambda: client.task(task.id).status == "running")
        _change(cluster, task.id, timeout=6)
        assert client.wait(task, timeout=30).exit_code == 7


def _change(cluster: Cluster, task: str, **change: float) -> None:
    address = f"http://127.0.0.1:{cluster.http}/api/v1/tasks/{task}"
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, json.dumps(change).encode(), headers, method="PATCH")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def test_a_job_script_of_two_nodes_runs_on_the_first_one_while_the_gpus_of_both_are_held(tmp_path: Path) -> None:
    script = tmp_path / "two.sh"
    script.write_text("#!/bin/bash\n#SBATCH -N 2 --gres=gpu:1\necho once $SLURM_NNODES ${RANK-none}\nsleep 2\nexit 6\n")
    with running_cluster(tmp_path, nodes=2, gpus=1) as cluster:
        client = cluster.client()
        request = job_of(read_script(script), (), {"work_dir": str(tmp_path)}, environ={}, folder=str(tmp_path)).request
        task = client.submit(**request)
        until(lambda: b"once" in b"".join(client.logs(task)), what="the script runs")
        assert [gpu.current_task for gpu in client.gpus().gpus] == [task.id, task.id]
        ended = client.wait(task, timeout=60)
        assert (ended.status, ended.exit_code) == ("failed", 6)
        outputs = [
            b"".join(client.logs(ended, node=node)) for node in {gpu.partition("/")[0] for gpu in ended.allocated_gpus}
        ]
        assert sorted(outputs) == [b"", b"once 2 none\n"]
