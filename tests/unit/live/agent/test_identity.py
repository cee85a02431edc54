"""System account and environment of a task."""

import os
import pwd
import sys
from pathlib import Path

import pytest

from gpuyard.live.agent.identity import Account, Identities, Rendezvous, environment, own_account, rendezvous
from gpuyard.live.agent.inventory import GpuDevice
from gpuyard.live.agent.supervisor.messages import AttemptKey

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may run tasks as another user")
ANNA = Account("anna", "/home/anna", "/bin/zsh", 1001, 1001, (1001, 44))
REAL = (GpuDevice(1, "GPU-b", "A100", 81920), GpuDevice(3, "GPU-d", "A100", 81920))
VIRTUAL = (
    GpuDevice(1, "VIRTUAL-b", "virtual", 1024, virtual=True),
    GpuDevice(3, "VIRTUAL-d", "virtual", 1024, virtual=True),
)


def env_of(cards: tuple[GpuDevice, ...] = (), **env: str) -> dict[str, str]:
    return environment(ANNA, AttemptKey(7, 2), "node1", cards, env, {})


# --- users


@pytest.fixture
def not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an agent without privileges sees the world."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@as_root
def test_a_user_is_looked_up_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    look_up = pwd.getpwnam

    def counted(name: str) -> pwd.struct_passwd:
        asked.append(name)
        return look_up(name)

    monkeypatch.setattr(pwd, "getpwnam", counted)
    identities = Identities({"physics": "nobody"}, False, tmp_path / "tenant")
    for _ in range(3):
        account = identities.account("physics", by_owner=False)
        assert isinstance(account, Account)
        assert account.user == "nobody"
    assert asked == ["nobody"]


@pytest.mark.usefixtures("not_root")
def test_a_task_of_a_user_who_logged_in_does_not_run_as_the_agents_own_user() -> None:
    refusal = Identities({}, False).account("physics", by_owner=False)
    assert isinstance(refusal, str)
    assert "join token" in refusal
    assert "executor.shared_user: true" in refusal
    assert Identities({}, True).account("physics", by_owner=False) == own_account()


def test_a_tenant_mapped_to_the_agents_own_user_is_refused_unless_that_is_allowed() -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    refusal = Identities({"physics": me}, False).account("physics", by_owner=False)
    assert isinstance(refusal, str)
    assert "executor.shared_user: true" in refusal
    assert Identities({"physics": me}, True).account("physics", by_owner=False) == own_account()
    assert Identities({"physics": me}, False).account("physics", by_owner=True) == own_account()


@as_root
def test_a_tenant_mapped_to_the_user_who_runs_the_scheduler_is_refused(tmp_path: Path) -> None:
    daemon = pwd.getpwnam("daemon")
    join_token = tmp_path / "join_token"
    join_token.touch()
    os.chown(join_token, daemon.pw_uid, daemon.pw_gid)
    refusal = Identities({"physics": "daemon"}, False, join_token).account("physics", by_owner=False)
    assert isinstance(refusal, str)
    assert "who runs the scheduler on this machine" in refusal
    assert isinstance(Identities({"physics": "nobody"}, False, join_token).account("physics", by_owner=False), Account)
    assert isinstance(Identities({"physics": "daemon"}, True, join_token).account("physics", by_owner=False), Account)


def test_tenants_share_the_account_if_the_administrator_allows_it() -> None:
    identities = Identities({}, True)
    assert isinstance(identities.account("physics", by_owner=False), Account)
    assert isinstance(identities.account("biology", by_owner=False), Account)


@pytest.mark.usefixtures("not_root")
def test_the_owner_of_the_scheduler_is_always_allowed() -> None:
    identities = Identities({}, False)
    assert isinstance(identities.account("anything", by_owner=True), Account)
    assert isinstance(identities.account("biology", by_owner=True), Account)


def test_an_agent_running_as_root_runs_no_task_as_root_by_accident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    identities = Identities({}, False)
    refusal = identities.account("physics", by_owner=False)
    assert isinstance(refusal, str)
    assert "not mapped to a system user" in refusal
    assert isinstance(identities.account("physics", by_owner=True), Account)


@as_root
def test_the_mapping_of_the_scheduler_applies_if_the_node_has_none() -> None:
    identities = Identities({"physics": "nobody"}, False)
    of_the_node, of_the_scheduler = (
        identities.account("physics", by_owner=False, run_as="daemon"),
        identities.account("biology", by_owner=False, run_as="daemon"),
    )
    assert isinstance(of_the_node, Account)
    assert isinstance(of_the_scheduler, Account)
    assert (of_the_node.user, of_the_scheduler.user) == ("nobody", "daemon")


@as_root
def test_a_mapped_user_runs_as_that_account_and_others_as_that_of_their_tenant() -> None:
    identities = Identities({"physics": "nobody"}, False, system_users={"anna": "daemon"})
    anna = identities.account("physics", by_owner=False, user="anna")
    ben = identities.account("physics", by_owner=False, user="ben")
    assert isinstance(anna, Account)
    assert isinstance(ben, Account)
    assert (anna.user, ben.user) == ("daemon", "nobody")


def test_a_node_that_runs_only_mapped_tasks_reports_whose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    mapped = Identities({"physics": "nobody"}, False, system_users={"anna": "daemon"}).labels()
    assert mapped == {
        "gpuyard/accounts": "mapped", "gpuyard/tenant/physics": "mapped", "gpuyard/user/anna": "mapped",
    }  # fmt: skip
    uid, _, machine = Identities({}, True).labels()["gpuyard/shared_user"].partition("@")
    assert (uid, len(machine)) == ("0", 16)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert Identities({}, False).labels() == {"gpuyard/accounts": "mapped"}


