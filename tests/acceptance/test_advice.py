"""A live cluster with the policy `dqn` and the shipped model: a task is held back for the faster GPU."""

from pathlib import Path

from tests.acceptance.live import running_cluster
from tests.acceptance.waiting import until

SPEEDS = {"H100": 1.0, "T4": 0.1}


def test_a_task_held_back_for_the_fast_gpu_is_explained_and_then_runs_there(tmp_path: Path) -> None:
    goes_on = tmp_path / "goes on"
    with running_cluster(tmp_path, nodes=0, scheduler={"algorithm": "dqn", "backfill": "greedy"}) as cluster:
        cluster.start_agent("fast", 1, kind="H100:80")
        cluster.start_agent("slow", 1, kind="T4:16")
        client = cluster.ready(2)
        waits = f"until [ -e '{goes_on}' ]; do sleep 0.05; done"
        before = client.submit(waits, gpu_speeds=SPEEDS, estimated_seconds=60)
        until(lambda: client.task(before.id).status == "running", what="the first runs")
        held_back = client.submit("true", gpu_speeds=SPEEDS, estimated_seconds=600)
        silent = client.submit("true")
        until(lambda: client.task(silent.id).status == "success", what="a task that is as fast everywhere runs")
        assert client.task(silent.id).node_id == "slow"
        why = client.explain(held_back.id)
        assert (why.status, why.reason_code) == ("pending", "HeldBack")
        assert why.reason is not None
        assert "Slower GPUs are free, but the task is expected to end earlier" in why.reason
        goes_on.touch()
        until(lambda: client.task(held_back.id).status == "success", what="it runs")
        assert client.task(held_back.id).node_id == "fast"
