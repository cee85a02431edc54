"""A real Prometheus and a real Alertmanager with the files of deploy/monitoring."""

import json
import re
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuyard.core.domain.commands import JoinNode, SetTenant
from gpuyard.core.domain.tenant import Tenant
from gpuyard.core.domain.values import NodeId, TenantId
from gpuyard.live.wire import agents_pb2 as pb
from tests.acceptance.live import running_cluster
from tests.acceptance.rest_cluster import RestCluster
from tests.acceptance.waiting import until
from tests.ports import free_port
from tests.unit.live.control_plane.receiving import webhook_server
from tools.debian_tools import NoPackages, command, program

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
RULES = MONITORING / "gpuyard.rules.yml"
KEPT_NAMES = {
    f"gpuyard_{name}_total"
    for name in (
        "task_pending", "task_running", "task_suspended", "gpu", "gpu_idle", "gpu_busy", "gpu_external", "gpu_offline",
    )
} | {"gpuyard_agent_count"}  # fmt: skip
"""Names that existing dashboards use, although `_total` is for counters and `_count` for histograms."""
HOSTILE = 'a"b\\c\nd{x="1"} 7\n# TYPE'


def path_of(name: str) -> str:
    try:
        return program(name)
    except NoPackages as missing:
        pytest.skip(str(missing))


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer, which must be a success."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            told = json.load(answer)
        assert told["status"] == "success", told
        return told["data"]

    def value(self, query: str) -> list[dict[str, Any]]:
        """The result of a query."""
        found: list[dict[str, Any]] = self.ask("query", query=query)["result"]
        return found

    def scraped(self) -> bool:
        """Whether the scheduler was scraped without an error; an error of the format fails the test."""
        targets = self.ask("targets")["activeTargets"]
        if any(each["health"] == "down" for each in targets):
            raise AssertionError([each["lastError"] for each in targets])
        return bool(targets) and all(each["health"] == "up" for each in targets)


@contextmanager
def process(folder: Path, name: str, *words: str) -> Iterator[None]:
    """Run a program until the end of the test."""
    with (folder / f"{name}.log").open("wb") as log:
        running = subprocess.Popen([*command(name), *words], cwd=folder, stdout=log, stderr=log)
    try:
        yield
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(20)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


@contextmanager
def prometheus(folder: Path, scheduler: int, alertmanager: int | None = None) -> Iterator[Prometheus]:
    """A Prometheus with our file and rules, with short times."""
    settings = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{scheduler}"]}]
    targets = [] if alertmanager is None else [f"127.0.0.1:{alertmanager}"]
    settings["alerting"]["alertmanagers"][0]["static_configs"] = [{"targets": targets}]
    rules = re.sub(r"\bfor: \w+", "for: 1s", re.sub("interval: 30s", "interval: 1s", RULES.read_text()))
    folder.mkdir(exist_ok=True)
    (folder / "gpuyard.rules.yml").write_text(rules)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    port = free_port()
    words = ("--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}")
    with process(folder, "prometheus", *words):
        made = Prometheus(port)
        log = folder / "prometheus.log"

        def answers() -> bool:
            try:
                return bool(made.ask("status/buildinfo"))
            except OSError:
                return False

        until(answers, 40, f"Prometheus answers\n{log.read_text()[-2000:] if log.exists() else ''}")
        yield made


