"""Tasks with declared work get run time, memory and speeds on each GPU model of the cluster."""

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.refusals import WorkDoesNotFit
from gpuyard.core.domain.task import Estimate, Resources, TaskSpec
from gpuyard.core.domain.values import NodeId, TaskId, TaskStatus
from gpuyard.core.domain.workload import WorkloadSpec
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.prediction.performance_predictor import PerformancePredictor, estimate_of
from gpuyard.live.control_plane.prediction.runtime_estimator import RuntimeEstimator
from gpuyard.live.control_plane.views import TaskView
from tests.unit.live.control_plane.clusters import open_scheduler, run, spec, submit

CARDS = {"NVIDIA H100 80GB HBM3": 81_559, "T4": 16_384, "never heard of": 49_152}
RESNET = WorkloadSpec(model="resnet50", batch=64, precision="amp", steps=10_000)
LARGE = WorkloadSpec(model="resnet50", batch=512, precision="fp32", steps=10_000)
"""It needs more than a T4 has."""


@pytest.fixture(scope="module")
def performance_predictor() -> PerformancePredictor:
    return PerformancePredictor()


def predicted(performance_predictor: PerformancePredictor, asked: TaskSpec, cards: dict[str, int] = CARDS) -> TaskSpec:
    told = performance_predictor.predicted(asked, cards)
    assert isinstance(told, TaskSpec), told
    return told


def test_a_task_gets_forecasts_for_the_known_gpus_and_runs_where_it_is_fastest(
    performance_predictor: PerformancePredictor,
) -> None:
    told = predicted(performance_predictor, spec(work=RESNET))
    assert [one.gpu_model for one in told.forecasts] == ["NVIDIA H100 80GB HBM3", "T4"]
    h100, t4 = told.forecasts
    assert h100.low_seconds < h100.seconds < h100.high_seconds < t4.seconds
    assert dict(told.resources.speeds) == {
        "NVIDIA H100 80GB HBM3": 1.0,
        "T4": pytest.approx(h100.seconds / t4.seconds, rel=0.01),
    }
    estimate = estimate_of(told)
    assert estimate is not None
    assert estimate.seconds == h100.seconds
    assert estimate.low_seconds < h100.low_seconds < h100.high_seconds < estimate.high_seconds


def test_a_gpu_too_small_for_even_the_low_estimate_of_memory_is_not_used(
    performance_predictor: PerformancePredictor,
) -> None:
    told = predicted(performance_predictor, spec(work=LARGE))
    assert told.resources.gpu_memory_mib > CARDS["T4"]
    assert [model for model, _ in told.resources.speeds] == ["NVIDIA H100 80GB HBM3"]
    assert [one.gpu_model for one in told.forecasts] == ["NVIDIA H100 80GB HBM3"]


def test_a_task_that_fits_nowhere_is_refused_in_one_sentence(performance_predictor: PerformancePredictor) -> None:
    no = performance_predictor.predicted(spec(work=LARGE, resources=Resources(gpus=1, models=("T4",))), CARDS)
    assert isinstance(no, WorkDoesNotFit)
    assert no.sentence() == (
        f"resnet50 is predicted to need {no.needed_mib} MiB on each GPU with batch size 512; "
        "the largest GPU that the task may use has 16384 MiB."
    )
    assert no.needed_mib > 16_384


def test_statements_of_the_user_take_precedence(performance_predictor: PerformancePredictor) -> None:
    speeds = (("H100", 1.0), ("T4", 9.0))
    asked = Resources(gpus=1, speeds=speeds, gpu_memory_mib=1)
    assert predicted(performance_predictor, spec(work=LARGE, resources=asked)).resources == asked
    only_small = Resources(gpus=1, models=("T4",), gpu_memory_mib=1)
    assert predicted(performance_predictor, spec(work=LARGE, resources=only_small)).resources == only_small
    said = Estimate(60.0, 60.0, 60.0)
    told = RuntimeEstimator().estimated(predicted(performance_predictor, spec(work=RESNET, estimate=said)), 0.0)
    assert told.estimate == said


