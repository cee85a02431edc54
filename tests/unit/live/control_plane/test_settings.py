"""A scheduler's settings: defaults, the shipped file, the legacy files, and invalid values."""

import asyncio
import os
import pwd
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.tenant import Budget, QuotaMode, Split, Tenant
from gpuyard.core.domain.values import TaskClass, TenantId
from gpuyard.core.engine.policies import POLICIES
from gpuyard.core.placement.scores import SCORES
from gpuyard.live.control_plane.server import SchedulerStartError, serve
from gpuyard.live.control_plane.settings import (
    ALGORITHMS,
    LEAST_SECONDS,
    MOST_OPEN_TASKS,
    ServerSettings,
    TenantEntry,
    engine_settings_of,
    load_server_settings,
    split_of,
    tenant_of,
    tenants_of,
)
from gpuyard.live.wire.config import WrongSettings, keys_of
from tests.unit.live.wire.durations import durations_of

READY = Path(__file__).parents[4] / "configs" / "scheduler.yaml"

FILE_OF_003 = """
server: {grpc_address: ":19090", http_address: ":18080"}
scheduler: {role: "master", schedule_interval: 5, snapshot_interval: 30}
replication: {enabled: false, peer_address: "", heartbeat_interval: 2, heartbeat_timeout: 6}
quota: {online_percent: 0.7, batch_percent: 0.3}
agent: {heartbeat_timeout: 15}
storage: {snapshot_dir: "./state", shared_storage: ""}
logging: {level: "info", format: "text", output: "stdout"}
"""

FILE_OF_002 = """
system: {host: "0.0.0.0", port: 8080, log_level: "info", log_file: ""}
gpu: {enabled: true, devices: [], max_memory_percent: 100, max_compute_percent: 100, check_interval: 5}
scheduler: {algorithm: "least_used", queue_size: 0, interval: 500, task_timeout: 3600, preemptive: false}
tenants:
  default: {max_gpus: 1, max_memory_per_gpu: 0, priority: 50}
  high_priority: {max_gpus: 2, max_memory_per_gpu: 16000, priority: 80}
monitor: {enabled: true, interval: 5, retention: 24, http_api: true, http_port: 8080}
users:
  - {username: admin, password: secret-1, tenant_id: default, role: admin}
  - {username: bob, password: secret-2, role: user}
"""


LOGIN = "auth: {enabled: true}\nusers: [{username: admin, password: secret-1, role: admin}]\n"


def load(tmp_path: Path, text: str) -> ServerSettings:
    path = tmp_path / "scheduler.yaml"
    path.write_text(text)
    return load_server_settings(path, {})


def keys_in(value: Any, keys: tuple[str, ...], known: set[tuple[str, ...]]) -> set[tuple[str, ...]]:
    if keys in known or not isinstance(value, dict):
        return {keys}
    return {found for key, item in value.items() for found in keys_in(item, (*keys, key), known)}


def test_the_shipped_file_states_every_key_with_its_default() -> None:
    settings = load_server_settings(READY, {})
    known = set(keys_of(ServerSettings))
    raw = yaml.safe_load(READY.read_text())
    assert keys_in(raw, (), known) == known
    assert raw["tenants"]["default"].keys() == {keys[0] for keys in keys_of(TenantEntry)}
    assert settings.tenant_entry("anyone") == TenantEntry()
    plain = ServerSettings()
    for name in (
        "http_address",
        "grpc_address",
        "schedule_seconds",
        "log_level",
        "log_output",
        "data_dir",
        "join_token",
    ):
        assert getattr(settings, name) == getattr(plain, name)
    for section in ("replication", "agent", "storage", "auth", "users", "gpu", "monitor", "alerts", "system"):
        assert getattr(settings, section) == getattr(plain, section)
    assert split_of(settings) == split_of(plain) == Split(0.7, 0.3, QuotaMode.NONE)
    assert engine_settings_of(settings) == engine_settings_of(plain) == Settings(max_open_tasks=MOST_OPEN_TASKS)


