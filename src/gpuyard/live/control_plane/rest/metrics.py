"""Metrics of the scheduler, its GPUs and its predictions, in Prometheus' text format.

Counters and histograms come from the scheduler (`control_plane/metrics.py`). All other values are read at the moment of
the request: with thousands of GPUs their lines are made in slices, so that the event loop runs other work in between.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gpuyard.core.domain.errors import StorageFull, StorageUnreachable
from gpuyard.core.domain.values import TaskStatus, TenantId
from gpuyard.core.engine.quota import BATCH, ONLINE
from gpuyard.core.engine.state import State
from gpuyard.live.control_plane.access.principal import Action, Principal, may
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.gpus import class_quota, gpus_in
from gpuyard.live.control_plane.rest.predictions import predictions_of
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import LargeResponse, Response
from gpuyard.live.control_plane.role import SchedulerRole
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.control_plane.time_slices import TimeSlicer
from gpuyard.live.control_plane.views import NodeView
from gpuyard.live.wire.answers import ClassQuotaFigures, PredictionsAnswer
from gpuyard.version import __version__

GPU_STATUSES = ("idle", "busy", "external", "offline")
NODE_STATUSES = ("online", "cordoned", "draining", "away", "offline")
OPEN_STATUSES = (TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.SUSPENDED)
GPU_GAUGES = {
    "gpuyard_gpu_utilization": ("Utilization of a GPU, in percent.", "utilization_percent", 1),
    "gpuyard_gpu_memory_used_bytes": ("Memory in use on a GPU.", "memory_used_mib", 2**20),
    "gpuyard_gpu_temperature_celsius": ("Temperature of a GPU.", "temperature_c", 1),
    "gpuyard_gpu_power_watts": ("Power drawn by a GPU.", "power_watts", 1),
}
"""Gauges of a GPU: help text, field of the last heartbeat, and the factor to the unit of the metric."""


async def get_metrics(context: AppContext, request: Request) -> Response:
    """Return all metrics that the caller may see."""
    scheduler = context.scheduler

    def ask(state: State, now: float) -> tuple[list[ClassQuotaFigures], dict[TenantId, float]]:  # noqa: ARG001
        used = {name: gpus_in(usage.used) for name, usage in state.tenants.items()}
        return class_quota(state), used

    quota, used = await scheduler.queries.look(ask)
    gpus = await _gpu_lines(scheduler)
    seen = {name: gpus for name, gpus in sorted(used.items()) if may(request.principal, Action.SEE, name)}
    parts = [
        generate_latest(scheduler.metrics.registry),
        exposition(cluster_metrics(scheduler, quota, seen, request.principal)),
        exposition(prediction_metrics(predictions_of(scheduler))),
        *gpus,
    ]
    return LargeResponse(parts, media_type=CONTENT_TYPE_PLAIN_0_0_4)


def exposition(families: Iterable[Metric]) -> bytes:
    """Return metric families in the text format."""
    registry = CollectorRegistry()
    registry.register(_Families(families))
    return generate_latest(registry)


class _Families(Collector):
    """Metric families that were made for one request."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        yield from self._families


def _replication(role: SchedulerRole) -> Iterator[Metric]:
    """Yield the state of the replication; zeros without one, so that an alert on it always finds its metric."""
    told = role.replicating.answer() if role.replicating is not None else None
    voters = [voter for voter in told.voters if voter.votes] if told is not None else []
    copies = len(told.in_sync) if told is not None else 0
    yield _gauge("gpuyard_replication_copies", "Schedulers that have every event; 0: no replication.", copies)
    yield _gauge("gpuyard_replication_voters", "Voters; 0: no replication.", len(voters))
    yield _gauge(
        "gpuyard_replication_voters_connected",
        "Voters that are connected with this scheduler.",
        sum(voter.connected for voter in voters),
    )


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))


def _gauge_by(label: str, name: str, text: str, values: Iterable[tuple[str, float]]) -> GaugeMetricFamily:
    """Return a gauge with one value for each value of a label."""
    gauge = GaugeMetricFamily(name, text, labels=[label])
    for each, value in values:
        gauge.add_metric([each], value)
    return gauge


