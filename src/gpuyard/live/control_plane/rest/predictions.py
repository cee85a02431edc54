"""Recent accuracy of predictions and the model that makes them."""

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