def test_by_default_only_the_local_machine_is_served() -> None:
    settings = load_server_settings(None, {})
    assert (settings.http_address, settings.grpc_address) == ("127.0.0.1:8080", "127.0.0.1:9090")
    assert settings.http_address.is_loopback
    assert float(settings.agent.heartbeat_timeout) == 15.0
    assert settings.snapshot_dir == Path("/var/lib/gpuyard/snapshots")


def test_retired_events_are_dropped_unless_a_folder_is_named_for_them() -> None:
    assert load_server_settings(None, {}).retired_dir is None
    assert load_server_settings(None, {"GPUYARD_STORAGE__RETIRED_DIR": "/srv/x"}).retired_dir == Path("/srv/x")


def test_the_score_is_that_of_the_algorithm_unless_one_is_named(tmp_path: Path) -> None:
    assert engine_settings_of(load(tmp_path, "scheduler: {algorithm: least_used}")).score == "spread"
    named = engine_settings_of(
        load(
            tmp_path,
            "scheduler: {algorithm: least_used, score: weighted, "
            "weights: {time: 2, energy: 0.5, balance: 0, fragmentation: 3, follow_idle: false}}",
        )
    )
    assert named.score == "weighted"
    assert (named.weight_time, named.weight_energy, named.weight_balance, named.weight_fragmentation) == (2, 0.5, 0, 3)
    assert not named.weights_follow_idle


def test_the_grace_of_tasks_is_that_of_their_node_unless_a_default_is_set(tmp_path: Path) -> None:
    assert load_server_settings(None, {}).grace_seconds is None
    assert load(tmp_path, "scheduler: {grace: 90}").grace_seconds == 90


def test_a_legacy_cluster_file_is_understood(tmp_path: Path) -> None:
    settings = load(tmp_path, FILE_OF_003.replace("server: {", "server: {plain: true, ") + LOGIN)
    assert settings.http_address.host == "0.0.0.0"
    assert settings.grpc_address.port == 19090
    assert settings.snapshot_dir == Path("state")


def test_a_legacy_single_machine_file_is_understood(tmp_path: Path) -> None:
    settings = load(tmp_path, FILE_OF_002 + "auth: {enabled: true}\nserver: {plain: true}")
    assert settings.http_address == "0.0.0.0:8080"
    assert settings.schedule_seconds == 0.5
    assert settings.task_timeout_seconds == 3600
    assert engine_settings_of(settings) == Settings(
        policy="priority", score="spread", preemption=False, max_open_tasks=MOST_OPEN_TASKS
    )
    assert tenant_of(settings, "nobody-named-it") == Tenant(TenantId("nobody-named-it"), max_gpus=1)
    assert settings.tenant_entry("high_priority").priority == 80
    assert [user.role for user in settings.users] == ["admin", "user"]
    assert settings.users[1].tenant_id == "default"


def test_every_algorithm_is_an_existing_policy_and_score() -> None:
    assert set(POLICIES) < set(ALGORITHMS)
    for settings in ALGORITHMS.values():
        assert settings.policy in POLICIES
        assert settings.score in SCORES


def test_a_tenant_has_all_its_limits(tmp_path: Path) -> None:
    text = """
tenants:
  vision: {max_gpus: 8, max_gpus_by_model: {H100: 2, A100: 4}, guaranteed_gpus: 4, weight: 2, gpu_hours: 100,
           gpu_hours_period: 7d, class: online, user: alice}
"""
    settings = load(tmp_path, text)
    limits = (("A100", 4), ("H100", 2))
    assert tenants_of(settings) == [Tenant(TenantId("vision"), 8, limits, 4, 2.0, Budget(100, 604800.0))]
    assert settings.tenant_entry("vision").task_class is TaskClass.ONLINE
    assert settings.tenant_entry("other") == TenantEntry()


def test_one_share_of_the_split_implies_the_other(tmp_path: Path) -> None:
    assert split_of(load(tmp_path, "quota: {online_percent: 0.6}")) == Split(0.6, 0.4)
    assert split_of(load(tmp_path, "quota: {batch_percent: 0.1, mode: borrow}")) == Split(0.9, 0.1, QuotaMode.BORROW)
    assert split_of(ServerSettings(), default_mode=QuotaMode.BORROW).mode is QuotaMode.BORROW


