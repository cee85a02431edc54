"""Where tasks of a node reach the schedulers."""

from pathlib import Path

import pytest

from gpuyard.live.agent.scheduler_addresses import reachable_for_clients
from tests.unit.live.agent.test_launch_builder import builder, launched


@pytest.mark.parametrize(
    ("told", "scheduler", "expected"),
    [
        (["http://127.0.0.1:8080"], "127.0.0.1:9090", ("http://127.0.0.1:8080",)),
        (["http://127.0.0.1:8080"], "localhost:9090", ("http://127.0.0.1:8080",)),
        (["http://127.0.0.1:8080"], "10.0.0.1:9090", ()),
        (["http://[::1]:8080", "http://localhost:8080"], "sched1:9090", ()),
        (["http://0.0.0.0:8080"], "sched1:9090", ("http://sched1:8080",)),
        (["https://[::]:8443"], "[fe80::1]:9090", ("https://[fe80::1]:8443",)),
        (["http://:8080"], "127.0.0.1:9090", ("http://127.0.0.1:8080",)),
        (["https://gpu.lab/yard", "https://b:8080"], "a:9090", ("https://gpu.lab/yard", "https://b:8080")),
        (["http://a:1", "http://a:1"], "a:9090", ("http://a:1",)),
    ],
)
def test_only_addresses_that_clients_of_this_node_reach_are_named(
    told: list[str], scheduler: str, expected: tuple[str, ...]
) -> None:
    assert reachable_for_clients(told, scheduler) == expected


def test_a_task_finds_all_schedulers_and_cannot_be_told_of_another_one(tmp_path: Path) -> None:
    node = builder(tmp_path)
    assert "GPUYARD_SERVER" not in launched(node, 1, env={"GPUYARD_SERVER": "http://evil"}).env
    told = ["https://0.0.0.0:8080", "https://b:8080"]
    node.reached_at("a:9090")
    launch = launched(node, 1, env={"GPUYARD_SERVER": "http://evil"}, secrets={"GPUYARD_TOKEN": "x"}, clients=told)
    assert launch.env["GPUYARD_SERVER"] == "https://a:8080,https://b:8080"
    assert "GPUYARD_TOKEN" not in launch.env


def test_a_launch_of_an_older_scheduler_leaves_the_task_without_an_address(tmp_path: Path) -> None:
    node = builder(tmp_path)
    node.reached_at("127.0.0.1:9090")
    assert "GPUYARD_SERVER" not in launched(node, 1).env
