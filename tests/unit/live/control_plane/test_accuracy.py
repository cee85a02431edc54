"""The accuracy of predictions over the most recent tasks."""

import pytest

from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.task import Estimate
from gpuyard.core.domain.workload import Forecast, WorkloadSpec
from gpuyard.live.control_plane.prediction.accuracy import LAST, LEAST_TASKS, AccuracyScore, AccuracyTracker
from gpuyard.live.control_plane.rest.metrics import exposition, prediction_metrics
from gpuyard.live.wire.answers import ModelStatusAnswer, PredictionsAnswer, PredictionScore

WORK = WorkloadSpec(model="resnet50", steps=1000)
ON_H200 = Forecast(
    gpu_model="H200", seconds=100.0, low_seconds=90.0, high_seconds=120.0,
    memory_mib=10_000.0, memory_low_mib=9_000.0, memory_high_mib=12_000.0,
)  # fmt: skip


def test_history_is_scored_by_its_median_and_mean_error_and_its_range() -> None:
    scores = AccuracyTracker()
    for seconds in (100.0, 50.0, 400.0) * 4:
        scores.ended(seconds, Estimate(100.0, 60.0, 200.0, 5), (), None, "H200", None, well=False)
    score = scores.of("history")
    assert (score.tasks, score.median_ape) == (12, 0.75)
    assert score.mape == pytest.approx((0.0 + 1.0 + 0.75) / 3)
    assert score.band_coverage == pytest.approx(1 / 3)
    assert scores.of("performance") == scores.of("memory") == AccuracyScore(0)


def test_estimates_of_users_are_not_scored() -> None:
    scores = AccuracyTracker()
    scores.ended(50.0, Estimate(100.0, 60.0, 200.0), (), None, None, None, well=True)
    assert scores.of("history").tasks == 0


def test_forecasts_are_scored_on_the_gpu_used_and_only_for_successful_tasks() -> None:
    scores, told = AccuracyTracker(), Estimate(1.0, 1.0, 1.0, 3)
    for _ in range(LEAST_TASKS):
        scores.ended(80.0, told, (ON_H200,), WORK, "H200", Actual(8_000), well=True)
        scores.ended(80.0, told, (ON_H200,), WORK, "H200", Actual(8_000), well=False)
        scores.ended(80.0, told, (ON_H200,), WORK, "T4", Actual(8_000), well=True)
    assert scores.of("performance") == AccuracyScore(LEAST_TASKS, 0.25, 0.25, 0.0)
    assert scores.of("memory") == AccuracyScore(LEAST_TASKS, 0.25, 0.25, 0.0)
    assert scores.of("corrected").tasks == LEAST_TASKS
    assert scores.of("history").tasks == 0


def test_corrected_forecasts_are_scored_on_the_fastest_gpu() -> None:
    scores, slow = AccuracyTracker(), Forecast(gpu_model="T4", seconds=900.0, low_seconds=800.0, high_seconds=1000.0)
    right = Estimate(80.0, 70.0, 90.0, 5)
    for _ in range(LEAST_TASKS):
        scores.ended(80.0, right, (ON_H200, slow), WORK, "H200", None, well=True)
        scores.ended(720.0, right, (ON_H200, slow), WORK, "T4", None, well=True)
        scores.ended(80.0, Estimate(80.0, 70.0, 90.0), (ON_H200, slow), WORK, "H200", None, well=True)
    assert scores.of("corrected") == AccuracyScore(LEAST_TASKS, 0.0, 0.0, 1.0)
    assert scores.of("performance").tasks == 3 * LEAST_TASKS


def test_few_tasks_have_no_score_and_a_task_of_no_length_does_not_outweigh_the_others() -> None:
    scores = AccuracyTracker()
    for _ in range(LEAST_TASKS - 1):
        scores.ended(0.001, Estimate(2.0, 1.0, 3.0, 5), (), None, None, None, well=True)
    assert scores.of("history") == AccuracyScore(LEAST_TASKS - 1)
    scores.ended(0.001, Estimate(2.0, 1.0, 3.0, 5), (), None, None, None, well=True)
    assert scores.of("history").tasks == LEAST_TASKS
    assert scores.of("history").median_ape == scores.of("history").mape == pytest.approx(1.999)


def test_only_the_most_recent_tasks_count() -> None:
    scores = AccuracyTracker()
    for place in range(LAST + 10):
        scores.ended(1.0 if place < 10 else 100.0, Estimate(100.0, 90.0, 110.0, 5), (), None, None, None, well=True)
    assert scores.of("history") == AccuracyScore(LAST, 0.0, 0.0, 1.0)


def test_prometheus_gets_one_line_per_figure() -> None:
    told = PredictionsAnswer(
        True,
        [
            PredictionScore("history", "run times", 3, 0.75, 0.5, 0.9),
            PredictionScore("memory", "", 0, None, None, None),
        ],
        ModelStatusAnswer(None, None, "", 2, None, {}),
    )
    lines = exposition(prediction_metrics(told)).decode().splitlines()
    assert 'gpuyard_prediction_tasks{predictor="memory"} 0.0' in lines
    assert 'gpuyard_prediction_error_median{predictor="history"} 0.75' in lines
    assert not any(line.startswith('gpuyard_prediction_error_median{predictor="memory"') for line in lines)
    assert lines[-1] == "gpuyard_prediction_models_refused_total 2.0"
    assert "# TYPE gpuyard_prediction_models_refused_total counter" in lines
