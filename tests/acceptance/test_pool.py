"""An elastic pool of real agents: a node is booted for a waiting task and released when it is idle."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.live import GPUYARD, Cluster
from tests.acceptance.waiting import until


def pool(folder: Path, *, in_background: bool = True) -> dict[str, Any]:
    """Its nodes are agents on this machine, and its commands start and end them."""
    start = " ".join([*GPUYARD, "agent", "--config", str(folder / "agent.yaml")])
    names = f"GPUYARD_AGENT__ID={{node}} GPUYARD_EXECUTOR__WORK_DIR={folder}/{{node}}"
    pid = f"{folder}/{{node}}.pid"
    return {
        "gpus": "2:RTX4090:24",
        "boot_command": f"{names} {start} & echo $! > {pid}" if in_background else f"{names} exec {start}",
        "release_command": f"kill $(cat {pid}) && rm {pid}" if in_background else "true",
        "idle": "2s",
    }


def pools(of: dict[str, Any], **others: dict[str, Any]) -> dict[str, Any]:
    """The settings of a scheduler with these pools."""
    return {"scheduler": {"pool_interval": "200ms"}, "pools": {"pool": of, **others}}


def is_agent(process: Path, folder: Path) -> bool:
    try:
        return str(folder / "agent.yaml").encode() in (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def write_agent(running_cluster: Cluster) -> None:
    settings = {
        "agent": {"join_token": running_cluster.join_token, "address": "127.0.0.1"},
        "scheduler": {"master_address": f"127.0.0.1:{running_cluster.grpc}", "retry_interval": "200ms"},
        "gpu": {"detection_method": "virtual", "virtual": "2:RTX4090:24"},
        "logging": {"format": "text", "output": str(running_cluster.folder / "agents.log")},
    }
    (running_cluster.folder / "agent.yaml").write_text(yaml.safe_dump(settings))


@pytest.mark.parametrize("in_background", [True, False])
def test_a_pool_grows_for_a_task_and_shrinks_afterwards(tmp_path: Path, in_background: bool) -> None:
    running_cluster = Cluster(tmp_path, scheduler=pools(pool(tmp_path, in_background=in_background)))
    write_agent(running_cluster)
    try:
        running_cluster.start_server()
        client = running_cluster.ready(0)
        assert client.nodes().total == 0
        task = client.submit(["sleep", "3"], gpu_count=2)
        ended = client.wait(task)
        assert (ended.status, ended.node_id) == ("success", "pool-0001")
        until(lambda: client.nodes().total == 0, what=f"the pool to be empty\n{running_cluster.logs()}")
        assert not list(tmp_path.glob("*.pid"))
        agents = [pid for pid in Path("/proc").iterdir() if pid.name.isdigit() and is_agent(pid, tmp_path)]
        assert agents == []
    finally:
        running_cluster.end()


def test_a_node_of_the_cheapest_pool_is_booted(tmp_path: Path) -> None:
    dear, cheap = pool(tmp_path) | {"price": 2.0}, pool(tmp_path) | {"price": 0.5}
    running_cluster = Cluster(tmp_path, scheduler=pools(dear, cheap=cheap))
    write_agent(running_cluster)
    try:
        running_cluster.start_server()
        client = running_cluster.ready(0)
        ended = client.wait(client.submit("true", gpu_count=2))
        assert (ended.status, ended.node_id) == ("success", "cheap-0001")
        until(lambda: client.nodes().total == 0, what=f"the pools to be empty\n{running_cluster.logs()}")
        assert not list((tmp_path / "data" / "pools" / "pool").glob("*.log"))
    finally:
        running_cluster.end()


def test_a_pool_continues_after_the_scheduler_was_killed(tmp_path: Path) -> None:
    running_cluster = Cluster(tmp_path, scheduler=pools(pool(tmp_path)))
    write_agent(running_cluster)
    try:
        running_cluster.start_server()
        client = running_cluster.ready(0)
        client.submit(["sleep", "1"], gpu_count=1)
        until(lambda: client.nodes().total == 1)
        running_cluster.kill(running_cluster.server)
        running_cluster.start_server()
        client = running_cluster.ready(0)
        until(lambda: client.nodes().total == 0 and running_cluster.count("success") == 1, what="the pool to be empty")
        assert not list(tmp_path.glob("*.pid"))
    finally:
        running_cluster.end()