def test_a_task_without_steps_has_memory_and_speeds_and_no_run_time(
    performance_predictor: PerformancePredictor,
) -> None:
    told = predicted(performance_predictor, spec(work=replace(RESNET, steps=1)))
    assert estimate_of(told) is None
    assert told.resources.speeds


def test_on_unknown_gpus_nothing_is_predicted(performance_predictor: PerformancePredictor) -> None:
    asked = spec(work=RESNET)
    assert predicted(performance_predictor, asked, {"virtual": 24_576}) == asked
    assert predicted(performance_predictor, asked, {}) == asked


def test_an_uncounted_model_is_refused_by_name(performance_predictor: PerformancePredictor) -> None:
    with pytest.raises(WrongInput, match="'resnet5000'"):
        performance_predictor.predicted(spec(work=WorkloadSpec(model="resnet5000")), CARDS)


def test_without_lightgbm_such_tasks_are_accepted_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    asked = spec(work=RESNET)
    assert PerformancePredictor().predicted(asked, CARDS) == asked


def test_forecasts_are_corrected_by_the_actual_times_of_similar_tasks_on_their_gpu(
    performance_predictor: PerformancePredictor,
) -> None:
    runtime_estimator = RuntimeEstimator()
    told = predicted(performance_predictor, spec(user="ann", name="train", work=RESNET))
    first = runtime_estimator.estimated(told, 0.0).estimate
    assert first == estimate_of(told)
    assert first is not None
    on_t4 = told.forecasts[1]
    for number in range(1, 7):
        view = TaskView(TaskId(number), told, 0.0, status=TaskStatus.SUCCESS, cause=Cause(CauseKind.SUCCEEDED))
        view.run_seconds, view.ran_on = 2.0 * on_t4.seconds, "T4"
        runtime_estimator.ended(view, 1.0)
    later = runtime_estimator.estimated(told, 2.0).estimate
    assert later is not None
    assert later.runs == 6
    assert later.seconds == pytest.approx(first.seconds * 2.0 ** (6 / 8))
    assert later.low_seconds < later.seconds < later.high_seconds < first.seconds * 2.1
    other = runtime_estimator.estimated(replace(told, name="other"), 2.0).estimate
    assert other == first
    new_model = replace(told, forecasts=tuple(replace(one, by="another") for one in told.forecasts))
    assert runtime_estimator.estimated(new_model, 2.0).estimate == first, (
        "what one model was wrong by says nothing of another"
    )


def node(name: str, model: str, memory_mib: int) -> NodeSpec:
    return NodeSpec(NodeId(name), (Gpu(model, memory_mib),), 8, 65_536)


def test_a_yard_accepts_it_with_its_forecasts_as_an_event_and_remembers_them_after_a_restart(
    tmp_path: Path, performance_predictor: PerformancePredictor
) -> None:
    async def story() -> None:
        async with open_scheduler(
            tmp_path, runtime_estimator=RuntimeEstimator(), performance_predictor=performance_predictor
        ) as (scheduler, _):
            for name, model, memory_mib in (("slow", "T4", 16_384), ("fast", "H100", 81_559)):
                await scheduler.loop.tell(command.JoinNode(node(name, model, memory_mib)))
            (task,) = await submit(scheduler, spec(work=RESNET))
            view = scheduler.views.tasks[task]
            assert view.placement is not None
            assert view.placement.nodes == ("fast",)
            answer = view.answer()
            assert (answer.ran_on, answer.work is not None, len(answer.forecasts)) == ("H100", True, 2)
            assert answer.estimated_seconds is not None
            submitted = [
                record.event
                for record in scheduler.stores.journal.read()
                if isinstance(record.event, events.TaskSubmitted)
            ]
            assert submitted[0].spec.forecasts == view.spec.forecasts
            with pytest.raises(WrongRequest, match="resnet5000"):
                await submit(scheduler, spec(work=WorkloadSpec(model="resnet5000")))
        async with open_scheduler(tmp_path) as (scheduler, _):
            assert scheduler.views.tasks[task].spec.forecasts == view.spec.forecasts

    run(story)