def checked(*words: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([path_of("promtool"), *words], input=given, capture_output=True, timeout=60, check=False)


def test_promtool_accepts_the_rules_and_the_example_of_a_configuration() -> None:
    assert checked("check", "rules", str(RULES)).returncode == 0
    done = checked("check", "config", str(MONITORING / "prometheus.yml"))
    assert done.returncode == 0, done.stderr


LEADS = 'gpuyard_scheduler_is_master{job="gpuyard", instance="a"}'
FOLLOWS = 'gpuyard_scheduler_is_master{job="gpuyard", instance="b"}'
UP = ('up{job="gpuyard", instance="a"}', 'up{job="gpuyard", instance="b"}')
HEALTHY = {
    UP[0]: 1,
    UP[1]: 1,
    LEADS: 1,
    FOLLOWS: 0,
    'gpuyard_scheduler_behind_seconds{job="gpuyard", instance="b"}': 0.1,
    'gpuyard_replication_copies{job="gpuyard", instance="a"}': 2,
    'gpuyard_replication_voters{job="gpuyard", instance="a"}': 3,
    'gpuyard_replication_voters_connected{job="gpuyard", instance="a"}': 3,
    'gpuyard_agent_count{job="gpuyard", instance="b", status="offline"}': 1,
}
"""Two schedulers that replicate; what the standby says about nodes does not count."""


@pytest.mark.parametrize(
    ("changed", "firing"),
    [
        ({}, []),
        ({LEADS: 0}, ["GpuyardNoLeader"]),
        ({FOLLOWS: 1}, ["GpuyardAgentLost", "GpuyardSeveralLeaders", "GpuyardStandbyMissing"]),
        ({UP[1]: 0, FOLLOWS: None}, ["GpuyardDown", "GpuyardStandbyMissing"]),
        ({"gpuyard_scheduler_behind_seconds": 11}, ["GpuyardStandbyBehind"]),
        ({"gpuyard_replication_copies": 1}, ["GpuyardOneCopy"]),
        ({"gpuyard_replication_voters_connected": 2}, ["GpuyardVotersMissing"]),
        ({UP[1]: None, FOLLOWS: None, "gpuyard_replication": 0}, []),  # one scheduler
    ],
    ids=str,
)
def test_the_rules_notice_what_is_wrong_with_two_schedulers(
    changed: dict[str, float | None], firing: list[str], tmp_path: Path
) -> None:
    values: dict[str, float | None] = {
        series: next((new for begins, new in changed.items() if series.startswith(begins)), value)
        for series, value in HEALTHY.items()
    }
    series = [{"series": name, "values": f"{value}x40"} for name, value in values.items() if value is not None]
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    names = [rule["alert"] for rule in rules if "alert" in rule]
    asked = [{"expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}})', "eval_time": "9m"} for name in names]
    for each, name in zip(asked, names, strict=True):
        each["exp_samples"] = [{"labels": "{}", "value": 1}] if name in firing else []  # type: ignore[assignment]
    file = tmp_path / "test.yml"
    tests = [{"interval": "15s", "input_series": series, "promql_expr_test": asked}]
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": tests}))
    done = checked("test", "rules", str(file))
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_amtool_accepts_the_example_of_an_alertmanager() -> None:
    words = [path_of("amtool"), "check-config", str(MONITORING / "alertmanager.yml")]
    done = subprocess.run(words, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_promtool_complains_about_the_kept_names_only(tmp_path: Path) -> None:
    with RestCluster(tmp_path) as cluster:
        cluster.submit()
        cluster.tell(SetTenant(Tenant(TenantId('a"b'), max_gpus=1)))
        done = checked("check", "metrics", given=cluster.ask("GET", "/metrics").body)
    assert done.returncode in {0, 3}, done.stderr
    complaints = [line for line in done.stderr.decode().splitlines() if line.strip()]
    others = [line for line in complaints if line.split()[0] not in KEPT_NAMES]
    assert others == []
    assert {line.split()[0] for line in complaints} == KEPT_NAMES


def test_an_alert_reaches_a_webhook_through_prometheus_and_alertmanager(tmp_path: Path) -> None:
    path_of("prometheus")
    with (
        webhook_server() as server,
        running_cluster(tmp_path, nodes=1, agent={"heartbeat_timeout": "3s"}) as yard,
    ):
        settings = yaml.safe_load((MONITORING / "alertmanager.yml").read_text())
        settings["route"] |= {"group_wait": "1s", "group_interval": "1s"}
        settings["receivers"][0]["webhook_configs"][0]["url"] = server.url
        folder, port = tmp_path / "alertmanager", free_port()
        folder.mkdir()
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(settings))
        words = ("--config.file=alertmanager.yml", "--storage.path=data", "--cluster.listen-address=")
        with (
            process(folder, "alertmanager", *words, f"--web.listen-address=127.0.0.1:{port}"),
            prometheus(tmp_path / "prometheus", yard.http, port) as asked,
        ):
            until(asked.scraped, 40, "the scheduler is scraped")
            task = yard.client().submit("sleep 600", gpu_count=1)
            until(lambda: asked.value("gpuyard_gpu_busy_total == 1"), 60, "a task is seen")
            every_query_of_the_dashboard_is_answered(asked)
            recorded = [
                rule["name"]
                for group in asked.ask("rules")["groups"]
                for rule in group["rules"]
                if rule["health"] == "err"
            ]
            assert recorded == []
            yard.client().cancel(task.id)
            yard.kill(yard.agents["node-1"])
            until(lambda: server.bodies, 90, "the lost agent reaches the webhook")
            body = server.bodies[0]
            assert body["version"] == "4"
            assert body["commonLabels"]["alertname"] == "GpuyardAgentLost"
            assert body["commonLabels"]["severity"] == "critical"


def every_query_of_the_dashboard_is_answered(asked: Prometheus) -> None:
    board = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(queries) > 20
    empty = set()
    for query in queries:
        plain = query.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$gpu", ".*")
        assert "$" not in plain, plain
        if not asked.value(plain):
            empty.add(query)
    allowed = ("histogram_quantile", "gpuyard_prediction", "gpuyard_alerts_firing", "rate(")
    assert [query for query in empty if not any(word in query for word in allowed)] == [], "every gauge has a value"


def test_hostile_names_are_labels_of_a_real_prometheus(tmp_path: Path) -> None:
    path_of("prometheus")
    with RestCluster(tmp_path / "yard") as cluster:
        cluster.tell(SetTenant(Tenant(TenantId(HOSTILE), max_gpus=1)))
        node = cluster.node("n2", 1)
        cluster.tell(JoinNode(type(node)(node.id, (type(node.gpus[0])(HOSTILE, 1024),), 8, 1024)))
        use = pb.GpuUse(index=0, utilization_percent=12.5)
        cluster.scheduler.agents.telemetry[NodeId("n2")] = pb.Heartbeat(gpus=[use])
        with prometheus(tmp_path / "prometheus", cluster.port) as asked:
            until(asked.scraped, 40, "it is scraped")
            found = until(lambda: asked.value("gpuyard_gpu_utilization"), 20, "its GPUs are there")
            assert [each["metric"]["model"] for each in found] == [HOSTILE]
            tenants = {each["metric"]["tenant"] for each in asked.value("gpuyard_tenant_gpus_used")}
            assert HOSTILE in tenants
            assert [each["value"][1] for each in asked.value("gpuyard_scheduler_is_master")] == ["1"]


def test_a_scrape_of_1600_gpus_is_complete_and_the_scheduler_answers_meanwhile(tmp_path: Path) -> None:
    path_of("prometheus")
    with RestCluster(tmp_path / "yard", gpus=0) as cluster:
        for number in range(200):
            cluster.tell(JoinNode(cluster.node(f"n{number}", 8)))
            uses = [
                pb.GpuUse(index=gpu, utilization_percent=50, memory_used_mib=9, temperature_c=60, power_watts=200)
                for gpu in range(8)
            ]
            cluster.scheduler.agents.telemetry[NodeId(f"n{number}")] = pb.Heartbeat(gpus=uses)
        with prometheus(tmp_path / "prometheus", cluster.port) as asked:
            until(asked.scraped, 60, "it is scraped")
            for name in ("utilization", "memory_used_bytes", "temperature_celsius", "power_watts"):
                (found,) = until(lambda name=name: asked.value(f"count(gpuyard_gpu_{name})"), 30, name)  # type: ignore[misc]
                assert found["value"][1] == "1600"
            (took,) = asked.value("scrape_duration_seconds")
            cluster.submit()
            print(f"scrape of 1,600 GPUs: {float(took['value'][1]) * 1000:.0f} ms")
