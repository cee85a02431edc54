"""How right predictions were lately, and which model makes them: for people, and as metrics in Prometheus' text format."""

from gpuyard.live.control_plane.prediction.accuracy import NAMES
from gpuyard.live.control_plane.rest.answer import Answer, say
from gpuyard.live.control_plane.rest.call import Call, Desk
from gpuyard.live.control_plane.scheduler import Yard
from gpuyard.live.wire.answers import ModelStanding, PredictionsAnswer, PredictionScore
from gpuyard.live.wire.limits import instant_of

PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


async def get_predictions(desk: Desk, call: Call) -> Answer:  # noqa: ARG001
    """Errors over the tasks that ended last."""
    return say(predictions_of(desk.yard))


async def get_metrics(desk: Desk, call: Call) -> Answer:  # noqa: ARG001
    """The same for Prometheus."""
    return Answer(200, metrics_of(predictions_of(desk.yard)).encode(), PROMETHEUS)


def predictions_of(yard: Yard) -> PredictionsAnswer:
    """What a yard knows of its own foresight."""
    scores = []
    if yard.forecaster is not None:
        for name, about in NAMES.items():
            one = yard.forecaster.scores.of(name)
            scores.append(PredictionScore(name, about, one.tasks, one.median_ape, one.mape, one.band_coverage))
    model = None
    if yard.foreteller is not None:
        now = yard.foreteller.models.standing
        since = None if now.since is None else instant_of(now.since)
        model = ModelStanding(now.file, since, now.why, now.refused, now.refused_why, now.trained_on)
    return PredictionsAnswer(yard.forecaster is not None, scores, model)


def metrics_of(told: PredictionsAnswer) -> str:
    """One gauge a figure, with the predictor as a label."""
    lines = []
    for metric, text, field in (
        ("gpuyard_prediction_tasks", "Ended tasks whose predictions are judged.", "tasks"),
        ("gpuyard_prediction_error_median", "Median error, as a part of what came.", "median_ape"),
        ("gpuyard_prediction_error_mean", "Mean error, as a part of what came.", "mape"),
        ("gpuyard_prediction_band_coverage", "Part of the tasks that ended within their band.", "band_coverage"),
    ):
        lines += [f"# HELP {metric} {text}", f"# TYPE {metric} gauge"]
        for score in told.scores:
            value = getattr(score, field)
            if value is not None:
                lines.append(f'{metric}{{predictor="{score.predictor}"}} {value:g}')
    if told.model is not None:
        metric = "gpuyard_prediction_models_refused_total"
        lines += [f"# HELP {metric} Model files that were not taken.", f"# TYPE {metric} counter"]
        lines.append(f"{metric} {told.model.refused}")
    return "\n".join(lines) + "\n"