def test_without_a_quota_section_there_is_no_split_and_with_one_it_is_strict(tmp_path: Path) -> None:
    assert split_of(ServerSettings()).mode is QuotaMode.NONE
    assert split_of(load(tmp_path, "quota: {online_percent: 0.7}")).mode is QuotaMode.STRICT
    assert split_of(load(tmp_path, "quota: {mode: none}")).mode is QuotaMode.NONE


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (
            "scheduler: {role: standby}",
            "line 1: scheduler.role is standby, which needs another scheduler: set replication.enabled",
        ),
        ("replication: {enabled: true}", "replication.enabled needs replication.peer_address, the other scheduler."),
        (
            'replication: {enabled: true, address: "10.0.0.1:9092", peer_address: "10.0.0.2:9092"}',
            "replication.address",
        ),
        (
            'replication: {enabled: true, peer_address: "127.0.0.1:9092"}',
            "replication.peer_address is 127.0.0.1:9092, the address of this scheduler; write that of the other one.",
        ),
        (
            'replication: {enabled: true, peer_address: "b:1", address: "127.0.0.1:0"}',
            "replication.address has port 0, but the other scheduler must know the port; give it a number.",
        ),
        (
            'server: {http_address: "127.0.0.1:0"}\nstorage: {shared_storage: "postgresql:///g"}',
            "server.http_address has port 0, but the other scheduler must know the port; give it a number.",
        ),
        (
            'replication: {enabled: true, peer_address: "b:1"}\nstorage: {shared_storage: "postgresql:///g"}',
            "are two ways to share a journal; remove one of them.",
        ),
        (
            "replication: {single_copy_after: 1s}",
            "it must be 0 (never) or at least replication.heartbeat_timeout, 1.5 s",
        ),
        ("replication: {ca: /none/ca.pem}", "replication.ca"),
        ("server: {public_url: sched1}", "server.public_url cannot be used"),
        ("replication: {heartbeat_timeout: 2h}", "may be 3600 s at most"),
        (
            'storage: {shared_storage: "mysql://a/b"}',
            "not the address of a database; write postgresql://USER@HOST/DATABASE.",
        ),
        ("alerts: {email: a}", 'Unknown name "email" in alerts; did you mean "mail"?'),
        ("alerts: {rules: {gpu_hto: {}}}", 'Unknown rule "gpu_hto" in alerts.rules; did you mean "gpu_hot"?'),
        ("alerts: {rules: {gpu_hot: {clear: 90}}}", "alerts.rules.gpu_hot.clear (90) must not be above its threshold"),
        (
            "alerts: {rules: {disk_full: {clear: 1}}}",
            "alerts.rules.disk_full.clear (1) must not be below its threshold",
        ),
        ("alerts: {webhooks: [{name: a, url: 'ftp://x'}]}", "it must begin with http:// or https://"),
        ("alerts: {webhooks: [{name: a, url: 'http://x'}, {name: a, url: 'http://y'}]}", "two receivers are called a"),
        ("alerts: {mail: [{name: a, host: b, from: c@d, to: []}]}", "alerts.mail[0].to"),
        ('alerts: {mail: [{name: a, host: b, from: "c@d\\nBcc: e@f", to: [c@d]}]}', "a mail address such as"),
        ("alerts: {mail: [{name: a, host: b, from: c@d, to: [c@d], username: e, security: none}]}", "unencrypted"),
        ("tracing: {endpoint: 'unix:///x'}", "tracing.endpoint cannot be used; it must begin with http:// or https://"),
        ("alerts: {repeat_interval: 1s}", "alerts.repeat_interval is 1 s; it must be at least 60 s"),
        ("gpu: {max_compute_percent: 0}", "a percentage from 1 to 100"),
        ("gpu: {devices: [-1]}", "gpu.devices"),
        ("server: {http_address: ':8080'}", "line 1: :8080 would allow everyone"),
        ("system: {host: 0.0.0.0}", "line 1: 0.0.0.0:8080 would allow everyone"),
        ("system: {port: 81}\nserver: {http_address: '127.0.0.1:80'}", "are the same setting but differ"),
        ("scheduler: {interval: 500, schedule_interval: 5}", "are the same setting but differ"),
        ("system: {log_level: debug}\nlogging: {level: info}", "are the same setting but differ"),
        ("auth: {join_token: a}\nagent: {join_token: b}", "are the same setting but differ"),
        ("scheduler: {grace: 5m, max_grace: 1m}", "scheduler.grace is 300 s, longer than scheduler.max_grace, 60 s"),
        ("scheduler: {score: weihgted}", 'Unknown scheduler.score "weihgted"; did you mean "weighted"?'),
        ("scheduler: {weights: {energy: -1}}", "scheduler.weights.energy is -1"),
        ("scheduler: {max_grace: 0}", "scheduler.max_grace is 0; it must be a duration above zero"),
        ("system: {host: 'a b'}", "system.host is"),
        ("scheduler: {algorithm: piority}", 'did you mean "priority"?'),
        ("scheduler: {algorithm: zzz}", "available algorithms: round_robin"),
        ("server: {tls: {cert: a}}", "server.tls needs both cert and key"),
        ("server: {tls: {client_ca: a}}", "server.tls.client_ca also needs"),
        ("quota: {online_percent: 0.7, batch_percent: 0.7}", "quota: "),
        ("quota: {online_percent: 70}", "a fraction from 0 to 1"),
        ("tenants:\n  a: {max_gpus: 1}\n  b: {max_gpus: 1, guaranteed_gpus: 2}", "line 3: tenants.b: "),
        ("users: [{username: a, password: secret-1}, {username: a, password: secret-2}]", "occurs twice"),
        (
            "users: [{username: a, password: seven77}]",
            "users[0].password is not valid (its value is not shown); it must be 8 to 1,024 characters.",
        ),
        (
            "storage: {data_dir: /none/such}\nauth: {enabled: true}\nusers: [{username: a, password: secret-1}]",
            "auth.enabled is true, but neither users nor /none/such contains an administrator",
        ),
        (
            "storage: {data_dir: /none/such}\nauth: {enabled: true}",
            "line 2: auth.enabled is true, but neither users nor /none/such contains an administrator",
        ),
        ("users: [{username: a}]", "users[0].password is missing"),
        ("tenants: {'a b': {}}", "tenants has the key"),
        ("storage: {data_dir: ''}", "storage.data_dir"),
        ("monitor: {interval: 1.0e-12}", "line 1: monitor.interval is 1e-12 s; it must be at least 1 s."),
        ("scheduler: {interval: 1}", "scheduler.interval is 0.001 s; it must be at least 0.1 s."),
        ("scheduler: {task_timeout: 1ms}", "scheduler.task_timeout is 0.001 s; it must be at least 1 s."),
        ("tenants: {a: {gpu_hours_period: 1}}", "tenants.a.gpu_hours_period is 1 s; it must be at least 60 s."),
        ("tenants: {a: {weight: 5.0e-324}}", "tenants.a.weight"),
        ("tenants: {a: {gpu_hours: 5.0e-324}}", "tenants.a.gpu_hours"),
        ("tenants: {a: {user: root}}", "a system account other than root"),
        ("pools: {a: {gpus: '1:v:1', boot_command: x, release_command: x, labels: {gpuyard/x: y}}}", "gpuyard/x"),
        ("storage: {retenton: 5}", 'did you mean "retention"?'),
    ],
)
def test_invalid_settings_are_reported_in_one_sentence(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(WrongSettings) as wrong:
        load(tmp_path, text)
    assert str(wrong.value).startswith(str(tmp_path / "scheduler.yaml"))
    assert part in str(wrong.value)
    assert "\n" not in str(wrong.value)


def test_tasks_are_not_mapped_to_the_user_who_runs_the_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, own = pwd.getpwnam, pwd.getpwuid(os.geteuid())
    monkeypatch.setattr(pwd, "getpwnam", lambda name: own if name == "service" else known(name))
    admin = "{username: ada, password: secret-1, role: admin, system_user: service}"
    text = f"auth: {{enabled: true}}\nusers: [{admin}]\ntenants: {{lab: {{user: service}}}}\nstorage: {{data_dir: {tmp_path}}}"
    with pytest.raises(WrongSettings) as wrong:
        load(tmp_path, text)
    told = str(wrong.value)
    assert "line 2: users: system_user of ada is service, the system user who runs the scheduler" in told
    assert "line 3: tenants.lab.user is service, the system user who runs the scheduler" in told
    without_login = text.replace("enabled: true", "enabled: false")  # that user's own tasks may be of any tenant
    load(tmp_path, without_login.replace(", system_user: service", ""))
    with pytest.raises(WrongSettings, match="system_user of ada is service"):
        load(tmp_path, without_login)

    not_yet = load(tmp_path, text.replace(str(tmp_path), str(tmp_path / "none")))
    with pytest.raises(SchedulerStartError, match="who runs the scheduler"):
        asyncio.run(serve(not_yet))


def test_a_variable_with_an_unsupported_value_is_named() -> None:
    with pytest.raises(WrongSettings, match=r"^Environment variable GPUYARD_REPLICATION__ENABLED: "):
        load_server_settings(None, {"GPUYARD_REPLICATION__ENABLED": "true"})


def test_the_queue_and_the_open_tasks_of_a_tenant_have_limits(tmp_path: Path) -> None:
    settings = load(tmp_path, "scheduler: {queue_size: 500}\ntenants: {lab: {max_open_tasks: 20}}")
    assert engine_settings_of(settings).queue_size == 500
    assert tenant_of(settings, "lab").max_open_tasks == 20
    assert tenant_of(settings, "other").max_open_tasks is None
    assert engine_settings_of(settings).max_open_tasks == 100_000


def test_a_heartbeat_timeout_that_no_heartbeat_could_meet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongSettings, match=r"agent\.heartbeat_timeout is 1 s; it must be at least 3 s"):
        load(tmp_path, "agent: {heartbeat_timeout: 1s}")


