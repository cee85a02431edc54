"""Whose system account tasks run as: known before they are placed, and mapped by user or by tenant."""

import os
import pwd
from pathlib import Path

import pytest

from gpuyard.core.domain.commands import JoinNode
from gpuyard.core.domain.node import MAPPED_ONLY, Gpu, NodeSpec
from gpuyard.core.domain.values import NodeId, TenantId
from gpuyard.live.control_plane.access.principal import Role
from gpuyard.live.control_plane.stores.system_users import SystemUsers
from tests.acceptance.rest_yard import RestYard

TASKS = "/api/v1/tasks"
ONE = {"gpu_count": 1, "command": "true"}


def test_on_nodes_of_root_a_user_without_an_account_is_refused_at_submission_with_the_way_out(tmp_path: Path) -> None:
    with RestYard(tmp_path, local=False, gpus=0) as yard:
        admin, alice = yard.token_of("admin", Role.ADMIN), yard.token_of("alice", Role.MEMBER, "lab")
        card = Gpu("RTX4090", 24576, virtual=True)
        yard.tell(JoinNode(NodeSpec(NodeId("n1"), (card,) * 4, cpus=8, memory_mib=1024, labels=(MAPPED_ONLY,))))
        refused = yard.ask("POST", TASKS, ONE, token=alice)
        assert (refused.status, refused.error["code"]) == (409, "NoSystemUser")
        assert "gpuyard users set alice --system-user ACCOUNT" in refused.error["message"]
        lease = yard.ask("POST", "/api/v1/leases", {"gpu_count": 1}, token=alice)
        assert lease.status == 201, lease.body
        mapped = yard.ask("PATCH", "/api/v1/users/alice", {"system_user": "nobody"}, token=admin)
        assert mapped.json["system_user"] == "nobody"
        assert yard.ask("POST", TASKS, ONE, token=alice).status == 201
        assert yard.yard.stores.system_users.account_of(TenantId("lab"), "alice") == "nobody"


def test_a_task_that_came_before_the_first_node_waits_where_it_has_no_account(tmp_path: Path) -> None:
    with RestYard(tmp_path, local=False, gpus=0) as yard:
        alice = yard.token_of("alice", Role.MEMBER, "lab")
        early = yard.ask("POST", TASKS, ONE, token=alice).json["id"]
        card = Gpu("RTX4090", 24576, virtual=True)
        yard.tell(JoinNode(NodeSpec(NodeId("n1"), (card,), cpus=8, memory_mib=1024, labels=(MAPPED_ONLY,))))
        told = yard.get(f"{TASKS}/{early}", token=alice)
        assert (told["status"], told["reason_code"]) == ("pending", "NoSystemUser")


def test_only_an_admin_maps_a_user_and_nobody_to_root(tmp_path: Path) -> None:
    with RestYard(tmp_path, local=False) as yard:
        admin, alice = yard.token_of("admin", Role.ADMIN), yard.token_of("alice", Role.MEMBER, "lab")
        own = yard.ask("PATCH", "/api/v1/users/alice", {"system_user": "daemon"}, token=alice)
        assert own.status == 403
        root = yard.ask("PATCH", "/api/v1/users/alice", {"system_user": "root"}, token=admin)
        assert (root.status, root.error["field"]) == (400, "system_user")


def test_nobody_is_mapped_to_the_user_who_runs_the_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, which is refused by its name already: `service` is another name of the same user."""
    known, own = pwd.getpwnam, pwd.getpwuid(os.geteuid())
    monkeypatch.setattr(pwd, "getpwnam", lambda name: own if name == "service" else known(name))
    with RestYard(tmp_path, local=False) as yard:
        admin, _ = yard.token_of("admin", Role.ADMIN), yard.token_of("alice", Role.MEMBER, "lab")
        changed = yard.ask("PATCH", "/api/v1/users/alice", {"system_user": "service"}, token=admin)
        new = {"username": "carol", "password": "correct horse", "tenant_id": "lab", "system_user": "service"}
        added = yard.ask("POST", "/api/v1/users", new, token=admin)
        for refused in (changed, added):
            assert (refused.status, refused.error["field"]) == (400, "system_user")
            assert "the system user who runs the scheduler" in refused.error["message"]
            assert "Map it to another system user." in refused.error["message"]
        assert "carol" not in [user["username"] for user in yard.get("/api/v1/users", token=admin)["users"]]


def test_a_user_who_is_removed_leaves_no_mapping_to_a_successor(tmp_path: Path) -> None:
    with RestYard(tmp_path, local=False) as yard:
        admin = yard.token_of("admin", Role.ADMIN)
        new = {"username": "carol", "password": "correct horse", "tenant_id": "lab", "system_user": "nobody"}
        assert yard.ask("POST", "/api/v1/users", new, token=admin).json["system_user"] == "nobody"
        yard.ask("DELETE", "/api/v1/users/carol", token=admin)
        del new["system_user"]
        assert yard.ask("POST", "/api/v1/users", new, token=admin).json["system_user"] == ""


def test_mappings_outlive_the_scheduler(tmp_path: Path) -> None:
    SystemUsers.open(tmp_path / "file").set("alice", "nobody")
    assert SystemUsers.open(tmp_path / "file").of("alice") == "nobody"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
