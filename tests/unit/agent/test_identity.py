"""Who a task is on its node."""

import os
import pwd
from pathlib import Path

import pytest

from gpuyard.agent.identity import Account, Identities, Rendezvous, environment, own_account, rendezvous
from gpuyard.agent.inventory import Card
from gpuyard.agent.supervisor.messages import Key

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may run tasks as somebody else")
ANNA = Account("anna", "/home/anna", "/bin/zsh", 1001, 1001, (1001, 44))
REAL = (Card(1, "GPU-b", "A100", 81920), Card(3, "GPU-d", "A100", 81920))
VIRTUAL = (Card(1, "VIRTUAL-b", "virtual", 1024, virtual=True), Card(3, "VIRTUAL-d", "virtual", 1024, virtual=True))


def env_of(cards: tuple[Card, ...] = (), **env: str) -> dict[str, str]:
    return environment(ANNA, Key(7, 2), "node1", cards, env, {})


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
def test_one_tenant_runs_as_the_agents_own_user(tmp_path: Path) -> None:
    identities = Identities({}, False, tmp_path / "tenant")
    account = identities.account("physics", by_owner=False)
    assert account == own_account()
    assert isinstance(account, Account)
    assert account.uid is None


@pytest.mark.usefixtures("not_root")
def test_a_second_tenant_is_refused_with_a_way_out(tmp_path: Path) -> None:
    Identities({}, False, tmp_path / "tenant").account("physics", by_owner=False)
    after_a_restart = Identities({}, False, tmp_path / "tenant")
    refusal = after_a_restart.account("biology", by_owner=False)
    assert isinstance(refusal, str)
    assert "physics" in refusal
    assert "executor.shared_user" in refusal
    assert isinstance(after_a_restart.account("physics", by_owner=False), Account)


@pytest.mark.usefixtures("not_root")
def test_a_file_that_names_nobody_keeps_nobody_out(tmp_path: Path) -> None:
    (tmp_path / "tenant").touch()  # an agent that was killed while it wrote, or had no space to
    identities = Identities({}, False, tmp_path / "tenant")
    assert isinstance(identities.account("physics", by_owner=False), Account)
    assert isinstance(identities.account("biology", by_owner=False), str)


@pytest.mark.usefixtures("not_root")
def test_where_it_can_not_be_written_down_who_came_first_nobody_comes(tmp_path: Path) -> None:
    identities = Identities({}, False, tmp_path / "no-such-folder" / "tenant")
    refusal = identities.account("physics", by_owner=False)
    assert isinstance(refusal, str)
    assert "can not be written down" in refusal


def test_tenants_share_the_user_where_the_administrator_said_so(tmp_path: Path) -> None:
    identities = Identities({}, True, tmp_path / "tenant")
    assert isinstance(identities.account("physics", by_owner=False), Account)
    assert isinstance(identities.account("biology", by_owner=False), Account)


@pytest.mark.usefixtures("not_root")
def test_whoever_owns_the_scheduler_may_always(tmp_path: Path) -> None:
    identities = Identities({}, False, tmp_path / "tenant")
    assert isinstance(identities.account("anything", by_owner=True), Account)
    assert isinstance(identities.account("physics", by_owner=False), Account)
    assert isinstance(identities.account("biology", by_owner=True), Account)


def test_an_agent_that_is_root_runs_nobody_as_root_by_accident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    identities = Identities({}, False, tmp_path / "tenant")
    refusal = identities.account("physics", by_owner=False)
    assert isinstance(refusal, str)
    assert "mapped to no system user" in refusal
    assert isinstance(identities.account("physics", by_owner=True), Account)


@as_root
def test_the_schedulers_word_counts_where_the_node_says_nothing(tmp_path: Path) -> None:
    identities = Identities({"physics": "nobody"}, False, tmp_path / "tenant")
    of_the_node, of_the_scheduler = (
        identities.account("physics", by_owner=False, run_as="daemon"),
        identities.account("biology", by_owner=False, run_as="daemon"),
    )
    assert isinstance(of_the_node, Account)
    assert isinstance(of_the_scheduler, Account)
    assert (of_the_node.user, of_the_scheduler.user) == ("nobody", "daemon")


def test_a_mapped_user_who_does_not_exist_is_named(tmp_path: Path) -> None:
    refusal = Identities({"physics": "no-such-user"}, False, tmp_path / "tenant").account("physics", by_owner=False)
    assert isinstance(refusal, str)
    assert "no-such-user" in refusal


@as_root
def test_root_runs_a_mapped_tenant_as_its_user(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    account = Identities({"physics": "nobody"}, False, tmp_path / "tenant").account("physics", by_owner=False)
    assert isinstance(account, Account)
    assert (account.uid, account.gid, account.user, account.home) == (
        nobody.pw_uid,
        nobody.pw_gid,
        "nobody",
        nobody.pw_dir,
    )
    assert nobody.pw_gid in account.groups


@pytest.mark.skipif(os.geteuid() == 0, reason="root can")
def test_an_agent_that_is_not_root_can_not_map(tmp_path: Path) -> None:
    refusal = Identities({"physics": "root"}, False, tmp_path / "tenant").account("physics", by_owner=False)
    assert isinstance(refusal, str)
    assert "not root" in refusal


# --- environment


def test_a_task_finds_its_user_and_itself() -> None:
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
def test_nobody_overrides_what_is_ours(name: str) -> None:
    assert env_of(REAL, **{name: "mine"})[name] != "mine"


@pytest.mark.parametrize("name", ["GPUYARD_ARRAY_INDEX", "GPUYARD_MARK"])
def test_nobody_invents_what_would_be_ours(name: str) -> None:
    assert name not in env_of((), **{name: "mine"})


def test_own_variables_go_over_the_base_and_secrets_over_both() -> None:
    env = environment(ANNA, Key(7, 2), "node1", (), {"HOME": "/scratch", "TOKEN": "shown"}, {"TOKEN": "hidden"}, 5)
    assert (env["HOME"], env["TOKEN"], env["GPUYARD_ARRAY_INDEX"]) == ("/scratch", "hidden", "5")


def test_nothing_of_the_agents_own_environment_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_AGENT__JOIN_TOKEN", "secret")
    monkeypatch.setenv("SOMETHING", "else")
    assert not {"GPUYARD_AGENT__JOIN_TOKEN", "SOMETHING"} & env_of().keys()


def test_a_gang_finds_its_rendezvous() -> None:
    assert rendezvous(Rendezvous("10.0.0.1", 29500, node_rank=1, rank=1, world_size=2)) == {
        "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "NODE_RANK": "1",
    }  # fmt: skip