def test_users_without_an_admin_are_checked_at_the_start_if_users_are_stored_already(tmp_path: Path) -> None:
    members = (
        f"storage: {{data_dir: {tmp_path}}}\nauth: {{enabled: true}}\nusers: [{{username: bob, password: secret-1}}]"
    )
    (tmp_path / "access.sqlite").touch()
    assert [user.role for user in load(tmp_path, members).users] == ["member"]


def test_users_without_an_admin_are_valid_if_a_local_user_is_one(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        "storage: {data_dir: /none/such}\nauth: {enabled: true, local_admin: true}\n"
        "users: [{username: bob, password: secret-1}]",
    )
    assert settings.auth.local_admin


def test_every_duration_has_a_minimum() -> None:
    assert durations_of(ServerSettings) == LEAST_SECONDS.keys() | {
        "scheduler.preemption_min_run",
        "scheduler.reserve_after",
    }


def test_a_relative_data_folder_is_found_whatever_the_process_does_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(tmp_path, "storage: {data_dir: here}").data_dir == tmp_path / "here"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("{}", "http://127.0.0.1:7"),
        (f"server: {{http_address: '0.0.0.0:8080', plain: true}}\n{LOGIN}", "http://0.0.0.0:7"),
        ("server: {http_address: '[::1]:8080'}", "http://[::1]:7"),
        ("server: {public_url: 'https://gpu.lab/'}", "https://gpu.lab"),
    ],
)
def test_clients_on_nodes_are_told_the_address_and_the_port_that_is_used(text: str, url: str, tmp_path: Path) -> None:
    (tmp_path / "yard.yaml").write_text(text)
    assert load_server_settings(tmp_path / "yard.yaml", {}).client_url(7) == url
