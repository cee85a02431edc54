"""Why a node is closed, and who holds its GPUs: shown to those who may see it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.live.control_plane.access.principal import Role
from tests.acceptance.rest_cluster import RestCluster

NODE = "/api/v1/nodes/n1"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RestCluster]:
    with RestCluster(tmp_path) as cluster:
        yield cluster


def test_the_reason_of_a_cordon_is_shown_until_the_node_is_opened(cluster: RestCluster) -> None:
    assert cluster.ask("POST", f"{NODE}/cordon?reason=loud+fan").json["reason"] == "loud fan"
    assert cluster.ask("POST", f"{NODE}/drain").json["reason"] == "loud fan", "a drain keeps it"
    assert cluster.get("/api/v1/overview")["changes"][0]["text"] == "Node n1 is being drained: loud fan."
    assert cluster.ask("POST", f"{NODE}/drain?force=true&reason=new+fan").json["reason"] == "new fan"
    assert cluster.get("/api/v1/nodes")["nodes"][0]["reason"] == "new fan"
    assert cluster.ask("POST", f"{NODE}/uncordon").json["reason"] is None


@pytest.mark.parametrize("reason", ["", "x" * 201, "two%0Alines", "%1b%5b2J"])
def test_a_reason_is_one_short_line(cluster: RestCluster, reason: str) -> None:
    reply = cluster.ask("POST", f"{NODE}/cordon?reason={reason}")
    assert reply.status == 400
    assert "reason" in reply.error["message"]
    assert cluster.get(NODE)["status"] == "online"


def test_users_of_gpus_are_named_to_those_who_may_see_their_tasks(cluster: RestCluster) -> None:
    ann, bob = cluster.token_of("ann", Role.MEMBER, "lab"), cluster.token_of("bob", Role.MEMBER, "shop")
    body = {"gpu_count": 1, "command": "true"}
    assert cluster.ask("POST", "/api/v1/tasks", body, token=ann).status == 201

    def users(token: str | None = None) -> list[str | None]:
        return [gpu["user"] for gpu in cluster.get("/api/v1/gpus", token=token)["gpus"]]

    assert users() == users(ann) == ["ann", None, None, None]
    assert users(bob) == [None] * 4
    assert [gpu["user"] for gpu in cluster.get(NODE, token=bob)["devices"]] == [None] * 4
