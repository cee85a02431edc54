"""Recent accuracy of predictions and the model that makes them, as JSON and as metrics in Prometheus' text format."""

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gpuyard.live.control_plane.prediction.accuracy import NAMES
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.wire.answers import ModelStatusAnswer, PredictionsAnswer, PredictionScore
from gpuyard.live.wire.limits import instant_of


async def get_predictions(context: AppContext, request: Request) -> Response:  # noqa: ARG001
    """Return prediction errors over the most recently ended tasks."""
    return json_response(predictions_of(context.scheduler))


async def get_metrics(context: AppContext, request: Request) -> Response:  # noqa: ARG001
    """Return the prediction errors in the format of Prometheus."""
    return Response(metrics_of(predictions_of(context.scheduler)), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def predictions_of(scheduler: Scheduler) -> PredictionsAnswer:
    """Return the accuracy of a scheduler's predictions and its model."""
    scores = []
    if scheduler.runtime_estimator is not None:
        for name, about in NAMES.items():
            one = scheduler.runtime_estimator.scores.of(name)
            scores.append(PredictionScore(name, about, one.tasks, one.median_ape, one.mape, one.band_coverage))
    model = None
    if scheduler.performance_predictor is not None:
        now = scheduler.performance_predictor.models.standing
        since = None if now.since is None else instant_of(now.since)
        model = ModelStatusAnswer(now.file, since, now.why, now.refused, now.refused_why, now.trained_on)
    return PredictionsAnswer(scheduler.runtime_estimator is not None, scores, model)


class _PredictionMetrics(Collector):
    """The figures of one answer as metric families."""

    def __init__(self, told: PredictionsAnswer) -> None:
        self._told = told

    def collect(self) -> Iterator[Metric]:
        """Yield one gauge per figure, with the predictor as a label."""
        for name, text, field in (
            ("gpuyard_prediction_tasks", "Number of ended tasks in the evaluation of predictions.", "tasks"),
            ("gpuyard_prediction_error_median", "Median relative error.", "median_ape"),
            ("gpuyard_prediction_error_mean", "Mean relative error.", "mape"),
            ("gpuyard_prediction_band_coverage", "Fraction of tasks within their predicted range.", "band_coverage"),
        ):
            gauge = GaugeMetricFamily(name, text, labels=["predictor"])
            for score in self._told.scores:
                value = getattr(score, field)
                if value is not None:
                    gauge.add_metric([score.predictor], value)
            yield gauge
        if self._told.model is not None:
            yield CounterMetricFamily(
                "gpuyard_prediction_models_refused_total",
                "Number of rejected model files.",
                value=self._told.model.refused,
            )


def metrics_of(told: PredictionsAnswer) -> bytes:
    """Return the figures in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(_PredictionMetrics(told))
    return generate_latest(registry)
