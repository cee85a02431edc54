"""System accounts of tasks: known before placement, and mapped by user or by tenant."""

import os
import pwd
from pathlib import Path

import pytest

from gpuyard.core.domain.commands import JoinNode
from gpuyard.core.domain.node import MAPPED_ONLY, Gpu, NodeSpec
from gpuyard.core.domain.values import NodeId, TenantId
from gpuyard.live.control_plane.access.principal import Role
from gpuyard.live.control_plane.stores.system_users import SystemUsers
from tests.acceptance.rest_cluster import RestCluster

TASKS = "/api/v1/tasks"
ONE = {"gpu_count": 1, "command": "true"}


def test_on_agents_running_as_root_a_user_without_an_account_is_refused_at_submission_with_the_solution(
    tmp_path: Path,
) -> None:
    with RestCluster(tmp_path, local=False, gpus=0) as cluster:
        admin, alice = cluster.token_of("admin", Role.ADMIN), cluster.token_of("alice", Role.MEMBER, "lab")
        card = Gpu("RTX4090", 24576, virtual=True)
        cluster.tell(JoinNode(NodeSpec(NodeId("n1"), (card,) * 4, cpus=8, memory_mib=1024, labels=(MAPPED_ONLY,))))
        refused = cluster.ask("POST", TASKS, ONE, token=alice)
        assert (refused.status, refused.error["code"]) == (409, "NoSystemUser")
        assert "gpuyard users set alice --system-user ACCOUNT" in refused.error["message"]
        lease = cluster.ask("POST", "/api/v1/leases", {"gpu_count": 1}, token=alice)
        assert lease.status == 201, lease.body
        mapped = cluster.ask("PATCH", "/api/v1/users/alice", {"system_user": "nobody"}, token=admin)
        assert mapped.json["system_user"] == "nobody"
        assert cluster.ask("POST", TASKS, ONE, token=alice).status == 201
        assert cluster.scheduler.stores.system_users.account_of(TenantId("lab"), "alice") == "nobody"


def test_a_task_submitted_before_the_first_node_waits_if_it_has_no_account(tmp_path: Path) -> None:
    with RestCluster(tmp_path, local=False, gpus=0) as cluster:
        alice = cluster.token_of("alice", Role.MEMBER, "lab")
        early = cluster.ask("POST", TASKS, ONE, token=alice).json["id"]
        card = Gpu("RTX4090", 24576, virtual=True)
        cluster.tell(JoinNode(NodeSpec(NodeId("n1"), (card,), cpus=8, memory_mib=1024, labels=(MAPPED_ONLY,))))
        told = cluster.get(f"{TASKS}/{early}", token=alice)
        assert (told["status"], told["reason_code"]) == ("pending", "NoSystemUser")


def test_only_an_admin_maps_a_user_and_no_user_is_mapped_to_root(tmp_path: Path) -> None:
    with RestCluster(tmp_path, local=False) as cluster:
        admin, alice = cluster.token_of("admin", Role.ADMIN), cluster.token_of("alice", Role.MEMBER, "lab")
        own = cluster.ask("PATCH", "/api/v1/users/alice", {"system_user": "daemon"}, token=alice)
        assert own.status == 403
        root = cluster.ask("PATCH", "/api/v1/users/alice", {"system_user": "root"}, token=admin)
        assert (root.status, root.error["field"]) == (400, "system_user")


def test_no_user_is_mapped_to_the_account_that_runs_the_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests may run as root, which is refused by its name already: `service` is another name of the same user."""
    known, own = pwd.getpwnam, pwd.getpwuid(os.geteuid())
    monkeypatch.setattr(pwd, "getpwnam", lambda name: own if name == "service" else known(name))
    with RestCluster(tmp_path, local=False) as cluster:
        admin, _ = cluster.token_of("admin", Role.ADMIN), cluster.token_of("alice", Role.MEMBER, "lab")
        changed = cluster.ask("PATCH", "/api/v1/users/alice", {"system_user": "service"}, token=admin)
        new = {"username": "carol", "password": "correct horse", "tenant_id": "lab", "system_user": "service"}
        added = cluster.ask("POST", "/api/v1/users", new, token=admin)
        for refused in (changed, added):
            assert (refused.status, refused.error["field"]) == (400, "system_user")
            assert "the system user who runs the scheduler" in refused.error["message"]
            assert "Map it to another system user." in refused.error["message"]
        assert "carol" not in [user["username"] for user in cluster.get("/api/v1/users", token=admin)["users"]]


def test_a_removed_user_leaves_no_mapping_to_a_successor_of_the_same_name(tmp_path: Path) -> None:
    with RestCluster(tmp_path, local=False) as cluster:
        admin = cluster.token_of("admin", Role.ADMIN)
        new = {"username": "carol", "password": "correct horse", "tenant_id": "lab", "system_user": "nobody"}
        assert cluster.ask("POST", "/api/v1/users", new, token=admin).json["system_user"] == "nobody"
        cluster.ask("DELETE", "/api/v1/users/carol", token=admin)
        del new["system_user"]
        assert cluster.ask("POST", "/api/v1/users", new, token=admin).json["system_user"] == ""


def test_mappings_survive_a_restart_of_the_scheduler(tmp_path: Path) -> None:
    SystemUsers.open(tmp_path / "file").set("alice", "nobody")
    assert SystemUsers.open(tmp_path / "file").of("alice") == "nobody"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
