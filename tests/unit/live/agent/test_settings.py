"""An agent's settings: defaults, the shipped file, the legacy file, and invalid values."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuyard.live.agent.settings import LEAST_SECONDS, AgentSettings, load_agent_settings
from gpuyard.live.control_plane.settings import ServerSettings
from gpuyard.live.wire.config import WrongSettings, keys_of
from tests.unit.certificates import certificate, needs_openssl
from tests.unit.live.wire.durations import durations_of

READY = Path(__file__).parents[4] / "configs" / "agent.yaml"

FILE_OF_003 = """
agent: {id: "", heartbeat_interval: 5}
scheduler:
  master_address: "scheduler-master:9090"
  standby_address: "scheduler-standby:9090"
  connection_timeout: 10
  retry_interval: 2
  max_retry_interval: 30
gpu: {detection_method: "nvidia-smi", health_check_interval: 30}
executor: {execution_method: "process", work_dir: "/var/lib/dgpu-agent/tasks"}
logging: {level: "warn", format: "json", output: "stdout"}
"""


def load(tmp_path: Path, text: str) -> AgentSettings:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    return load_agent_settings(path, {})


def keys_in(value: Any, keys: tuple[str, ...], known: set[tuple[str, ...]]) -> set[tuple[str, ...]]:
    if keys in known or not isinstance(value, dict):
        return {keys}
    return {found for key, item in value.items() for found in keys_in(item, (*keys, key), known)}


def test_the_shipped_file_states_every_key_with_its_default() -> None:
    assert load_agent_settings(READY, {}) == AgentSettings()
    known = set(keys_of(AgentSettings))
    assert keys_in(yaml.safe_load(READY.read_text()), (), known) == known


def test_by_default_an_agent_joins_a_local_scheduler_under_the_hosts_name() -> None:
    settings = load_agent_settings(None, {})
    assert settings.addresses == ("127.0.0.1:9090",)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", settings.node_id)
    assert float(settings.agent.heartbeat_interval) == 5.0


def test_a_legacy_file_is_understood_and_only_its_plain_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongSettings, match="scheduler-master:9090 would not be encrypted"):
        load(tmp_path, FILE_OF_003)
    path = tmp_path / "agent.yaml"
    settings = load_agent_settings(path, {"GPUYARD_SCHEDULER__PLAIN": "true"})
    assert settings.addresses == ("scheduler-master:9090", "scheduler-standby:9090")
    assert settings.log_level == "warning"
    assert settings.work_dir == Path("/var/lib/dgpu-agent/tasks")


def test_schedulers_are_listed_once_and_in_order() -> None:
    env = {
        "GPUYARD_SCHEDULER__MASTER_ADDRESS": "a:1",
        "GPUYARD_SCHEDULER__ADDRESSES": "['b:2', 'a:1', 'c:3']",
        "GPUYARD_SCHEDULER__PLAIN": "true",
        "GPUYARD_AGENT__ID": "12345",
        "GPUYARD_EXECUTOR__USERS": "{vision: alice}",
    }
    settings = load_agent_settings(None, env)
    assert settings.addresses == ("a:1", "b:2", "c:3")
    assert settings.node_id == "12345"
    assert settings.executor.users == {"vision": "alice"}


@needs_openssl
@pytest.mark.parametrize("address", ["10.0.0.1:9090", "scheduler.lab:9090", "[fd00::1]:9090"])
def test_an_agent_connects_beyond_loopback_only_with_tls_or_explicit_plain_text(tmp_path: Path, address: str) -> None:
    text = f"scheduler: {{master_address: '{address}'}}"
    with pytest.raises(WrongSettings, match=r"Set tls.ca to .* or set scheduler.plain: true"):
        load(tmp_path, text)
    assert load(tmp_path, f"{text}\ntls: {{ca: {certificate(tmp_path, 'ca').cert}}}").addresses == (address,)
    assert load(tmp_path, text.replace("}", ", plain: true}")).addresses == (address,)
    for near in ("127.0.0.1:9090", "localhost:9090", "[::1]:9090"):
        assert load(tmp_path, f"scheduler: {{master_address: '{near}'}}").addresses == (near,)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("executor: {execution_method: docker}", "line 1: executor.execution_method docker is not supported yet"),
        ("gpu: {detection_method: virtual}", "set gpu.virtual to the virtual GPUs"),
        ("gpu: {detection_method: nvml, virtual: '4'}", "remove one of them"),
        ("gpu: {virtual: '1600:A100:80'}", "gpu.virtual has 1600 GPUs; a node has at most 1024"),
        ("gpu: {virtual: 4:RTX:lots}", "COUNT:MODEL:GIGABYTES"),
        ("gpu: {detection_method: magic}", '"auto", "nvidia-smi", "nvml" or "virtual"'),
        ("scheduler: {master_address: ''}", "set it to the HOST:PORT of the scheduler"),
        ("scheduler: {master_address: ':9090'}", "needs a host"),
        ("scheduler: {retry_interval: 60}", "longer than scheduler.max_retry_interval"),
        ("tls: {cert: a, ca: b}", "tls needs both cert and key"),
        ("tls: {cert: a, key: b}", "tls.cert also needs tls.ca"),
        ("agent: {id: 'a/b'}", "agent.id is"),
        ("agent: {lables: {}}", 'did you mean "labels"?'),
        ("executor: {grace: 0}", "a duration above zero"),
        ("executor: {users: {a: root}}", "line 1: executor.users maps a to root"),
        ("executor: {system_users: {ada: root}}", "executor.system_users maps ada to root"),
        ("agent: {labels: {gpuyard/tenant/a: mapped}}", 'agent.labels contains "gpuyard/tenant/a"'),
    ],
)
def test_invalid_settings_are_reported_in_one_sentence(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(WrongSettings) as wrong:
        load(tmp_path, text)
    assert str(wrong.value).startswith(str(tmp_path / "agent.yaml"))
    assert part in str(wrong.value)
    assert "\n" not in str(wrong.value)


def test_tasks_run_as_root_only_if_explicitly_allowed(tmp_path: Path) -> None:
    assert load(tmp_path, "executor: {users: {a: root}, shared_user: true}").executor.users == {"a": "root"}


def test_agent_and_supervisor_use_the_same_work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(tmp_path, "executor: {work_dir: here}").work_dir == tmp_path / "here"


def test_the_default_work_folder_is_not_in_the_data_folder_of_a_scheduler_of_another_owner() -> None:
    assert ServerSettings().data_dir not in AgentSettings().work_dir.parents


def test_every_duration_has_a_minimum() -> None:
    assert durations_of(AgentSettings) == LEAST_SECONDS.keys() | {"agent.away_timeout"}


@pytest.mark.parametrize("key", LEAST_SECONDS)
def test_a_duration_below_its_minimum_is_refused(tmp_path: Path, key: str) -> None:
    section, name = key.split(".")
    with pytest.raises(WrongSettings, match=rf"{key} is 1e-12 s; it must be at least {LEAST_SECONDS[key]:g} s\."):
        load(tmp_path, f"{section}: {{{name}: 1.0e-12}}")


@needs_openssl
def test_the_tls_files_of_an_agent_are_checked_before_it_starts(tmp_path: Path) -> None:
    one, other = certificate(tmp_path, "one"), certificate(tmp_path, "other")
    good = load(tmp_path, f"tls: {{ca: {one.cert}, cert: {other.cert}, key: {other.key}}}")
    assert good.tls.ca == str(one.cert)
    with pytest.raises(
        WrongSettings, match=r"line 1: tls\.ca: .*one\.key is not usable .* Set it to the path of a certificate"
    ):
        load(tmp_path, f"tls: {{ca: {one.key}}}")
    with pytest.raises(
        WrongSettings, match=r"tls\.ca: .*none\.pem does not exist\. Set it to the path of a certificate"
    ):
        load(tmp_path, f"tls: {{ca: {tmp_path}/none.pem}}")
    with pytest.raises(WrongSettings, match=r"tls\.key \(.*one\.key\) is not the key of the certificate in tls\.cert"):
        load(tmp_path, f"tls: {{ca: {one.cert}, cert: {other.cert}, key: {one.key}}}")