def cluster_metrics(
    scheduler: Scheduler, quota: list[ClassQuotaFigures], used: dict[TenantId, float], principal: Principal
) -> Iterator[Metric]:
    """Yield the present values of the cluster. Tenants are named only to callers that may see them."""
    views, loop = scheduler.views, scheduler.loop
    tasks = {status: views.open_tasks([status], None) for status in OPEN_STATUSES}
    yield _gauge("gpuyard_task_pending_total", "Tasks that wait.", tasks[TaskStatus.PENDING])
    yield _gauge("gpuyard_task_running_total", "Tasks that run.", tasks[TaskStatus.RUNNING])
    yield _gauge("gpuyard_task_suspended_total", "Tasks that are suspended.", tasks[TaskStatus.SUSPENDED])
    gpus = Counter[str](node.gpu_status(gpu) for node in views.nodes.values() for gpu in range(len(node.spec.gpus)))
    yield _gauge("gpuyard_gpu_total", "GPUs of all nodes.", gpus.total())
    for status in GPU_STATUSES:
        yield _gauge(f"gpuyard_gpu_{status}_total", f"GPUs that are {status}.", gpus[status])
    nodes = Counter[str](node.status for node in views.nodes.values())
    yield _gauge_by(
        "status", "gpuyard_agent_count", "Nodes by status.", ((each, nodes[each]) for each in NODE_STATUSES)
    )
    for name, figures in (("online", quota[ONLINE]), ("batch", quota[BATCH])):
        yield _gauge(f"gpuyard_quota_{name}_limit", f"GPUs that {name} tasks may use.", figures.quota)
        yield _gauge(f"gpuyard_quota_{name}_used", f"GPUs that {name} tasks use.", figures.used)
    yield _gauge_by("tenant", "gpuyard_tenant_gpus_used", "GPUs that a tenant uses.", used.items())
    waiting = {
        name: counts.get(TaskStatus.PENDING, 0)
        for name, counts in sorted(views.counts.items())
        if may(principal, Action.SEE, name)
    }
    yield _gauge_by("tenant", "gpuyard_tenant_tasks_pending", "Tasks of a tenant that wait.", waiting.items())
    yield _gauge("gpuyard_scheduler_is_master", "1 if this scheduler decides.", scheduler.role.leads)
    yield _gauge(
        "gpuyard_scheduler_behind_seconds",
        "For a standby: how long ago it was level with the journal.",
        0.0 if scheduler.role.leads else scheduler.role.behind_seconds,
    )
    yield from _replication(scheduler.role)
    yield _gauge("gpuyard_scheduler_ready", "1 if this scheduler accepts requests.", scheduler.ready)
    yield _gauge(
        "gpuyard_storage_full", "1 while the disk of the journal is full.", type(loop.unwritable) is StorageFull
    )
    yield _gauge(
        "gpuyard_storage_unreachable",
        "1 while the database of the journal does not answer.",
        isinstance(loop.unwritable, StorageUnreachable),
    )
    yield _gauge(
        "gpuyard_journal_lag_seconds", "Age of the oldest decision that is not in the journal yet.", loop.append_age
    )
    firing, pending = scheduler.alerts.counts()
    yield _gauge_by(
        "state", "gpuyard_alerts", "Alerts by state.", (("firing", float(firing)), ("pending", float(pending)))
    )
    yield _gauge_by("rule", "gpuyard_alerts_firing", "Firing alerts of a rule.", scheduler.alerts.by_rule().items())
    yield CounterMetricFamily("gpuyard_journal_events", "Events in the journal.", value=loop.committed)
    yield _gauge_by("version", "gpuyard_build_info", "Version of the scheduler.", [(__version__, 1)])


def prediction_metrics(told: PredictionsAnswer) -> Iterator[Metric]:
    """Yield one gauge for each figure about predictions, with the predictor as a label."""
    for name, text, field in (
        ("gpuyard_prediction_tasks", "Number of ended tasks in the evaluation of predictions.", "tasks"),
        ("gpuyard_prediction_error_median", "Median relative error.", "median_ape"),
        ("gpuyard_prediction_error_mean", "Mean relative error.", "mape"),
        ("gpuyard_prediction_band_coverage", "Fraction of tasks within their predicted range.", "band_coverage"),
    ):
        gauge = GaugeMetricFamily(name, text, labels=["predictor"])
        for score in told.scores:
            value = getattr(score, field)
            if value is not None:
                gauge.add_metric([score.predictor], value)
        yield gauge
    if told.model is not None:
        yield CounterMetricFamily(
            "gpuyard_prediction_models_refused", "Number of rejected model files.", value=told.model.refused
        )


async def _gpu_lines(scheduler: Scheduler) -> list[bytes]:
    """Return the lines of all GPUs. prometheus-client needs 100 ms for 1,600 GPUs, in one piece."""
    turns = TimeSlicer()
    lines: dict[str, list[str]] = {
        name: [f"# HELP {name} {text}\n# TYPE {name} gauge\n"] for name, (text, _, _) in GPU_GAUGES.items()
    }
    for name in sorted(scheduler.views.nodes):
        node = scheduler.views.nodes.get(name)
        if node is not None:
            _add_node(lines, scheduler, node)
        if turns.due():
            await turns.give()
    return ["".join(each).encode() for each in lines.values()]


def _add_node(lines: dict[str, list[str]], scheduler: Scheduler, node: NodeView) -> None:
    """Add the values of a node's last heartbeat; a value that was not reported has no line."""
    told = scheduler.agents.telemetry.get(node.spec.id)
    if told is None or node.is_silent:
        return
    for use in told.gpus:
        if use.index >= len(node.spec.gpus):
            continue
        labels = (
            f'gpu_id="{_escaped(f"{node.spec.id}/{use.index}")}",model="{_escaped(node.spec.gpus[use.index].model)}"'
        )
        for name, (_, field, factor) in GPU_GAUGES.items():
            if use.HasField(field):
                lines[name].append(f"{name}{{{labels}}} {getattr(use, field) * factor}\n")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