def test_a_mapped_account_that_does_not_exist_is_named() -> None:
    refusal = Identities({"physics": "no-such-user"}, False).account("physics", by_owner=False)
    assert isinstance(refusal, str)
    assert "no-such-user" in refusal


@as_root
def test_an_agent_running_as_root_runs_a_mapped_tenant_as_its_account() -> None:
    nobody = pwd.getpwnam("nobody")
    account = Identities({"physics": "nobody"}, False).account("physics", by_owner=False)
    assert isinstance(account, Account)
    assert (account.uid, account.gid, account.user, account.home) == (
        nobody.pw_uid,
        nobody.pw_gid,
        "nobody",
        nobody.pw_dir,
    )
    assert nobody.pw_gid in account.groups


@pytest.mark.skipif(os.geteuid() == 0, reason="root can")
def test_an_agent_that_is_not_root_cannot_map() -> None:
    refusal = Identities({"physics": "root"}, False).account("physics", by_owner=False)
    assert isinstance(refusal, str)
    assert "not root" in refusal


# --- environment


def test_a_task_has_variables_about_its_user_and_itself() -> None:
    env = env_of()
    assert (env["HOME"], env["USER"], env["SHELL"]) == ("/home/anna", "anna", "/bin/zsh")
    assert (env["GPUYARD_TASK_ID"], env["GPUYARD_ATTEMPT"], env["GPUYARD_NODE_ID"]) == ("7", "2", "node1")
    assert "GPUYARD_ARRAY_INDEX" not in env


def test_real_gpus_are_visible_by_uuid() -> None:
    env = env_of(REAL)
    assert env["CUDA_VISIBLE_DEVICES"] == env["NVIDIA_VISIBLE_DEVICES"] == "GPU-b,GPU-d"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_virtual_gpus_are_visible_by_index() -> None:
    assert env_of(VIRTUAL)["CUDA_VISIBLE_DEVICES"] == "1,3"


def test_without_gpus_none_is_visible() -> None:
    env = env_of(CUDA_VISIBLE_DEVICES="0,1", NVIDIA_VISIBLE_DEVICES="all")
    assert (env["CUDA_VISIBLE_DEVICES"], env["NVIDIA_VISIBLE_DEVICES"]) == ("", "void")


@pytest.mark.parametrize(
    "name", ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPUYARD_TASK_ID", "GPUYARD_ATTEMPT", "GPUYARD_NODE_ID"]
)
def test_reserved_variables_cannot_be_overridden(name: str) -> None:
    assert env_of(REAL, **{name: "mine"})[name] != "mine"


@pytest.mark.parametrize(
    "name",
    [
        "GPUYARD_ARRAY_INDEX",
        "GPUYARD_MARK",
        "GPUYARD_CHECKPOINT_DIR",
        "GPUYARD_GRACE_SECONDS",
        "GPUYARD_RESTART_COUNT",
        "GPUYARD_RESTART_REASON",
    ],
)
def test_reserved_variables_cannot_be_invented(name: str) -> None:
    assert name not in env_of((), **{name: "mine"})


def test_secrets_do_not_replace_the_variables_of_an_attempt() -> None:
    mine = {"GPUYARD_CHECKPOINT_DIR": "/mine", "GPUYARD_RESTART_REASON": "mine"}
    env = environment(ANNA, AttemptKey(7, 2), "node1", (), mine, mine, None, {"GPUYARD_CHECKPOINT_DIR": "/theirs"})
    assert env["GPUYARD_CHECKPOINT_DIR"] == "/theirs"
    assert "GPUYARD_RESTART_REASON" not in env


def test_own_variables_override_the_base_and_secrets_override_both() -> None:
    env = environment(
        ANNA, AttemptKey(7, 2), "node1", (), {"HOME": "/scratch", "TOKEN": "shown"}, {"TOKEN": "hidden"}, 5
    )
    assert (env["HOME"], env["TOKEN"], env["GPUYARD_ARRAY_INDEX"]) == ("/scratch", "hidden", "5")


def test_the_environment_of_the_agent_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_AGENT__JOIN_TOKEN", "secret")
    monkeypatch.setenv("SOMETHING", "else")
    assert not {"GPUYARD_AGENT__JOIN_TOKEN", "SOMETHING"} & env_of().keys()


def test_a_gang_finds_its_rendezvous() -> None:
    assert rendezvous(Rendezvous("10.0.0.1", 29500, node_rank=1, rank=1, world_size=2)) == {
        "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "NODE_RANK": "1",
    }  # fmt: skip


def test_python_output_is_unbuffered_unless_the_task_says_otherwise() -> None:
    assert env_of()["PYTHONUNBUFFERED"] == "1"
    assert env_of(PYTHONUNBUFFERED="")["PYTHONUNBUFFERED"] == ""


def test_a_task_does_not_find_gpuyards_own_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setenv("PATH", f"{tmp_path}/venv/bin:/usr/bin:/bin")
    own = Account("anna", "/home/anna", "/bin/sh")
    env = environment(own, AttemptKey(1, 1), "node-1", [], {}, {})
    assert env["PATH"] == "/usr/bin:/bin"
    assert "VIRTUAL_ENV" not in env
