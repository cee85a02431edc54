"""The metrics of a scheduler, as Prometheus reads them."""

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gpuyard.core.domain.commands import JoinNode, LoseNode, ReportEnded, ReportStarted
from gpuyard.core.domain.values import NodeId, Outcome, TaskId
from gpuyard.live.wire import agents_pb2 as pb
from tests.acceptance.live import running_cluster
from tests.acceptance.rest_cluster import RestCluster
from tests.acceptance.waiting import until

MANUAL = Path(__file__).parents[2] / "docs" / "manual" / "metrics.md"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RestCluster]:
    with RestCluster(tmp_path) as cluster:
        yield cluster


def families(cluster: RestCluster) -> list[Metric]:
    """Everything that one scrape returns."""
    reply = cluster.ask("GET", "/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return list(text_string_to_metric_families(reply.body.decode()))


def values(cluster: RestCluster) -> dict[str, float]:
    """Samples by name and labels, as `name{label="value"}`."""
    return {
        each.name + "".join(f"{{{key}={value}}}" for key, value in sorted(each.labels.items())): each.value
        for family in families(cluster)
        for each in family.samples
    }


def test_a_task_is_counted_when_it_is_submitted_placed_started_and_ended(cluster: RestCluster) -> None:
    before = values(cluster)
    assert before["gpuyard_task_submitted_total{priority=high}"] == 0
    cluster.submit(priority="high")
    cluster.submit(priority="low")
    cluster.submit(priority="low", gpu_count=8)
    cluster.tell(ReportStarted(TaskId(1), 1))
    cluster.tell(ReportEnded(TaskId(1), 1, Outcome.FAILED, 3))
    after = values(cluster)
    assert after["gpuyard_task_submitted_total{priority=high}"] == 1
    assert after["gpuyard_task_submitted_total{priority=low}"] == 2
    assert after["gpuyard_task_scheduled_total"] == 2
    assert after["gpuyard_task_finished_total{status=failed}"] == 1
    assert after["gpuyard_task_finished_total{status=success}"] == 0
    assert after["gpuyard_task_pending_total"] == 2  # one has its GPUs and has not started, one waits
    assert after["gpuyard_task_wait_seconds_count{priority=high}"] == 1
    assert after["gpuyard_dispatch_seconds_count"] == 1
    assert after["gpuyard_decision_seconds_count"] > before["gpuyard_decision_seconds_count"]
    assert after["gpuyard_commit_seconds_sum"] > before["gpuyard_commit_seconds_sum"]
    assert after["gpuyard_journal_events_total"] > before["gpuyard_journal_events_total"]
    assert after["gpuyard_tenant_gpus_used{tenant=default}"] == 1


def test_gpus_nodes_and_quotas_have_the_values_of_the_api(cluster: RestCluster) -> None:
    cluster.submit(gpu_count=2, priority="high")
    cluster.tell(JoinNode(cluster.node("n2", 3)))
    cluster.tell(LoseNode(NodeId("n2")))
    told, gpus, quota = values(cluster), cluster.get("/api/v1/gpus"), cluster.get("/api/v1/quota")
    assert told["gpuyard_gpu_total"] == gpus["total"] == 7
    for status in ("idle", "busy", "external", "offline"):
        assert told[f"gpuyard_gpu_{status}_total"] == gpus[status]
    for name in ("online", "batch"):
        assert told[f"gpuyard_quota_{name}_limit"] == quota[name]["quota"]
        assert told[f"gpuyard_quota_{name}_used"] == quota[name]["used"]
    assert told["gpuyard_agent_count{status=offline}"] == 1
    assert told["gpuyard_agent_lost_total"] == 1
    assert told["gpuyard_scheduler_is_master"] == told["gpuyard_scheduler_ready"] == 1


def test_the_manual_lists_every_metric_and_no_other(cluster: RestCluster) -> None:
    cluster.submit()
    scraped = {f"{each.name}_total" if each.type == "counter" else each.name: each for each in families(cluster)}
    rows = re.findall(r"^\| `(gpuyard_\w+)` \| (\w+) \|(.*?)\| .+ \|$", MANUAL.read_text(), re.MULTILINE)
    listed = {name: (kind, labels) for name, kind, labels in rows}
    optional = {"gpuyard_prediction_models_refused_total"}  # only with a model of its own
    assert set(listed) - set(scraped) - optional == set()
    assert set(scraped) - set(listed) == set()
    for name, family in scraped.items():
        kind, labels = listed[name]
        assert kind == family.type, name
        seen = {label for each in family.samples for label in each.labels} - {"le"}
        assert seen <= set(re.findall(r"\w+", labels)), name


def test_a_hostile_name_of_a_gpu_stays_one_label(cluster: RestCluster) -> None:
    node = cluster.node("n2", 1)
    named = 'A100"} 1\ngpuyard_scheduler_is_master 0\\'
    cluster.tell(JoinNode(type(node)(node.id, (type(node.gpus[0])(named, 1024),), 8, 1024)))
    beat = pb.Heartbeat(gpus=[pb.GpuUse(index=0, utilization_percent=12.5, memory_used_mib=3)])
    cluster.scheduler.agents.telemetry[NodeId("n2")] = beat
    told = next(each for each in families(cluster) if each.name == "gpuyard_gpu_utilization")
    assert [(each.labels, each.value) for each in told.samples] == [({"gpu_id": "n2/0", "model": named}, 12.5)]
    assert values(cluster)["gpuyard_scheduler_is_master"] == 1


def test_the_way_of_a_task_through_a_real_agent_is_measured(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=1) as cluster:

        def scrape() -> set[str]:
            with urllib.request.urlopen(f"http://127.0.0.1:{cluster.http}/metrics", timeout=10) as answer:
                return set(str(answer.read(), "utf-8").splitlines())

        client = cluster.ready(1)
        task = client.submit("sleep 30")
        running = {"gpuyard_gpu_busy_total 1.0", "gpuyard_dispatch_seconds_count 1.0", "gpuyard_task_running_total 1.0"}
        until(lambda: running <= scrape(), 40, "it runs")
        client.cancel(task.id)
        ended = {'gpuyard_task_finished_total{status="cancelled"} 1.0', "gpuyard_gpu_busy_total 0.0"}
        until(lambda: ended <= scrape(), 40, "its end is counted")
